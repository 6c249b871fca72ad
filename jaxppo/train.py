"""PPO, RLOO or GRPO on planning problems: `python -m jaxppo.train`.

Writes a run folder with `config.yaml`, `metrics.jsonl`, `samples.jsonl`, `checkpoints/`, `policy/` and `value/`
(Hugging Face folders), `eval.json` (before and after) and `report.html`; with `--profile` also `profile/`.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxppo import data
from jaxppo.config import TrainConfig
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
from jaxppo.report.run_page import reported
from jaxppo.reward_functions import registry
from jaxppo.reward_functions.judge import Judge, failed_samples
from jaxppo.rewards import Rewards, TrainerState
from jaxppo.rl.batch_sources import BatchSource, OneStepAhead, OnPolicy
from jaxppo.rl.describe import plan_of, print_plan
from jaxppo.rl.learner import Learner
from jaxppo.rl.start import Start, StartModels, load_start
from jaxppo.rl.step import Gather, Training, train_step
from jaxppo.rl.trained_models import frozen_bases
from jaxppo.run import activity, cli, preemption
from jaxppo.run import folder as run_folder
from jaxppo.run.alarms import Health
from jaxppo.run.console import Console
from jaxppo.run.loop import LoopSteps, StepOutput, TrainingLoop
from jaxppo.types import Batch, Params, Prefetched, TrainState


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that a run needs beside its models' parameters."""

    config: TrainConfig
    tokenizer: Any
    models_meta: dict[str, Any]  # for the checkpoints: what an export must know of these models
    prompts: data.PromptData
    rewards: Rewards
    judge: Judge
    evaluator: evaluation.Evaluator
    learner: Learner
    meter: UpdateMeter

    @contextmanager
    def training(self, reference: Params | None) -> Iterator[Training]:
        """Give what updates are made with; the block may use it.

        Args:
            reference: language model, on the devices; None: no KL.
        """
        source: BatchSource = OnPolicy(
            self.learner, reference, self.prompts, self.meter.clock.finish_time
        )
        with ExitStack() as stack:
            if self.config.rl.async_rollouts:
                beside_rewards = not registry.need_devices(self.config.reward)
                source = OneStepAhead(source, self.config.num_updates, beside_rewards)
                stack.enter_context(closing(source))
            yield Training(
                learner=self.learner,
                source=source,
                judge=self.judge_batch,
                progress=self.progress,
                meter=self.meter,
            )

    def judge_batch(self, batch: Batch, step: int, gather: Gather) -> None:
        """Fill in the scores of the batch of update `step`."""
        self.rewards.trainer_state = self.trainer_state(step)
        self.judge(batch, gather)
        preemption.check()

    def trainer_state(self, step: int) -> TrainerState:
        """Say how far the run is after `step` updates."""
        return TrainerState(
            global_step=step,
            max_steps=self.config.num_updates,
            epoch=self.prompts.epoch(step),
            episode=step * self.config.batch_size,
            total_episodes=self.config.num_updates * self.config.batch_size,
        )

    def progress(self, step: int) -> dict[str, Any]:
        """Return the part of a record that says how far the run is after `step` updates."""
        state = self.trainer_state(step)
        return {"step": state.global_step, "episode": state.episode, "epoch": state.epoch}


class Inputs(NamedTuple):
    """What a run reads before anything is made of it."""

    config: TrainConfig  # completed by the data
    models: StartModels
    start: Start
    template: data.ChatTemplate
    columns: list[str]  # of the rows
    prompts: data.PromptData

    def learner(self, parallel: DataParallel) -> Learner:
        """Return the programs of a run of these models."""
        models = self.models
        return Learner(
            self.config,
            models.policy,
            self.template.end_id,
            models.tokenizer.pad_token_id,
            parallel,
            models.value,
            models.adapter,
            self.prompts.length_gaps,
            data.stop_table(
                models.tokenizer, self.config.sampling.stop_strings, models.policy.num_logits
            ),
        )


