"""Self-training on planning problems: `python -m jaxppo.self_train`.

Rounds of: sample plans, keep those that the validator accepts, learn from them by supervised fine-tuning, evaluate.
Writes a run folder with `config.yaml`, `metrics.jsonl` (a line per round), `samples.jsonl`, `rounds/<number>/` (all
sampled plans, what was kept of them, the steps of the fine-tuning), `policy/` (Hugging Face), `eval.json` (before and
after) and `report.html`.

A killed run goes on where its files end: the plans of a round are in its log, learning has checkpoints, and a round
with a record in `metrics.jsonl` is done.
"""

import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import data, hf, models
from jaxppo.config import SelfTrainConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.errors import TrainingError
from jaxppo.evaluate import evaluator as evaluation
from jaxppo.evaluate import printing, sampled_plans
from jaxppo.evaluate.sampled_plans import PlanSampler, SampledPlan
from jaxppo.hf import hub
from jaxppo.hf.export import base_of, models_meta, write_models, write_tokenizer
from jaxppo.parallel import processes, stacks
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.report.run_page import reported
from jaxppo.reward_functions import registry
from jaxppo.rl import optimizer
from jaxppo.rl.supervised import SFT, check_finite
from jaxppo.run import cli, preemption
from jaxppo.run import folder as run_folder
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.run.loop import LoopSteps, TrainingLoop
from jaxppo.types import Params, TrainState

ROUNDS_FOLDER = "rounds"
KEPT_FILE = "kept.jsonl"
CHECKPOINTS = "checkpoints"
# Of a round, in the run's `samples.jsonl`.
_SAMPLES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTrainSetup:
    """Everything a run needs, made once."""

    run: run_folder.Run
    config: SelfTrainConfig
    template: data.ChatTemplate
    # The model that every round trains, on the devices.
    start: Params
    # For the checkpoints: what an export must know of the model.
    models_meta: dict[str, Any]
    # Problems to sample plans for.
    rows: list[data.Row]
    # What the start was trained on; a share of it keeps a round from forgetting.
    start_rows: list[data.Row]
    sampler: PlanSampler
    evaluator: evaluation.Evaluator
    sft: SFT

    @property
    def problems(self) -> int:
        """Problems of a round."""
        return self.config.problems_per_round(len(self.rows))

    @property
    def episodes(self) -> int:
        """Plans sampled in a round."""
        return self.problems * self.config.num_generations


class Round(NamedTuple):
    """One round on disk."""

    # From 1.
    number: int
    folder: Path

    @property
    def log(self) -> Path:
        """The file of the sampled plans."""
        return self.folder / run_folder.SAMPLES_FILE

    def plans(self) -> list[SampledPlan]:
        """Read the plans sampled so far."""
        return sampled_plans.read_plans(self.log)


def set_up(run: run_folder.Run) -> SelfTrainSetup:
    """Load model and data; every bad input is met here, before anything is compiled or written."""
    config = run.config
    console = run.console
    parallel = run.parallel
    # The first use loads the trackers: one that is not
    # installed is an error here, and not after the first round.
    assert run.trackers is not None
    registry.check(config.reward, config.validator)
    loaded = hf.load_policy(config.sft_model_path, parallel.placement, config.run.dry_run)
    console.print(f"policy from {loaded.loaded.describe()}")
    model = models.with_dtype(loaded.config, config.dtype, config.run.attention)
    parallel.check_model(model)
    config.sampling.check_stop_token(model.num_logits)
    tokenizer = loaded.tokenizer
    template = data.make_chat_template(tokenizer, config.data)
    rows = _load_rows(run, config.data.train_split, template)
    start_rows = []
    if config.start_ratio:
        start_rows = _load_rows(run, config.start_split, template)
        longest = _supervised_data(config, start_rows, template).longest
        models.check_length(model, longest, "longest prompt and completion of start_split")
    evaluator = evaluation.make_evaluator(config, model, tokenizer, parallel)
    data.report_left_out(console.print, config.data, evaluator.left_out)
    stop_ids = config.sampling.stop_ids(model.source.eos_ids(template.end_id))
    base = base_of(config.sft_model_path, loaded.loaded, loaded.config, "lm", is_frozen=False)
    return SelfTrainSetup(
        run=run,
        config=config,
        template=template,
        start=loaded.params if config.run.dry_run else parallel.put(loaded.params),
        models_meta=models_meta(
            base, None, None, stop_ids, config.data.dataset, template.describe()
        ),
        rows=rows,
        start_rows=start_rows,
        sampler=sampled_plans.make_plan_sampler(config, model, tokenizer, parallel, rows),
        evaluator=evaluator,
        sft=SFT(config, model, parallel),
    )


def _load_rows(run: run_folder.Run, split: str, template: data.ChatTemplate) -> list[data.Row]:
    config = run.config
    rows = data.load_split(config.data, split, config.reward.reads_pddl_for(config.validator))
    data.check_same(config.data.dataset, split, rows)
    fitting = data.without_overlong(template.tokenizer, rows, config.data, template, split)
    data.report_left_out(run.console.print, config.data, {split: len(rows) - len(fitting)})
    return fitting


