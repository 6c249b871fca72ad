"""Translate configurations and parameters to transformers' names and back."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.redact import redact
from jaxppo.errors import ModelError
from jaxppo.hf.files import Tensor, cast, is_floating
from jaxppo.models import Params, init_params
from jaxppo.nn import ModelConfig, family_of

REWARD_BIAS = "reward_bias"
"""Key of a reward model's `config.json`: to be subtracted from its scores. transformers passes over it."""

VALUE_HEAD_NAMES = {"v_head.summary.weight": "kernel", "v_head.summary.bias": "bias"}
"""TRL's names for a value head on a language model's trunk; LLaMA-Factory keeps them in a file of its own."""

NEW_KEY = "rope_parameters"
"""Key of `config.json` that transformers 4 passes over."""

MAX_PROBLEMS = 5  # tensors listed in one error message; the rest are counted


def reward_bias(config: ModelConfig) -> float:
    """Return what is to be subtracted from the scores of a reward model: what jaxppo stored in its folder, or 0.

    Raises:
        ModelError: it is no finite number.
    """
    bias = (config.original or {}).get(REWARD_BIAS, 0.0)
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not math.isfinite(bias):
        raise ModelError(f"{REWARD_BIAS}: expected a finite number, got {bias!r}")
    return float(bias)


def config_from_hf(raw: dict[str, Any]) -> ModelConfig:
    """Read the content of a transformers `config.json`; keys that do not change the computation are kept in `original`.

    Raises:
        ModelError: a key is missing, or has a value that is not supported; the message names it.
    """
    family = family_of(raw.get("model_type"))
    if raw.get("quantization_config"):
        raise ModelError("quantization_config: expected none (quantised weights are not supported), got one")
    if not raw.get("is_causal", True):
        raise ModelError(f"is_causal: expected true (no token sees a later one), got {raw['is_causal']!r}")
    fields = family.from_hf(raw)
    size = fields["vocab_size"]
    for name in ("bos_token_id", "eos_token_id"):
        fields[name] = special_token(fields[name], size)
    pad = special_token(fields.get("pad_token_id"), size)  # early files say -1 for none
    fields["pad_token_id"] = None if pad == -1 else pad
    return family.config(**fields, original={name: value for name, value in raw.items() if name != "auto_map"})


def special_token(value: Any, vocab_size: Any) -> Any:
    """Read the value of a key like `eos_token_id`; a single default past a small vocabulary means nothing."""
    if isinstance(value, list):
        return tuple(value)
    return None if isinstance(value, int) and isinstance(vocab_size, int) and value >= vocab_size else value


def config_to_hf(config: ModelConfig, head: str | None, dtype: str = "float32") -> dict[str, Any]:
    """Write the content of `config.json`: as it was read where it still says this, else with the keys of the family.

    In either case transformers 4 reads the same model: keys are added, or corrected, where it would not.

    Args:
        config: the model.
        head: "lm", "score" or None.
        dtype: of the weights beside it.
    """
    family, raw = family_of(config.model_type), dict(config.original or {})
    unnamed_dtype = bool(raw) and dtype == "float32" and not {"dtype", "torch_dtype"} & set(raw)  # earlier files
    if not raw or config_from_hf(raw) != _as_read(config):
        raw = {name: value for name, value in raw.items() if name not in family.replaced_keys} | family.to_hf(config)
        raw |= {name: list(ids) for name, ids in raw.items() if name == "eos_token_id" and isinstance(ids, tuple)}
    raw = _with_older_keys(raw, config)
    architecture = family.architectures[head]
    if raw.get("architectures") != [architecture]:
        raw = {name: value for name, value in raw.items() if name not in ("id2label", "label2id", "num_labels")}
        if head == "score":
            raw |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}  # transformers' way to say num_labels=1
    if not unnamed_dtype:
        raw |= dict.fromkeys([name for name in ("dtype", "torch_dtype") if name in raw] or ["dtype"], dtype)
    return redact(raw | {"architectures": [architecture]})


def _as_read(config: ModelConfig) -> ModelConfig:
    """Return the model without what its `config.json` does not say: how it computes, and what its tokenizer adds."""
    computing = {"compute_dtype": None, "gradient_checkpointing": False, "accelerated": False, "attention": "plain"}
    return dataclasses.replace(config, num_tokens=None, end_ids=(), **computing)


