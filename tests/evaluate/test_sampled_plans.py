"""Which problems a round samples for, what it keeps, and a sampler that goes on where it was killed."""

from collections import Counter

import numpy as np
import pytest

from jaxppo.data.rows import check_row
from jaxppo.evaluate import sampled_plans
from jaxppo.evaluate.decoding import Completion
from jaxppo.evaluate.sampled_plans import PlanSampler, ProblemTurn, SampledPlan, as_reference, read_plans, select_plans
from jaxppo.planning.datasets.rows import checked_row
from jaxppo.reward_functions.plan import PlanScoring
from jaxppo.run.console import Console
from tests.lamps import lamp_row


def sampled(row, text, valid=True, **fields):
    """A plan whose actions are its words."""
    known = {"step": 1, "id": f"p{row}", "completion": text, "ended": True, "tokens": 3, "verdict": ""} | fields
    return SampledPlan(row=row, valid=valid, actions=[f"({word})" for word in text.split()], **known)


def kept(plans, most):
    return [(plan.row, plan.completion) for plan in select_plans(plans, most)]


@pytest.mark.parametrize(
    ("texts", "most", "chosen"),
    [
        # The shortest, as many as asked for.
        (["a b c", "a b", "a b c d"], 1, ["a b"]),
        (["a b c", "a b", "a b c d"], 2, ["a b", "a b c"]),
        (["a b c", "a b", "a b c d"], 9, ["a b", "a b c", "a b c d"]),
        (["a b", "a  b", "b a"], 3, ["a b", "b a"]),  # equal actions count once, with their first text
        (["c d", "a b", "b c"], 2, ["c d", "a b"]),  # plans of one length come as they were sampled
    ],
)
def test_select_plans_keeps_the_shortest_different_ones(texts, most, chosen):
    assert kept([sampled(0, text) for text in texts], most) == [(0, text) for text in chosen]


def test_select_plans_keeps_nothing_invalid_however_short_and_goes_by_the_rows_of_problems():
    plans = [sampled(0, "", valid=False), sampled(0, "a b", valid=False), sampled(0, "a b c")]
    assert kept(plans, 2) == [(0, "a b c")]
    assert kept(plans[:2], 2) == []
    plans = [sampled(7, "a"), sampled(2, "a b"), sampled(7, "b"), sampled(2, "a"), sampled(7, "c")]
    assert kept(plans, 2) == [(2, "a"), (2, "a b"), (7, "a"), (7, "b")]


