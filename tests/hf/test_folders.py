"""Model folders against transformers itself: what it writes we read, what we write it reads, bit for bit."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from jaxppo import hf, models
from jaxppo.errors import ModelError
from jaxppo.hf import files as model_files
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.rotary import Rope
from jaxppo.parallel import stacks

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
CONFIG = GPTNeoXConfig(**SIZES, bos_token_id=0, eos_token_id=2, pad_token_id=1)
QKV = "gpt_neox.layers.1.attention.query_key_value.weight"

CLASSES = {
    ("gpt_neox", "lm"): "GPTNeoXForCausalLM",
    ("gpt_neox", "score"): "GPTNeoXForSequenceClassification",
    ("gpt_neox", None): "GPTNeoXModel",
    ("gpt2", "lm"): "GPT2LMHeadModel",
    ("gpt2", "score"): "GPT2ForSequenceClassification",
    ("gpt2", None): "GPT2Model",
}
CASES = pytest.mark.parametrize(("family", "head"), CLASSES, ids=CLASSES.values())
SHARD_SIZES = pytest.mark.parametrize("shard_size", ["1GB", "8KB"], ids=["single", "sharded"])


def assert_equal_trees(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def assert_equal_tensors(first, second):
    """Two folders hold the same tensors: names, dtypes, shapes and bytes."""
    first, second = (model_files.open_tensors(folder) for folder in (first, second))
    assert set(first) == set(second)
    for name, tensor in first.items():
        one, other = tensor[...], second[name][...]
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        assert one.tobytes() == other.tobytes(), name


def read(folder, file="config.json"):
    return json.loads((folder / file).read_text())


def torch_config(family="gpt_neox", **options):
    transformers = pytest.importorskip("transformers")
    special = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "initializer_range": 0.3, "num_labels": 1}
    if family == "gpt_neox":
        return transformers.GPTNeoXConfig(**(SIZES | special | options))
    sizes = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 64}
    return transformers.GPT2Config(**(sizes | special | options))


def torch_model(family="gpt_neox", head="lm", dtype="float32", **options):
    """A random model of transformers, its weights large enough for bits to matter and no two of them equal."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = getattr(transformers, CLASSES[family, head])(torch_config(family, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(getattr(torch, dtype))


def torch_folder(folder, family="gpt_neox", head="lm", dtype="float32", shard_size="1GB", **options):
    """Let transformers write such a model."""
    model = torch_model(family, head, dtype, **options)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def batch(rows=4, width=9):
    """(ids, mask, lengths), padded on the right."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, width + 1, rows)
    mask = np.arange(width) < lengths[:, None]
    return np.where(mask, generator.integers(3, 61, (rows, width)), 1), mask, lengths


def torch_output(model, ids, mask):
    """Logits of a language model, scores of a classifier, hidden states of a trunk."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return model(torch.tensor(ids), attention_mask=torch.tensor(mask.astype(int)))[0].float().numpy()


@pytest.fixture
def saved(tmp_path):
    """(folder, parameters) of a language model written by us."""
    params = models.init_params(CONFIG, jax.random.key(0))
    hf.save_pretrained(tmp_path / "model", CONFIG, params)
    return tmp_path / "model", params


def edit_config(folder, **changes):
    raw = read(folder) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v != "REMOVE"}))


def edit_tensors(folder, **changes):
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: value for name, value in tensors.items() if value is not None}, file)


def to_bin(folder, rename=lambda name: name, zip_format=True, **more):
    """Turn model.safetensors into pytorch_model.bin, as torch.save of a state dict writes it."""
    torch = pytest.importorskip("torch")
    tensors = load_file(folder / "model.safetensors")
    state = {rename(name): torch.tensor(tensor) for name, tensor in tensors.items()} | more
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zip_format)
    (folder / "model.safetensors").unlink()


# ----------------------------------------------------------------------------------------------- bad weights


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("placed", [False, True])
def test_weights_that_are_not_finite_are_refused_by_name(saved, value, placed):
    folder, params = saved
    weights = np.asarray(load_file(folder / "model.safetensors")[QKV])
    weights[3, 5] = value
    edit_tensors(folder, **{QKV: weights})
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    placement = (lambda path, shape: NamedSharding(mesh, PartitionSpec())) if placed else None
    with pytest.raises(ModelError, match=f"{QKV}: expected finite weights, got NaN or infinite ones"):
        hf.load_model(folder, placement=placement)
    assert hf.load_model(folder, shapes_only=True).params.keys() == params.keys()


@pytest.mark.parametrize("shapes_only", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
def test_weights_that_are_integers_are_refused_also_by_a_dry_run(saved, dtype, shapes_only):
    folder, _ = saved
    edit_tensors(folder, **{QKV: np.zeros((96, 32), dtype)})
    with pytest.raises(ModelError, match=f"{QKV}: expected floating-point weights, got [IUB]"):
        hf.load_model(folder, shapes_only=shapes_only)


# ---------------------------------------------------------------------------------------------- round trips


# As older versions of transformers wrote them.
OLD_CONFIGS = {
    "gpt_neox": {
        "_name_or_path": "EleutherAI/pythia",
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        **SIZES,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "rotary_pct": 0.5,
        "rotary_emb_base": 500,
        "rope_scaling": None,
        "torch_dtype": "float32",
        "transformers_version": "4.29.2",
        "use_cache": True,
        "classifier_dropout": 0.1,
        "my_own_key": {"nested": [1, None]},
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "n_ctx": 64,
        "n_embd": 32,
        "n_head": 4,
        "n_inner": 48,
        "n_layer": 2,
        "n_positions": 64,
        "summary_type": "cls_index",
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 61,
    },
}


@pytest.mark.parametrize("family", OLD_CONFIGS)
def test_round_trip_keeps_the_config_of_older_versions(family, tmp_path):
    old = OLD_CONFIGS[family]
    torch_folder(tmp_path / "theirs", family)
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(old | {"auto_map": {"AutoModel": "code.Model"}}))
    hf.save_pretrained(tmp_path / "ours", *hf.load_pretrained(tmp_path / "theirs"))
    assert read(tmp_path / "ours") == old
    assert_equal_tensors(tmp_path / "theirs", tmp_path / "ours")


def test_save_pretrained_takes_stacked_layers(tmp_path):
    params = models.init_params(CONFIG, jax.random.key(0))
    hf.save_pretrained(tmp_path / "model", CONFIG, stacks.stacked(params))
    assert_equal_trees(hf.load_pretrained(tmp_path / "model")[1], params)


