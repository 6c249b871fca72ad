"""Style `atoms`: the problem's facts and goals as words, `on b a ; ontable a`; the domain is not shown."""

import re
from collections.abc import Iterable

from jaxppo.planning.language.parse import Literal, Problem, parse_domain, parse_problem
from jaxppo.planning.language.plans import NAME_PATTERN, Action, ParsedPlan, Span, trimmed
from jaxppo.planning.language.scope import UnsupportedPddlError
from jaxppo.planning.language.task import compares_numbers
from jaxppo.planning.prompts.style import PromptStyle
from jaxppo.planning.prompts.words import SPECIAL_WORDS

# Blanks of ASCII alone, as in PDDL.
_SPACE = r"[ \t\r\n]"
_STEP = re.compile(rf"{_SPACE}*+{NAME_PATTERN}(?:{_SPACE}++{NAME_PATTERN})*+{_SPACE}*+")
_BLANK = re.compile(rf"{_SPACE}*+")
_WORDS = (*SPECIAL_WORDS, "<init>", "<goal>", "<plan>", ";", "not")


def render_prompt(domain_pddl: str, problem_pddl: str) -> str:
    """Write `<init> on b a ; ontable a <goal> on a b <plan>`.

    Raises:
        UnsupportedPddlError: the goal is more than a conjunction of literals, or numbers have a say in what is valid.
    """
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    require_facts_alone(problem)
    init = " ; ".join(map(" ".join, problem.init_order))
    goal = " ; ".join(map(_literal_words, problem.goal))
    parts = ["<init>", init, "<goal>", goal, "<plan>"]
    # An empty part must not leave two blanks.
    return " ".join(part for part in parts if part)


def require_facts_alone(problem: Problem) -> None:
    """Raise an `UnsupportedPddlError` for a problem whose plans depend on numbers."""
    if compares_numbers(problem):
        raise UnsupportedPddlError(
            f"problem {problem.name}",
            1,
            "expected conditions without numbers, which the styles of facts as words cannot write, got a comparison",
        )


def _literal_words(literal: Literal) -> str:
    words = " ".join(literal.atom)
    return words if literal.positive else f"not {words}"


def render_completion(actions: Iterable[Action], _domain_pddl: str) -> str:
    """Write `unstack b a ; stack a b`."""
    return " ; ".join(map(" ".join, actions))


def parse_completion(text: str, _domain_pddl: str) -> ParsedPlan:
    """Read steps with `;` between them."""
    # No steps are the plan of a problem whose goal holds at
    # the start; `;` alone is an empty step, which is an error.
    if _BLANK.fullmatch(text):
        return ParsedPlan(())
    actions: list[Action] = []
    spans: list[Span] = []
    position = 0
    for step in text.split(";"):
        end = position + len(step)
        if _BLANK.fullmatch(step):
            # An empty step is to be blamed on the `;` after it.
            semicolon_end = min(end + 1, len(text))
            spans.append((end, semicolon_end))
        else:
            spans.append(trimmed(text, position, end))
        position = end + 1
        if not _STEP.fullmatch(step):
            return ParsedPlan.unreadable(actions, spans)
        actions.append(tuple(step.lower().split()))
    return ParsedPlan(tuple(actions), spans=tuple(spans))


def vocabulary(domain_pddls: Iterable[str], names: Iterable[str]) -> set[str]:
    """Collect predicates, actions, names and what stands between them."""
    # The domain is not shown, so its types and variables are in no prompt.
    words = {*_WORDS, *names}
    for domain in map(parse_domain, domain_pddls):
        words.update(domain.predicates, domain.actions, domain.constants)
    return words


ATOMS = PromptStyle(
    name="atoms",
    render_prompt=render_prompt,
    render_completion=render_completion,
    parse_completion=parse_completion,
    vocabulary=vocabulary,
    gap=" ",
)