def _supervised_data(
    config: SelfTrainConfig, rows: list[data.Row], template: data.ChatTemplate
) -> data.SupervisedData:
    return data.SupervisedData(
        rows,
        template.tokenizer,
        config.batch_size,
        config.run.seed,
        config.data.max_prompt_length,
        template,
    )


def print_plan(setup: SelfTrainSetup) -> None:
    """Print what a run will do."""
    run = setup.run
    config = setup.config
    parameters = sum(param.size for param in jax.tree.leaves(setup.start))
    episodes = config.num_rounds * setup.episodes
    passes = config.num_rounds * setup.problems / len(setup.rows)
    run.console.print(
        f"run: self-training on {config.data.dataset}: {config.num_rounds} rounds x {setup.problems} problems x "
        f"{config.num_generations} plans = {episodes} episodes, {passes:.2f} passes over {len(setup.rows)} problems\n"
        f"learning: in each round {config.num_updates} optimizer steps of {config.batch_size} rows from the start, "
        f"at most {config.max_plans_per_problem} plans of a problem, {config.start_ratio:g} rows of split "
        f"{config.start_split} beside each\n"
        f"size: {parameters:,} parameters in {config.dtype}, {run.parallel.describe()}\n"
        f"folder: {run.folder}, trackers: {', '.join(config.loop.report_to)}"
    )
    for warning in optimizer.warnings(
        config.optimizer, config.num_updates, parameters, supervised=True
    ):
        run.console.warn(warning)


# ------------------------------------------------------------------------------------------------- parts of a round


def sample(setup: SelfTrainSetup, current: Round, policy: Params) -> dict[str, Any]:
    """Sample and judge the plans of a round that its log lacks; returns what the record says of all of them."""
    problems = sampled_plans.problems_of_round(
        len(setup.rows), setup.config.run.seed, current.number, setup.problems
    )
    seconds = setup.sampler.sample(policy, problems, current.log, setup.run.console)
    return sampled_plans.sample_metrics(current.plans()) | seconds


def keep(setup: SelfTrainSetup, current: Round) -> tuple[list[data.Row], list[data.Row]]:
    """Choose what a round learns from: rows of kept plans, and rows of the start's own data."""
    config = setup.config
    plans = current.plans()
    selected = sampled_plans.select_plans(plans, config.max_plans_per_problem)
    if not selected:
        raise TrainingError(
            f"round {current.number}: expected at least one valid plan among {len(plans)} sampled ones, got none; more "
            "num_generations, another temperature, easier problems, or a start that solves some of them"
        )
    kept_rows = [sampled_plans.as_reference(setup.rows[plan.row], plan) for plan in selected]
    processes.on_first(lambda: dataset_files.write_jsonl(kept_rows, current.folder / KEPT_FILE))
    # By seed and round alone, so that a resumed round learns from the same rows.
    rng = np.random.default_rng((config.run.seed, current.number))
    order = rng.permutation(len(setup.start_rows))
    num_start_rows = round(config.start_ratio * len(selected))
    return kept_rows, [setup.start_rows[i] for i in order[:num_start_rows]]


def learn(setup: SelfTrainSetup, current: Round, rows: list[data.Row]) -> tuple[Params, float]:
    """Fine-tune the start on the rows of a round, from the round's last checkpoint on; returns policy and loss."""
    config = setup.config
    run = setup.run
    supervised = _supervised_data(config, rows, setup.template)
    models.check_length(setup.sft.model, supervised.longest, "longest prompt and plan")
    # The steps take over the memory of their state; the start is needed again in the next round.
    state = setup.sft.init_state(jax.tree.map(lambda x: jnp.array(x, copy=True), setup.start))
    title = f"SFT of round {current.number}"

    def evaluate_fixed_rows(state: TrainState) -> dict[str, float]:
        return evaluation.eval_metrics(
            setup.evaluator(state.params["policy"], fixed_rows_only=True)
        )

    steps = LoopSteps(
        total=config.num_updates,
        step=setup.sft.step(supervised),
        evaluate=evaluate_fixed_rows,
        meta=run.meta(config, setup.models_meta),
        title=title,
        header=f"{title} of {config.num_rounds}, into {current.folder}",
        watch=check_finite,
    )
    # A round is a run of its own within the run's folder;
    # trackers get the records of rounds, not of their steps.
    round_run = dataclasses.replace(
        run, folder=current.folder, config=replace(config, report_to=("none",))
    )
    # Of a round that has learned already this restores the policy, and makes no step.
    state, meta = TrainingLoop(round_run, config.loop, steps, run.parallel.put(state)).run()
    return state.params["policy"], meta["metrics"]["loss"]


# ------------------------------------------------------------------------------------------------------------ the run


def self_train(config: SelfTrainConfig) -> Path:
    """Carry out a run, or what is left of it; returns the run folder."""
    fitting, left_out = data.without_missing_splits(config.data, needs_one=True)
    config = dataclasses.replace(config, data=fitting)
    run = run_folder.begin("self_train", config)
    if run.is_finished():
        return run.folder
    if left_out is not None:
        run.console.print(left_out)
    setup = set_up(run)
    print_plan(setup)
    if config.run.dry_run:
        return run.folder
    with hub.pushed(run), run.claimed(), reported(run.folder, run.console), run.trackers:
        _carry_out(setup)
    return run.folder


