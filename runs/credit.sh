#!/usr/bin/env bash
# The table "Algorithms and credit" of docs/results.md: the default run by other algorithms, rewards and helps of the critic.
set -euo pipefail
out=${1:-outputs/credit}
run() {
  local name="$1"
  shift
  for seed in 1 2 3; do
    python -m jaxppo.train --positive_nll 0 --seed "$seed" --quiet True --output_dir "$out/$name-$seed" "$@"
  done
}
grpo=(--algorithm grpo --num_generations 4)
run ppo
run rloo --algorithm rloo --num_generations 4
run grpo "${grpo[@]}"
run dr-grpo "${grpo[@]}" --loss_type dr_grpo --scale_rewards none
run grpo-dynamic "${grpo[@]}" --dynamic_sampling True
run grpo-step "${grpo[@]}" --reward_level step
run ppo-step --reward_level step
run ppo-step-lam1 --reward_level step --lam 1.0 --value_warmup_updates 5
run ppo-lam1 --lam 1.0 --value_warmup_updates 5
run ppo-warm --value_warmup_updates 5 --lam_value 1.0
run ppo-nll --positive_nll 0.1
run ppo-nll3 --positive_nll 0.3
run ppo-nll10 --positive_nll 1.0
run ppo-binary --partial_scale 0
run ppo-goal --partial goal
run ppo-prefix --partial prefix
run ppo-curriculum --curriculum success --curriculum_threshold 0.3
