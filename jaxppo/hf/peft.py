"""PEFT folders in and out: `adapter_config.json` and `adapter_model.safetensors`. Source of names and keys: PEFT."""

import functools
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
    ADAPTER_FILE,
    cast,
    existing_folder,
    naming,
    open_tensors,
    read_json,
    read_metadata,
    read_weights,
    replaced_model,
    write_file,
    write_json,
)
from jaxppo.hf.names import REWARD_BIAS
from jaxppo.nn import ModelConfig, family_of
from jaxppo.nn.lora import LoraConfig, fingerprint, linear_layers, set_path
from jaxppo.types import Params

WEIGHTS_FILE = "adapter_model.safetensors"

FINGERPRINT = "base_fingerprint"
"""Entry of the weights file that identifies the base that the adapter was trained on; PEFT ignores it."""

_PREFIX = "base_model.model."
_TASKS = {"lm": "CAUSAL_LM", "score": "SEQ_CLS"}
_FACTORS = {"lora_a": "lora_A", "lora_b": "lora_B"}
"""Our names of the two factors of an adapter, and PEFT's."""

# Settings of PEFT that may change the computation in ways that are not supported -> the values that
# do not. Other values of `init_lora_weights` change the base.
# The first value of each is PEFT's default, which a missing key means.
_SUPPORTED_VALUES = {
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
        adapter: the factors of adapted layers; with a `score` head it is one of a `...ForSequenceClassification`.
        base: parameters of the base model; their `fingerprint` is written beside the weights.
        base_model: path or hub id of the base, for those who load the adapter.
        card: content of README.md.
        reward_bias: of a reward model, see `load_reward_bias`; written beside the weights.

    Raises:
        ModelError: the folder holds something else or cannot be written.
    """
    names = {path: name for name, (path, _) in linear_layers(config).items()}
    tensors = {}
    adapted_names = []
    for keys, leaf in jax.tree_util.tree_leaves_with_path(adapter):
        *path, leaf_name = (key.key for key in keys)
        if path[0] == "score":
            name = f"score.{'weight' if leaf_name == 'kernel' else leaf_name}"
        else:
            layer = names[tuple(path)]
            adapted_names.append(layer)
            name = f"{layer}.{_FACTORS[leaf_name]}.weight"
        # torch's layers hold [outputs, inputs], ours [inputs, outputs].
        tensors[_PREFIX + name] = np.asarray(leaf, np.float32).T
    # In the weights' file: PEFT warns of keys in adapter_config.json that it does not know.
    metadata = {FINGERPRINT: fingerprint(base)}
    if reward_bias is not None:
        metadata[REWARD_BIAS] = repr(reward_bias)
    peft_config = _peft_config(config, lora, adapted_names, "score" in adapter, base_model)
    with replaced_model(Path(folder), ADAPTER_FILE, card) as partial:
        write_json(partial / ADAPTER_FILE, redact(peft_config))
        write_file(partial / WEIGHTS_FILE, tensors, **metadata)


def _peft_config(
    config: ModelConfig,
    lora: LoraConfig,
    adapted_names: list[str],
    has_score: bool,
    base_model: str,
) -> dict[str, Any]:
    # PEFT has a key of its own for the revision.
    repo = base_model
    revision = ""
    if hub_id(base_model):
        repo, _, revision = base_model.partition("@")
    targets = lora.target_modules
    if targets is None:  # not "all-linear", which PEFT reads as including heads for some models
        # Without the prefix and number of the layer: PEFT takes every layer whose name ends so.
        targets = sorted({name.split(".", 3)[-1] for name in adapted_names})
    return {
        "peft_type": "LORA",
        "task_type": _TASKS["score" if has_score else "lm"],
        "base_model_name_or_path": repo,
        "revision": revision or None,
        "r": lora.r,
        "lora_alpha": lora.lora_alpha,
        # Of training, which has none here; who loads the adapter may train on with another.
        "lora_dropout": 0.0,
        "target_modules": targets if isinstance(targets, str) else list(targets),
        "use_rslora": lora.use_rslora,
        "bias": "none",
        "fan_in_fan_out": family_of(config.model_type).fan_in_fan_out,
        "modules_to_save": ["score"] if has_score else None,
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
    raw = read_json(folder / ADAPTER_FILE)
    with naming(folder / ADAPTER_FILE):
        lora = _read_config(raw)
    with naming(folder):
        # Adapters of other tools have no fingerprint: for them the shapes have to do.
        trained_on = read_metadata(folder / WEIGHTS_FILE).get(FINGERPRINT)
        if base is not None and trained_on is not None and trained_on != fingerprint(base):
            raise ModelError(
                f"{WEIGHTS_FILE}: expected an adapter of this base ({fingerprint(base)}), got one of another "
                f"({trained_on})"
            )
        layers = linear_layers(config)
        adapter = {}
        for name, tensor in open_tensors(folder, WEIGHTS_FILE).items():
            path, expected_shape = _place_of(name, layers, lora, config)
            shape = tensor.shape
            if shape != expected_shape:
                raise ModelError(
                    f"{name}: expected shape {expected_shape} on this base, got {shape}"
                )
            set_path(
                adapter, path, jnp.asarray(cast(name, read_weights(name, tensor), "float32").T)
            )
        _check_complete(adapter, layers, lora)
    return lora, adapter


def load_reward_bias(folder: str | os.PathLike[str]) -> float:
    """Return the number to subtract from the scores of a reward model's adapter: what jaxppo stored with it, or 0.

    Raises:
        ModelError: the weights are unreadable.
    """
    folder = Path(folder)
    with naming(folder):
        return float(read_metadata(folder / WEIGHTS_FILE).get(REWARD_BIAS, "0.0"))


def _read_config(raw: dict[str, Any]) -> LoraConfig:
    if raw.get("peft_type") != "LORA":
        raise ModelError(f"peft_type: expected 'LORA', got {raw.get('peft_type')!r}")
    for name, values in _SUPPORTED_VALUES.items():
        if raw.get(name, values[0]) not in values:
            raise ModelError(
                f"{name}: expected {values[0]!r} (others are not supported), got {raw[name]!r}"
            )
    targets = raw.get("target_modules")
    names = targets if isinstance(targets, list) else [targets]
    if targets is not None and not all(isinstance(name, str) for name in names):
        raise ModelError(
            f"target_modules: expected names of layers or a regular expression, got {targets!r}"
        )
    if isinstance(targets, list):
        targets = tuple(sorted(targets))
    use_rslora = raw.get("use_rslora")
    if use_rslora not in (None, False, True):
        raise ModelError(f"use_rslora: expected true or false, got {use_rslora!r}")
    # Whether these are numbers is checked by the class.
    rank: Any = raw.get("r")
    alpha: Any = raw.get("lora_alpha")
    return LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, use_rslora=bool(use_rslora))


def _place_of(
    name: str, layers: dict[str, Any], lora: LoraConfig, config: ModelConfig
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Path in the adapter, and shape in the file, of a tensor of PEFT's."""
    module, _, factor = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
    if module in layers and factor in _FACTORS.values():
        path, (num_inputs, num_outputs) = layers[module]
        if factor == "lora_A":
            return (*path, "lora_a"), (lora.r, num_inputs)
        return (*path, "lora_b"), (num_outputs, lora.r)
    # PEFT has two names for a head that is trained beside
    # the adapter: as saved, and as in its own module.
    if name in (f"{_PREFIX}score.weight", f"{_PREFIX}score.modules_to_save.weight"):
        return ("score", "kernel"), (1, config.hidden_size)
    if name == f"{_PREFIX}score.bias":
        return ("score", "bias"), (1,)
    raise ModelError(
        f"{name}: expected an adapter for a linear layer of this {config.model_type} model, got another"
    )


def _check_complete(adapter: Params, layers: dict[str, Any], lora: LoraConfig) -> None:
    if not adapter:
        raise ModelError(f"{WEIGHTS_FILE}: expected an adapter for some layer, got no tensors")
    for name, (path, _) in layers.items():
        factors = functools.reduce(lambda tree, part: tree.get(part, {}), path, adapter)
        is_target = lora.target_modules is not None and lora.targets(name)
        # A layer that the settings name and the file lacks would stay as it is, without a word.
        if len(factors) < len(_FACTORS) and (factors or is_target):
            found = [_FACTORS[factor] for factor in factors]
            raise ModelError(
                f"{WEIGHTS_FILE}: expected {' and '.join(_FACTORS.values())} for {name}, got {found}"
            )
