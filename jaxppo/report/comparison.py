"""Write the page of several runs: results side by side, curves over each other, the settings that differ."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from jaxppo.errors import DataError
from jaxppo.report import pages
from jaxppo.report.charts import drop_missing
from jaxppo.report.curves import Line, arrange_curves
from jaxppo.report.plan_sections import arrange_validity
from jaxppo.report.run_data import RATES, RunData, plain_number, read_run

_ENDS = {
    "objective/scores": "reward at the end",
    "objective/kl": "KL at the end",
    "loss": "loss at the end",
}
_STAGES = ("time/rollout_s", "time/reward_s", "time/update_s", "time/step_s")

_EVALUATION_SETTINGS = (
    "dataset",
    "data_seed",
    "prompt_style",
    "eval_splits",
    "eval_temperature",
    "eval_top_k",
    "eval_top_p",
    "eval_validator",
    "number_objects",
    "n_shots",
    "max_prompt_length",
    "system_prompt",
    "response_length",
)
"""Settings without which results are not of the same problems, answered in the same way."""

_SPLIT_SETTINGS = ("sizes", "stream_lengths", "stream_rows")
"""Settings with a value for each split, of which those of `train` and `rl` are of learning alone."""


def write_comparison(folders: Sequence[Path | str], path: Path | str) -> Path:
    """Write the page that compares runs, finished or not.

    Args:
        folders: two or more, of `train`, `sft` or `reward_model`.
        path: the HTML file.

    Returns:
        The file.

    Raises:
        DataError: as for `read_run`, or a folder is given twice.
    """
    resolved = [Path(folder).resolve() for folder in folders]
    for i, folder in enumerate(folders):
        # A run next to itself would be a second seed of it, with a spread of 0.
        if resolved[i] in resolved[:i]:
            raise DataError(f"runs: expected each folder once, got {folder} twice")
    pages.write_page(path, "comparison.html", **_content([read_run(folder) for folder in folders]))
    return Path(path)


def _content(runs: Sequence[RunData]) -> dict[str, Any]:
    labels = _labels(runs)
    lines = []
    for group in _groups(runs):
        members = [runs[i] for i in group]
        lines.append(Line(_group_label(group, labels), members))
    # A batch is not the same work everywhere: over
    # updates, runs with larger ones would look better.
    batch_sizes = {(run.unit, run.settings.get("batch_size")) for run in runs}
    records = chain.from_iterable(run.records for run in runs)
    has_episodes = all(record.get("episode") is not None for record in records)
    x = "episode" if len(batch_sizes) > 1 and has_episodes else "step"
    metric_names = set(chain.from_iterable(run.metric_names for run in runs))
    settings = dict.fromkeys(chain.from_iterable(run.settings for run in runs))
    differing = {}
    for name in settings:
        values = [run.settings.get(name, "–") for run in runs]
        if any(value != values[0] for value in values):
            differing[name] = values
    pairs = zip(labels, runs, strict=True)
    models = [(label, run.results_after) for label, run in pairs if run.results_after]
    return {
        "title": f"{len(runs)} runs compared",
        "runs": runs,
        "labels": labels,
        "different_problems": _different_problems(runs),
        "ends": {name: title for name, title in _ENDS.items() if name in metric_names},
        "seconds": [_seconds(run) for run in runs],
        "seeds": _over_seeds(lines),
        "validity": arrange_validity(models),
        "curves": arrange_curves(lines, x),
        "num_settings": len(settings),
        "differing": differing,
    }


def _labels(runs: Sequence[RunData]) -> list[str]:
    """Return the end of each folder's path, as long as needed to distinguish the runs."""
    paths = [run.folder.resolve().parts for run in runs]
    # Resolved paths differ somewhere, as no folder is given twice.
    length = 1
    while len({path[-length:] for path in paths}) < len(paths):
        length += 1
    return ["/".join(path[-length:]) for path in paths]


def _groups(runs: Sequence[RunData]) -> list[list[int]]:
    """Group the indices of runs that differ in nothing but their seed; other runs are groups of one."""
    setups: list[Any] = []
    groups: list[list[int]] = []
    for i, run in enumerate(runs):
        settings = {name: value for name, value in run.settings.items() if name != "seed"}
        setup = (run.command, settings)
        if setup in setups:
            groups[setups.index(setup)].append(i)
        else:
            setups.append(setup)
            groups.append([i])
    return groups


def _group_label(group: Sequence[int], labels: Sequence[str]) -> str:
    names = ", ".join(labels[i] for i in group)
    return names if len(group) == 1 else f"{names} ({len(group)} seeds)"


def _seconds(run: RunData) -> float:
    """Return how long the updates of a run took; what runs beside another batch's work counts once."""
    seconds = sum(sum(run.values(name)) for name in _STAGES)
    return seconds - sum(run.values("time/overlap_s"))


def _different_problems(runs: Sequence[RunData]) -> list[str]:
    """Return the settings by which results are not of the same held-out problems, or not decoded in the same way."""
    settings = [*_EVALUATION_SETTINGS, *_SPLIT_SETTINGS]
    # Rates are the same whatever is rewarded; mean rewards are not.
    if not all(run.headline in RATES for run in runs):
        settings += ["reward_funcs", "reward_weights"]
    names = []
    for name in settings:
        values = {str(_evaluation_setting(run, name)) for run in runs}
        if len(values) > 1:
            names.append(name)
    if len({run.headline_split for run in runs}) > 1:
        names.append("headline_split")
    return names


def _evaluation_setting(run: RunData, name: str) -> Any:
    """Return a setting that results depend on."""
    value = run.settings.get(name)
    if name in _SPLIT_SETTINGS and value:
        return [word for word in value if word.partition("=")[0] not in ("train", "rl")]
    if name == "eval_splits" and value:
        return sorted(value)  # the last is the headline, which is compared by itself
    return value


def _over_seeds(lines: Sequence[Line]) -> list[list[str]]:
    """Compute mean and standard deviation of the finished runs that differ in nothing but their seed."""
    # The interval of one run is over problems; how much training itself varies, only seeds tell.
    rows = []
    for line in lines:
        first = line.runs[0]
        scale, unit = (100, " %") if first.headline in RATES else (1, "")
        finals = drop_missing(plain_number(run.headline_results[1]) for run in line.runs)
        results = [scale * value for value in finals]
        if len(results) > 1:
            spread = f"{fmean(results):.3g} ± {stdev(results):.2g}{unit}"
            span = f"{min(results):.3g} to {max(results):.3g}{unit}"
            rows.append([line.label, first.headline_title, str(len(results)), spread, span])
    return rows
