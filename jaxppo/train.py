"""PPO on planning problems: `python -m jaxppo.train`.

Writes a run folder with `config.yaml`, `metrics.jsonl`, `samples.jsonl`, `checkpoints/`, `policy/` and `value/`
(Hugging Face folders), `eval.json` (before and after) and `curves.png`.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo import cli, data, hf, rewards, run_folder
from jaxppo.checkpoint import Checkpoints
from jaxppo.config import TrainConfig, flatten, parse_cli
from jaxppo.errors import ModelError
from jaxppo.evaluate import EVAL_FILE, Evaluator, eval_metrics, make_evaluator, print_results
from jaxppo.metrics import Console, JsonlLog, plot_curves, read_metrics
from jaxppo.models import ModelConfig
from jaxppo.parallel import DataParallel
from jaxppo.ppo import PPO
from jaxppo.types import Params, TrainState


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything a run needs, made once."""

    config: TrainConfig
    console: Console
    model: ModelConfig
    tokenizer: Any
    policy: Params  # to start from; also the reference
    value: Params | None
    prompts: data.PromptData
    reward: rewards.RewardFunction
    evaluator: Evaluator
    ppo: PPO


def set_up(config: TrainConfig) -> Setup:
    """Load models and data, compile nothing yet; every bad input is met here, before anything is written."""
    parallel = DataParallel(config.run.parallel)
    config.check_devices(parallel.num_devices)
    rewards.check_validator(config.validator)
    model, policy, tokenizer = hf.load_policy(data.model_folder(config.sft_model_path))
    rows = data.load_split(config.data, config.data.train_split, config.validator)
    return Setup(
        config=config,
        console=Console(config.run.quiet),
        model=model,
        tokenizer=tokenizer,
        policy=policy,
        value=_value_model(config, model),
        prompts=data.PromptData(rows, tokenizer, config.batch_size, config.run.seed, config.data.max_prompt_length),
        reward=rewards.make_plan_reward(config.validator, config.reward.normalise_by, config.reward.val_timeout_s),
        evaluator=make_evaluator(config, model, tokenizer, parallel),
        ppo=PPO(config, model, tokenizer.eos_token_id, tokenizer.pad_token_id, parallel),
    )


def _value_model(config: TrainConfig, model: ModelConfig) -> Params | None:
    if config.value_model_path is None:
        return None
    folder = data.model_folder(config.value_model_path)
    value_config, value = hf.load_pretrained(folder)
    if value_config != model or "score" not in value:
        raise ModelError(f"value_model_path: expected a score head on a trunk like the policy's, got {folder}")
    return value


def train_step(
    setup: Setup, state: TrainState, reference: Params, step: int
) -> tuple[TrainState, dict[str, Any], list]:
    """One update: sample, score while the host computes rewards, estimate advantages, learn.

    Returns:
        The new state, the record for `metrics.jsonl`, and the sampled completions as records for `samples.jsonl`.
    """
    ppo, began = setup.ppo, time.monotonic()
    batch = setup.prompts.batch(step)
    rollout = ppo.generate(state, batch.prompts, step)
    sequences = ppo.pack(batch.prompts, rollout)
    sampled = time.monotonic()
    scored = ppo.score(state, reference, sequences, rollout)
    ids, mask = np.asarray(rollout.completion_ids), np.asarray(rollout.completion_mask)
    texts = data.decode(setup.tokenizer, ids, mask)
    id_lists = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    scores, extras = rewards.score(setup.reward, batch.texts, texts, id_lists, batch.columns)
    rewarded = time.monotonic()
    trajectories, stats = ppo.make_trajectories(scored, rollout, sequences, np.asarray(scores.values, np.float32))
    state, update_stats = ppo.update(state, trajectories, step)
    record = {
        "step": step + 1,
        "episode": (step + 1) * setup.config.batch_size,
        **jax.device_get(stats | update_stats),
        **scores.metrics,
        "val/num_eos_tokens": int(np.asarray(rollout.ended).sum()),
    }
    done = time.monotonic()
    record |= {
        "time/rollout_s": sampled - began,
        "time/reward_s": rewarded - sampled,
        "time/update_s": done - rewarded,
        "throughput/samples_per_s": len(texts) / (done - began),
    }
    samples = [
        {"step": step + 1, "id": name, "prompt": prompt, "completion": text, "score": value}
        | {column: values[row] for column, values in extras.items()}
        for row, (name, prompt, text, value) in enumerate(
            zip(batch.columns["id"], batch.texts, texts, scores.values, strict=True)
        )
    ]
    return state, record, samples


