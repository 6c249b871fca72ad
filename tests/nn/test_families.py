"""What a family says of itself: how it reads and writes the files of transformers; a further one is one more file."""

import dataclasses
import json
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from jaxppo import hf, models, sft
from jaxppo.config import SFTConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ModelError
from jaxppo.nn import FAMILIES, lora
from jaxppo.nn.attention import attend_cached
from jaxppo.nn.blocks import columns
from jaxppo.nn.config import SCORE_NAMES, Family, HfName, ModelConfig, check_bool, linear_names, norm_names
from jaxppo.nn.layers import Keys, Linear, embedding, layer_norm, look_up, project
from jaxppo.parallel import partition
from jaxppo.profiling import flops
from tests.test_models import (
    GPT2_SIZES,
    RAW,
    apply,
    from_torch,
    ragged_batch,
    torch,
    torch_logits,
    torch_model,
    transformers,
)

assert_equal_trees = partial(jax.tree.map, np.testing.assert_array_equal)


def edited(folder, **changes):
    """The same folder, after a change to its config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


KNOWN_ROPES = {"linear", "dynamic", "llama3", "yarn"}

# --- GPT-NeoX: rotary settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", [*sorted(set(ROPE_INIT_FUNCTIONS) - KNOWN_ROPES), "su", None])
def test_rope_kinds_that_are_not_supported_are_named(key, kind):
    rope = {"rope_type": kind, "factor": 2.0}
    with pytest.raises(ModelError, match=f"^{key}.rope_type: expected one of default, linear, .*, got {kind!r}$"):
        hf.config_from_hf(RAW["gpt_neox"] | {key: rope})


@pytest.mark.parametrize("factor", [{}, {"factor": None}, {"factor": "2"}, {"factor": 0.5}, {"factor": [2.0]}])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_linear_rope_scaling_needs_a_factor(key, factor):
    with pytest.raises(ModelError, match=f"^{key}.factor: expected a finite number >= 1.0, got "):
        hf.config_from_hf(RAW["gpt_neox"] | {key: {"rope_type": "linear"} | factor})


@pytest.mark.parametrize(
    "raw",
    [
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"type": "linear", "factor": 2}, "rotary_pct": 0.5, "rotary_emb_base": 500},
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 7.0, "partial_rotary_factor": 1.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 7.0}},
        {"rope_scaling": None, "rotary_pct": 0.5, "rotary_emb_base": 500},
    ],
)
def test_rope_scaling_is_read_as_transformers_reads_it_and_written_back(raw):
    raw = RAW["gpt_neox"] | raw
    theirs = transformers.GPTNeoXConfig.from_dict(json.loads(json.dumps(raw)))
    config = hf.config_from_hf(raw)
    assert config == hf.config_from_hf(theirs.to_dict())
    assert hf.config_to_hf(config, "lm").items() >= raw.items()  # as it was read
    rope = dataclasses.replace(config.rope, rope_theta=99.0)
    changed = dataclasses.replace(config, rope=rope)  # no longer what was read
    written = hf.config_to_hf(changed, "lm")
    assert (written["rotary_pct"], written["rotary_emb_base"]) == (config.rotary_pct, 99.0)  # for transformers 4
    assert written.get("rope_scaling", {}).get("factor", 1.0) == config.rope.factor
    assert hf.config_from_hf(written) == changed
    assert hf.config_from_hf(transformers.GPTNeoXConfig.from_dict(written).to_dict()) == changed


# --- GPT-2: its names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        {},
        GPT2_SIZES,
        {"n_inner": 40, "activation_function": "relu", "layer_norm_epsilon": 1e-3},
        {"n_inner": None, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
        {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 64},
        {"hidden_size": 24, "n_embd": 48},  # the shared name wins
        {"intermediate_size": 40, "hidden_act": "relu", "layer_norm_eps": 0.1},  # names that mean nothing there
        {"n_ctx": 64, "n_positions": 32, "tie_word_embeddings": False},
        {"vocab_size": 50, "bos_token_id": 3, "eos_token_id": 3, "pad_token_id": 4},
        {"eos_token_id": None, "bos_token_id": None},
    ],
)
def test_gpt2_config_is_read_as_transformers_reads_it(raw):
    raw = {"model_type": "gpt2", **raw}
    theirs = transformers.GPT2Config.from_dict(json.loads(json.dumps(raw)))
    config = hf.config_from_hf(raw)
    assert config == hf.config_from_hf(theirs.to_dict())
    assert (config.hidden_size, config.num_hidden_layers) == (theirs.n_embd, theirs.n_layer)
    assert config.intermediate_size == (4 * theirs.n_embd if theirs.n_inner is None else theirs.n_inner)
    assert (config.hidden_act, config.layer_norm_eps) == (theirs.activation_function, theirs.layer_norm_epsilon)
    assert config.max_length == theirs.n_positions


def test_gpt2_config_is_the_published_one_where_nothing_is_said():
    config = hf.config_from_hf({"model_type": "gpt2"})
    assert (config.vocab_size, config.bos_token_id, config.eos_token_id) == (50257, 50256, 50256)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (768, 12, 12)
    assert (config.intermediate_size, config.max_position_embeddings) == (3072, 1024)
    assert (config.hidden_act, config.tie_word_embeddings) == ("gelu_new", True)


def test_gpt2_config_that_changed_is_written_with_its_own_names():
    raw = {"model_type": "gpt2", "hidden_size": 24, "num_attention_heads": 2, "n_layer": 2, "vocab_size": 60}
    config = hf.config_from_hf(raw | {"n_ctx": 1024, "summary_type": "cls_index", "reorder_and_upcast_attn": True})
    changed = dataclasses.replace(
        config,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=77,
        scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True,
        layer_norm_eps=1e-6,
        hidden_act="silu",
        tie_word_embeddings=False,
        eos_token_id=5,
    )
    written = hf.config_to_hf(changed, "lm")
    assert not written.keys() & {"hidden_size", "num_attention_heads", "max_position_embeddings", "n_ctx"}
    assert (written["summary_type"], written["reorder_and_upcast_attn"]) == ("cls_index", True)
    assert hf.config_from_hf(written) == changed
    assert hf.config_from_hf(transformers.GPT2Config.from_dict(written).to_dict()) == changed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_cross_attention": True}, "add_cross_attention: expected false"),
        ({"activation_function": "prelu"}, "activation_function: expected one of .*, got 'prelu'"),
        ({"scale_attn_weights": "yes"}, "scale_attn_weights: expected true or false, got 'yes'"),
        ({"n_embd": "32"}, "hidden_size: expected an integer >= 1, got '32'"),
        ({"n_inner": 0}, "intermediate_size: expected an integer >= 1, got 0"),
        ({"n_head": 5}, "num_attention_heads: expected a divisor of hidden_size=32, got 5"),
    ],
)
def test_gpt2_config_names_what_is_wrong(changes, message):
    with pytest.raises(ModelError, match=f"^{message}"):
        hf.config_from_hf(RAW["gpt2"] | changes)


# --- GPT-2: its folders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("class_name", "options"),
    [
        ("GPT2LMHeadModel", {}),
        ("GPT2LMHeadModel", {"tie_word_embeddings": False, "n_inner": 40}),
        ("GPT2ForSequenceClassification", {}),
        ("GPT2Model", {}),
    ],
)
def test_gpt2_round_trip_is_bit_equal(class_name, options, tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(**(GPT2_SIZES | {"num_labels": 1, "initializer_range": 0.3} | options))
    getattr(transformers, class_name)(config).save_pretrained(tmp_path / "theirs")
    hf.save_pretrained(tmp_path / "ours", *hf.load_pretrained(tmp_path / "theirs"))
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert set(theirs) == set(ours)
    assert all(theirs[name].tobytes() == ours[name].tobytes() for name in theirs)
    _, info = getattr(transformers, class_name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_gpt2_of_the_first_checkpoints_is_read(tmp_path):
    """Without a prefix, with the masks as tensors, as a language model: the files of the hub's `gpt2`."""
    model = torch_model(RAW["gpt2"])
    config, params = from_torch(model, tmp_path / "new", RAW["gpt2"])
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    masks = {
        f"h.{i}.attn.{name}": np.ones((1, 1, 8, 8), np.float32) for i in (0, 1) for name in ("bias", "masked_bias")
    }
    save_file(old | masks, tmp_path / "new" / "model.safetensors")
    again = hf.load_pretrained(tmp_path / "new")
    assert again[0] == config
    assert_equal_trees(again[1], params)


