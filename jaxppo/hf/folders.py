"""Hugging Face model folder <-> parameters, in both directions through the name table of each family."""

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import toys
from jaxppo.config.redact import redact
from jaxppo.errors import ModelError, first_line, hub_fix
from jaxppo.hf.files import (
    WEIGHTS_FILE,
    Tensor,
    complete_folder,
    naming,
    open_tensors,
    read_json,
    write_file,
    write_json,
    write_tensors,
)
from jaxppo.models import Params, init_params
from jaxppo.nn import ModelConfig, family_of

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
CARD_FILE = "README.md"
VALUE_HEAD_FILE = "value_head.safetensors"

REWARD_BIAS = "reward_bias"
"""Key of a reward model's `config.json`: to be subtracted from its scores. transformers passes over it."""

DTYPES = ("auto", "float32", "bfloat16", "float16")
MAX_SHARD_SIZE = "5GB"

ASSETS = Path(__file__).parent / "assets"
"""Models shipped with jaxppo."""

Placement = Callable[[tuple[str, ...], tuple[int, ...]], jax.sharding.Sharding]
"""(path of a parameter, its shape) -> where its parts go."""

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")
_HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>[\w./-]+))?", re.ASCII)
_HUB_FILES = ["*.json", "*.jinja", "*.txt", "*.model", CARD_FILE]
_HUB_WEIGHTS = ["model*.safetensors", VALUE_HEAD_FILE, "adapter_model.safetensors"]

_VALUE_HEAD_NAMES = {"v_head.summary.weight": "kernel", "v_head.summary.bias": "bias"}
"""TRL's names for a value head on a language model's trunk; LLaMA-Factory keeps them in a file of its own."""

_MAX_PROBLEMS = 5  # tensors listed in one error message; the rest are counted


class Loaded(NamedTuple):
    """A model read from a folder.

    Attributes:
        config: the model.
        params: as at the top of `models.py`; without the `score` head where that is among `fresh`.
        folder: where it came from.
        loaded: names of the tensors that were read.
        fresh: names of those that the folder does not have, to be drawn.
        unused: names of those that this model has no place for.
        shapes_only: `params` are shapes; nothing was read.
    """

    config: ModelConfig
    params: Params
    folder: Path
    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    shapes_only: bool = False

    def describe(self) -> str:
        """One line: which weights were loaded, which are fresh, which were not used."""
        count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        what_of = "shapes alone" if self.shapes_only else f"{len(self.loaded)} tensors loaded"
        line = f"{self.folder}: {what_of} ({count:,} parameters)"
        for what, names in (("fresh", self.fresh), ("not used", self.unused)):
            if names:
                rest = f" and {len(names) - _MAX_PROBLEMS} more" if len(names) > _MAX_PROBLEMS else ""
                line += f"; {what}: {', '.join(names[:_MAX_PROBLEMS])}{rest}"
        return line


def find_model(name: str, *, weights: bool = True) -> Path:
    """The folder of a model: shipped with jaxppo, a toy, on this machine, or downloaded from the hub.

    Args:
        name: name of a shipped model or a toy, path of a folder, or a hub id, "user/name" or "user/name@revision".
        weights: False: what is downloaded is the tokenizer and the configuration alone.

    Raises:
        ModelError: it is none of these, the hub cannot be reached, or has a model of another family.
    """
    if name in _shipped_models():
        return ASSETS / name
    if (toy := toys.find(name)) is not None:
        return toy
    match = _HUB_ID.fullmatch(name)
    if Path(name).is_dir() or match is None:
        return existing_folder(name)
    return _download(match["repo"], match["revision"], weights)


def _shipped_models() -> list[str]:
    return sorted(path.name for path in ASSETS.iterdir())


