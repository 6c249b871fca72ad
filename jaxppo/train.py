"""PPO, RLOO or GRPO on planning problems: `python -m jaxppo.train`.

Writes a run folder with `config.yaml`, `metrics.jsonl`, `samples.jsonl`, `checkpoints/`, `policy/` and `value/`
(Hugging Face folders), `eval.json` (before and after), `curves.png` and `report.html`; with `--profile` also
`profile/`.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxppo import data
from jaxppo.config import DEFAULT_PROMPT_LENGTH, TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.evaluate import evaluator as evaluation
from jaxppo.evaluate import printing
from jaxppo.hf import hub
from jaxppo.hf.export import models_meta, write_models, write_tokenizer
from jaxppo.parallel import processes, stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling.aim import show
from jaxppo.profiling.aot import Plan
from jaxppo.profiling.meter import UpdateMeter
from jaxppo.report.picture import plot_run
from jaxppo.report.run_page import reported
from jaxppo.reward_functions import registry
from jaxppo.reward_functions.judged import Judge, failed_samples
from jaxppo.rewards import Rewards, TrainerState
from jaxppo.rl.ahead import AheadSampler, Sampled, stage_times
from jaxppo.rl.describe import plan_of, print_plan
from jaxppo.rl.ppo import PPO
from jaxppo.rl.start import Start, StartModels, load_start
from jaxppo.run import activity, cli, preemption
from jaxppo.run import folder as run_folder
from jaxppo.run.alarms import Health
from jaxppo.run.console import Console
from jaxppo.run.loop import StepOutput, Steps, TrainingLoop
from jaxppo.types import Experience, Params, PromptBatch, Rollout, Sequences, TrainState, Trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything a run needs, made once."""

    config: TrainConfig
    tokenizer: Any
    template: data.ChatTemplate
    models_meta: dict[str, Any]  # for the checkpoints: what an export must know of these models
    prompts: data.PromptData | data.StreamedPrompts
    curriculum: data.SuccessCurriculum | data.Shuffled
    rewards: Rewards
    judge: Judge
    ahead: AheadSampler
    evaluator: evaluation.Evaluator
    ppo: PPO
    meter: UpdateMeter


class Inputs(NamedTuple):
    """What a run reads before it makes anything of it."""

    config: TrainConfig  # with what the data complete
    models: StartModels
    start: Start
    template: data.ChatTemplate
    columns: list[str]  # of the rows
    prompts: data.PromptData | data.StreamedPrompts

    def learner(self, config: TrainConfig, parallel: DataParallel) -> PPO:
        """Return the programs of a run of these models, under these settings or others."""
        models, gaps = self.models, self.prompts.length_gaps
        ids = self.template.end_id, models.tokenizer.pad_token_id
        stops = data.stop_table(models.tokenizer, config.sampling.stop_strings, models.policy.num_logits)
        return PPO(config, models.policy, *ids, parallel, models.value, models.adapter, gaps, stops)


def read_inputs(config: TrainConfig, parallel: DataParallel, console: Console) -> Inputs:
    """Load models and prompts, and check the settings that depend on them.

    Args:
        config: settings.
        parallel: devices that parameters are read into.
        console: for the lines that say what was read.
    """
    registry.check(config.reward, config.validator)
    judges = config.reward.reads_pddl_for(config.validator)
    drawn = [] if config.stream.streaming else [config.data.train_split]
    data.make_splits(config.data, [*drawn, *config.data.eval_splits])
    stream = data.open_stream(config.data, config.stream, config.run.seed, judges) if config.stream.streaming else None
    rows = [] if stream is not None else data.load_split(config.data, config.data.train_split, judges)
    if stream is None:
        data.check_same(config.data.dataset, config.data.train_split, rows)
    models, start = load_start(config, parallel, console)
    template = data.make_chat_template(models.tokenizer, config.data)
    console.print(f"prompts and completions: {template.describe()}")
    if stream is not None:
        longest = config.data.longest_prompt or DEFAULT_PROMPT_LENGTH
        select = data.select_prompts(models.tokenizer, config.data, template, longest)
        step_rows = data.StepRows(stream, config.num_prompts, select, console.warn)
        pad_id = models.tokenizer.pad_token_id
        prompts = data.StreamedPrompts(step_rows, config.num_prompts, config.run.seed, longest, pad_id)
        columns = prompts.columns
    else:
        rows = data.with_begun_plans(rows, config.drawing, config.data.data_seed, template)
        fitting = data.without_overlong(models.tokenizer, rows, config.data, template)
        data.tell_left_out(console.print, config.data, {config.data.train_split: len(rows) - len(fitting)})
        config = config.with_episodes(len(fitting))
        prompts, columns = _prompts(config, fitting, template), data.column_names(rows)
    models.check_length(prompts.longest + config.sampling.response_length)
    return Inputs(config.with_best_metric(), models, start, template, columns, prompts)


