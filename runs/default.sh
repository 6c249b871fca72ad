#!/usr/bin/env bash
# The table of docs/experiments/default_run.md: PPO, RLOO and a compute-matched control over 3 seeds, two more controls.
set -euo pipefail
out=${1:-outputs/results}
for seed in 1 2 3; do
  python -m jaxppo.train --positive_nll 0 --seed "$seed" --output_dir "$out/ppo-$seed"
  # The same number of plans, for a quarter or an eighth of the problems.
  python -m jaxppo.train --positive_nll 0 --algorithm rloo --seed "$seed" --output_dir "$out/rloo-$seed"
  python -m jaxppo.train --positive_nll 0 --algorithm rloo --num_generations 8 --seed "$seed" --output_dir "$out/rloo8-$seed"
  # Learning from the valid ones among as many plans.
  python -m jaxppo.self_train --seed "$seed" --output_dir "$out/selftrain-$seed"
  # At least the same time of supervised training on the problems of the warm start (3 to 5 blocks) ...
  python -m jaxppo.sft --preset continue --seed "$seed" --output_dir "$out/sft-train-$seed"
done
# ... the same with a tenth of the learning rate ...
python -m jaxppo.sft --preset continue --learning_rate 1e-4 --seed 1 --output_dir "$out/sft-gentle-1"
# ... and on PPO's own problems (5 and 6 blocks), with their optimal reference plans as targets.
python -m jaxppo.sft --preset continue --train_split rl --learning_rate 5e-4 --seed 1 --output_dir "$out/sft-rl-1"
