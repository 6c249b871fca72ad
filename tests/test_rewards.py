"""The convention by which reward functions are called, and what becomes of those that fail."""

import asyncio
import contextvars
import functools
import math
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import data
from jaxppo.errors import DataError
from jaxppo.reward_functions import plan
from jaxppo.reward_functions.isolated import score_concurrently
from jaxppo.rewards import Completions, Failed, Reward, Rewards, Scores, TrainerState, call, join_scores


def batch(texts=("x", "yy", "zzz"), columns=None, prompts=None):
    texts = list(texts)
    prompts = [f"p{i}" for i in range(len(texts))] if prompts is None else prompts
    columns = {"id": list("abcdefghij"[: len(texts)])} if columns is None else columns
    return Completions(prompts, texts, [[len(text)] for text in texts], columns)


def run_reward(function, columns=None, texts=("x", "yy", "zzz"), timeout_s=None, **options):
    name = getattr(function, "__name__", "reward")
    scorer = None if timeout_s is None else functools.partial(score_concurrently, name, function, timeout_s)
    return Reward(name, function, scorer=scorer, **options)(batch(texts, columns))


NO_TROUBLE = {"reward/errors": 0, "reward/timeouts": 0}


def test_reward_gives_a_function_every_column_by_name():
    seen = {}

    def by_name(completions, answer, **others):  # TRL's usual form: no prompts, columns as plain parameters
        seen.update(others)
        return [float(len(text) == n) for text, n in zip(completions, answer, strict=True)]

    scores = run_reward(by_name, {"answer": [1, 7, 3], "unused": ["u"] * 3})
    assert scores == ([1.0, 0.0, 1.0], NO_TROUBLE, {})
    assert callable(seen.pop("log_metric")) and callable(seen.pop("log_extra"))
    assert seen == {"prompts": ["p0", "p1", "p2"], "completion_ids": [[1], [2], [3]], "unused": ["u"] * 3}
    # Columns that a function does not take are left out.
    assert run_reward(lambda answer: answer, {"answer": [1, 7, 3], "unused": ["u"] * 3}).values == [1.0, 7.0, 3.0]


def test_reward_collects_what_a_function_reports():
    def talkative(prompts, completions, completion_ids, *, log_metric, log_extra=None, **columns):
        log_metric("reward/length", np.float32(2))
        log_extra("shout", [text.upper() for text in completions])
        # What JSON has no word for is kept as text.
        log_extra("seen", [{"a"}, np.int64(3), None])
        log_extra("points", [np.array([1, 2]), [np.float32(0.5)], {"x": np.int64(1)}])
        return [0.37, 1, np.float32(0.5)]

    scores = run_reward(talkative)
    assert scores.values == [0.37, 1.0, 0.5] and {type(value) for value in scores.values} == {float}
    assert scores.metrics == {"reward/length": 2.0} | NO_TROUBLE
    shout, seen, points = ["X", "YY", "ZZZ"], ["{'a'}", 3, None], [[1, 2], [0.5], {"x": 1}]
    assert scores.extras == {"shout": shout, "seen": seen, "points": points}


class Halves:
    def __call__(self, prompts, completions, completion_ids, **columns):
        return np.full(len(completions), 0.5)


async def slow(completions, **columns):
    await asyncio.sleep(0.01)
    return [float(len(text)) for text in completions]


class Slow:
    async def __call__(self, completions, **columns):
        return await slow(completions)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (Halves(), [0.5] * 3),
        (slow, [1.0, 2.0, 3.0]),
        (Slow(), [1.0, 2.0, 3.0]),
        (lambda completions: list(jnp.array([0.5, 1.0, 0.0])), [0.5, 1.0, 0.0]),
        (lambda completions: (0.5, np.True_, np.int8(0)), [0.5, 1.0, 0.0]),
        (lambda completions: [None, True, None], [None, 1.0, None]),  # it cannot score some
    ],
)
def test_any_callable_may_give_any_kind_of_numbers(function, values):
    assert run_reward(function).values == values