def set_up(run: run_folder.Run) -> tuple[Setup, Start]:
    """Load models and data; every bad input is met here, before anything is compiled or written.

    Args:
        run: its settings, folder, view and devices.

    Returns:
        All but the parameters, and those.
    """
    console, parallel = run.console, run.parallel
    assert run.trackers is not None  # those that are not installed are met here
    inputs = read_inputs(run.config, parallel, console)
    config, models, start, template, columns, prompts = inputs
    ppo = inputs.learner(config, parallel)
    rewards = _rewards(config, ppo, start, models.tokenizer, run.folder)
    registry.tell_inputs(console.print, rewards)
    rewards.check_columns(columns)
    evaluator = evaluation.make_evaluator(config, ppo.model, models.tokenizer, parallel, rewards)
    config.loop.check_evaluated(evaluator.metric_names)
    data.tell_left_out(console.print, config.data, evaluator.left_out)
    shapes = jax.eval_shape(lambda *start: ppo.models_of(ppo.init_state(*start)), *start)
    setup = Setup(
        config=config,
        tokenizer=models.tokenizer,
        template=template,
        models_meta=models_meta(
            models.policy_base,
            models.value_base,
            ppo.adapter,
            ppo.stop_ids,
            config.data.dataset,
            template.describe(),
        ),
        prompts=prompts,
        curriculum=data.make_curriculum(config.drawing, prompts, ahead=config.rl.async_rollouts > 0),
        rewards=rewards,
        judge=Judge(models.tokenizer, ppo.end_ids, parallel, rewards, config.rl.group_size),
        ahead=AheadSampler(beside=not registry.need_devices(config.reward)),
        evaluator=evaluator,
        ppo=ppo,
        meter=UpdateMeter(config, ppo.model, ppo.value_model, shapes, parallel),
    )
    return setup, start


def _aim(run: run_folder.Run) -> None:
    """Compile the programs of an update for `--target`."""
    inputs = read_inputs(run.config, DataParallel(), run.console)
    start = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs.start)
    length = inputs.prompts.prompt_length

    def build(config: TrainConfig, devices: list[Any]) -> Plan:
        ppo = inputs.learner(config, DataParallel(config.run.parallel, devices, config.run.mesh))
        if config is inputs.config:
            print_plan(run, ppo, start, inputs.prompts.num_rows, length)
        return plan_of(ppo, start, length)

    show(run.console, inputs.config, build)


def _prompts(config: TrainConfig, rows: list[data.Row], template: data.ChatTemplate) -> data.PromptData:
    longest, lengths, seed = config.data.longest_prompt, config.data.text_lengths, config.run.seed
    return data.PromptData(rows, template.tokenizer, config.num_prompts, seed, longest, lengths, template)


def _rewards(config: TrainConfig, ppo: PPO, start: Start, tokenizer: Any, folder: Path) -> Rewards:
    parallel = ppo.parallel.of_process()
    load_model = registry.reward_model_loader(
        ppo.model, start.policy, tokenizer, parallel, ppo.end_ids, config.data.system_prompt
    )
    run = registry.Context(config.validator, config.run.seed, folder, load_model)
    return registry.make_rewards(config.reward, run)


class Step(NamedTuple):
    """One update: what it leaves behind."""

    state: TrainState
    record: dict[str, Any]  # for metrics.jsonl
    samples: list[dict[str, Any]]  # for samples.jsonl
    trajectories: Trajectories


