"""PEFT folders in and out: `adapter_config.json` and `adapter_model.safetensors`. Source of names and keys: PEFT."""

import functools
import math
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.redact import redact
from jaxppo.errors import ModelError
from jaxppo.hf.card_metadata import hub_id
from jaxppo.hf.files import (
    CARD_FILE,
    cast,
    complete_folder,
    existing_folder,
    naming,
    open_tensors,
    read_json,
    read_metadata,
    read_weights,
    write_file,
    write_json,
)
from jaxppo.hf.folders import check_replaceable
from jaxppo.hf.names import REWARD_BIAS
from jaxppo.nn import ModelConfig, family_of
from jaxppo.nn.lora import LoraConfig, fingerprint, linear_layers, put
from jaxppo.types import Params

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

FINGERPRINT = "base_fingerprint"
"""Entry of the weights file that names the base the adapter was trained on; PEFT ignores it."""

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
    repo, _, revision = base_model.partition("@") if hub_id(base_model) else (base_model, "", "")
    targets = lora.target_modules
    if targets is None:  # not "all-linear", which PEFT reads as including heads for some models
        targets = sorted({name.split(".", 3)[-1] for name in adapted})
    return {
        "peft_type": "LORA",
        "task_type": _TASKS["score" if score else "lm"],
        "base_model_name_or_path": repo,
        "revision": revision or None,
        "r": lora.r,
        "lora_alpha": lora.lora_alpha,
        "lora_dropout": 0.0,
        "target_modules": targets if isinstance(targets, str) else list(targets),
        "use_rslora": lora.use_rslora,
        "bias": "none",
        "fan_in_fan_out": family_of(config.model_type).fan_in_fan_out,
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
            put(adapter, path, jnp.asarray(cast(name, read_weights(name, tensor), "float32").T))
        _check_complete(adapter)
        if lora.target_modules is not None:
            _check_targets(adapter, layers, lora)
    return lora, adapter


def load_reward_bias(folder: str | os.PathLike[str]) -> float:
    """Return what is to be subtracted from the scores of a reward model's adapter: what jaxppo stored with it, or 0.

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
    targets, scaled = raw.get("target_modules"), raw.get("use_rslora")
    names = targets if isinstance(targets, list) else [targets]
    if targets is not None and not all(isinstance(name, str) for name in names):
        raise ModelError(f"target_modules: expected names of layers or a regular expression, got {targets!r}")
    if scaled not in (None, False, True):
        raise ModelError(f"use_rslora: expected true or false, got {scaled!r}")
    fields: dict[str, Any] = {name: raw.get(name) for name in ("r", "lora_alpha")}
    return LoraConfig(
        **fields,
        target_modules=tuple(sorted(targets)) if isinstance(targets, list) else targets,
        use_rslora=bool(scaled),
    )


def _check_targets(adapter: Params, layers: dict[str, Any], lora: LoraConfig) -> None:
    for name, (path, _) in layers.items():
        given = functools.reduce(lambda tree, part: tree.get(part, {}), path, adapter)
        if lora.targets(name) and not given:
            raise ModelError(f"{WEIGHTS_FILE}: expected an adapter for {name}, as target_modules say, got none")


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
