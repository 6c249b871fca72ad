"""Steps of a plan as English sentences, `stack block a on block b.`, and back.

A sentence is a step where its words are those of an action's phrase, one by one, with a name for each argument. Phrases
of two actions differ in length or in a word, so that no sentence means two steps, whatever the names are.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from string import Formatter

from jaxppo.errors import DataError
from jaxppo.planning.language.parse import parse_domain
from jaxppo.planning.language.plans import (
    NAME_PATTERN,
    Action,
    ParsedPlan,
    Span,
    rest_of_line,
    trimmed,
)
from jaxppo.planning.prompts.phrases import phrases_of
from jaxppo.planning.prompts.words import split_words

_WORDS = re.compile(rf"(?:{NAME_PATTERN}|[,. \t\r\n])*+")
_BLANK = " \t\r\n"


def render_completion(actions: Iterable[Action], domain_pddl: str) -> str:
    """Write one sentence a line.

    Raises:
        DataError: the domain has no such action.
    """
    domain = parse_domain(domain_pddl)
    phrases = phrases_of(domain).actions
    lines = []
    for name, *arguments in actions:
        is_known = name in phrases and len(arguments) == len(domain.actions[name].parameters)
        if not is_known:
            message = f"expected actions of the domain {domain.name}, got '{name}' of {len(arguments)} argument(s)"
            raise DataError(f"plan: {message}")
        lines.append(f"{phrases[name].format(*arguments)}.")
    return "\n".join(lines)


def parse_completion(text: str, domain_pddl: str) -> ParsedPlan:
    """Read sentences; blanks and case do not matter, and every other difference is an error."""
    patterns = _patterns_of(domain_pddl)
    # No sentence has other characters, so what comes after the first of them is not read.
    readable = text[: _WORDS.match(text).end()]  # pyright: ignore[reportOptionalMemberAccess] # it matches everywhere
    *sentences, remainder = readable.lower().split(".")
    actions: list[Action] = []
    spans: list[Span] = []
    position = 0
    # `lower` keeps the length of readable characters, which
    # are ASCII, so places in it are places in the text.
    for sentence in sentences:
        end = position + len(sentence) + 1  # after the full stop
        spans.append(trimmed(text, position, end))
        position = end
        words = sentence.replace(",", " , ").split()
        action = _read_sentence(words, patterns)
        if action is None:
            return ParsedPlan.unreadable(actions, spans)
        actions.append(action)
    # Every sentence ends with a full stop: words after the last one are a step that cannot be read.
    if remainder.strip(_BLANK) or len(readable) < len(text):
        spans.append(rest_of_line(text, position))
        return ParsedPlan.unreadable(actions, spans)
    return ParsedPlan(tuple(actions), spans=tuple(spans))


def _read_sentence(words: Sequence[str], patterns: Mapping[str, re.Pattern[str]]) -> Action | None:
    sentence = " ".join(words)
    for name, pattern in patterns.items():
        if match := pattern.fullmatch(sentence):
            # A phrase may name its arguments in another order than the action: `put {1} into {0}`.
            arguments = match.groupdict()
            return (name, *[arguments[f"_{place}"] for place in range(len(arguments))])
    return None


@lru_cache(maxsize=256)
def _patterns_of(domain_pddl: str) -> dict[str, re.Pattern[str]]:
    """Make the pattern of each action's sentence, whose words, commas among them, have one blank between them."""
    patterns: dict[str, re.Pattern[str]] = {}
    for name, phrase in phrases_of(parse_domain(domain_pddl)).actions.items():
        words: list[str] = []
        for text, argument, _, _ in Formatter().parse(phrase):
            words += map(re.escape, split_words(text))
            if argument is not None:
                words.append(f"(?P<_{argument}>[^ ,]+)")
        patterns[name] = re.compile(" ".join(words))
    return patterns