def test_gpt2_from_our_folder_computes_the_same_in_transformers(tmp_path):
    config = hf.config_from_hf(RAW["gpt2"] | {"scale_attn_by_inverse_layer_idx": True, "initializer_range": 0.3})
    hf.save_pretrained(tmp_path / "model", config, models.init_params(config, jax.random.key(0)))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    ids, mask = ragged_batch("left")
    config, params = hf.load_pretrained(tmp_path / "model")
    logits = apply(config, params, jnp.asarray(ids), attention_mask=jnp.asarray(mask)).logits
    np.testing.assert_allclose(logits[mask], torch_logits(model, ids, mask)[mask], atol=1e-4, rtol=0)


# --- a further family is one more file -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig(ModelConfig):
    model_type: str = "toy"
    max_position_embeddings: int = 32
    hidden_act: str = "tanh"
    tie_word_embeddings: bool = False
    gated: bool = True

    def _check_family(self):
        check_bool("gated", self.gated)


class ToyLayer(nnx.Module):
    """Attention whose output is gated by its input."""

    def __init__(self, config, rngs):
        linear = partial(Linear, config, config.hidden_size, config.hidden_size, rngs=rngs)
        self.gated, self.heads = config.gated, config.num_attention_heads
        self.norm = layer_norm(config, rngs)
        self.query, self.key, self.value = linear(), linear(use_bias=False), linear()
        self.gate, self.out = linear(), linear()

    def __call__(self, x, mask, cache, cache_index, read):
        normed = self.norm(x)
        x, read_only = columns((x, normed), read, 1)
        split = lambda y: y.reshape(*y.shape[:2], self.heads, -1).transpose(0, 2, 1, 3)  # noqa: E731
        query, key, value = split(self.query(read_only)), split(self.key(normed)), split(self.value(normed))
        attended, cache = attend_cached(query, key, value, mask, cache, cache_index, read)
        gate = jax.nn.sigmoid(self.gate(read_only)) if self.gated else 1.0
        return x + self.out(gate * attended), cache


