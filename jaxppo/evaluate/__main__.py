"""Evaluate plans on held-out problems: `python -m jaxppo.evaluate --model DIR`, or `--plans FILE.jsonl`.

Answers of any models to any problems: `--plans RESULTS --pddl_dir INSTANCES`.

Prints a table, and writes a run folder with `config.yaml`, `eval.json`, `samples.jsonl` and the page `eval.html`; with
`--compare_with`, `samples_compared.jsonl` too, and with `--repair_rounds`, `repair.jsonl`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo import data, hf, models
from jaxppo.config import EvaluateConfig
from jaxppo.config.sources import parse_cli
from jaxppo.data import Row
from jaxppo.errors import ConfigError, DataError
from jaxppo.evaluate import plan_metrics, repair
from jaxppo.evaluate.answers.printing import print_answers
from jaxppo.evaluate.answers.results import answer_records, judge_answers
from jaxppo.evaluate.comparison import COMPARISON_COLUMNS, check_ids, compare_splits, comparison_rows
from jaxppo.evaluate.evaluator import (
    Evaluator,
    Predictions,
    checked_validator,
    choose_fixed,
    load_rows,
    make_evaluator,
    results_of,
)
from jaxppo.evaluate.predictions import JudgedRow, match_plans, prediction_records, read_plans
from jaxppo.evaluate.printing import print_results, warn_of_failures
from jaxppo.parallel import processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.profiling import aot, memory, sizes
from jaxppo.profiling.aim import show
from jaxppo.report import answers_page
from jaxppo.report.plan_page import pick_samples, write_page
from jaxppo.reward_functions import plan, registry
from jaxppo.rewards import Rewards
from jaxppo.rl.describe import print_memory
from jaxppo.run import activity, cli
from jaxppo.run import folder as run_folder
from jaxppo.run.console import Console
from jaxppo.types import Params

SAMPLES_FILE, COMPARED_FILE, PAGE_FILE = "samples.jsonl", "samples_compared.jsonl", "eval.html"
REPAIR_FILE = "repair.jsonl"

Rows = Mapping[str, list[Row]]
"""{split: rows}."""


class Method(NamedTuple):
    """A method to evaluate: models that are its seeds, or a file of plans."""

    label: str
    sources: tuple[str, ...]
    is_file: bool


class Evaluated(NamedTuple):
    """A method with its predictions."""

    label: str
    results: dict[str, dict[str, Any]]  # by split
    judged: list[JudgedRow]  # of all splits; none where the data are no planning problems
    records: list[dict[str, Any]]  # one per prediction, for a file
    attempts: list[dict[str, Any]]  # one per attempt of all repair rounds, for a file


class LoadedModel(NamedTuple):
    """A model that is ready to generate."""

    params: Params
    evaluator: Evaluator
    rewards: Rewards


def evaluate(config: EvaluateConfig) -> Path:
    """Evaluate models or a file of plans, compare them where asked; returns the run folder."""
    run = run_folder.begin("evaluate", config)
    if run.is_finished():
        return run.folder
    console, folder = run.console, run.folder
    if config.run.target is not None:
        _aim(config, console)
        return folder
    if config.judges_answers:
        return _judge_answers(config, run)
    evaluation = _Evaluation(config, console)
    if config.run.dry_run:
        names = " against ".join(", ".join(method.sources) for method in evaluation.methods)
        console.print(f"would evaluate {names} on {', '.join(evaluation.rows)} into {folder}")
        return folder
    with run.claimed():
        run.keep_settings()
        done = [evaluation.evaluated(method) for method in evaluation.methods]
        comparison = compare_splits(done[1].judged, done[0].judged) if len(done) > 1 else {}
        if processes.is_first():
            _write(folder, config, done, comparison, evaluation.validator)
    _print(console, folder, done, comparison)
    return folder


def _judge_answers(config: EvaluateConfig, run: run_folder.Run) -> Path:
    """Judge answers to problems of their own, as `docs/judge_plans.md` has it."""
    console, folder = run.console, run.folder
    if config.run.dry_run:
        console.print(f"would judge {config.plans} into {folder}")
        return folder
    results = judge_answers(config)
    title, note = f"Plans of {config.label or config.plans}", "Judged by the built-in validator"
    with run.claimed():
        run.keep_settings()
        if processes.is_first():
            write_jsonl(answer_records(results.judged), folder / SAMPLES_FILE)
            answers_page.write_page(results, folder / PAGE_FILE, title=title, note=f"{note}, rule {config.extract}.")
            run_folder.write_json(folder / run_folder.EVAL_FILE, results.content)
    print_answers(console, results.content)
    _print_places(console, folder, has_page=True)
    return folder


def _aim(config: EvaluateConfig, console: Console) -> None:
    """Compile the program that generates, of the first model, for `--target`."""
    if config.plans is not None:
        raise ConfigError(f"target: expected a model that generates, got plans {config.plans!r}")
    registry.check(config.reward)
    rows = load_rows(config.data, config.reward, checked_validator(config.evaluation, config.reward))
    policy = hf.load_policy(config.sources[0], shapes_only=True)

    def build(config: EvaluateConfig, devices: list[Any]) -> aot.Plan:
        parallel = DataParallel(config.run.parallel, devices, config.run.mesh)
        parallel.check_model(policy.config)
        model = models.computing_in(policy.config, config.dtype, config.run.attention)
        return make_evaluator(config, model, policy.tokenizer, parallel, rows=rows).plan(policy.params)

    show(console, config, build)


class _Evaluation:
    """Everything an evaluation needs; checks all that can be wrong before anything is written."""

    def __init__(self, config: EvaluateConfig, console: Console):
        registry.check(config.reward)
        self.config, self._console = config, console
        self._parallel = DataParallel(config.run.parallel, mesh=config.run.mesh)
        self.validator = checked_validator(config.evaluation, config.reward)
        data.make_splits(config.data, config.data.eval_splits)
        self.rows = load_rows(config.data, config.reward, self.validator)
        if config.repair.repair_rounds:
            repair.check_styles([row for of_split in self.rows.values() for row in of_split])
        self.methods = _methods(config)
        if len(self.methods) > 1 and self.validator is not None:
            check_ids([row for of_split in self.rows.values() for row in of_split])
        sources = [source for method in self.methods if not method.is_file for source in method.sources]
        self._ready = {source: self._open(source) for source in sources[:1]}
        predicted = self._ready[sources[0]].evaluator.fixed_rows if sources else self._fixed_rows()
        for source in sources[1:]:
            loaded = self._open(source)
            loaded.rewards.close()  # it is read again in its turn
            if _ids(loaded.evaluator.fixed_rows) != _ids(predicted):
                got = f"others for {source} than for {sources[0]}"
                raise DataError(f"filter_overlong_prompts: expected the same rows left out for all models, got {got}")
        self._plans = {
            method.label: self._read(method.sources[0], predicted) for method in self.methods if method.is_file
        }

    def _fixed_rows(self) -> dict[str, list[Row]]:
        most, seed = self.config.evaluation.eval_rows, self.config.data.data_seed
        return {split: [rows[i] for i in choose_fixed(rows, most, seed)] for split, rows in self.rows.items()}

    def evaluated(self, method: Method) -> Evaluated:
        """Generate and score the predictions of one method."""
        predicted = self._plans[method.label] if method.is_file else self._predict(method)
        results, judged, records, attempts = {}, [], [], []
        for split, of_split in predicted.items():
            edges = self.config.evaluation.length_edges
            results[split], rows = results_of(of_split, self.config.reward, self.validator, edges)
            judged += rows
            records += prediction_records(rows) if rows else _plain_records(of_split, split)
            attempts += repair.attempt_records(of_split.rows, of_split.repairs or [[]] * len(rows)) if rows else []
        return Evaluated(method.label, results, judged, records, attempts)

    def _read(self, path: str, rows: Mapping[str, list[Row]]) -> dict[str, Predictions]:
        """Read the plans of a file for these rows of every split; it may hold those of other rows of the data."""
        every, kept = ({name for names in _ids(each).values() for name in names} for each in (self.rows, rows))
        left_out = every - kept
        predictions = iter(
            match_plans(
                [row for of_split in rows.values() for row in of_split],
                {name: plans for name, plans in read_plans(path).items() if name not in left_out},
                allow_unmatched=self.config.allow_unmatched_plans,
            )
        )
        return {split: Predictions(of_split, [next(predictions) for _ in of_split]) for split, of_split in rows.items()}

    def _open(self, source: str) -> LoadedModel:
        policy = hf.load_policy(source)
        self._parallel.check_model(policy.config)
        model, tokenizer = (
            models.computing_in(policy.config, self.config.dtype, self.config.run.attention),
            policy.tokenizer,
        )
        end_ids = model.ends_beside(data.make_chat_template(tokenizer, self.config.data).end_id)
        load_model = registry.reward_model_loader(
            model, policy.params, tokenizer, self._parallel.of_process(), end_ids, self.config.data.system_prompt
        )
        validator = self.validator or plan.default_validator()
        context = registry.Context(validator, load_model=load_model)
        rewards = registry.make_rewards(self.config.reward, context)
        registry.tell_inputs(self._console.print, rewards)
        evaluator = make_evaluator(self.config, model, tokenizer, self._parallel, rewards, self.rows)
        data.tell_left_out(self._console.print, self.config.data, evaluator.left_out)
        held = {"model": sizes.tree_bytes(self._parallel.shards(policy.params))}
        budget = memory.Budget(held, {"evaluation": evaluator.memory} if evaluator.memory else {})
        print_memory(self._console, budget, self._parallel.local_devices)
        return LoadedModel(policy.params, evaluator, rewards)

    def _predict(self, method: Method) -> dict[str, Predictions]:
        """Generate the predictions of all models of a method, one model after the other."""
        parts: dict[str, list[Predictions]] = {split: [] for split in self.rows}
        for seed, source in enumerate(method.sources):
            self._console.print(f"plans of {source}" if self.validator else f"completions of {source}")
            loaded = self._ready.pop(source, None) or self._open(source)
            try:
                params = self._parallel.put(loaded.params)
                for split, part in parts.items():
                    with activity.shown(f"evaluation of {split}"):
                        part.append(self._predicted(loaded.evaluator, params, split, seed))
            finally:
                loaded.rewards.close()
        return {split: _joined(part) for split, part in parts.items()}

    def _predicted(self, evaluator: Evaluator, params: Params, split: str, seed: int) -> Predictions:
        if self.config.repair.repair_rounds:
            return evaluator.predict_repaired(params, split, self.config.repair, seed)
        if self.config.decoder == "plain":
            num_samples, rows = self.config.num_samples, evaluator.fixed[split]
            return evaluator.predict(params, split, num_samples=num_samples, seed=seed, rows=rows)
        return evaluator.predict_regrounded(params, split, seed)


def _ids(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[str]]:
    return {split: [row["id"] for row in of_split] for split, of_split in rows.items()}


def _methods(config: EvaluateConfig) -> list[Method]:
    """Return the method to evaluate, and the one it is compared with; their labels differ."""
    methods = [Method(config.label or _label(config.sources), config.sources, config.plans is not None)]
    if config.compare_with is not None:
        is_file = config.compare_with[0].endswith(".jsonl")
        label = config.compare_label or _label(config.compare_with)
        label = f"{label} (compared)" if label == methods[0].label else label
        methods.append(Method(label, config.compare_with, is_file))
    return methods


def _label(sources: Sequence[str]) -> str:
    """Return the end of the first path, and how many more there are."""
    name = "/".join(Path(sources[0]).parts[-2:])
    return f"{name} and {len(sources) - 1} more" if len(sources) > 1 else name


def _joined(parts: Sequence[Predictions]) -> Predictions:
    """Join the predictions of several models for the same rows."""
    joined = (
        [[one for given in of_row for one in given] for of_row in zip(*known, strict=True)] if known else None
        for known in ([lists for lists in field if lists is not None] for field in list(zip(*parts, strict=True))[1:])
    )
    return Predictions(parts[0].rows, *joined)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------- output


def _plain_records(predicted: Predictions, split: str) -> list[dict[str, Any]]:
    """Return one record per prediction of data that are no planning problems."""
    scores = predicted.scores or [[None] * len(predictions) for predictions in predicted.predictions]
    return [
        {
            "id": row["id"],
            "split": split,
            "completion": prediction.text,
            "ended": prediction.ended,
            "seed": prediction.seed,
        }
        | {"score": score}
        for row, predictions, of_row in zip(predicted.rows, predicted.predictions, scores, strict=True)
        for prediction, score in zip(predictions, of_row, strict=True)
    ]


def _write(
    folder: Path,
    config: EvaluateConfig,
    done: Sequence[Evaluated],
    comparison: Mapping[str, Any],
    validator: str | None,
) -> None:
    """Write all files; `eval.json` comes last, as it marks the evaluation as finished."""
    model, other = done[0], done[1] if len(done) > 1 else None
    write_jsonl(model.records, folder / SAMPLES_FILE)
    if model.attempts:
        write_jsonl(model.attempts, folder / REPAIR_FILE)
    content: dict[str, Any] = dict(model.results)
    if other is not None:
        write_jsonl(other.records, folder / COMPARED_FILE)
        content |= {"comparison": comparison, "compared_with": {"label": other.label, "results": other.results}}
    if model.judged:
        write_page(
            model.results,
            pick_samples(model.judged),
            folder / PAGE_FILE,
            title=f"{model.label} on {config.data.dataset}",
            label=model.label,
            other=None if other is None else other.results,
            other_label="" if other is None else other.label,
            comparison=comparison,
            note=_how(config, validator),
        )
    run_folder.write_json(folder / run_folder.EVAL_FILE, content)


def _how(config: EvaluateConfig, validator: str | None) -> str:
    """Return how the predictions were made, in a line for the page."""
    parts = [f"Judged by {'VAL' if validator == 'val' else 'the built-in validator'}."]
    temperature, many = config.evaluation.eval_temperature, len(config.sources)
    if config.plans is None:
        how = f"{config.num_samples} answers each at temperature {temperature:g}" if temperature else "Greedy decoding"
        how += "" if config.decoder == "plain" else f" by the decoder {config.decoder}"
        models = f" of {many} models" if many > 1 else ""
        parts.append(f"{how}{models}, at most {config.response_length} tokens.")
    return " ".join(parts)


def _print(console: Console, folder: Path, done: Sequence[Evaluated], comparison: Mapping[str, Any]) -> None:
    """Print the table, the comparison, and where everything is."""
    model = done[0]
    if model.judged:
        console.result_table(model.label, *plan_metrics.summary_table(model.results), 2)
        warn_of_failures(console, model.results)
        if model.attempts:
            console.result_table("repair rounds", repair.repair_rows(model.results), repair.TABLE_COLUMNS, 2)
    else:
        print_results(console, model.results)
    if comparison:
        title = f"{model.label} (B) against {done[1].label} (A): valid plans on the same problems"
        console.result_table(title, comparison_rows(comparison), COMPARISON_COLUMNS, 2)
        warn_of_failures(console, done[1].results)
    _print_places(console, folder, has_page=bool(model.judged))


def _print_places(console: Console, folder: Path, has_page: bool) -> None:
    if has_page:
        console.print(f"page with plots and plans step by step: {folder / PAGE_FILE}")
    console.print(f"numbers in {folder / run_folder.EVAL_FILE}, answers in {folder / SAMPLES_FILE}")


if __name__ == "__main__":
    cli.main(lambda: evaluate(parse_cli(EvaluateConfig, "evaluate")))
