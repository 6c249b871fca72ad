"""What the terminal shows of answers from files."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxppo.evaluate.answers.results import cells_of
from jaxppo.evaluate.intervals import interval_text
from jaxppo.run.console import Console, sanitize

_MOST_LINES = 20
_COLUMNS = ("domain", "model", "prompt", "n", "valid", "exec", "read", "prefix", "length", "most fail by")


def print_answers(console: Console, content: Mapping[str, Any]) -> None:
    """Print the tables, the differences from the record, and a line for each thing that could not be used."""
    console.result_table("Valid plans", [_row(*cell) for cell in cells_of(content)], _COLUMNS, 3)
    rules = [{"rule": rule, **counts} for rule, counts in content["extraction"]["rules"].items()]
    title = f"Answers by the rule that cuts the plan out (judged here: {content['extraction']['rule']})"
    console.result_table(title, rules, ("rule", "readable", "valid", "saved"))
    _print_recorded(console, content["recorded"])
    if content["extracted"]["compared"]:
        alike = content["extracted"]
        console.result(f"read as extracted_llm_plan has it: {alike['equal']} of {alike['compared']}")
    if content["val"]["asked"]:
        console.result(f"VAL, asked about {content['val']['asked']} answers, agrees on {content['val']['equal']}")
        differences = content["val"]["differences"]
        _print_lines(console, (f"{one['source']}: {one['verdict']}, VAL: {one['val']}" for one in differences))
    long = "characters are not looked at, and count as no plan"
    _print_lines(console, (f"{one['source']}: {one['characters']} {long}" for one in content["too_long"]))
    answers = content["answers"]
    console.result(f"{answers['judged']} answers judged, {answers['not_judged']} files or answers not")
    _print_lines(console, (f"{one['source']}: {one['reason']}" for one in content["not_judged"]))


def _row(domain: str, model: str, prompt: str, cell: Mapping[str, Any]) -> dict[str, str]:
    failures = {name: count for name, count in cell["errors"].items() if name != "valid" and count}
    worst = max(failures, key=lambda name: failures[name], default="")
    return {
        "domain": domain,
        "model": model,
        "prompt": prompt,
        "n": str(cell["answers"]),
        "valid": interval_text(cell["validity"]),
        "exec": interval_text(cell["executability"], with_interval=False),
        "read": interval_text(cell["readable"], with_interval=False),
        "prefix": interval_text(cell["prefix"], with_interval=False),
        "length": interval_text(cell["length_ratio"], with_interval=False),
        "most fail by": f"{worst.replace('_', ' ')} ({failures[worst]})" if worst else "-",
    }


def _print_recorded(console: Console, recorded: Mapping[str, Any]) -> None:
    if not recorded["compared"]:
        return
    different = recorded["disagreements"]
    rows = [{name: str(value) for name, value in row.items()} for row in recorded["table"]]
    console.result_table("Correct as recorded and as judged here", rows, tuple(rows[0]), 4)
    console.result(f"\nrecorded verdicts: {recorded['equal']} of {recorded['compared']} are the same")
    for reason, count in recorded["reasons"].items():
        if count:
            console.result(f"  {count} {reason}")
    if different and not recorded["val"]:
        console.warn("VAL is not installed: it cannot be asked which of two verdicts is right")
    told = (
        f"{one['source']}: recorded {'valid' if one['recorded'] else 'invalid'}, here {one['verdict']}: {one['reason']}"
        for one in different
    )
    _print_lines(console, told)


def _print_lines(console: Console, lines: Iterator[str]) -> None:
    """Print the first lines, and how many more there are."""
    every = list(lines)
    for line in every[:_MOST_LINES]:
        console.result(f"  {sanitize(line, 300)}")
    if len(every) > _MOST_LINES:
        console.result(f"  and {len(every) - _MOST_LINES} more, in eval.json")
