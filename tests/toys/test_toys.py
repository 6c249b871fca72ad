"""Toys are made once, whole or not at all, by commands that exist; their texts have the answers that they claim."""

import subprocess
from random import Random

import pytest

from jaxppo import config, data, hf, toys
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ConfigError, ModelError, ToyError
from jaxppo.reward_functions.sentiment import make_sentiment_reward
from jaxppo.run.jsonl import read_metrics
from jaxppo.toys import __main__ as toys_command
from jaxppo.toys import classifier, texts

CONFIGS = {"sft": config.SFTConfig, "reward_model": config.RewardModelConfig}
ROWS = texts.summary_rows("test", 400, seed=1)
COLUMNS = {name: [row[name] for row in ROWS] for name in ("who", "deed", "wish")}


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXPPO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "toys"


def test_every_toy_is_made_by_a_command_that_exists():
    for name, toy in toys.TOYS.items():
        _, module, *arguments = toys.command_of(name, "somewhere")
        if toy.command == "toys":
            assert module == "jaxppo.toys" and arguments == [name, "--output_dir", "somewhere"]
            assert name in toys_command.MAKERS
        else:
            parse_cli(CONFIGS[toy.command], toy.command, arguments)


def test_a_toy_is_a_data_set_and_has_a_tokenizer_and_is_made_once(own_cache, monkeypatch, capfd):
    rows = data.read_rows("toy-reviews", "test", {"prompt": str})
    assert len(rows) == 256 and sum(row["label"] for row in rows) == 128
    assert "python -m jaxppo.toys toy-reviews" in capfd.readouterr().err
    (folder,) = own_cache.iterdir()
    assert (folder / toys.LOG_FILE).exists()
    assert toys.find("blocksworld-sft") is None and toys.find("user/toy-reviews") is None  # no toys
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("made again"))
    assert hf.find_model("toy-reviews") == toys.find("toy-reviews") == folder
    tokenizer = hf.load_padding_tokenizer(folder)
    ids = tokenizer(rows[0]["prompt"])["input_ids"]
    assert tokenizer.decode(ids) == rows[0]["prompt"]
    assert len(ids) == len(rows[0]["prompt"].split())  # a token a word
    assert tokenizer.pad_token_id == tokenizer.eos_token_id


def test_a_toy_that_fails_leaves_its_log_alone_and_says_why(own_cache, monkeypatch):
    broken = toys.TOYS["toy-reviews"]._replace(command="no_such_command")
    monkeypatch.setitem(toys.TOYS, "toy-reviews", broken)
    monkeypatch.setattr(toys, "_presets", lambda name: [])
    with pytest.raises(ToyError, match=r"toy-reviews: .*python -m jaxppo\.no_such_command "):
        toys.find("toy-reviews")
    (log,) = own_cache.iterdir()
    assert log.name.endswith(".failed.log") and "No module named" in log.read_text()


def test_the_place_of_a_toy_changes_with_all_it_is_made_from(monkeypatch):
    before = {name: toys._digest(name) for name in toys.TOYS}
    assert len(set(before.values())) == len(toys.TOYS)
    real = toys.preset_values
    changed = lambda command, name: real(command, name) | ({"seed": 1} if name == "toy-tldr-sft" else {})  # noqa: E731
    monkeypatch.setattr(toys, "preset_values", changed)
    differing = {name for name in toys.TOYS if toys._digest(name) != before[name]}
    assert differing == {"toy-tldr-sft", "toy-tldr-reward", "toy-tldr-reward-lora"}


def test_the_command_lists_toys_and_refuses_other_names(capsys, tmp_path):
    toys_command.run([])
    shown = capsys.readouterr().out
    assert all(name in shown for name in toys.TOYS)
    with pytest.raises(ConfigError, match="toy-reviews"):
        toys_command.run(["toy-tldr-sft", "--output_dir", str(tmp_path)])
    with pytest.raises(ConfigError, match="output_dir"):
        toys_command.run(["toy-reviews"])


def test_the_classifier_asks_for_torch_before_anything_is_made(monkeypatch, tmp_path):
    monkeypatch.setattr(classifier, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"toy-reviews-classifier: .*torch.* pip install"):
        toys_command.run(["toy-reviews-classifier", "--output_dir", str(tmp_path / "made")])
    assert not (tmp_path / "made").exists()


def test_the_data_set_of_posts_has_all_splits(tmp_path):
    toys_command.run(["toy-tldr", "--output_dir", str(tmp_path)])
    expected = {"sft": 8192, "train": 8192, "test": 256, "preferences": 8192, "preferences_test": 512}
    assert {split: len(read_metrics(tmp_path / f"{split}.jsonl")) for split in expected} == expected
    assert (tmp_path / "tokenizer.json").exists()


def test_reviews_mostly_say_what_their_label_says_and_facts_kept_is_1_for_a_summary_without_faults_alone():
    rows = texts.review_rows("train", 400, seed=1)
    assert rows == texts.review_rows("train", 400, seed=1) != texts.review_rows("train", 400, seed=2)
    scores = texts.favourable_words([row["prompt"] for row in rows])
    agreeing = [(score > 0) == (row["label"] == 1) for score, row in zip(scores, rows, strict=True) if score]
    assert 0.9 < sum(agreeing) / len(agreeing) < 1.0
    assert texts.favourable_words(["a dull and superb film", "warm , warm", "bad words only", "stale"]) == [0, 1, 0, -1]
    parts = texts.review_rows("sft", 50, seed=1)
    assert all(1 <= len(row["prompt"].split()) <= 4 and row["completion"][0] == " " for row in parts)

    def kept_with(*faults):
        return texts.facts_kept([texts.summary(row, faults, Random(0)) for row in ROWS], **COLUMNS)

    assert set(kept_with()) == {1.0}
    for fault in texts._FAULTS:
        # A wish or a deed drawn anew may be the right one.
        assert sum(value == 1.0 for value in kept_with(fault)) < 0.25 * len(ROWS), fault
    assert texts.facts_kept(["my sister sold my car"], ["my sister"], ["sold my car"], ["a new one"]) == [2 / 6]


@pytest.mark.parametrize(("steps", "num_rows"), [(2, 64), pytest.param(120, 1024, marks=pytest.mark.full)])
def test_the_classifier_learns_and_is_read_as_a_reward(steps, num_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(classifier, "_STEPS", steps)
    rows = texts.review_rows("classifier", num_rows, seed=1)
    prompts = [row["prompt"] for row in rows]
    tokenizer = toys_command.byte_level_bpe(prompts, pad_token="[PAD]")
    classifier.train_classifier(prompts, [row["label"] for row in rows], tokenizer, tmp_path)
    reward = make_sentiment_reward(str(tmp_path))
    good, bad = reward(["this movie has a"] * 2, [" superb plot . it was warm", " dull plot . it was stale"])
    assert steps < 120 or good > bad + 1.0
