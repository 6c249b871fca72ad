"""Folder -> jaxppo -> folder, for every family and head: the tensors bit for bit, the configuration key for key."""

import json

import jax
import pytest

from jaxppo import hf
from jaxppo.nn import FAMILIES
from tests.hf.families import HEADS, SMALL, torch_model
from tests.hf.test_folders import assert_equal_tensors, edit_config, read, word_tokenizer


def tensor_names(folder):
    return set(hf.files.open_tensors(folder))


def shards_in(folder):
    return len(list(folder.glob("model-*.safetensors")))


def test_every_family_is_in_the_table():
    assert {small.config.model_type for small in SMALL.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("shard_size", ["1GB", "8KB"], ids=["single", "sharded"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_round_trip_is_bit_equal(name, head, shard_size, dtype, tmp_path):
    theirs, ours, again = (tmp_path / folder for folder in ("theirs", "ours", "again"))
    torch_model(name, head, dtype).save_pretrained(theirs, max_shard_size=shard_size)
    config, params = hf.load_pretrained(theirs, dtype="auto")
    assert config == SMALL[name].config
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {dtype}
    hf.save_pretrained(ours, config, params, max_shard_size=shard_size)
    assert_equal_tensors(theirs, ours)
    assert read(ours) == read(theirs) | SMALL[name].older
    assert (read(ours)["dtype"], "torch_dtype" in read(ours)) == (dtype, False)
    assert (shards_in(ours) > 2) == (shards_in(theirs) > 2) == (shard_size == "8KB")
    has_head = FAMILIES[config.model_type].names["lm_head/kernel"].name in tensor_names(ours)
    assert has_head == (head == "lm" and not config.tie_word_embeddings)
    hf.save_pretrained(again, *hf.load_pretrained(ours, dtype="auto"), max_shard_size=shard_size)
    assert_equal_tensors(ours, again)
    assert read(again) == read(ours)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_round_trip_keeps_the_older_name_of_the_dtype(name, dtype, tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    torch_model(name, "lm", dtype).save_pretrained(theirs)
    raw = read(theirs)
    (theirs / "config.json").write_text(json.dumps({"torch_dtype": raw.pop("dtype")} | raw | SMALL[name].older))
    hf.save_pretrained(ours, *hf.load_pretrained(theirs, dtype="auto"))
    assert read(ours) == read(theirs)
    assert (read(ours)["torch_dtype"], "dtype" in read(ours)) == (dtype, False)
    assert_equal_tensors(theirs, ours)


@pytest.mark.parametrize("name", [name for name, small in SMALL.items() if small.older])
def test_round_trip_of_what_transformers_4_wrote_changes_nothing(name, tmp_path):
    # Its files have the older keys alone.
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    torch_model(name, "lm").save_pretrained(theirs)
    raw = {key: value for key, value in read(theirs).items() if key != "rope_parameters"} | SMALL[name].older
    (theirs / "config.json").write_text(json.dumps(raw))
    config, params = hf.load_pretrained(theirs)
    assert config == SMALL[name].config
    hf.save_pretrained(ours, config, params)
    assert read(ours) == raw


@pytest.mark.parametrize("older", [{"rotary_pct": 0.25, "rotary_emb_base": 77.0}, {"rotary_pct": 0.25}])
def test_older_keys_that_say_something_else_are_corrected(older, tmp_path):
    # transformers 5 reads `rope_parameters` first, transformers 4 these alone.
    torch_model("gpt_neox", "lm").save_pretrained(tmp_path / "theirs")
    edit_config(tmp_path / "theirs", **older)
    config, params = hf.load_pretrained(tmp_path / "theirs")
    assert config == SMALL["gpt_neox"].config
    hf.save_pretrained(tmp_path / "ours", config, params)
    assert read(tmp_path / "ours") == read(tmp_path / "theirs") | SMALL["gpt_neox"].older


@pytest.mark.parametrize("name", sorted(path.name for path in hf.ASSETS.iterdir()))
def test_round_trip_of_a_shipped_model_changes_nothing(name, tmp_path):
    folder = hf.ASSETS / name
    policy = hf.load_policy(name)
    hf.save_pretrained(tmp_path / "ours", policy.config, policy.params, hf.load_tokenizer(folder))
    assert_equal_tensors(folder, tmp_path / "ours")
    assert read(tmp_path / "ours") == read(folder)
    assert read(tmp_path / "ours", "tokenizer.json") == read(folder, "tokenizer.json")
    assert read(tmp_path / "ours", "generation_config.json") == read(folder, "generation_config.json")
    written, shipped = (read(place, "tokenizer_config.json") for place in (tmp_path / "ours", folder))
    of_this_read = {"is_local", "local_files_only"}  # transformers adds how it was read
    assert {key: value for key, value in written.items() if key not in of_this_read} == shipped


def test_save_tokenizer_writes_names_that_transformers_4_reads(tmp_path):
    transformers = pytest.importorskip("transformers")
    special = {"eos_token": "</s>", "additional_special_tokens": ["w7", "w8"]}
    tokenizer = word_tokenizer(size=20, **special)
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
