"""The plan reward step by step: where each part goes, and that in sum nothing changes, whatever is written."""

import math
import random
from itertools import accumulate, product

import numpy as np
import pytest

from jaxppo.config import RewardConfig
from jaxppo.errors import ConfigError
from jaxppo.planning import (
    parse_action,
    parse_completion,
    render_completion,
)
from jaxppo.planning.datasets.rows import build_split
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.reward_functions import plan as plan_reward
from jaxppo.reward_functions import registry
from jaxppo.rewards import Completions
from tests.plan_texts import (
    PROBLEM_PDDL,
    REFERENCE,
    SOLUTION,
    TRICKS,
    WRAPPERS,
    columns_for,
    columns_of,
    random_completions,
)


def judge(texts, columns, level="step", **options):
    return plan_reward.judge_plans(texts, plan_reward.PlanScoring(level=level, **options), **columns)


def one(text, **changes):
    (outcome,) = judge([text], columns_for("x") | changes)
    return outcome


def pieces(text, outcome):
    """The parts as (piece of the text, reward)."""
    return [(text[part.start : part.end], part.reward) for part in outcome.steps.parts]


UNSTACKED, DOWN = ("unstack b a", 1 / 4), ("put-down b", 1 / 4)
WHOLE = [UNSTACKED, DOWN, ("pick-up a", 1 / 4), ("stack a b", 1 / 4)]
# completion, what its pieces earn, and where it breaks; the reference is SOLUTION
CASES = {
    "the reference": (SOLUTION, [*WHOLE, ("", 0)], None),
    "half of it": ("unstack b a ; put-down b", [UNSTACKED, DOWN, ("", 0)], None),
    "a detour that comes back": (
        "unstack b a ; stack b a ; unstack b a",
        [UNSTACKED, ("stack b a", -1 / 4), UNSTACKED, ("", 0)],
        None,
    ),
    "steps back": (
        "unstack b a ; put-down b ; pick-up b ; stack b a",
        [UNSTACKED, DOWN, ("pick-up b", -1 / 4), ("stack b a", -1 / 4), ("", 2 / 4)],
        None,
    ),
    "a broken precondition": (
        "unstack b a ; put-down b ; put-down b ; pick-up a ; stack a b",
        [UNSTACKED, DOWN, ("put-down b", -2 / 4), ("", 3 / 5)],
        3,
    ),
    "an unknown action after a broken precondition": ("pick-up a ; fly a", [("pick-up a", 0), ("", 1 / 4)], 1),
    "an unknown action": ("unstack b a ; drop b", [UNSTACKED, ("drop b", -1 / 4), ("", 1 / 4)], 2),
    "what cannot be read": ("unstack b a ; put)down b ; x", [UNSTACKED, ("put)down b", -1 / 4), ("", 0)], 2),
    "an empty step": ("unstack b a ; ; put-down b", [UNSTACKED, (";", -1 / 4), ("", 0)], 2),
    "a whole plan and junk": (SOLUTION + " ; (", [*WHOLE, ("(", -1), ("", 0)], 5),
    "nothing": ("", [("", 0)], None),
    "prose": ("I do not know", [("I do not know", 0), ("", 0)], 1),
}


@pytest.mark.parametrize("case", CASES)
def test_each_action_earns_the_progress_that_it_makes(case):
    text, expected, breaks_at = CASES[case]
    outcome = one(text)
    assert [(piece, pytest.approx(reward, abs=1e-12)) for piece, reward in pieces(text, outcome)] == expected
    assert outcome.steps.breaks_at == breaks_at
    assert math.fsum(reward for _, reward in pieces(text, outcome)) == outcome.reward


TWO_TOWERS = """(define (problem towers) (:domain blocksworld) (:objects a b c d)
  (:init (ontable a) (on b a) (clear b) (ontable c) (on d c) (clear d) (handempty))
  (:goal (and (ontable b) (ontable d))))"""
LEFT_FIRST = ["(unstack b a)", "(put-down b)", "(unstack d c)", "(put-down d)"]
RIGHT_FIRST = LEFT_FIRST[2:] + LEFT_FIRST[:2]


def earned(text, **changes):
    return [part.reward for part in one(text, **{name: [value] for name, value in changes.items()}).steps.parts]


OWN_WAY = "unstack d c ; put-down d ; unstack b a ; put-down b"
ASIDE = "unstack b a ; put-down b ; pick-up a ; put-down a ; unstack d c ; put-down d"


@pytest.mark.parametrize(
    ("text", "references", "expected"),
    [
        # A way of its own is paid for where it meets a reference or the goal; until then nothing is known of it.
        (OWN_WAY, LEFT_FIRST, [0, 0, 0, 1, 0]),
        (OWN_WAY, [LEFT_FIRST, RIGHT_FIRST], [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0]),
        (OWN_WAY + " ; pick-up d ; stack d c", LEFT_FIRST, [0, 0, 0, 1, -1 / 4, -1 / 4, 2 / 6 - 1 / 2]),
        # Steps off the way neither earn nor pay.
        (ASIDE, LEFT_FIRST, [1 / 4, 1 / 4, 0, 0, 1 / 4, 1 / 4, 0]),
    ],
)
def test_two_towers_may_be_taken_down_in_any_order(text, references, expected):
    assert earned(text, problem_pddl=TWO_TOWERS, reference_plan=references) == pytest.approx(expected, abs=1e-12)


