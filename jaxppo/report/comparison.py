"""Write the page of several runs: results side by side, curves over each other, the settings that differ."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from jaxppo.errors import DataError
from jaxppo.report import html, plan_sections
from jaxppo.report.checks import known_end
from jaxppo.report.curves import Curves, Line
from jaxppo.report.html import row, shown, table
from jaxppo.report.line_charts import short
from jaxppo.report.run_data import MEASURES, RATES, Run, plain_number, read_run
from jaxppo.report.run_page import duration, value_html

_ENDS = {"objective/scores": "reward", "objective/kl": "KL", "loss": "loss"}
_MEASURED_BY = ("dataset", "data_seed", "prompt_style", "eval_splits")
_MEASURED_BY += ("eval_temperature", "eval_top_k", "eval_top_p", "eval_validator")
_MEASURED_BY += ("number_objects",)
_MEASURED_BY += ("n_shots", "max_prompt_length", "system_prompt", "response_length")
_PROBLEMS = ("sizes", "stream_lengths", "stream_rows")
"""Settings of which those of `train` and `rl` are of learning alone."""
_STAGES = ("time/rollout_s", "time/reward_s", "time/update_s", "time/step_s")


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
    twice = [str(folder) for i, folder in enumerate(folders) if Path(folder).resolve() in map(_resolved, folders[:i])]
    if twice:
        raise DataError(f"runs: expected each folder once, got {twice[0]} twice")
    runs = [read_run(folder) for folder in folders]
    title = f"{len(runs)} runs compared"
    html.write_page(path, title, [f"<h1>{title}</h1>", *_parts(runs)], "run_page")
    return Path(path)


def _resolved(folder: Path | str) -> Path:
    return Path(folder).resolve()


def _parts(runs: Sequence[Run]) -> list[str]:
    labels = _labels(runs)
    groups = _groups(runs)
    sizes = {(run.unit, run.settings.get("batch_size")) for run in runs}
    has_episodes = all(record.get("episode") is not None for run in runs for record in run.records)
    lines = [Line(_group_label(group, labels), [runs[i] for i in group]) for group in groups]
    curves = Curves(lines, "episode" if len(sizes) > 1 and has_episodes else "step")
    return [
        _different_problems(runs),
        _results(runs, labels),
        _over_seeds(runs, groups, labels),
        _by_length(runs, labels),
        curves.section(),
        _differing(runs, labels),
        _commands(runs, labels),
        curves.island(),
    ]


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return the end of each folder's path, as long as needed to distinguish the runs."""
    parts = [run.folder.resolve().parts for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(of_run[-length:]) for of_run in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(run.folder) for run in runs]


def _groups(runs: Sequence[Run]) -> list[list[int]]:
    """Group the indices of runs that differ in nothing but their seed; other runs are groups of one."""
    groups: list[list[int]] = []
    for place, run in enumerate(runs):
        same = next((group for group in groups if _setup(runs[group[0]]) == _setup(run)), None)
        if same is None:
            groups.append([place])
        else:
            same.append(place)
    return groups


def _setup(run: Run) -> tuple[str, dict[str, Any]]:
    return run.command, {name: value for name, value in run.settings.items() if name != "seed"}


def _group_label(group: Sequence[int], labels: Sequence[str]) -> str:
    names = ", ".join(labels[i] for i in group)
    return names if len(group) == 1 else f"{names} ({len(group)} seeds)"


def _results(runs: Sequence[Run], labels: Sequence[str]) -> str:
    ends = [name for name in _ENDS if any(name in run.metric_names for run in runs)]
    heads = ["run", "updates", "measured", "before", "after", *(f"{_ENDS[name]} at the end" for name in ends), "time"]
    rows = []
    for run, label in zip(runs, labels, strict=True):
        planned = run.planned_updates
        updates = str(run.updates) if run.after or planned is None else f"{run.updates} of {planned}"
        measured = f"{MEASURES[run.headline]} on {run.headline_split}" if run.headline else "–"
        sides = [
            results.get(run.headline_split or "", {}).get(run.headline or "") for results in (run.before, run.after)
        ]
        known = [known_end(run.values(name)) for name in ends]
        seconds = sum(value or 0.0 for name in _STAGES for value in run.values(name))
        seconds -= sum(value or 0.0 for value in run.values("time/overlap_s"))
        texts = [shown(label), updates, shown(measured), *map(value_html, sides)]
        rows.append(row([*texts, *(short(fmean(part)) if part else "–" for part in known), duration(seconds)]))
    note = "Rates and means with their 95 % intervals over problems; at the end: mean of the last tenth of the updates."
    return f'<h2 id="results">Results</h2>{table("summary", heads, rows)}<p class="soft">{note}</p>'