@pytest.mark.parametrize(
    ("family", "key", "written"), [("gpt_neox", "torch_dtype", "bfloat16"), ("gpt2", "dtype", "bfloat16")]
)
def test_save_pretrained_writes_the_dtype_of_the_weights(family, key, written, tmp_path):
    torch_folder(tmp_path / "theirs", family)
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(OLD_CONFIGS[family]))
    config, params = hf.load_pretrained(tmp_path / "theirs")
    hf.save_pretrained(tmp_path / "ours", config, params, dtype="bfloat16")
    assert read(tmp_path / "ours") == OLD_CONFIGS[family] | {key: written}
    tensors = load_file(tmp_path / "ours" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        np.testing.assert_array_equal(tensors[name], tensor.astype(jnp.bfloat16))
        assert tensors[name].dtype == jnp.bfloat16


def test_config_to_hf_writes_the_dtype_under_both_keys_where_a_file_has_both():
    config = hf.config_from_hf(OLD_CONFIGS["gpt_neox"] | {"dtype": "bfloat16", "torch_dtype": "bfloat16"})
    raw = hf.config_to_hf(config, "lm", "float32")
    assert (raw["dtype"], raw["torch_dtype"]) == ("float32", "float32")


@pytest.mark.parametrize("family", OLD_CONFIGS)
def test_config_to_hf_does_not_depend_on_where_a_model_computes(family):
    config = hf.config_from_hf(OLD_CONFIGS[family])
    on_a_gpu = dataclasses.replace(
        config, accelerated=True, attention="triton", compute_dtype="bfloat16", gradient_checkpointing=True
    )
    assert hf.config_to_hf(on_a_gpu, "lm") == hf.config_to_hf(config, "lm") == OLD_CONFIGS[family]


def test_config_to_hf_writes_a_change_over_old_keys():
    transformers = pytest.importorskip("transformers")
    old = OLD_CONFIGS["gpt_neox"]
    config = dataclasses.replace(hf.config_from_hf(old), rope=Rope(rope_theta=700.0), pad_token_id=3)
    raw = hf.config_to_hf(config, "lm")
    assert hf.config_from_hf(raw) == config
    assert (raw["rotary_pct"], raw["rotary_emb_base"]) == (0.5, 700.0)  # for transformers 4
    assert "rope_scaling" not in raw
    assert raw["my_own_key"] == old["my_own_key"]
    theirs = transformers.GPTNeoXConfig.from_dict(raw)
    assert (theirs.rope_parameters["rope_theta"], theirs.rope_parameters["partial_rotary_factor"]) == (700.0, 0.5)
    assert theirs.pad_token_id == 3


@CASES
@SHARD_SIZES
def test_transformers_loads_our_folder_and_computes_the_same(family, head, shard_size, tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = torch_folder(tmp_path / "theirs", family, head)
    config, params = hf.load_pretrained(tmp_path / "theirs")
    hf.save_pretrained(tmp_path / "ours", config, params, max_shard_size=shard_size)
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists() == (shard_size == "8KB")
    auto = {"lm": "AutoModelForCausalLM", "score": "AutoModelForSequenceClassification", None: "AutoModel"}[head]
    ours, info = getattr(transformers, auto).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids, mask, lengths = batch()
    expected = torch_output(theirs, ids, mask)
    np.testing.assert_array_equal(torch_output(ours.eval(), ids, mask), expected)
    output = models.apply(config, params, jnp.asarray(ids), logits=head == "lm")
    if head == "score":
        scores = models.scores(params, output.hidden)[np.arange(len(ids)), lengths - 1]
        np.testing.assert_allclose(scores, expected[:, 0], atol=1e-4, rtol=0)
    else:
        computed = output.logits if head == "lm" else output.hidden
        np.testing.assert_allclose(computed[mask], expected[mask], atol=1e-4, rtol=0)
    assert np.abs(expected).max() > 1  # or the tolerance would be empty


@pytest.mark.parametrize(("head", "auto"), [("lm", "CausalLM"), ("score", "SequenceClassification")])
@pytest.mark.parametrize("config", [CONFIG, GPT2Config(**SIZES, max_position_embeddings=64)], ids=["gpt_neox", "gpt2"])
def test_transformers_loads_a_model_that_began_here(config, head, auto, tmp_path):
    transformers = pytest.importorskip("transformers")
    params = models.init_params(config, jax.random.key(0), head)
    hf.save_pretrained(tmp_path, config, params, card="# A card\n")
    load = getattr(transformers, f"AutoModelFor{auto}").from_pretrained
    model, info = load(tmp_path, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.num_labels == (1 if head == "score" else 2)
    assert (tmp_path / "README.md").read_text() == "# A card\n"
    loaded = hf.load_model(tmp_path)
    assert loaded.config == config
    assert_equal_trees(loaded.params, params)


# ---------------------------------------------------------------------------------------------- reading weights


def test_load_pretrained_reads_shards(tmp_path):
    torch_folder(tmp_path / "one")
    torch_folder(tmp_path / "many", shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    (config, params), (sharded_config, sharded) = (hf.load_pretrained(tmp_path / name) for name in ("one", "many"))
    assert config == sharded_config
    assert_equal_trees(params, sharded)


def test_load_pretrained_names_a_missing_shard(tmp_path):
    torch_folder(tmp_path, shard_size="20KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelError, match=f"{shard.name}: expected a readable safetensors file"):
        hf.load_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_load_pretrained_turns_half_precision_into_float32(dtype, tmp_path):
    model = torch_folder(tmp_path, dtype=dtype)
    _, params = hf.load_pretrained(tmp_path)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    expected = model.gpt_neox.embed_in.weight.detach().float().numpy()
    np.testing.assert_array_equal(params["trunk"]["embed_in"]["embedding"], expected)


def test_load_pretrained_rounds_to_the_dtype_asked_for(saved):
    folder, params = saved
    for dtype in ("bfloat16", "float16"):
        _, half = hf.load_pretrained(folder, dtype=dtype)
        assert_equal_trees(half, jax.tree.map(lambda x, dtype=dtype: x.astype(dtype), params))
        assert {leaf.dtype.name for leaf in jax.tree.leaves(half)} == {dtype}
    with pytest.raises(ModelError, match="dtype: expected one of auto, float32, bfloat16, float16, got 'int8'"):
        hf.load_pretrained(folder, dtype="int8")


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(("family", "head"), [("gpt_neox", "lm"), ("gpt2", "lm"), ("gpt2", "score")])
def test_load_pretrained_reads_pytorch_model_bin(family, head, zip_format, tmp_path):
    torch_folder(tmp_path, family, head)
    config, expected = hf.load_pretrained(tmp_path)
    to_bin(tmp_path, zip_format=zip_format)
    loaded_config, params = hf.load_pretrained(tmp_path)
    assert loaded_config == config
    assert_equal_trees(params, expected)


def test_load_pretrained_reads_pytorch_model_bin_in_shards(tmp_path):
    torch = pytest.importorskip("torch")
    torch_folder(tmp_path, "gpt2", shard_size="20KB")
    _, expected = hf.load_pretrained(tmp_path)
    index = read(tmp_path, "model.safetensors.index.json")
    renamed = {name: file.replace("model-", "pytorch_model-") for name, file in index["weight_map"].items()}
    renamed = {name: file.replace(".safetensors", ".bin") for name, file in renamed.items()}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index | {"weight_map": renamed}))
    (tmp_path / "model.safetensors.index.json").unlink()
    for file in list(tmp_path.glob("*.safetensors")):
        state = {name: torch.tensor(tensor) for name, tensor in load_file(file).items()}
        torch.save(state, tmp_path / file.name.replace("model-", "pytorch_model-").replace(".safetensors", ".bin"))
        file.unlink()
    assert_equal_trees(hf.load_pretrained(tmp_path)[1], expected)


def value_head_tensors():
    torch = pytest.importorskip("torch")
    return {"v_head.summary.weight": torch.arange(32.0)[None] / 8, "v_head.summary.bias": torch.tensor([0.25])}


def old_buffers(prefix):
    torch = pytest.importorskip("torch")
    return {
        f"{prefix}h.{i}.attn.{name}": value
        for i in range(2)
        for name, value in {"bias": torch.ones(1, 1, 64, 64).tril(), "masked_bias": torch.tensor(-1e4)}.items()
    }


@pytest.mark.parametrize("prefix", ["transformer.", ""], ids=["prefix", "no prefix"])
def test_load_model_reads_a_gpt2_of_old_with_a_value_head(prefix, tmp_path):
    # As TRL's tutorials saved them and, without the prefix, as in the first gpt2: buffers, the tied head again, v_head.
    model = torch_folder(tmp_path, "gpt2")
    _, expected = hf.load_pretrained(tmp_path)
    head = {"lm_head.weight": model.lm_head.weight.detach().clone()}
    more = old_buffers(prefix) | head | value_head_tensors()
    to_bin(tmp_path, lambda name: name.replace("transformer.", prefix), **more)
    loaded = hf.load_model(tmp_path)
    assert_equal_trees(loaded.params, expected)
    assert loaded.fresh == ()
    assert loaded.unused == ("v_head.summary.bias", "v_head.summary.weight")
    assert f"{prefix}wte.weight" in loaded.loaded
    value_head = hf.load_value_head(tmp_path, loaded.config)
    np.testing.assert_array_equal(value_head["kernel"], np.arange(32, dtype=np.float32)[:, None] / 8)
    np.testing.assert_array_equal(value_head["bias"], [0.25])
    hf.save_pretrained(tmp_path / "ours", loaded.config, loaded.params)  # under the names of today
    model.save_pretrained(tmp_path / "theirs")
    assert_equal_tensors(tmp_path / "ours", tmp_path / "theirs")


def test_load_model_runs_no_code(tmp_path):
    torch_folder(tmp_path, "gpt2")

    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "trace"), "w"))

    to_bin(tmp_path, attack=Attack())
    with pytest.raises(ModelError, match=rf"^{tmp_path}: pytorch_model.bin: expected tensors and nothing else, got: "):
        hf.load_model(tmp_path)
    assert not (tmp_path / "trace").exists()
    pytest.importorskip("torch").load(tmp_path / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "trace").exists()  # or the attack would be none