def test_the_shortest_way_along_the_references_counts():
    detour = ["(unstack b a)", "(stack b a)", *REFERENCE]
    for references in (detour, [detour, REFERENCE], [REFERENCE, detour]):
        assert earned(SOLUTION, reference_plan=references) == [1 / 4] * 4 + [0]
    early = PROBLEM_PDDL.replace("(and (ontable b) (on a b))", "(ontable b)")
    assert earned(SOLUTION, problem_pddl=early) == [1 / 4, 3 / 4, 0, 0, 0]


@pytest.mark.parametrize("references", [[], ["(pick-up a)"], REFERENCE[:2]], ids=["none", "broken", "no plan"])
def test_without_a_valid_reference_the_conditions_of_the_goal_are_counted(references):
    outcome = one("unstack b a ; put-down b ; stack a a", reference_plan=[references])
    # Of (ontable b) and (on a b) the first holds after the second step.
    assert [part.reward for part in outcome.steps.parts][:3] == [0, 1 / 2, -1 / 2]


@pytest.mark.parametrize("style", ["atoms", "pddl", "nl"])
@pytest.mark.parametrize("wrapper", ["{}", *WRAPPERS.values()])
def test_pieces_are_the_actions_in_every_style(style, wrapper):
    actions = list(map(parse_action, REFERENCE))
    each = [render_completion([action], style, BLOCKSWORLD.pddl) for action in actions]
    text = wrapper.format(render_completion(actions, style, BLOCKSWORLD.pddl))
    plan = parse_completion(text, style, BLOCKSWORLD.pddl)
    assert plan.actions == tuple(actions)
    assert [text[start:end] for start, end in plan.spans] == each
    outcome = one(text, prompt_style=[style])
    assert pieces(text, outcome) == [*((piece, 1 / 4) for piece in each), ("", 0)]


SPANS = {
    "pddl": [
        ("; c\n(pick-up a) ; (x\n\t( put-down\n a )", ["(pick-up a)", "( put-down\n a )"], None),
        ("(pick-up a)(put-down a);ok", ["(pick-up a)", "(put-down a)"], None),
        ("(pick-up a) put-down a )\n(x)", ["(pick-up a)"], "put-down a )"),
        ("time 3\n(pick-up a)", [], "time 3"),
        ("(pick-up a) ; no newline (x)", ["(pick-up a)"], None),
        ("(pick-up a)\n ;(x)", ["(pick-up a)"], ";(x)"),
    ],
    "nl": [
        ("Pick  up\nblock a. put down block a.", ["Pick  up\nblock a.", "put down block a."], None),
        ("pick up block a. hop. pick up block b.", ["pick up block a."], "hop."),
        ("pick up block a. and so on", ["pick up block a."], "and so on"),
        ("pick up block a. pick (up) b.", ["pick up block a."], "pick (up) b."),
    ],
    "atoms": [
        (" pick-up a;put-down  a ", ["pick-up a", "put-down  a"], None),
        ("pick-up a ; p(t ; x", ["pick-up a"], "p(t"),
        ("pick-up a ;", ["pick-up a"], ""),
    ],
}


@pytest.mark.parametrize(
    ("style", "text", "actions", "rest"), [(s, *case) for s, cases in SPANS.items() for case in cases]
)
def test_spans_are_those_of_the_text_as_it_is(style, text, actions, rest):
    plan = parse_completion(text, style, BLOCKSWORLD.pddl)
    found = [text[start:end] for start, end in plan.spans]
    assert found == [*actions, *([] if rest is None else [rest])]
    assert len(plan.actions) == len(actions) and (plan.error is None) == (rest is None)


