"""Repair rounds: with a script in the place of the model, with a model, by chat template, and in the command."""

import io
import json
from contextlib import redirect_stdout

import jax
import numpy as np
import pytest

from jaxppo import data, models
from jaxppo.config import (
    DataConfig,
    EvalConfig,
    EvaluateConfig,
    RepairConfig,
    RewardConfig,
    SamplingConfig,
    SFTConfig,
)
from jaxppo.config.sources import replace
from jaxppo.data import Turn
from jaxppo.errors import ConfigError
from jaxppo.evaluate.__main__ import evaluate
from jaxppo.evaluate.decoding import Completion
from jaxppo.evaluate.evaluator import Evaluator
from jaxppo.evaluate.intervals import wilson
from jaxppo.evaluate.repair import attempt_records, check_styles, repair_plans, repair_results, repair_rows
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning import __main__ as planning
from jaxppo.planning import prompts
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.planning.datasets.rows import build_split
from jaxppo.reward_functions.plan import PlanScoring
from jaxppo.sft import sft
from tests.data.test_chat_template import TEMPLATE, chat_tokenizer
from tests.evaluate.small_models import MODEL, write_spoiled

ROWS = build_split("test", sizes={3: 2, 4: 2}, seed=0, unique=True)
TOKENIZER = data.word_tokenizer()
PLAIN = data.make_chat_template(TOKENIZER, DataConfig())
SCORING = PlanScoring(validator="builtin")


def encoded_by(template, rows=ROWS):
    return data.encode_prompts(template.tokenizer, rows, 2048, template=template)


class Script:
    """Says what it is told, and keeps what it was asked."""

    def __init__(self, *rounds, template=PLAIN):
        self.rounds, self.template = rounds, template
        self.asked = []

    def __call__(self, number, chosen, encoded):
        self.asked.append(dict(zip(chosen, encoded, strict=True)))
        texts = [self.rounds[number][i] for i in chosen]
        rows = [{"id": "x", "prompt": "a", "completion": text} for text in texts]
        ids = data.encode_completions(self.template.tokenizer, rows)
        return [Completion(text, True, one) for text, one in zip(texts, ids, strict=True)]


def reason(row, text):
    plan = prompts.parse_completion(text, row["prompt_style"], row["domain_pddl"])
    fault = prompts.find_fault(row["domain_pddl"], row["problem_pddl"], plan)
    return prompts.render_fault(fault, row["prompt_style"], row["domain_pddl"])


RIGHT = [row["completion"] for row in ROWS]
# Row 0 is right at once, row 1 in round 1, row 2 in round 2, row 3 never.
ROUNDS = (
    [RIGHT[0], "", "pick-up a", "; ;"],
    [None, RIGHT[1], "stack a b ; put-down a", ""],
    [None, None, RIGHT[2], ""],
)


def test_only_failures_are_asked_again_with_all_that_was_said():
    script = Script(*ROUNDS)
    attempts = repair_plans(ROWS, encoded_by(PLAIN), script, PLAIN, RepairConfig(repair_rounds=2), SCORING, 512)
    assert [list(asked) for asked in script.asked] == [[0, 1, 2, 3], [1, 2, 3], [2, 3]]
    assert [[attempt.is_valid for attempt in of_row] for of_row in attempts] == [
        [True],
        [False, True],
        [False, False, True],
        [False] * 3,
    ]
    for i, row in enumerate(ROWS):
        turns = []
        for asked, texts, attempt in zip(script.asked, ROUNDS, attempts[i], strict=False):
            text = prompts.conversation(row["prompt"], turns)
            assert asked[i] == TOKENIZER(text)["input_ids"]  # as the rows of `planning repair` have it
            assert attempt.prompt_tokens == len(text.split())
            assert attempt.tokens == len(texts[i].split()) + 1  # and the token that ends it
            turns.append((texts[i], reason(row, texts[i])))
            assert attempt.said == ("" if attempt.is_valid else turns[-1][1])