def read_inputs(config: TrainConfig, parallel: DataParallel, console: Console) -> Inputs:
    """Load models and prompts, and check the settings that depend on them.

    Args:
        config: settings.
        parallel: devices that parameters are read into.
        console: for the lines that say what was read.
    """
    # A reward that cannot be made, or a validator that is not installed, is the cheapest to find.
    registry.check(config.reward, config.validator)
    validator = config.reward.reads_pddl_for(config.validator)
    # Rows first, then models: what is wrong with a data set is said at once.
    split = config.data.train_split
    data.make_splits(config.data, [split, *config.data.eval_splits])
    rows = data.load_split(config.data, split, validator)
    data.check_same(config.data.dataset, split, rows)
    data.check_splits(config.data, config.data.eval_splits)
    models, start = load_start(config, parallel, console)
    template = data.make_chat_template(models.tokenizer, config.data)
    console.print(f"prompts and completions: {template.describe()}")
    # After the model: only its tokenizer and its chat template know how long a prompt is.
    fitting = data.without_overlong(models.tokenizer, rows, config.data, template, split)
    data.report_left_out(console.print, config.data, {split: len(rows) - len(fitting)})
    # The length of the run, and with it the learning-rate schedule, counts the rows that are left.
    config = config.with_episodes(len(fitting))
    prompts = data.PromptData(
        fitting,
        template.tokenizer,
        config.num_prompts,
        config.run.seed,
        config.data.max_prompt_length,
        config.data.input_text_length,
        template,
    )
    models.check_length(prompts.longest + config.sampling.response_length)
    return Inputs(
        config.with_best_metric(), models, start, template, data.column_names(rows), prompts
    )


def set_up(run: run_folder.Run) -> tuple[Setup, Start]:
    """Load models and data; every bad input is met here, before anything is compiled or written.

    Args:
        run: its settings, folder, view and devices.

    Returns:
        All but the parameters, and those.
    """
    console = run.console
    parallel = run.parallel
    assert run.trackers is not None  # trackers that are not installed are met here
    inputs = read_inputs(run.config, parallel, console)
    config = inputs.config
    models = inputs.models
    learner = inputs.learner(parallel)
    rewards = _rewards(config, learner, inputs.start, models.tokenizer, run.folder)
    registry.tell_inputs(console.print, rewards)
    rewards.check_columns(inputs.columns)
    evaluator = evaluation.make_evaluator(
        config, learner.model, models.tokenizer, parallel, rewards
    )
    config.loop.check_evaluated(evaluator.metric_names)
    data.report_left_out(console.print, config.data, evaluator.left_out)
    # Shapes alone: the parameters are put on the devices
    # later, once nothing can be refused any more.
    shapes = jax.eval_shape(
        lambda *start: learner.models_of(learner.init_state(*start)), *inputs.start
    )
    setup = Setup(
        config=config,
        tokenizer=models.tokenizer,
        models_meta=models_meta(
            models.policy_base,
            models.value_base,
            learner.adapter,
            learner.stop_ids,
            config.data.dataset,
            inputs.template.describe(),
        ),
        prompts=inputs.prompts,
        rewards=rewards,
        judge=Judge(models.tokenizer, learner.end_ids, parallel, rewards, config.rl.group_size),
        evaluator=evaluator,
        learner=learner,
        meter=UpdateMeter(config, learner.model, learner.value_model, shapes, parallel),
    )
    return setup, inputs.start


def _rewards(
    config: TrainConfig, learner: Learner, start: Start, tokenizer: Any, folder: Path
) -> Rewards:
    load_model = registry.reward_model_loader(
        learner.model,
        start.policy,
        tokenizer,
        learner.parallel.of_process(),
        learner.end_ids,
        config.data.system_prompt,
    )
    context = registry.Context(load_model, config.validator, config.run.seed, folder)
    return registry.make_rewards(config.reward, context)


def _compile_for_target(run: run_folder.Run) -> None:
    """Compile the programs of an update for `--target`."""
    inputs = read_inputs(run.config, DataParallel(), run.console)
    start = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs.start)
    length = inputs.prompts.prompt_length

    def build(devices: list[Any]) -> Plan:
        settings = inputs.config.run
        learner = inputs.learner(DataParallel(settings.parallel, devices, settings.mesh))
        print_plan(run, learner, start, inputs.prompts.num_rows, length)
        return plan_of(learner, start, length)

    show(run.console, inputs.config, build)


def train(config: TrainConfig) -> Path:
    """Carry out a run, or what is left of it; returns the run folder."""
    fitting, left_out = data.without_missing_splits(config.data)
    config = dataclasses.replace(config, data=fitting)
    run = run_folder.begin("train", config)
    if run.is_finished():
        return run.folder
    if left_out is not None:
        run.console.print(left_out)
    if config.run.target is not None:
        _compile_for_target(run)
        return run.folder
    setup, start = set_up(run)
    # What an evaluation decodes at once is part of the plan, as it may need more than an update.
    evaluated = setup.evaluator.rows_and_length
    print_plan(
        run, setup.learner, start, setup.prompts.num_rows, setup.prompts.prompt_length, evaluated
    )
    if config.run.dry_run:
        return run.folder
    with (
        hub.pushed(run),
        run.claimed(),
        reported(run.folder, run.console),
        closing(setup.rewards),
        closing(setup.meter.clock),
        run.trackers,
    ):
        with activity.show("placing the models"):
            state = setup.learner.init_state(*start)
            reference = setup.learner.reference(state, start.policy)
        del start  # as much memory as the models take
        _carry_out(run, setup, state, reference)
    return run.folder


