"""Hugging Face model folder <-> parameters, in both directions through one name table per family."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxppo.errors import ModelError
from jaxppo.models import ModelConfig, Params, init_params

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")

# Keys of config.json that are fields of ModelConfig under the same name.
_REQUIRED_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
_OPTIONAL_KEYS = (
    "max_position_embeddings",
    "layer_norm_eps",
    "hidden_act",
    "use_parallel_residual",
    "attention_bias",
    "tie_word_embeddings",
    "initializer_range",
    "pad_token_id",
)

_MAX_PROBLEMS = 5  # tensors listed in one error message; the rest are counted


class HfName(NamedTuple):
    """Where transformers keeps one of our arrays: its name, and whether it stores the transposed matrix."""

    name: str
    transpose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How transformers writes one `model_type`.

    Attributes:
        trunk_prefix: prepended to the names of the trunk's tensors wherever a head sits on it.
        architectures: name of the head in `models.init_params` -> class in transformers.
        names: path of an array in our parameters -> its name in transformers; {i} is the number of a layer.
        ignored: tensors of this name, found in older checkpoints, are constants and no parameters.
    """

    trunk_prefix: str
    architectures: dict[str | None, str]
    names: dict[str, HfName]
    ignored: re.Pattern[str]


# Names as on disk: transformers 5 calls the module `lm_head` but still reads and writes `embed_out`.
_GPT_NEOX = Family(
    trunk_prefix="gpt_neox.",
    architectures={
        "lm": "GPTNeoXForCausalLM",
        "score": "GPTNeoXForSequenceClassification",
        None: "GPTNeoXModel",
    },
    names={
        "trunk/embed_in/embedding": HfName("embed_in.weight"),
        "trunk/final_layer_norm/scale": HfName("final_layer_norm.weight"),
        "trunk/final_layer_norm/bias": HfName("final_layer_norm.bias"),
        "trunk/layers/{i}/input_layernorm/scale": HfName("layers.{i}.input_layernorm.weight"),
        "trunk/layers/{i}/input_layernorm/bias": HfName("layers.{i}.input_layernorm.bias"),
        "trunk/layers/{i}/post_attention_layernorm/scale": HfName("layers.{i}.post_attention_layernorm.weight"),
        "trunk/layers/{i}/post_attention_layernorm/bias": HfName("layers.{i}.post_attention_layernorm.bias"),
        "trunk/layers/{i}/attention/query_key_value/kernel": HfName(
            "layers.{i}.attention.query_key_value.weight", transpose=True
        ),
        "trunk/layers/{i}/attention/query_key_value/bias": HfName("layers.{i}.attention.query_key_value.bias"),
        "trunk/layers/{i}/attention/dense/kernel": HfName("layers.{i}.attention.dense.weight", transpose=True),
        "trunk/layers/{i}/attention/dense/bias": HfName("layers.{i}.attention.dense.bias"),
        "trunk/layers/{i}/mlp/dense_h_to_4h/kernel": HfName("layers.{i}.mlp.dense_h_to_4h.weight", transpose=True),
        "trunk/layers/{i}/mlp/dense_h_to_4h/bias": HfName("layers.{i}.mlp.dense_h_to_4h.bias"),
        "trunk/layers/{i}/mlp/dense_4h_to_h/kernel": HfName("layers.{i}.mlp.dense_4h_to_h.weight", transpose=True),
        "trunk/layers/{i}/mlp/dense_4h_to_h/bias": HfName("layers.{i}.mlp.dense_4h_to_h.bias"),
        "lm_head/kernel": HfName("embed_out.weight", transpose=True),
        "score/kernel": HfName("score.weight", transpose=True),
    },
    ignored=re.compile(r"attention\.(bias|masked_bias)$|rotary_emb\.inv_freq$"),
)

_FAMILIES = {"gpt_neox": _GPT_NEOX}


