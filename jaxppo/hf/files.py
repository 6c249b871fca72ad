"""The files of a model folder: tensors in one file or in shards, JSON, and folders that appear only when complete."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxppo.config.reading import POINTER, is_pointer, parse_json
from jaxppo.errors import DataError, ModelError, first_line

CARD_FILE = "README.md"
CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
BIN_FILE = "pytorch_model.bin"

_BLOCK = 1 << 20
"""Numbers checked together: the booleans about them stay in the processor's cache."""

MIN_TORCH = (2, 6)
"""torch.load(weights_only=True) of earlier releases could run code: CVE-2025-32434."""


@dataclass(frozen=True)
class Tensor:
    """A tensor in a file.

    Attributes:
        shape: sizes of its axes.
        dtype: its type as safetensors calls it: F32, BF16, I64 and so on.
        read: gives the part at an index.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[Any], np.ndarray]


_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}
"""safetensors' names of the types that weights may have. Source: safetensors README.md, Format."""


def _read_safetensor(file: Path, name: str, index: Any) -> np.ndarray:
    """Read a part of a tensor from a file that is opened for it.

    What was read stays in memory until the file is closed: with one that stays open, a whole folder would be in memory
    beside the parameters made from it.
    """
    with _safetensors(file) as opened:
        return opened.get_slice(name)[index]


_TORCH_DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
}
"""torch's names of these types."""


def _read_torch(tensor: Any, index: Any) -> np.ndarray:
    """Return a part of a tensor of a `pytorch_model.bin` as numpy."""
    import torch

    part = tensor[index].detach().contiguous()
    # As bytes: torch gives numpy no bfloat16, which ml_dtypes has.
    data = part.reshape(-1).view(torch.uint8).numpy()
    return data.view(_DTYPES[_TORCH_DTYPES[str(tensor.dtype)]]).reshape(part.shape)


def open_tensors(folder: Path, *preferred: str) -> dict[str, Tensor]:
    """Return all tensors of a model folder by name; of the files only the headers are read yet.

    Args:
        folder: model folder.
        preferred: safetensors files to look for before the usual ones.

    Raises:
        ModelError: the folder has no weights, a file is missing or damaged, or torch is needed to read it and is not
            installed.
    """
    # safetensors before pickles, which take torch and twice the memory to read.
    for name in (*preferred, WEIGHTS_FILE, BIN_FILE):
        files = _files(folder, name)
        if files is None:
            continue
        open_file = _open_bin if name == BIN_FILE else _open_safetensors
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors |= open_file(file)
        return tensors
    raise ModelError(
        f"expected {WEIGHTS_FILE}, {BIN_FILE}, or one of them in shards, got none of these files"
    )


def is_floating(tensor: Tensor) -> bool:
    """Return whether a tensor holds floating-point numbers, as weights are."""
    return tensor.dtype.removeprefix("B").startswith("F")


def read_weights(name: str, tensor: Tensor, index: Any = ...) -> np.ndarray:
    """Read a part of a tensor.

    Raises:
        ModelError: a number in it is NaN or infinite, or of another type than weights have.
    """
    if tensor.dtype not in _DTYPES:
        raise ModelError(
            f"{name}: expected weights of type {', '.join(_DTYPES)}, got {tensor.dtype}"
        )
    array = tensor.read(index)
    if not _is_finite(array):
        raise ModelError(
            f"{name}: expected finite weights, got NaN or infinite ones; the file is damaged, or the training that "
            "wrote it failed: take another checkpoint"
        )
    return array


