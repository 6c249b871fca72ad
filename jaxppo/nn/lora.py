"""LoRA adapters on nested dicts: make, attach, merge, and PEFT folders in and out.

An adapter is a nested dict that mirrors the parameters where it has something to add:

    {"trunk": {"layers": {"0": {"attention": {"dense": {"lora_a": [inputs, r], "lora_b": [r, outputs]}}}}},
     "score": {"kernel": [D, 1]}}                       # heads that are trained whole, of value and reward models

The base stays what it is, one set of arrays under any number of adapters: policy, value and reward model each have one,
the reference has none. A layer computes x W + s (x A) B with s = alpha / r, or alpha / sqrt(r) for rank-stabilised
adapters. Source: arXiv:2106.09685, arXiv:2312.03732; file names and keys: PEFT.

Written on plain dicts, because Flax's own `nnx.LoRALinear` knows no alpha and mixes base and adapter in one state, and
qwix rewrites modules by intercepting their calls; here nothing but `families/layers.py: Linear` knows of adapters.
"""

import hashlib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.redact import redact
from jaxppo.errors import ModelError
from jaxppo.hf import CARD_FILE, REWARD_BIAS, check_replaceable, existing_folder, hf_name
from jaxppo.hf.files import complete_folder, naming, open_tensors, read_json, read_metadata, write_file, write_json
from jaxppo.models import Params, init_params
from jaxppo.nn import ModelConfig, family_of

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

FINGERPRINT = "base_fingerprint"
"""Entry of the weights file that says which base the adapter was trained on; PEFT passes over it."""

_PREFIX = "base_model.model."
_TASKS = {"lm": "CAUSAL_LM", "score": "SEQ_CLS"}
_FACTORS = {"lora_A": "lora_a", "lora_B": "lora_b"}

