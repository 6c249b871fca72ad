#!/usr/bin/env bash
# The table "Repair rounds" of docs/results.md: a model that has seen what is said about its failures is asked again up to three
# times, beside as many samples without a word. `bash runs/repair.sh FOLDER`, then `python runs/repair_table.py FOLDER`.
set -euo pipefail
out=${1:-outputs/repair}
evaluate() {
  local name="$1" model="$2"
  shift 2
  python -m jaxppo.evaluate --model "$model" --eval_splits test_longer --repair_rounds 3 --quiet True --output_dir "$out/$name" "$@"
}
for seed in 1 2 3; do
  policy="$out/policy-$seed/policy"
  python -m jaxppo.train --seed "$seed" --quiet True --output_dir "$out/policy-$seed"
  # Its failures, on the problems that it was trained on, with what is wrong with them.
  python -m jaxppo.evaluate --model "$policy" --eval_splits rl --num_samples 4 --eval_temperature 1 --quiet True \
    --output_dir "$out/answers-$seed"
  python -m jaxppo.planning repair --samples "$out/answers-$seed/samples.jsonl" --quiet True --output_dir "$out/data-$seed"
  python -m jaxppo.sft --model_path "$policy" --dataset "$out/data-$seed" --eval_splits repair --learning_rate 5e-4 \
    --total_episodes 38400 --response_length 72 --save_steps 1000 --seed "$seed" --quiet True --output_dir "$out/repair-$seed"
  repair="$out/repair-$seed/policy"
  evaluate "repair-reason-$seed" "$repair"
  evaluate "repair-plan-$seed" "$repair" --repair_with plan
  for model in policy repair; do
    folder="$out/$model-$seed/policy"
    evaluate "$model-greedy-$seed" "$folder" --repair_with nothing --repair_temperature 1
    evaluate "$model-samples-$seed" "$folder" --repair_with nothing --eval_temperature 1
  done
done