def train_step(setup: Setup, state: TrainState, reference: Params | None, step: int) -> Step:
    """Carry out one update: sample, score while the host computes rewards, estimate advantages, learn.

    With `async_rollouts` this batch was sampled in the update before, and while the host computes its rewards the
    devices sample and score the next one.
    """
    ppo, began = setup.ppo, time.monotonic()
    known = jax.device_get(state.curriculum)
    batch = setup.prompts.batch(step, known)
    if state.ahead is None:
        sampled = _sample(setup, state, reference, batch.prompts, step)
    else:
        sampled = Sampled.before(state.ahead, began)
    preemption.check()
    setup.rewards.trainer_state = _trainer_state(setup, step)
    answers = setup.judge.answers(batch, sampled.experience.rollout)
    with setup.ahead.sampling(_next_sample(setup, state, reference, step)) as ahead:
        judged = setup.judge(answers, ahead.gather)
    preemption.check()
    rollout, sequences, scored = sampled.experience
    scores = judged.values(), setup.judge.token_scores(judged)
    with activity.shown("scoring"):
        activity.attended(lambda: jax.block_until_ready(scored))
    state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, *scores)
    with activity.shown("learning"):
        before = state._replace(curriculum=None)
        state, update_stats = activity.attended(
            lambda: jax.block_until_ready(ppo.update(before, trajectories, step)), takes_state=True
        )
    known, drawn = setup.curriculum.after(known, judged.scores.values, step)
    state = state._replace(ahead=ahead.experience, curriculum=ppo.parallel.put(known))
    after = _trainer_state(setup, step + 1)
    record = {
        "step": after.global_step,
        "episode": after.episode,
        "epoch": after.epoch,
        **jax.device_get(stats | update_stats),
        **(judged.scores.metrics | drawn),
    }
    done = time.monotonic()
    record |= stage_times(sampled, ahead.sampled, judged.at, done)
    record |= setup.meter.throughput(batch.prompts.prompt_ids, judged.mask, sequences.input_ids, done - began)
    return Step(state, record, judged.samples(step + 1), trajectories)


def _trainer_state(setup: Setup, step: int) -> TrainerState:
    """Say how far the run is after `step` updates."""
    config, episode = setup.config, step * setup.config.batch_size
    return TrainerState(
        global_step=step,
        max_steps=config.num_updates,
        epoch=setup.prompts.epoch(step),
        episode=episode,
        total_episodes=config.num_updates * config.batch_size,
    )


def _sample(setup: Setup, state: TrainState, reference: Params | None, prompts: PromptBatch, step: int) -> Sampled:
    """Sample the batch of an update, and dispatch its scoring by the same models."""
    ppo, began = setup.ppo, time.monotonic()

    def sample() -> tuple[Rollout, Sequences]:
        rollout = ppo.generate(state, prompts, step)
        return rollout, ppo.pack(prompts, rollout)  # waits for it

    with activity.shown("sampling"):
        rollout, sequences = activity.attended(sample)
    drawn = time.monotonic()
    scored = ppo.score(state, reference, sequences, rollout)
    return Sampled(Experience(rollout, sequences, scored), began, drawn, setup.meter.finish_time(scored))


def _next_sample(setup: Setup, state: TrainState, reference: Params | None, step: int) -> Callable[[], Sampled] | None:
    """Return what samples the batch behind that of `step`; None where it has to wait for the update, or is not due."""
    if not setup.config.rl.async_rollouts or step + 1 == setup.config.num_updates:
        return None
    known = setup.curriculum.drawn(jax.device_get(state.curriculum), step + 1)
    return partial(_sample, setup, state, reference, setup.prompts.batch(step + 1, known).prompts, step + 1)


def train(config: TrainConfig) -> Path:
    """Carry out a run, or what is left of it; returns the run folder."""
    run = run_folder.begin("train", config)
    if run.is_finished():
        return run.folder
    if config.run.target is not None:
        _aim(run)
        return run.folder
    setup, start = set_up(run)
    evaluated = setup.evaluator.rows_and_length
    print_plan(run, setup.ppo, start, setup.prompts.num_rows, setup.prompts.prompt_length, evaluated)
    if config.run.dry_run:
        return run.folder
    with (
        hub.pushed(run),
        run.claimed(),
        reported(run.folder, run.console),
        closing(setup.rewards),
        closing(setup.meter),
        closing(setup.ahead),
        run.trackers,
    ):
        with activity.shown("placing the models"):
            known = setup.ppo.parallel.put(setup.curriculum.start())
            state = setup.ppo.init_state(*start)._replace(curriculum=known)
            reference = setup.ppo.reference(state, start.policy)
        del start
        _carry_out(run, setup, state, reference)
    return run.folder