def _with_older_keys(raw: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Return the content of `config.json` with the older names of what transformers 4 would not find in it."""
    family = family_of(config.model_type)
    older = {name: value for name, value in family.to_hf(config).items() if name in family.replaced_keys}
    before = {name: value for name, value in raw.items() if name != NEW_KEY}
    if older.keys() <= raw.keys() and config_from_hf(before) == _as_read(config):
        return raw
    return raw | older


def special_tokens(config: ModelConfig) -> dict[str, Any]:
    """Return the ids of the special tokens that a model has."""
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if isinstance(config.eos_token_id, tuple):
        ids["eos_token_id"] = list(config.eos_token_id)
    return {name: value for name, value in ids.items() if value is not None}


def head_of(config: ModelConfig, raw: dict[str, Any]) -> str | None:
    """Return the head that `config.json` names: "lm", "score" or None; a `ModelError` for any other."""
    architectures = family_of(config.model_type).architectures
    names = raw.get("architectures") or [None]
    if not isinstance(names, list):
        raise ModelError(f"architectures: expected a list of names, got {names!r}")
    for head, architecture in architectures.items():
        if names[0] == architecture:
            return head
    raise ModelError(f"architectures: expected one of {', '.join(architectures.values())}, got {names[0]!r}")


def head_in(config: ModelConfig, params: Params) -> str | None:
    """Return the head that parameters have; a tied one has no array of its own."""
    heads = set(params) - {"trunk"}
    if heads == {"score"}:
        return "score"
    if heads == {"lm_head"}:
        return "lm"
    if not heads:
        bare = [family_of(config.model_type).architectures[None]]
        return "lm" if config.tie_word_embeddings and (config.original or {}).get("architectures") != bare else None
    raise ModelError(f"params: expected 'trunk' with 'lm_head', with 'score' or alone, got {', '.join(sorted(params))}")


class Expected(NamedTuple):
    """A tensor of the folder: where it goes in our parameters, and the shape transformers gives it."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    transpose: bool


def expected_tensors(config: ModelConfig, head: str | None, available: Any = ()) -> dict[str, Expected]:
    """Name in the folder -> where it goes, for every parameter of the model; nothing is allocated.

    Args:
        config: the model.
        head: its head.
        available: names in the folder: whether the trunk's have their prefix, and the score head a bias.
    """
    family = family_of(config.model_type)
    abstract = jax.eval_shape(lambda: init_params(config, jax.random.key(0), head))
    if "score.bias" in available and head == "score":
        abstract["score"]["bias"] = jax.ShapeDtypeStruct((1,), jnp.float32)
    prefix = family.trunk_prefix if head is not None else ""
    if available:
        prefix = family.trunk_prefix if any(name.startswith(family.trunk_prefix) for name in available) else ""
    expected = {}
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(abstract):
        path = tuple(key.key for key in key_path)
        name, transpose = family.hf_name(path)
        name = prefix + name if path[0] == "trunk" else name
        expected[name] = Expected(path, leaf.shape[::-1] if transpose else leaf.shape, transpose)
    return expected


def check_tensors(
    config: ModelConfig, head: str | None, expected: dict[str, Expected], tensors: dict[str, Tensor]
) -> tuple[str, ...]:
    """Return the names of tensors that this model has no place for: constants of old checkpoints, and other heads.

    Raises:
        ModelError: a tensor is missing, of another shape, or unknown.
    """
    family, shapes = family_of(config.model_type), {name: tuple(t.get_shape()) for name, t in tensors.items()}
    problems = [
        f"{name}: expected shape {e.shape}, got no tensor" for name, e in expected.items() if name not in tensors
    ]
    problems += [
        f"{name}: expected shape {e.shape}, got {shapes[name]}"
        for name, e in expected.items()
        if name in shapes and shapes[name] != e.shape
    ]
    problems += [
        f"{name}: expected floating-point weights, got {tensors[name].get_dtype()}"
        for name in expected
        if name in tensors and not is_floating(tensors[name])
    ]
    others = sorted(set(tensors) - set(expected))
    heads = {family.names[path].name for path in ("lm_head/kernel", "score/kernel", "score/bias")} | {*VALUE_HEAD_NAMES}
    unknown = [name for name in others if name not in heads and not family.ignored.search(name)]
    problems += [f"{name}: expected no such tensor, got shape {shapes[name]}" for name in unknown]
    if problems:
        rest = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise ModelError("; ".join(problems[:MAX_PROBLEMS]) + rest)
    tied = {family.names["lm_head/kernel"].name} if head == "lm" and config.tie_word_embeddings else set()
    return tuple(name for name in others if name in heads - tied)  # some writers repeat the tied embedding


class HfArray(NamedTuple):
    """One of our arrays on its way to a folder."""

    leaf: jax.Array
    transpose: bool

    def stored(self, name: str, dtype: np.dtype) -> np.ndarray:
        """Return the array as the folder holds it under this name."""
        array = cast(name, np.asarray(self.leaf), dtype)
        return array.T if self.transpose else array


def hf_arrays(config: ModelConfig, head: str | None, params: Params) -> dict[str, HfArray]:
    """Name in the folder -> array, in the order of our parameters."""
    bias = ("score.bias",) if "bias" in params.get("score", {}) else ()
    by_path = {tuple(key.key for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    prefix = family_of(config.model_type).trunk_prefix
    expected = expected_tensors(config, head, (*bias, prefix) if head is not None else ())
    if set(by_path) != {entry.path for entry in expected.values()}:
        difference = set(by_path) ^ {entry.path for entry in expected.values()}
        raise ModelError(f"params: missing or not of this config: {', '.join(sorted(map('/'.join, difference)))}")
    arrays = {name: HfArray(by_path[entry.path], entry.transpose) for name, entry in expected.items()}
    for name, (leaf, transpose) in arrays.items():
        came = leaf.shape[::-1] if transpose else leaf.shape
        if came != expected[name].shape:
            raise ModelError(f"{name}: expected shape {expected[name].shape}, got {came}")
    return arrays