def test_load_model_runs_no_code_of_the_folder(saved):
    folder, params = saved
    trace = folder.parent / "trace"
    (folder / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Model: pass\nclass Config: pass\n")
    edit_config(folder, auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    loaded = hf.load_model(folder)
    assert_equal_trees(loaded.params, params)
    assert "auto_map" not in hf.config_to_hf(loaded.config, "lm")
    assert not trace.exists()


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2"])
def test_load_pretrained_ignores_constants_of_older_checkpoints(family, tmp_path):
    torch_folder(tmp_path, family)
    _, params = hf.load_pretrained(tmp_path)
    attention = {"gpt_neox": "gpt_neox.layers.0.attention", "gpt2": "transformer.h.0.attn"}[family]
    constants = {
        f"{attention}.bias": np.ones((1, 1, 4, 4), np.uint8),
        f"{attention}.masked_bias": np.array(-1e9, np.float32),
    }
    if family == "gpt_neox":
        constants["gpt_neox.layers.1.attention.rotary_emb.inv_freq"] = np.ones(1, np.float32)
    edit_tensors(tmp_path, **constants)
    loaded = hf.load_model(tmp_path)
    assert_equal_trees(loaded.params, params)
    assert loaded.unused == ()


def test_load_pretrained_ignores_a_repeated_tied_embedding(tmp_path):
    config = GPTNeoXConfig(**SIZES, tie_word_embeddings=True)
    params = models.init_params(config, jax.random.key(0))
    hf.save_pretrained(tmp_path / "model", config, params)
    embedding = np.asarray(params["trunk"]["embed_in"]["embedding"])
    edit_tensors(tmp_path / "model", **{"embed_out.weight": embedding})
    loaded = hf.load_model(tmp_path / "model")
    assert_equal_trees(loaded.params, params)
    assert loaded.unused == ()


@pytest.mark.parametrize("change", [lambda x: x.at[3, 1].add(1), lambda x: x[:, :-1]], ids=["numbers", "shape"])
def test_load_pretrained_refuses_another_head_than_the_tied_one(change, tmp_path):
    config = GPTNeoXConfig(**SIZES, tie_word_embeddings=True)
    params = models.init_params(config, jax.random.key(0))
    hf.save_pretrained(tmp_path / "model", config, params)
    edit_tensors(tmp_path / "model", **{"embed_out.weight": np.array(change(params["trunk"]["embed_in"]["embedding"]))})
    message = "embed_out.weight: expected the numbers of gpt_neox.embed_in.weight, as tie_word_embeddings is true"
    with pytest.raises(ModelError, match=message):
        hf.load_model(tmp_path / "model")


# ---------------------------------------------------------------------------------------------- heads


@pytest.mark.parametrize(("family", "unused"), [("gpt_neox", ("embed_out.weight",)), ("gpt2", ())])
def test_load_model_makes_a_value_model_of_a_language_model(family, unused, tmp_path):
    torch_folder(tmp_path / "lm", family)
    lm = hf.load_model(tmp_path / "lm")
    value = hf.load_model(tmp_path / "lm", head="score")
    assert (value.fresh, value.unused) == (("score.weight",), unused)
    assert set(value.params) == {"trunk"}
    assert_equal_trees(value.params["trunk"], lm.params["trunk"])
    assert value.config == lm.config
    score = models.init_score_head(value.config, jax.random.key(0))
    hf.save_pretrained(tmp_path / "value", value.config, value.params | {"score": score})
    raw = read(tmp_path / "value")
    assert raw["architectures"] == [CLASSES[family, "score"]]
    assert raw["id2label"] == {"0": "LABEL_0"}
    again = hf.load_model(tmp_path / "value")
    assert_equal_trees(again.params, value.params | {"score": score})
    assert (again.fresh, again.unused) == ((), ())


def test_load_model_makes_a_trunk_of_anything(tmp_path):
    torch_folder(tmp_path / "lm", "gpt2")
    torch_folder(tmp_path / "score", "gpt2", "score")
    for name, unused in {"lm": (), "score": ("score.weight",)}.items():
        trunk = hf.load_model(tmp_path / name, head=None)
        assert (set(trunk.params), trunk.unused) == ({"trunk"}, unused)
        hf.save_pretrained(tmp_path / f"{name} trunk", trunk.config, trunk.params)
        assert read(tmp_path / f"{name} trunk")["architectures"] == ["GPT2Model"]
        assert_equal_trees(hf.load_model(tmp_path / f"{name} trunk").params, trunk.params)


def test_load_model_makes_a_language_model_of_a_tied_trunk(tmp_path):
    torch_folder(tmp_path / "trunk", "gpt2", None)
    loaded = hf.load_model(tmp_path / "trunk", head="lm")
    hf.save_pretrained(tmp_path / "lm", loaded.config, loaded.params)
    assert read(tmp_path / "lm")["architectures"] == ["GPT2LMHeadModel"]
    assert "transformer.wte.weight" in load_file(tmp_path / "lm" / "model.safetensors")
    assert hf.read_config(tmp_path / "lm")[1] == "lm"


def test_load_model_asks_for_the_head_of_an_untied_language_model(tmp_path):
    torch_folder(tmp_path, head=None)
    with pytest.raises(ModelError, match=r"embed_out.weight: expected shape \(61, 32\), got no tensor$"):
        hf.load_model(tmp_path, head="lm")
    with pytest.raises(ModelError, match=r"^head: expected 'saved', 'lm', 'score' or None, got 'value'"):
        hf.load_model(tmp_path, head="value")


def test_round_trip_of_a_reward_model_keeps_its_bias(tmp_path):
    torch_folder(tmp_path / "theirs", head="score")
    bias = np.array([0.75], np.float32)
    edit_tensors(tmp_path / "theirs", **{"score.bias": bias})
    loaded = hf.load_model(tmp_path / "theirs")
    np.testing.assert_array_equal(loaded.params["score"]["bias"], bias)
    hf.save_pretrained(tmp_path / "ours", loaded.config, loaded.params)
    assert_equal_tensors(tmp_path / "theirs", tmp_path / "ours")
    ids, _, _ = batch()
    hidden = models.apply(loaded.config, loaded.params, jnp.asarray(ids), logits=False).hidden
    without = {"score": {"kernel": loaded.params["score"]["kernel"]}}
    difference = models.scores(loaded.params, hidden) - models.scores(without, hidden)
    np.testing.assert_allclose(difference, 0.75, atol=1e-5)


def test_load_model_says_that_a_score_head_is_unused(tmp_path):
    torch_folder(tmp_path, head="score", tie_word_embeddings=True)
    edit_tensors(tmp_path, **{"score.bias": np.zeros(1, np.float32)})
    loaded = hf.load_model(tmp_path, head="lm")
    assert loaded.unused == ("score.bias", "score.weight")


def test_describe_says_what_was_loaded_fresh_and_unused(tmp_path):
    params = models.init_params(CONFIG, jax.random.key(0))
    hf.save_pretrained(tmp_path / "model", CONFIG, params)
    lm, value = (hf.load_model(tmp_path / "model", head=head) for head in ("saved", "score"))
    trunk = sum(leaf.size for leaf in jax.tree.leaves(params["trunk"]))
    folder = tmp_path / "model"
    assert lm.describe() == f"{folder}: 28 tensors loaded ({trunk + 61 * 32:,} parameters)"
    assert value.describe() == (
        f"{folder}: 27 tensors loaded ({trunk:,} parameters); fresh: score.weight; not used: embed_out.weight"
    )
    many = value._replace(unused=tuple("abcdefg"))
    assert many.describe().endswith("fresh: score.weight; not used: a, b, c, d, e and 2 more")


# ---------------------------------------------------------------------------------------------- placement

WIDE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}


def split_along(axis):
    """A placement that splits matrices over all devices along an axis; vectors are copied."""
    mesh = Mesh(np.asarray(jax.devices()), ("parts",))

    def placement(path, shape):
        assert isinstance(path, tuple) and path[-1] in ("kernel", "bias", "embedding", "scale")
        if len(shape) == 1 or shape[axis] % mesh.size:
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, "parts"))

    return placement


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("file", ["safetensors", "bin"])
@pytest.mark.parametrize("config", [GPTNeoXConfig(**WIDE), GPT2Config(**WIDE)], ids=["gpt_neox", "gpt2"])
def test_load_model_reads_for_every_device_its_own_part(config, file, axis, tmp_path, monkeypatch):
    assert len(jax.devices()) == 4
    params = models.init_params(config, jax.random.key(0))
    hf.save_pretrained(tmp_path, config, params)
    if file == "bin":
        to_bin(tmp_path)
    parts = {}

    class Recorded:
        def __init__(self, name, tensor):
            self.name, self.tensor, self.get_shape, self.get_dtype = name, tensor, tensor.get_shape, tensor.get_dtype

        def __getitem__(self, index):
            part = self.tensor[index]
            parts.setdefault(self.name, []).append(part.size / np.prod(self.get_shape()))
            return part

    open_tensors = hf.folders.open_tensors
    recorded = lambda *args: {name: Recorded(name, tensor) for name, tensor in open_tensors(*args).items()}  # noqa: E731
    monkeypatch.setattr(hf.folders, "open_tensors", recorded)
    loaded = hf.load_model(tmp_path, placement=split_along(axis)).params
    assert_equal_trees(loaded, params)
    split = [leaf for leaf in jax.tree.leaves(loaded) if leaf.ndim == 2]
    assert len(split) >= 6
    for leaf, whole in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        assert len(leaf.addressable_shards) == 4
        for shard in leaf.addressable_shards:
            assert shard.data.size * (4 if leaf.ndim == 2 else 1) == leaf.size
            np.testing.assert_array_equal(shard.data, whole[shard.index])
    for name, sizes in parts.items():
        matrix = name.removesuffix(".weight") != name and not any(norm in name for norm in ("norm", "ln_"))
        assert sizes == ([0.25] * 4 if matrix else [1.0]), name