@pytest.mark.parametrize(
    ("values", "named"),
    [
        # Without an order, or read as keys.
        ({0: 1.0, 1: 2.0, 2: 3.0}, "dict"),
        ("123", "str"),
        ([0.0, 0.0], "3 values, .* got 2"),
        (None, "3 values, .* got NoneType"),
        (np.float32(0.5), "3 values, .* got float"),
        # What is no number that float32 can hold.
        ([0.0, 1e39, 1.0], "row 1"),
        ([0.0, 10**400, 1.0], "row 1"),
        ([0.0, math.nan, 1.0], "row 1"),
        ([0.0, "1.0", 1.0], "row 1"),
        ([0.0, [(0, 2, 0.5)], 1.0], "row 1"),
    ],
    ids=repr,
)
def test_what_is_no_number_for_each_completion_is_refused(values, named):
    def bad(completions):
        return values

    with pytest.raises(DataError, match=f"^reward bad: .*{named}"):
        run_reward(bad)


def test_a_function_that_changes_its_arguments_changes_nothing_for_others():
    def vandal(prompts, completions, completion_ids, answer):
        for values in (prompts, completions, completion_ids, answer):
            for value in values:
                if isinstance(value, list):
                    value.clear()
                if isinstance(value, dict):
                    value["plan"].append("x")
            values[:] = ["changed"] * len(values)
        return [0.0] * 3

    seen = {}

    def after(prompts, completions, completion_ids, answer):
        seen.update(prompts=prompts, completions=completions, ids=completion_ids, answer=answer)
        return [1.0] * 3

    given = batch(columns={"answer": [{"plan": ["a"]}, [1, [2]], "text"]})
    Rewards([Reward("vandal", vandal), Reward("after", after)])(given)
    assert seen == {
        "prompts": ["p0", "p1", "p2"],
        "completions": ["x", "yy", "zzz"],
        "ids": [[1], [2], [3]],
        "answer": [{"plan": ["a"]}, [1, [2]], "text"],
    }
    assert given.columns == {"answer": seen["answer"]} and given.texts == seen["completions"]


SECRET = "hf_" + "abcdefghijklmnopqrstuvwx"


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_secrets_in_errors_of_a_function_are_left_out(on_error):
    def leaks(completions):
        raise RuntimeError(f"401 for https://me:{SECRET}@host/ with Authorization: Bearer {SECRET}")

    def returns(completions):
        return [f"token={SECRET}"] * 3

    for function in (leaks, returns):
        if on_error == "stop":
            with pytest.raises(DataError, match="<redacted>") as refused:
                run_reward(function, on_error=on_error)
            shown = str(refused.value)
        else:
            shown = repr(run_reward(function, on_error=on_error).extras)
        assert SECRET not in shown and "<redacted>" in shown


def keyword_only(prompts, completions, completion_ids, *, answer, **columns):
    return [0.0] * len(completions)


def positional(completions, answer, **columns):
    return [0.0] * len(completions)


@pytest.mark.parametrize("function", [keyword_only, positional])
def test_a_missing_column_is_named_and_never_passed_over(function):
    with pytest.raises(DataError, match=rf"reward {function.__name__}: .*'answer'"):
        run_reward(function, on_error="skip")
    with pytest.raises(DataError, match=r"'answer', got id; "):
        Rewards([Reward(function.__name__, function)]).check_columns(["id"])
    # So is a column of the data that ours would hide.
    for name in ("prompts", "completions", "completion_ids", "log_metric", "log_extra", "prompt_ids"):
        with pytest.raises(DataError, match=rf"^column '{name}'"):
            Rewards([Reward(function.__name__, function)]).check_columns(["answer", name])


def test_failures_pass_a_call_as_they_are():
    late = Failed("timeouts", "no answer")
    assert call("late", lambda completions: [late, 1.0], batch(["a", "bc"])).values == [late, 1.0]


