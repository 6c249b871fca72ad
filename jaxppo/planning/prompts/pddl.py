"""Style `pddl`: domain and problem as PDDL, whatever it uses; the plan as one `(action args)` a line."""

from collections.abc import Iterable
from functools import lru_cache

from jaxppo.planning.language.plans import Action, ParsedPlan, format_action, parse_plan_text
from jaxppo.planning.language.sexpr import Node, read_form, write_node
from jaxppo.planning.prompts.style import PromptStyle
from jaxppo.planning.prompts.words import SPECIAL_WORDS, split_words

_PROBLEM_MARK = "\n\nProblem:\n"
_REQUEST = "Plan, one action a line:"
_FRAME = "Planning domain:\n{domain}" + _PROBLEM_MARK + "{problem}\n\n" + _REQUEST + "\n"
# Problems of a split are told apart by their names, which a model has no use for.
_PROBLEM_NAME = "task"
# Every word that a problem has besides those of its domain and its names.
_PROBLEM = f"(define (problem {_PROBLEM_NAME}) (:domain) (:objects -) (:init) (:goal (and (not))))"


def render_prompt(domain_pddl: str, problem_pddl: str) -> str:
    """Write domain and problem in lower case, without comments, one section a line; every problem is called `task`.

    Raises:
        PddlError: a text is not PDDL.
    """
    # What comes after `define` and the name.
    sections = read_form(problem_pddl, "<problem>")[2:]
    return _FRAME.format(
        domain=_domain_text(domain_pddl),
        problem=_definition(f"(problem {_PROBLEM_NAME})", sections),
    )


# A data set has few domains and many problems.
@lru_cache(maxsize=256)
def _domain_text(domain_pddl: str) -> str:
    head, *sections = read_form(domain_pddl, "<domain>")[1:]
    return _definition(write_node(head), sections)


def _definition(head: str, sections: Iterable[Node]) -> str:
    lines = [f"(define {head}"]
    for section in sections:
        lines.append(f"  {write_node(section)}")
    return "\n".join(lines) + ")"


def render_completion(actions: Iterable[Action], _domain_pddl: str) -> str:
    """Write one `(action args)` a line."""
    return "\n".join(map(format_action, actions))


def parse_completion(text: str, _domain_pddl: str) -> ParsedPlan:
    """Read PDDL steps, see `parse_plan_text`."""
    return parse_plan_text(text)


def vocabulary(domain_pddls: Iterable[str], names: Iterable[str]) -> set[str]:
    """Collect the words of the domains and of problems that have these names; numbers are not among them."""
    texts = [_FRAME, _PROBLEM, *map(_domain_text, domain_pddls)]
    return {*SPECIAL_WORDS, *names}.union(*map(split_words, texts))


PDDL = PromptStyle(
    name="pddl",
    render_prompt=render_prompt,
    render_completion=render_completion,
    parse_completion=parse_completion,
    vocabulary=vocabulary,
    problem_mark=_PROBLEM_MARK,
)
