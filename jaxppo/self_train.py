"""Self-training on planning problems: `python -m jaxppo.self_train`.

Rounds of: sample plans, keep those that the validator accepts, learn from them by supervised fine-tuning, evaluate.
Writes a run folder with `config.yaml`, `metrics.jsonl` (a line per round), `samples.jsonl`, `rounds/<number>/` (all
sampled plans, what was kept of them, the steps of the fine-tuning), `policy/` (Hugging Face), `eval.json` (before and
after) and `report.html`.
"""

import dataclasses
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import data, hf, models
from jaxppo.config import SelfTrainConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.errors import ConfigError, DataError, TrainingError
from jaxppo.evaluate import evaluator as evaluation
from jaxppo.evaluate import printing, sampled_plans
from jaxppo.evaluate.sampled_plans import PlanSampler, SampledPlan
from jaxppo.hf import hub
from jaxppo.hf.export import (
    base_of,
    models_meta,
    write_models,
    write_tokenizer,
)
from jaxppo.nn import ModelConfig
from jaxppo.parallel import processes, stacks
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.report.run_page import reported
from jaxppo.reward_functions import registry
from jaxppo.rl import optimizer
from jaxppo.rl.supervised import SFT, check_finite
from jaxppo.run import cli
from jaxppo.run import folder as run_folder
from jaxppo.run.jsonl import JsonlLog
from jaxppo.run.loop import Steps, TrainingLoop
from jaxppo.run.stages import Stages
from jaxppo.types import Params, TrainState

