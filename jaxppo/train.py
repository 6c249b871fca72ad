"""PPO or RLOO on planning problems: `python -m jaxppo.train`.

Writes a run folder with `config.yaml`, `metrics.jsonl`, `samples.jsonl`, `checkpoints/`, `policy/` and `value/`
(Hugging Face folders), `eval.json` (before and after), `curves.png` and `report.html`; with `--profile` also
`profile/`.
"""

import contextlib
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxppo import data, hf, models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import flatten, parse_cli, plain_values
from jaxppo.errors import ConfigError, ModelError
from jaxppo.evaluate.evaluator import (
    Evaluator,
    eval_metrics,
    make_evaluator,
    print_before_and_after,
    print_results,
    score_text,
)
from jaxppo.evaluate.intervals import interval_text
from jaxppo.export import TOKENIZER_FOLDER, base_of, models_meta, write_models
from jaxppo.nn import ModelConfig, lora
from jaxppo.parallel import processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import flops, memory
from jaxppo.profiling.compilation import Compilations
from jaxppo.profiling.device_clock import FinishClock
from jaxppo.profiling.throughput import Throughput
from jaxppo.profiling.trace import Profile, check_updates
from jaxppo.report.picture import plot_curves
from jaxppo.report.run_page import reported
from jaxppo.reward_functions import plan, registry
from jaxppo.rewards import Completions, Rewards
from jaxppo.rl import optimizer, padding
from jaxppo.rl.ppo import PPO
from jaxppo.run import cli, headline, preemption
from jaxppo.run import folder as run_folder
from jaxppo.run.alarms import Health
from jaxppo.run.checkpoints import Checkpoints, is_whole
from jaxppo.run.console import Console, ProgressView
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.run.loop import print_best, recall, warn_of_evaluation
from jaxppo.run.metrics import find as find_metric
from jaxppo.run.metrics import with_old_names
from jaxppo.run.preemption import Preempted, Preemption
from jaxppo.run.trackers import Trackers
from jaxppo.types import Params, TrainState, Trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything a run needs, made once."""

    config: TrainConfig
    console: Console
    model: ModelConfig
    value_model: ModelConfig  # that of a separate value model
    tokenizer: Any
    template: data.ChatTemplate
    models_meta: dict[str, Any]  # for the checkpoints: what an export must know of these models
    prompts: data.PromptData
    rewards: Rewards
    evaluator: Evaluator
    ppo: PPO
    throughput: Throughput
    clock: FinishClock
    trackers: Trackers


class Start(NamedTuple):
    """Parameters that a run starts from; not kept longer than needed, as they may take as much memory as the run."""

    policy: Params  # also the reference
    value: Params | None  # None: a fresh head, or RLOO
    adapter: Params | None  # of the policy; None: a fresh one, or none


def set_up(config: TrainConfig, folder: Path, console: Console | None = None) -> tuple[Setup, Start]:
    """Load models and data, compile nothing yet; every bad input is met here, before anything is written."""
    console = console or Console(config.run.quiet)
    trackers = Trackers(config.loop.report_to, folder, config, console.warn)
    parallel = DataParallel(config.run.parallel, mesh=config.run.mesh)
    config.check_devices(parallel.row_shards)
    registry.check(config.reward)
    if config.reward.judges_plans:
        plan.check_validator(config.validator)
    rows = data.load_split(config.data, config.data.train_split, config.reward.reads_pddl_for(config.validator))
    processes.check_same({"dataset": data.fingerprint(rows)})
    # A reward may share the weights, and an adapter is compared with them.
    shapes_only = config.run.dry_run and config.reward.reward_funcs == ("plan",) and config.peft.lora_path is None
    policy = hf.load_policy(config.sft_model_path, parallel.placement, shapes_only)
    model, tokenizer = policy.config, policy.tokenizer
    console.print(f"policy from {policy.loaded.describe()}")
    _check_names(config, model)
    value_model, value, value_base = _value_model(config, model, parallel, console, shapes_only)
    adapter_shape, adapter = _adapter(config, model, policy.params)
    template = data.make_chat_template(tokenizer, config.data)
    fitting = data.without_overlong(tokenizer, rows, config.data, template)
    data.tell_left_out(console.print, config.data, {config.data.train_split: len(rows) - len(fitting)})
    config = config.with_episodes(len(fitting)).with_best_metric()
    check_updates(config.profile, config.num_updates)
    prompts = _prompts(config, fitting, template)
    longest = prompts.longest + config.sampling.response_length
    for each in (model, value_model):
        models.check_length(each, longest, "longest prompt and response_length")
    rewards = _rewards(config, policy, parallel, folder)
    rewards.check_columns([*data.column_names(rows), "prompt_ids"])
    shorter = padding.shortfalls(prompts.lengths)
    ppo = PPO(config, model, template.end_id, tokenizer.pad_token_id, parallel, value_model, adapter_shape, shorter)
    evaluator = make_evaluator(config, ppo.model, tokenizer, parallel, rewards)
    config.loop.check_evaluated(evaluator.metric_names)
    data.tell_left_out(console.print, config.data, evaluator.left_out)
    start = Start(policy.params, value, adapter)
    setup = Setup(
        config=config,
        console=console,
        model=model,
        value_model=value_model,
        tokenizer=tokenizer,
        template=template,
        models_meta=models_meta(
            base_of(config.sft_model_path, policy.loaded, model, "lm"),
            value_base,
            ppo.adapter,
            ppo.stop_id,
            config.data.dataset,
        ),
        prompts=prompts,
        rewards=rewards,
        evaluator=evaluator,
        ppo=ppo,
        throughput=_throughput(ppo, start),
        clock=FinishClock(),
        trackers=trackers,
    )
    return setup, start


def _throughput(ppo: PPO, start: Start) -> Throughput:
    params = jax.eval_shape(lambda *start: ppo.models_of(ppo.init_state(*start)), *start)
    return Throughput(ppo.config, flops.of_models(ppo.model, ppo.value_model, params), ppo.parallel)


def _rewards(config: TrainConfig, policy: hf.Policy, parallel: DataParallel, folder: Path) -> Rewards:
    model = models.computing_in(policy.config, config.dtype)
    load_model = registry.reward_model_loader(model, policy.params, policy.tokenizer, parallel.of_process())
    return registry.make_rewards(config.reward, registry.Context(config.validator, config.run.seed, folder, load_model))


def _check_names(config: TrainConfig, model: ModelConfig) -> None:
    best = config.loop.best_metric
    if best is not None and find_metric(best) is None:
        raise ConfigError(f"metric_for_best_model: expected a metric of docs/metrics.md, got {best!r}")
    stop_id = config.sampling.stop_token_id
    if stop_id is not None and stop_id >= model.vocab_size:
        raise ConfigError(f"stop_token_id: expected less than the vocabulary's {model.vocab_size}, got {stop_id}")


def _value_model(
    config: TrainConfig, model: ModelConfig, parallel: DataParallel, console: Console, shapes_only: bool
) -> tuple[ModelConfig, Params | None, dict[str, Any] | None]:
    """Architecture, parameters and origin of what the value function starts from; None where all of it is fresh."""
    if config.value_model_path is None:
        return model, None, None
    folder = hf.find_model(config.value_model_path)
    if config.value_model == "shared":
        head = hf.load_value_head(folder, model)
        console.print(f"value head from {folder}")
        return model, {"score": head}, None
    loaded = hf.load_model(folder, head="score", placement=parallel.placement, shapes_only=shapes_only)
    console.print(f"value model from {loaded.describe()}")
    if loaded.config.vocab_size < model.vocab_size:
        expected = f"a vocabulary of at least the policy's {model.vocab_size} tokens"
        raise ModelError(f"value_model_path: expected {expected}, got {loaded.config.vocab_size} in {folder}")
    return loaded.config, loaded.params, base_of(config.value_model_path, loaded, loaded.config, "score")


def _adapter(config: TrainConfig, model: ModelConfig, base: Params) -> tuple[lora.LoraConfig | None, Params | None]:
    """Shape and parameters of the adapter that the policy starts from."""
    if config.peft.lora_path is None:
        return None, None
    shape, adapter = lora.load_adapter(config.peft.lora_path, model, base)
    if "score" in adapter:
        got = f"one with a score head in {config.peft.lora_path}"
        raise ModelError(f"lora_path: expected an adapter of a language model, got {got}")
    return shape, adapter


def _prompts(config: TrainConfig, rows: list[data.Row], template: data.ChatTemplate) -> data.PromptData:
    longest, lengths, seed = config.data.max_prompt_length, config.data.text_lengths, config.run.seed
    return data.PromptData(rows, template.tokenizer, config.num_prompts, seed, longest, lengths, template)


class Step(NamedTuple):
    """One update: what it leaves behind."""

    state: TrainState
    record: dict[str, Any]  # for metrics.jsonl
    samples: list[dict[str, Any]]  # for samples.jsonl
    trajectories: Trajectories


def train_step(setup: Setup, state: TrainState, reference: Params | None, step: int) -> Step:
    """One update: sample, score while the host computes rewards, estimate advantages, learn."""
    ppo, began = setup.ppo, time.monotonic()
    batch = setup.prompts.batch(step)
    rollout = ppo.generate(state, batch.prompts, step)
    sequences = ppo.pack(batch.prompts, rollout)
    sampled = time.monotonic()
    preemption.check()
    scored = ppo.score(state, reference, sequences, rollout)
    scored_at = setup.clock.finish_time(scored)
    prompts, columns = batch.per_completion(setup.config.rl.group_size)
    ids, mask = ppo.parallel.to_host((rollout.completion_ids, rollout.completion_mask))
    own = ppo.parallel.local_rows(len(prompts))
    texts = data.decode(setup.tokenizer, ids[own], mask[own], setup.template.end_id)
    id_lists = [row[real].tolist() for row, real in zip(ids[own], mask[own], strict=True)]
    own_columns = {name: column[own] for name, column in columns.items()}
    scores = setup.rewards(Completions(prompts[own], texts, id_lists, own_columns), processes.gather)
    texts = [text for of_process in processes.gather(texts) for text in of_process]
    rewarded = time.monotonic()
    preemption.check()
    values = np.array(scores.values, np.float32)  # None, for a completion without a score, becomes NaN
    state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, values)
    state, update_stats = ppo.update(state, trajectories, step)
    episode = (step + 1) * setup.config.batch_size
    record = {
        "step": step + 1,
        "episode": episode,
        "epoch": episode / (len(setup.prompts.rows) * setup.config.rl.group_size),
        **jax.device_get(stats | update_stats),
        **scores.metrics,
    }
    done = time.monotonic()
    record |= {
        "time/rollout_s": sampled - began,
        "time/reward_s": rewarded - sampled,
        "time/reward_wait_s": max(0.0, rewarded - scored_at.result()),
        "time/update_s": done - rewarded,
    }
    shapes = flops.shapes_of(batch.prompts.prompt_ids, mask, sequences.input_ids)
    record |= setup.throughput.metrics(shapes, done - began)
    samples = [
        {"step": step + 1, "id": name, "prompt": prompt, "completion": text, "score": value}
        | {column: values[row] for column, values in scores.extras.items()}
        for row, (name, prompt, text, value) in enumerate(
            zip(columns["id"], prompts, texts, scores.values, strict=True)
        )
    ]
    return Step(state, record, samples, trajectories)


def train(config: TrainConfig) -> Path:
    """Carry out a run, or what is left of it; returns the run folder."""
    console, folder, resumed = run_folder.begin("train", config)
    evals = processes.on_first(lambda: run_folder.read_json(folder / run_folder.EVAL_FILE) if resumed else {})
    if "after" in evals:
        console.print(f"{folder} is finished: nothing to resume")
        return folder
    setup, start = set_up(config, folder, console)
    _print_plan(setup, start, folder)
    if config.run.dry_run:
        return folder
    processes.on_first(lambda: run_folder.claim(folder, config, config.run))
    state = setup.ppo.init_state(*start)
    reference = setup.ppo.reference(state, start.policy)
    del start
    closing = contextlib.closing
    with reported(folder, console), closing(setup.rewards), closing(setup.clock), setup.trackers:
        _carry_out(setup, folder, state, reference, evals)
    return folder


def _carry_out(setup: Setup, folder: Path, state: TrainState, reference: Params | None, evals: dict[str, Any]) -> None:
    """Evaluate, train, evaluate, export; what `evals` and the checkpoints have already is not done again."""
    config = setup.config
    if "before" not in evals:
        before = _evaluate(setup, folder, "before", state)
        evals |= {"headline_split": config.headline_split, "before": before}
    setup.trackers.log(0, eval_metrics(evals["before"]))
    if processes.is_first():
        run_folder.write_json(folder / run_folder.EVAL_FILE, evals)
        hf.save_tokenizer(setup.tokenizer, folder / TOKENIZER_FOLDER)
    state = _run_updates(setup, folder, state, reference)
    evals["after"] = _evaluate(setup, folder, "after", state)
    setup.trackers.log(config.num_updates, eval_metrics(evals["after"]))
    setup.console.stage("Saving")
    params, frozen = setup.ppo.parallel.to_host((state.params, state.frozen))
    if processes.is_first():
        records = read_metrics(folder / "metrics.jsonl")
        write_models(folder, _checkpoint_meta(setup, records[-1]), params, frozen, setup.tokenizer, evals)
        plot_curves(records, evals, folder / "curves.png")
        run_folder.write_json(folder / run_folder.EVAL_FILE, evals)  # last: "after" marks a run as finished
    _print_result(setup, folder, evals)


def _run_updates(setup: Setup, folder: Path, state: TrainState, reference: Params | None) -> TrainState:
    """All updates from the last checkpoint on, or from this state where there is none.

    Raises:
        Preempted: the run was asked to stop.
        Exception: whatever a reward function or else has failed with.

    In both cases the last finished update is saved; where there are several processes, in the first alone.
    """
    config, loop, last, console = setup.config, setup.config.loop, setup.config.num_updates, setup.console
    parallel = setup.ppo.parallel
    console.stage(config.rl.algorithm.upper())
    checkpoints = Checkpoints(folder / "checkpoints", loop.save_total_limit, loop.best_metric, loop.greater_is_better)
    if processes.on_first(lambda: checkpoints.steps):
        state = checkpoints.resume(state, console.warn)
    start, health = int(state.step), Health(console, folder, config.max_bad_updates, parallel.to_host)
    profile = Profile(config.profile if processes.is_first() else 0, start, last, folder, console)
    saved, record = start, {}
    setup.trackers.begin(start)
    with (
        Preemption(run_folder.resume_command("train", folder, config), processes.largest, console.stop_noted),
        checkpoints,
        Compilations(console.print) as compilations,
        profile,
        JsonlLog(folder / "metrics.jsonl", enabled=processes.is_first()) as metrics,
        JsonlLog(folder / "samples.jsonl", enabled=processes.is_first()) as samples_log,
        _progress(setup, folder, start) as progress,
    ):
        metrics.truncate_after(start)
        samples_log.truncate_after(start)
        recall(progress, folder, start)
        progress.doing("compiling")

        def log(record: dict[str, Any]) -> None:
            logged = with_old_names(record) if config.old_metric_names else record
            metrics.append(logged)
            setup.trackers.log(int(record["step"]), logged)

        for step in range(start, last):
            done = step
            try:
                preemption.check()
                compilations.begin()
                profile.begin(step)
                state, record, samples, trajectories = train_step(setup, state, reference, step)
                done = step + 1
                profile.end(step)
                record |= compilations.end(step + 1, trajectories.sequences.input_ids.shape[1])
                record |= memory.measured(parallel.local_devices)
                if step == start and "memory/peak_mib" in record:
                    console.print(memory.describe_measured(record, parallel.local_devices))
                if loop.evaluates_at(step + 1, last):
                    progress.doing("evaluation")
                    record |= eval_metrics(setup.evaluator(setup.ppo.models_of(state)["policy"], fixed_rows_only=True))
                loop.check_record(record, last)
            except Exception as error:
                stopped = isinstance(error, Preempted)
                if saved < done and (stopped or is_whole(state)):
                    if done > step:
                        warn_of_evaluation(console, done)
                        log(record)
                    setup.trackers.flush()
                    checkpoints.save(done, state, _checkpoint_meta(setup, record), record)
                if not stopped and processes.is_alone():
                    preemption.check()  # Ctrl-C also ends what a reward function has started, which then fails
                raise
            log(record)
            if config.num_sample_generations and (step % config.sample_steps == 0 or step + 1 == last):
                for sample in samples:
                    samples_log.append(sample)
                setup.trackers.samples(step + 1, samples)
                _show_samples(progress, samples)
            if loop.saves_at(step + 1, last) or health.is_over(record):
                setup.trackers.flush()
                checkpoints.save(step + 1, state, _checkpoint_meta(setup, record), record)
                saved = step + 1
            health.check(record, trajectories, samples)
            progress.update(step + 1, **headline.numbers(record))
    print_best(console, checkpoints, folder)
    return state


def _checkpoint_meta(setup: Setup, record: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says about itself."""
    return {
        "config": plain_values(flatten(setup.config)),
        "models": setup.models_meta,
        "step": record["step"],
        "episode": record["episode"],
        "seed": setup.config.run.seed,
        "metrics": record,
    }


