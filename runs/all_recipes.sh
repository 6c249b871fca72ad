#!/usr/bin/env bash
# Every recipe that needs no network, to its end, and the table of docs/recipes/index.md: bash runs/all_recipes.sh [FOLDER]
# The toys are made first, so that the times are those of the runs. About an hour on two cores.
set -euo pipefail
out=${1:-outputs/recipes}
seeds=${SEEDS:-1 2 3}

for toy in toy-reviews-gpt2 toy-reviews-classifier toy-tldr-sft toy-tldr-reward toy-tldr-reward-lora \
  toy-qwen2-plans toy-qwen3-chat; do
  start=$SECONDS
  python -c "import sys; from jaxppo import toys; toys.find(sys.argv[1])" "$toy"
  echo "$toy: $((SECONDS - start)) s"
done

run() { # NAME OF THE RUN, then flags
  local start=$SECONDS name=$1
  shift
  python -m jaxppo.train "$@" --quiet --output_dir "$out/$name"
  echo "$name: $((SECONDS - start)) s"
}

for seed in $seeds; do
  run "blocksworld-offline-$seed" --preset blocksworld-offline --seed "$seed"
  run "imdb-gpt2-offline-$seed" --preset imdb-gpt2-offline --seed "$seed"
  run "tldr-pythia-1b-offline-$seed" --preset tldr-pythia-1b-offline --seed "$seed"
done
run tldr-rloo-offline-1 --preset tldr-rloo-offline --seed 1
run lora-reward-offline-1 --preset lora-reward-offline --seed 1
run paper-qwen2-7b-offline-1 --preset paper-qwen2-7b-offline --seed 1
run qwen3-planning-offline-1 --preset qwen3-planning-offline --seed 1

python -m jaxppo.reward_server --preset api-reward-offline &
server=$!
trap 'kill "$server"' EXIT
until python -c "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')" 2>/dev/null; do
  kill -0 "$server"  # fails, and ends this, where the server did not start
  sleep 1
done
run api-reward-offline-1 --preset api-reward-offline --seed 1

python runs/recipe_table.py "$out"