def test_joined_metrics_are_weighted_by_rows_counts_are_added_and_columns_filled():
    tenth = 0.1
    assert tenth * 3 / 3 != tenth  # hence a metric of one batch is not to be averaged
    metrics = {"mean": 0.5, "first": tenth, "cache/reward_hits": 2}
    first = Scores([1.0, 2.0, 3.0], metrics, {"verdict": ["a", "b", "c"]})
    joined = join_scores([first, Scores([None], {"mean": 0.1, "cache/reward_hits": 1}, {})])
    assert joined.values == [1.0, 2.0, 3.0, None]
    assert joined.metrics == {"mean": pytest.approx(0.4), "first": tenth, "cache/reward_hits": 3}
    assert joined.extras == {"verdict": ["a", "b", "c", None]}


def fragile(completions, log_metric, log_extra):
    if "yy" in completions:
        raise RuntimeError("no\nsuch  word")
    log_metric("reward/length", len(completions[0]))
    log_extra("shout", [text.upper() for text in completions])
    return [float(len(text)) for text in completions]


async def fragile_and_async(completions, log_metric, log_extra):
    return fragile(completions, log_metric, log_extra)


@pytest.mark.parametrize("function", [fragile, fragile_and_async, functools.partial(fragile)])
def test_an_exception_stops_the_run_by_default_and_is_found_in_the_users_file(function):
    line = fragile.__code__.co_firstlineno + 2
    got = rf"RuntimeError: no such word in line {line} of .*test_rewards\.py"
    with pytest.raises(DataError, match=rf"reward \w+: .*{got}.*--on_error skip"):
        run_reward(function)


def test_an_error_of_our_own_functions_keeps_its_traceback(monkeypatch):
    def defect(*_, **__):
        raise KeyError("a defect")

    monkeypatch.setattr(plan.PlanJudge, "__call__", defect)
    names = ("domain_pddl", "problem_pddl", "reference_plan", "prompt_style")
    with pytest.raises(KeyError, match="a defect"):
        run_reward(plan.make_plan_reward(), {name: [""] * 3 for name in names})


@pytest.mark.parametrize(
    ("report", "named"),
    [
        (lambda metric, extra: extra("shout", ["X"]), "3 values.*'shout'"),
        (lambda metric, extra: extra("score", [1, 2, 3]), "log_extra.*'score'"),
        (lambda metric, extra: metric("reward/x", None), "log_metric 'reward/x'"),
        (lambda metric, extra: metric("cache/reward_hits", math.nan), "'cache/reward_hits'"),
        # Names that the run uses, or that no log could show.
        (lambda metric, extra: metric("step", 99), "log_metric"),
        (lambda metric, extra: metric("objective/kl", 99), "log_metric"),
        (lambda metric, extra: metric("rewards/f/mean", 99), "log_metric"),
        (lambda metric, extra: metric("reward/zero_variance_groups", 99), "log_metric"),
        (lambda metric, extra: metric("", 99), "log_metric"),
        (lambda metric, extra: metric("a\x1b[2J", 99), "log_metric"),
        (lambda metric, extra: metric("x" * 101, 99), "log_metric"),
        (lambda metric, extra: metric(7, 99), "log_metric"),
    ],
)
def test_reports_that_no_log_could_hold_are_refused(report, named):
    def reporting(completions, log_metric, log_extra):
        report(log_metric, log_extra)
        return [0.0] * 3

    with pytest.raises(DataError, match=f"reward reporting: .*{named}") as refused:
        run_reward(reporting)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("score", "typo"), [(lambda prompt: [0.0], "prompt"), (lambda completion: [0.0], "completion")]
)
def test_a_singular_is_not_filled_from_the_data(score, typo):
    rows = [{"prompt": "p", "completion": "c", "id": "a"}]
    assert list(data.columns_of(rows)) == ["id"]
    with pytest.raises(DataError, match=f"'{typo}'.*'{typo}s'"):
        Rewards([Reward("score", score)]).check_columns(data.columns_of(rows))


@pytest.mark.parametrize("name", ["solution_str", "response", "outputs"])
def test_a_function_for_another_trainer_is_told_what_its_argument_is_called(name):
    namespace = {}
    exec(f"def compute_score({name}, ground_truth): return 1.0", namespace)
    reward = Reward("compute_score", namespace["compute_score"])
    with pytest.raises(DataError, match=f"'{name}', got ground_truth; here 'completions' .* each completion"):
        Rewards([reward]).check_columns(["ground_truth"])


