"""Completions in the order of the rows, the fixed rows of evaluations during training, and results."""

import dataclasses
import io
from collections import Counter

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxppo import data
from jaxppo.config import DataConfig, EvalConfig, EvaluateConfig, RewardConfig, SamplingConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.evaluate.decoding import Completion
from jaxppo.evaluate.evaluator import Evaluator, Predictions, choose_fixed, eval_metrics, make_evaluator, samples_of
from jaxppo.evaluate.intervals import wilson
from jaxppo.evaluate.predictions import Prediction
from jaxppo.evaluate.printing import print_before_and_after, short_prompt, summary_line
from jaxppo.nn import ModelSource
from jaxppo.parallel import platform
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.profiling import memory
from jaxppo.reward_functions import plan
from jaxppo.run.console import Console
from jaxppo.run.metrics import find
from tests.data.tokenizers import WORDS, chat_tokenizer
from tests.evaluate.small_models import MODEL, likeliest_words, logits_without_cache, says

TOKENIZER = data.word_tokenizer()
EOS = TOKENIZER.eos_token_id
NUM_ROWS, LENGTH = 7, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set with rows of changing prompt lengths, not sorted by them."""
    rows = datasets.build_split("test", sizes={3: 4, 4: 3}, seed=0, unique=True)
    order = [4, 0, 5, 1, 2, 6, 3]
    folder = tmp_path_factory.mktemp("dataset")
    dataset_files.write_jsonl([rows[i] for i in order], folder / "test.jsonl")
    return folder


def evaluator(folder, batch_size, num_devices=1, seed=0, data_settings=None, reward=None, **settings):
    return Evaluator(
        MODEL,
        TOKENIZER,
        DataParallel(devices=jax.local_devices()[:num_devices]),
        DataConfig(dataset=str(folder), eval_splits=("test",), **(data_settings or {})),
        EvalConfig(eval_batch_size=batch_size, eval_validator="builtin", **settings),
        reward or RewardConfig(),
        SamplingConfig(response_length=LENGTH),
        seed,
    )


def texts_of(completions):
    return [completion.text for completion in completions]


@pytest.fixture(scope="module")
def greedy(folder, params):
    """The completions of each row, as a plain loop without a cache gives them."""
    logits_after = logits_without_cache(params)
    rows = dataset_files.read_jsonl(folder / "test.jsonl")
    texts = [likeliest_words(logits_after, TOKENIZER, row["prompt"], LENGTH) for row in rows]
    assert len(set(texts)) == NUM_ROWS  # else the order would not show
    return texts


# 7 rows: a full batch and a short one; one batch larger than the split; on 4 devices rounded up to 4.
@pytest.mark.parametrize(("batch_size", "num_devices"), [(4, 1), (8, 1), (3, 4)])
def test_complete_gives_one_completion_per_row_in_the_order_of_the_split(
    folder, params, greedy, batch_size, num_devices
):
    assert texts_of(evaluator(folder, batch_size, num_devices).complete(params, "test")) == greedy


def test_memory_decides_how_many_rows_are_decoded_at_once(folder, params, greedy, monkeypatch):
    row_bytes = sum(memory.evaluation_bytes(MODEL, 1, evaluator(folder, 8).decoder.prompt_length, LENGTH).values())
    monkeypatch.setattr(platform, "machine_bytes", lambda: 3 * 4 * row_bytes * jax.local_device_count())
    small = evaluator(folder, 8)
    assert small.decoder.batch_size == 3 and small.rows_and_length == (3, small.decoder.prompt_length)
    assert texts_of(small.complete(params, "test")) == greedy
    generate, tried = small.decoder._generate, []

    def lacking(params, prompts, draws):
        tried.append(len(draws))
        if len(draws) > 1:
            raise MemoryError
        return generate(params, prompts, draws)

    small.decoder._generate = lacking
    assert texts_of(small.complete(params, "test")) == greedy
    assert tried == [3, *[1] * NUM_ROWS]
    monkeypatch.setattr(platform, "machine_bytes", lambda: None)
    assert evaluator(folder, 8).decoder.batch_size == 8


def test_samples_depend_on_seed_row_and_number_and_not_on_the_batch(folder, params):
    first = evaluator(folder, 8, eval_temperature=1.0)
    completions = first.complete(params, "test")
    assert first.complete(params, "test") == completions
    assert evaluator(folder, 4, eval_temperature=1.0).complete(params, "test") == completions
    assert evaluator(folder, 8, seed=1, eval_temperature=1.0).complete(params, "test") != completions
    one, three = (first.predict(params, "test", num_samples=n, seed=7).predictions for n in (1, 3))
    assert [predictions[:1] for predictions in three] == one
    assert len({prediction.text for predictions in three for prediction in predictions}) > 2 * NUM_ROWS
    assert {prediction.seed for predictions in three for prediction in predictions} == {7}


def test_complete_with_top_k_1_equals_greedy_decoding_at_any_temperature(folder, params, greedy):
    truncated = evaluator(folder, 8, eval_temperature=1.0, eval_top_k=1)
    assert texts_of(truncated.complete(params, "test")) == greedy
    free = evaluator(folder, 8, eval_temperature=1.0)
    assert texts_of(free.complete(params, "test")) != greedy  # at this temperature it is the truncation that decides


def evaluator_of(config_class, folder, model=MODEL, tokenizer=TOKENIZER, **settings):
    given = {"dataset": str(folder), "eval_splits": ("test",), "eval_validator": "builtin", "eval_batch_size": 8}
    config = replace(config_class(), **given, response_length=LENGTH, **settings)
    return make_evaluator(config, model, tokenizer, DataParallel(devices=jax.local_devices()[:1]))


def test_a_stop_token_of_the_command_ends_completions_in_place_of_the_end_of_sequence(folder):
    for config_class, settings, stop_ids in (
        (TrainConfig, {"stop_token": 0}, (0,)),
        (TrainConfig, {"stop_token": "none"}, (EOS,)),  # a plan ends, however training samples
        (EvaluateConfig, {"stop_token": 5}, (5,)),
        (SFTConfig, {}, (EOS,)),
    ):
        assert evaluator_of(config_class, folder, **settings).decoder.stop_ids == stop_ids
    made = evaluator_of(TrainConfig, folder, stop_token=5)
    for token in (EOS, 5, 0):
        assert {completion.ended for completion in made.complete(says(token), "test")} == {token == 5}


def test_completions_end_with_every_end_that_the_model_has_and_with_that_of_a_chat_template(folder):
    model = dataclasses.replace(MODEL, source=ModelSource(end_ids=(5, 7), num_tokens=30))
    made = evaluator_of(TrainConfig, folder, model)
    cut = (TOKENIZER.decode([4] * LENGTH), False)
    no_token = (TOKENIZER.decode([0] * LENGTH), False)  # 31 is none: the first of those with equal logits comes
    for token, expected in ((EOS, ("", True)), (5, ("", True)), (7, ("", True)), (4, cut), (31, no_token)):
        completions = made.complete(says(token), "test")
        assert [(completion.text, completion.ended) for completion in completions] == [expected] * NUM_ROWS
    for config_class in (EvaluateConfig, SFTConfig):
        decoder = evaluator_of(config_class, folder, model).decoder
        assert (decoder.stop_ids, decoder.end_ids) == (made.decoder.stop_ids, made.decoder.end_ids)
    # The end marker of a chat template.
    others = sorted({*TOKENIZER.get_vocab()} - {*WORDS.split()})
    tokenizer = chat_tokenizer(words=f"{WORDS} {' '.join(others)}")
    decoder = evaluator_of(EvaluateConfig, folder, tokenizer=tokenizer).decoder
    assert decoder.stop_ids == decoder.end_ids == (tokenizer.convert_tokens_to_ids("<|end|>"),)


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
    assert "57.1% [25.0%, 84.2%] of 7" in summary_line("test", result)


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
    without_domains = [{"prompt": str(i)} for i in range(50)]
    assert choose_fixed(without_domains, None, seed) == list(range(50))
    assert choose_fixed(without_domains, 10, seed) not in (choose_fixed(without_domains, 10, 9), list(range(10)))


def test_evaluations_in_training_look_at_the_fixed_rows_as_whole_ones_do(folder, params):
    made = evaluator_of(TrainConfig, folder, eval_rows=3)
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
        "test": cell(0.5, domains={"ferry": cell(0.25), "hanoi": cell(0.75)}, loss=1.5, loss_tokens=9),
        "test_longer": cell(0.1, domains={"ferry": cell(0.1)}),
        "other": {"mean_reward": 3.0, "reward": {}},
        "chats": {"loss": 0.75, "loss_tokens": 7},
    }
    metrics = eval_metrics(results)
    assert metrics == {
        "eval/test/validity": 0.5,
        "eval/test/ferry/validity": 0.25,
        "eval/test/hanoi/validity": 0.75,
        "eval/test/mean_reward": 0.25,
        "eval/test/loss": 1.5,
        "eval/test_longer/validity": 0.1,
        "eval/test_longer/mean_reward": 0.05,
        "eval/other/mean_reward": 3.0,
        "eval/chats/loss": 0.75,
    }
    assert all(find(name) is not None for name in metrics)


def text_evaluator(folder, **settings):
    dataset_files.write_jsonl([{"prompt": " ".join(["a"] * n)} for n in (2, 9, 4, 7)], folder / "test.jsonl")
    return evaluator(folder, 4, data_settings=settings, reward=RewardConfig(reward_funcs=("some:function",)))


def test_evaluation_cuts_prompts_as_training_does_and_counts_overlong_ones_that_it_leaves_out(tmp_path):
    cut = text_evaluator(tmp_path, input_text_length=(2, 3))
    lengths = [len(row["prompt"].split()) for row in cut.rows["test"]]
    assert lengths[0] == 2 and all(2 <= length <= 3 for length in lengths)
    assert lengths == [len(ids) for ids in cut._encoded["test"]]
    again = text_evaluator(tmp_path, input_text_length=(2, 3))
    assert again.rows == cut.rows
    made = text_evaluator(tmp_path, max_prompt_length=7)
    assert [row["id"] for row in made.rows["test"]] == ["test-0", "test-2", "test-3"]
    assert made.left_out == {"test": 1}


def answers_to(texts, scores):
    rows = [{"id": str(i), "prompt": f"prompt {i}"} for i in range(len(texts))]
    return Predictions(rows, [[Prediction(text)] for text in texts], [[score] for score in scores])


def test_samples_of_the_first_rows_are_shown_before_and_after_side_by_side():
    before = samples_of(answers_to(["dull", "weak", "left out"], [-1.0, None, 0.5]), [], max_rows=2)
    assert before == [
        {"id": "0", "prompt": "prompt 0", "completion": "dull", "score": -1.0},
        {"id": "1", "prompt": "prompt 1", "completion": "weak", "score": None},
    ]
    after = samples_of(answers_to(["\x1b[31mwarm", "fine"], [2.0, 0.5]), [])
    output, empty = io.StringIO(), io.StringIO()
    print_before_and_after(Console(file=output), "test", before, after)
    shown = output.getvalue()
    assert "-1.00 -> 2.00" in shown and "none -> 0.50" in shown and "\x1b" not in shown
    assert shown.index("dull") < shown.index("warm")
    print_before_and_after(Console(file=empty), "test", [], after)
    assert empty.getvalue() == ""


def test_of_a_long_prompt_the_end_is_shown():
    assert short_prompt("(on b a)") == "(on b a)"
    assert short_prompt("(:action a) " * 20 + "(goal x)") == f"… {('(:action a) ' * 20)[-152:]}(goal x)"