def _download(repo: str, revision: str | None, weights: bool) -> Path:
    """Weights as safetensors, or as `pytorch_model.bin` where the repository has nothing else.

    The configuration comes first: nobody waits for gigabytes that cannot be used.
    """
    from huggingface_hub import snapshot_download  # slow to import, and not needed for a local folder

    try:
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=_HUB_FILES))
        if not weights:
            return folder
        if (folder / CONFIG_FILE).exists():
            with naming(f"{repo}: {CONFIG_FILE}"):
                family_of(read_json(folder / CONFIG_FILE).get("model_type"))
        snapshot_download(repo, revision=revision, allow_patterns=_HUB_WEIGHTS)
        if not any(folder.glob(f"{WEIGHTS_FILE}*")):  # neither the file nor the index of its shards
            snapshot_download(repo, revision=revision, allow_patterns=["pytorch_model*.bin"])
    except ModelError:
        raise
    except Exception as error:  # the hub's many errors, and those of the network
        raise ModelError(
            f"{repo}: expected a shipped model ({', '.join(_shipped_models())}), a model folder or a hub id, "
            f"got no such folder, and from the hub: {type(error).__name__}: {first_line(error)}; {hub_fix()}"
        ) from error
    return folder


def load_pretrained(folder: str | os.PathLike[str], *, dtype: str = "float32") -> tuple[ModelConfig, Params]:
    """Read a model folder as transformers writes it; see `load_model`.

    Returns:
        The config, and parameters as at the top of `models.py`.
    """
    model = load_model(folder, dtype=dtype)
    return model.config, model.params