ROUNDS_FOLDER = "rounds"
KEPT_FILE = "kept.jsonl"
CHECKPOINTS = "checkpoints"
# Of a round, in the run's `samples.jsonl`.
_SAMPLES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything a run needs, made once."""

    config: SelfTrainConfig
    tokenizer: Any
    template: data.ChatTemplate
    # The model that the run begins with, on the devices.
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
    stages: Stages

    @property
    def is_done(self) -> bool:
        """Whether its last stage is done."""
        return "evaluation" in self.stages

    def plans(self) -> list[SampledPlan]:
        """Read the plans sampled so far."""
        return sampled_plans.read_plans(self.folder / run_folder.SAMPLES_FILE)


def set_up(run: run_folder.Run) -> Setup:
    """Load model and data; every bad input is met here, before anything is compiled or written."""
    config = run.config
    console = run.console
    parallel = run.parallel
    # The first use loads the trackers: one that is not installed is an error here, and not after
    # the first round.
    assert run.trackers is not None
    registry.check(config.reward, config.validator)
    loaded = hf.load_policy(config.sft_model_path, parallel.placement, config.run.dry_run)
    console.print(f"policy from {loaded.loaded.describe()}")
    model = models.with_dtype(loaded.config, config.dtype, config.run.attention)
    parallel.check_model(model)
    tokenizer = loaded.tokenizer
    template = data.make_chat_template(tokenizer, config.data)
    rows = _load_rows(run, config.data.train_split, tokenizer, template)
    start_rows = []
    if config.start_ratio:
        start_rows = _load_rows(run, config.start_split, tokenizer, template)
    _check_model(
        config,
        model,
        tokenizer,
        template,
        start_rows,
    )
    evaluator = evaluation.make_evaluator(config, model, tokenizer, parallel)
    data.report_left_out(console.print, config.data, evaluator.left_out)
    stop_ids = config.sampling.stop_ids(model.eos_ids(template.end_id))
    base = base_of(
        config.sft_model_path,
        loaded.loaded,
        loaded.config,
        "lm",
        is_frozen=False,
    )
    return Setup(
        config=config,
        tokenizer=tokenizer,
        template=template,
        start=loaded.params if config.run.dry_run else parallel.put(loaded.params),
        models_meta=models_meta(
            base,
            None,
            None,
            stop_ids,
            config.data.dataset,
            template.describe(),
        ),
        rows=rows,
        start_rows=start_rows,
        sampler=sampled_plans.make_plan_sampler(
            config,
            model,
            tokenizer,
            parallel,
            rows,
        ),
        evaluator=evaluator,
        sft=SFT(config, model, parallel),
    )


def _load_rows(
    run: run_folder.Run,
    split: str,
    tokenizer: Any,
    template: data.ChatTemplate,
) -> list[data.Row]:
    config = run.config
    rows = data.load_split(config.data, split, config.reward.reads_pddl_for(config.validator))
    data.check_same(config.data.dataset, split, rows)
    fitting = data.without_overlong(tokenizer, rows, config.data, template)
    data.report_left_out(run.console.print, config.data, {split: len(rows) - len(fitting)})
    return fitting


def _check_model(
    config: SelfTrainConfig,
    model: ModelConfig,
    tokenizer: Any,
    template: data.ChatTemplate,
    start_rows: list[data.Row],
) -> None:
    """Refuse what does not fit the model before anything is sampled."""
    stop_id = config.sampling.stop_token_id
    if stop_id is not None and stop_id >= model.num_logits:
        raise ConfigError(
            f"stop_token_id: expected less than the vocabulary's {model.num_logits}, got {stop_id}"
        )
    if start_rows:
        supervised = _supervised_data(config, start_rows, tokenizer, template)
        models.check_length(
            model, supervised.longest, "longest prompt and completion of start_split"
        )


def _supervised_data(
    config: SelfTrainConfig,
    rows: list[data.Row],
    tokenizer: Any,
    template: data.ChatTemplate,
) -> data.SupervisedData:
    longest_prompt = config.data.longest_prompt
    return data.SupervisedData(
        rows,
        tokenizer,
        config.batch_size,
        config.run.seed,
        longest_prompt,
        template,
    )


def print_plan(run: run_folder.Run, setup: Setup) -> None:
    """Print what a run will do."""
    config = setup.config
    parameters = sum(param.size for param in jax.tree.leaves(setup.start))
    episodes = config.num_rounds * setup.episodes
    passes = config.num_rounds * setup.problems / len(setup.rows)
    start_data = ""
    if config.start_ratio:
        start_data = f", {config.start_ratio:g} rows of split {config.start_split} beside each"
    run.console.print(
        f"run: self-training on {config.data.dataset}: {config.num_rounds} rounds x {setup.problems} problems x "
        f"{config.num_generations} plans = {episodes} episodes, {passes:.2f} passes over {len(setup.rows)} problems\n"
        f"learning: in each round {config.num_updates} optimizer steps of {config.batch_size} rows from the "
        f"{config.start_from} model, at most {config.max_plans_per_problem} plans of a problem{start_data}\n"
        f"size: {parameters:,} parameters in {config.dtype}, {run.parallel.describe()}\n"
        f"folder: {run.folder}, trackers: {', '.join(config.loop.report_to)}"
    )
    for warning in optimizer.warnings(
        config.optimizer, config.num_updates, parameters, supervised=True
    ):
        run.console.warn(warning)


# ------------------------------------------------------------------------------------------------- stages of a round


def sample(
    run: run_folder.Run,
    setup: Setup,
    current: Round,
    policy: Params,
) -> dict[str, Any]:
    """Sample and judge the plans of a round; those that an earlier process has sampled stay."""
    seed = setup.config.run.seed
    problems = sampled_plans.problems_of_round(
        len(setup.rows), seed, current.number, setup.problems
    )
    seconds = setup.sampler.sample(
        policy, problems, current.folder / run_folder.SAMPLES_FILE, run.console
    )
    return sampled_plans.sample_metrics(current.plans()) | seconds


def keep(setup: Setup, current: Round, earlier: Sequence[Round]) -> list[data.Row]:
    """Choose the rows that a round learns from: kept plans, and some of the start's own data."""
    config = setup.config
    # With `pool` "all" the shortest plans for a problem are chosen among those of all rounds.
    rounds = [*earlier, current] if config.pool == "all" else [current]
    plans = list(chain.from_iterable(pool_round.plans() for pool_round in rounds))
    selected = sampled_plans.select_plans(plans, config.max_plans_per_problem)
    if not selected:
        raise TrainingError(
            f"round {current.number}: expected at least one valid plan among {len(plans)} sampled ones, got none; more "
            "num_generations, another temperature, easier problems, or a start that solves some of them"
        )
    kept_rows = [sampled_plans.as_reference(setup.rows[plan.row], plan) for plan in selected]
    # Seed and round alone decide which of the start's rows come, so a resumed round learns from the
    # same.
    rng = np.random.default_rng((config.run.seed, current.number))
    order = rng.permutation(len(setup.start_rows))
    num_start_rows = round(config.start_ratio * len(selected))
    start_rows = [setup.start_rows[i] for i in order[:num_start_rows]]

    def write_kept() -> dict[str, Any]:
        processes.on_first(lambda: dataset_files.write_jsonl(kept_rows, current.folder / KEPT_FILE))
        return {"self_train/kept": len(kept_rows), "self_train/start_rows": len(start_rows)}

    current.stages.once("kept", write_kept)
    return [*kept_rows, *start_rows]