class ToyTrunk(nnx.Module):
    """Positions come in as a wave."""

    def __init__(self, config, rngs):
        self.config = config
        self.embed_in = embedding(config, config.vocab_size, rngs)
        self.layers = nnx.Dict({str(i): ToyLayer(config, rngs) for i in range(config.num_hidden_layers)})
        self.last_norm = layer_norm(config, rngs)

    def __call__(self, input_ids, positions, mask, run):
        hidden = look_up(self.embed_in, input_ids)
        waves = jnp.sin(positions[..., None] * jnp.arange(1, hidden.shape[-1] + 1) / 10).astype(hidden.dtype)
        hidden, cache = run(hidden + waves, (mask,))
        return self.last_norm(hidden), cache


_TOY_KEYS = {
    "vocab_size": "words",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
}


def _toy_from_hf(raw: dict[str, Any]) -> dict[str, Any]:
    fields = {name: raw[key] for name, key in _TOY_KEYS.items()} | {"gated": raw.get("gated", True)}
    special = {name: raw.get(name) for name in ("bos_token_id", "eos_token_id")}
    return fields | {"intermediate_size": raw["width"]} | special


def _toy_to_hf(config: ToyConfig) -> dict[str, Any]:
    fields = {key: getattr(config, name) for name, key in _TOY_KEYS.items()}
    special = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id")}
    return fields | {"model_type": "toy", "gated": config.gated} | special


TOY = Family(
    config=ToyConfig,
    trunk=ToyTrunk,
    from_hf=_toy_from_hf,
    to_hf=_toy_to_hf,
    trunk_prefix="toy.",
    architectures={"lm": "ToyForCausalLM", "score": "ToyForSequenceClassification", None: "ToyModel"},
    names={"trunk/embed_in/embedding": HfName("words.weight"), "lm_head/kernel": HfName("head.weight", transpose=True)}
    | norm_names("trunk/last_norm", "norm")
    | norm_names("trunk/layers/{i}/norm", "blocks.{i}.norm")
    | linear_names("trunk/layers/{i}/query", "blocks.{i}.q")
    | linear_names("trunk/layers/{i}/key", "blocks.{i}.k")
    | linear_names("trunk/layers/{i}/value", "blocks.{i}.v")
    | linear_names("trunk/layers/{i}/gate", "blocks.{i}.g", transpose=False)
    | linear_names("trunk/layers/{i}/out", "blocks.{i}.o")
    | SCORE_NAMES,
    ignored=re.compile(r"never$"),
    partition={"query/kernel": ("fsdp", "tensor")},
    kept_widths=(7, 0),
)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", TOY)  # the one row
    return hf.config_from_hf(
        {"model_type": "toy", "words": 23, "width": 12, "depth": 2, "heads": 3, "eos_token_id": 2, "note": "kept"}
    )


