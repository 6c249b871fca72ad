"""Translate configurations and parameters to transformers' names and back."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.redact import redact
from jaxppo.errors import ModelError
from jaxppo.hf.files import Tensor, cast, is_floating
from jaxppo.models import Params, init_params
from jaxppo.nn import Computation, ModelConfig, ModelSource, family_of

REWARD_BIAS = "reward_bias"
"""Key of a reward model's `config.json`: to be subtracted from its scores. transformers ignores it."""

VALUE_HEAD_NAMES = {"v_head.summary.weight": "kernel", "v_head.summary.bias": "bias"}
"""TRL's names for a value head on a language model's trunk; LLaMA-Factory keeps them in a file of its own."""

NEW_KEY = "rope_parameters"
"""Key of `config.json` that transformers 4 ignores."""

MAX_PROBLEMS = 5
"""Tensors listed in one error message; the others are counted."""


def reward_bias(config: ModelConfig) -> float:
    """Return what is to be subtracted from the scores of a reward model: what jaxppo stored in its folder, or 0."""
    return float(config.source.config_json.get(REWARD_BIAS, 0.0))


def config_from_hf(raw: dict[str, Any]) -> ModelConfig:
    """Read the content of a transformers `config.json`; keys that it has no field for stay in `source`.

    Raises:
        ModelError: a key is missing, or has a value that is not supported; the message names it.
    """
    family = family_of(raw.get("model_type"))
    if raw.get("quantization_config"):
        raise ModelError(
            "quantization_config: expected none (quantised weights are not supported), got one"
        )
    if not raw.get("is_causal", True):
        raise ModelError(
            f"is_causal: expected true (no token sees a later one), got {raw['is_causal']!r}"
        )
    # The family reads what it computes with; everything else in the file is kept as it is.
    fields = family.from_hf(raw)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        fields[name] = special_token(fields.get(name), fields["vocab_size"])
    if fields["pad_token_id"] == -1:  # early files say so for none
        fields["pad_token_id"] = None
    # `auto_map` names code of the folder, which is neither run nor copied.
    config_json = {name: value for name, value in raw.items() if name != "auto_map"}
    return family.config(**fields, source=ModelSource(config_json=config_json))


def special_token(value: Any, vocab_size: Any) -> Any:
    """Read the value of a key like `eos_token_id`; a single id beyond the vocabulary is a leftover default: None."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, int) and isinstance(vocab_size, int) and value >= vocab_size:
        return None
    return value


def config_to_hf(config: ModelConfig, head: str | None, dtype: str = "float32") -> dict[str, Any]:
    """Write the content of `config.json`: as it was read where it still describes this model, else with new keys.

    In either case transformers 4 reads the same model: keys are added, or corrected, where it would not.

    Args:
        config: the model.
        head: "lm", "score" or None.
        dtype: of the weights beside it.
    """
    family = family_of(config.model_type)
    raw = dict(config.source.config_json)
    dtype_keys = [name for name in ("dtype", "torch_dtype") if name in raw]
    # A file that names no dtype means float32; one that is written anew names it.
    if not dtype_keys and (not raw or dtype != "float32"):
        dtype_keys = ["dtype"]
    # The file's own keys stay where they still describe the
    # model, so that a folder comes back as it was read.
    if not raw or config_from_hf(raw) != _as_read(config):
        for name in family.replaced_keys:
            raw.pop(name, None)
        raw |= family.to_hf(config)
        if isinstance(raw.get("eos_token_id"), tuple):
            raw["eos_token_id"] = list(raw["eos_token_id"])
    # transformers 4 and 5 name some keys differently, and a file may have those of either.
    raw = _with_older_keys(raw, config)
    architecture = family.architectures[head]
    if raw.get("architectures") != [architecture]:
        # They belong to the head that the folder had.
        for name in ("id2label", "label2id", "num_labels"):
            raw.pop(name, None)
        if head == "score":
            # transformers' way to say num_labels=1
            raw |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    raw |= dict.fromkeys(dtype_keys, dtype)
    return redact(raw | {"architectures": [architecture]})


def _as_read(config: ModelConfig) -> ModelConfig:
    """Return the model without what its `config.json` does not hold: how it computes, and what its tokenizer adds."""
    return dataclasses.replace(config, computation=Computation(), source=ModelSource())


def _with_older_keys(raw: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Return the content of `config.json` with the older names of what transformers 4 would not find in it."""
    family = family_of(config.model_type)
    older_keys = {
        name: value for name, value in family.to_hf(config).items() if name in family.replaced_keys
    }
    # As transformers 4 reads the file.
    raw_of_4 = {name: value for name, value in raw.items() if name != NEW_KEY}
    if older_keys.keys() <= raw.keys() and config_from_hf(raw_of_4) == _as_read(config):
        return raw
    return raw | older_keys


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
    raise ModelError(
        f"architectures: expected one of {', '.join(architectures.values())}, got {names[0]!r}"
    )


