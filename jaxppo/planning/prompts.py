"""Prompt styles: how a problem becomes a prompt, and a plan becomes a completion and back."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from jaxppo.errors import ConfigError
from jaxppo.planning.pddl import Domain, Literal, Problem
from jaxppo.planning.plans import NAME_PATTERN, Action, ParsedPlan
from jaxppo.planning.scope import UnsupportedPddlError
from jaxppo.planning.task import compares_numbers
from jaxppo.planning.verdicts import PlanError

_SPACE = r"[ \t\r\n]"
_ATOMS_STEP = re.compile(rf"{_SPACE}*+{NAME_PATTERN}(?:{_SPACE}++{NAME_PATTERN})*+{_SPACE}*+")
_BLANK = re.compile(rf"{_SPACE}*+")
_SPECIAL_WORDS = ("<pad>", "<eos>", "<init>", "<goal>", "<plan>", ";", "not")


class PromptStyle(NamedTuple):
    """The four functions that make a style."""

    render_prompt: Callable[[Problem], str]
    render_completion: Callable[[Iterable[Action]], str]
    parse_completion: Callable[[str], ParsedPlan]
    vocabulary: Callable[[Iterable[Domain], Iterable[str]], list[str]]


def render_prompt(problem: Problem, style: str = "atoms") -> str:
    """Write a problem as a prompt, atoms in the order of the problem's text."""
    return _style(style).render_prompt(problem)


def render_completion(actions: Iterable[Action], style: str = "atoms") -> str:
    """Write a plan as the completion that a model should give, without an end-of-text token."""
    return _style(style).render_completion(actions)


def parse_completion(text: str, style: str = "atoms") -> ParsedPlan:
    """Read a completion strictly: the steps before the first error, and the error."""
    return _style(style).parse_completion(text)


def vocabulary(domains: Iterable[Domain], names: Iterable[str], style: str = "atoms") -> list[str]:
    """List the words that a word-level tokenizer needs.

    Args:
        domains: the domains whose predicates and actions appear.
        names: the object names that problems may use.
        style: the prompt style.

    Returns:
        The words, sorted, each once.
    """
    return _style(style).vocabulary(domains, names)


def _style(name: str) -> PromptStyle:
    if name not in PROMPT_STYLES:
        raise ConfigError(f"prompt_style: expected one of {', '.join(PROMPT_STYLES)}, got '{name}'")
    return PROMPT_STYLES[name]


def _atoms_prompt(problem: Problem) -> str:
    """`<init> on b a ; ontable a <goal> on a b <plan>`.

    Raises:
        UnsupportedPddlError: the goal is more than a conjunction of literals, or numbers have a say in what is valid.
    """
    if compares_numbers(problem):
        message = "expected conditions without numbers, which the style 'atoms' cannot write, got a comparison"
        raise UnsupportedPddlError(f"problem {problem.name}", 1, message)
    init = " ; ".join(" ".join(atom) for atom in problem.init_order)
    goal = " ; ".join(map(_literal_words, problem.goal))
    return " ".join(part for part in ("<init>", init, "<goal>", goal, "<plan>") if part)


def _literal_words(literal: Literal) -> str:
    return " ".join(literal.atom if literal.positive else ("not", *literal.atom))


def _atoms_completion(actions: Iterable[Action]) -> str:
    """`unstack b a ; stack a b`."""
    return " ; ".join(map(" ".join, actions))


def _parse_atoms_completion(text: str) -> ParsedPlan:
    if _BLANK.fullmatch(text):
        return ParsedPlan(())
    actions: list[Action] = []
    for step in text.split(";"):
        if not _ATOMS_STEP.fullmatch(step):
            return ParsedPlan(tuple(actions), PlanError.SYNTAX, len(actions) + 1)
        actions.append(tuple(step.lower().split()))
    return ParsedPlan(tuple(actions))


def _atoms_vocabulary(domains: Iterable[Domain], names: Iterable[str]) -> list[str]:
    words = {*_SPECIAL_WORDS, *names}
    for domain in domains:
        words.update(domain.predicates, domain.actions, domain.constants)
    return sorted(words)


PROMPT_STYLES = {"atoms": PromptStyle(_atoms_prompt, _atoms_completion, _parse_atoms_completion, _atoms_vocabulary)}
