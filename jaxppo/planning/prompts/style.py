"""What a prompt style is: its functions and what they need."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from jaxppo.planning.language.plans import Action, ParsedPlan


class PromptStyle(NamedTuple):
    """How a problem becomes a prompt, and a plan becomes a completion and back.

    Attributes:
        name: what settings and rows call it.
        render_prompt: writes the texts of a domain and a problem as a prompt.
        render_completion: writes a plan, given the domain text.
        parse_completion: reads a plan strictly, given the domain text.
        vocabulary: lists the words for domain texts and object names, beside numbers.
        reads_domain: whether plans are read with the operators of the domain, which must be parsed for that.
        problem_mark: what stands in a prompt between the domain and the problem, the first words of the problem with
            it; None where prompts do not show the domain.
        gap: what stands between a prompt and its completion where both are one text.
    """

    name: str
    render_prompt: Callable[[str, str], str]
    render_completion: Callable[[Iterable[Action], str], str]
    parse_completion: Callable[[str, str], ParsedPlan]
    vocabulary: Callable[[Iterable[str], Iterable[str]], set[str]]
    reads_domain: bool = False
    problem_mark: str | None = None
    gap: str = ""