SHAPES = [
    {},
    {"partial": "lccs", "normalise_by": "reference", "partial_scale": 0.3},
    {"partial": "lcs", "length_penalty": 0.2, "partial_scale": 0.7},
    {"partial": "prefix"},
    {"partial": "prefix", "normalise_by": "prediction", "partial_scale": 0.1},
    {"partial": "goal"},
    {"partial_scale": 0.0},
]


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_parts_add_up_to_the_outcome_on_random_and_hostile_answers(options):
    rows = 10 * build_split("test", sizes={4: 12, 5: 13}, seed=3, unique=True)
    texts = random_completions(rows, random.Random(len(options)))
    tricks = sorted(TRICKS.items())
    wrappers = sorted(WRAPPERS.values())
    for number in range(0, len(rows), 5):
        rng = random.Random(number)
        texts[number] = rng.choice(tricks)[1](texts[number], rows[number])
        texts[number + 1] = rng.choice(wrappers).format(texts[number + 1])
    outcomes = judge(texts, columns_of(rows), "outcome", **options)
    steps = judge(texts, columns_of(rows), "step", **options)
    for text, before, after in zip(texts, outcomes, steps, strict=True):
        parts = after.steps.parts
        assert after.reward == before.reward and after.verdict == before.verdict, text
        assert math.fsum(part.reward for part in parts) == before.reward, text
        assert all(0 <= part.start <= part.end <= len(text) and abs(part.reward) <= 1 for part in parts), text
        first = before.verdict.executed_steps
        if first is not None and not before.verdict.executable:
            assert after.steps.breaks_at == first + 1, text
        assert (after.steps.breaks_at is None) == before.verdict.executable, text
    assert len({outcome.verdict.error for outcome in outcomes}) >= 6
    assert 0.05 < np.mean([outcome.verdict.valid for outcome in outcomes]) < 0.6
    assert len({outcome.reward for outcome in outcomes}) >= (2 if options else 10)


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_from_any_place_on_the_return_is_the_outcome_less_what_the_text_before_has_decided(options):
    """The theorem of potential-based shaping, over all answers of up to four actions.

    What is still to come after t actions is R - Phi: with Phi the same for all answers that begin in the same way. So
    the best continuation, and the order of all continuations, are those of the outcome.
    """
    actions = ["unstack b a", "put-down b", "stack b a", "pick-up a", "stack a b", *([] if options else ["fly"])]
    plans = [list(plan) for length in range(5) for plan in product(actions, repeat=length)]
    texts = list(map(" ; ".join, plans))
    potentials = {}
    for plan, outcome in zip(plans, judge(texts, columns_for(texts), **options), strict=True):
        parts = outcome.steps.parts
        paid = list(accumulate((part.reward for part in parts if part.start < part.end), initial=0.0))
        paid += [paid[-1]] * (len(plan) + 1 - len(paid))  # after the break
        total = math.fsum(part.reward for part in parts)
        for t in range(len(plan) + 1):
            to_come = total - paid[t]
            potential = outcome.reward - to_come
            before = potentials.setdefault(tuple(plan[:t]), potential)
            assert abs(before - potential) < 1e-12, plan
    assert len(potentials) == len(plans) and min(potentials.values()) == 0
    assert max(potentials.values()) == pytest.approx(1)


def test_plan_reward_reports_where_plans_break():
    texts = [SOLUTION, "unstack b a ; drop b", "unstack b a ; put-down b ; put-down b", ""]
    metrics, extras = {}, {}
    reward = plan_reward.make_plan_reward(plan_reward.PlanScoring(level="step"))
    arguments = {"log_metric": metrics.__setitem__, "log_extra": extras.__setitem__} | columns_for(texts)
    reward([""] * 4, texts, [[]] * 4, **arguments)
    assert metrics["reward/breaking_step"] == (2 + 3) / 2
    assert metrics["reward/progress_steps"] == pytest.approx((4 / 4 + 1 / 2 + 2 / 3 + 0) / 4)
    assert extras["step_rewards"][1] == [[0, 11, 0.25], [14, 20, -0.25], [20, 20, 0.25]]
    metrics.clear()
    reward([""], [SOLUTION], [[]], log_metric=metrics.__setitem__, **columns_for("x"))
    assert "reward/breaking_step" not in metrics
    metrics.clear()
    plan_reward.make_plan_reward()([""], [SOLUTION], [[]], log_metric=metrics.__setitem__, **columns_for("x"))
    assert "reward/progress_steps" not in metrics


@pytest.mark.parametrize(("step", "parts"), [(2, [1 / 4, -1 / 4]), (None, [1 / 4, 1 / 4, 1 / 4, 1 / 4])])
def test_the_validator_says_where_a_plan_breaks(monkeypatch, step, parts):
    """Where VAL says otherwise than the states of this process; where it names no step, they decide."""
    refused = plan_reward.PlanVerdict.refused(plan_reward.PlanError.PRECONDITION, step)
    monkeypatch.setattr(plan_reward, "validate_many", lambda cases, *_: [refused] * len(cases))
    outcome = one(SOLUTION)
    assert outcome.steps.breaks_at == step
    assert [part.reward for part in outcome.steps.parts][: len(parts)] == parts
    # A verdict that says nothing of the plan leaves its reward whole.
    refused = plan_reward.PlanVerdict.refused(plan_reward.PlanError.VALIDATOR_TIMEOUT)
    outcome = one(SOLUTION)
    assert outcome.steps == (((len(SOLUTION), len(SOLUTION), outcome.reward, "characters"),), None)


def test_the_configured_level_is_that_of_the_reward_and_refused_without_plans():
    for level in ("outcome", "step"):
        rewards = registry.make_rewards(RewardConfig(reward_level=level, audit_rate=0.0))
        scores = rewards(Completions([""], [SOLUTION], [[1]], columns_for("x")))
        assert scores.values == [1.0] and (scores.parts is None) == (level == "outcome")
    with pytest.raises(ConfigError, match=r"^reward_level: "):
        RewardConfig(reward_funcs=("my:own",), reward_level="step")
    mixed = RewardConfig(reward_funcs=("plan", "my:own"), reward_level="step")
    assert mixed.reads_pddl_for("val") == "builtin" and RewardConfig().reads_pddl_for("val") == "val"