def _progress(setup: Setup, folder: Path, start: int) -> AbstractContextManager[ProgressView]:
    config, title = setup.config, setup.config.rl.algorithm.upper()
    header = (
        f"{title} of {config.sft_model_path} on {config.data.dataset}: {config.num_updates} updates of "
        f"{config.batch_size} completions, into {folder}"
    )
    stages = ("evaluation before", title, "evaluation after", "saving")
    return setup.console.progress(config.num_updates, title, start, header=header, stages=stages, hint=headline.hint)


def _show_samples(progress: ProgressView, samples: list[dict[str, Any]], shown: int = 3) -> None:
    """Some samples, with all that is known of what they are worth."""
    rows = [sample | {"score": score_text(sample["score"])} for sample in samples[:shown]]
    parts = [name for name in rows[0] if name not in ("step", "id", "prompt", "completion", "score")]
    progress.samples(f"Samples of update {samples[0]['step']}", rows, ["prompt", "completion", *parts, "score"])


def _evaluate(setup: Setup, folder: Path, moment: str, state: TrainState) -> dict[str, Any]:
    """Evaluate, print the result, and keep some of the answers."""
    judge = setup.evaluator.validator or registry.describe(setup.config.reward)
    setup.console.stage(f"Evaluation {moment} {setup.config.rl.algorithm.upper()} ({judge})")
    results, samples = setup.evaluator.with_samples(setup.ppo.models_of(state)["policy"])
    print_results(setup.console, results)
    if processes.is_first():
        path = folder / run_folder.EVAL_SAMPLES_FILE
        run_folder.write_json(path, run_folder.read_json(path) | {moment: samples})
    return results