@pytest.mark.parametrize("count", [3, 10, 25])
def test_problems_of_round_never_samples_a_turn_twice(count):
    rounds = [sampled_plans.problems_of_round(10, 5, number, count) for number in (1, 2, 3)]
    every = [problem for of_round in rounds for problem in of_round]
    assert [len(of_round) for of_round in rounds] == [count] * 3 and len(set(every)) == len(every)
    for row, times in Counter(problem.row for problem in every).items():
        assert [problem.turn for problem in every if problem.row == row] == list(range(times))
    assert max(Counter(problem.row for problem in every).values()) == -(-3 * count // 10)
    assert sampled_plans.problems_of_round(10, 5, 2, count) == rounds[1]
    assert sampled_plans.problems_of_round(10, 6, 1, count) != rounds[0]


def test_sample_metrics_by_hand():
    plans = [sampled(0, "a"), sampled(0, "a"), sampled(0, "b"), sampled(1, "a"), sampled(2, "c", valid=False)]
    plans.append(sampled(2, "d", valid=False, ended=False, tokens=9))
    assert sampled_plans.sample_metrics(plans) == {
        "self_train/valid": 4 / 6,
        "self_train/solved": 2 / 3,
        "self_train/distinct": 3,
        "self_train/tokens": 24,
        "completions/mean_length": 4.0,
        "completions/clipped_ratio": 1 / 6,
    }


def test_as_reference_makes_a_row_of_a_data_set():
    plan = sampled(0, "light b ; light a")._replace(actions=["(light b)", "(light a)"])
    row = as_reference(lamp_row("p", extra=3), plan)
    check_row(checked_row(row, "row"), "row", "builtin")
    assert row["completion"] == "light b ; light a" and row["reference_plan"] == ["(light b)", "(light a)"]
    assert row["plan_length"] == 2 and row["extra"] == 3 and row["planner"] == "self-training"


TEXTS = ["light a ; light b", "light b ; light a", "light a", "light a ; light a ; light b"]


class Lamps:
    """An evaluator whose completions say which sample of which row they are; `limit` calls, then it is killed."""

    def __init__(self, limit=1000):
        self.rows = {"rl": [lamp_row(f"p{i}") for i in range(5)]}
        self.calls, self._limit = [], limit

    def complete(self, params, split, sample, chosen):
        if len(self.calls) == self._limit:
            raise KeyboardInterrupt
        self.calls.append((sample, tuple(chosen)))
        number = [np.random.default_rng((params["seed"], sample, row)).integers(len(TEXTS)) for row in chosen]
        return [Completion(TEXTS[i], True, [0] * int(i + 1)) for i in number]


PROBLEMS = [ProblemTurn(3, 0), ProblemTurn(1, 0), ProblemTurn(0, 1), ProblemTurn(3, 1), ProblemTurn(2, 1)]


def plans_of(path, evaluator, part=2, problems=PROBLEMS):
    sampler = PlanSampler(evaluator, "rl", 3, PlanScoring(), part)
    sampler.sample({"seed": 7}, problems, path, Console(quiet=True))
    return read_plans(path)


def test_plan_sampler_samples_and_judges_every_problem_whatever_the_size_of_its_parts(tmp_path):
    plans = plans_of(tmp_path / "plans.jsonl", Lamps())
    assert [plan.row for plan in plans] == [problem.row for problem in PROBLEMS for _ in range(3)]
    assert [plan.step for plan in plans] == [1] * 6 + [2] * 6 + [3] * 3
    assert all(plan.valid == (plan.completion != "light a") for plan in plans)
    assert {plan.verdict for plan in plans} == {"valid", "goal not reached: (lit b)"}
    assert plans[0].actions == [f"({action})" for action in plans[0].completion.split(" ; ")]
    assert [plan.tokens for plan in plans] == [TEXTS.index(plan.completion) + 1 for plan in plans]
    for part in (1, 5):
        evaluator = Lamps()
        again = plans_of(tmp_path / f"{part}.jsonl", evaluator, part)
        assert [plan._replace(step=0) for plan in again] == [plan._replace(step=0) for plan in plans]
    # Each turn has other samples, and rows are asked for together.
    assert evaluator.calls == [(0, (3, 1)), (1, (3, 1)), (2, (3, 1)), (3, (0, 3, 2)), (4, (0, 3, 2)), (5, (0, 3, 2))]


@pytest.mark.parametrize("limit", [0, 2, 3, 8])
def test_a_killed_plan_sampler_goes_on_where_it_stopped(tmp_path, limit):
    every, before, after = Lamps(), Lamps(limit), Lamps()
    whole = plans_of(tmp_path / "whole.jsonl", every)
    with pytest.raises(KeyboardInterrupt):
        plans_of(tmp_path / "killed.jsonl", before)
    assert plans_of(tmp_path / "killed.jsonl", after) == whole
    assert len(every.calls) == 9 and before.calls == every.calls[:limit]
    assert after.calls == every.calls[limit // 3 * 3 :]  # a part is 3 calls; one that was begun is begun again
    assert plans_of(tmp_path / "whole.jsonl", Lamps(0)) == whole  # a finished log is not sampled again


@pytest.mark.parametrize("lost", [1, 5, 7])
def test_a_part_that_was_half_written_is_sampled_again(tmp_path, lost):
    every, after = Lamps(), Lamps()
    whole = plans_of(tmp_path / "plans.jsonl", every)
    lines = (tmp_path / "plans.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "plans.jsonl").write_text("".join(lines[:-lost]) + lines[-lost][:9])
    assert plans_of(tmp_path / "plans.jsonl", after) == whole
    assert 0 < len(after.calls) < len(every.calls)
