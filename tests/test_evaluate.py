"""Intervals, and completions in the order of the rows."""

from functools import cache

import jax
import numpy as np
import pytest
from scipy import stats  # comes with jax

from jaxppo import data, models, plan_reward
from jaxppo.config import DataConfig, EvalConfig, EvaluateConfig, RewardConfig, SamplingConfig, SFTConfig, TrainConfig
from jaxppo.config_sources import replace
from jaxppo.evaluate import Completion, Evaluator, make_evaluator, summary_line, wilson
from jaxppo.families.gpt_neox import GPTNeoXConfig
from jaxppo.parallel import DataParallel
from jaxppo.planning import datasets


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 10), (81, 263), (640, 1024)])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_wilson_equals_scipy(successes, n, confidence):
    z = stats.norm.ppf(0.5 + confidence / 2)
    expected = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    interval = wilson(successes, n) if confidence == 0.95 else wilson(successes, n, z)
    assert interval["rate"] == successes / n and interval["n"] == n
    np.testing.assert_allclose([interval["low"], interval["high"]], expected, atol=1e-6)


def test_wilson_equals_published_numbers():
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3.
    for (successes, n), low, high in (((81, 263), 0.2553, 0.3662), ((15, 148), 0.0624, 0.1605), ((0, 20), 0, 0.1611)):
        interval = wilson(successes, n)
        assert (round(interval["low"], 4), round(interval["high"], 4)) == (low, high)


def test_wilson_of_nothing_knows_nothing():
    assert wilson(0, 0) == {"rate": 0.0, "low": 0.0, "high": 1.0, "n": 0}


TOKENIZER = data.word_tokenizer()
MODEL = GPTNeoXConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=1.0,
    rotary_pct=1.0,
)
NUM_ROWS, LENGTH = 7, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set with rows of changing prompt lengths, not sorted by them."""
    rows = datasets.build_split("test", sizes={3: 4, 4: 3}, seed=0, unique=True)
    order = [4, 0, 5, 1, 2, 6, 3]
    folder = tmp_path_factory.mktemp("dataset")
    datasets.write_jsonl([rows[i] for i in order], folder / "test.jsonl")
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
    for row in datasets.read_jsonl(folder / "test.jsonl"):
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
    answers = [row["completion"] for row in rows[:4]] + ["", ")", "pick-up a ; drop"]
    monkeypatch.setattr(made, "complete", lambda *_: [Completion(text, text != ")", []) for text in answers])
    result = made(params)["test"]
    outcomes = plan_reward.judge_plans(
        answers,
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