def test_results_count_what_is_valid_by_each_round_and_every_token():
    attempts = repair_plans(
        ROWS, encoded_by(PLAIN), Script(*ROUNDS), PLAIN, RepairConfig(repair_rounds=2), SCORING, 512
    )
    repairs = [[of_row] for of_row in attempts]
    results = repair_results(repairs)
    assert [one["validity"] for one in results] == [wilson(1, 4), wilson(2, 4), wilson(3, 4)]
    assert [one["asked"] for one in results] == [4, 3, 2]
    first = [len(row["prompt"].split()) for row in ROWS]
    assert results[0]["prompt_tokens"] == sum(first)
    assert results[0]["completion_tokens"] == sum(len(text.split()) + 1 for text in ROUNDS[0])
    said = [len(ROUNDS[0][i].split()) + len(reason(ROWS[i], ROUNDS[0][i]).split()) for i in (1, 2, 3)]
    assert results[1]["prompt_tokens"] == sum(first[1:]) + sum(said)
    spent = sum(one["prompt_tokens"] + one["completion_tokens"] for one in results)
    assert results[2]["mean_tokens"] == spent / 4
    two = repair_results([[of_row, of_row] for of_row in attempts])  # two models that answer alike
    assert [one["validity"]["rate"] for one in two] == [0.25, 0.5, 0.75]
    assert two[2]["mean_tokens"] == spent / 4 and two[1]["asked"] == 6
    table = repair_rows({"test": {"repair": results}})
    assert [(row["round"], row["asked"]) for row in table] == [("0", "4"), ("1", "3"), ("2", "2")]
    records = attempt_records(ROWS, repairs)
    assert [(record["id"], record["round"], record["valid"]) for record in records[1:3]] == [
        (ROWS[1]["id"], 0, False),
        (ROWS[1]["id"], 1, True),
    ]
    assert sum(record["completion_tokens"] for record in records) == sum(one["completion_tokens"] for one in results)


@pytest.mark.parametrize("repair_with", ["plan", "nothing"])
def test_controls_say_less(repair_with):
    script = Script(*ROUNDS)
    config = RepairConfig(repair_rounds=1, repair_with=repair_with)
    attempts = repair_plans(ROWS, encoded_by(PLAIN), script, PLAIN, config, SCORING, 512)
    for i in (1, 2, 3):
        told = {"plan": f" {ROUNDS[0][i]} not <plan>", "nothing": ""}[repair_with]
        assert script.asked[1][i] == TOKENIZER(ROWS[i]["prompt"] + told)["input_ids"]
        assert attempts[i][0].said == {"plan": " not <plan>", "nothing": ""}[repair_with]


def test_a_conversation_that_gets_too_long_ends_there():
    encoded = encoded_by(PLAIN)
    most = max(map(len, encoded)) + 6
    config = RepairConfig(repair_rounds=2)
    attempts = repair_plans(ROWS, encoded, Script(*ROUNDS), PLAIN, config, SCORING, most)
    told = {i: len(encoded[i]) + len(f"{ROUNDS[0][i]} {reason(ROWS[i], ROUNDS[0][i])}".split()) for i in (1, 2, 3)}
    fits = [told[i] <= most for i in (1, 2, 3)]
    assert [len(attempts[i]) > 1 for i in (1, 2, 3)] == fits and {*fits} == {True, False}
    assert len(repair_results([[of_row] for of_row in attempts])) > 1


@pytest.mark.parametrize("style", ["nl", "atoms"])
def test_with_a_chat_template_answers_and_reasons_are_turns(style):
    rows = build_split("test", sizes={3: 2}, seed=0, unique=True, prompt_style=style)
    wrong = prompts.render_completion([("pick-up", "a")], style, rows[0]["domain_pddl"])
    said = [reason(row, wrong).strip() for row in rows]
    words = {word for row in rows for word in (row["prompt"] + " " + row["completion"]).split()}
    extra = "<pad> <eos> <s> <|system|> <|user|> <|assistant|> <|end|> be brief"
    known = [*extra.split(), *sorted({*words, *wrong.split(), *" ".join(said).split()} - {*extra.split()})]
    template = data.make_chat_template(
        chat_tokenizer(TEMPLATE, words=" ".join(known)), DataConfig(system_prompt="be brief")
    )
    script = Script([wrong] * 2, [row["completion"] for row in rows], template=template)
    attempts = repair_plans(
        rows, encoded_by(template, rows), script, template, RepairConfig(repair_rounds=1), SCORING, 2048
    )
    assert [of_row[-1].is_valid for of_row in attempts] == [True, True]
    for i, row in enumerate(rows):
        turns = [("system", "be brief"), ("user", row["prompt"]), ("assistant", wrong), ("user", said[i])]
        text = " ".join(f"<|{role}|> {content} <|end|>" for role, content in turns)
        expected = f"<s> {text} <|assistant|>".split()
        assert template.tokenizer.convert_ids_to_tokens(script.asked[1][i]) == expected
        assert attempts[i][1].prompt_tokens == len(expected)


