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
from jaxppo.hf.export import base_of, models_meta, write_models, write_tokenizer
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
from jaxppo.types import Params

ROUNDS_FOLDER, KEPT_FILE, CHECKPOINTS = "rounds", "kept.jsonl", "checkpoints"
_SAMPLES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything a run needs, made once."""

    config: SelfTrainConfig
    tokenizer: Any
    template: data.ChatTemplate
    start: Params  # on the devices
    models_meta: dict[str, Any]  # for the checkpoints: what an export must know of the model
    rows: list[data.Row]  # problems to sample plans for
    start_rows: list[data.Row]  # that the start was trained on
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

    number: int  # from 1
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
    config, console, parallel = run.config, run.console, run.parallel
    assert run.trackers is not None  # those that are not installed are met here
    registry.check(config.reward, config.validator)
    loaded = hf.load_policy(config.sft_model_path, parallel.placement, config.run.dry_run)
    console.print(f"policy from {loaded.loaded.describe()}")
    model = models.computing_in(loaded.config, config.dtype, config.run.attention)
    parallel.check_model(model)
    tokenizer, template = loaded.tokenizer, data.make_chat_template(loaded.tokenizer, config.data)
    rows = _load(run, config.data.train_split, tokenizer, template)
    start_rows = _load(run, config.start_split, tokenizer, template) if config.start_ratio else []
    _check_model(config, model, tokenizer, template, start_rows)
    evaluator = evaluation.make_evaluator(config, model, tokenizer, parallel)
    data.tell_left_out(console.print, config.data, evaluator.left_out)
    stop_ids = config.sampling.stop_ids(model.ends_beside(template.end_id))
    base = base_of(config.sft_model_path, loaded.loaded, loaded.config, "lm", is_frozen=False)
    return Setup(
        config=config,
        tokenizer=tokenizer,
        template=template,
        start=loaded.params if config.run.dry_run else parallel.put(loaded.params),
        models_meta=models_meta(base, None, None, stop_ids, config.data.dataset, template.describe()),
        rows=rows,
        start_rows=start_rows,
        sampler=sampled_plans.make_plan_sampler(config, model, tokenizer, parallel, rows),
        evaluator=evaluator,
        sft=SFT(config, model, parallel),
    )


def _load(run: run_folder.Run, split: str, tokenizer: Any, template: data.ChatTemplate) -> list[data.Row]:
    config = run.config
    rows = data.load_split(config.data, split, config.reward.reads_pddl_for(config.validator))
    data.check_same(config.data.dataset, split, rows)
    fitting = data.without_overlong(tokenizer, rows, config.data, template)
    data.tell_left_out(run.console.print, config.data, {split: len(rows) - len(fitting)})
    return fitting


def _check_model(
    config: SelfTrainConfig, model: ModelConfig, tokenizer: Any, template: data.ChatTemplate, start_rows: list[data.Row]
) -> None:
    """Meet what does not fit the model before anything is sampled."""
    stop_id = config.sampling.stop_token_id
    if stop_id is not None and stop_id >= model.num_logits:
        raise ConfigError(f"stop_token_id: expected less than the vocabulary's {model.num_logits}, got {stop_id}")
    if start_rows:
        longest = config.data.longest_prompt
        own = data.SupervisedData(start_rows, tokenizer, config.batch_size, config.run.seed, longest, template)
        models.check_length(model, own.longest, "longest prompt and completion of start_split")


def print_plan(run: run_folder.Run, setup: Setup) -> None:
    """Print what a run will do."""
    config, problems = setup.config, setup.problems
    parameters = sum(p.size for p in jax.tree.leaves(setup.start))
    whole = config.num_rounds * setup.episodes
    passes = config.num_rounds * problems / len(setup.rows)
    of_start = f", {config.start_ratio:g} rows of split {config.start_split} beside each" if config.start_ratio else ""
    run.console.print(
        f"run: self-training on {config.data.dataset}: {config.num_rounds} rounds x {problems} problems x "
        f"{config.num_generations} plans = {whole} episodes, {passes:.2f} passes over {len(setup.rows)} problems\n"
        f"learning: in each round {config.num_updates} optimizer steps of {config.batch_size} rows from the "
        f"{config.start_from} model, at most {config.max_plans_per_problem} plans of a problem{of_start}\n"
        f"size: {parameters:,} parameters in {config.dtype}, {run.parallel.describe()}\n"
        f"folder: {run.folder}, trackers: {', '.join(config.loop.report_to)}"
    )
    for warning in optimizer.warnings(config.optimizer, config.num_updates, parameters, supervised=True):
        run.console.warn(warning)


# ------------------------------------------------------------------------------------------------- stages of a round


def sample(run: run_folder.Run, setup: Setup, this: Round, policy: Params) -> dict[str, Any]:
    """Sample and judge the plans of a round; those that an earlier process has sampled stay."""
    config = setup.config
    problems = sampled_plans.problems_of_round(len(setup.rows), config.run.seed, this.number, setup.problems)
    seconds = setup.sampler.sample(policy, problems, this.folder / run_folder.SAMPLES_FILE, run.console)
    return sampled_plans.sample_metrics(this.plans()) | seconds


def keep(setup: Setup, this: Round, earlier: Sequence[Round]) -> list[data.Row]:
    """Choose the rows that a round learns from: kept plans, and some of the start's own data."""
    config = setup.config
    pool = [*(earlier if config.pool == "all" else ()), this]
    plans = [sampled for of_round in pool for sampled in of_round.plans()]
    kept = sampled_plans.select_plans(plans, config.max_plans_per_problem)
    if not kept:
        raise TrainingError(
            f"round {this.number}: expected at least one valid plan among {len(plans)} sampled ones, got none; more "
            "num_generations, another temperature, easier problems, or a start that solves some of them"
        )
    learned = [sampled_plans.as_reference(setup.rows[sampled.row], sampled) for sampled in kept]
    count = round(config.start_ratio * len(kept))
    order = np.random.default_rng((config.run.seed, this.number)).permutation(len(setup.start_rows))
    of_start = [setup.start_rows[i] for i in order[:count]]

    def written() -> dict[str, Any]:
        processes.on_first(lambda: dataset_files.write_jsonl(learned, this.folder / KEPT_FILE))
        return {"self_train/kept": len(learned), "self_train/start_rows": len(of_start)}

    this.stages.once("kept", written)
    return [*learned, *of_start]