# ---------------------------------------------------------------------------------------------- what does not fit
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({QKV: None}, rf"{QKV}: expected shape \(96, 32\), got no tensor"),
        ({QKV: np.zeros((32, 96), np.float32)}, rf"{QKV}: expected shape \(96, 32\), got \(32, 96\)"),
        ({"extra": np.zeros(3, np.float32)}, r"extra: expected no such tensor, got shape \(3,\)"),
        (
            {QKV: None, "embed_out.weight": None},
            rf"embed_out.weight: expected shape \(61, 32\), got no tensor; {QKV}: expected shape \(96, 32\), got no",
        ),
    ],
)
def test_load_pretrained_names_tensors_that_do_not_fit(saved, changes, message):
    folder, _ = saved
    edit_tensors(folder, **changes)
    with pytest.raises(ModelError, match=message):
        hf.load_pretrained(folder)


def test_load_pretrained_counts_the_problems_it_does_not_list(saved):
    folder, _ = saved
    edit_config(folder, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"layers.1.attention.dense.bias: expected no such tensor.*; and 7 more$"):
        hf.load_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type: expected one of gpt_neox, gpt2, .*, got 'bert'$"),
        ({"model_type": "gemma3_text"}, "model_type: .*, got 'gemma3_text' .Gemma, which needs norms of 1 . w .* two"),
        ({"model_type": "qwen3_moe"}, "model_type: .*, got 'qwen3_moe' .a mixture of experts, which needs a router"),
        ({"model_type": "qwen2_vl"}, "model_type: .*, got 'qwen2_vl' .a model with a vision tower"),
        ({"hidden_size": "REMOVE"}, "hidden_size: expected an integer, got no such key"),
        ({"hidden_act": "softplus"}, "hidden_act: expected one of .*, got 'softplus'"),
        ({"architectures": ["GPTNeoXForQuestionAnswering"]}, "architectures: expected one of GPTNeoXForCausalLM, .*"),
        ({"architectures": "REMOVE"}, "architectures: expected one of .*, got None"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type: .*, got 'longrope'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor: expected a finite number .*, got None"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: expected none"),
        ({"is_causal": False}, "is_causal: expected true .*, got False"),
        ({"vocab_size": "61"}, "vocab_size: expected an integer >= 1, got '61'"),
        ({"architectures": "GPTNeoXForCausalLM"}, "architectures: expected a list of names, got 'GPTNeoXForCausalLM'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false, got 1"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_scaling.rope_type: .*, got 'su'"),
        ({"rope_parameters": "default"}, "rope_parameters: expected an object .*, got 'default'"),
        ({"eos_token_id": [2, 99]}, r"eos_token_id: expected null, one integer or several .*, got \[2, 99\]"),
        ({"bos_token_id": [2, 3]}, r"bos_token_id: expected null or one integer .*, got \(2, 3\)"),
    ],
)
def test_load_pretrained_names_the_config_key(saved, changes, message):
    folder, _ = saved
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=f"config.json: {message}"):
        hf.load_pretrained(folder)