def train(config: TrainConfig) -> Path:
    """Carry out a run, or what is left of it; returns the run folder."""
    folder = run_folder.default_folder("train", config.run)
    resumed = run_folder.check(folder, config, config.run)
    evals = run_folder.read_json(folder / EVAL_FILE) if resumed else {}
    if "after" in evals:
        Console(config.run.quiet).print(f"{folder} is finished: nothing to resume")
        return folder
    setup = set_up(config)
    _print_plan(setup, folder)
    if config.run.dry_run:
        return folder
    run_folder.claim(folder, config, config.run)
    reference = setup.ppo.parallel.put(setup.policy)
    if "before" not in evals:
        evals = {"headline_split": config.headline_split, "before": _evaluate(setup, "before", reference)}
        run_folder.write_json(folder / EVAL_FILE, evals)
    state = _run_updates(setup, folder, reference)
    policy, value = state.params["policy"], state.params["value"]
    setup.console.stage("Saving")
    hf.save_pretrained(folder / "policy", setup.model, jax.device_get(policy), setup.tokenizer)
    if "trunk" in value:
        hf.save_pretrained(folder / "value", setup.model, jax.device_get(value), setup.tokenizer)
    evals["after"] = _evaluate(setup, "after", policy)
    plot_curves(read_metrics(folder / "metrics.jsonl"), evals, folder / "curves.png")
    run_folder.write_json(folder / EVAL_FILE, evals)  # last: "after" marks a run as finished
    _print_result(setup, folder, evals)
    return folder


def _run_updates(setup: Setup, folder: Path, reference: Params) -> TrainState:
    """All updates from the last checkpoint on."""
    config, loop, last, console = setup.config, setup.config.loop, setup.config.num_updates, setup.console
    console.stage("PPO")
    checkpoints = Checkpoints(folder / "checkpoints", keep=loop.save_total_limit)
    state = setup.ppo.init_state(setup.policy, setup.value)
    if checkpoints.latest is not None:
        state = setup.ppo.parallel.put(checkpoints.restore(state))
    start = int(state.step)
    with (
        JsonlLog(folder / "metrics.jsonl") as metrics,
        JsonlLog(folder / "samples.jsonl") as samples_log,
        console.progress(last, "PPO", start) as progress,
    ):
        metrics.truncate_after(start)
        samples_log.truncate_after(start)
        for step in range(start, last):
            state, record, samples = train_step(setup, state, reference, step)
            if loop.evaluates_at(step + 1, last):
                record |= eval_metrics(setup.evaluator(state.params["policy"]))
            metrics.append(record)
            if config.num_sample_generations and (step % config.sample_steps == 0 or step + 1 == last):
                _show_samples(setup, samples_log, samples)
            if loop.saves_at(step + 1, last):
                checkpoints.save(step + 1, state, flatten(config))
            progress.update(
                step + 1,
                reward=record["objective/scores"],
                valid=record["reward/plan_valid"],
                kl=record["objective/kl"],
                **{"samples/s": record["throughput/samples_per_s"]},
            )
    checkpoints.close()
    return state


def _show_samples(setup: Setup, log: JsonlLog, samples: list[dict[str, Any]], shown: int = 3) -> None:
    for sample in samples:
        log.append(sample)
    rows = [sample | {"score": f"{sample['score']:.2f}"} for sample in samples[:shown]]
    setup.console.sample_table(
        f"Samples of update {samples[0]['step']}", rows, ["prompt", "completion", "verdict", "score"]
    )


def _evaluate(setup: Setup, moment: str, policy: Params) -> dict[str, Any]:
    """Evaluate and print the result."""
    setup.console.stage(f"Evaluation {moment} PPO ({setup.evaluator.validator})")
    results = setup.evaluator(policy)
    print_results(setup.console, results)
    return results


def _print_plan(setup: Setup, folder: Path) -> None:
    config, parallel = setup.config, setup.ppo.parallel
    parameters = sum(p.size for p in jax.tree.leaves(setup.policy))
    steps = config.num_updates * config.ppo.num_ppo_epochs * config.ppo.num_mini_batches
    setup.console.print(
        f"PPO on {config.data.dataset}: {config.num_updates} updates of {config.batch_size} completions "
        f"({steps} optimizer steps of {config.mini_batch_size}), {parameters:,} parameters, "
        f"{parallel.num_devices} {parallel.devices[0].platform} device(s) by {parallel.mode}, into {folder}"
    )


def _print_result(setup: Setup, folder: Path, evals: dict[str, Any]) -> None:
    split = setup.config.headline_split
    before, after = (evals[moment][split]["validity"] for moment in ("before", "after"))
    setup.console.stage("Result")
    setup.console.result(
        f"valid plans on {split}: {before['rate']:.1%} [{before['low']:.1%}, {before['high']:.1%}] before, "
        f"{after['rate']:.1%} [{after['low']:.1%}, {after['high']:.1%}] after PPO (n = {after['n']}, 95 % intervals)"
    )
    setup.console.result(f"policy in {folder / 'policy'}, curves in {folder / 'curves.png'}")


if __name__ == "__main__":
    cli.main(lambda: train(parse_cli(TrainConfig, "train")))
