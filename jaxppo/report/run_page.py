"""Write the report of a run, `report.html`: results, curves, samples over time, settings, commands."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from jaxppo.parallel import processes
from jaxppo.report import html as html_page
from jaxppo.report import plan_sections, rounds
from jaxppo.report.checks import Concern, concerns
from jaxppo.report.curves import Curves, Line, marked, panels
from jaxppo.report.html import row, shown, table
from jaxppo.report.line_charts import Part, short, stacked_bars
from jaxppo.report.run_data import MEASURES, RATES, SAMPLES_FILE, Run, number, plain_number, read_run
from jaxppo.report.samples import Samples, read_samples
from jaxppo.run.console import Console

REPORT_FILE = "report.html"
"""Name of the report in a run folder."""

_MOST_OUTCOME_BARS = 12
_OF_PLANS = {"rows", "errors", "domains", "bins", "pass_at_k", "quality_optimal"}  # that measures of plans have


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
    samples = read_samples(run.folder / SAMPLES_FILE)
    html_page.write_page(path, f"{run.name}: {run.method}", _parts(run, samples), "run_page")
    return path


def _parts(run: Run, samples: Samples) -> list[str]:
    curves = Curves([Line(run.name, [run])])
    sections = {
        "results": _results(run),
        "rounds": rounds.section(run),
        "curves": curves.section(),
        "reward": _reward(run, samples),
        "samples": _samples(run, samples),
        "time": _times(run),
        "settings": _settings(run),
        "commands": _commands(run),
    }
    links = "".join(f'<a href="#{name}">{name.capitalize()}</a>' for name, html in sections.items() if html)
    return [
        f"<h1>{shown(run.name)}</h1>",
        f'<p class="soft">{shown(_status(run))}</p>',
        f'<nav aria-label="Sections">{links}</nav>',
        _headline(run),
        _concerns(run, concerns(run)),
        *sections.values(),
        curves.island(),
        html_page.data("samples-data", samples.updates),
    ]


# ------------------------------------------------------------------------------------------------------------- results


def _status(run: Run) -> str:
    planned = run.planned_updates
    if run.after:
        state = f"finished after {run.updates} {run.unit}"
    else:
        state = f"not finished: {run.updates}{'' if planned is None else f' of {planned}'} {run.unit}"
    trained_on = run.settings.get("dataset") or "its own data"
    return f"{run.method} on {trained_on} · {state} · seed {run.settings.get('seed')} · {run.folder}"


def _headline(run: Run) -> str:
    """Return a card for every split with its result before and after; without an evaluation one of the reward."""
    splits = list(run.after or run.before)
    splits.sort(key=lambda split: split != run.headline_split)
    cards = [card for split in splits[:4] if (card := _card(run, split))]
    if not cards:
        cards = [card for name in ("objective/scores", "loss") if (card := _curve_card(run, name))]
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _card(run: Run, split: str) -> str:
    measure = next((name for name in MEASURES if (run.after or run.before)[split].get(name) is not None), None)
    if measure is None:
        return ""
    moments, results = _before_and_after(run, split, measure)
    values = '<span class="arrow">→</span>'.join(f"<span>{value_html(value)}</span>" for value in results)
    kind = "card main" if split == run.headline_split else "card"
    what = f"{MEASURES[measure]} on {split}, {moments}"
    return f'<div class="{kind}"><p class="soft">{shown(what)}</p><p class="big">{values}</p>{_gain(results)}</div>'


def _before_and_after(run: Run, split: str, measure: str) -> tuple[str, list[Any]]:
    """Return in words when the split was measured, and the results: before, and after or in the last evaluation."""
    before, after = (results.get(split, {}).get(measure) for results in (run.before, run.after))
    if run.after:
        return ("after training", [after]) if before is None else ("before and after training", [before, after])
    logged = "mean_reward" if measure == "reward" else measure
    during = [(step, value) for step, value in run.curve(f"eval/{split}/{logged}") if value is not None]
    if not during:
        return "before training", [before]
    step, value = during[-1]
    name = "rate" if measure in RATES else "mean" if measure == "reward" else None
    last = value if name is None else {name: value, "low": None, "high": None}
    return f"before training and at update {step:.0f}", [before, last]


def _curve_card(run: Run, name: str) -> str:
    known = [value for value in run.values(name) if value is not None]
    if not known:
        return ""
    part = max(1, len(known) // 10)
    first, last = fmean(known[:part]), fmean(known[-part:])
    return (
        f'<div class="card main"><p class="soft"><code>{name}</code>, first and last tenth of the updates</p>'
        f'<p class="big"><span>{short(first)}</span><span class="arrow">→</span><span>{short(last)}</span></p></div>'
    )


def _gain(results: Sequence[Any]) -> str:
    if len(results) < 2:
        return ""
    is_rate = isinstance(results[0], dict) and "rate" in results[0]
    before, after = map(plain_number, results)
    if before is None or after is None:
        return ""
    text = f"{100 * (after - before):+.1f} points" if is_rate else f"{after - before:+.3f}"
    count = f" · n = {results[1]['n']}, 95 % intervals" if isinstance(results[1], dict) and "n" in results[1] else ""
    return f'<p class="soft">{text}{count}</p>'


def value_html(value: Any) -> str:
    """Return the HTML of a measured value: a rate or mean with its interval, or a number."""
    if isinstance(value, dict):
        return plan_sections.measured(value)
    return short(value) if isinstance(value, int | float) else "–"


def _results(run: Run) -> str:
    """Return the results of the evaluations; for plans with outcomes and validity by length."""
    models = [(moment, of) for moment, of in (("before", run.before), ("after", run.after)) if of]
    if not models:
        return ""
    cells = [cell for _, of in models for cell in of.values()]
    if not all(cell.keys() >= _OF_PLANS for cell in cells):
        return f'<h2 id="results">Results</h2>{_plain_results(models)}'
    lengths = plan_sections.validity_charts(models)
    return f'<div id="results">{plan_sections.summary(models)}{lengths}{plan_sections.outcome_bars(models)}</div>'


def _plain_results(models: plan_sections.Models) -> str:
    """Return the table of results that are not of plans, or that an older version wrote."""
    cells = [cell for _, of in models for cell in of.values()]
    names = [name for name in MEASURES if any(cell.get(name) is not None for cell in cells)]
    if "reward" in names:  # has the mean, and its interval
        names = [name for name in names if name != "mean_reward"]
    rows = [
        row([shown(split), moment, *(value_html(cell.get(name)) for name in names)])
        for moment, of in models
        for split, cell in of.items()
    ]
    return table("summary", ["split", "moment", *(MEASURES[name] for name in names)], rows)


def _concerns(run: Run, found: Sequence[Concern]) -> str:
    if not run.records:
        return ""
    if not found:
        return '<p class="fine">Nothing looks wrong in the curves: see the healthy range of each below.</p>'
    items = "".join(f"<li><b>{marked(one.what)}</b> {marked(one.advice)}</li>" for one in found)
    return f'<section class="warning" aria-label="Warnings"><h2>Worth a look</h2><ul>{items}</ul></section>'


# ------------------------------------------------------------------------------------------------- reward and samples


def _reward(run: Run, samples: Samples) -> str:
    """Return each reward function and its parts, at first and at last, and outcomes of the logged samples."""
    wanted = [panel for panel in panels([run]) if panel.prefix in ("reward", "rewards")]
    rows = [row(_part_cells(run, name)) for panel in wanted for name in panel.names]
    if not rows and not samples.outcomes:
        return ""
    heads = ["part", "first tenth", "last tenth", "change", "lowest", "highest"]
    parts = table("reward-parts", heads, rows) if rows else ""
    return f'<h2 id="reward">Reward, part by part</h2>{parts}{_outcomes(samples)}'


def _part_cells(run: Run, name: str) -> list[str]:
    known = [value for value in run.values(name) if value is not None]
    if not known:
        return [f"<code>{shown(name)}</code>", *["–"] * 5]
    tenth = max(1, len(known) // 10)
    first, last = fmean(known[:tenth]), fmean(known[-tenth:])
    change = f"{'+' if last > first else ''}{short(last - first)}"
    return [f"<code>{shown(name)}</code>", *map(short, (first, last)), change, short(min(known)), short(max(known))]


def _outcomes(samples: Samples) -> str:
    """Draw a bar of verdicts for some of the updates whose samples are logged."""
    steps = list(samples.outcomes)
    if not steps:
        return ""
    if len(steps) > _MOST_OUTCOME_BARS:
        last = _MOST_OUTCOME_BARS - 1
        steps = [steps[round(i * (len(steps) - 1) / last)] for i in range(_MOST_OUTCOME_BARS)]
    bars = plan_sections.labelled_outcomes({f"update {step}": samples.outcomes[step] for step in steps})
    return f"<h3>Verdicts of the logged samples</h3>{bars}"


def _samples(run: Run, samples: Samples) -> str:
    if not samples.shown:
        return ""
    left_out = ""
    if samples.shown < samples.total:
        left_out = (
            f"{samples.shown} of {samples.total} logged samples of {len(samples.updates)} of "
            f"{samples.total_updates} updates are on this page; all are in {run.folder / SAMPLES_FILE}."
        )
    return f"""<h2 id="samples">Samples over time</h2>