def learn(
    run: run_folder.Run,
    setup: Setup,
    current: Round,
    last: Params,
    rows: list[data.Row],
) -> Params:
    """Fine-tune the start, or the last policy, on the rows of a round; returns the policy after it."""
    config = setup.config
    parallel = setup.sft.parallel
    supervised = _supervised_data(config, rows, setup.tokenizer, setup.template)
    models.check_length(setup.sft.model, supervised.longest, "longest prompt and plan")
    initial = setup.start if config.start_from == "start" else stacks.unstack(last)
    # The steps take over the memory of their state; the start is needed again in the next round.
    state = setup.sft.init_state(jax.tree.map(lambda x: jnp.array(x, copy=True), initial))
    title = f"SFT of round {current.number}"

    def evaluate_fixed_rows(state: TrainState) -> dict[str, float]:
        return evaluation.eval_metrics(
            setup.evaluator(state.params["policy"], fixed_rows_only=True)
        )

    steps = Steps(
        total=config.num_updates,
        step=setup.sft.step(supervised),
        evaluate=evaluate_fixed_rows,
        meta=run.meta(config, setup.models_meta),
        title=title,
        header=f"{title} of {config.num_rounds}, into {current.folder}",
        watch=check_finite,
    )
    # A round is a run of its own within the run's folder; trackers get the records of rounds, not
    # of their steps.
    round_run = dataclasses.replace(
        run, folder=current.folder, config=replace(config, report_to=("none",))
    )
    loop = TrainingLoop(round_run, config.loop, steps, parallel.put(state))
    # The stage is noted after its last checkpoint is written. Without one the folder is damaged:
    # what is noted of the round may be of another policy than the one that learning anew would
    # give.
    if "learning" in current.stages and loop.start == 0:
        raise DataError(
            f"{current.folder / CHECKPOINTS}: expected the checkpoint of a round that is done, found none"
        )
    start_time = time.monotonic()
    # Of a stage that is done this restores the policy, and makes no step.
    state, meta = loop.run()
    loss = meta["metrics"]["loss"]
    current.stages.once(
        "learning",
        lambda: {"self_train/loss": loss, "time/update_s": time.monotonic() - start_time},
    )
    return state.params["policy"]


def evaluate(setup: Setup, current: Round, policy: Params) -> dict[str, Any]:
    """Evaluate a round: on the fixed rows, and after the last one on all."""
    start_time = time.monotonic()
    is_last = current.number == setup.config.num_rounds
    results, samples = setup.evaluator.with_samples(policy, fixed_rows_only=not is_last)
    return {"results": results, "samples": samples, "time/eval_s": time.monotonic() - start_time}


# ------------------------------------------------------------------------------------------------------------ the run


def self_train(config: SelfTrainConfig) -> Path:
    """Carry out a run, or what is left of it; returns the run folder."""
    run = run_folder.begin("self_train", config)
    if run.is_finished():
        return run.folder
    setup = set_up(run)
    print_plan(run, setup)
    if config.run.dry_run:
        return run.folder
    with hub.pushed(run), run.claimed(), reported(run.folder, run.console), run.trackers:
        _carry_out(run, setup)
    return run.folder


