"""A further family is one more file: what it says of itself is all that the rest of the package asks for."""

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from jaxppo import hf, sft
from jaxppo.config import SFTConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ModelError
from jaxppo.nn import FAMILIES, lora
from jaxppo.nn.attention import attend_cached
from jaxppo.nn.blocks import select_tokens
from jaxppo.nn.checks import check_bool
from jaxppo.nn.config import SCORE_NAMES, Family, HfName, ModelConfig, linear_names, norm_names
from jaxppo.nn.layers import Linear, embed, embedding, layer_norm
from jaxppo.parallel import partition
from jaxppo.profiling import flops
from tests.torch_models import assert_equal_trees, random_params, read


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

    def __call__(self, x, context):
        normed = self.norm(x)
        x, read_only = select_tokens((x, normed), context.read, 1)
        split = lambda y: y.reshape(*y.shape[:2], self.heads, -1).transpose(0, 2, 1, 3)  # noqa: E731
        query, key, value = split(self.query(read_only)), split(self.key(normed)), split(self.value(normed))
        attended, cache = attend_cached(query, key, value, context)
        gate = jax.nn.sigmoid(self.gate(read_only)) if self.gated else 1.0
        return x + self.out(gate * attended), cache


class ToyTrunk(nnx.Module):
    """Positions come in as a wave."""

    def __init__(self, config, rngs):
        self.embed_in = embedding(config, config.vocab_size, rngs)
        self.layers = nnx.Dict({str(i): ToyLayer(config, rngs) for i in range(config.num_hidden_layers)})
        self.final_layer_norm = layer_norm(config, rngs)

    def embed(self, input_ids, positions):
        hidden = embed(self.embed_in, input_ids)
        waves = jnp.sin(positions[..., None] * jnp.arange(1, hidden.shape[-1] + 1) / 10).astype(hidden.dtype)
        return hidden + waves, None


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
    | norm_names("trunk/final_layer_norm", "norm")
    | norm_names("trunk/layers/{i}/norm", "blocks.{i}.norm")
    | linear_names("trunk/layers/{i}/query", "blocks.{i}.q")
    | linear_names("trunk/layers/{i}/key", "blocks.{i}.k")
    | linear_names("trunk/layers/{i}/value", "blocks.{i}.v")
    | linear_names("trunk/layers/{i}/gate", "blocks.{i}.g", transpose=False)
    | linear_names("trunk/layers/{i}/out", "blocks.{i}.o")
    | SCORE_NAMES,
    ignored=re.compile(r"never$"),
    partition={"query/kernel": ("fsdp", "tensor")},
    saved_widths=(7, 0),
)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", TOY)  # the one row
    return hf.config_from_hf(
        {"model_type": "toy", "words": 23, "width": 12, "depth": 2, "heads": 3, "eos_token_id": 2, "note": "kept"}
    )


def test_a_further_family_brings_everything_that_others_ask_for(toy):
    """Partition, adapters, fresh sizes, FLOPs and errors: no other file knows the family."""
    assert partition.axes_of("policy/trunk/layers/0/query/kernel") == ("fsdp", "tensor")
    with pytest.raises(ValueError, match="query/kernel"):
        dataclasses.replace(TOY, partition={"query/kernel": ("tensor", "fsdp")})
    assert sorted(lora.linear_layers(toy))[0] == "toy.blocks.0.g" and TOY.fan_in_fan_out
    adapter = lora.init_adapter(toy, lora.LoraConfig(r=2, target_modules=("q",)), jax.random.key(0))
    assert adapter["trunk"]["layers"]["1"]["query"]["lora_a"].shape == (12, 2)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
    start = sft.start_model(replace(SFTConfig(), model_type="toy", model_kwargs={"rotary_pct": 1.0}, **sizes))
    assert (start.model.model_type, start.model.intermediate_size) == ("toy", 48)
    assert flops.of_models(toy, toy, {"policy": random_params(toy)})
    for ask in (
        lambda: sft.start_model(replace(SFTConfig(), model_type="tyo")),
        lambda: hf.config_from_hf({"model_type": "bert"}),
    ):
        with pytest.raises(ModelError, match=r"^model_type: .*gpt2.*toy"):
            ask()
    with pytest.raises(ModelError, match="gated"):
        dataclasses.replace(toy, gated=1)


@pytest.mark.parametrize("head", ["lm", "score", None])
def test_a_further_family_is_saved_and_loaded(toy, head, tmp_path):
    config = dataclasses.replace(toy, gated=False)
    params = random_params(config, head)
    hf.save_pretrained(tmp_path / "model", config, params)
    loaded_config, loaded = hf.load_pretrained(tmp_path / "model")
    assert loaded_config == config
    assert_equal_trees(loaded, params)
    raw = read(tmp_path / "model")
    assert raw["architectures"] == [TOY.architectures[head]]
    assert (raw["words"], raw["width"], raw["gated"], raw["note"]) == (23, 12, False, "kept")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    prefix = "" if head is None else "toy."
    layer = params["trunk"]["layers"]["1"]
    np.testing.assert_array_equal(tensors[f"{prefix}blocks.1.q.weight"], layer["query"]["kernel"].T)
    np.testing.assert_array_equal(tensors[f"{prefix}blocks.1.g.weight"], layer["gate"]["kernel"])