def _print_plan(setup: Setup, start: Start, folder: Path) -> None:
    """What the run will do, and warnings about settings that rarely do what was meant."""
    config, ppo, parallel = setup.config, setup.config.rl, setup.ppo.parallel
    parameters = sum(p.size for p in jax.tree.leaves(start.policy))
    steps = config.num_updates * ppo.num_ppo_epochs * ppo.num_mini_batches
    tokens = setup.prompts.prompt_length + config.sampling.response_length
    generations = f" ({config.num_prompts} prompts x {ppo.group_size})" if ppo.group_size > 1 else ""
    accumulated = memory.micro_batches(config, setup.ppo.learned, tokens, parallel.row_shards)
    micro = f", {accumulated} micro-batches each" if accumulated > 1 else ""
    setup.console.print(
        f"run: {ppo.algorithm.upper()} on {config.data.dataset}: {config.num_updates} updates of {config.batch_size} "
        f"completions{generations} = {config.num_updates * config.batch_size} episodes, "
        f"{config.num_updates * config.num_prompts / len(setup.prompts.rows):.2f} passes over "
        f"{len(setup.prompts.rows)} prompts\n"
        f"learning: {steps} optimizer steps ({ppo.num_ppo_epochs} epochs x {ppo.num_mini_batches} mini-batches of "
        f"{config.mini_batch_size} completions per update{micro}), old log-probabilities by {config.logprobs}\n"
        f"size: at most {config.batch_size * tokens:,} tokens per update, {parameters:,} parameters in {config.dtype}, "
        f"{parallel.describe()}\n"
        f"folder: {folder}, trackers: {', '.join(config.loop.report_to)}"
    )
    _print_memory(setup, start)
    if config.sampling.truncates and config.logprobs == "sampler":
        setup.console.warn(
            "top_k, top_p and min_p sample from a truncated distribution: its log-probabilities are kept, so the KL "
            "estimates are biased upwards and the first ratio is below 1 (--logprobs recompute keeps the ratio at 1)"
        )
    elif config.sampling.truncates:
        setup.console.warn(
            "top_k, top_p and min_p sample from a truncated distribution, log-probabilities are recomputed without the "
            "truncation: the KL estimates are biased (top_k 0, top_p 1 and no min_p keep them right)"
        )
    if not config.peft.use_peft and (warning := optimizer.high_rates(config.optimizer, parameters)) is not None:
        presets = "the presets default, blocksworld and tiny are for a tiny model"
        setup.console.warn(f"{warning}; {presets}: set them by flags, or in a --config file of its own")
    if ppo.kl_coef == 0:
        setup.console.print("kl_coef 0: no reference, and no KL is measured")