# Settings of PEFT that change the computation in ways that are not supported -> values that do not. Other values of
# `init_lora_weights` change the base.
_PLAIN = {
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal", "mica"),
    "use_dora": (False,),
    "use_bdlora": (None, False),
    "kasa_config": (None,),
    "arrow_config": (None,),
    "monteclora_config": (None,),
    "bias": ("none",),
    "layers_to_transform": (None,),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "exclude_modules": (None, []),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "use_qalora": (False,),
    "alora_invocation_tokens": (None,),
    "lora_bias": (False,),
    "layer_replication": (None,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Shape of an adapter; names and meanings are PEFT's.

    Attributes:
        r: rank.
        lora_alpha: see the factor s above.
        target_modules: names of linear layers as in transformers, each the end of a full name ("query_key_value",
            "mlp.c_fc"); or one regular expression that matches full names; None: all linear layers of the trunk.
        use_rslora: alpha / sqrt(r) instead of alpha / r.

    Raises:
        ModelError: a field has a value that no adapter can have; the message names it.
    """

    r: int = 16
    lora_alpha: float = 32
    target_modules: tuple[str, ...] | str | None = None
    use_rslora: bool = False

    def __post_init__(self):
        if type(self.r) is not int or self.r < 1:
            raise ModelError(f"r: expected an integer >= 1, got {self.r!r}")
        if type(self.lora_alpha) not in (int, float) or not 0 < self.lora_alpha < float("inf"):
            raise ModelError(f"lora_alpha: expected a finite number above 0, got {self.lora_alpha!r}")
        if isinstance(self.target_modules, str):
            try:
                re.compile(self.target_modules)
            except re.error as error:
                raise ModelError(f"target_modules: expected a regular expression, got: {error}") from error

    @property
    def scale(self) -> float:
        """The factor s."""
        return self.lora_alpha / (self.r**0.5 if self.use_rslora else self.r)

    def targets(self, name: str) -> bool:
        """Whether a linear layer with this full name in transformers gets an adapter."""
        if self.target_modules is None:
            return True
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, name) is not None
        return any(name == target or name.endswith(f".{target}") for target in self.target_modules)


def linear_layers(config: ModelConfig) -> dict[str, tuple[tuple[str, ...], tuple[int, int]]]:
    """Full name in transformers -> path and [inputs, outputs] of every linear layer of the trunk."""
    family = family_of(config.model_type)
    abstract = jax.eval_shape(lambda: init_params(config, jax.random.key(0), None))
    found = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(abstract):
        path = tuple(key.key for key in keys)
        if path[-1] == "kernel":
            name = family.trunk_prefix + hf_name(family, path).name.removesuffix(".weight")
            found[name] = (path[:-1], leaf.shape)
    return found


def init_adapter(config: ModelConfig, lora: LoraConfig, key: jax.Array) -> Params:
    """Draw an adapter that changes nothing yet: A uniform in +-1 / sqrt(inputs), B zero, as PEFT does.

    Raises:
        ModelError: no layer of the model is named by `target_modules`.
    """
    layers = linear_layers(config)
    chosen = [entry for name, entry in layers.items() if lora.targets(name)]
    if not chosen:
        raise _no_target(lora, layers)
    adapter: Params = {}
    for (path, (inputs, outputs)), layer_key in zip(chosen, jax.random.split(key, len(chosen)), strict=True):
        bound = inputs**-0.5
        a = jax.random.uniform(layer_key, (inputs, lora.r), minval=-bound, maxval=bound)
        _put(adapter, path, {"lora_a": a, "lora_b": jnp.zeros((lora.r, outputs))})
    return adapter


def _no_target(lora: LoraConfig, layers: dict[str, Any]) -> ModelError:
    kinds = ", ".join(dict.fromkeys(name.split(".")[-1] for name in layers))
    return ModelError(f"lora_target_modules: expected names among {kinds}, got {lora.target_modules!r}")


def _put(tree: Params, path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = tree.get(path[-1], {}) | value if isinstance(value, dict) else value


def attach(base: Params, adapter: Params, scale: float) -> Params:
    """The parameters of the adapted model, for `models.apply`; the base's arrays are shared, not copied.

    Args:
        base: parameters.
        adapter: see above; its heads take the place of the base's.
        scale: the factor s, multiplied into B.
    """
    result = dict(base)
    for name, value in adapter.items():
        if isinstance(value, dict):
            result[name] = attach(base.get(name, {}), value, scale)
        else:
            result[name] = value * scale if name == "lora_b" else value
    return result


def merge(base: Params, adapter: Params, scale: float) -> Params:
    """The parameters of the adapted model as one without an adapter: W + s A B in place of W, in its dtype."""
    result = dict(base)
    for name, value in adapter.items():
        if not isinstance(value, dict):
            result[name] = value
        elif "lora_a" in value:
            kernel = base[name]["kernel"]
            merged = kernel + scale * (value["lora_a"] @ value["lora_b"])
            result[name] = base[name] | {"kernel": merged.astype(kernel.dtype)}
        else:
            result[name] = merge(base.get(name, {}), value, scale)
    return result


def fingerprint(base: Params) -> str:
    """A short name of a trunk's numbers: the SHA-256 of 64 of each array's, in the order of the tree."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(base["trunk"]):
        some = leaf.reshape(-1)[:: max(1, leaf.size // 64)][:64]
        digest.update(np.asarray(some, np.float32).tobytes())
    return digest.hexdigest()[:16]


def save_adapter(
    folder: str | os.PathLike[str],
    config: ModelConfig,
    lora: LoraConfig,
    adapter: Params,
    base: Params,
    base_model: str,
    card: str | None = None,
    reward_bias: float | None = None,
) -> None:
    """Write a folder that PEFT's `PeftModel.from_pretrained` reads.

    Args:
        folder: new, empty or holding an adapter.
        config: the base model.
        lora: shape of the adapter.
        adapter: see above; with a `score` head it is one of a `...ForSequenceClassification`.
        base: parameters of the base model; their `fingerprint` is written beside.
        base_model: path or hub id of the base, for whoever loads the adapter.
        card: content of README.md.
        reward_bias: of a reward model, see `load_reward_bias`; written beside the weights.

    Raises:
        ModelError: the folder holds something else or cannot be written.
    """
    folder = Path(folder)
    check_replaceable(folder, CONFIG_FILE)
    names = {path: name for name, (path, _) in linear_layers(config).items()}
    tensors, adapted = {}, []
    for keys, leaf in jax.tree_util.tree_leaves_with_path(adapter):
        *path, last = (key.key for key in keys)
        if path[0] == "score":
            tensors[f"{_PREFIX}score.{'weight' if last == 'kernel' else last}"] = leaf
            continue
        adapted.append(names[tuple(path)])
        factor = "lora_A" if last == "lora_a" else "lora_B"
        tensors[f"{_PREFIX}{names[tuple(path)]}.{factor}.weight"] = leaf
    with complete_folder(folder) as partial:
        write_json(partial / CONFIG_FILE, redact(_peft_config(config, lora, adapted, "score" in adapter, base_model)))
        arrays = {name: np.asarray(leaf, np.float32).T for name, leaf in tensors.items()}
        about = {FINGERPRINT: fingerprint(base)} | ({} if reward_bias is None else {REWARD_BIAS: repr(reward_bias)})
        write_file(partial / WEIGHTS_FILE, arrays, **about)
        if card is not None:
            (partial / CARD_FILE).write_text(card, encoding="utf-8")


def _peft_config(
    config: ModelConfig, lora: LoraConfig, adapted: list[str], score: bool, base_model: str
) -> dict[str, Any]:
    targets = lora.target_modules
    if targets is None:  # not "all-linear", which PEFT reads as including heads for some models
        targets = sorted({name.split(".", 3)[-1] for name in adapted})
    return {
        "peft_type": "LORA",
        "task_type": _TASKS["score" if score else "lm"],
        "base_model_name_or_path": base_model,
        "r": lora.r,
        "lora_alpha": lora.lora_alpha,
        "lora_dropout": 0.0,
        "target_modules": targets if isinstance(targets, str) else list(targets),
        "use_rslora": lora.use_rslora,
        "bias": "none",
        "fan_in_fan_out": config.model_type == "gpt2",  # Conv1D keeps [inputs, outputs]
        "modules_to_save": ["score"] if score else None,
        "inference_mode": True,
    }


def load_adapter(
    folder: str | os.PathLike[str], config: ModelConfig, base: Params | None = None
) -> tuple[LoraConfig, Params]:
    """Read a PEFT folder: `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        folder: local folder.
        config: the base model it goes on.
        base: its parameters, compared with the `fingerprint` where the folder has one.

    Returns:
        The shape of the adapter, and the adapter in float32.

    Raises:
        ModelError: the folder is no LoRA adapter, uses what is not supported, or does not fit the base; the message
            names the setting or the tensor.
    """
    folder = existing_folder(folder)
    raw = read_json(folder / CONFIG_FILE)
    with naming(folder / CONFIG_FILE):
        lora = _read_config(raw)
    with naming(folder):
        trained_on = read_metadata(folder / WEIGHTS_FILE).get(FINGERPRINT)
        if base is not None and trained_on is not None:
            _check_base(trained_on, fingerprint(base))
        tensors = open_tensors(folder, WEIGHTS_FILE)
        layers, adapter = linear_layers(config), {}
        for name, tensor in tensors.items():
            path, shape = _place_of(name, layers, lora, config)
            came = tuple(tensor.get_shape())
            if came != shape:
                raise ModelError(f"{name}: expected shape {shape} on this base, got {came}")
            _put(adapter, path, jnp.asarray(tensor[...].astype(np.float32).T))
        _check_complete(adapter)
    return lora, adapter


def load_reward_bias(folder: str | os.PathLike[str]) -> float:
    """What is to be subtracted from the scores of a reward model's adapter: what jaxppo stored with it, or 0.

    Raises:
        ModelError: the weights are unreadable, or it is no finite number.
    """
    folder = Path(folder)
    with naming(folder):
        text = read_metadata(folder / WEIGHTS_FILE).get(REWARD_BIAS, "0.0")
    try:
        bias = float(text)
    except ValueError:
        bias = math.nan
    if not math.isfinite(bias):
        raise ModelError(f"{folder}, {REWARD_BIAS}: expected a finite number, got {text!r}")
    return bias


def _read_config(raw: dict[str, Any]) -> LoraConfig:
    if raw.get("peft_type") != "LORA":
        raise ModelError(f"peft_type: expected 'LORA', got {raw.get('peft_type')!r}")
    for name, plain in _PLAIN.items():
        if raw.get(name, plain[0]) not in plain:
            raise ModelError(f"{name}: expected {plain[0]!r} (others are not supported), got {raw[name]!r}")
    targets = raw.get("target_modules")
    fields: dict[str, Any] = {name: raw.get(name) for name in ("r", "lora_alpha")}
    return LoraConfig(
        **fields,
        target_modules=tuple(sorted(targets)) if isinstance(targets, list) else targets,
        use_rslora=bool(raw.get("use_rslora")),
    )


def _check_base(trained_on: str, base: str) -> None:
    if trained_on != base:
        raise ModelError(
            f"{WEIGHTS_FILE}: expected an adapter of this base ({base}), got one of another ({trained_on})"
        )


def _place_of(
    name: str, layers: dict[str, Any], lora: LoraConfig, config: ModelConfig
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Path in the adapter, and shape in the file, of a tensor of PEFT's."""
    module, _, suffix = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
    if module in layers and suffix in _FACTORS:
        path, (inputs, outputs) = layers[module]
        shape = (lora.r, inputs) if suffix == "lora_A" else (outputs, lora.r)
        return (*path, _FACTORS[suffix]), shape
    if name in (f"{_PREFIX}score.weight", f"{_PREFIX}score.modules_to_save.weight"):
        return ("score", "kernel"), (1, config.hidden_size)
    if name == f"{_PREFIX}score.bias":
        return ("score", "bias"), (1,)
    raise ModelError(f"{name}: expected an adapter for a linear layer of this {config.model_type} model, got another")


def _check_complete(adapter: Params, path: tuple[str, ...] = ()) -> None:
    if not adapter:
        raise ModelError(f"{WEIGHTS_FILE}: expected an adapter for some layer, got no tensors")
    factors = [name for name in _FACTORS.values() if name in adapter]
    if len(factors) == 1:
        raise ModelError(f"{WEIGHTS_FILE}: expected both factors of {'/'.join(path)}, got {factors[0]} alone")
    for name, child in adapter.items():
        if isinstance(child, dict):
            _check_complete(child, (*path, name))
