#!/usr/bin/env bash
# The tables of docs/experiments/algorithms.md: the default run by other algorithms, rewards and helps of the critic;
# ten times its samples; and problems larger than any that were trained on. `positive_nll` is off where a row does not name it.
set -euo pipefail
out=${1:-outputs/credit}
TIMEFORMAT="%U %S"
train() {
  local name="$1" seed="$2"
  shift 2
  # Processor time by the shell, beside the run: the table shows it.
  { time python -m jaxppo.train --positive_nll 0 --seed "$seed" --quiet True --output_dir "$out/$name-$seed" "$@" >&3 2>&4; } \
    3>&1 4>&2 2> "$out/$name-$seed.time"
}
run() {
  local name="$1"
  shift
  for seed in 1 2 3; do
    train "$name" "$seed" "$@"
  done
}
mkdir -p "$out"
grpo=(--algorithm grpo --num_generations 4)
dr_grpo=("${grpo[@]}" --loss_type dr_grpo --scale_rewards none)
rloo=(--algorithm rloo --num_generations 4)
run ppo
run rloo "${rloo[@]}"
run grpo "${grpo[@]}" --loss_type grpo
run dapo "${grpo[@]}"
run dr-grpo "${dr_grpo[@]}"
run ppo-binary --partial_scale 0
run ppo-goal --partial goal
run ppo-prefix --partial prefix
train ppo-nll 1 --positive_nll 0.1
run ppo-nll3 --positive_nll 0.3
run ppo-nll10 --positive_nll 1.0
run rloo-nll10 "${rloo[@]}" --positive_nll 1.0
train dr-grpo-nll10 1 "${dr_grpo[@]}" --positive_nll 1.0
# Ten times the samples.
long=(--total_episodes 153600 --save_steps 100)
train long-ppo 1 "${long[@]}"
train long-ppo-nll10 1 "${long[@]}" --positive_nll 1.0
train long-dr-grpo 1 "${long[@]}" "${dr_grpo[@]}"
python -m jaxppo.self_train --num_rounds 13 --total_episodes 153600 --seed 1 --quiet True --output_dir "$out/long-selftrain-1"
# 7 and 8 blocks.
for name in ppo ppo-nll10 long-ppo long-ppo-nll10 long-dr-grpo long-selftrain; do
  python -m jaxppo.evaluate --model "$out/$name-1/policy" --sizes test=7:512 test_longer=8:512 --response_length 128 \
    --quiet True --output_dir "$out/larger-$name-1"
done
# What decoders that look at the state make of the start and of what PPO made of it.
for model in blocksworld-sft "$out"/ppo-{1,2}/policy "$out"/ppo-nll10-{1,2,3}/policy; do
  for decoder in plain reground; do
    python -m jaxppo.evaluate --model "$model" --decoder "$decoder" --quiet True --output_dir "$out/$decoder-$(basename "$(dirname "$model")")"
  done
done
