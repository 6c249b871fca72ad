#!/usr/bin/env bash
# The table of docs/experiments/off_policy.md: what --async_rollouts 1 does to learning, and saves in time.
set -euo pipefail
out=${1:-outputs/async}
for seed in 1 2 3; do
  python -m jaxppo.train --positive_nll 0 --seed "$seed" --output_dir "$out/ppo-$seed"
  python -m jaxppo.train --positive_nll 0 --seed "$seed" --async_rollouts 1 --output_dir "$out/async-$seed"
done
# Half the learning rate.
python -m jaxppo.train --positive_nll 0 --seed 1 --learning_rate 3e-4 --output_dir "$out/half-1"
python -m jaxppo.train --positive_nll 0 --seed 1 --learning_rate 3e-4 --async_rollouts 1 --output_dir "$out/asynchalf-1"
python runs/table.py "$out"
# Twelve updates of the default run with half a second of waiting in the reward, in turns.
slow=(--reward_funcs plan slow_judge:half_a_second --total_episodes 3072 --sizes test=4:4 test_longer=6:4)
for turn in 1 2 3; do
  for rollouts in 0 1; do
    PYTHONPATH=runs python -m jaxppo.train --positive_nll 0 "${slow[@]}" --async_rollouts "$rollouts" --output_dir "$out/slow-$rollouts-$turn"
  done
done
python runs/update_times.py "$out"/slow-*