def test_load_pretrained_asks_for_one_label(tmp_path):
    hf.save_pretrained(tmp_path / "model", CONFIG, models.init_params(CONFIG, jax.random.key(0), "score"))
    edit_tensors(tmp_path / "model", **{"score.weight": np.zeros((2, 32), np.float32)})
    with pytest.raises(ModelError, match=r"score.weight: expected shape \(1, 32\), got \(2, 32\)"):
        hf.load_pretrained(tmp_path / "model")


def test_load_pretrained_names_the_missing_file(saved):
    folder, _ = saved
    with pytest.raises(ModelError, match=r"nowhere: expected a model folder with config.json, got no folder"):
        hf.load_pretrained(folder / "nowhere")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=f"^{folder}: expected model.safetensors, pytorch_model.bin, or .* in shards"):
        hf.load_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config.json: expected a file of a Hugging Face model, got no file"):
        hf.load_pretrained(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "config.json: expected JSON"),
        ("config.json", "[]", "config.json: expected a JSON object, got list"),
        ("model.safetensors", "junk", "model.safetensors: expected a readable safetensors file"),
    ],
)
def test_load_pretrained_names_the_damaged_file(saved, file, content, message):
    folder, _ = saved
    (folder / file).write_text(content)
    with pytest.raises(ModelError, match=message):
        hf.load_pretrained(folder)


def test_config_from_hf_reads_old_rotary_keys():
    raw = {"model_type": "gpt_neox", **SIZES, "rotary_pct": 0.5, "rotary_emb_base": 500, "rope_theta": 7.0}
    config = hf.config_from_hf(raw)
    assert (config.rotary_pct, config.rope.rope_theta) == (0.5, 500)
    new = hf.config_from_hf(raw | {"rope_parameters": {"rope_theta": 3.0, "partial_rotary_factor": 1.0}})
    assert (new.rotary_pct, new.rope.rope_theta) == (1.0, 3.0)
    bare = hf.config_from_hf({"model_type": "gpt_neox", **SIZES})
    assert (bare.rotary_pct, bare.rope.rope_theta) == (0.25, 10000.0)
    assert (bare.bos_token_id, bare.eos_token_id, bare.pad_token_id) == (0, 2, None)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"rotary_pct": 0.5, "rotary_emb_base": 500, "rope_theta": 7.0},
        {"rope_parameters": {"rope_theta": 3.0, "partial_rotary_factor": 1.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 3.0}, "rotary_pct": 0.5},
        {"rope_scaling": {"type": "default", "rope_theta": 3.0}},
    ],
)
def test_config_from_hf_reads_what_transformers_reads(raw):
    transformers = pytest.importorskip("transformers")
    raw = {"model_type": "gpt_neox", **SIZES, **raw}
    theirs = transformers.GPTNeoXConfig.from_dict(json.loads(json.dumps(raw)))
    assert hf.config_from_hf(raw) == hf.config_from_hf(theirs.to_dict())


@pytest.mark.parametrize("head", ["lm", "score", None])
@pytest.mark.parametrize(
    "rope",
    [
        Rope(rope_theta=500.0),
        Rope(rope_type="linear", factor=2.5),
        Rope(rope_type="yarn", factor=2.0, beta_fast=9.0, attention_factor=1.5, truncate=False),
        Rope(rope_type="llama3", factor=2.0, low_freq_factor=2.0, original_max_position_embeddings=99),
    ],
)
def test_config_to_hf_loses_nothing(head, rope):
    transformers = pytest.importorskip("transformers")
    config = GPTNeoXConfig(
        **SIZES,
        max_position_embeddings=77,
        rotary_pct=0.5,
        rope=rope,
        layer_norm_eps=1e-6,
        hidden_act="relu",
        use_parallel_residual=False,
        attention_bias=False,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=5,
        pad_token_id=4,
    )
    raw = hf.config_to_hf(config, head)
    assert raw["architectures"] == [CLASSES["gpt_neox", head]]
    assert hf.config_from_hf(raw) == config
    theirs = transformers.GPTNeoXConfig.from_dict(json.loads(json.dumps(raw)))
    assert hf.config_from_hf(theirs.to_dict()) == config
    assert theirs.num_labels == (1 if head == "score" else 2)


