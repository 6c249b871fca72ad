"""Overlap measures, the plan reward, and the tricks that must not raise it."""

import random

import numpy as np
import pytest

from jaxppo.errors import ConfigError, ValidatorError
from jaxppo.planning.datasets.rows import build_split
from jaxppo.planning.language.plans import PlanError
from jaxppo.planning.validate.audit import Audit
from jaxppo.reward_functions import plan as plan_reward
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
from tests.planning.val_oracle import needs_val


@pytest.mark.parametrize(
    ("predicted", "reference", "run", "subsequence"),
    [
        ("abxcd", "abcd", 2, 4),  # one action too many in the middle
        ("xbcy", "abcd", 2, 2),
        ("xxabcdyy", "abcd", 4, 4),  # junk around the whole reference
        ("dcba", "abcd", 1, 1),
        ("", "abcd", 0, 0),
        ("abcd", "", 0, 0),
        ("", "", 0, 0),
    ],
)
def test_lccs_and_lcs_divide_by_the_chosen_length(predicted, reference, run, subsequence):
    divisors = {"max": max(len(predicted), len(reference)), "reference": len(reference), "prediction": len(predicted)}
    for normalise_by, divisor in divisors.items():
        assert plan_reward.lccs(predicted, reference, normalise_by) == (run / divisor if divisor else 0.0)
        assert plan_reward.lcs(predicted, reference, normalise_by) == (subsequence / divisor if divisor else 0.0)
    assert plan_reward.lccs(predicted, reference) == plan_reward.lccs(predicted, reference, "max")
    with pytest.raises(ConfigError, match="normalise_by"):
        plan_reward.lcs(predicted, reference, "mean")


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
    together = judge(*(text for text, *_ in CASES.values()))
    assert together[list(CASES).index(case)] == outcome


def test_plan_reward_with_lcs_by_reference_logs_both_the_reward_and_lccs():
    """The setting of "Chasing Progress, Not Perfection"."""
    texts = [
        SOLUTION,
        "unstack b a ; put-down b ; pick-up b ; pick-up a ; stack a b",
        "unstack b a ; stack a b",
        "pick-up a ; stack a b ; unstack b a ; put-down b",
        "stack a b ; pick-up a ; put-down b ; unstack b a",
        "unstack a b ; put-down a",
    ]
    reward = plan_reward.make_plan_reward(plan_reward.PlanScoring(partial="lcs", normalise_by="reference"))
    metrics = {}
    values = reward([""] * 6, texts, [[]] * 6, log_metric=metrics.__setitem__, **columns_for(texts))
    # A whole reference with junk in it overlaps to 1, but is not valid.
    assert values == [1.0, plan_reward.BEST_INVALID, 0.5, 0.5, 0.25, 0.0]
    assert metrics["reward/mean"] == pytest.approx(sum(values) / 6)
    assert metrics["reward/lccs"] == pytest.approx((1.0 + 0.5 + 0.25 + 0.5 + 0.25 + 0.0) / 6)
    assert metrics["reward/partial"] == pytest.approx((1.0 + 1.0 + 0.5 + 0.5 + 0.25 + 0.0) / 6)
    assert metrics["reward/plan_valid"] == metrics["reward/invalid_with_reference"] == 1 / 6
    # In every log it is below a valid plan.
    assert plan_reward.BEST_INVALID == 0.999 and np.float32(values[1]) < 1 and np.float16(values[1]) < 1


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


@needs_val
def test_check_validator_passes_for_both_and_names_a_val_that_is_missing(monkeypatch, tmp_path):
    plan_reward.check_validator("builtin")
    plan_reward.check_validator("val")
    assert plan_reward.default_validator() == "val"
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "Validate"))
    with pytest.raises(ValidatorError, match="VAL"):
        plan_reward.check_validator("val")


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


def test_partial_rewards_are_scaled_and_valid_plans_are_not():
    (outcome,) = judge("unstack b a ; put-down b ; stack a b", partial="prefix", normalise_by="prediction")
    assert outcome.partial == 2 / 3
    detour = "unstack b a ; stack b a ; " + SOLUTION
    outcomes = judge(SOLUTION, detour, "unstack b a", partial_scale=0.3)
    assert [o.reward for o in outcomes] == [1.0, 1.0, 0.3 * 1 / 4]


def test_of_several_reference_plans_the_best_counts():
    other = ["(unstack b a)", "(stack b a)", "(unstack b a)"]
    columns = columns_for("x") | {"reference_plan": [[other, REFERENCE]]}
    text = "unstack b a ; stack b a ; unstack b a ; stack b a"
    (outcome,) = plan_reward.judge_plans([text], **columns)
    assert (outcome.lccs, outcome.reference_steps, outcome.holds_reference) == (3 / 4, 3, True)
    (alone,) = judge(text)
    assert (alone.lccs, alone.reference_steps, alone.holds_reference) == (1 / 4, 4, False)