def first_turn(completions):
    return [float(len(completion[0]["content"])) for completion in completions]


def all_turns(completions):
    return [float(sum(turn.get("content") == "x" for turn in completion)) for completion in completions]


async def prompt_turns(prompts):
    return [float(len(prompt[-1]["content"])) for prompt in prompts]


@pytest.mark.parametrize(
    ("function", "text", "timeout_s"),
    [
        (first_turn, "yy", None),
        (first_turn, "", None),
        (all_turns, "yy", None),
        (prompt_turns, "yy", None),
        (prompt_turns, "yy", 30.0),
    ],
)
def test_a_function_for_chats_is_told_that_it_gets_texts(function, text, timeout_s):
    with pytest.raises(DataError, match=r"texts here, also those of chats: docs/own_reward\.md"):
        run_reward(function, texts=(text,), timeout_s=timeout_s)


@pytest.mark.parametrize("timeout_s", [None, 30.0])
def test_a_function_that_ends_the_program_is_named_and_costs_its_completions_alone(timeout_s):
    def leave(completions):
        if "yy" in completions:
            raise SystemExit(3)
        return [1.0] * len(completions)

    async def leave_later(completions):
        return leave(completions)

    function = leave if timeout_s is None else leave_later
    with pytest.raises(DataError, match=r"reward leave.*SystemExit: 3"):
        run_reward(function, timeout_s=timeout_s)
    assert run_reward(function, timeout_s=timeout_s, on_error="skip").values == [1.0, None, 1.0]


@pytest.mark.parametrize(("on_error", "instead"), [("skip", None), (0.0, 0.0)])
@pytest.mark.parametrize(("function", "timeout_s"), [(fragile, None), (fragile_and_async, 30.0)])
def test_on_error_costs_only_the_completions_that_fail(function, timeout_s, on_error, instead):
    scores = run_reward(function, timeout_s=timeout_s, on_error=on_error)
    assert scores.values == [1.0, instead, 3.0]
    # Called again row by row it keeps its reports: the mean over the rows that have one.
    assert scores.metrics == NO_TROUBLE | {"reward/errors": 1, "reward/length": 2.0}
    failed = {f"{function.__name__}_failed": [None, "RuntimeError: no such word", None]}
    assert scores.extras == {"shout": ["X", None, "ZZZ"]} | failed


def test_too_few_values_are_counted_in_the_batch_though_each_completion_is_tried_alone():
    scores = run_reward(lambda completions: [1.0] * (len(completions) - 1), on_error="skip")
    (reasons,) = [reasons for name, reasons in scores.extras.items() if name.endswith("_failed")]
    assert scores.values == [None] * 3 and all(
        "expected 3 values" in reason and "got 2" in reason for reason in reasons
    )


def test_an_async_function_has_its_time_limit_for_every_completion():
    async def sleepy(completions):
        (text,) = completions
        await asyncio.sleep(60.0 if text == "yy" else 0.0)
        return [1.0]

    scores = run_reward(sleepy, timeout_s=0.3)
    assert scores.values == [1.0, None, 1.0]
    assert scores.metrics == NO_TROUBLE | {"reward/timeouts": 1}
    assert scores.extras == {"sleepy_failed": [None, "no answer within 0.3 s", None]}


def test_a_time_limit_is_of_each_completion_and_one_of_the_function_itself_is_an_error_of_it():
    async def broken(completions):
        raise TimeoutError("database: no answer")

    scores = run_reward(broken, timeout_s=30.0, on_error="skip")
    assert scores.values == [None] * 3 and scores.metrics["reward/errors"] == 3
    assert scores.extras["broken_failed"] == ["TimeoutError: database: no answer"] * 3

    # Completions wait at the same time.
    async def meeting(completions):
        arrived.append(completions)
        while len(arrived) < 3:
            await asyncio.sleep(0.01)
        return [1.0]

    arrived = []
    assert run_reward(meeting, timeout_s=30.0).values == [1.0] * 3