@pytest.mark.parametrize("intermediate_size", [48, 128])
def test_config_to_hf_loses_nothing_of_gpt2(intermediate_size):
    transformers = pytest.importorskip("transformers")
    config = GPT2Config(
        **(SIZES | {"intermediate_size": intermediate_size}),
        max_position_embeddings=77,
        layer_norm_eps=1e-6,
        hidden_act="relu",
        tie_word_embeddings=False,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=5,
        pad_token_id=4,
        scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True,
    )
    raw = hf.config_to_hf(config, "lm")
    assert hf.config_from_hf(raw) == config
    theirs = transformers.GPT2Config.from_dict(json.loads(json.dumps(raw)))
    assert hf.config_from_hf(theirs.to_dict()) == config
    assert (raw["n_inner"] is None) == (intermediate_size == 128)


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2"])
def test_config_from_hf_drops_special_tokens_past_the_vocabulary(family, tmp_path):
    # GPT2Config(vocab_size=61) says 50256 for both.
    torch_folder(tmp_path / "theirs", family, bos_token_id=61, eos_token_id=50256)
    config, params = hf.load_pretrained(tmp_path / "theirs")
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, None, 1)
    hf.save_pretrained(tmp_path / "ours", config, params)
    older = {"rotary_pct": 0.25, "rotary_emb_base": 10000.0} if family == "gpt_neox" else {}
    assert read(tmp_path / "ours") == read(tmp_path / "theirs") | older
    assert read(tmp_path / "ours")["eos_token_id"] == 50256
    assert read(tmp_path / "ours", "generation_config.json") == {"pad_token_id": 1}


def test_config_to_hf_holds_no_secret(tmp_path):
    secret = "hf_" + "aB3dE6gH9jK2mN5pQ8sT"
    torch_folder(tmp_path / "theirs")
    edit_config(
        tmp_path / "theirs",
        hub_token=secret,
        note=f"made with {secret}",
        nested={"api_key": "0123456789", "url": "https://me:pass@host/path"},
    )
    config, params = hf.load_pretrained(tmp_path / "theirs")
    more = {"max_new_tokens": 9, "auth_token": secret}
    hf.save_pretrained(tmp_path / "ours", config, params, generation_config=more)
    text = "".join((tmp_path / "ours" / name).read_text() for name in ("config.json", "generation_config.json"))
    assert not any(hidden in text for hidden in (secret, "0123456789", "me:pass"))
    assert read(tmp_path / "ours")["note"] == "made with <redacted>"
    assert read(tmp_path / "ours", "generation_config.json")["max_new_tokens"] == 9
    assert hf.load_pretrained(tmp_path / "ours")[0] == config


def test_save_pretrained_replaces_an_earlier_model(saved):
    folder, _ = saved
    (folder / "model.safetensors.index.json").write_text("{}")
    params = models.init_params(CONFIG, jax.random.key(1), head="score")
    hf.save_pretrained(folder, CONFIG, params)
    assert_equal_trees(hf.load_pretrained(folder)[1], params)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_save_pretrained_writes_over_nothing_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    params = models.init_params(CONFIG, jax.random.key(0))
    with pytest.raises(ModelError, match=r"expected a new or empty folder or one with config.json, got other files"):
        hf.save_pretrained(tmp_path, CONFIG, params)
    with pytest.raises(ModelError, match=r"notes.txt: expected a folder, got a file"):
        hf.save_pretrained(tmp_path / "notes.txt", CONFIG, params)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_save_pretrained_that_fails_leaves_the_earlier_model(saved):
    class BrokenTokenizer:
        def save_pretrained(self, folder):
            assert (Path(folder) / "model.safetensors").is_file()
            raise OSError("disk full")

    folder, params = saved
    other = jax.tree.map(lambda x: x + 1, params)
    with pytest.raises(ModelError, match=rf"^{folder}: expected to be writable, got: tokenizer: disk full; "):
        hf.save_pretrained(folder, CONFIG, other, tokenizer=BrokenTokenizer())
    assert_equal_trees(hf.load_pretrained(folder)[1], params)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_save_pretrained_puts_the_earlier_model_back(saved, monkeypatch):
    folder, params = saved
    rename = Path.rename

    def broken_rename(path, target):
        if path.name.endswith(".partial"):
            raise OSError("no such luck")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", broken_rename)
    with pytest.raises(ModelError, match=rf"^{folder}: expected to be writable, got: no such luck; "):
        hf.save_pretrained(folder, CONFIG, jax.tree.map(lambda x: x + 1, params))
    assert_equal_trees(hf.load_pretrained(folder)[1], params)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


FULL_DISK = """
import json, resource, sys
from pathlib import Path
import jax, tokenizers, transformers
from jaxppo import hf, models
from jaxppo.errors import ModelError

folder = Path(sys.argv[1])
config, params = hf.load_pretrained(folder)
words = tokenizers.models.WordLevel({f"w{i}": i for i in range(20_000)}, unk_token="w0")
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), eos_token="w1")
other = jax.tree.map(lambda x: x + 1, params)
for limit in json.loads(sys.argv[2]):  # Python ignores SIGXFSZ: a write past the limit raises EFBIG
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        hf.save_pretrained(folder, config, other, tokenizer)
    except ModelError as error:
        print(error)
    before = sorted(path.name for path in folder.parent.iterdir())
    assert before == [folder.name], before
"""


@pytest.mark.full
def test_save_pretrained_on_a_full_disk_leaves_the_earlier_model(saved):
    pytest.importorskip("resource")
    folder, params = saved
    limits = [10, 20_000, 300_000]  # config.json, the weights and tokenizer.json do not fit
    command = [sys.executable, "-c", FULL_DISK, str(folder), json.dumps(limits)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config, weights, tokenizer = done.stdout.splitlines()
    for line in (config, weights, tokenizer):
        assert line.startswith(f"{folder}: expected to be writable, got: ")
        assert "File too large" in line
    assert "serializing" in weights
    assert "tokenizer: " in tokenizer
    assert (folder / "model.safetensors").stat().st_size > limits[1]
    assert_equal_trees(hf.load_pretrained(folder)[1], params)


def test_save_value_head_on_a_full_disk_names_the_folder(tmp_path, monkeypatch):
    head = models.init_score_head(CONFIG, jax.random.key(0), use_bias=True)
    hf.save_value_head(tmp_path / "head", head)

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_files, "save_file", no_room)
    with pytest.raises(
        ModelError, match=rf"^{tmp_path}/head: expected to be writable, got: .* No space left on device"
    ):
        hf.save_value_head(tmp_path / "head", jax.tree.map(lambda x: x + 1, head))
    assert_equal_trees(hf.load_value_head(tmp_path / "head", CONFIG), head)


