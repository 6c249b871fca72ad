"""The rounds of self-training, one line each."""

from jaxppo.report.html import row, table
from jaxppo.report.line_charts import short
from jaxppo.report.run_data import Run, number

_COLUMNS = {
    "episode": "plans sampled so far",
    "self_train/valid": "valid",
    "self_train/solved": "problems solved",
    "self_train/distinct": "distinct plans",
    "self_train/kept": "kept",
    "self_train/start_rows": "rows of the start",
    "self_train/loss": "loss",
}
_SHARES = ("self_train/valid", "self_train/solved")


def section(run: Run) -> str:
    """Return the table of a run of `self_train`; nothing for others, and before the first round is done."""
    records = [record for record in run.records if "self_train/valid" in record]
    if not records:
        return ""
    splits = [name for name in run.metric_names if name.startswith("eval/") and name.endswith("/validity")]
    of_splits = [f"valid on {name.removeprefix('eval/').removesuffix('/validity')}" for name in splits]
    heads = ["round", *_COLUMNS.values(), *of_splits]
    shares = {*_SHARES, *splits}
    rows = [
        row([f"{record['step']}", *(_cell(record.get(name), name in shares) for name in (*_COLUMNS, *splits))])
        for record in records
    ]
    return f'<h2 id="rounds">Rounds</h2>{table("rounds-table", heads, rows)}'


def _cell(value: object, is_share: bool) -> str:
    known = number(value)
    if known is None:
        return "–"
    if is_share:
        return f"{known:.1%}"
    return f"{known:,.0f}" if known == int(known) else short(known)