def _carry_out(run: run_folder.Run, setup: Setup, state: TrainState, reference: Params | None) -> None:
    """Evaluate, train, evaluate, export; what `eval.json` and the checkpoints have already is not done again."""
    config, evals, streamed = setup.config, run.evals, _streamed(setup)
    evals["headline_split"] = config.data.headline(config.headline_split)
    if "before" not in evals:
        evals["before"] = _evaluate(run, setup, "before", state)
    run.trackers.log(0, evaluation.eval_metrics(evals["before"]))
    run.write_evals(evals)
    if processes.is_first():
        write_tokenizer(run.folder, setup.tokenizer)
    run.console.stage(config.rl.algorithm.upper())
    state, meta = _run_updates(run, setup, state, reference)
    if streamed is not None:
        run.console.print(streamed.describe())
    evals["after"] = _evaluate(run, setup, "after", state)
    run.trackers.log(config.num_updates, evaluation.eval_metrics(evals["after"]))
    run.console.stage("Saving")
    params, frozen = stacks.unstacked(setup.ppo.parallel.to_host((state.params, state.frozen)))
    if processes.is_first():
        write_models(run.folder, meta, params, frozen, setup.tokenizer, evals)
        plot_run(run.folder, evals)
    run.write_evals(evals)  # last: "after" marks a run as finished
    samples = run_folder.read_json(run.folder / run_folder.EVAL_SAMPLES_FILE) if processes.is_first() else {}
    printing.print_outcome(run.console, evals, samples, config.rl.algorithm.upper())
    run.console.result(f"policy in {run.folder / 'policy'}, curves in {run.folder / 'curves.png'}")


def _streamed(setup: Setup) -> data.StepRows | None:
    """Return the rows that are read as the run goes on, if they are."""
    return setup.prompts.step_rows if isinstance(setup.prompts, data.StreamedPrompts) else None


def _run_updates(
    run: run_folder.Run, setup: Setup, state: TrainState, reference: Params | None
) -> tuple[TrainState, dict[str, Any]]:
    """Carry out all updates that are left; returns the state, and what a checkpoint says of it."""
    config, title = setup.config, setup.config.rl.algorithm.upper()
    health = Health(run.console, run.folder, config.max_bad_updates, setup.ppo.parallel.to_host)
    updates = Steps(
        total=config.num_updates,
        step=lambda state, number: watched_step(state, number),
        evaluate=partial(_evaluation_metrics, setup),
        meta=run.meta(config, setup.models_meta),
        title=title,
        header=(
            f"{title} of {config.sft_model_path} on {config.data.dataset}: {config.num_updates} updates of "
            f"{config.batch_size} completions, into {run.folder}"
        ),
        stages=("evaluation before", title, "evaluation after", "saving"),
        is_over=health.is_over,
        watch=lambda output: health.check(output.record, output.watched.trajectories, output.watched.samples),
        old_metric_names=config.old_metric_names,
        show=printing.show_samples,
        change=setup.ppo.with_changed_settings,
        rows=_streamed(setup),
    )
    loop = TrainingLoop(run, config.loop, updates, state)
    del state
    with setup.meter.watching(loop.start, run.console, run.folder) as watched:

        def watched_step(state: TrainState, number: int) -> StepOutput:
            watched.begin(number)
            step = train_step(setup, state, reference, number)
            step.record.update(watched.end(number, step.trajectories.sequences.input_ids.shape[1]))
            if config.samples_at(number):
                return StepOutput(step.state, step.record, samples=step.samples, watched=step)
            noted = failed_samples(step.samples, config.reward.reward_funcs)
            return StepOutput(step.state, step.record, noted=noted, watched=step)

        return loop.run()


def _evaluation_metrics(setup: Setup, state: TrainState) -> dict[str, float]:
    setup.rewards.trainer_state = _trainer_state(setup, int(state.step))
    policy = setup.ppo.models_of(state)["policy"]
    return evaluation.eval_metrics(setup.evaluator(policy, fixed_rows_only=True))


def _evaluate(run: run_folder.Run, setup: Setup, moment: str, state: TrainState) -> dict[str, Any]:
    """Evaluate, print the result, and keep some of the answers; a run without evaluation splits has no results."""
    if not setup.evaluator.rows:
        return {}
    judge = setup.evaluator.validator or registry.describe(setup.config.reward)
    setup.rewards.trainer_state = _trainer_state(setup, int(state.step))
    run.console.stage(f"Evaluation {moment} {setup.config.rl.algorithm.upper()} ({judge})")
    results, samples = setup.evaluator.with_samples(setup.ppo.models_of(state)["policy"])
    printing.print_results(run.console, results)
    run.keep_samples(moment, samples)
    return results


if __name__ == "__main__":
    cli.main(lambda: train(parse_cli(TrainConfig, "train")))