def learn(run: run_folder.Run, setup: Setup, this: Round, last: Params, rows: list[data.Row]) -> Params:
    """Fine-tune the start, or the last policy, on the rows of a round; returns the policy after it."""
    config, parallel = setup.config, setup.sft.parallel
    longest, name = config.data.longest_prompt, f"SFT of round {this.number}"
    supervised = data.SupervisedData(rows, setup.tokenizer, config.batch_size, config.run.seed, longest, setup.template)
    models.check_length(setup.sft.model, supervised.longest, "longest prompt and plan")
    begin = setup.start if config.start_from == "start" else stacks.unstacked(last)
    state = setup.sft.init_state(jax.tree.map(lambda x: jnp.array(x, copy=True), begin))
    steps = Steps(
        total=config.num_updates,
        step=setup.sft.step(supervised),
        evaluate=lambda state: evaluation.eval_metrics(setup.evaluator(state.params["policy"], fixed_rows_only=True)),
        meta=run.meta(config, setup.models_meta),
        title=name,
        header=f"{name} of {config.num_rounds}, into {this.folder}",
        watch=check_finite,
    )
    within = dataclasses.replace(run, folder=this.folder, config=replace(config, report_to=("none",)))
    loop = TrainingLoop(within, config.loop, steps, parallel.put(state))
    if "learning" in this.stages and loop.start == 0:
        raise DataError(f"{this.folder / CHECKPOINTS}: expected the checkpoint of a round that is done, found none")
    began = time.monotonic()
    state, meta = loop.run()
    loss = meta["metrics"]["loss"]
    this.stages.once("learning", lambda: {"self_train/loss": loss, "time/update_s": time.monotonic() - began})
    return state.params["policy"]