def cast(name: str, array: np.ndarray, dtype: str | np.dtype) -> np.ndarray:
    """Return the finite floating-point numbers of a tensor as another such type, or the same array where it has that.

    Raises:
        ModelError: one of them is beyond the largest number of that type.
    """
    # Numbers that become infinite are looked for below, with the name of their tensor.
    with np.errstate(over="ignore"):
        result = array.astype(dtype, copy=False)
    # A type with the same range or a wider one holds all
    # numbers: then the array is not read a second time.
    if ml_dtypes.finfo(result.dtype).max < ml_dtypes.finfo(array.dtype).max and not _is_finite(
        result
    ):
        raise ModelError(
            f"{name}: expected numbers that {result.dtype} can hold, got larger ones; take a wider dtype"
        )
    return result


def _is_finite(array: np.ndarray) -> bool:
    numbers = array.reshape(-1)  # no copy, if it is contiguous
    return all(np.isfinite(numbers[i : i + _BLOCK]).all() for i in range(0, numbers.size, _BLOCK))


def _files(folder: Path, name: str) -> list[Path] | None:
    """Return the file of this name, or the shards that its index names; None without either."""
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
        return [folder / name]
    if not index.is_file():
        return None
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(
            f"{index.name}: expected an object 'weight_map', got {type(weight_map).__name__}"
        )
    for tensor, file in weight_map.items():
        # A path would read files outside the folder.
        if Path(str(file)).name != file:
            raise ModelError(
                f"{index.name}, {tensor}: expected the name of a file beside it, got {file!r}"
            )
    return [folder / file for file in dict.fromkeys(weight_map.values())]


def read_metadata(file: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file."""
    with _safetensors(file) as opened:
        return opened.metadata() or {}


def _open_safetensors(file: Path) -> dict[str, Tensor]:
    tensors = {}
    with _safetensors(file) as opened:
        for name in opened.keys():  # noqa: SIM118
            header = opened.get_slice(name)
            read = partial(_read_safetensor, file, name)
            tensors[name] = Tensor(tuple(header.get_shape()), header.get_dtype(), read)
    return tensors


@contextmanager
def _safetensors(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="numpy") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        _refuse_pointer(file)
        raise ModelError(
            f"{file.name}: expected a readable safetensors file, got: {first_line(error)}"
        ) from error


def _refuse_pointer(file: Path) -> None:
    """Raise a `ModelError` where a file is git-lfs's pointer to the one that is meant."""
    if is_pointer(file):
        raise ModelError(f"{file.name}: expected weights, got {POINTER}")


def _open_bin(file: Path) -> dict[str, Tensor]:
    """Read a pickle through torch's loader of plain tensors: anything else in it is refused, no code runs."""
    try:
        import torch
    except ImportError:
        raise ModelError(
            f"{file.name}: expected safetensors, or torch installed to read this file: pip install 'jaxppo[torch]'"
        ) from None
    version = torch.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_TORCH:
        raise ModelError(
            f"{file.name}: expected torch >= 2.6 to read this file safely, got {version}"
        )
    try:
        tensors = {}
        for name, tensor in torch.load(file, map_location="cpu", weights_only=True).items():
            dtype = str(tensor.dtype)
            read = partial(_read_torch, tensor.data)
            tensors[name] = Tensor(tuple(tensor.shape), _TORCH_DTYPES.get(dtype, dtype), read)
        return tensors
    except Exception as error:  # pickle raises anything, and the file may hold anything
        _refuse_pointer(file)
        # torch's own message is advice to load the file all the same.
        reason = type(error).__name__
        raise ModelError(
            f"{file.name}: expected a dictionary of tensors and nothing else, got {reason}"
        ) from error


def write_tensors(
    folder: Path,
    sizes: Mapping[str, int],
    tensor: Callable[[str], np.ndarray],
    max_shard_size: int | str,
) -> None:
    """Write `model.safetensors`, or numbered shards with an index where it would be larger than `max_shard_size`.

    Args:
        folder: to write to.
        sizes: bytes of each tensor by name.
        tensor: gives the array of a name; asked for one shard at a time, so that no more is held in memory.
        max_shard_size: bytes, or text such as "5GB".
    """
    pattern = WEIGHTS_FILE.replace(".safetensors", "{suffix}.safetensors")
    plan = split_state_dict_into_shards_factory(
        dict(sizes),
        get_storage_size=lambda size: size,
        filename_pattern=pattern,
        max_shard_size=max_shard_size,
    )
    for file, names in plan.filename_to_tensors.items():
        write_file(folder / file, {name: tensor(name) for name in names})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        write_json(folder / f"{WEIGHTS_FILE}.index.json", index)


def write_file(file: Path, tensors: Mapping[str, np.ndarray], **metadata: str) -> None:
    """Write one safetensors file; transformers refuses one whose metadata lacks "format", which is added."""
    # safetensors writes the bytes as they lie in memory: those of a transposed view are in the
    # order of the array that it is a view of.
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(contiguous, file, {"format": "pt"} | metadata)
    # safetensors makes it readable for its owner alone, unlike the other files of the folder.
    file.chmod(0o644)


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Return a sibling folder to write to, which takes the place of `folder` if all went well and vanishes otherwise.

    Raises:
        ModelError: it could not be written, for instance because the disk is full; `folder` is as it was.
    """
    folder = folder.resolve()  # a link stays one, and "." has a name
    # Fixed names: what a killed process left is removed by the next save.
    partial = folder.with_name(f".{folder.name}.partial")
    replaced = folder.with_name(f".{folder.name}.replaced")
    try:
        # A folder cannot be replaced in one rename: the earlier model is moved away, then the new
        # one gets its name. After a kill between the two the earlier model has the other name
        # alone, and gets its own back here.
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        if folder.exists():
            folder.rename(replaced)
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder}: expected to be writable, got: {first_line(error)}") from error
    finally:
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def replaced_model(folder: Path, marker: str, card: str | None) -> Iterator[Path]:
    """`complete_folder`, with a model card, in the place of nothing else than a model.

    Args:
        folder: new, empty, or one that holds the file `marker`.
        marker: file that folders of this kind have.
        card: content of README.md.

    Raises:
        ModelError: the folder holds something else, or could not be written.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / marker).is_file():
        raise ModelError(
            f"{folder}: expected a new or empty folder or one with {marker}, got other files"
        )
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder}: expected a folder, got a file")
    with complete_folder(folder) as partial_folder:
        yield partial_folder
        if card is not None:
            (partial_folder / CARD_FILE).write_text(card, encoding="utf-8")


