"""Plans that are judged here and that VAL says nothing about, for a reason that `docs/validator.md` lists.

An audit counts them apart: that VAL cannot read a file is no disagreement about a plan.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from jaxppo.errors import PddlError
from jaxppo.planning.language.sexpr import COMMENT, Form, Node, read_form
from jaxppo.planning.language.task import ACTION_PARTS
from jaxppo.planning.language.temporal import Plan
from jaxppo.planning.validate.val import with_preconditions

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
                return (
                    f"the operator '{section[1]}', which lacks a part, or has them in another order"
                )
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
