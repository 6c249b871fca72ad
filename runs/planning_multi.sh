#!/usr/bin/env bash
# "Six domains, one language" of docs/results.md: the shipped start (an hour of one core; stopped, it goes on where it was),
# and runs on it over 3 seeds.
set -euo pipefail
out=outputs/planning-multi
python -m jaxppo.sft --preset planning-multi --seed 1 --output_dir "$out/sft" --resume ||
  python -m jaxppo.sft --preset planning-multi --seed 1 --output_dir "$out/sft"
for seed in 1 2 3; do
  python -m jaxppo.train --preset planning-multi --sft_model_path "$out/sft/policy" --seed "$seed" --output_dir "$out/ppo-$seed"
done
python runs/length_figure.py "$out/ppo-1" docs/planning_multi.png
