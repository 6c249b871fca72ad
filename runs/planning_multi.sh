#!/usr/bin/env bash
# "Six domains, one language" of docs/results.md: the warm start, then PPO on it over 3 seeds, and the table by domain.
set -euo pipefail
out=outputs/planning-multi
python -m jaxppo.sft --preset planning-multi --seed 1 --output_dir "$out/sft"
for seed in 1 2 3; do
  python -m jaxppo.train --preset planning-multi --seed "$seed" --output_dir "$out/ppo-$seed"
done
python runs/domain_table.py "$out"/ppo-?
python runs/length_figure.py "$out/ppo-1" "$out/lengths.png"