def test_a_further_family_brings_everything_that_others_ask_for(toy):
    """Partition, adapters, fresh sizes, budget and FLOPs: no other file knows the family."""
    assert partition.axes_of("policy/trunk/layers/0/query/kernel") == ("fsdp", "tensor")
    with pytest.raises(ValueError, match="query/kernel"):
        dataclasses.replace(TOY, partition={"query/kernel": ("tensor", "fsdp")})
    assert sorted(lora.linear_layers(toy))[0] == "toy.blocks.0.g" and TOY.fan_in_fan_out
    adapter = lora.init_adapter(toy, lora.LoraConfig(r=2, target_modules=("q",)), jax.random.key(0))
    assert adapter["trunk"]["layers"]["1"]["query"]["lora_a"].shape == (12, 2)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    start = sft.start_model(replace(SFTConfig(), model_type="toy", rotary_pct=1.0, **sizes))
    assert (start.model.model_type, start.model.intermediate_size) == ("toy", 48)
    with pytest.raises(ModelError, match=r"^model_type: expected one of gpt_neox, gpt2, .*, toy, got 'tyo'"):
        sft.start_model(replace(SFTConfig(), model_type="tyo"))
    params = {"policy": models.init_params(toy, jax.random.key(0))}
    assert flops.of_models(toy, toy, params)


@pytest.mark.full
def test_a_further_family_computes_and_decodes(toy):
    params = models.init_params(dataclasses.replace(toy, initializer_range=0.5), jax.random.key(0))
    mask = jnp.asarray(np.arange(9) >= np.array([[0], [4], [8]]))
    ids = jax.random.randint(jax.random.key(1), mask.shape, 0, 23)
    full = apply(toy, params, ids, attention_mask=mask).logits
    cache, steps = models.init_cache(toy, *ids.shape), []
    for start, stop in ((0, 5), (5, 6), (6, 9)):
        output = apply(toy, params, ids[:, start:stop], attention_mask=mask, cache=cache, cache_index=start)
        cache, steps = output.cache, [*steps, output.logits]
    np.testing.assert_allclose(jnp.concatenate(steps, axis=1)[mask], full[mask], atol=1e-5)
    alone = apply(toy, params, ids[1:2, 4:]).logits
    np.testing.assert_allclose(full[1, 4:], alone[0], atol=1e-5)
    assert (
        np.abs(full - apply(dataclasses.replace(toy, gated=False), params, ids, attention_mask=mask).logits).max() > 0.1
    )
    half = apply(dataclasses.replace(toy, compute_dtype="bfloat16"), params, ids, attention_mask=mask)
    assert (half.hidden.dtype, half.logits.dtype) == (jnp.bfloat16, jnp.float32)


@pytest.mark.parametrize("head", ["lm", "score", None])
def test_a_further_family_is_saved_and_loaded(toy, head, tmp_path):
    config = dataclasses.replace(toy, gated=False)
    params = models.init_params(config, jax.random.key(0), head)
    hf.save_pretrained(tmp_path / "model", config, params)
    loaded_config, loaded = hf.load_pretrained(tmp_path / "model")
    assert loaded_config == config
    assert_equal_trees(loaded, params)
    raw = json.loads((tmp_path / "model" / "config.json").read_text())
    assert raw["architectures"] == [TOY.architectures[head]]
    assert (raw["words"], raw["width"], raw["gated"], raw["note"]) == (23, 12, False, "kept")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    prefix = "" if head is None else "toy."
    layer = params["trunk"]["layers"]["1"]
    np.testing.assert_array_equal(tensors[f"{prefix}blocks.1.q.weight"], layer["query"]["kernel"].T)
    np.testing.assert_array_equal(tensors[f"{prefix}blocks.1.g.weight"], layer["gate"]["kernel"])