<p class="soft">{shown(left_out)}</p>
<noscript><p>Moving through the samples needs the page's script.</p></noscript>
<div id="explorer" hidden>
<div class="controls">
<label class="wide-control">Prompt <select id="prompt"></select></label>
<label class="wide-control" id="time">Update <input id="update" type="range" min="0" step="1" value="0"></label>
<button id="earlier" type="button" aria-label="Earlier update">←</button>
<span id="position" aria-live="polite"></span>
<button id="later" type="button" aria-label="Later update">→</button>
</div>
<ol id="cards"></ol>
</div>"""


# ------------------------------------------------------------------------------------------------- time and settings

_STAGES = {
    "time/rollout_s": ("sampling", 0),
    "time/reward_s": ("reward, while devices score", 2),  # less what is drawn as the devices' work, or their waiting
    "time/reward_wait_s": ("waiting for the reward", 1),
    "time/update_s": ("learning", 3),
    "time/eval_s": ("evaluation", 1),
    "time/step_s": ("step", 0),
}


def _times(run: Run) -> str:
    """Draw stacked bars of the stages of an update, and a table of their totals."""
    seconds = {
        name: [number(record.get(name)) or 0.0 for record in run.records]
        for name in _STAGES
        if name in run.metric_names
    }
    if not seconds:
        return ""
    for name in ("time/reward_wait_s", "time/overlap_s"):
        if "time/reward_s" in seconds and name in run.metric_names:
            drawn = [number(record.get(name)) or 0.0 for record in run.records]
            pairs = zip(seconds["time/reward_s"], drawn, strict=True)
            seconds["time/reward_s"] = [max(0.0, reward - other) for reward, other in pairs]
    parts = [Part(_STAGES[name][0], values, _STAGES[name][1]) for name, values in seconds.items()]
    steps = [float(record["step"]) for record in run.records]
    chart = stacked_bars("seconds of every update, by stage", steps, parts, "s")
    note = f"{chart.beyond} higher bars are cut at the top. " if chart.beyond else ""
    legend = "".join(f'<li><span class="swatch c{part.colour}"></span>{part.label}</li>' for part in parts)
    return (
        f'<h2 id="time">Time</h2><div class="pair"><figure><figcaption>Seconds of an update</figcaption>{chart.svg}'
        f'<ul class="legend">{legend}</ul><p class="soft">{note}</p></figure><div>{_time_table(run, parts)}</div></div>'
    )


def _time_table(run: Run, parts: Sequence[Part]) -> str:
    total = sum(sum(part.values) for part in parts)
    rows = [
        row([part.label, duration(sum(part.values)), f"{sum(part.values) / (total or 1.0):.0%}", _usual(part.values)])
        for part in parts
    ]
    rows.append(row(["all updates", duration(total), "", ""], "total"))
    compiled = [value for value in run.values("compile/s") if value is not None]
    if compiled:
        programs = sum(value or 0.0 for value in run.values("compile/count"))
        rows.append(row([f"compiling {programs:.0f} programs, within the above", duration(sum(compiled)), "", ""]))
    for name, words in {"throughput/samples_per_s": "completions per second", "memory/peak_mib": "MiB at most"}.items():
        known = [value for value in run.values(name) if value is not None]
        if known:
            best = max(known) if name.startswith("memory") else sorted(known)[len(known) // 2]
            rows.append(row([words, f"{best:,.1f}", "", ""]))
    return table("stages", ["stage", "in all", "share", "median"], rows)


def _usual(values: Sequence[float]) -> str:
    return f"{short(sorted(values)[len(values) // 2])} s"


def duration(seconds: float) -> str:
    """Write a duration: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{short(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _settings(run: Run) -> str:
    changed = run.changed
    heads = ["setting", "value", f"without flags: python -m jaxppo.{run.command}"]
    rows = {name: _setting(run, name, name in changed) for name in run.settings}
    differing = table("changed", heads, [rows[name] for name in changed], words=True) if changed else ""
    said = f"{len(changed)} of {len(rows)} settings differ from those of the command without flags."
    return (
        f'<h2 id="settings">Settings</h2><p class="soft">{said}</p>{differing}<details class="group"><summary>All '
        f"{len(rows)} settings</summary>{table('settings-all', heads, rows.values(), words=True)}</details>"
    )


def _setting(run: Run, name: str, is_changed: bool) -> str:
    default = shown(run.defaults.get(name, "–")) if is_changed else "the same"
    mark = " ●" if is_changed else ""
    return row([f"<code>{shown(name)}</code>{mark}", f"<code>{shown(run.settings[name])}</code>", default])


def _commands(run: Run) -> str:
    commands = {"The command that began it": run.command_line, "To repeat it from its settings": run.reproduce}
    commands["To go on with it" if not run.after else "Finished: to resume changes nothing"] = run.resume
    commands["To write this page again"] = run.report
    parts = (f"<h3>{what}</h3><pre>{_literal(text)}</pre>" for what, text in commands.items() if text)
    return f'<h2 id="commands">Commands</h2>{"".join(parts)}'


def _literal(text: str) -> str:
    return "\n".join(shown(line) for line in text.splitlines())