def load_pretrained(folder: str | os.PathLike[str]) -> tuple[ModelConfig, Params]:
    """Read a model folder as transformers writes it: `config.json` and safetensors, in one file or in shards.

    Args:
        folder: local folder of a `...ForCausalLM`, a `...ForSequenceClassification` with one label, or a bare trunk.

    Returns:
        The config, and parameters as at the top of `models.py`, float32 whatever the dtype on disk.

    Raises:
        ModelError: the folder or a file is missing or unreadable, the model is of an unsupported kind, or tensors are
            missing, unexpected or of another shape; the message names them.
    """
    folder = _existing_folder(folder)
    raw = _read_json(folder / CONFIG_FILE)
    with _naming(folder / CONFIG_FILE):
        config = config_from_hf(raw)
        head = _head_of(config, raw)
    expected = _expected_tensors(config, head)
    with _naming(folder):
        files = _tensor_files(folder)
        _check_tensors(expected, files, _ignored_names(config, head, files))
        return config, _read_params(expected, files)


def save_pretrained(
    folder: str | os.PathLike[str],
    config: ModelConfig,
    params: Params,
    tokenizer: Any = None,
    generation_config: bool | dict[str, Any] = True,
) -> None:
    """Write a folder that `from_pretrained` of transformers loads without missing or unexpected tensors.

    The folder appears under its name only when it is complete; an earlier model there is replaced as a whole.

    Args:
        folder: new, empty or holding a model.
        config: the model.
        params: {"trunk", "lm_head"}, {"trunk", "score"} or {"trunk"} (with tied embeddings: a language model).
        tokenizer: saved beside the model if given (anything with transformers' `save_pretrained`).
        generation_config: True writes the special tokens for language models, a dict adds to them, False writes none.

    Raises:
        ModelError: the folder holds something else, or the parameters do not fit the config.
    """
    folder = Path(folder)
    _check_replaceable(folder)
    head = _head_in(config, params)
    tensors = _hf_tensors(config, head, params)
    architecture = _FAMILIES[config.model_type].architectures[head]
    with _complete_folder(folder) as partial:
        _write_json(partial / CONFIG_FILE, config_to_hf(config, architecture))
        if head == "lm" and generation_config is not False:
            extra = {} if generation_config is True else generation_config
            _write_json(partial / GENERATION_FILE, _special_tokens(config) | extra)
        save_file(tensors, partial / WEIGHTS_FILE, metadata={"format": "pt"})
        (partial / WEIGHTS_FILE).chmod(0o644)  # safetensors makes it readable for its owner alone
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)


def load_policy(folder: str | os.PathLike[str]) -> tuple[ModelConfig, Params, Any]:
    """Read a language model with its tokenizer, ready to sample from.

    A tokenizer without a pad token pads with its end of sequence; nothing ever reads a mask from ids.

    Raises:
        ModelError: as for `load_pretrained` and `load_tokenizer`, or the folder holds no language model, the tokenizer
            has no end of sequence, or more tokens than the model.
    """
    config, params = load_pretrained(folder)
    if "lm_head" not in params and not config.tie_word_embeddings:
        raise ModelError(f"{folder}: expected a language model (GPTNeoXForCausalLM), got one without lm_head")
    tokenizer = load_tokenizer(folder)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{folder}: expected a tokenizer with an eos_token, got none")
    if len(tokenizer) > config.vocab_size:
        raise ModelError(f"{folder}: expected at most vocab_size={config.vocab_size} tokens, got {len(tokenizer)}")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return config, params, tokenizer


def load_tokenizer(folder: str | os.PathLike[str]) -> Any:
    """Read the tokenizer of a local model folder; code in the folder is never run.

    Raises:
        ModelError: the folder is missing or holds no tokenizer that transformers can read.
    """
    from transformers import AutoTokenizer  # slow to import, and not needed to load a model

    folder = _existing_folder(folder)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):  # transformers would make up an empty one
        raise ModelError(f"{folder}: expected a tokenizer ({' or '.join(_TOKENIZER_FILES)}), got none of these files")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises plain ones, and a damaged file leads anywhere
        raise ModelError(f"{folder}: expected a readable tokenizer, got: {_first_line(error)}") from error


