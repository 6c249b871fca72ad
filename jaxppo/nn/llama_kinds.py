"""The kinds of Llama-shaped models: what tells them apart, their configuration, and how transformers writes it.

Source: transformers configuration_llama.py, configuration_qwen2.py, configuration_qwen3.py, configuration_mistral.py,
configuration_smollm3.py, configuration_gemma3.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxppo.errors import ModelError
from jaxppo.nn.checks import (
    check_at_least,
    check_bool,
    check_choice,
    check_heads_divide,
    check_num_layers,
    check_positive_int,
    check_present,
)
from jaxppo.nn.config import SIZES, ModelConfig
from jaxppo.nn.layers import ACTIVATIONS
from jaxppo.nn.rotary import PLAIN, Rope, rope_from_hf

FULL, SLIDING = "full_attention", "sliding_attention"
"""transformers' kinds of layers."""


class Kind(NamedTuple):
    """What tells a `model_type` from the others.

    Attributes:
        name: beginning of its classes in transformers.
        defaults: what a key means that a file does not have.
        flags: keys of its own that switch biases on: of attention, of the MLP.
        qkv_bias: queries, keys and values have biases, and there is no key for that.
        qk_norm: queries and keys are normalised, each head by itself.
        unrotated_every: the last of each group of this many layers has no rotary embedding; 0: all layers have one.
        layers_slide: whether files name the layers with a window; else all have one that is not null, or none.
        norms_add_one: norms multiply by 1 + weights.
        post_norms: what attention and MLP give is normalised before it is added.
        scales_embeddings: embeddings are multiplied by sqrt(D).
        causal_lm: its class of language models, where that is not `name` and ForCausalLM.
        refused: keys that may be null or false alone.
    """

    name: str
    defaults: Mapping[str, Any]
    flags: tuple[str, ...] = ()
    qkv_bias: bool = False
    qk_norm: bool = False
    unrotated_every: int = 0
    layers_slide: bool = False
    norms_add_one: bool = False
    post_norms: bool = False
    scales_embeddings: bool = False
    causal_lm: str | None = None
    refused: tuple[str, ...] = ()


