"""Hugging Face model folder <-> parameters, in both directions through the name table of each family."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import toys
from jaxppo.config.redact import redact
from jaxppo.errors import ModelError, first_line, hub_fix
from jaxppo.hf.files import (
    CARD_FILE,
    CONFIG_FILE,
    GENERATION_FILE,
    WEIGHTS_FILE,
    Tensor,
    cast,
    complete_folder,
    existing_folder,
    naming,
    open_tensors,
    read_json,
    read_weights,
    write_file,
    write_json,
    write_tensors,
)
from jaxppo.hf.names import (
    MAX_PROBLEMS,
    VALUE_HEAD_NAMES,
    Expected,
    check_tensors,
    config_from_hf,
    config_to_hf,
    expected_tensors,
    head_in,
    head_of,
    hf_arrays,
    special_tokens,
)
from jaxppo.hf.tokenizer import check_tokenizer, load_padding_tokenizer, save_tokenizer, with_tokens
from jaxppo.models import Params, init_params
from jaxppo.nn import ModelConfig, family_of
from jaxppo.parallel import stacks
from jaxppo.run import activity

VALUE_HEAD_FILE = "value_head.safetensors"

DTYPES = ("auto", "float32", "bfloat16", "float16")
MAX_SHARD_SIZE = "5GB"

ASSETS = Path(__file__).parent / "assets"
"""Models shipped with jaxppo."""

Placement = Callable[[tuple[str, ...], tuple[int, ...]], jax.sharding.Sharding]
"""(path of a parameter, its shape) -> where its parts go."""

_ROWS = 4096  # of an embedding, compared together

_HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>[\w./-]+))?", re.ASCII)
_HUB_FILES = ["*.json", "*.jinja", "*.txt", "*.model", CARD_FILE]
_HUB_WEIGHTS = ["model*.safetensors", VALUE_HEAD_FILE, "adapter_model.safetensors"]


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
        """Return one line: which weights were loaded, which are fresh, which were not used."""
        count = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        what_of = "shapes alone" if self.shapes_only else f"{len(self.loaded)} tensors loaded"
        line = f"{self.folder}: {what_of} ({count:,} parameters)"
        for what, names in (("fresh", self.fresh), ("not used", self.unused)):
            if names:
                rest = f" and {len(names) - MAX_PROBLEMS} more" if len(names) > MAX_PROBLEMS else ""
                line += f"; {what}: {', '.join(names[:MAX_PROBLEMS])}{rest}"
        return line


def find_model(name: str, *, weights: bool = True) -> Path:
    """Return the folder of a model: shipped with jaxppo, a toy, on this machine, or downloaded from the hub.

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
    """Download weights as safetensors, or as `pytorch_model.bin` where the repository has nothing else.

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
    with naming(folder), activity.shown(f"loading {folder}"):
        if head != saved:
            config = config_from_hf(config_to_hf(config, head))
        if shapes_only and not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*")):
            params = jax.eval_shape(lambda: init_params(config, jax.random.key(0), head))
            return Loaded(config, params, folder, (), (), (), shapes_only=True)
        tensors = open_tensors(folder)
        expected = expected_tensors(config, head, tensors)
        fresh = tuple(name for name, e in expected.items() if e.path[0] == "score" and name not in tensors)
        expected = {name: e for name, e in expected.items() if name not in fresh}
        unused = check_tensors(config, head, expected, tensors)
        if not shapes_only and head == "lm" and config.tie_word_embeddings:
            _check_tied(config, expected, tensors)
        params: Params = {}
        for name, entry in expected.items():
            array_dtype = None if dtype == "auto" else dtype
            if shapes_only:
                shape = entry.shape[::-1] if entry.transpose else entry.shape
                _put(params, entry.path, jax.ShapeDtypeStruct(shape, array_dtype or jnp.float32))
            else:
                _put(params, entry.path, _read(name, tensors[name], entry, array_dtype, placement))
    return Loaded(config, params, folder, tuple(expected), fresh, unused, shapes_only)


def _check_tied(config: ModelConfig, expected: dict[str, Expected], tensors: dict[str, Tensor]) -> None:
    """Raise a `ModelError` where a folder with a tied head has another one: transformers 5 takes it, 4 does not."""
    head = family_of(config.model_type).names["lm_head/kernel"].name
    embedding = next(name for name, entry in expected.items() if entry.path == ("trunk", "embed_in", "embedding"))
    if head not in tensors:
        return
    shape = expected[embedding].shape
    rows = range(0, shape[0], _ROWS)
    if tuple(tensors[head].get_shape()) != shape or not all(
        np.array_equal(tensors[head][i : i + _ROWS], tensors[embedding][i : i + _ROWS]) for i in rows
    ):
        fix = "set it to false to use them"
        raise ModelError(
            f"{head}: expected the numbers of {embedding}, as tie_word_embeddings is true, got others; {fix}"
        )


def read_config(folder: str | os.PathLike[str]) -> tuple[ModelConfig, str | None]:
    """Return the configuration of a model folder, and the head it was saved with."""
    file = existing_folder(folder) / CONFIG_FILE
    raw = read_json(file)
    with naming(file):
        config = config_from_hf(raw)
        return config, head_of(config, raw)


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
            the config was read from a bare trunk); layers may be stacked, as in the state of a run.
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
    params = stacks.unstacked(params)
    head = head_in(config, params)
    arrays = hf_arrays(config, head, params)
    dtypes = {name: np.dtype(dtype or array.leaf.dtype) for name, array in arrays.items()}
    largest = max(dtypes.values(), key=lambda kind: kind.itemsize)
    with complete_folder(folder) as partial:
        write_json(partial / CONFIG_FILE, config_to_hf(config, head, str(largest)))
        if head == "lm" and generation_config is not False:
            extra = {} if generation_config is True else generation_config
            write_json(partial / GENERATION_FILE, redact(special_tokens(config) | extra))
        sizes = {name: array.leaf.size * dtypes[name].itemsize for name, array in arrays.items()}
        write_tensors(partial, sizes, lambda name: arrays[name].stored(name, dtypes[name]), max_shard_size)
        if tokenizer is not None:
            save_tokenizer(tokenizer, partial)
        if card is not None:
            (partial / CARD_FILE).write_text(card, encoding="utf-8")


def save_value_head(folder: str | os.PathLike[str], head: Params, card: str | None = None) -> None:
    """Write the value head of a policy's trunk, {"kernel": [D, 1], "bias": [1]}, under the names of TRL's `v_head`.

    Raises:
        ModelError: the folder holds something else or cannot be written.
    """
    folder = Path(folder)
    check_replaceable(folder, VALUE_HEAD_FILE)
    tensors = {name: np.asarray(head[ours]).T for name, ours in VALUE_HEAD_NAMES.items()}
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
        return {
            ours: jnp.asarray(cast(name, read_weights(name, tensors[name]), "float32").T)
            for name, ours in VALUE_HEAD_NAMES.items()
        }


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
            has no end of sequence, or more tokens than the model, or a file lists ends of a text that are none.
    """
    folder = find_model(str(name), weights=not shapes_only)
    config, head = read_config(folder)
    if head != "lm":
        architecture = family_of(config.model_type).architectures["lm"]
        raise ModelError(f"{folder}: expected a language model ({architecture}), got one without lm_head")
    tokenizer = load_padding_tokenizer(folder)
    check_tokenizer(tokenizer, config, str(folder))
    model = load_model(folder, placement=placement, shapes_only=shapes_only)
    return Policy(with_tokens(config, tokenizer, folder), model.params, tokenizer, model)


def _read(name: str, tensor: Tensor, entry: Expected, dtype: str | None, placement: Placement | None) -> jax.Array:
    def part(index: Any) -> np.ndarray:
        array = read_weights(name, tensor, index[::-1] if entry.transpose else index)
        array = cast(name, array, dtype or array.dtype)
        return array.T if entry.transpose else array

    shape = entry.shape[::-1] if entry.transpose else entry.shape
    if placement is None:
        return jnp.asarray(part(tuple(slice(None) for _ in shape)))
    return jax.make_array_from_callback(shape, placement(entry.path, shape), part)


def _put(params: Params, path: tuple[str, ...], array: Any) -> None:
    for part in path[:-1]:
        params = params.setdefault(part, {})
    params[path[-1]] = array


def check_replaceable(folder: Path, marker: str) -> None:
    """Raise a `ModelError` unless the folder is new, empty, or one that holds the file `marker`."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / marker).is_file():
        raise ModelError(f"{folder}: expected a new or empty folder or one with {marker}, got other files")
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder}: expected a folder, got a file")
