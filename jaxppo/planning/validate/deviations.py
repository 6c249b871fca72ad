"""Plans that are judged here and that VAL says nothing about, for a reason that `docs/validator.md` lists.

An audit counts them by themselves: that VAL cannot read a file is no disagreement about a plan.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from jaxppo.errors import PddlError
from jaxppo.planning.language.sexpr import Form, Word, read_form
from jaxppo.planning.language.task import ACTION_PARTS
from jaxppo.planning.language.temporal import Plan

_COMMENT = re.compile(r";[^\n]*+")
# Words that VAL's lexer takes for its own wherever they stand; `at start` only with one blank, and in front of more.
_WORD_OF_VAL = re.compile(
    r"(?<![\w:-])(?:after|supply-demand)(?![\w-])|(?<![\w:-])(?:at (?:start|end)|over all)(?=[ \t\n(])|^time(?![\w-])",
    re.MULTILINE,
)
# VAL's parser has 10,000 places; a plan with more steps, or a list with more names, finds none left.
_MOST_STEPS = 9_995
_MOST_PLACES = 9_900
# A group of objects with a type takes three places until the list ends: the names, `-` and the type.
_PLACES_OF_A_GROUP = 3


def deviation(domain_pddl: str, problem_pddl: str, plan: Plan) -> str | None:
    """Say why VAL cannot judge a plan that is judged here; None where it should."""
    if len(plan) > _MOST_STEPS:
        return f"a plan of more than {_MOST_STEPS} steps"
    return _of_file(domain_pddl) or _of_file(problem_pddl)


@lru_cache(maxsize=256)
def _of_file(text: str) -> str | None:
    word = _WORD_OF_VAL.search(_COMMENT.sub("", text.lower()))
    if word:
        return f"the word '{word[0]}', which VAL reads as its own"
    try:
        form = read_form(text, "")
    except PddlError:
        return None
    sections = [section for section in form if isinstance(section, Form) and section]
    for section in sections:
        if section[0] == ":action" and (_parts(section) != ACTION_PARTS or section[-1] == []):
            return f"the operator '{section[1]}', which lacks a part, or has them in another order"
        if section[0] in (":objects", ":constants") and _places(section[1:]) > _MOST_PLACES:
            return f"more than {_MOST_PLACES} objects in a list"
    return None


def _parts(action: Form) -> tuple[str, ...]:
    return tuple(str(keyword) for keyword in action[2::2])


def _places(items: Sequence[Word | Form]) -> int:
    """Count the places of VAL's stack that a typed list takes before its end."""
    places = most = n_names = 0
    rest = iter(items)
    for item in rest:
        if item == "-":
            next(rest, None)
            places, n_names = places + _PLACES_OF_A_GROUP, 0
        else:
            n_names += 1
        most = max(most, places + n_names)
    return most