# What transformers' configuration classes mean by a key that a file does not have.
_COMMON = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_LLAMA = _COMMON | {
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_QWEN = _COMMON | {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_MISTRAL = _COMMON | {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SMOLLM3 = _COMMON | {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 4,
    "rope_theta": 2e6,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": None,
    "no_rope_layer_interval": 4,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
_GEMMA3 = {
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}

KINDS = {
    "llama": Kind("Llama", _LLAMA, flags=("attention_bias", "mlp_bias")),
    "qwen2": Kind("Qwen2", _QWEN, qkv_bias=True, layers_slide=True),
    "qwen3": Kind(
        "Qwen3",
        _QWEN | {"head_dim": 128},
        flags=("attention_bias",),
        qk_norm=True,
        layers_slide=True,
    ),
    "mistral": Kind("Mistral", _MISTRAL),
    "smollm3": Kind(
        "SmolLM3",
        _SMOLLM3,
        flags=("attention_bias", "mlp_bias"),
        unrotated_every=4,
        layers_slide=True,
    ),
    "gemma3_text": Kind(
        "Gemma3Text",
        _GEMMA3,
        flags=("attention_bias",),
        qk_norm=True,
        layers_slide=True,
        norms_add_one=True,
        post_norms=True,
        scales_embeddings=True,
        causal_lm="Gemma3ForCausalLM",
        refused=(
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "use_bidirectional_attention",
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Names and meanings of transformers, whose `rms_norm_eps` is `layer_norm_eps` here.

    Attributes:
        head_dim: size K of one head, which need not be D / H.
        num_key_value_heads: heads of keys and values, a divisor of the others.
        rope: rotary frequencies.
        window_rope: those of the layers with a window; None: the same.
        query_pre_attn_scalar: what scores are divided by the root of; None: `head_dim`.
        attention_bias: biases of queries, keys, values and of the output (Qwen2 has those of the first three anyway).
        mlp_bias: biases of the MLP.
        sliding_window: how many tokens, itself among them, a token sees in the layers with a window.
        window_layers: numbers of these layers.
        unrotated_layers: numbers of the layers without rotary embedding.
    """

    model_type: str = "llama"
    max_position_embeddings: int = 2048
    layer_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    # Properties in other families, where they follow from the sizes. `field()`: no default, which
    # a dataclass would otherwise take from the property of the same name.
    head_dim: int = field()  # type: ignore[override]
    num_key_value_heads: int = field()  # type: ignore[override]
    rope: Rope = PLAIN
    window_rope: Rope | None = None
    query_pre_attn_scalar: float | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    window_layers: tuple[int, ...] = ()
    unrotated_layers: tuple[int, ...] = ()

    @classmethod
    def derived_fields(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return sizes of heads, and the activation and layers without rotary embedding that a kind has by itself."""
        check_num_layers(settings["num_hidden_layers"])
        for name in ("hidden_size", "num_attention_heads"):
            check_positive_int(name, settings[name])
        num_layers = settings["num_hidden_layers"]
        num_heads = settings["num_attention_heads"]
        derived: dict[str, Any] = {"num_key_value_heads": num_heads}
        if "head_dim" not in settings:
            check_heads_divide(num_heads, settings["hidden_size"])
            derived["head_dim"] = settings["hidden_size"] // num_heads
        kind = KINDS[settings.get("model_type", "llama")]
        if "hidden_activation" in kind.defaults:
            derived["hidden_act"] = kind.defaults["hidden_activation"]
        interval = kind.unrotated_every
        if interval:
            derived["unrotated_layers"] = tuple(range(interval - 1, num_layers, interval))
        return derived

    def _check_heads(self) -> None:
        heads = self.num_attention_heads
        check_positive_int("num_key_value_heads", self.num_key_value_heads)
        check_positive_int("head_dim", self.head_dim)
        # As many queries share each key.
        if heads % self.num_key_value_heads:
            multiple = f"a multiple of num_key_value_heads={self.num_key_value_heads}"
            raise ModelError(f"num_attention_heads: expected {multiple}, got {heads}")
        if self.head_dim % 2:
            raise ModelError(
                f"head_dim: expected an even number, whose halves rotate, got {self.head_dim}"
            )

    def _check_family(self) -> None:
        check_choice("model_type", self.model_type, KINDS)
        check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        for name in ("attention_bias", "mlp_bias"):
            check_bool(name, getattr(self, name))
            if getattr(self, name) and name not in self.kind.flags:
                raise ModelError(f"{name}: expected false for a {self.model_type} model, got true")
        if self.query_pre_attn_scalar is not None:
            check_at_least(1e-6, "query_pre_attn_scalar", self.query_pre_attn_scalar)
        if self.sliding_window is not None:
            check_positive_int("sliding_window", self.sliding_window)
        elif self.window_layers:
            raise ModelError(
                "sliding_window: expected an integer >= 1 for the layers with a window, got null"
            )

    @property
    def kind(self) -> Kind:
        """What tells this `model_type` from the others."""
        return KINDS[self.model_type]


_SAME_KEYS = ("max_position_embeddings", "hidden_act", "tie_word_embeddings", "initializer_range")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_KEYS = {name: name for name in (*SIZES, *_SAME_KEYS, *_TOKENS)} | {
    "layer_norm_eps": "rms_norm_eps"
}
"""Field of our configuration -> key in transformers."""


def from_hf(raw: dict[str, Any]) -> dict[str, Any]:
    """Read a `config.json`, see `Family.from_hf`."""
    check_present(raw, SIZES)
    kind = KINDS[raw["model_type"]]
    settings: dict[str, Any] = (
        {"bos_token_id": None, "eos_token_id": None} | dict(kind.defaults) | raw
    )
    for name in kind.refused:
        if settings.get(name) not in (None, False):
            raise ModelError(f"{name}: expected null or false, got {settings[name]!r}")
    keys = _keys(kind)
    fields = {name: settings[key] for name, key in keys.items() if key in settings}
    # null means derived from the other sizes, as a missing key does.
    for name in ("head_dim", "num_key_value_heads"):
        if settings.get(name) is not None:
            fields[name] = settings[name]
    for name in kind.flags:
        fields[name] = settings.get(name, False)
    fields = LlamaConfig.derived_fields(fields) | fields
    unrotated_layers = _unrotated_layers(settings) if kind.unrotated_every else ()
    sliding_window, window_layers = _windows(kind, settings, unrotated_layers)
    full_settings = settings
    if "rope_local_base_freq" in kind.defaults:
        full_settings, window_settings = _by_layer_type(settings)
        if window_layers:
            fields["window_rope"] = _rope(window_settings, "rope_local_base_freq")
    if "query_pre_attn_scalar" in kind.defaults:
        scalar = settings["query_pre_attn_scalar"]
        fields["query_pre_attn_scalar"] = None if scalar == fields["head_dim"] else scalar
    return fields | {
        "model_type": raw["model_type"],
        "rope": _rope(full_settings, "rope_theta"),
        "sliding_window": sliding_window,
        "window_layers": window_layers,
        "unrotated_layers": unrotated_layers,
    }


def _keys(kind: Kind) -> dict[str, str]:
    """Return the keys of `_KEYS` as a kind names them."""
    if "hidden_activation" in kind.defaults:
        return _KEYS | {"hidden_act": "hidden_activation"}
    return _KEYS


def _rope(settings: Mapping[str, Any], theta_key: str) -> Rope:
    """Read rotary settings; a key names the base where these do not."""
    rope, rotated_share = rope_from_hf(settings, settings[theta_key])
    # transformers 5 has the share among the rotary settings, 4 next to them.
    if rotated_share is None:
        rotated_share = settings.get("partial_rotary_factor", 1.0)
    if rotated_share != 1.0:
        allowed = f"1.0 for a {settings['model_type']} model, whose heads rotate whole"
        raise ModelError(f"partial_rotary_factor: expected {allowed}")
    return rope


def _by_layer_type(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return settings as layers without and with a window read them, where `rope_parameters` has an object for each.

    Source: transformers configuration_gemma3.py, convert_rope_params_to_dict.
    """
    parameters = settings.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or not set(parameters) <= {FULL, SLIDING}:
        raise ModelError(
            f"rope_parameters: expected an object with {FULL} and {SLIDING}, got {parameters!r}"
        )
    full = (parameters.get(FULL) or {}) | (settings.get("rope_scaling") or {})
    unscaled = {**settings, "rope_scaling": None}
    return (
        unscaled | {"rope_parameters": full},
        unscaled | {"rope_parameters": parameters.get(SLIDING)},
    )


def _unrotated_layers(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Read the layers without rotary embedding: those with a 0 in `no_rope_layers`, or the last of every interval."""
    num_layers = settings["num_hidden_layers"]
    rotates = settings.get("no_rope_layers")
    if rotates is None:
        interval = settings["no_rope_layer_interval"]
        check_positive_int("no_rope_layer_interval", interval)
        return tuple(range(interval - 1, num_layers, interval))
    if (
        not isinstance(rotates, list)
        or len(rotates) < num_layers
        or not all(flag in (0, 1) for flag in rotates)
    ):
        allowed = f"a list with 0 or 1 for each of {num_layers} layers"
        raise ModelError(f"no_rope_layers: expected {allowed}, got {rotates!r}")
    return tuple(i for i in range(num_layers) if not rotates[i])


def _windows(
    kind: Kind, settings: Mapping[str, Any], unrotated_layers: tuple[int, ...]
) -> tuple[int | None, tuple[int, ...]]:
    """Read the window and the layers that have it; (None, ()) where none has."""
    if "sliding_window" not in kind.defaults:  # transformers passes over the key there
        return None, ()
    window = settings["sliding_window"]
    layer_types = None
    if kind.layers_slide:
        layer_types = settings.get("layer_types")
    if "use_sliding_window" in kind.defaults:
        check_bool("use_sliding_window", settings["use_sliding_window"])
        if not settings["use_sliding_window"]:
            window = None
    num_layers = settings["num_hidden_layers"]
    layers = tuple(range(num_layers))
    if layer_types is not None:
        has_all = isinstance(layer_types, list) and len(layer_types) == num_layers
        if not has_all or not set(layer_types) <= {FULL, SLIDING}:
            allowed = f"a list with {FULL} or {SLIDING} for each of {num_layers} layers"
            raise ModelError(f"layer_types: expected {allowed}, got {layer_types!r}")
        layers = tuple(i for i in layers if layer_types[i] == SLIDING)
    # A file without `layer_types`: which layers transformers takes differs by the kind.
    elif "sliding_window_pattern" in kind.defaults:
        pattern = settings["sliding_window_pattern"]
        check_positive_int("sliding_window_pattern", pattern)
        layers = tuple(i for i in layers if (i + 1) % pattern)
    elif window is None:
        layers = ()
    elif kind.unrotated_every:
        layers = unrotated_layers
    elif kind.layers_slide:
        first = settings["max_window_layers"]
        if type(first) is not int or first < 0:
            raise ModelError(f"max_window_layers: expected an integer >= 0, got {first!r}")
        layers = layers[first:]
    return (window, layers) if layers else (None, ())


def to_hf(config: LlamaConfig) -> dict[str, Any]:
    """Write what decides the computation, see `Family.to_hf`."""
    kind = config.kind
    raw = {key: getattr(config, name) for name, key in _keys(kind).items()}
    for name in ("model_type", "num_key_value_heads", "head_dim", *kind.flags):
        raw[name] = getattr(config, name)
    layers = range(config.num_hidden_layers)
    # Layer by layer, not by the shorter keys, which
    # could not say everything that a configuration can.
    if kind.layers_slide:
        layer_types = [SLIDING if i in config.window_layers else FULL for i in layers]
        raw["layer_types"] = layer_types
    if "use_sliding_window" in kind.defaults:
        raw["use_sliding_window"] = bool(config.window_layers)
    if "sliding_window" in kind.defaults:
        raw["sliding_window"] = config.sliding_window
    # transformers' Gemma 3 needs a number also where no layer has a window.
    if "sliding_window_pattern" in kind.defaults and not config.window_layers:
        raw["sliding_window"] = config.max_position_embeddings
    if kind.unrotated_every:
        raw["no_rope_layers"] = [int(i not in config.unrotated_layers) for i in layers]
    raw |= config.rope.to_hf()
    if "rope_local_base_freq" in kind.defaults:
        window_rope = (config.window_rope or config.rope).to_hf()
        raw["rope_parameters"] = {
            FULL: raw["rope_parameters"],
            SLIDING: window_rope["rope_parameters"],
        }
        raw["rope_local_base_freq"] = window_rope["rope_theta"]
        # transformers knows Gemma 3 from a version on that reads no older name of `rope_type`.
        if "rope_scaling" in raw:
            full = raw["rope_parameters"][FULL]
            raw["rope_scaling"] = {key: full[key] for key in full if key != "rope_theta"}
    if "query_pre_attn_scalar" in kind.defaults:
        raw["query_pre_attn_scalar"] = config.query_pre_attn_scalar or config.head_dim
    return raw