@pytest.fixture(scope="module")
def gaming_rows():
    """Rows, random completions of them, and what these earn."""
    rows = 2 * build_split("test", sizes={4: 12, 5: 12}, seed=3, unique=True)
    half = len(rows) // 2
    texts = random_completions(rows[:half], random.Random(5)) + random_completions(rows[half:], random.Random(6))
    return rows, texts, rewards_of(rows, texts)


def rewards_of(rows, texts, **options):
    outcomes = plan_reward.judge_plans(texts, plan_reward.PlanScoring(**options), **columns_of(rows))
    return [outcome.reward for outcome in outcomes]


def with_trick(trick, rows, texts):
    return [TRICKS[trick](text, row) for text, row in zip(texts, rows, strict=True)]


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_raises_the_reward(trick, gaming_rows):
    rows, texts, honest = gaming_rows
    assert max(honest) == 1.0 and sum(0 < value < 1 for value in honest) > 10
    tricked = rewards_of(rows, with_trick(trick, rows, texts))
    for row, before, after in zip(rows, honest, tricked, strict=True):
        # Appended to nothing the enumeration is a guess of its own, which may hit one action.
        floor = 1 / row["plan_length"] if "ground" in trick else 0.0
        assert after <= max(before, floor), row["id"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_no_trick_pays_in_a_marked_block_or_after_thinking(wrapper, gaming_rows):
    rows, texts, honest = (values[:16] for values in gaming_rows)
    assert rewards_of(rows, [WRAPPERS[wrapper].format(text) for text in texts]) == honest
    for trick in TRICKS:
        tricked = with_trick(trick, rows, texts)
        wrapped = rewards_of(rows, [WRAPPERS[wrapper].format(text) for text in tricked])
        bare = rewards_of(rows, tricked)
        assert all(value <= most for value, most in zip(wrapped, bare, strict=True)), trick


def test_two_plans_in_one_earn_no_more_than_the_better_one(gaming_rows):
    rows, texts, honest = gaming_rows
    others = [*texts[7:], *texts[:7]]
    better = map(max, honest, rewards_of(rows, others))
    both = rewards_of(rows, [f"{a} ; {b}" if a and b else a + b for a, b in zip(texts, others, strict=True)])
    assert all(value <= most for value, most in zip(both, better, strict=True))


@pytest.mark.parametrize("partial", ["lccs", "lcs", "prefix", "goal"])
@pytest.mark.parametrize("normalise_by", ["max", "reference", "prediction"])
def test_an_invalid_plan_is_below_1_whatever_the_partial_reward(partial, normalise_by, gaming_rows):
    rows, texts = gaming_rows[0][::4], gaming_rows[1][::4]
    scoring = plan_reward.PlanScoring(partial=partial, normalise_by=normalise_by)
    tricked = [text for trick in TRICKS for text in with_trick(trick, rows, texts)]
    for outcome in plan_reward.judge_plans(tricked, scoring, **columns_of(rows * len(TRICKS))):
        assert (np.float32(outcome.reward) == 1.0) == outcome.verdict.valid
        assert 0.0 <= outcome.reward <= 1.0


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
    # The same words about another problem are another question.
    easy = PROBLEM_PDDL.replace("(and (ontable b) (on a b))", "(holding b)")
    columns = columns_for("xy") | {"problem_pddl": [PROBLEM_PDDL, easy]}
    outcomes, known = judge_with_memory(["unstack b a"] * 2, **columns)
    assert [o.verdict.valid for o in outcomes] == [False, True] and known == 0


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


def test_plan_reward_reports_its_parts_and_ignores_other_columns():
    texts = [SOLUTION, "unstack b a ; put-down b", ") nonsense", "unstack b a ; pick-up a"]
    metrics, extras = {}, {}
    columns = columns_for(texts) | {"id": ["a", "b", "c", "d"], "planner": ["x"] * 4}
    values = plan_reward.make_plan_reward()(
        ["p"] * 4, texts, [[]] * 4, log_metric=metrics.__setitem__, log_extra=extras.__setitem__, **columns
    )
    assert values == [1.0, 0.5, 0.0, 0.25]
    assert metrics["reward/mean"] == metrics["reward/lccs"] == metrics["reward/partial"] == 1.75 / 4
    assert metrics["reward/plan_valid"] == metrics["reward/plan_unreadable"] == 1 / 4
    assert metrics["cache/reward_hits"] == 0 and "reward/val_audited" not in metrics
    assert extras == {
        "verdict": ["valid", "goal not reached: (on a b)", "syntax at step 1", "precondition at step 2: (handempty)"],
        "lccs": [1.0, 0.5, 0.0, 0.25],
    }


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
