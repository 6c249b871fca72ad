#!/usr/bin/env bash
# The table of docs/recipes/smollm2.md: supervised training, then PPO and RLOO with two seeds. About six hours on two cores; a run that was
# stopped goes on with `python -m jaxppo.train --resume --output_dir RUN`.
set -euo pipefail
out=${1:-outputs/smollm2}
python runs/smollm2_folder.py "$out/model"
python -m jaxppo.sft --preset smollm2-planning --model_path "$out/model" --output_dir "$out/sft"
for seed in 1 2; do
  python -m jaxppo.train --preset smollm2-planning --sft_model_path "$out/sft/policy" --seed "$seed" --output_dir "$out/ppo-$seed"
  python -m jaxppo.train --preset smollm2-planning --sft_model_path "$out/sft/policy" --seed "$seed" \
    --algorithm rloo --num_generations 4 --output_dir "$out/rloo-$seed"
done