def load_model(
    folder: str | os.PathLike[str],
    *,
    head: str | None = "saved",
    dtype: str = "float32",
    placement: Placement | None = None,
    shapes_only: bool = False,
) -> Loaded:
    """Read a model folder as transformers writes it: `config.json` and weights, in one file or in shards.

    Weights are read from safetensors, else from `pytorch_model.bin` by torch's loader of plain tensors. Code in the
    folder is never run.

    Args:
        folder: local folder of a `...ForCausalLM`, a `...ForSequenceClassification` with one label, or a bare trunk.
        head: "lm", "score", None (the trunk alone), or "saved": what the folder has. A missing score head is fresh.
        dtype: of the parameters, "auto" for that on disk.
        placement: where parameters go; every device then reads its own parts, and none holds more. Default: whole, on
            the default device.
        shapes_only: give `jax.ShapeDtypeStruct`s in place of arrays; a folder without weights will do.

    Raises:
        ModelError: the folder or a file is missing or unreadable, the model is of an unsupported kind, or tensors are
            missing, unexpected or of another shape; the message names them.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if head not in ("saved", "lm", "score", None):
        raise ModelError(f"head: expected 'saved', 'lm', 'score' or None, got {head!r}")
    folder = existing_folder(folder)
    config, saved = read_config(folder)
    head = saved if head == "saved" else head
    with naming(folder):
        if head != saved:
            config = config_from_hf(config_to_hf(config, head))
        if shapes_only and not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*")):
            params = jax.eval_shape(lambda: init_params(config, jax.random.key(0), head))
            return Loaded(config, params, folder, (), (), (), shapes_only=True)
        tensors = open_tensors(folder)
        expected = _expected_tensors(config, head, tensors)
        fresh = tuple(name for name, e in expected.items() if e.path[0] == "score" and name not in tensors)
        expected = {name: e for name, e in expected.items() if name not in fresh}
        unused = _check_tensors(config, head, expected, tensors)
        params: Params = {}
        for name, entry in expected.items():
            array_dtype = None if dtype == "auto" else dtype
            if shapes_only:
                shape = entry.shape[::-1] if entry.transpose else entry.shape
                _put(params, entry.path, jax.ShapeDtypeStruct(shape, array_dtype or jnp.float32))
            else:
                _put(params, entry.path, _read(tensors[name], entry, array_dtype, placement))
    return Loaded(config, params, folder, tuple(expected), fresh, unused, shapes_only)


def read_config(folder: str | os.PathLike[str]) -> tuple[ModelConfig, str | None]:
    """The configuration of a model folder, and the head it was saved with."""
    file = existing_folder(folder) / CONFIG_FILE
    raw = read_json(file)
    with naming(file):
        config = config_from_hf(raw)
        return config, _head_of(config, raw)


def save_pretrained(
    folder: str | os.PathLike[str],
    config: ModelConfig,
    params: Params,
    tokenizer: Any = None,
    generation_config: bool | dict[str, Any] = True,
    *,
    dtype: str | None = None,
    max_shard_size: int | str = MAX_SHARD_SIZE,
    card: str | None = None,
) -> None:
    """Write a folder that `from_pretrained` of transformers loads without missing or unexpected tensors.

    The folder appears under its name only when it is complete; an earlier model there is replaced as a whole.

    Args:
        folder: new, empty or holding a model.
        config: the model; what its `original` config.json said beside is written again.
        params: {"trunk", "lm_head"}, {"trunk", "score"} or {"trunk"} (with tied embeddings: a language model, unless
            the config was read from a bare trunk).
        tokenizer: saved beside the model if given (anything with transformers' `save_pretrained`).
        generation_config: True writes the special tokens for language models, a dict adds to them, False writes none.
        dtype: of the tensors; default: that of the parameters.
        max_shard_size: largest weights file, in bytes or as text such as "5GB".
        card: content of README.md.

    Raises:
        ModelError: the folder holds something else or cannot be written, or the parameters do not fit the config.
    """
    folder = Path(folder)
    check_replaceable(folder, CONFIG_FILE)
    head = _head_in(config, params)
    arrays = _hf_arrays(config, head, params)
    dtypes = {name: np.dtype(dtype or array.leaf.dtype) for name, array in arrays.items()}
    largest = max(dtypes.values(), key=lambda kind: kind.itemsize)
    with complete_folder(folder) as partial:
        write_json(partial / CONFIG_FILE, config_to_hf(config, head, str(largest)))
        if head == "lm" and generation_config is not False:
            extra = {} if generation_config is True else generation_config
            write_json(partial / GENERATION_FILE, redact(_special_tokens(config) | extra))
        sizes = {name: array.leaf.size * dtypes[name].itemsize for name, array in arrays.items()}
        write_tensors(partial, sizes, lambda name: arrays[name].stored(dtypes[name]), max_shard_size)
        if tokenizer is not None:
            save_tokenizer(tokenizer, partial)
        if card is not None:
            (partial / CARD_FILE).write_text(card, encoding="utf-8")


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer's files into a folder.

    Raises:
        OSError: they cannot be written.
    """
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # tokenizers raises plain ones, also where the disk is full
        raise OSError(f"tokenizer: {first_line(error)}") from error


def save_value_head(folder: str | os.PathLike[str], head: Params, card: str | None = None) -> None:
    """Write the value head of a policy's trunk, {"kernel": [D, 1], "bias": [1]}, under the names of TRL's `v_head`.

    Raises:
        ModelError: the folder holds something else or cannot be written.
    """
    folder = Path(folder)
    check_replaceable(folder, VALUE_HEAD_FILE)
    tensors = {name: np.asarray(head[ours]).T for name, ours in _VALUE_HEAD_NAMES.items()}
    with complete_folder(folder) as partial:
        write_file(partial / VALUE_HEAD_FILE, tensors)
        if card is not None:
            (partial / CARD_FILE).write_text(card, encoding="utf-8")


def load_value_head(folder: str | os.PathLike[str], config: ModelConfig) -> Params:
    """Read the value head of a policy's trunk: a file of `save_value_head`, or beside the weights of a model of TRL's.

    Raises:
        ModelError: there is none, or it is of another size.
    """
    folder = existing_folder(folder)
    with naming(folder):
        tensors = open_tensors(folder, VALUE_HEAD_FILE)
        shapes = {"v_head.summary.weight": (1, config.hidden_size), "v_head.summary.bias": (1,)}
        for name, shape in shapes.items():
            came = tuple(tensors[name].get_shape()) if name in tensors else "no tensor"
            if came != shape:
                raise ModelError(f"{name}: expected shape {shape}, got {came}")
        return {ours: jnp.asarray(tensors[name][...].astype(np.float32).T) for name, ours in _VALUE_HEAD_NAMES.items()}


class Policy(NamedTuple):
    """A language model with its tokenizer."""

    config: ModelConfig
    params: Params
    tokenizer: Any
    loaded: Loaded


def load_policy(name: str | os.PathLike[str], placement: Placement | None = None, shapes_only: bool = False) -> Policy:
    """Read a language model with its tokenizer, ready to sample from.

    Args:
        name: see `find_model`.
        placement: see `load_model`.
        shapes_only: see `load_model`.

    Raises:
        ModelError: as for `load_model` and `load_tokenizer`, or the folder holds no language model, the tokenizer
            has no end of sequence, or more tokens than the model.
    """
    folder = find_model(str(name))
    config, head = read_config(folder)
    if head != "lm":
        architecture = family_of(config.model_type).architectures["lm"]
        raise ModelError(f"{folder}: expected a language model ({architecture}), got one without lm_head")
    model = load_model(folder, placement=placement, shapes_only=shapes_only)
    tokenizer = load_padding_tokenizer(folder)
    check_tokenizer(tokenizer, config, str(folder))
    return Policy(config, model.params, tokenizer, model)


def load_padding_tokenizer(folder: str | os.PathLike[str]) -> Any:
    """`load_tokenizer`; one without a pad token pads with its end of sequence, as nothing reads a mask from ids.

    Raises:
        ModelError: as for `load_tokenizer`, or the tokenizer has no end of sequence.
    """
    tokenizer = load_tokenizer(folder)
    check_end(tokenizer, str(folder))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_tokenizer(tokenizer: Any, config: ModelConfig, where: str) -> None:
    """Raise a `ModelError` unless a tokenizer has an end of sequence, and no more tokens than the model."""
    check_end(tokenizer, where)
    if len(tokenizer) > config.vocab_size:
        raise ModelError(f"{where}: expected at most vocab_size={config.vocab_size} tokens, got {len(tokenizer)}")


def check_end(tokenizer: Any, where: str) -> None:
    """Raise a `ModelError` unless a tokenizer has an end of sequence."""
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{where}: expected a tokenizer with an eos_token, got none")


def load_tokenizer(folder: str | os.PathLike[str]) -> Any:
    """Read the tokenizer of a local model folder; code in the folder is never run.

    Raises:
        ModelError: the folder is missing or holds no tokenizer that transformers can read.
    """
    folder = existing_folder(folder)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):  # transformers would make up an empty one
        raise ModelError(f"{folder}: expected a tokenizer ({' or '.join(_TOKENIZER_FILES)}), got none of these files")
    try:
        return _tokenizer_loader(folder)(folder)
    except Exception as error:  # tokenizers raises plain ones, and a damaged file leads anywhere
        raise ModelError(f"{folder}: expected a readable tokenizer, got: {first_line(error)}") from error