@contextmanager
def naming(path: Any) -> Iterator[None]:
    """Begin the message of a `ModelError` with the file, unless it does already."""
    try:
        yield
    except ModelError as error:
        if str(error).startswith(str(path)):
            raise
        raise ModelError(f"{path}: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelError: it is missing, or something else.
    """
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        policy = file.parent / "policy"
        # The folder of a run in place of the model that is in it is an easy mistake.
        fix = f"; did you mean {policy}?" if (policy / file.name).is_file() else ""
        if (file.parent / ADAPTER_FILE).is_file():
            fix = (
                "; the folder is a PEFT adapter: name the model under it here, and the folder with --use_peft "
                "--lora_path (train, sft) or --reward_model_path"
            )
        if file.name == ADAPTER_FILE and (file.parent / CONFIG_FILE).is_file():
            fix = "; the folder is a whole model, and no PEFT adapter of one"
        raise ModelError(
            f"{file}: expected a file of a Hugging Face model, got no file{fix}"
        ) from error
    except (OSError, ValueError, DataError) as error:
        raise ModelError(f"{file}: expected JSON, got: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: expected a JSON object, got {type(content).__name__}")
    return content


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write a JSON object as transformers does: sorted keys, two spaces."""
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def existing_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder as a path.

    Raises:
        ModelError: there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        fix = "name one, a shipped model or a hub id"
        raise ModelError(
            f"{folder}: expected a model folder with {CONFIG_FILE}, got no folder; {fix}"
        )
    return folder