def test_save_pretrained_clears_what_a_killed_process_left(saved):
    folder, params = saved
    for name in (".model.partial", ".model.replaced"):
        (folder.parent / name).mkdir()
        (folder.parent / name / "model.safetensors").write_text("half")
    hf.save_pretrained(folder, CONFIG, params)
    assert_equal_trees(hf.load_pretrained(folder)[1], params)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_save_pretrained_refuses_parameters_that_do_not_fit(tmp_path):
    params = models.init_params(CONFIG, jax.random.key(0))
    value_head = models.init_score_head(CONFIG, jax.random.key(1))
    smaller = GPTNeoXConfig(**(SIZES | {"num_hidden_layers": 1}))
    narrower = GPTNeoXConfig(**(SIZES | {"intermediate_size": 40}))
    with pytest.raises(ModelError, match=r"expected 'trunk' with 'lm_head', .* got lm_head, trunk, value_head"):
        hf.save_pretrained(tmp_path / "model", CONFIG, params | {"value_head": value_head})
    with pytest.raises(ModelError, match="params: missing or not of this config: trunk/layers/1/attention/dense/bias"):
        hf.save_pretrained(tmp_path / "model", smaller, params)
    with pytest.raises(ModelError, match=r"dense_4h_to_h.weight: expected shape \(32, 40\), got \(32, 48\)"):
        hf.save_pretrained(tmp_path / "model", narrower, params)
    with pytest.raises(ModelError, match=r"params: missing or not of this config: .*trunk/embed_positions"):
        hf.save_pretrained(tmp_path / "model", GPT2Config(**SIZES), {"trunk": params["trunk"]})
    assert not list(tmp_path.iterdir())


def test_save_pretrained_writes_the_generation_config(tmp_path):
    params = models.init_params(CONFIG, jax.random.key(0))
    written = {}
    for name, choice in {"plain": True, "more": {"max_new_tokens": 9, "eos_token_id": [2, 3]}, "none": False}.items():
        hf.save_pretrained(tmp_path / name, CONFIG, params, generation_config=choice)
        file = tmp_path / name / "generation_config.json"
        written[name] = json.loads(file.read_text()) if file.exists() else None
    tokens = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    assert written == {
        "plain": tokens,
        "more": tokens | {"max_new_tokens": 9, "eos_token_id": [2, 3]},
        "none": None,
    }


