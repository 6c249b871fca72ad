"""Tokenizers of model folders, and what a folder says of its tokens: how many there are, and which end a text."""

import dataclasses
import json
import subprocess
import sys

import pytest

from jaxppo import hf
from jaxppo.errors import ModelError
from jaxppo.hf.export import base_of, models_meta
from jaxppo.hf.tokenizer import with_tokens
from jaxppo.nn import ModelSource
from tests.torch_models import CONFIGS, edit_json, random_params, read, refused, transformers, word_tokenizer

CONFIG = CONFIGS["gpt_neox"]
TOKENIZER = word_tokenizer(size=50, eos_token="</s>")
CONFIGURED = hf.config_from_hf(hf.config_to_hf(CONFIG, "lm"))


def write_generation(folder, **content):
    (folder / "generation_config.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with 61 rows, 50 tokens and one end."""
    folder = tmp_path_factory.mktemp("model") / "policy"
    hf.save_pretrained(folder, CONFIG, random_params(CONFIG), TOKENIZER)
    return folder


def test_load_policy_knows_what_is_beside_the_config(saved):
    policy = hf.load_policy(saved)
    assert policy.config == dataclasses.replace(CONFIG, source=ModelSource(num_tokens=50, end_ids=(2,)))
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
    assert with_tokens(config, TOKENIZER, tmp_path).source.end_ids == ends


def test_with_tokens_takes_only_what_files_name_and_counts_up_to_the_last_token(tmp_path):
    raw = {name: value for name, value in hf.config_to_hf(CONFIG, "lm").items() if name != "eos_token_id"}
    config = hf.config_from_hf(raw)
    assert config.eos_token_id == 2  # what the family means by no key
    assert with_tokens(config, TOKENIZER, tmp_path).source.end_ids == ()
    assert with_tokens(config, word_tokenizer(size=61), tmp_path).source.num_tokens is None
    assert with_tokens(config, word_tokenizer(size=50, last=57), tmp_path).source.num_tokens == 58


@pytest.mark.parametrize("value", [[2, 61], [], [2, "3"], "2", -1])
def test_ends_that_are_no_tokens_are_refused_in_both_files(value, tmp_path):
    refused("^eos_token_id: ", hf.config_from_hf, hf.config_to_hf(CONFIG, "lm") | {"eos_token_id": value})
    write_generation(tmp_path, eos_token_id=value)
    refused("generation_config.json: eos_token_id: ", with_tokens, CONFIGURED, TOKENIZER, tmp_path)


def test_lists_of_ends_come_out_as_they_were(saved, tmp_path):
    folder, params = tmp_path / "base", hf.load_pretrained(saved)[1]
    several = dataclasses.replace(CONFIG, eos_token_id=(3, 2))
    hf.save_pretrained(folder, several, params, TOKENIZER, {"eos_token_id": [4, 3, 2], "top_k": 7})
    assert (read(folder)["eos_token_id"], several.eos_token_ids) == ([3, 2], (3, 2))
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == [4, 3, 2]
    policy = hf.load_policy(folder)
    assert policy.config.source.end_ids == (3, 2, 4)
    base = base_of(str(folder), policy.loaded, policy.config, "lm", is_frozen=False)
    assert base["config"] == hf.config_to_hf(policy.loaded.config, "lm") == read(folder)
    generation = lambda stop: models_meta(base, None, None, stop, "blocksworld", "")["policy"]["generation_config"]  # noqa: E731
    assert generation((2, 3, 4)) == read(folder, "generation_config.json")  # the same ends
    assert generation((5, 3, 2, 4))["eos_token_id"] == [5, 3, 2, 4]  # that of a chat template beside them
    assert generation((5,))["eos_token_id"] == 5
    assert generation(()) == base["generation_config"]
    hf.save_pretrained(tmp_path / "again", hf.config_from_hf(base["config"]), params, TOKENIZER, generation((2, 3, 4)))
    for file in ("config.json", "generation_config.json"):
        assert read(tmp_path / "again", file) == read(folder, file)


def test_save_tokenizer_writes_names_that_transformers_4_reads(tmp_path):
    tokenizer = word_tokenizer(size=20, eos_token="</s>", additional_special_tokens=["w7", "w8"])
    tokenizer.save_pretrained(tmp_path / "theirs")
    hf.save_tokenizer(tokenizer, tmp_path / "ours")
    theirs, ours = (read(tmp_path / name, "tokenizer_config.json") for name in ("theirs", "ours"))
    assert (theirs.pop("tokenizer_class"), theirs.pop("extra_special_tokens")) == ("TokenizersBackend", ["w7", "w8"])
    assert ours == theirs | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["w7", "w8"],
    }
    load = transformers.AutoTokenizer.from_pretrained
    first, second, ours = load(tmp_path / "theirs"), load(tmp_path / "ours"), hf.load_tokenizer(tmp_path / "ours")
    for other in (second, ours):
        assert type(other) is type(first)
        assert other.get_vocab() == first.get_vocab()
        assert other.all_special_tokens == first.all_special_tokens == ["</s>", "w7", "w8"]
        assert other("b1 w7 w9 w8").input_ids == first("b1 w7 w9 w8").input_ids


def test_load_tokenizer_names_the_folder_without_one(tmp_path):
    refused(f"^{tmp_path}: .*tokenizer", hf.load_tokenizer, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    refused(f"^{tmp_path}: .*tokenizer", hf.load_tokenizer, tmp_path)
    refused("nowhere", hf.load_tokenizer, tmp_path / "nowhere")


@pytest.mark.full
def test_load_tokenizer_of_the_plain_class_is_what_transformers_chooses_and_imports_no_torch(tmp_path):
    word_tokenizer(bos_token="<s>", pad_token="<pad>", eos_token="</s>", padding_side="left").save_pretrained(tmp_path)
    ours, theirs = hf.load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is type(theirs)
    assert ours.init_kwargs == theirs.init_kwargs
    assert ours("put-down b1 w7") == theirs("put-down b1 w7")
    code = f"import sys; from jaxppo import hf; hf.load_tokenizer({str(tmp_path)!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_load_tokenizer_runs_no_code_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder, trace = tmp_path / "model", tmp_path / "trace"
    hf.save_pretrained(folder, CONFIG, random_params(CONFIG), word_tokenizer(eos_token="</s>"))
    (folder / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Evil: pass\n")
    file = folder / "tokenizer_config.json"
    edit_json(file, auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]})
    for name in (read(folder, file.name)["tokenizer_class"], "Evil"):
        edit_json(file, tokenizer_class=name)
        try:
            assert hf.load_tokenizer(folder)("b1").input_ids == [4]
        except ModelError as error:
            assert str(folder) in str(error)
        assert not trace.exists()
    with pytest.raises(AttributeError):  # the class is none, but its file was run: the attack would have worked
        transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert trace.exists()
