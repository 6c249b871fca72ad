"""What a model folder says of its tokens: how many there are, and which of them end a text."""

import dataclasses
import json

import jax
import pytest

from jaxppo import hf, models
from jaxppo.errors import ModelError
from jaxppo.hf.export import base_of, models_meta
from jaxppo.hf.tokenizer import with_tokens
from tests.hf.test_folders import CONFIG, read, word_tokenizer

TOKENIZER = word_tokenizer(size=50, eos_token="</s>")
CONFIGURED = hf.config_from_hf(hf.config_to_hf(CONFIG, "lm"))


def write_generation(folder, **content):
    (folder / "generation_config.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with 61 rows, 50 tokens and one end."""
    folder = tmp_path_factory.mktemp("model") / "policy"
    hf.save_pretrained(folder, CONFIG, models.init_params(CONFIG, jax.random.key(0)), TOKENIZER)
    return folder


def test_load_policy_knows_what_is_beside_the_config(saved):
    policy = hf.load_policy(saved)
    assert policy.config == dataclasses.replace(CONFIG, num_tokens=50, end_ids=(2,))
    assert (policy.config.num_logits, CONFIG.num_logits) == (50, 61)
    assert hf.load_pretrained(saved)[0] == policy.loaded.config == CONFIG  # of these files alone


@pytest.mark.parametrize(
    ("of_config", "of_generation", "ends"),
    [
        (2, 2, (2,)),
        (2, [2, 4], (2, 4)),
        ([3, 2], [2, 4], (3, 2, 4)),
        ([3, 2], "REMOVE", (3, 2)),
        (None, [5, 5], (5,)),
        (50256, 50256, ()),  # defaults of another size, which transformers writes out
        (None, None, ()),
    ],
)
def test_with_tokens_joins_the_ends_of_both_files(of_config, of_generation, ends, tmp_path):
    config = hf.config_from_hf(hf.config_to_hf(CONFIG, "lm") | {"eos_token_id": of_config})
    write_generation(tmp_path, **({} if of_generation == "REMOVE" else {"eos_token_id": of_generation}))
    assert with_tokens(config, TOKENIZER, tmp_path).end_ids == ends


def test_with_tokens_takes_only_what_files_name(tmp_path):
    raw = {name: value for name, value in hf.config_to_hf(CONFIG, "lm").items() if name != "eos_token_id"}
    config = hf.config_from_hf(raw)
    assert config.eos_token_id == 2  # what the family means by no key
    assert with_tokens(config, TOKENIZER, tmp_path).end_ids == ()


def test_with_tokens_counts_up_to_the_last_token(tmp_path):
    assert with_tokens(CONFIGURED, word_tokenizer(size=61), tmp_path).num_tokens is None
    with_gap = word_tokenizer(size=50)
    with_gap.get_vocab = lambda: {"first": 0, "last": 57}  # type: ignore[method-assign]
    assert with_tokens(CONFIGURED, with_gap, tmp_path).num_tokens == 58


@pytest.mark.parametrize(
    ("value", "got"), [([2, 61], r"\[2, 61\]"), ([], r"\[\]"), ([2, "3"], r"\[2, '3'\]"), ("2", "'2'"), (-1, "-1")]
)
def test_ends_that_are_no_tokens_are_refused_in_both_files(value, got, tmp_path):
    message = rf"eos_token_id: expected null, one integer or several in \[0, vocab_size=61\), got {got}"
    with pytest.raises(ModelError, match=f"^{message}"):
        hf.config_from_hf(hf.config_to_hf(CONFIG, "lm") | {"eos_token_id": value})
    write_generation(tmp_path, eos_token_id=value)
    with pytest.raises(ModelError, match=rf"generation_config.json: {message}"):
        with_tokens(CONFIGURED, TOKENIZER, tmp_path)


def test_lists_of_ends_come_out_as_they_were(saved, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder, params = tmp_path / "base", hf.load_pretrained(saved)[1]
    several = dataclasses.replace(CONFIG, eos_token_id=(3, 2))
    hf.save_pretrained(folder, several, params, TOKENIZER, {"eos_token_id": [4, 3, 2], "top_k": 7})
    assert (read(folder)["eos_token_id"], several.eos_token_ids) == ([3, 2], (3, 2))
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == [4, 3, 2]
    policy = hf.load_policy(folder)
    assert policy.config.end_ids == (3, 2, 4)
    base = base_of(str(folder), policy.loaded, policy.config, "lm")
    assert base["config"] == hf.config_to_hf(policy.loaded.config, "lm") == read(folder)
    generation = lambda stop: models_meta(base, None, None, stop, "blocksworld")["policy"]["generation_config"]  # noqa: E731
    assert generation((2, 3, 4)) == read(folder, "generation_config.json")  # the same ends
    assert generation((5, 3, 2, 4))["eos_token_id"] == [5, 3, 2, 4]  # that of a chat template beside them
    assert generation((5,))["eos_token_id"] == 5
    assert generation(()) == base["generation_config"]
    hf.save_pretrained(tmp_path / "again", hf.config_from_hf(base["config"]), params, TOKENIZER, generation((2, 3, 4)))
    for file in ("config.json", "generation_config.json"):
        assert read(tmp_path / "again", file) == read(folder, file)
