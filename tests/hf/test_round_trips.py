"""Folder -> jaxppo -> folder, for every family and head: the tensors bit for bit, the configuration key for key."""

import itertools
import json

import jax
import pytest

from jaxppo import hf
from jaxppo.nn import FAMILIES
from tests.hf.families import HEADS, SMALL
from tests.torch_models import assert_equal_tensors, edit_config, read, torch_model


def shards_in(folder):
    return len(list(folder.glob("model-*.safetensors")))


# Each family with each head; how files are written in, and split, does not depend on either.
_WAYS = itertools.cycle(itertools.product(("float32", "bfloat16", "float16"), ("1GB", "8KB")))
CASES = [(name, head, *way) for (head, name), way in zip(itertools.product(HEADS, SMALL), _WAYS, strict=False)]


@pytest.mark.parametrize(("name", "head", "dtype", "shard_size"), CASES)
def test_round_trip_is_bit_equal(name, head, dtype, shard_size, tmp_path):
    theirs, ours, again = (tmp_path / folder for folder in ("theirs", "ours", "again"))
    torch_model(SMALL[name].raw, head, dtype).save_pretrained(theirs, max_shard_size=shard_size)
    config, params = hf.load_pretrained(theirs, dtype="auto")
    assert config == SMALL[name].config
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {dtype}
    hf.save_pretrained(ours, config, params, max_shard_size=shard_size)
    assert_equal_tensors(theirs, ours)
    assert read(ours) == read(theirs) | SMALL[name].older
    assert (read(ours)["dtype"], "torch_dtype" in read(ours)) == (dtype, False)
    assert (shards_in(ours) > 2) == (shards_in(theirs) > 2) == (shard_size == "8KB")
    has_head = FAMILIES[config.model_type].names["lm_head/kernel"].name in hf.files.open_tensors(ours)
    assert has_head == (head == "lm" and not config.tie_word_embeddings)
    hf.save_pretrained(again, *hf.load_pretrained(ours, dtype="auto"), max_shard_size=shard_size)
    assert_equal_tensors(ours, again)
    assert read(again) == read(ours)


@pytest.mark.parametrize("name", SMALL)
def test_round_trip_of_what_transformers_4_wrote_changes_nothing(name, tmp_path):
    """Its files have the older keys alone, among them that of the dtype."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    torch_model(SMALL[name].raw, "lm", "float16").save_pretrained(theirs)
    raw = read(theirs) | SMALL[name].older
    raw["torch_dtype"] = raw.pop("dtype")
    if SMALL[name].older:
        raw.pop("rope_parameters", None)
    (theirs / "config.json").write_text(json.dumps(raw))
    config, params = hf.load_pretrained(theirs, dtype="auto")
    assert config == SMALL[name].config
    hf.save_pretrained(ours, config, params)
    assert read(ours) == raw
    assert_equal_tensors(theirs, ours)


def test_older_keys_that_say_something_else_are_corrected(tmp_path):
    # transformers 5 reads `rope_parameters` first, transformers 4 these alone.
    torch_model(SMALL["gpt_neox"].raw).save_pretrained(tmp_path / "theirs")
    edit_config(tmp_path / "theirs", rotary_pct=0.25, rotary_emb_base=77.0)
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
