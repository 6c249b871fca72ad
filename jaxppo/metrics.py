"""The page docs/metrics.md, written from the table of metrics: `python -m jaxppo.metrics` prints it."""

from jaxppo.run.metrics import GROUPS, METRICS, Metric, prefix_of

_INTRODUCTION = """\
# Metrics

Every update of `python -m jaxppo.train` appends one line to `metrics.jsonl`: a JSON object with the metrics below.
Names are those of TRL 1.x where TRL has the metric; the last column gives TRL 0.11's name where it differs. All means
are over the real tokens or rows of the whole batch, over all devices; padding never counts, and under
`mask_truncated_completions` the tokens of a completion that was cut are padding to everything but scores, lengths,
`objective/entropy`, the KL to the reference and `policy/sampler_...`. Means over optimizer steps leave out the steps
that were not finite and those after an early stop.
A metric that does not apply to a run is absent; NaN and infinities are written as `null`.

This page is printed by `python -m jaxppo.metrics`.

"""


def markdown_page() -> str:
    """Return the page: an introduction and the tables."""
    return _INTRODUCTION + markdown_table()


def markdown_table() -> str:
    """Return all metrics as Markdown: one titled table per prefix."""
    return "\n".join(_group_table(prefix, title) for prefix, title in GROUPS.items())


def _group_table(prefix: str, title: str) -> str:
    heading = f"## {title}: `{prefix}/`" if prefix else f"## {title}"
    rows = [_row(metric) for metric in METRICS if prefix_of(metric.name) == prefix]
    head = "| metric | unit | meaning | healthy | TRL 0.11 |\n|---|---|---|---|---|\n"
    return f"{heading}\n\n{head}" + "".join(f"{row}\n" for row in rows)


def _row(metric: Metric) -> str:
    old_name = f"`{metric.old_name}`" if metric.old_name else ""
    return f"| `{metric.name}` | {metric.unit} | {metric.meaning} | {metric.healthy} | {old_name} |"


if __name__ == "__main__":
    print(markdown_page(), end="")
