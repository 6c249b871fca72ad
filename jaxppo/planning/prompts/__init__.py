"""Prompt styles: how a problem becomes a prompt, and a plan becomes a completion and back.

In: texts of PDDL, actions, completions of models. Out: prompts, completions, parsed plans. A style is one file and one
row of `PROMPT_STYLES`.
"""

from collections.abc import Iterable
from dataclasses import replace

from jaxppo.errors import ConfigError
from jaxppo.planning.language.plans import Action, ParsedPlan
from jaxppo.planning.prompts.answers import plan_span
from jaxppo.planning.prompts.atoms import ATOMS
from jaxppo.planning.prompts.brief import BRIEF
from jaxppo.planning.prompts.nl import NL
from jaxppo.planning.prompts.pddl import PDDL
from jaxppo.planning.prompts.style import PromptStyle
from jaxppo.planning.prompts.words import PUNCTUATION, SPECIAL_WORDS, split_words, words_of

__all__ = [
    "PROMPT_STYLES",
    "PUNCTUATION",
    "SPECIAL_WORDS",
    "PromptStyle",
    "find_style",
    "parse_completion",
    "prompt_after",
    "render_completion",
    "render_prompt",
    "split_words",
    "vocabulary",
    "words_of",
]


PROMPT_STYLES: dict[str, PromptStyle] = {style.name: style for style in (ATOMS, BRIEF, PDDL, NL)}
"""Name to style."""


def render_prompt(domain_pddl: str, problem_pddl: str, style: str = "atoms") -> str:
    """Write a problem as a prompt, facts in the order of the problem's text.

    Args:
        domain_pddl: domain text.
        problem_pddl: problem text.
        style: one of `PROMPT_STYLES`.

    Raises:
        PddlError: a text cannot be read; `UnsupportedPddlError` where the style cannot write it.
    """
    return find_style(style).render_prompt(domain_pddl, problem_pddl)


def render_completion(
    actions: Iterable[Action], style: str = "atoms", domain_pddl: str = ""
) -> str:
    """Write a plan as the completion that a model should give, without an end-of-text token.

    Args:
        actions: the plan.
        style: one of `PROMPT_STYLES`.
        domain_pddl: domain text; `atoms` and `pddl` need none.

    Raises:
        DataError: style `nl`, and the domain has no such action.
    """
    return find_style(style).render_completion(actions, domain_pddl)


def parse_completion(text: str, style: str = "atoms", domain_pddl: str = "") -> ParsedPlan:
    """Read a completion strictly: the steps before the first error, and the error.

    Thinking before the plan, and prose around a single marked plan, are left out: see `plan_span`. The spans of what is
    read are places of the whole text.

    Args:
        text: what a model wrote; blanks between words do not matter.
        style: one of `PROMPT_STYLES`.
        domain_pddl: domain text; `atoms` and `pddl` need none.
    """
    # Marks are the same for all styles, so a style reads plans alone.
    start, end = plan_span(text)
    plan = find_style(style).parse_completion(text[start:end], domain_pddl)
    if start == 0:
        return plan
    # Places of the whole text, not of the part that was read.
    spans = []
    for span_start, span_end in plan.spans:
        spans.append((span_start + start, span_end + start))
    return replace(plan, spans=tuple(spans))


def prompt_after(earlier_prompt: str, prompt: str, style: str) -> str:
    """Return a prompt as it stands after another one: without its domain, where both have the same.

    Args:
        earlier_prompt: the earlier prompt.
        prompt: the later one.
        style: of both; one that is not of `PROMPT_STYLES`, or shows no domain, leaves the prompt as it is.
    """
    # Rows of other tools may have styles of their own, or none.
    mark = PROMPT_STYLES[style].problem_mark if style in PROMPT_STYLES else None
    if mark is None:
        return prompt
    domain, separator, problem = prompt.partition(mark)
    if not separator or not earlier_prompt.startswith(domain + mark):
        return prompt
    return mark.lstrip() + problem


def vocabulary(
    domain_pddls: Iterable[str], names: Iterable[str], style: str = "atoms"
) -> list[str]:
    """List the words that a word-level tokenizer needs for all problems of some domains.

    Args:
        domain_pddls: texts of the domains.
        names: the object names that problems may use.
        style: one of `PROMPT_STYLES`.

    Returns:
        The words, sorted, each once. Numbers are not among them: see `words_of` for the words of given texts.
    """
    return sorted(find_style(style).vocabulary(domain_pddls, names))


def find_style(name: str) -> PromptStyle:
    """Return a style of `PROMPT_STYLES`; a `ConfigError` names them where it is none."""
    if name not in PROMPT_STYLES:
        raise ConfigError(f"prompt_style: expected one of {', '.join(PROMPT_STYLES)}, got '{name}'")
    return PROMPT_STYLES[name]
