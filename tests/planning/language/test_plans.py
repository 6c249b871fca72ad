"""Plan text to actions, and the overlap of plans."""

import re
from decimal import Decimal
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo.planning.language.plans import (
    ParsedPlan,
    ParsedTimedPlan,
    PlanError,
    TimedAction,
    format_action,
    format_timed_action,
    lccs_length,
    lcs_length,
    parse_action,
    parse_plan_text,
    parse_timed_plan_text,
)

A, B = ("unstack", "a", "b"), ("put-down", "a")
ACTIONS = st.tuples(st.sampled_from(["go", "pick-up", "x_1"]), st.sampled_from(["a", "b", "c-1"]))


@pytest.mark.parametrize(
    "text",
    [
        "(unstack a b)\n(put-down a)\n",
        "(UNSTACK A b)(Put-Down A)",
        "\t( unstack  a\tb )\r\n\r\n(put-down a)\r\n",
        "(unstack\n a\n b\n)\n(put-down a)",
        "; plan\n(unstack a b) ; take (it)\n(put-down ; now\n a)\n; cost = 2 (unit cost)\n",
        "(unstack a b)\n(put-down a)\n; cost = 2 (unit cost)",
        "(unstack a b)\n(put-down a);",
        "(unstack a b)\r(put-down a)",
    ],
)
def test_parse_plan_text_reads_benign_layouts_and_the_empty_plan(text):
    assert parse_plan_text(text) == ParsedPlan((A, B))
    for empty in ("", " \r\n\t", "; nothing\n", "; nothing"):
        assert parse_plan_text(empty) == ParsedPlan(())


def pieces(text: str) -> list[str]:
    return [piece.rstrip("\n") for piece in text.split("|")]


# The last ones have a Cyrillic a, the Kelvin sign, which lower-cases to k, and a header of VAL's.
NO_STEPS = """BAD|put-down a)|()|((put-down a))|1: (put-down a)|(put-down a) [1]|(put-down, a)|(put-down 1)
|(put-down a\x00)|(put-down\u00a0a)|(put-down\x0ca)|; 7 steps|; (put-down a)|;; [x|(put-down a ; no end)
|(put-down \u0430)|(pic\u212a-up a)|(put-down\ntime)"""


@pytest.mark.parametrize("piece", [";", "(", " ", "a", "(a ", ";\n", "\ntime", "\u0130"])
def test_parse_plan_text_reads_a_million_characters(piece):
    plan = parse_plan_text("(unstack a b)" + piece * (1_000_000 // len(piece)))
    assert plan.actions == (A,)


@settings(max_examples=40, deadline=None)
@given(st.lists(ACTIONS), st.sampled_from(["\n", " ", "", "\r\n", " ; note\n"]))
def test_parse_plan_text_inverts_format_action(actions, separator):
    text = separator.join(map(format_action, actions))
    assert parse_plan_text(text) == ParsedPlan(tuple(actions))


LIGHT = TimedAction(Decimal(0), ("light", "o"))
FIRE = TimedAction(Decimal("1.5"), ("fire", "a", "o"), Decimal(5))


@pytest.mark.parametrize(
    "text",
    [
        "0: (light o)\n1.5: (fire a o) [5]\n",
        "0.000: (light o)\n1.500:(FIRE A O)[5.000]",
        "0:(light o)1.5:(fire a o)[5]",
        "\t000 :\r\n( light o )\n1.5\n: (fire a\no) [ 5.0\t]",
        "; start\n0: (light o) ; now\n1.5: ; a [1]\n(fire a o) [5]\n; cost = 6",
    ],
)
def test_parse_timed_plan_text_reads_benign_layouts(text):
    plan = parse_timed_plan_text(text)
    assert plan == ParsedTimedPlan((LIGHT, FIRE))
    assert plan.actions == (("light", "o"), ("fire", "a", "o"))


NO_TIMED_STEPS = """(fire a o)|(fire a o) [5]|: (fire a o) [5]|-1: (fire a o) [5]|1e1: (fire a o) [5]|.5: (fire a o)
|1.: (fire a o) [5]|1_0: (fire a o) [5]|inf: (fire a o) [5]|\u0661: (fire a o) [5]|1234567890: (fire a o) [5]
|0.1234567890: (fire a o) [5]|1: (fire a o) [-5]|1: (fire a o) [1e9]|1: (fire a o) [5|1: (fire a o) [5] [5]
|1: fire a o [5]|1: (fire a 7) [5]|1: (fire a\x00 o) [5]|; 1: (fire a o)|1\ntime: (fire a o)"""
LONG = ["9" * 1_000_000, "1: (fire" + " a" * 500_000, "1: (fire a) [" + " " * 1_000_000]


ENDS = [(parse_plan_text, "(unstack a b)", A, second) for second in pieces(NO_STEPS)]
ENDS += [(parse_timed_plan_text, "0: (light o)", ("light", "o"), second) for second in [*pieces(NO_TIMED_STEPS), *LONG]]


@pytest.mark.parametrize(("parse", "first", "action", "second"), ENDS, ids=range(len(ENDS)))
def test_reading_stops_at_anything_else(parse, first, action, second):
    plan = parse(f"{first}\n{second}")
    assert plan.actions[0] == action
    assert plan.error is PlanError.SYNTAX
    assert plan.error_step == len(plan.actions) + 1


TIMES = st.decimals(0, Decimal("999999999.999999999"), places=9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.builds(TimedAction, TIMES, ACTIONS, st.none() | TIMES)), st.sampled_from(["\n", " ", "", "\r\n"]))
def test_parse_timed_plan_text_inverts_format_timed_action(steps, separator):
    assert parse_timed_plan_text(separator.join(map(format_timed_action, steps))) == ParsedTimedPlan(tuple(steps))


def test_parse_action_refuses_anything_but_one_action():
    assert parse_action("(Put-Down A)") == B
    for text in ("", "put-down a", "(a) (b)", None):
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            parse_action(text)


@settings(max_examples=60, deadline=None)
@given(st.text("ab", max_size=7), st.text("abc", max_size=7))
def test_overlap_agrees_with_enumeration(a, b):
    subsequences = {"".join(part) for n in range(len(a) + 1) for part in combinations(a, n)}
    runs = {a[i:j] for i in range(len(a) + 1) for j in range(i, len(a) + 1)}
    others = {"".join(part) for n in range(len(b) + 1) for part in combinations(b, n)}
    assert lcs_length([(x,) for x in a], [(x,) for x in b]) == max(map(len, subsequences & others))
    assert lccs_length([(x,) for x in a], [(x,) for x in b]) == max(len(run) for run in runs if run in b)
