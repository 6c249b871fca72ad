"""Completions in the order of the rows, the fixed rows of evaluations during training, and results."""

import dataclasses
import io
from collections import Counter
from functools import cache

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxppo import data, models
from jaxppo.config import DataConfig, EvalConfig, EvaluateConfig, RewardConfig, SamplingConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import DataError
from jaxppo.evaluate.decoding import Completion
from jaxppo.evaluate.evaluator import (
    Evaluator,
    Predictions,
    choose_fixed,
    eval_metrics,
    make_evaluator,
    samples_of,
)
from jaxppo.evaluate.intervals import wilson
from jaxppo.evaluate.predictions import Prediction
from jaxppo.evaluate.printing import print_before_and_after, summary_line
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.reward_functions import plan
from jaxppo.run.console import Console
from jaxppo.run.metrics import find
from tests.evaluate.small_models import MODEL

TOKENIZER = data.word_tokenizer()
NUM_ROWS, LENGTH = 7, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set with rows of changing prompt lengths, not sorted by them."""
    rows = datasets.build_split("test", sizes={3: 4, 4: 3}, seed=0, unique=True)
    order = [4, 0, 5, 1, 2, 6, 3]
    folder = tmp_path_factory.mktemp("dataset")
    dataset_files.write_jsonl([rows[i] for i in order], folder / "test.jsonl")
    return folder


@pytest.fixture(scope="module")
def params():
    return models.init_params(MODEL, jax.random.key(1))


@cache
def evaluator(folder, batch_size, num_devices=1, temperature=0.0, seed=0, top_k=0):
    """Compiled once per set of arguments."""
    return Evaluator(
        MODEL,
        TOKENIZER,
        DataParallel(devices=jax.local_devices()[:num_devices]),
        DataConfig(dataset=str(folder), eval_splits=("test",)),
        EvalConfig(
            eval_batch_size=batch_size, eval_validator="builtin", eval_temperature=temperature, eval_top_k=top_k
        ),
        RewardConfig(),
        SamplingConfig(response_length=LENGTH),
        seed,
    )


@pytest.fixture(scope="module")
def greedy(folder, params):
    """The completions of each row, as a plain loop without a cache gives them."""
    logits_of = jax.jit(lambda ids: models.apply(MODEL, params, ids).logits)
    texts = []
    for row in dataset_files.read_jsonl(folder / "test.jsonl"):
        ids = TOKENIZER(row["prompt"])["input_ids"]
        start = len(ids)
        for _ in range(LENGTH):
            padded = np.zeros((1, 48), np.int32)
            padded[0, : len(ids)] = ids
            ids.append(int(np.argmax(logits_of(padded)[0, len(ids) - 1])))
            if ids[-1] == TOKENIZER.eos_token_id:
                break
        body = ids[start:-1] if ids[-1] == TOKENIZER.eos_token_id else ids[start:]
        texts.append(" ".join(TOKENIZER.convert_ids_to_tokens(body)))
    assert len(set(texts)) == NUM_ROWS  # else the order would not show
    return texts


# 7 rows: three full batches and a short one; one batch larger than the split; on 4 devices rounded up to 4.
@pytest.mark.parametrize(("batch_size", "num_devices"), [(2, 1), (8, 1), (3, 4)])
def test_complete_gives_one_completion_per_row_in_the_order_of_the_split(
    folder, params, greedy, batch_size, num_devices
):
    made = evaluator(folder, batch_size, num_devices)
    completions = made.complete(jax.device_get(params), "test")
    assert [completion.text for completion in completions] == greedy


def only_says(token):
    """Parameters of a model that always says one token."""
    params = jax.device_get(models.init_params(MODEL, jax.random.key(1)))
    norm = {"scale": np.zeros(16, np.float32), "bias": np.ones(16, np.float32)}
    kernel = np.zeros((16, 32), np.float32)
    kernel[:, token] = 1.0
    return {"trunk": params["trunk"] | {"final_layer_norm": norm}, "lm_head": {"kernel": kernel}}


def test_complete_says_which_completions_ended(folder):
    made = evaluator(folder, 8)
    for token, expected in ((TOKENIZER.eos_token_id, ("", True)), (5, (TOKENIZER.decode([5] * LENGTH), False))):
        completions = made.complete(only_says(token), "test")
        assert [(completion.text, completion.ended) for completion in completions] == [expected] * NUM_ROWS


def test_complete_above_temperature_0_is_decided_by_the_seed(folder, params):
    made, other = (evaluator(folder, 8, temperature=1.0, seed=seed) for seed in (0, 1))
    first = made.complete(params, "test")
    assert made.complete(params, "test") == first != other.complete(params, "test")


def test_complete_with_top_k_1_equals_greedy_decoding_at_any_temperature(folder, params, greedy):
    texts = [completion.text for completion in evaluator(folder, 8, temperature=2.0, top_k=1).complete(params, "test")]
    assert texts == greedy
    free = [completion.text for completion in evaluator(folder, 8, temperature=2.0).complete(params, "test")]
    assert free != greedy  # at this temperature it is the truncation that decides


# The token that a completion ends with, by training settings.
@pytest.mark.parametrize(
    ("settings", "stop"),
    [
        ({}, TOKENIZER.eos_token_id),
        ({"stop_token_id": 5}, 5),
        ({"stop_token_id": 0}, 0),
        ({"stop_token": "none"}, TOKENIZER.eos_token_id),  # a plan ends, however training samples
    ],
    ids=["eos", "5", "0", "none"],
)
def test_make_evaluator_ends_completions_as_training_does(folder, settings, stop):
    given = {"dataset": str(folder), "eval_splits": ("test",), "headline_split": "test", "eval_validator": "builtin"}
    config = replace(TrainConfig(), **given, **settings, eval_batch_size=8, response_length=LENGTH)
    made = make_evaluator(config, MODEL, TOKENIZER, DataParallel(devices=jax.local_devices()[:1]))
    for token in (TOKENIZER.eos_token_id, 5, 0):
        ended = {completion.ended for completion in made.complete(only_says(token), "test")}
        assert ended == {token == stop}


@pytest.mark.parametrize("config_class", [TrainConfig, EvaluateConfig, SFTConfig])
def test_make_evaluator_stops_at_every_end_that_the_model_has(folder, config_class):
    given = {"dataset": str(folder), "eval_splits": ("test",), "eval_validator": "builtin", "response_length": 3}
    given |= {"headline_split": "test"} if config_class is TrainConfig else {}
    model = dataclasses.replace(MODEL, end_ids=(5, 7), num_tokens=30)
    config = replace(config_class(), **given, eval_batch_size=8)
    made = make_evaluator(config, model, TOKENIZER, DataParallel(devices=jax.local_devices()[:1]))
    for token in (TOKENIZER.eos_token_id, 5, 7):
        assert [(c.text, c.ended) for c in made.complete(only_says(token), "test")] == [("", True)] * NUM_ROWS
    for token, said in ((4, 4), (31, 0)):  # 31 is no token: the first of those with equal logits comes
        cut = (TOKENIZER.decode([said] * 3), False)
        assert [(c.text, c.ended) for c in made.complete(only_says(token), "test")] == [cut] * NUM_ROWS


@pytest.mark.parametrize("config_class", [EvaluateConfig, SFTConfig])
def test_make_evaluator_of_other_commands_stops_at_the_end_of_sequence(folder, config_class):
    given = {"dataset": str(folder), "eval_splits": ("test",), "eval_validator": "builtin", "response_length": 3}
    config = replace(config_class(), **given, eval_batch_size=8)
    made = make_evaluator(config, MODEL, TOKENIZER, DataParallel(devices=jax.local_devices()[:1]))
    for token, expected in ((TOKENIZER.eos_token_id, ("", True)), (5, (TOKENIZER.decode([5] * 3), False))):
        assert [(c.text, c.ended) for c in made.complete(only_says(token), "test")] == [expected] * NUM_ROWS


def test_evaluator_counts_over_all_rows_of_a_split(folder, params, monkeypatch):
    made = evaluator(folder, 8)
    rows = made.rows["test"]
    predictions = [row["completion"] for row in rows[:4]] + ["", ")", "pick-up a ; drop"]
    monkeypatch.setattr(made, "complete", lambda *_: [Completion(text, text != ")", []) for text in predictions])
    result = made(params)["test"]
    outcomes = plan.judge_plans(
        predictions,
        **{name: [row[name] for row in rows] for name in ("domain_pddl", "problem_pddl", "reference_plan")},
        prompt_style=["atoms"] * NUM_ROWS,
    )
    assert result["validity"] == wilson(4, 7)
    assert result["executability"] == wilson(5, 7)  # the empty plan can be executed
    assert result["ended"] == wilson(6, 7)
    np.testing.assert_allclose(result["mean_reward"], sum(o.reward for o in outcomes) / 7)
    assert result["validator"] == "builtin"
    assert "57.1% [25.0%, 84.2%] of 7 (builtin)" in summary_line("test", result)


def test_complete_above_temperature_0_does_not_depend_on_the_batch_size(folder, params):
    by_size = [evaluator(folder, size, temperature=1.0).complete(params, "test") for size in (2, 8)]
    assert by_size[0] == by_size[1]


# --------------------------------------------------------------------------------------------- evaluation in training


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    most=st.integers(1, 40),
    seed=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_fixed_rows_are_balanced_over_domains_and_nested(sizes, most, seed, order):
    rows = [{"domain": f"d{i}"} for i, size in enumerate(sizes) for _ in range(size)]
    order.shuffle(rows)
    chosen = choose_fixed(rows, most, seed)
    assert chosen == sorted(set(chosen)) == choose_fixed(rows, most, seed)
    assert len(chosen) == min(most, len(rows)) and set(chosen) <= set(range(len(rows)))
    assert set(chosen) <= set(choose_fixed(rows, most + 1, seed))
    counts = Counter(rows[i]["domain"] for i in chosen)
    short = [counts[f"d{i}"] for i, size in enumerate(sizes) if counts[f"d{i}"] < size]
    # A domain that is not exhausted has as many as any other, give or take one.
    assert all(count >= max(counts.values()) - 1 for count in short)


def test_fixed_rows_are_chosen_by_the_seed_and_need_no_domain():
    rows = [{"prompt": str(i)} for i in range(50)]
    assert choose_fixed(rows, None, 0) == choose_fixed(rows, 50, 0) == list(range(50))
    first, second = choose_fixed(rows, 10, 0), choose_fixed(rows, 10, 1)
    assert first != second and first != list(range(10))


@cache
def small_evaluator(folder):
    config = replace(
        TrainConfig(),
        dataset=str(folder),
        eval_splits=("test",),
        headline_split="test",
        eval_validator="builtin",
        eval_batch_size=4,
        eval_rows=3,
        response_length=LENGTH,
    )
    return make_evaluator(config, MODEL, TOKENIZER, DataParallel(devices=jax.local_devices()[:1]))


def test_evaluations_in_training_look_at_the_fixed_rows_as_whole_ones_do(folder, params):
    made = small_evaluator(folder)
    chosen = choose_fixed(made.rows["test"], 3, 0)
    assert len(chosen) == 3 and made(params, fixed_rows_only=True)["test"]["rows"] == 3
    assert made(params)["test"]["rows"] == NUM_ROWS
    whole = made.predict(params, "test")
    part = made.predict(params, "test", rows=chosen)
    assert part.rows == [whole.rows[i] for i in chosen] and part.predictions == [whole.predictions[i] for i in chosen]


def test_eval_metrics_names_several_domains():
    def cell(rate, **more):
        return {"validity": {"rate": rate}, "mean_reward": rate / 2} | more

    results = {
        "test": cell(0.5, domains={"ferry": cell(0.25), "hanoi": cell(0.75)}),
        "test_longer": cell(0.1, domains={"ferry": cell(0.1)}),
        "other": {"mean_reward": 3.0, "reward": {}},
    }
    metrics = eval_metrics(results)
    assert metrics == {
        "eval/test/validity": 0.5,
        "eval/test/ferry/validity": 0.25,
        "eval/test/hanoi/validity": 0.75,
        "eval/test/mean_reward": 0.25,
        "eval/test_longer/validity": 0.1,
        "eval/test_longer/mean_reward": 0.05,
        "eval/other/mean_reward": 3.0,
    }
    assert all(find(name) is not None for name in metrics)


def test_samples_above_temperature_0_differ_and_the_first_is_the_one_of_a_single_sample(folder, params):
    made = evaluator(folder, 8, temperature=1.0)
    one, three = (made.predict(params, "test", num_samples=n, seed=7).predictions for n in (1, 3))
    assert [predictions[:1] for predictions in three] == one
    assert len({prediction.text for predictions in three for prediction in predictions}) > 2 * NUM_ROWS
    assert {prediction.seed for predictions in three for prediction in predictions} == {7}


# --- texts to be continued


def text_evaluator(folder, **settings):
    dataset_files.write_jsonl([{"prompt": " ".join(["a"] * n)} for n in (2, 9, 4, 7)], folder / "test.jsonl")
    return Evaluator(
        MODEL,
        TOKENIZER,
        DataParallel(devices=jax.local_devices()[:1]),
        DataConfig(dataset=str(folder), eval_splits=("test",), **settings),
        EvalConfig(eval_batch_size=4),
        RewardConfig(reward_funcs=("some:function",)),
        SamplingConfig(response_length=LENGTH),
        seed=0,
    )


def test_evaluation_cuts_prompts_as_training_does(tmp_path):
    cut = text_evaluator(tmp_path, input_min_text_length=2, input_max_text_length=3)
    lengths = [len(row["prompt"].split()) for row in cut.rows["test"]]
    assert lengths[0] == 2 and all(2 <= length <= 3 for length in lengths)
    assert lengths == [len(ids) for ids in cut._encoded["test"]]
    again = text_evaluator(tmp_path, input_min_text_length=2, input_max_text_length=3)
    assert again.rows == cut.rows


def test_evaluation_leaves_overlong_prompts_out_and_counts_them(tmp_path):
    evaluator = text_evaluator(tmp_path, max_prompt_length=7, filter_overlong_prompts=True)
    assert [row["id"] for row in evaluator.rows["test"]] == ["test-0", "test-2", "test-3"]
    assert evaluator.left_out == {"test": 1}
    with pytest.raises(DataError, match="max_prompt_length=7"):
        text_evaluator(tmp_path, max_prompt_length=7)


def answers_to(texts, scores):
    rows = [{"id": str(i), "prompt": f"prompt {i}"} for i in range(len(texts))]
    return Predictions(rows, [[Prediction(text)] for text in texts], [[score] for score in scores])


def test_samples_are_the_first_rows_with_their_answers():
    samples = samples_of(answers_to(["x", "y", "z"], [1.0, None, 0.5]), [], most=2)
    assert samples == [
        {"id": "0", "prompt": "prompt 0", "completion": "x", "score": 1.0},
        {"id": "1", "prompt": "prompt 1", "completion": "y", "score": None},
    ]


def test_before_and_after_are_shown_side_by_side():
    before, after = (
        samples_of(answers_to(texts, scores), [])
        for texts, scores in ((["dull", "weak"], [-1.0, None]), (["\x1b[31mwarm", "fine"], [2.0, 0.5]))
    )
    console = Console(file=(output := io.StringIO()))
    print_before_and_after(console, "test", before, after)
    shown = output.getvalue()
    assert "test, before and after" in shown and "\x1b" not in shown
    assert "-1.00 -> 2.00" in shown and "none -> 0.50" in shown
    assert shown.index("dull") < shown.index("warm")
    print_before_and_after(Console(file=(empty := io.StringIO())), "test", [], after)
    assert empty.getvalue() == ""