def _tokenizer_loader(folder: Path) -> Callable[[Path], Any]:
    """What of transformers reads the folder's tokenizer: its plain class where the folder names it, or its chooser.

    To import the chooser takes 2 s where torch is installed, which it imports; the plain class takes a third of that.
    """
    file = folder / "tokenizer_config.json"
    if (folder / "tokenizer.json").is_file() and file.is_file():
        named = json.loads(file.read_text(encoding="utf-8")).get("tokenizer_class")
        if named == "TokenizersBackend":  # what transformers 5 writes for it
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained
    from transformers import AutoTokenizer

    return partial(AutoTokenizer.from_pretrained, local_files_only=True, trust_remote_code=False)


def reward_bias(config: ModelConfig) -> float:
    """What is to be subtracted from the scores of a reward model: what jaxppo stored in its folder, or 0.

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
    fields = family.from_hf(raw)
    size = fields["vocab_size"]
    for name in ("bos_token_id", "eos_token_id"):  # a default past a small vocabulary means nothing
        if isinstance(size, int) and isinstance(fields[name], int) and fields[name] >= size:
            fields[name] = None
    return family.config(**fields, original={name: value for name, value in raw.items() if name != "auto_map"})


def config_to_hf(config: ModelConfig, head: str | None, dtype: str = "float32") -> dict[str, Any]:
    """Write the content of `config.json`: as it was read where it still says this, else with transformers 5's keys.

    Args:
        config: the model.
        head: "lm", "score" or None.
        dtype: of the weights beside it.
    """
    family, raw = family_of(config.model_type), dict(config.original or {})
    unnamed_dtype = bool(raw) and dtype == "float32" and not {"dtype", "torch_dtype"} & set(raw)  # earlier files
    if not raw or config_from_hf(raw) != dataclasses.replace(config, compute_dtype=None):
        raw = {name: value for name, value in raw.items() if name not in family.replaced_keys} | family.to_hf(config)
    architecture = family.architectures[head]
    if raw.get("architectures") != [architecture]:
        raw = {name: value for name, value in raw.items() if name not in ("id2label", "label2id", "num_labels")}
        if head == "score":
            raw |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}  # transformers' way to say num_labels=1
    if not unnamed_dtype:
        raw["torch_dtype" if "torch_dtype" in raw else "dtype"] = dtype
    return redact(raw | {"architectures": [architecture]})


def _special_tokens(config: ModelConfig) -> dict[str, Any]:
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {name: value for name, value in ids.items() if value is not None}


def _head_of(config: ModelConfig, raw: dict[str, Any]) -> str | None:
    architectures = family_of(config.model_type).architectures
    names = raw.get("architectures") or [None]
    if not isinstance(names, list):
        raise ModelError(f"architectures: expected a list of names, got {names!r}")
    for head, architecture in architectures.items():
        if names[0] == architecture:
            return head
    raise ModelError(f"architectures: expected one of {', '.join(architectures.values())}, got {names[0]!r}")


def _head_in(config: ModelConfig, params: Params) -> str | None:
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


def _expected_tensors(config: ModelConfig, head: str | None, available: Any = ()) -> dict[str, Expected]:
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


def _check_tensors(
    config: ModelConfig, head: str | None, expected: dict[str, Expected], tensors: dict[str, Tensor]
) -> tuple[str, ...]:
    """Names of the tensors that this model has no place for: constants of old checkpoints, and other heads.

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
    others = sorted(set(tensors) - set(expected))
    heads = {family.names[path].name for path in ("lm_head/kernel", "score/kernel", "score/bias")} | {
        *_VALUE_HEAD_NAMES
    }
    unknown = [name for name in others if name not in heads and not family.ignored.search(name)]
    problems += [f"{name}: expected no such tensor, got shape {shapes[name]}" for name in unknown]
    if problems:
        rest = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        raise ModelError("; ".join(problems[:_MAX_PROBLEMS]) + rest)
    tied = {family.names["lm_head/kernel"].name} if head == "lm" and config.tie_word_embeddings else set()
    return tuple(name for name in others if name in heads - tied)  # some writers repeat the tied embedding