def test_a_further_family_is_among_the_expected_ones(toy, tmp_path):
    with pytest.raises(ModelError, match=r"^model_type: expected one of gpt_neox, gpt2, .*, toy, got 'bert'"):
        hf.config_from_hf({"model_type": "bert"})
    with pytest.raises(ModelError, match=r"^gated: expected true or false, got 1"):
        dataclasses.replace(toy, gated=1)


# --- a configuration as it is published ------------------------------------------------------------------------------

PUBLISHED = {
    "architectures": ["GPTNeoXForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "classifier_dropout": 0.1,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_dropout": 0.0,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 16,
    "rope_scaling": None,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
"""Pythia-1B, as transformers 4.33 writes it."""
SMALLER = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 304}
REWARD = {
    "architectures": ["GPTNeoXForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        pytest.param({}, "lm", marks=pytest.mark.slow, id="full"),
        pytest.param(SMALLER, "lm", id="smaller"),
        pytest.param(SMALLER | REWARD, "score", id="smaller_reward"),
    ],
)
def test_a_published_config_loads_runs_and_comes_back(changes, head, tmp_path):
    raw = PUBLISHED | changes
    config = hf.config_from_hf(raw)
    hf.save_pretrained(tmp_path / "first", config, models.init_params(config, jax.random.key(0), head))
    config, params = hf.load_pretrained(tmp_path / "first")
    output = apply(config, params, jnp.arange(8)[None], logits=head == "lm")
    result = models.scores(params, output.hidden) if output.logits is None else output.logits
    assert result.shape == ((1, 8, raw["vocab_size"]) if head == "lm" else (1, 8))
    assert np.isfinite(result).all()
    assert np.std(result) > 0.1
    hf.save_pretrained(tmp_path / "second", config, params)
    assert json.loads((tmp_path / "second" / "config.json").read_text()) == raw
    files = [safe_open(tmp_path / name / "model.safetensors", "numpy") for name in ("first", "second")]
    assert files[0].keys() == files[1].keys()
    assert len(files[0].keys()) == 12 * raw["num_hidden_layers"] + 4
    for name in files[0].keys():  # noqa: SIM118
        first, second = (file.get_tensor(name) for file in files)
        assert first.dtype == np.float32
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("changes", [{}, REWARD])
def test_a_published_config_means_what_it_means_to_transformers(changes):
    raw = PUBLISHED | changes
    theirs = transformers.GPTNeoXConfig.from_dict(json.loads(json.dumps(raw)))
    config = hf.config_from_hf(raw)
    assert config == hf.config_from_hf(theirs.to_dict())
    assert (config.head_dim, config.rotary_dim, config.rope.rope_theta) == (256, 64, 10000)
    with torch.device("meta"):
        expected = {name: tuple(p.shape) for name, p in transformers.GPTNeoXForCausalLM(theirs).named_parameters()}
    abstract = jax.eval_shape(lambda: models.init_params(config, jax.random.key(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(abstract)) == sum(np.prod(shape) for shape in expected.values())


# --- What gradients cost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "axis"), [((3, 2, 4), 0), ((2, 3, 4), 1)], ids=["parts first", "heads first"])
def test_the_gradient_of_queries_keys_and_values_moves_no_more_than_it_must(shape, axis):
    """Axes contracted together would be transposed, and a part padded to all three is moved at three times its size."""
    config = hf.config_from_hf(RAW["gpt_neox"])
    graph, weights = nnx.split(Linear(config, 8, 24, rngs=nnx.Rngs(0)))

    def loss(weights, x):
        query, key, value = project(nnx.merge(graph, weights), x, None, shape, axis)
        return jnp.sum(query * key * value)

    text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(weights, jnp.ones((5, 7, 8))).as_text()
    contracted = re.findall(r"dot_general.* contracting_dims = \[([\d, ]*)\]", text)
    assert len(contracted) == 3 and all("," not in axes for axes in contracted)
    padded = re.findall(r"stablehlo.pad .* low = \[([\d, ]*)\], high = \[([\d, ]*)\]", text)
    assert not re.search("[1-9]", str(padded))


def test_keys_are_those_of_flax():
    ours, theirs = Keys(3), nnx.Rngs(3)
    for _ in range(5):
        np.testing.assert_array_equal(jax.random.key_data(ours.params()), jax.random.key_data(theirs.params()))
