"""What the terminal shows of answers from files."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.evaluate.answers.results import cells_of
from jaxppo.evaluate.plan_metrics import cell_texts
from jaxppo.run.console import Console, sanitize

_MAX_LINES = 20
_COLUMNS = (
    "domain",
    "model",
    "prompt",
    "n",
    "valid",
    "exec",
    "read",
    "prefix",
    "length",
    "most fail by",
)


def print_answers(console: Console, content: Mapping[str, Any]) -> None:
    """Print the tables, the differences from the record, and a line for each thing that could not be used."""
    console.result_table("Valid plans", [_row(*cell) for cell in cells_of(content)], _COLUMNS, 3)
    rules = [{"rule": rule, **counts} for rule, counts in content["extraction"]["rules"].items()]
    title = (
        f"Answers by the rule that cuts the plan out (judged here: {content['extraction']['rule']})"
    )
    console.result_table(title, rules, ("rule", "readable", "valid", "saved"))
    _print_recorded(console, content["recorded"])
    val = content["val"]
    if val["asked"]:
        console.result(f"VAL, asked about {val['asked']} answers, agrees on {val['equal']}")
        differences = val["differences"]
        _print_lines(
            console,
            [f"{line['source']}: {line['verdict']}, VAL: {line['val']}" for line in differences],
        )
    answers = content["answers"]
    console.result(
        f"{answers['judged']} answers judged, {answers['not_judged']} files or answers not"
    )
    _print_lines(console, [f"{line['source']}: {line['reason']}" for line in content["not_judged"]])
    for model, names in content["without_plan"].items():
        if names:
            line = f"problems of the folder without a plan of {model}: {', '.join(names)}"
            console.result(sanitize(line, 300))


def _row(
    domain: str,
    model: str,
    prompt: str,
    cell: Mapping[str, Any],
) -> dict[str, str]:
    # The table names what most plans of a row fail by; all reasons are in `eval.json`.
    failures = {name: count for name, count in cell["errors"].items() if name != "valid" and count}
    failure = "-"
    if failures:
        commonest = max(failures, key=lambda name: failures[name])
        failure = f"{commonest.replace('_', ' ')} ({failures[commonest]})"
    return {
        "domain": domain,
        "model": model,
        "prompt": prompt,
        "n": str(cell["answers"]),
        "most fail by": failure,
        **cell_texts(cell),
    }


def _print_recorded(console: Console, recorded: Mapping[str, Any]) -> None:
    if not recorded["compared"]:
        return
    different = recorded["disagreements"]
    rows = []
    for counts in recorded["table"]:
        rows.append({name: str(value) for name, value in counts.items()})
    console.result_table("Correct as recorded and as judged here", rows, tuple(rows[0]), 4)
    console.result(
        f"\nrecorded verdicts: {recorded['equal']} of {recorded['compared']} are the same"
    )
    for reason, count in recorded["reasons"].items():
        if count:
            console.result(f"  {count} {reason}")
    # Without VAL a difference that nothing else explains stays open.
    if different and not recorded["val"]:
        console.warn("VAL is not installed: it cannot be asked which of two verdicts is right")
    lines = []
    for case in different:
        record = "valid" if case["recorded"] else "invalid"
        lines.append(
            f"{case['source']}: recorded {record}, here {case['verdict']}: {case['reason']}"
        )
    _print_lines(console, lines)


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print the first lines, and how many more there are."""
    for line in lines[:_MAX_LINES]:
        # Sources and reasons are from others' files: no
        # control characters, and no line without an end.
        console.result(f"  {sanitize(line, 300)}")
    if len(lines) > _MAX_LINES:
        console.result(f"  and {len(lines) - _MAX_LINES} more, in eval.json")