def config_from_hf(raw: dict[str, Any]) -> ModelConfig:
    """Read the content of a transformers `config.json`; keys that do not change the computation are ignored.

    Rotary settings are taken from `rope_parameters` (transformers 5) or from `rotary_pct`, `rotary_emb_base` and
    `rope_scaling` (earlier). Source: transformers GPTNeoXConfig.convert_rope_params_to_dict.

    Raises:
        ModelError: a key is missing, or has a value that is not supported; the message names it.
    """
    if str(raw.get("model_type")) not in _FAMILIES:
        raise ModelError(f"model_type: expected one of {', '.join(_FAMILIES)}, got {raw.get('model_type')!r}")
    missing = [name for name in _REQUIRED_KEYS if name not in raw]
    if missing:
        raise ModelError(f"{missing[0]}: expected an integer, got no such key")
    fields = {name: raw[name] for name in (*_REQUIRED_KEYS, *_OPTIONAL_KEYS) if name in raw}
    # Where a file does not name these two, GPTNeoXConfig means 0 and 2.
    fields |= {"bos_token_id": raw.get("bos_token_id", 0), "eos_token_id": raw.get("eos_token_id", 2)}
    return ModelConfig(**fields, **_rotary_fields(raw))


def config_to_hf(config: ModelConfig, architecture: str) -> dict[str, Any]:
    """Write the content of `config.json` with the keys of transformers 5.

    Args:
        config: the model.
        architecture: name of the class in transformers, for instance "GPTNeoXForCausalLM".
    """
    raw: dict[str, Any] = {name: getattr(config, name) for name in (*_REQUIRED_KEYS, *_OPTIONAL_KEYS)}
    raw |= {
        "architectures": [architecture],
        "dtype": "float32",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rotary_pct,
        },
    }
    if architecture == _FAMILIES[config.model_type].architectures["score"]:
        raw |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}  # transformers' way to say num_labels=1
    return raw


def _rotary_fields(raw: dict[str, Any]) -> dict[str, Any]:
    key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    rope = raw.get(key) or {}
    if not isinstance(rope, dict):
        raise ModelError(f"{key}: expected an object, got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ModelError(f"{key}.rope_type: expected 'default' (no other scaling is supported), got {kind!r}")
    return {
        "rotary_pct": rope.get("partial_rotary_factor", raw.get("rotary_pct", 0.25)),
        "rope_theta": rope.get("rope_theta", raw.get("rotary_emb_base", 10000.0)),
    }


def _special_tokens(config: ModelConfig) -> dict[str, Any]:
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {name: value for name, value in ids.items() if value is not None}


def _head_of(config: ModelConfig, raw: dict[str, Any]) -> str | None:
    architectures = _FAMILIES[config.model_type].architectures
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
    if heads == {"lm_head"} or (config.tie_word_embeddings and not heads):
        return "lm"
    if not heads:
        return None
    raise ModelError(f"params: expected 'trunk' with 'lm_head', with 'score' or alone, got {', '.join(sorted(params))}")


class Expected(NamedTuple):
    """A tensor of the folder: where it goes in our parameters, and the shape transformers gives it."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    transpose: bool


def _expected_tensors(config: ModelConfig, head: str | None) -> dict[str, Expected]:
    """Name in the folder -> where it goes, for every parameter of the model; nothing is allocated."""
    family = _FAMILIES[config.model_type]
    abstract = jax.eval_shape(lambda: init_params(config, jax.random.key(0), head))
    expected = {}
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(abstract):
        path = tuple(key.key for key in key_path)
        name, transpose = _hf_name(family, path, head)
        expected[name] = Expected(path, leaf.shape[::-1] if transpose else leaf.shape, transpose)
    return expected


def _hf_name(family: Family, path: tuple[str, ...], head: str | None) -> HfName:
    number = next((part for part in path if part.isdigit()), "")
    entry = family.names["/".join("{i}" if part.isdigit() else part for part in path)]
    prefix = family.trunk_prefix if head is not None and path[0] == "trunk" else ""
    return HfName(prefix + entry.name.replace("{i}", number), entry.transpose)


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> the safetensors file that holds it."""
    if (folder / WEIGHTS_FILE).is_file():
        with _opened(folder / WEIGHTS_FILE) as tensors:
            return dict.fromkeys(tensors.keys(), folder / WEIGHTS_FILE)
    if not (folder / INDEX_FILE).is_file():
        raise ModelError(f"expected {WEIGHTS_FILE} or {INDEX_FILE}, got neither")
    weight_map = _read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{INDEX_FILE}: expected an object 'weight_map', got {type(weight_map).__name__}")
    return {name: folder / Path(str(file)).name for name, file in weight_map.items()}


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="numpy") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file.name}: expected a readable safetensors file, got: {_first_line(error)}") from error