def _different_problems(runs: Sequence[Run]) -> str:
    """Warn where the results are not of the same held-out problems, or not decoded in the same way."""
    rewards = () if all(run.headline in RATES for run in runs) else ("reward_funcs", "reward_weights")
    settings = (*_MEASURED_BY, *rewards)
    names = [name for name in (*settings, *_PROBLEMS) if len({str(_measured_by(run, name)) for run in runs}) > 1]
    if len({run.headline_split for run in runs}) > 1:
        names.append("headline_split")
    if not names:
        return ""
    listed = ", ".join(f"<code>{name}</code>" for name in names)
    text = f"Not measured in the same way: the runs differ in {listed}. Their results cannot be compared."
    return f'<p class="warning">{text}</p>'


def _measured_by(run: Run, name: str) -> Any:
    """Return a setting that results depend on; the longest prompt, only where longer ones are left out."""
    if name == "max_prompt_length" and not run.settings.get("filter_overlong_prompts"):
        return None
    value = run.settings.get(name)
    if name in _PROBLEMS and value:
        return [word for word in value if word.partition("=")[0] not in ("train", "rl")]
    return value


def _over_seeds(runs: Sequence[Run], groups: Sequence[Sequence[int]], labels: Sequence[str]) -> str:
    """Compute mean and standard deviation of the runs that differ in nothing but their seed."""
    rows = []
    for group in groups:
        of_group = [runs[i] for i in group]
        finals = [value for run in of_group if (value := _final(run)) is not None]
        if len(group) < 2 or len(finals) < 2:
            continue
        first = of_group[0]
        scale, unit = (100, " %") if first.headline in RATES else (1, "")
        texts = [_group_label(group, labels), f"{MEASURES[first.headline or '']} on {first.headline_split}"]
        spread = f"{scale * fmean(finals):.3g} ± {scale * stdev(finals):.2g}{unit}"
        span = f"{scale * min(finals):.3g} to {scale * max(finals):.3g}{unit}"
        rows.append(row([*map(shown, texts), str(len(finals)), spread, span]))
    if not rows:
        return ""
    heads = ["runs that differ in the seed only", "measured after", "seeds", "mean ± standard deviation", "range"]
    return f'<h2 id="seeds">Over seeds</h2>{table("over-seeds", heads, rows)}'


def _final(run: Run) -> float | None:
    """Return the headline result of a finished run, as a number."""
    return plain_number(run.after.get(run.headline_split or "", {}).get(run.headline or ""))


def _by_length(runs: Sequence[Run], labels: Sequence[str]) -> str:
    models = [(label, run.after) for label, run in zip(labels, runs, strict=True) if run.after]
    if not any(cell.get("domains") for _, results in models for cell in results.values()):
        return ""
    return plan_sections.validity_charts(models)


def _differing(runs: Sequence[Run], labels: Sequence[str]) -> str:
    names = dict.fromkeys(name for run in runs for name in run.settings)
    values = {name: [run.settings.get(name, "–") for run in runs] for name in names}
    values = {name: of_runs for name, of_runs in values.items() if any(value != of_runs[0] for value in of_runs)}
    rows = [row([f"<code>{shown(name)}</code>", *map(_code, of_runs)]) for name, of_runs in values.items()]
    said = f"{len(rows)} of {len(names)} settings differ." if rows else "The runs have the same settings."
    shown_table = table("differing", ["setting", *labels], rows, words=True) if rows else ""
    return f'<h2 id="settings">Settings</h2><p class="soft">{said}</p>{shown_table}'


def _code(value: Any) -> str:
    return f"<code>{shown(value)}</code>"


def _commands(runs: Sequence[Run], labels: Sequence[str]) -> str:
    parts = (
        f"<h3>{shown(label)}</h3><pre>{shown(run.reproduce)}</pre>" for run, label in zip(runs, labels, strict=True)
    )
    return f'<h2 id="commands">Commands</h2>{"".join(parts)}'