def _read(tensor: Tensor, entry: Expected, dtype: str | None, placement: Placement | None) -> jax.Array:
    def part(index: Any) -> np.ndarray:
        array = tensor[index[::-1] if entry.transpose else index]
        return (array.T if entry.transpose else array).astype(dtype or array.dtype)

    shape = entry.shape[::-1] if entry.transpose else entry.shape
    if placement is None:
        return jnp.asarray(part(tuple(slice(None) for _ in shape)))
    return jax.make_array_from_callback(shape, placement(entry.path, shape), part)


def _put(params: Params, path: tuple[str, ...], array: Any) -> None:
    for part in path[:-1]:
        params = params.setdefault(part, {})
    params[path[-1]] = array


class _HfArray(NamedTuple):
    """One of our arrays on its way to a folder."""

    leaf: jax.Array
    transpose: bool

    def stored(self, dtype: np.dtype) -> np.ndarray:
        array = np.asarray(self.leaf).astype(dtype)
        return array.T if self.transpose else array


def _hf_arrays(config: ModelConfig, head: str | None, params: Params) -> dict[str, _HfArray]:
    """Name in the folder -> array, in the order of our parameters."""
    bias = ("score.bias",) if "bias" in params.get("score", {}) else ()
    by_path = {tuple(key.key for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    prefix = family_of(config.model_type).trunk_prefix
    expected = _expected_tensors(config, head, (*bias, prefix) if head is not None else ())
    if set(by_path) != {entry.path for entry in expected.values()}:
        difference = set(by_path) ^ {entry.path for entry in expected.values()}
        raise ModelError(f"params: missing or not of this config: {', '.join(sorted(map('/'.join, difference)))}")
    arrays = {name: _HfArray(by_path[entry.path], entry.transpose) for name, entry in expected.items()}
    for name, (leaf, transpose) in arrays.items():
        came = leaf.shape[::-1] if transpose else leaf.shape
        if came != expected[name].shape:
            raise ModelError(f"{name}: expected shape {expected[name].shape}, got {came}")
    return arrays


def existing_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder as a path.

    Raises:
        ModelError: there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        fix = "name one, a shipped model or a hub id"
        raise ModelError(f"{folder}: expected a model folder with {CONFIG_FILE}, got no folder; {fix}")
    return folder


def check_replaceable(folder: Path, marker: str) -> None:
    """Raise a `ModelError` unless the folder is new, empty, or one that holds the file `marker`."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / marker).is_file():
        raise ModelError(f"{folder}: expected a new or empty folder or one with {marker}, got other files")
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder}: expected a folder, got a file")
