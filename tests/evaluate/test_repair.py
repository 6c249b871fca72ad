"""Repair rounds: with a script in the place of the model, with a model, and by chat template."""

import jax
import pytest

from jaxppo import data, models
from jaxppo.config import DataConfig, EvalConfig, RepairConfig, RewardConfig, SamplingConfig
from jaxppo.data import Turn
from jaxppo.evaluate.decoding import Completion
from jaxppo.evaluate.evaluator import Evaluator
from jaxppo.evaluate.intervals import wilson
from jaxppo.evaluate.repair import attempt_records, repair_plans, repair_results, repair_table
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning import prompts
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.planning.datasets.rows import build_split
from jaxppo.reward_functions.plan import PlanScoring
from tests.data.tokenizers import WORDS, chat_tokenizer
from tests.evaluate.small_models import MODEL, SIZES, likeliest_words, logits_without_cache

ROWS = build_split("test", sizes={3: 2, 4: 2}, seed=0, unique=True)
TOKENIZER = data.word_tokenizer()
PLAIN = data.make_chat_template(TOKENIZER, DataConfig())
SCORING = PlanScoring(validator="builtin")


def encoded_by(template, rows=ROWS):
    return data.encode_prompts(template.tokenizer, rows, 2048, template=template)


class Script:
    """Answers with given texts, and keeps what it was asked."""

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


def repaired(script, most=512, **settings):
    config = RepairConfig(**{"repair_rounds": 2} | settings)
    return repair_plans(ROWS, encoded_by(PLAIN), script, PLAIN, config, SCORING, most)


def test_only_failures_are_asked_again_with_all_that_was_said_and_results_count_every_token():
    script = Script(*ROUNDS)
    attempts = repaired(script)
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
            assert attempt.feedback == ("" if attempt.is_valid else turns[-1][1])

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
    table = repair_table({"test": {"repair": results}})
    assert [(row["round"], row["asked"]) for row in table] == [("0", "4"), ("1", "3"), ("2", "2")]
    records = attempt_records(ROWS, repairs)
    assert [(record["id"], record["round"], record["valid"]) for record in records[1:3]] == [
        (ROWS[1]["id"], 0, False),
        (ROWS[1]["id"], 1, True),
    ]
    assert sum(record["completion_tokens"] for record in records) == sum(one["completion_tokens"] for one in results)


@pytest.mark.parametrize(("repair_with", "said"), [("plan", " not <plan>"), ("nothing", "")])
def test_controls_say_less(repair_with, said):
    script = Script(*ROUNDS)
    attempts = repaired(script, repair_rounds=1, repair_with=repair_with)
    for i in (1, 2, 3):
        turn = f" {ROUNDS[0][i]}{said}" if said else ""
        assert script.asked[1][i] == TOKENIZER(ROWS[i]["prompt"] + turn)["input_ids"]
        assert attempts[i][0].feedback == said


def test_a_conversation_that_gets_too_long_ends_there():
    encoded = encoded_by(PLAIN)
    most = max(map(len, encoded)) + 6
    attempts = repaired(Script(*ROUNDS), most)
    lengths = [len(encoded[i]) + len(f"{ROUNDS[0][i]} {reason(ROWS[i], ROUNDS[0][i])}".split()) for i in (1, 2, 3)]
    fits = [length <= most for length in lengths]
    assert [len(attempts[i]) > 1 for i in (1, 2, 3)] == fits and {*fits} == {True, False}
    assert len(repair_results([[of_row] for of_row in attempts])) > 1


@pytest.mark.parametrize("style", ["nl", "atoms"])
def test_with_a_chat_template_answers_and_reasons_are_turns(style):
    rows = build_split("test", sizes={3: 2}, seed=0, unique=True, prompt_style=style)
    wrong = prompts.render_completion([("pick-up", "a")], style, rows[0]["domain_pddl"])
    said = [reason(row, wrong).strip() for row in rows]
    texts = [row[column] for row in rows for column in ("prompt", "completion")] + [wrong, *said]
    words = sorted({*" ".join(texts).split()} - {*WORDS.split()})
    tokenizer = chat_tokenizer(words=f"{WORDS} {' '.join(words)}")
    template = data.make_chat_template(tokenizer, DataConfig(system_prompt="be brief"))
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


SHORT = GPT2Config(**SIZES, max_position_embeddings=64)
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


def test_round_0_is_the_plain_answer_and_later_rounds_are_those_of_the_conversation(folder, params):
    made = make_evaluator(folder, 0.0)
    plain = made.predict(params, "test", seed=3)
    repaired = made.predict_repaired(params, "test", RepairConfig(repair_rounds=1), seed=3)
    assert repaired[:2] == plain[:2]
    assert not any(of_row[0][0].is_valid for of_row in repaired.repairs)
    first, second = (of_row[0][1] for of_row in repaired.repairs[:2])
    row, text = ROWS[0], plain.predictions[0][0].text
    conversation = prompts.conversation(row["prompt"], [(text, reason(row, text))])
    assert first.prompt_tokens == len(conversation.split()) != second.prompt_tokens
    likeliest = likeliest_words(logits_without_cache(params), TOKENIZER, conversation, 8)
    assert first.judged.prediction.text == likeliest


def test_nothing_but_the_problem_gives_the_samples_of_plain_evaluation(folder, params):
    made = make_evaluator(folder, 1.0)
    samples = made.predict(params, "test", num_samples=3)
    control = made.predict_repaired(params, "test", RepairConfig(repair_rounds=2, repair_with="nothing"))
    texts = [[attempt.judged.prediction.text for attempt in of_row[0]] for of_row in control.repairs]
    assert texts == [[one.text for one in of_row] for of_row in samples.predictions]
    config = RepairConfig(repair_rounds=1, repair_with="nothing", repair_temperature=1.0)
    greedy_first = make_evaluator(folder, 0.0).predict_repaired(params, "test", config)
    attempts = [[attempt.judged.prediction.text for attempt in of_row[0]] for of_row in greedy_first.repairs]
    assert [second for _, second in attempts] == [second for _, second, _ in texts]
    assert [first for first, _ in attempts] != [first for first, _, _ in texts]


def test_a_conversation_keeps_within_the_positions_of_the_model(folder):
    params = jax.device_get(models.init_params(SHORT, jax.random.key(1)))
    made = make_evaluator(folder, 0.0, SHORT)
    repaired = made.predict_repaired(params, "test", RepairConfig(repair_rounds=30))
    lengths = [[attempt.prompt_tokens for attempt in of_row[0]] for of_row in repaired.repairs]
    assert all(1 < len(of_row) < 30 and max(of_row) <= 64 - 8 for of_row in lengths)