def head_in(config: ModelConfig, params: Params) -> str | None:
    """Return the head that parameters have; a tied one has no array of its own."""
    heads = set(params) - {"trunk"}
    if heads == {"score"}:
        return "score"
    if heads == {"lm_head"}:
        return "lm"
    if not heads:
        architectures = config.source.config_json.get("architectures")
        # A tied head has no array, so that a language
        # model and a bare trunk have the same parameters.
        is_bare = architectures == [family_of(config.model_type).architectures[None]]
        return "lm" if config.tie_word_embeddings and not is_bare else None
    raise ModelError(
        f"params: expected 'trunk' with 'lm_head', with 'score' or alone, got {', '.join(sorted(params))}"
    )


class Expected(NamedTuple):
    """A tensor of the folder: its place in our parameters, and the shape transformers gives it."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    transpose: bool


def expected_tensors(
    config: ModelConfig, head: str | None, has_prefix: bool, has_score_bias: bool
) -> dict[str, Expected]:
    """Name in the folder -> its place, for every parameter of the model; nothing is allocated.

    Args:
        config: the model.
        head: its head.
        has_prefix: whether the names of the trunk's tensors have their prefix.
        has_score_bias: whether the score head has a bias.
    """
    family = family_of(config.model_type)
    # The shapes are those of the initializer, which nobody has to repeat here.
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0), head))
    if has_score_bias and head == "score":
        params["score"]["bias"] = jax.ShapeDtypeStruct((1,), jnp.float32)
    entries = {}
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(params):
        path = tuple(key.key for key in key_path)
        name, transpose = family.hf_name(path)
        if path[0] == "trunk" and has_prefix:
            name = family.trunk_prefix + name
        shape = leaf.shape[::-1] if transpose else leaf.shape
        entries[name] = Expected(path, shape, transpose)
    return entries


def check_tensors(
    config: ModelConfig, head: str | None, entries: dict[str, Expected], tensors: dict[str, Tensor]
) -> tuple[str, ...]:
    """Return the names of tensors that this model has no place for: constants of old checkpoints, and other heads.

    Raises:
        ModelError: a tensor is missing, of another shape, or unknown.
    """
    family = family_of(config.model_type)
    missing = []
    unfit = []
    for name, entry in entries.items():
        if name not in tensors:
            missing.append(f"{name}: expected shape {entry.shape}, got no tensor")
            continue
        shape = tensors[name].shape
        if shape != entry.shape:
            unfit.append(f"{name}: expected shape {entry.shape}, got {shape}")
        if not is_floating(tensors[name]):
            unfit.append(f"{name}: expected floating-point weights, got {tensors[name].dtype}")
    # The folder may have heads that this model does not need,
    # such as the language model's where a score head is read.
    heads = {
        family.names[path].name for path in ("lm_head/kernel", "score/kernel", "score/bias")
    } | {*VALUE_HEAD_NAMES}
    unused = []
    unknown = []
    for name in sorted(set(tensors) - set(entries)):
        if name in heads:
            unused.append(name)
        elif not family.ignored.search(name):
            shape = tensors[name].shape
            unknown.append(f"{name}: expected no such tensor, got shape {shape}")
    # Missing ones first: they show best that the folder holds another model.
    problems = missing + unfit + unknown
    if problems:
        message = "; ".join(problems[:MAX_PROBLEMS])
        if len(problems) > MAX_PROBLEMS:
            message += f"; and {len(problems) - MAX_PROBLEMS} more"
        raise ModelError(message)
    # Some writers repeat a tied embedding as the head, which is used then.
    is_tied = head == "lm" and config.tie_word_embeddings
    tied_name = family.names["lm_head/kernel"].name
    return tuple(name for name in unused if not (is_tied and name == tied_name))


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
    leaves = {}
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(params):
        leaves[tuple(key.key for key in key_path)] = leaf
    # As transformers writes it: the trunk's names have their prefix where a head is beside it.
    has_score_bias = "bias" in params.get("score", {})
    entries = expected_tensors(config, head, head is not None, has_score_bias)
    # A parameter that the folder has no name for would be lost without a word.
    difference = set(leaves) ^ {entry.path for entry in entries.values()}
    if difference:
        raise ModelError(
            f"params: missing or not of this config: {', '.join(sorted(map('/'.join, difference)))}"
        )
    arrays = {}
    for name, entry in entries.items():
        leaf = leaves[entry.path]
        shape = leaf.shape[::-1] if entry.transpose else leaf.shape
        if shape != entry.shape:
            raise ModelError(f"{name}: expected shape {entry.shape}, got {shape}")
        arrays[name] = HfArray(leaf, entry.transpose)
    return arrays