def _carry_out(setup: SelfTrainSetup) -> None:
    """Evaluate, carry out the rounds that are left, evaluate again, export."""
    config = setup.config
    run = setup.run
    console = run.console
    evals = run.evals
    run.keep_settings()
    evals["headline_split"] = config.data.headline_split
    if "before" not in evals:
        console.stage(f"Evaluation before self-training ({setup.evaluator.validator})")
        results, samples = setup.evaluator.with_samples(setup.start)
        run.keep_samples("before", samples)
        evals["before"] = results
    printing.print_results(console, evals["before"])
    run.write_evals(evals)
    if processes.is_first():
        write_tokenizer(run.folder, setup.template.tokenizer)
    metrics_file = run.folder / run_folder.METRICS_FILE
    records = processes.on_first(
        lambda: read_metrics(metrics_file) if metrics_file.exists() else []
    )
    run.trackers.begin(len(records))
    if not records:
        run.trackers.log(0, evaluation.eval_metrics(evals["before"]))
    policy = setup.start
    for number in range(1, config.num_rounds + 1):
        # Of the rounds that are done only the last has a checkpoint, and only its policy is needed.
        if number >= len(records):
            policy = _carry_out_round(setup, number, policy, records)
    console.stage("Saving")
    params = stacks.unstack(run.parallel.to_host({"policy": policy}))
    if processes.is_first():
        meta = run.meta(config, setup.models_meta)
        meta["config"] |= {"algorithm": "self-training"}
        meta |= {
            "step": config.num_rounds,
            "episode": records[-1]["episode"],
            "metrics": records[-1],
        }
        write_models(run.folder, meta, params, None, setup.template.tokenizer, evals)
    # Last, as "after" marks a run as finished.
    run.write_evals(evals)
    samples = processes.on_first(
        lambda: run_folder.read_json(run.folder / run_folder.EVAL_SAMPLES_FILE)
    )
    printing.print_outcome(console, evals, samples, "self-training")
    console.result(f"policy in {run.folder / 'policy'}")


def _carry_out_round(
    setup: SelfTrainSetup, number: int, policy: Params, records: list[dict[str, Any]]
) -> Params:
    """Carry out what is left of a round and add its record, unless it is there; returns the policy after it."""
    config = setup.config
    run = setup.run
    folder = run.folder / ROUNDS_FOLDER
    current = Round(number, folder / str(number))
    is_done = number <= len(records)
    is_last = number == config.num_rounds
    run.console.stage(f"Round {number} of {config.num_rounds}")
    preemption.check()
    sampled: dict[str, Any] = {}
    if not is_done:
        sampled = sample(setup, current, policy)
        run.console.print(
            f"{setup.episodes} plans sampled, {sampled['self_train/valid']:.1%} valid, "
            f"{sampled['self_train/solved']:.1%} of the problems solved"
        )
    kept_rows, start_rows = keep(setup, current)
    start_time = time.monotonic()
    policy, loss = learn(setup, current, [*kept_rows, *start_rows])
    learned_time = time.monotonic()
    if is_done and not is_last:
        return policy
    preemption.check()
    # The rounds before the last are evaluated on fixed rows alone.
    results, samples = setup.evaluator.with_samples(policy, fixed_rows_only=not is_last)
    printing.print_results(run.console, results)
    if is_last:
        run.keep_samples("after", samples)
        run.evals["after"] = results
    if is_done:
        return policy
    episode = number * setup.episodes
    record = {
        "step": number,
        "episode": episode,
        "epoch": episode / (config.num_generations * len(setup.rows)),
        **sampled,
        "self_train/kept": len(kept_rows),
        "self_train/start_rows": len(start_rows),
        "self_train/loss": loss,
        "time/update_s": learned_time - start_time,
        "time/eval_s": time.monotonic() - learned_time,
        **evaluation.eval_metrics(results),
    }
    records.append(record)
    _log(run, current, record)
    # This round has checkpoints of its own, so no run will start from the earlier ones.
    if processes.is_first():
        shutil.rmtree(folder / str(number - 1) / CHECKPOINTS, ignore_errors=True)
    return policy


def _log(run: run_folder.Run, current: Round, record: dict[str, Any]) -> None:
    """Write some of a round's samples and then its record, which says that the round is done."""
    samples = [plan.as_sample(current.number) for plan in current.plans()[:_SAMPLES_SHOWN]]
    for name, lines in ((run_folder.SAMPLES_FILE, samples), (run_folder.METRICS_FILE, [record])):
        with JsonlLog(run.folder / name, enabled=processes.is_first()) as log:
            # A killed run may have written some of the samples.
            log.truncate_after(current.number - 1)
            for line in lines:
                log.append(line)
    run.trackers.log(current.number, record)


if __name__ == "__main__":
    cli.main(lambda: self_train(parse_cli(SelfTrainConfig, "self_train")))