def _carry_out(run: run_folder.Run, setup: Setup) -> None:
    """Evaluate, carry out the rounds that are left, export; what the run folder has already is not done again.

    A round is four stages (sampling, kept, learning, evaluation), each noted in `stages.json` once what it leaves is on
    disk. A killed run goes on with the first stage that is not noted: within sampling from the last whole part, within
    learning from the last checkpoint. The policy itself is never noted; it is in the checkpoint of its round, which is
    why a round's checkpoints stay until the next round has its own.
    """
    config = setup.config
    console = run.console
    evals = run.evals
    run.keep_settings()
    evals["headline_split"] = config.data.headline(config.headline_split)
    if "before" not in evals:
        console.stage(f"Evaluation before self-training ({setup.evaluator.validator})")
        results, samples = setup.evaluator.with_samples(setup.start)
        run.keep_samples("before", samples)
        evals["before"] = results
    printing.print_results(console, evals["before"])
    run.trackers.log(0, evaluation.eval_metrics(evals["before"]))
    run.write_evals(evals)
    if processes.is_first():
        write_tokenizer(run.folder, setup.tokenizer)
    rounds = []
    for number in range(1, config.num_rounds + 1):
        folder = run.folder / ROUNDS_FOLDER / str(number)
        rounds.append(Round(number, folder, Stages(folder)))
    num_done = sum(each_round.is_done for each_round in rounds)
    run.trackers.begin(num_done)
    policy = setup.start
    record = {}
    # The last round that is done is gone through again, for its policy.
    for current in rounds[max(0, num_done - 1) :]:
        policy, record = _carry_out_round(
            run,
            setup,
            current,
            rounds[: current.number - 1],
            policy,
        )
    last = rounds[-1].stages["evaluation"]
    run.keep_samples("after", last["samples"])
    evals["after"] = last["results"]
    console.stage("Saving")
    params = stacks.unstack(setup.sft.parallel.to_host({"policy": policy}))
    if processes.is_first():
        meta = run.meta(config, setup.models_meta)
        meta["config"] |= {"algorithm": "self-training"}
        meta |= {"step": config.num_rounds, "episode": record["episode"], "metrics": record}
        write_models(
            run.folder,
            meta,
            params,
            None,
            setup.tokenizer,
            evals,
        )
    # Last, as "after" marks a run as finished.
    run.write_evals(evals)
    samples = processes.on_first(
        lambda: run_folder.read_json(run.folder / run_folder.EVAL_SAMPLES_FILE)
    )
    printing.print_outcome(console, evals, samples, "self-training")
    console.result(f"policy in {run.folder / 'policy'}")


def _carry_out_round(
    run: run_folder.Run,
    setup: Setup,
    current: Round,
    earlier: Sequence[Round],
    policy: Params,
) -> tuple[Params, dict[str, Any]]:
    """Carry out the stages of a round that are left, and log it; returns its policy and its record."""
    console = run.console
    stages = current.stages
    console.stage(f"Round {current.number} of {setup.config.num_rounds}")
    sampled = stages.once("sampling", lambda: sample(run, setup, current, policy))
    rows = keep(setup, current, earlier)
    console.print(
        f"{setup.episodes} plans sampled, {sampled['self_train/valid']:.1%} valid, {sampled['self_train/solved']:.1%} "
        f"of the problems solved; learning from {len(rows)} rows"
    )
    policy = learn(
        run,
        setup,
        current,
        policy,
        rows,
    )
    evaluated = stages.once("evaluation", lambda: evaluate(setup, current, policy))
    printing.print_results(console, evaluated["results"])
    episode = current.number * setup.episodes
    episodes_per_epoch = setup.config.num_generations * len(setup.rows)
    record = {
        "step": current.number,
        "episode": episode,
        "epoch": episode / episodes_per_epoch,
        **sampled,
    }
    record |= stages["kept"] | stages["learning"]
    record |= evaluation.eval_metrics(evaluated["results"]) | {
        "time/eval_s": evaluated["time/eval_s"]
    }
    _log(run, current, record)
    # This round has checkpoints of its own, so no run will start from the earlier ones.
    if earlier and processes.is_first():
        shutil.rmtree(earlier[-1].folder / CHECKPOINTS, ignore_errors=True)
    return policy, record


def _log(run: run_folder.Run, current: Round, record: dict[str, Any]) -> None:
    """Write the record of a round and some of its samples, in the place of what is there already."""
    samples = [plan.as_sample(current.number) for plan in current.plans()[:_SAMPLES_SHOWN]]
    for name, lines in ((run_folder.METRICS_FILE, [record]), (run_folder.SAMPLES_FILE, samples)):
        with JsonlLog(run.folder / name, enabled=processes.is_first()) as log:
            log.truncate_after(current.number - 1)
            for line in lines:
                log.append(line)
    run.trackers.log(current.number, record)


if __name__ == "__main__":
    cli.main(lambda: self_train(parse_cli(SelfTrainConfig, "self_train")))