def test_rows_that_are_chats_go_on_as_chats():
    row = {"id": "r", "prompt": "b", "messages": [{"role": "user", "content": "on b a"}]}
    template = data.make_chat_template(chat_tokenizer(), DataConfig())
    ids = data.encode_turns(row, [], [Turn("unstack b a", [], " ; ")], template)
    text = "<s> <|user|> on b a <|end|> <|assistant|> unstack b a <|end|> <|user|> ; <|end|> <|assistant|>"
    assert template.tokenizer.convert_ids_to_tokens(ids) == text.split()


# --------------------------------------------------------------------------------------------------------- with a model

SHORT = GPT2Config(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=1.0,
    max_position_embeddings=96,
)
"""A model that knows few positions."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    write_jsonl(ROWS, folder / "test.jsonl")
    return folder


def make_evaluator(folder, temperature, model=MODEL):
    settings = (
        DataConfig(dataset=str(folder), eval_splits=("test",)),
        EvalConfig(eval_batch_size=4, eval_validator="builtin", eval_temperature=temperature),
        RewardConfig(),
        SamplingConfig(response_length=8),
    )
    return Evaluator(model, TOKENIZER, DataParallel(devices=jax.local_devices()[:1]), *settings, 0)


def test_round_0_is_the_plain_answer_and_later_rounds_are_those_of_the_conversation(folder):
    params = jax.device_get(models.init_params(MODEL, jax.random.key(1)))
    made = make_evaluator(folder, 0.0)
    plain = made.predict(params, "test", seed=3)
    repaired = made.predict_repaired(params, "test", RepairConfig(repair_rounds=1), seed=3)
    assert repaired[:2] == plain[:2] and repaired.tokens == plain.tokens
    assert not any(of_row[0][0].is_valid for of_row in repaired.repairs)
    first, second = (of_row[0][1] for of_row in repaired.repairs[:2])
    row, text = ROWS[0], plain.predictions[0][0].text
    logits_of = jax.jit(lambda ids: models.apply(MODEL, params, ids).logits)
    ids = TOKENIZER(prompts.conversation(row["prompt"], [(text, reason(row, text))]))["input_ids"]
    assert first.prompt_tokens == len(ids) != second.prompt_tokens
    for _ in range(first.tokens):
        padded = np.zeros((1, 120), np.int32)
        padded[0, : len(ids)] = ids
        ids.append(int(np.argmax(logits_of(padded)[0, len(ids) - 1])))
    said = TOKENIZER.convert_ids_to_tokens(ids[-first.tokens :])
    assert " ".join(said).removesuffix(" <eos>") == first.judged.prediction.text


def test_nothing_but_the_problem_gives_the_samples_of_plain_evaluation(folder):
    params = jax.device_get(models.init_params(MODEL, jax.random.key(1)))
    made = make_evaluator(folder, 1.0)
    samples = made.predict(params, "test", num_samples=3)
    control = made.predict_repaired(params, "test", RepairConfig(repair_rounds=2, repair_with="nothing"))
    texts = [[attempt.judged.prediction.text for attempt in of_row[0]] for of_row in control.repairs]
    assert texts == [[one.text for one in of_row] for of_row in samples.predictions]
    greedy_first = make_evaluator(folder, 0.0).predict_repaired(
        params, "test", RepairConfig(repair_rounds=1, repair_with="nothing", repair_temperature=1.0)
    )
    assert [of_row[0][1].judged.prediction.text for of_row in greedy_first.repairs] == [texts[i][1] for i in range(4)]
    assert [of_row[0][0].judged.prediction.text for of_row in greedy_first.repairs] != [texts[i][0] for i in range(4)]


def test_a_conversation_keeps_within_the_positions_of_the_model(folder):
    params = jax.device_get(models.init_params(SHORT, jax.random.key(1)))
    made = make_evaluator(folder, 0.0, SHORT)
    repaired = made.predict_repaired(params, "test", RepairConfig(repair_rounds=30))
    lengths = [[attempt.prompt_tokens for attempt in of_row[0]] for of_row in repaired.repairs]
    assert all(1 < len(of_row) < 30 and max(of_row) <= 96 - 8 for of_row in lengths)


# ---------------------------------------------------------------------------------------------------------- the command


def run(folder, dataset, **settings):
    builtin = {"eval_validator": "builtin", "response_length": 40, "eval_batch_size": 8, "eval_splits": ("test",)}
    out = io.StringIO()
    with redirect_stdout(out):
        evaluate(replace(EvaluateConfig(), **builtin | settings, dataset=str(dataset), output_dir=str(folder)))
    return json.loads((folder / "eval.json").read_text()), out.getvalue()


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory):
    return write_spoiled(tmp_path_factory.mktemp("models") / "spoiled", 0.05)


def test_the_command_adds_rounds_and_leaves_every_other_number_as_it_is(folder, spoiled, tmp_path):
    plain, out = run(tmp_path / "plain", folder, model=(str(spoiled),))
    assert "repair" not in plain["test"] and "repair rounds" not in out
    assert not (tmp_path / "plain" / "repair.jsonl").exists()
    repaired, out = run(tmp_path / "repaired", folder, model=(str(spoiled),), repair_rounds=2)
    rounds = repaired["test"].pop("repair")
    assert repaired == plain
    assert rounds[0]["validity"] == plain["test"]["validity"] and rounds[0]["validity"]["rate"] < 1.0
    assert rounds[0]["asked"] == 4 and len(rounds) == 3
    samples = [(tmp_path / name / "samples.jsonl").read_text() for name in ("plain", "repaired")]
    assert samples[0] == samples[1]
    lines = [json.loads(line) for line in (tmp_path / "repaired" / "repair.jsonl").read_text().splitlines()]
    assert sum(line["prompt_tokens"] for line in lines) == sum(one["prompt_tokens"] for one in rounds)
    assert all(bool(line["said"]) != line["valid"] for line in lines)
    assert "tokens per problem so far" in out


def test_several_models_are_repaired_each_for_itself(folder, spoiled, tmp_path):
    both, _ = run(tmp_path / "both", folder, model=("blocksworld-sft", str(spoiled)), repair_rounds=1)
    rounds = both["test"]["repair"]
    assert rounds[0]["asked"] == 8 and rounds[0]["validity"]["samples"] == 8
    assert rounds[0]["validity"] == both["test"]["validity"]


def test_a_style_without_turns_is_one_line_before_anything_is_written(folder, tmp_path, monkeypatch):
    mute = prompts.PROMPT_STYLES["atoms"]._replace(render_fault=None)
    monkeypatch.setitem(prompts.PROMPT_STYLES, "atoms", mute)
    with pytest.raises(
        ConfigError, match=r"prompt_style: expected one with repair turns \(brief, pddl, nl\), got 'atoms'"
    ):
        run(tmp_path / "run", folder, repair_rounds=1)
    assert not (tmp_path / "run").exists()
    check_styles([])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repair_rounds": -1}, "repair_rounds: expected an integer of at least 0, got -1"),
        ({"repair_with": "plan"}, "repair_with: expected reason without repair_rounds, got 'plan'"),
        ({"repair_temperature": 1.0}, "repair_temperature: expected None without repair_rounds, got 1.0"),
        (
            {"repair_rounds": 1, "repair_temperature": -1.0},
            "repair_temperature: expected a finite number of at least 0",
        ),
        ({"repair_rounds": 1, "plans": "p.jsonl"}, "repair_rounds: expected 0 without a model, got 1"),
        ({"repair_rounds": 1, "compare_with": ("m",)}, "repair_rounds: expected 0 with compare_with, got 1"),
        ({"repair_rounds": 1, "decoder": "reground"}, "repair_rounds: expected 0 with decoder reground, got 1"),
        (
            {"repair_rounds": 1, "num_samples": 2, "eval_temperature": 1.0},
            "repair_rounds: expected 0 with num_samples above 1, got 1",
        ),
        ({"repair_rounds": 1, "reward_funcs": ("sentiment",)}, "repair_rounds: expected 0 with reward_funcs sentiment"),
        (
            {"repair_rounds": 1, "repair_with": "nothing"},
            "repair_temperature: expected a number above 0 with repair_with",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        replace(EvaluateConfig(), **settings)


@pytest.mark.full
def test_answers_become_rows_and_a_model_learns_from_them_and_is_repaired(folder, spoiled, tmp_path):
    run(tmp_path / "answers", folder, model=(str(spoiled),), num_samples=3, eval_temperature=1.0)
    words = ["--samples", str(tmp_path / "answers" / "samples.jsonl"), "--dataset", str(folder), "--held_out", "0.3"]
    planning.run(["repair", *words, "--train_split", "test", "--output_dir", str(tmp_path / "data")])
    settings = {"dataset": str(tmp_path / "data"), "eval_splits": ("repair",), "model_path": str(spoiled)}
    small = {"total_episodes": 8, "batch_size": 4, "response_length": 40, "report_to": ("none",)}
    learned = sft(replace(SFTConfig(), **settings | small, output_dir=str(tmp_path / "sft")))
    assert "validity" in json.loads((learned / "eval.json").read_text())["repair"]
    repaired, _ = run(tmp_path / "repaired", folder, model=(str(learned / "policy"),), repair_rounds=1)
    assert len(repaired["test"]["repair"]) == 2
