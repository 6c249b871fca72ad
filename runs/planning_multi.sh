#!/usr/bin/env bash
# docs/experiments/planning_multi.md: PPO over 3 seeds on the shipped start, what it is compared with, and the table by
# domain. With `start` as its argument it makes that start first (runs/planning_multi_sft.csv is its loss), and goes on where it was
# stopped.
set -euo pipefail
out=outputs/planning-multi
start=planning-multi-sft
sft() {  # FOLDER FLAGS: a supervised run, or what is left of it
  local folder=$out/$1 resume
  resume=$([ -d "$folder/checkpoints" ] && echo --resume || true)
  python -m jaxppo.sft --preset planning-multi --seed 1 --output_dir "$folder" "${@:2}" $resume
}
if [ "${1:-}" = start ]; then
  further=(--learning_rate 1.2e-3 --stream_rows test=10 --eval_splits test)
  large=(--augment states --stream_lengths rl=11-16 --stream_rows train=4096 --total_episodes 268800)
  sft sft
  sft sft-2 --model_path "$out/sft/policy" --data_seed 1 --stream_rows train=12000 --total_episodes 390400 "${further[@]}"
  sft sft-3 --model_path "$out/sft-2/policy" --data_seed 2 --stream_lengths train=4-10 "${large[@]}" "${further[@]}"
  sft sft-4 --model_path "$out/sft-3/policy" --data_seed 3 --stream_lengths train=1-10 "${large[@]}" "${further[@]}"
  sft sft-5 --model_path "$out/sft-4/policy" --data_seed 4 --stream_lengths train=1-10 "${large[@]}" "${further[@]}"
  python runs/loss_log.py "$out"/sft{,-2,-3,-4,-5} > "$out/sft.csv"
  start=$out/sft-5/policy
fi
for seed in 1 2 3; do
  python -m jaxppo.train --preset planning-multi --sft_model_path "$start" --seed "$seed" --output_dir "$out/ppo-$seed"
  # The same with LCCS for plans that are not valid.
  python -m jaxppo.train --preset planning-multi --sft_model_path "$start" --partial_scale 1 --seed "$seed" \
    --output_dir "$out/lccs-$seed"
done
# Controls: 20 minutes of two cores spent otherwise. Learning from the valid ones among as many plans ...
python -m jaxppo.self_train --preset planning-multi --sft_model_path "$start" --seed 1 --output_dir "$out/self-1"
# ... more of what the start was trained on last ...
control=(--preset planning-multi --model_path "$start" --total_episodes 76800 --seed 1)
python -m jaxppo.sft "${control[@]}" --data_seed 5 --augment states --stream_lengths rl=11-16 --stream_rows train=2048 \
  --learning_rate 1.2e-3 --output_dir "$out/sft-more-1"
# ... and PPO's own problems, with their shortest plans as targets.
python -m jaxppo.sft "${control[@]}" --train_split rl --learning_rate 5e-4 --lr_scheduler_type linear --warmup_steps 20 \
  --output_dir "$out/sft-rl-1"
python runs/domain_table.py "$out"/{ppo,lccs}-? "$out"/self-1 "$out"/sft-{more,rl}-1
python runs/length_figure.py "$out/ppo-1" "$out/lengths.png"
# What decoders that look at the state make of the start and of what PPO made of it; and larger problems than either has seen.
larger=(blocksworld=7-8 ferry=6-7 gripper=7-8 miconic=7-8 logistics=5-6 satellite=6-7)
judge() {  # MODEL NAME FLAGS
  python -m jaxppo.evaluate --preset planning-multi --model "$1" --output_dir "$out/$2" --quiet True "${@:3}"
}
for name in start ppo-1; do
  model=$([ "$name" = start ] && echo "$start" || echo "$out/$name/policy")
  for decoder in plain reground; do
    judge "$model" "$decoder-$name" --decoder "$decoder" --eval_rows 300
  done
  judge "$model" "larger-$name" --eval_splits test_longer --stream_rows test=50 --sizes "${larger[@]}"
done