def _ignored_names(config: ModelConfig, head: str | None, files: dict[str, Path]) -> set[str]:
    family = _FAMILIES[config.model_type]
    ignored = {name for name in files if family.ignored.search(name)}
    if head == "lm" and config.tie_word_embeddings:
        ignored.add(family.names["lm_head/kernel"].name)  # some writers repeat the tied embedding
    return ignored


def _check_tensors(expected: dict[str, Expected], files: dict[str, Path], ignored: set[str]) -> None:
    shapes = _shapes_on_disk(files)
    problems = [f"{name}: expected shape {e.shape}, got no tensor" for name, e in expected.items() if name not in files]
    problems += [
        f"{name}: expected shape {e.shape}, got {shapes[name]}"
        for name, e in expected.items()
        if name in shapes and shapes[name] != e.shape
    ]
    unexpected = set(files) - set(expected) - ignored
    problems += [f"{name}: expected no such tensor, got shape {shapes[name]}" for name in sorted(unexpected)]
    if problems:
        rest = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        raise ModelError("; ".join(problems[:_MAX_PROBLEMS]) + rest)


def _shapes_on_disk(files: dict[str, Path]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for file in dict.fromkeys(files.values()):
        with _opened(file) as tensors:
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in files if files[name] == file}
    return shapes


def _read_params(expected: dict[str, Expected], files: dict[str, Path]) -> Params:
    params: Params = {}
    for file in dict.fromkeys(files.values()):
        with _opened(file) as tensors:
            for name, entry in expected.items():
                if files[name] == file:
                    array = tensors.get_tensor(name).astype(np.float32)
                    _put(params, entry.path, jnp.asarray(array.T if entry.transpose else array))
    return params


def _put(params: Params, path: tuple[str, ...], array: jax.Array) -> None:
    for part in path[:-1]:
        params = params.setdefault(part, {})
    params[path[-1]] = array


def _hf_tensors(config: ModelConfig, head: str | None, params: Params) -> dict[str, np.ndarray]:
    """Name in the folder -> float32 array as transformers stores it."""
    family = _FAMILIES[config.model_type]
    expected = _expected_tensors(config, head)
    by_path = {tuple(key.key for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    if set(by_path) != {entry.path for entry in expected.values()}:
        difference = set(by_path) ^ {entry.path for entry in expected.values()}
        raise ModelError(f"params: missing or not of this config: {', '.join(sorted(map('/'.join, difference)))}")
    tensors = {}
    for path, leaf in by_path.items():
        name, transpose = _hf_name(family, path, head)
        array = np.asarray(leaf, np.float32)
        tensors[name] = np.ascontiguousarray(array.T if transpose else array)
        if tensors[name].shape != expected[name].shape:
            raise ModelError(f"{name}: expected shape {expected[name].shape}, got {tensors[name].shape}")
    return tensors


def _existing_folder(folder: str | os.PathLike[str]) -> Path:
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder}: expected a model folder with {CONFIG_FILE}, got no folder")
    return folder


def _check_replaceable(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG_FILE).is_file():
        raise ModelError(f"{folder}: expected a new or empty folder or one with {CONFIG_FILE}, got other files")
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder}: expected a folder, got a file")


@contextmanager
def _complete_folder(folder: Path) -> Iterator[Path]:
    """A sibling folder to write to, which takes the place of `folder` if all went well and vanishes otherwise."""
    # Fixed names: what a killed process left behind is cleared by the next save.
    partial, replaced = (folder.with_name(f".{folder.name}.{what}") for what in ("partial", "replaced"))
    if replaced.exists() and not folder.exists():  # killed between two renames: the earlier model is only there
        replaced.rename(folder)
    for leftover in (partial, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)
    finally:
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file in front of the message of a `ModelError`."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{file}: expected a file of a Hugging Face model, got no file") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: expected JSON, got: {_first_line(error)}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: expected a JSON object, got {type(content).__name__}")
    return content


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