def _print_memory(setup: Setup, start: Start) -> None:
    """What the run will take on each device, and a warning where that is too much."""
    config, ppo = setup.config, setup.ppo
    state = jax.eval_shape(ppo.init_state, *start)
    held = {f"{name} to train": tree for name, tree in state.params.items()} | {"optimizer": state.opt_state}
    if state.frozen is not None:  # one set of arrays may lie under several adapters
        held["frozen base"] = state.frozen["policy"]
        if start.value is not None and "trunk" in start.value:
            held["frozen value base"] = state.frozen["value"]
    elif config.rl.kl_coef > 0:
        held["reference"] = jax.eval_shape(partial(models.cast, ppo.model), start.policy)
    weights = jax.eval_shape(ppo.models_of, state)
    prompt_length, row_shards = setup.prompts.prompt_length, ppo.parallel.row_shards
    held, trained = ppo.parallel.shards(held), ppo.parallel.shards(state.params)
    sizes = ppo.parallel.sizes
    budget = memory.budget(config, ppo.learned, held, trained, weights, prompt_length, row_shards, sizes)
    setup.console.print(budget.describe())
    warning = memory.excess(budget, ppo.parallel.local_devices)
    if warning is not None:
        setup.console.warn(warning)


def _print_result(setup: Setup, folder: Path, evals: dict[str, Any]) -> None:
    split, algorithm = setup.config.headline_split, setup.config.rl.algorithm.upper()
    before, after = (evals[moment][split] for moment in ("before", "after"))
    samples = run_folder.read_json(folder / run_folder.EVAL_SAMPLES_FILE) if processes.is_first() else {}
    earlier, later = (samples.get(moment, {}).get(split, []) for moment in ("before", "after"))
    print_before_and_after(setup.console, split, earlier, later)
    setup.console.stage("Result")
    title, key = ("valid plans", "validity") if "validity" in after else ("mean reward", "reward")
    setup.console.result(
        f"{title} on {split}: {interval_text(before[key])} before, {interval_text(after[key])} after {algorithm} "
        f"(n = {after[key]['n']}, 95 % intervals)"
    )
    setup.console.result(f"policy in {folder / 'policy'}, curves in {folder / 'curves.png'}")


if __name__ == "__main__":
    cli.main(lambda: train(parse_cli(TrainConfig, "train")))
