"""Evaluate plans on held-out problems: `python -m jaxppo.evaluate --model DIR`, or `--plans FILE.jsonl`.

Answers of any models to any problems: `--plans RESULTS --pddl_dir INSTANCES`.

Prints a table, and writes a run folder with `config.yaml`, `eval.json`, `samples.jsonl` and the page `eval.html`; with
`--compare_with`, `samples_compared.jsonl` too.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo import data, hf, models
from jaxppo.config import EvaluateConfig
from jaxppo.config.sources import parse_cli
from jaxppo.data import Row
from jaxppo.errors import DataError
from jaxppo.evaluate import plan_metrics
from jaxppo.evaluate.answers.printing import print_answers
from jaxppo.evaluate.answers.results import judge_answers
from jaxppo.evaluate.comparison import (
    COMPARISON_COLUMNS,
    check_ids,
    compare_splits,
    comparison_rows,
)
from jaxppo.evaluate.evaluator import (
    Evaluator,
    Predictions,
    checked_validator,
    choose_fixed,
    load_rows,
    make_evaluator,
    results_of,
)
from jaxppo.evaluate.predictions import (
    JudgedRow,
    match_plans,
    prediction_records,
    read_plans,
)
from jaxppo.evaluate.printing import print_results, warn_of_failures
from jaxppo.parallel import processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.profiling import memory, sizes
from jaxppo.report import answers_page
from jaxppo.report.plan_page import pick_samples, write_page
from jaxppo.reward_functions import plan, registry
from jaxppo.rewards import Rewards
from jaxppo.rl.describe import print_memory
from jaxppo.run import activity, cli
from jaxppo.run import folder as run_folder
from jaxppo.run.console import Console
from jaxppo.types import Params

SAMPLES_FILE = "samples.jsonl"
COMPARED_FILE = "samples_compared.jsonl"
PAGE_FILE = "eval.html"


class Method(NamedTuple):
    """A method to evaluate: models that are its seeds, or a file of plans."""

    label: str
    sources: tuple[str, ...]
    is_file: bool


class MethodResults(NamedTuple):
    """What an evaluation has found out about a method."""

    label: str
    # By split.
    results: dict[str, plan_metrics.Measures]
    # Of all splits; none where the data are no planning problems.
    judged: list[JudgedRow]
    # One per prediction, for a file.
    records: list[dict[str, Any]]


class EvaluatedModel(NamedTuple):
    """A model that is ready to generate, and what scores it."""

    params: Params
    evaluator: Evaluator
    rewards: Rewards


def evaluate(config: EvaluateConfig) -> Path:
    """Evaluate models or a file of plans, compare them where asked; returns the run folder."""
    fitting, left_out = data.without_missing_splits(config.data, needs_one=True)
    config = dataclasses.replace(config, data=fitting)
    run = run_folder.begin("evaluate", config)
    if run.is_finished():
        return run.folder
    console = run.console
    if left_out is not None:
        console.print(left_out)
    folder = run.folder
    if config.judges_answers:
        return _judge_answers(config, run)
    # A dry run checks everything that a run does.
    evaluation = _Evaluation(config, console)
    if config.run.dry_run:
        names = " against ".join(", ".join(method.sources) for method in evaluation.methods)
        console.print(f"would evaluate {names} on {', '.join(evaluation.rows)} into {folder}")
        return folder
    with run.claimed():
        run.keep_settings()
        methods = [evaluation.evaluate(method) for method in evaluation.methods]
        # A is the one that is compared with, so that a positive
        # difference speaks for the method of the evaluation.
        comparison = {}
        if len(methods) > 1:
            comparison = compare_splits(methods[1].judged, methods[0].judged)
        if processes.is_first():
            _write(
                folder,
                config,
                methods,
                comparison,
                evaluation.validator,
            )
    _print(console, folder, methods, comparison)
    return folder


def _judge_answers(config: EvaluateConfig, run: run_folder.Run) -> Path:
    """Judge answers to problems of their own, as `docs/judge_plans.md` has it."""
    console = run.console
    folder = run.folder
    if config.run.dry_run:
        console.print(f"would judge {config.plans} into {folder}")
        return folder
    results = judge_answers(config)
    with run.claimed():
        run.keep_settings()
        if processes.is_first():
            write_jsonl(results.records, folder / SAMPLES_FILE)
            answers_page.write_page(
                results,
                folder / PAGE_FILE,
                title=f"Plans of {config.label or config.plans}",
                note=f"Judged by the built-in validator, rule {config.extract}.",
            )
            # Last, as it marks the evaluation as finished.
            run_folder.write_json(folder / run_folder.EVAL_FILE, results.content)
    print_answers(console, results.content)
    _print_paths(console, folder, has_page=True)
    return folder


class _Evaluation:
    """Everything an evaluation needs; checks all that can be wrong before anything is written.

    Every model is loaded here once, since one that cannot be read or does not fit the data would otherwise show after
    the models before it have answered, which may take hours. The first one stays, as its turn is next. The others are
    dropped and loaded again in their turn, so that memory never holds more than two.
    """

    def __init__(self, config: EvaluateConfig, console: Console):
        registry.check(config.reward)
        self.config = config
        self._console = console
        self._parallel = DataParallel(config.run.parallel, mesh=config.run.mesh)
        self.validator = checked_validator(config.evaluation, config.reward)
        data.make_splits(config.data, config.data.eval_splits)
        self.rows = load_rows(config.data, config.reward, self.validator)
        all_rows = list(chain.from_iterable(self.rows.values()))
        self.methods = _methods(config)
        # Two methods are compared row by row.
        if len(self.methods) > 1 and self.validator is not None:
            check_ids(all_rows)
        sources = []
        for method in self.methods:
            if not method.is_file:
                sources += method.sources
        # By source: the model to compare with may be one of the evaluated ones.
        self._loaded = {source: self._load(source) for source in sources[:1]}
        if sources:
            evaluated_rows = self._loaded[sources[0]].evaluator.fixed_rows
        else:
            evaluated_rows = self._fixed_rows()
        for source in sources[1:]:
            model = self._load(source)
            model.rewards.close()
            # Each tokenizer counts its own tokens, so a prompt may be overlong for one model alone.
            if _ids(model.evaluator.fixed_rows) != _ids(evaluated_rows):
                raise DataError(
                    "max_prompt_length: expected the same rows left out for all models, got others for "
                    f"{source} than for {sources[0]}"
                )
        self._plans = {}
        for method in self.methods:
            if method.is_file:
                self._plans[method.label] = self._read_plans(method.sources[0], evaluated_rows)

    def _fixed_rows(self) -> dict[str, list[Row]]:
        """Choose the rows as an evaluator does; without a model none is left out before."""
        max_rows = self.config.evaluation.eval_rows
        seed = self.config.data.data_seed
        fixed_rows = {}
        for split, rows in self.rows.items():
            fixed_rows[split] = [rows[i] for i in choose_fixed(rows, max_rows, seed)]
        return fixed_rows

    def evaluate(self, method: Method) -> MethodResults:
        """Generate and score the predictions of one method."""
        predictions_by_split = (
            self._plans[method.label] if method.is_file else self._predict(method)
        )
        evaluated = MethodResults(
            method.label,
            results={},
            judged=[],
            records=[],
        )
        for split, predictions in predictions_by_split.items():
            edges = self.config.evaluation.length_edges
            results, judged = results_of(predictions, self.config.reward, self.validator, edges)
            evaluated.results[split] = results
            evaluated.judged.extend(judged)
            if judged:
                evaluated.records.extend(prediction_records(judged))
            else:
                evaluated.records.extend(_plain_records(predictions, split))
        return evaluated

    def _read_plans(self, path: str, rows: Mapping[str, list[Row]]) -> dict[str, Predictions]:
        """Read the plans of a file for these rows of every split; it may hold those of other rows of the data."""
        evaluated_rows = list(chain.from_iterable(rows.values()))
        all_ids = {row["id"] for row in chain.from_iterable(self.rows.values())}
        # A file for all of the data stays usable where a model
        # cannot take some prompts; a wrong id is still an error.
        ids_left_out = all_ids - {row["id"] for row in evaluated_rows}
        plans = read_plans(path)
        for name in ids_left_out:
            plans.pop(name, None)
        matched = iter(match_plans(evaluated_rows, plans))
        # Back into splits, each taking as many as it has rows.
        predictions = {}
        for split, split_rows in rows.items():
            predictions[split] = Predictions(split_rows, list(islice(matched, len(split_rows))))
        return predictions

    def _load(self, source: str) -> EvaluatedModel:
        policy = hf.load_policy(source)
        self._parallel.check_model(policy.config)
        model = models.with_dtype(policy.config, self.config.dtype, self.config.run.attention)
        tokenizer = policy.tokenizer
        end_ids = model.source.eos_ids(data.make_chat_template(tokenizer, self.config.data).end_id)
        load_model = registry.reward_model_loader(
            model,
            policy.params,
            tokenizer,
            self._parallel.of_process(),
            end_ids,
            self.config.data.system_prompt,
        )
        validator = self.validator or plan.default_validator()
        context = registry.Context(load_model, validator)
        rewards = registry.make_rewards(self.config.reward, context)
        registry.tell_inputs(self._console.print, rewards)
        evaluator = make_evaluator(
            self.config,
            model,
            tokenizer,
            self._parallel,
            rewards,
            self.rows,
        )
        data.report_left_out(self._console.print, self.config.data, evaluator.left_out)
        # Printed before anything is compiled: the user sees whether it will fit.
        model_bytes = {"model": sizes.tree_bytes(self._parallel.shards(policy.params))}
        stages = {"evaluation": evaluator.memory} if evaluator.memory else {}
        budget = memory.Budget(model_bytes, stages)
        print_memory(self._console, budget)
        return EvaluatedModel(policy.params, evaluator, rewards)

    def _predict(self, method: Method) -> dict[str, Predictions]:
        """Generate the predictions of all models of a method, one model after the other."""
        parts: dict[str, list[Predictions]] = {split: [] for split in self.rows}
        for seed, source in enumerate(method.sources):
            self._console.print(
                f"plans of {source}" if self.validator else f"completions of {source}"
            )
            model = self._loaded.pop(source, None) or self._load(source)
            evaluator = model.evaluator
            try:
                # On the devices for its turn alone.
                params = self._parallel.put(model.params)
                for split, split_parts in parts.items():
                    with activity.show(f"evaluation of {split}"):
                        if self.config.decoder == "reground":
                            part = evaluator.predict_regrounded(params, split, seed)
                        else:
                            part = evaluator.predict(
                                params,
                                split,
                                num_samples=self.config.num_samples,
                                seed=seed,
                                rows=evaluator.fixed[split],
                            )
                    split_parts.append(part)
            finally:
                model.rewards.close()
        return {split: _join(split_parts) for split, split_parts in parts.items()}


def _ids(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[str]]:
    """List the ids of the rows of each split."""
    return {split: [row["id"] for row in split_rows] for split, split_rows in rows.items()}


def _methods(config: EvaluateConfig) -> list[Method]:
    """Return the method to evaluate, and the one it is compared with; their labels differ."""
    label = config.label or _label(config.sources)
    methods = [Method(label, config.sources, is_file=config.plans is not None)]
    if config.compare_with is not None:
        is_file = config.compare_with[0].endswith(".jsonl")
        compare_label = config.compare_label or _label(config.compare_with)
        if compare_label == label:
            compare_label = f"{compare_label} (compared)"
        methods.append(Method(compare_label, config.compare_with, is_file))
    return methods


def _label(sources: Sequence[str]) -> str:
    """Return the end of the first path, and how many more there are."""
    name = "/".join(Path(sources[0]).parts[-2:])
    return f"{name} and {len(sources) - 1} more" if len(sources) > 1 else name


def _join(parts: Sequence[Predictions]) -> Predictions:
    """Join the predictions of several models for the same rows: a row gets those of all models, in their order."""

    def join(columns: list[Any]) -> Any:
        if columns[0] is None:
            return None
        return [list(chain.from_iterable(row_lists)) for row_lists in zip(*columns, strict=True)]

    return Predictions(
        parts[0].rows,
        join([part.predictions for part in parts]),
        scores=join([part.scores for part in parts]),
    )


# --------------------------------------------------------------------------------------------------------------- output


def _plain_records(predictions: Predictions, split: str) -> list[dict[str, Any]]:
    """Return one record per prediction of data that are no planning problems."""
    records = []
    for i, row in enumerate(predictions.rows):
        for j, prediction in enumerate(predictions.predictions[i]):
            record = {
                "id": row["id"],
                "split": split,
                "completion": prediction.text,
                "ended": prediction.ended,
                "seed": prediction.seed,
                "score": None if predictions.scores is None else predictions.scores[i][j],
            }
            records.append(record)
    return records


def _write(
    folder: Path,
    config: EvaluateConfig,
    methods: Sequence[MethodResults],
    comparison: Mapping[str, Any],
    validator: str | None,
) -> None:
    """Write all files; `eval.json` comes last, as it marks the evaluation as finished."""
    model = methods[0]
    write_jsonl(model.records, folder / SAMPLES_FILE)
    content: dict[str, Any] = dict(model.results)
    page_options: dict[str, Any] = {}
    for compared in methods[1:]:
        write_jsonl(compared.records, folder / COMPARED_FILE)
        content["comparison"] = comparison
        content["compared_with"] = {"label": compared.label, "results": compared.results}
        page_options = {"other": compared.results, "other_label": compared.label}
    # The page shows plans step by step, which other data do not have.
    if model.judged:
        write_page(
            model.results,
            pick_samples(model.judged),
            folder / PAGE_FILE,
            title=f"{model.label} on {config.data.dataset}",
            label=model.label,
            comparison=comparison,
            note=_page_note(config, validator),
            **page_options,
        )
    run_folder.write_json(folder / run_folder.EVAL_FILE, content)


def _page_note(config: EvaluateConfig, validator: str | None) -> str:
    """Return in a line how the predictions were judged, and how models made them."""
    note = f"Judged by {'VAL' if validator == 'val' else 'the built-in validator'}."
    if config.plans is not None:
        return note
    temperature = config.evaluation.eval_temperature
    decoding = "Greedy decoding"
    if temperature:
        decoding = f"{config.num_samples} answers each at temperature {temperature:g}"
    if config.decoder != "plain":
        decoding += f" by the decoder {config.decoder}"
    if len(config.sources) > 1:
        decoding += f" of {len(config.sources)} models"
    return f"{note} {decoding}, at most {config.response_length} tokens."


def _print(
    console: Console,
    folder: Path,
    methods: Sequence[MethodResults],
    comparison: Mapping[str, Any],
) -> None:
    """Print the table, the comparison, and where everything is."""
    model = methods[0]
    if model.judged:
        rows, columns = plan_metrics.summary_table(model.results)
        console.result_table(model.label, rows, columns, 2)
        warn_of_failures(console, model.results)
    else:
        print_results(console, model.results)
    if comparison:
        compared = methods[1]
        title = f"{model.label} (B) against {compared.label} (A): valid plans on the same problems"
        console.result_table(title, comparison_rows(comparison), COMPARISON_COLUMNS, 2)
        warn_of_failures(console, compared.results)
    _print_paths(console, folder, has_page=bool(model.judged))


def _print_paths(console: Console, folder: Path, has_page: bool) -> None:
    if has_page:
        console.print(f"page with plots and plans step by step: {folder / PAGE_FILE}")
    console.print(f"numbers in {folder / run_folder.EVAL_FILE}, answers in {folder / SAMPLES_FILE}")


if __name__ == "__main__":
    cli.main(lambda: evaluate(parse_cli(EvaluateConfig, "evaluate")))
