#!/usr/bin/env bash
# The table of docs/experiments/repair.md: a model that has seen what is said about its failures is asked again up to three
# times, beside as many samples without a word. `bash runs/repair.sh FOLDER`, then `python runs/repair_table.py FOLDER`.
set -euo pipefail
out=${1:-outputs/repair}
evaluate() {
  local name="$1" model="$2"
  shift 2
  python -m jaxppo.evaluate --model "$out/$model/policy" --eval_splits test_longer --quiet True --output_dir "$out/$name" "$@"
}
learn() {
  local model="$1" seed="$2" rows="$3"
  python -m jaxppo.sft --model_path "$out/policy-$seed/policy" --dataset "$out/$rows-$seed" --eval_splits repair \
    --learning_rate 5e-4 --total_episodes 38400 --response_length 72 --save_steps 1000 --seed "$seed" --quiet True \
    --output_dir "$out/$model-$seed"
}
rows() {
  local name="$1" seed="$2"
  shift 2
  python -m jaxppo.planning repair --samples "$out/answers-$seed/samples.jsonl" --quiet True --output_dir "$out/$name-$seed" "$@"
}
nothing=(--repair_with nothing)
for seed in 1 2 3; do
  python -m jaxppo.train --seed "$seed" --quiet True --output_dir "$out/policy-$seed"
  # Its plans for the problems that it was trained on, and what is wrong with those that fail.
  python -m jaxppo.evaluate --model "$out/policy-$seed/policy" --eval_splits rl --num_samples 4 --eval_temperature 1 --quiet True \
    --output_dir "$out/answers-$seed"
  rows data "$seed"
  learn repair "$seed" data
  evaluate "repair-reason-$seed" "repair-$seed" --repair_rounds 3
  evaluate "repair-sampled-$seed" "repair-$seed" --repair_rounds 3 --repair_temperature 1
  evaluate "repair-plan-$seed" "repair-$seed" --repair_rounds 3 --repair_with plan
  evaluate "repair-six-$seed" "repair-$seed" --repair_rounds 6 "${nothing[@]}" --repair_temperature 1
  # Turns that do not say why.
  rows data-told "$seed" --feedback plan
  learn told "$seed" data-told
  evaluate "told-plan-$seed" "told-$seed" --repair_rounds 3 --repair_with plan
  for model in policy repair; do
    evaluate "$model-greedy-$seed" "$model-$seed" --repair_rounds 3 "${nothing[@]}" --repair_temperature 1
    evaluate "$model-samples-$seed" "$model-$seed" --repair_rounds 3 "${nothing[@]}" --eval_temperature 1
  done
done
# One seed: told without having seen it, and the plain rows alone.
evaluate policy-reason-1 policy-1 --repair_rounds 3
mkdir -p "$out/data-plain-1"
grep '"failures": 0}' "$out/data-1/train.jsonl" > "$out/data-plain-1/train.jsonl"
cp "$out/data-1/repair.jsonl" "$out/data-plain-1"
learn plain 1 data-plain
evaluate plain-greedy-1 plain-1 --repair_rounds 3 "${nothing[@]}" --repair_temperature 1
evaluate plain-samples-1 plain-1 --repair_rounds 3 "${nothing[@]}" --eval_temperature 1