def _carry_out(
    run: run_folder.Run, setup: Setup, state: TrainState, reference: Params | None
) -> None:
    """Evaluate, train, evaluate, export; what `eval.json` and the checkpoints have already is not done again."""
    config = setup.config
    evals = run.evals
    evals["headline_split"] = config.data.headline_split
    # A resumed run has it already: its model is no longer the one that was evaluated.
    if "before" not in evals:
        evals["before"] = _evaluate(run, setup, "before", state)
        run.write_evals(evals)
    if processes.is_first():
        write_tokenizer(run.folder, setup.tokenizer)
    run.console.stage(config.rl.algorithm.upper())
    # The block ends threads that sample ahead, also where an update fails.
    with setup.training(reference) as training:
        state, meta = _run_updates(run, setup, training, state)
    evals["after"] = _evaluate(run, setup, "after", state)
    run.trackers.log(config.num_updates, evaluation.eval_metrics(evals["after"]))
    run.console.stage("Saving")
    params, frozen = stacks.unstack(setup.learner.parallel.to_host((state.params, state.frozen)))
    if processes.is_first():
        bases = None if frozen is None else frozen_bases(frozen, params)
        write_models(run.folder, meta, params, bases, setup.tokenizer, evals)
    run.write_evals(evals)  # last: "after" marks a run as finished
    samples = (
        run_folder.read_json(run.folder / run_folder.EVAL_SAMPLES_FILE)
        if processes.is_first()
        else {}
    )
    printing.print_outcome(run.console, evals, samples, config.rl.algorithm.upper())
    run.console.result(f"policy in {run.folder / 'policy'}")


def _run_updates(
    run: run_folder.Run, setup: Setup, training: Training, state: TrainState
) -> tuple[TrainState, dict[str, Any]]:
    """Carry out all updates that are left; returns the state, and what a checkpoint says of it."""
    config = setup.config
    title = config.rl.algorithm.upper()
    health = Health(run.console, run.folder, config.max_bad_updates, setup.learner.parallel.to_host)
    updates = LoopSteps(
        total=config.num_updates,
        step=lambda state, prefetched, number: watched_step(state, prefetched, number),
        evaluate=partial(_evaluation_metrics, setup),
        meta=run.meta(config, setup.models_meta),
        title=title,
        header=(
            f"{title} of {config.sft_model_path} on {config.data.dataset}: {config.num_updates} updates of "
            f"{config.batch_size} completions, into {run.folder}"
        ),
        before=evaluation.eval_metrics(run.evals["before"]),
        is_over=health.is_over,
        watch=lambda output: health.check(output.record, *output.watched),
        show=printing.show_samples,
        change=setup.learner.with_changed_settings,
    )
    loop = TrainingLoop(run, config.loop, updates, state)
    del state
    with setup.meter.watching(loop.start, run.console, run.folder) as watched:

        def watched_step(state: TrainState, prefetched: Prefetched, number: int) -> StepOutput:
            watched.begin(number)
            step = train_step(training, state, prefetched, number)
            step.record.update(watched.end(number, step.trajectories.sequences.input_ids.shape[1]))
            samples = setup.judge.samples(step.batch, number + 1)
            failed: list[dict[str, Any]] = []
            if not config.samples_at(number):
                # Answers of functions that failed are always
                # kept: nobody could find out why otherwise.
                failed = failed_samples(samples, config.reward.reward_funcs)
            return StepOutput(
                step.state,
                step.record,
                step.prefetched,
                samples=samples if config.samples_at(number) else (),
                noted=failed,
                watched=(step.trajectories, samples),
            )

        return loop.run()


def _evaluation_metrics(setup: Setup, state: TrainState) -> dict[str, float]:
    setup.rewards.trainer_state = setup.trainer_state(int(state.step))
    policy = setup.learner.models_of(state)["policy"]
    return evaluation.eval_metrics(setup.evaluator(policy, fixed_rows_only=True))


def _evaluate(run: run_folder.Run, setup: Setup, moment: str, state: TrainState) -> dict[str, Any]:
    """Evaluate, print the result, and keep some of the answers; a run without evaluation splits has no results."""
    if not setup.evaluator.rows:
        return {}
    judge = setup.evaluator.validator or registry.describe(setup.config.reward)
    setup.rewards.trainer_state = setup.trainer_state(int(state.step))
    run.console.stage(f"Evaluation {moment} {setup.config.rl.algorithm.upper()} ({judge})")
    results, samples = setup.evaluator.with_samples(setup.learner.models_of(state)["policy"])
    printing.print_results(run.console, results)
    run.keep_samples(moment, samples)
    return results


if __name__ == "__main__":
    cli.main(lambda: train(parse_cli(TrainConfig, "train")))
