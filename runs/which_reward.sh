#!/usr/bin/env bash
# docs/experiments/which_reward.md: eight rewards by PPO, and seven by RLOO, three seeds, 40 updates each on the start of six
# domains.
# With arguments, some of them alone: runs/which_reward.sh ALGORITHM SEED [REWARD ...]. What is finished is left as it is, what is
# not is gone on with.
set -euo pipefail
out=outputs/which-reward
run() {  # ALGORITHM SEED REWARD
  local folder=$out/$1-$3-$2 flags=(--partial_scale 1)
  [ -d "$folder/policy" ] && return
  [ -d "$folder/checkpoints" ] && flags+=(--resume)
  case $1 in rloo) flags+=(--algorithm rloo --num_generations 4) ;; esac
  case $3 in
    valid) flags+=(--partial_scale 0) ;;
    lccs) ;;
    lccs_reference) flags+=(--normalise_by reference) ;;
    lcs | prefix | goal) flags+=(--partial "$3") ;;
    goal_prefix) flags+=(--partial goal --reward_funcs plan runs.prefix_reward:prefix --reward_weights 0.5 0.5) ;;
  esac
  python -m jaxppo.train --preset planning-multi --total_episodes 10240 --eval_splits test_longer --seed "$2" --quiet True \
    --output_dir "$folder" "${flags[@]}"
}
rewards=("${@:3}")
[ ${#rewards[@]} -gt 0 ] || rewards=(valid lccs lccs_reference lcs prefix goal goal_prefix)
for algorithm in ${1:-ppo rloo}; do
  for seed in ${2:-1 2 3}; do
    for reward in "${rewards[@]}"; do
      run "$algorithm" "$seed" "$reward"
    done
  done
done