def word_tokenizer(size=5, last=None, **special):
    """A tokenizer of `size` words, the last of which may have another id than size - 1."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<s>", "<pad>", "</s>", "put-down", "b1", *(f"w{i}" for i in range(5, size))]
    ids = {word: i for i, word in enumerate(words)} | {words[-1]: last or size - 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<s>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def test_load_tokenizer_reads_what_save_pretrained_wrote(tmp_path):
    tokenizer = word_tokenizer(bos_token="<s>", pad_token="<pad>", eos_token="</s>")
    params = models.init_params(CONFIG, jax.random.key(0))
    hf.save_pretrained(tmp_path / "model", CONFIG, params, tokenizer=tokenizer)
    loaded = hf.load_tokenizer(tmp_path / "model")
    assert loaded.is_fast
    assert loaded("put-down b1").input_ids == [3, 4]
    assert (loaded.pad_token_id, loaded.eos_token_id) == (1, 2)


@pytest.mark.full
def test_load_tokenizer_of_the_plain_class_is_what_transformers_chooses_and_imports_no_torch(tmp_path):
    word_tokenizer(bos_token="<s>", pad_token="<pad>", eos_token="</s>", padding_side="left").save_pretrained(tmp_path)
    transformers = pytest.importorskip("transformers")
    ours, theirs = hf.load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is type(theirs)
    assert ours.init_kwargs == theirs.init_kwargs
    assert ours("put-down b1 w7") == theirs("put-down b1 w7")
    code = f"import sys; from jaxppo import hf; hf.load_tokenizer({str(tmp_path)!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_load_tokenizer_runs_no_code_of_the_folder(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    hf.save_pretrained(
        tmp_path / "model", CONFIG, models.init_params(CONFIG, jax.random.key(0)), word_tokenizer(eos_token="</s>")
    )
    trace = tmp_path / "trace"
    (tmp_path / "model" / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Evil: pass\n")
    file = tmp_path / "model" / "tokenizer_config.json"
    raw = json.loads(file.read_text()) | {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    for name in (raw["tokenizer_class"], "Evil"):
        file.write_text(json.dumps(raw | {"tokenizer_class": name}))
        try:
            assert hf.load_tokenizer(tmp_path / "model")("b1").input_ids == [4]
        except ModelError as error:
            assert "expected a readable tokenizer" in str(error)
        assert not trace.exists()
    with pytest.raises(AttributeError):  # the class is none, but its file was run: the attack would have worked
        pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path / "model", trust_remote_code=True)
    assert trace.exists()


@pytest.mark.parametrize(
    ("special", "pad"), [({"pad_token": "<pad>"}, 1), ({}, 2)], ids=["its own pad token", "its end of sequence"]
)
def test_load_policy_reads_model_and_tokenizer(special, pad, tmp_path):
    params = models.init_params(CONFIG, jax.random.key(0))
    tokenizer = word_tokenizer(size=61, eos_token="</s>", **special)
    hf.save_pretrained(tmp_path / "model", CONFIG, params, tokenizer=tokenizer)
    policy = hf.load_policy(tmp_path / "model", placement=split_along(0))
    assert policy.config == dataclasses.replace(CONFIG, end_ids=(2,))
    assert_equal_trees(policy.params, params)
    assert len(policy.params["trunk"]["embed_in"]["embedding"].sharding.device_set) == 4
    assert (policy.tokenizer.pad_token_id, policy.tokenizer.eos_token_id) == (pad, 2)
    assert policy.loaded.folder == tmp_path / "model"


def test_load_policy_names_what_does_not_fit(tmp_path):
    params = models.init_params(CONFIG, jax.random.key(0))
    folder = tmp_path / "model"
    hf.save_pretrained(folder, CONFIG, params, word_tokenizer(size=62, eos_token="</s>"))
    with pytest.raises(ModelError, match=rf"^{folder}: expected at most vocab_size=61 tokens, got 62"):
        hf.load_policy(folder)
    hf.save_pretrained(folder, CONFIG, params, word_tokenizer(size=50, last=61, eos_token="</s>"))
    with pytest.raises(ModelError, match=rf"^{folder}: expected at most vocab_size=61 tokens, got 62"):
        hf.load_policy(folder)
    hf.save_pretrained(folder, CONFIG, params, word_tokenizer())
    with pytest.raises(ModelError, match=rf"^{folder}: expected a tokenizer with an eos_token, got none"):
        hf.load_policy(folder)
    value = models.init_params(CONFIG, jax.random.key(0), "score")
    hf.save_pretrained(folder, CONFIG, value, word_tokenizer(eos_token="</s>"))
    with pytest.raises(ModelError, match=rf"^{folder}: expected a language model \(GPTNeoXForCausalLM\), got one with"):
        hf.load_policy(folder)


# ---------------------------------------------------------------------------------------------- value heads


def test_load_value_head_reads_what_save_value_head_wrote(tmp_path):
    head = {"kernel": jnp.arange(32.0)[:, None], "bias": jnp.array([2.0])}
    hf.save_value_head(tmp_path / "head", head, card="# A head\n")
    assert_equal_trees(hf.load_value_head(tmp_path / "head", CONFIG), head)
    tensors = load_file(tmp_path / "head" / "value_head.safetensors")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert shapes == {"v_head.summary.weight": (1, 32), "v_head.summary.bias": (1,)}  # TRL's
    assert sorted(path.name for path in (tmp_path / "head").iterdir()) == ["README.md", "value_head.safetensors"]
    other = jax.tree.map(lambda x: x + 1, head)
    hf.save_value_head(tmp_path / "head", other)
    assert_equal_trees(hf.load_value_head(tmp_path / "head", CONFIG), other)


def test_load_value_head_names_what_does_not_fit(saved, tmp_path):
    folder, _ = saved
    with pytest.raises(ModelError, match=rf"^{folder}: v_head.summary.weight: expected shape \(1, 32\), got no tensor"):
        hf.load_value_head(folder, CONFIG)
    hf.save_value_head(tmp_path / "head", {"kernel": jnp.zeros((32, 1), jnp.int8), "bias": jnp.zeros(1)})
    with pytest.raises(ModelError, match=r"v_head.summary.weight: expected floating-point weights, got I8"):
        hf.load_value_head(tmp_path / "head", CONFIG)
    hf.save_value_head(tmp_path / "head", {"kernel": jnp.zeros((16, 1)), "bias": jnp.zeros(1)})
    with pytest.raises(ModelError, match=r"v_head.summary.weight: expected shape \(1, 32\), got \(1, 16\)"):
        hf.load_value_head(tmp_path / "head", CONFIG)
    with pytest.raises(ModelError, match=r"expected a new or empty folder or one with value_head.safetensors"):
        hf.save_value_head(folder, {"kernel": jnp.zeros((32, 1)), "bias": jnp.zeros(1)})


# ---------------------------------------------------------------------------------------------- names and the hub


def test_find_model_prefers_what_is_shipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocksworld-sft").mkdir()
    assert hf.find_model("blocksworld-sft") == hf.ASSETS / "blocksworld-sft"
    assert hf.find_model("./blocksworld-sft") == Path("blocksworld-sft")
    hf.load_policy("blocksworld-sft")


@pytest.mark.parametrize("name", [".", "..", "models/mine", "mine"])
def test_find_model_gives_local_folders(name, tmp_path, monkeypatch):
    (tmp_path / "here" / "models" / "mine").mkdir(parents=True)
    (tmp_path / "here" / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert hf.find_model(name).resolve() == (tmp_path / "here" / name).resolve()
    assert hf.find_model(str(tmp_path / "here" / name)).resolve() == (tmp_path / "here" / name).resolve()


@pytest.mark.parametrize("name", ["/no/such/folder", "./gone", "../gone", "a/b/c", "what is this?", "runs/gone/"])
def test_find_model_asks_for_a_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(ModelError, match=r"expected a model folder with config.json, got no folder"):
        hf.find_model(name)


@pytest.mark.parametrize("name", ["no-such-user/no-such-model", "no-such-model", "no-such-user/no-such-model@main"])
def test_find_model_offline_says_all_it_tried(name, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError) as error:
        hf.find_model(name)
    message = str(error.value)
    shipped = "blocksworld-sft, planning-multi-sft"
    expected = f"expected a shipped model ({shipped}), a model folder or a hub id, got no such folder, and from the hub"
    assert message.startswith(f"{name.partition('@')[0]}: {expected}: LocalEntryNotFoundError: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("files", "asks_for_bin"),
    [
        (["model.safetensors"], False),
        (["model.safetensors.index.json", "model-00001-of-00001.safetensors"], False),
        (["value_head.safetensors"], True),
        ([], True),
    ],
)
def test_find_model_downloads_from_the_hub(files, asks_for_bin, tmp_path, monkeypatch):
    calls = []

    def download(repo, *, revision, allow_patterns):
        calls.append((repo, revision, allow_patterns))
        for file in files:
            (tmp_path / file).write_text("")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hf.find_model("user/name@refs/pr-1") == tmp_path
    assert [call[:2] for call in calls] == [("user/name", "refs/pr-1")] * (3 if asks_for_bin else 2)
    small, weights = calls[0][2], calls[1][2]
    assert {"*.json", "*.jinja"} <= set(small) and {"model*.safetensors", "value_head.safetensors"} <= set(weights)
    assert not any("bin" in pattern or "py" in pattern or pattern == "*" for pattern in [*small, *weights])
    assert not any("safetensors" in pattern for pattern in small)
    assert [call[2] for call in calls[2:]] == [["pytorch_model*.bin"]] * asks_for_bin
    calls.clear()
    hf.find_model("name", weights=False)
    assert calls == [("name", None, small)]


def test_find_model_downloads_no_weights_of_another_family(tmp_path, monkeypatch):
    calls = []

    def download(repo, *, revision, allow_patterns):
        calls.append(allow_patterns)
        (tmp_path / "config.json").write_text('{"model_type": "qwen2_moe"}')
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        ModelError, match=r"^user/name: config.json: model_type: expected one of gpt_neox, gpt2, .*, got 'qw"
    ):
        hf.find_model("user/name")
    assert len(calls) == 1 and "*.json" in calls[0]


def test_find_model_says_what_the_hub_said(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelError, match=r"^user/name: .* from the hub: ConnectionError: no route to host; "):
        hf.find_model("user/name")


def test_load_tokenizer_names_the_folder_without_one(saved):
    pytest.importorskip("transformers")
    folder, _ = saved
    with pytest.raises(ModelError, match=rf"{folder}: expected a tokenizer \(tokenizer.json or .*\), got none"):
        hf.load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=rf"{folder}: expected a readable tokenizer, got: "):
        hf.load_tokenizer(folder)
    with pytest.raises(ModelError, match="nowhere: expected a model folder"):
        hf.load_tokenizer(folder / "nowhere")


def test_import_needs_neither_torch_nor_transformers():
    code = "import sys, jaxppo.hf; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