def test_rewards_are_a_weighted_sum_without_the_functions_that_cannot_score_a_completion():
    lengths = Reward("lengths", lambda completions: [float(len(text)) for text in completions], weight=2.0)
    scores = Rewards([lengths, Reward("half", lambda completions: [0.5] * 3, weight=-1.0)])(batch())
    assert scores.values == [1.5, 3.5, 5.5]
    assert scores.metrics["rewards/lengths/mean"] == 2.0 and scores.metrics["rewards/half/mean"] == 0.5
    assert scores.metrics["rewards/lengths/std"] == pytest.approx(np.std([1, 2, 3], ddof=1))
    assert scores.metrics["rewards/half/std"] == 0.0
    assert scores.extras == {"reward_lengths": [1.0, 2.0, 3.0], "reward_half": [0.5] * 3}
    first = Reward("first", lambda completions: [None, 1.0, None])
    second = Reward("second", lambda completions: [None, 0.5, 0.25], weight=2.0)
    scores = Rewards([first, second])(batch())
    assert scores.values == [None, 2.0, 0.5]
    assert (scores.metrics["reward/not_scorable"], scores.metrics["rewards/second/mean"]) == (1, 0.375)
    # A sum that float32 cannot hold is refused.
    rewards = [Reward(name, lambda completions: [3e38, 0.0, 0.0]) for name in ("a", "b")]
    with pytest.raises(DataError, match="reward_weights"):
        Rewards(rewards)(batch())


def test_counts_add_up_over_functions_and_a_batch_without_any_score_has_the_reasons():
    broken = Reward("broken", lambda completions: [math.nan, 1.0, 1.0], on_error=0.0)
    picky = Reward(
        "picky",
        lambda completions: [1 / (text != "yy") for text in completions],
        on_error="skip",
    )
    together = Rewards([broken, picky])
    scores = together(batch())
    assert scores.metrics["reward/errors"] == 2 and scores.metrics["reward/not_scorable"] == 0
    assert scores.extras["broken_failed"] == ["nan", None, None]
    reward = Reward("broken", lambda completions: 1 / 0, on_error="skip")
    scores = Rewards([reward])(batch())
    assert scores.values == [None] * 3 and scores.metrics["reward/not_scorable"] == 3
    assert all("ZeroDivision" in reason for reason in scores.extras["broken_failed"])


@pytest.mark.parametrize("in_rows", [False, True])
def test_an_async_function_is_scored_where_an_event_loop_runs_already(in_rows):
    """As in a cell of a notebook; it sees the context variables of the cell."""
    user = contextvars.ContextVar("user")

    async def judge(completions):
        await asyncio.sleep(0)
        return [float(len(text)) + user.get() for text in completions]

    async def cell():
        user.set(10.0)
        scorer = functools.partial(score_concurrently, "judge", judge, 5.0) if in_rows else None
        return Rewards([Reward("judge", judge, scorer=scorer)])(batch()).values

    assert asyncio.run(cell()) == [11.0, 12.0, 13.0]


def test_a_function_that_asks_for_it_learns_how_far_training_is():
    def seen(completions, trainer_state):
        return [0.0 if trainer_state is None else float(trainer_state.global_step)] * len(completions)

    def others(completions, **columns):
        assert "trainer_state" not in columns  # which has no entry for each completion
        return [0.0] * len(completions)

    rewards = Rewards([Reward("seen", seen), Reward("others", others)])
    assert rewards(batch()).values == [0.0] * 3
    for step in (3, 4):
        rewards.trainer_state = TrainerState(step, 8, 0.5, 16 * step, 128)
        assert rewards(batch()).values == [step] * 3


def test_rewards_run_in_the_thread_of_the_caller_whose_interrupts_are_no_failures():
    """JAX and signal handlers care about it."""
    threads = []
    run_reward(lambda completions: threads.append(threading.current_thread()) or [0.0] * 3)
    assert threads == [threading.current_thread()]

    def interrupted(completions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_reward(interrupted, on_error="skip")
