#!/usr/bin/env bash
# The table "Four domains" of docs/results.md: one small model for four domains, PPO and RLOO on it over 2 seeds.
set -euo pipefail
out=outputs/planning-multi
python -m jaxppo.planning build --preset planning-multi
python -m jaxppo.sft --preset planning-multi --seed 1 --output_dir "$out/sft"
for seed in 1 2; do
  for algorithm in ppo rloo; do
    python -m jaxppo.train --preset planning-multi --algorithm "$algorithm" --seed "$seed" --output_dir "$out/$algorithm-$seed"
  done
done
for algorithm in ppo rloo; do
  # Both runs as two seeds of one method, against the model they started from.
  python -m jaxppo.evaluate --model "$out/$algorithm-1/policy" "$out/$algorithm-2/policy" --compare_with "$out/sft/policy" \
    --data data/planning-multi --splits test test_longer test_larger test_obfuscated --response_length 72 \
    --output_dir "$out/$algorithm-against-sft"
done
