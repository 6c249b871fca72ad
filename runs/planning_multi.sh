#!/usr/bin/env bash
# "Six domains, one language" of docs/results.md: PPO over 3 seeds on the shipped start, and the table by domain. With `start` as its
# argument it makes that start first (runs/planning_multi_sft.csv is its loss), and goes on where it was stopped.
set -euo pipefail
out=outputs/planning-multi
start=planning-multi-sft
if [ "${1:-}" = start ]; then
  resume=$([ -d "$out/sft/checkpoints" ] && echo --resume || true)
  python -m jaxppo.sft --preset planning-multi --seed 1 --output_dir "$out/sft" $resume
  python runs/loss_log.py "$out/sft" > "$out/sft.csv"
  start=$out/sft/policy
fi
for seed in 1 2 3; do
  python -m jaxppo.train --preset planning-multi --sft_model_path "$start" --seed "$seed" --output_dir "$out/ppo-$seed"
done
python runs/domain_table.py "$out"/ppo-?
python runs/length_figure.py "$out/ppo-1" "$out/lengths.png"
