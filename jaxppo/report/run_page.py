"""Write the report of a run, `report.html`: results, curves, samples over time, settings, commands."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jaxppo.parallel import processes
from jaxppo.report import pages
from jaxppo.report.charts import BarChart, Part, short, stacked_bars
from jaxppo.report.checks import concerns
from jaxppo.report.curves import Line, arrange_curves, panels
from jaxppo.report.plan_sections import (
    OUTCOMES,
    Models,
    Table,
    arrange_plans,
    in_order,
    measured_names,
)
from jaxppo.report.run_data import (
    MEASURES,
    RATES,
    RunData,
    number,
    plain_number,
    read_run,
)
from jaxppo.report.samples import Samples, read_samples, spread_evenly
from jaxppo.run.console import Console
from jaxppo.run.folder import SAMPLES_FILE

REPORT_FILE = "report.html"
"""Name of the report in a run folder."""

_MAX_CARDS = 4
_MAX_OUTCOME_BARS = 12
# That only plans have
_PLAN_MEASURES = {"rows", "errors", "domains", "bins", "pass_at_k"}


class Card(NamedTuple):
    """What counts, in large: a result before and after."""

    title: str
    values: Sequence[Any]
    note: str
    is_main: bool


@contextmanager
def reported(folder: Path, console: Console) -> Iterator[None]:
    """Write the report of a run after the block that carries it out, also where that is stopped or fails.

    A report that cannot be written is a warning, not an error of the run.

    Args:
        folder: run folder.
        console: for the line with the path of the report.
    """
    try:
        yield
    except KeyboardInterrupt:  # asked twice to stop: at once
        raise
    except BaseException:
        _write_or_warn(folder, console)
        raise
    _write_or_warn(folder, console)


def _write_or_warn(folder: Path, console: Console) -> None:
    # Several processes share the folder of a run; the first one alone writes into it.
    if not processes.is_first():
        return
    try:
        path = write_report(folder)
    except Exception as error:  # the run must not fail because of its page
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        console.warn(
            f"no report was written ({reason}); python -m jaxppo.report {shlex.quote(str(folder))} tries again"
        )
    else:
        console.result(f"report in {path}")


def write_report(folder: Path | str, path: Path | str | None = None) -> Path:
    """Write the report of a run, finished or not.

    Args:
        folder: of `train`, `self_train`, `sft` or `reward_model`.
        path: the HTML file; default: `report.html` in the folder.

    Returns:
        The file.

    Raises:
        DataError: as for `read_run`.
    """
    run = read_run(folder)
    path = run.folder / REPORT_FILE if path is None else Path(path)
    pages.write_page(path, "run.html", **_content(run, read_samples(run.folder / SAMPLES_FILE)))
    return path


def _content(run: RunData, samples: Samples) -> dict[str, Any]:
    moments = (("before", run.results_before), ("after", run.results_after))
    models = [(moment, results) for moment, results in moments if results]
    # Only results of plans have charts of their own; those
    # of early versions lack measures that these need.
    cells = list(chain.from_iterable(results.values() for _, results in models))
    are_plans = bool(cells) and all(cell.keys() >= _PLAN_MEASURES for cell in cells)
    return {
        "title": f"{run.name}: {run.method}",
        "run": run,
        "cards": _cards(run),
        "concerns": concerns(run),
        "plan_results": arrange_plans(models) if are_plans else None,
        "plain_results": _plain_results(models) if cells and not are_plans else None,
        "rounds": [record for record in run.records if "self_train/valid" in record],
        "validity_metrics": [
            name for name in run.metric_names if fnmatchcase(name, "eval/*/validity")
        ],
        "curves": arrange_curves([Line(run.name, [run])]),
        "reward_parts": _reward_parts(run),
        "outcomes": _outcomes(samples),
        "samples": samples,
        "samples_file": run.folder / SAMPLES_FILE,
        "times": _times(run),
    }


# ------------------------------------------------------------------------------------------------------------- results


def _cards(run: RunData) -> list[Card]:
    """Return a card for every split with its result before and after; without an evaluation one of the reward."""
    results = run.results_after or run.results_before
    # The headline is first; sorting keeps the order of the others.
    splits = sorted(results, key=lambda split: split != run.headline_split)
    cards = []
    for split in splits[:_MAX_CARDS]:
        measure = run.measure(split)
        if measure is not None:
            moments, values = _before_and_after(run, split, measure)
            title = f"{MEASURES[measure]} on {split}, {moments}"
            cards.append(Card(title, values, _gain(values), is_main=split == run.headline_split))
    if cards:
        return cards
    for name in ("objective/scores", "loss"):
        if values := run.values(name):
            ends = [short(end) for end in _first_and_last_tenth(values)]
            cards.append(
                Card(f"`{name}`, first and last tenth of the updates", ends, "", is_main=True)
            )
    return cards


def _before_and_after(run: RunData, split: str, measure: str) -> tuple[str, list[Any]]:
    """Return in words when the split was measured, and the results: before, and after or in the last evaluation."""
    before_training = run.results_before.get(split, {}).get(measure)
    after_training = run.results_after.get(split, {}).get(measure)
    if run.results_after and before_training is None:
        return "after training", [after_training]
    if run.results_after:
        return "before and after training", [before_training, after_training]
    # A run that goes on, or that was stopped, has the evaluations of `--eval_steps`.
    logged = "mean_reward" if measure == "reward" else measure
    points = run.curve(f"eval/{split}/{logged}")
    evaluations = [(step, value) for step, value in points if value is not None]
    if not evaluations:
        return "before training", [before_training]
    step, latest = evaluations[-1]
    # Records have the number alone: next to a result with
    # an interval it is of the same kind, without one.
    if measure in RATES:
        latest = {"rate": latest, "low": None, "high": None}
    elif measure == "reward":
        latest = {"mean": latest, "low": None, "high": None}
    return f"before training and at update {step:.0f}", [before_training, latest]


def _gain(values: Sequence[Any]) -> str:
    """Return in words how much the second result is above the first."""
    if len(values) < 2:
        return ""
    first, last = map(plain_number, values)
    if first is None or last is None:
        return ""
    is_rate = isinstance(values[0], dict) and "rate" in values[0]
    gain = f"{100 * (last - first):+.1f} points" if is_rate else f"{last - first:+.3f}"
    has_count = isinstance(values[1], dict) and "n" in values[1]
    return f"{gain} · n = {values[1]['n']}, 95 % intervals" if has_count else gain


def _plain_results(models: Models) -> Table:
    """Return the table of results that are not of plans, or that an older version wrote."""
    measures = measured_names(chain.from_iterable(results.values() for _, results in models))
    if "reward" in measures:  # has the mean, and its interval
        measures.discard("mean_reward")
    names = [name for name in MEASURES if name in measures]
    rows = []
    for moment, results in models:
        for split, cell in results.items():
            rows.append([split, moment, *(cell.get(name) for name in names)])
    return Table(["split", "moment", *(MEASURES[name] for name in names)], rows)


# ------------------------------------------------------------------------------------------- rewards, samples and time


def _reward_parts(run: RunData) -> dict[str, list[float]]:
    """Return each reward function and its parts: at first, at last, the lowest and the highest; [] without a number."""
    parts = {}
    for panel in panels([run]):
        if panel.prefix not in ("reward", "rewards"):
            continue
        for name in panel.names:
            values = run.values(name)
            parts[name] = (
                [*_first_and_last_tenth(values), min(values), max(values)] if values else []
            )
    return parts


def _first_and_last_tenth(values: Sequence[float]) -> tuple[float, float]:
    tenth = max(1, len(values) // 10)
    return fmean(values[:tenth]), fmean(values[-tenth:])


def _outcomes(samples: Samples) -> dict[str, dict[str, int]]:
    """Return the verdicts of some of the updates whose samples are logged."""
    steps = spread_evenly(list(samples.outcomes), _MAX_OUTCOME_BARS)
    return {f"update {step}": in_order(samples.outcomes[step], OUTCOMES) for step in steps}


_STAGES = {
    "time/rollout_s": ("sampling", "c0"),
    "time/reward_s": ("reward, while devices score", "c2"),
    "time/reward_wait_s": ("waiting for the reward", "c1"),
    "time/update_s": ("learning", "c3"),
    "time/eval_s": ("evaluation", "c1"),
    "time/step_s": ("step", "c0"),
}


def _times(run: RunData) -> BarChart | None:
    """Return the seconds of the stages of every update; None where none are logged."""
    seconds = {}
    for name in (*_STAGES, "time/overlap_s"):
        if name in run.metric_names:
            seconds[name] = [number(record.get(name)) or 0.0 for record in run.records]
    # What of the reward's time is waited for, or runs beside
    # another batch's work, is drawn as that, and not twice.
    for name in ("time/reward_wait_s", "time/overlap_s"):
        if "time/reward_s" in seconds and name in seconds:
            pairs = zip(seconds["time/reward_s"], seconds[name], strict=True)
            seconds["time/reward_s"] = [max(0.0, reward - elsewhere) for reward, elsewhere in pairs]
    parts = []
    for name, (label, style) in _STAGES.items():
        if name in seconds:
            parts.append(Part(label, seconds[name], style))
    if not parts:
        return None
    return stacked_bars([record["step"] for record in run.records], parts)