def evaluate(setup: Setup, this: Round, policy: Params) -> dict[str, Any]:
    """Evaluate a round: on the fixed rows, and after the last one on all."""
    began = time.monotonic()
    is_last = this.number == setup.config.num_rounds
    results, samples = setup.evaluator.with_samples(policy, fixed_rows_only=not is_last)
    return {"results": results, "samples": samples, "time/eval_s": time.monotonic() - began}


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
    """Evaluate, carry out the rounds that are left, export; what the run folder has already is not done again."""
    config, console, evals, first = setup.config, run.console, run.evals, processes.is_first()
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
    if first:
        write_tokenizer(run.folder, setup.tokenizer)
    folders = [run.folder / ROUNDS_FOLDER / str(number) for number in range(1, config.num_rounds + 1)]
    every = [Round(number, folder, Stages(folder)) for number, folder in enumerate(folders, 1)]
    done = sum(one.is_done for one in every)
    run.trackers.begin(done)
    policy, record = setup.start, {}
    for this in every[max(0, done - 1) :]:  # of the last one that is done the policy is needed
        policy, record = _carry_out_round(run, setup, this, every[: this.number - 1], policy)
    last = every[-1].stages["evaluation"]
    run.keep_samples("after", last["samples"])
    evals["after"] = last["results"]
    console.stage("Saving")
    params = stacks.unstacked(setup.sft.parallel.to_host({"policy": policy}))
    if first:
        meta = run.meta(config, setup.models_meta)
        meta["config"] |= {"algorithm": "self-training"}
        meta |= {"step": config.num_rounds, "episode": record["episode"], "metrics": record}
        write_models(run.folder, meta, params, None, setup.tokenizer, evals)
    run.write_evals(evals)  # last: "after" marks a run as finished
    samples = processes.on_first(lambda: run_folder.read_json(run.folder / run_folder.EVAL_SAMPLES_FILE))
    printing.print_outcome(console, evals, samples, "self-training")
    console.result(f"policy in {run.folder / 'policy'}")


def _carry_out_round(
    run: run_folder.Run, setup: Setup, this: Round, earlier: Sequence[Round], policy: Params
) -> tuple[Params, dict[str, Any]]:
    """Carry out the stages of a round that are left, and log it; returns its policy and its record."""
    console, stages, rows = run.console, this.stages, setup.config.num_generations * len(setup.rows)
    console.stage(f"Round {this.number} of {setup.config.num_rounds}")
    sampled = stages.once("sampling", lambda: sample(run, setup, this, policy))
    learned_from = keep(setup, this, earlier)
    console.print(
        f"{setup.episodes} plans sampled, {sampled['self_train/valid']:.1%} valid, {sampled['self_train/solved']:.1%} "
        f"of the problems solved; learning from {len(learned_from)} rows"
    )
    policy = learn(run, setup, this, policy, learned_from)
    evaluated = stages.once("evaluation", lambda: evaluate(setup, this, policy))
    printing.print_results(console, evaluated["results"])
    episode = this.number * setup.episodes
    record = {"step": this.number, "episode": episode, "epoch": episode / rows, **sampled}
    record |= stages["kept"] | stages["learning"]
    record |= evaluation.eval_metrics(evaluated["results"]) | {"time/eval_s": evaluated["time/eval_s"]}
    _log(run, this, record)
    if earlier and processes.is_first():  # nobody goes on from there any more
        shutil.rmtree(earlier[-1].folder / CHECKPOINTS, ignore_errors=True)
    return policy, record


def _log(run: run_folder.Run, this: Round, record: dict[str, Any]) -> None:
    """Write the record of a round and some of its samples, in the place of what is there already."""
    shown = [sampled.shown(this.number) for sampled in this.plans()[:_SAMPLES_SHOWN]]
    for name, lines in ((run_folder.METRICS_FILE, [record]), (run_folder.SAMPLES_FILE, shown)):
        with JsonlLog(run.folder / name, enabled=processes.is_first()) as log:
            log.truncate_after(this.number - 1)
            for line in lines:
                log.append(line)
    run.trackers.log(this.number, record)


if __name__ == "__main__":
    cli.main(lambda: self_train(parse_cli(SelfTrainConfig, "self_train")))
