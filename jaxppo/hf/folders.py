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
    existing_folder,
    naming,
    open_tensors,
    read_json,
    read_weights,
    replaced_model,
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
from jaxppo.nn.lora import set_path
from jaxppo.parallel import stacks
from jaxppo.run import activity

VALUE_HEAD_FILE = "value_head.safetensors"

DTYPES = ("auto", "float32", "bfloat16", "float16")
MAX_SHARD_SIZE = "5GB"

ASSETS = Path(__file__).parent / "assets"
"""Models shipped with jaxppo."""

Placement = Callable[[tuple[str, ...], tuple[int, ...]], jax.sharding.Sharding]
"""(path of a parameter, its shape) -> where its parts go."""

_ROWS = 4096
"""Rows of an embedding that are compared together, so that no second copy of it is in memory."""

# user/name, or an old name without a user; after the @ a branch, a tag or a commit.
_HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>[\w./-]+))?", re.ASCII)
_HUB_FILES = ["*.json", "*.jinja", "*.txt", "*.model", CARD_FILE]
_HUB_WEIGHTS = ["model*.safetensors", VALUE_HEAD_FILE, "adapter_model.safetensors"]


class LoadedModel(NamedTuple):
    """A model read from a folder.

    Attributes:
        config: the model.
        params: as at the top of `models.py`; without the `score` head where that is among `fresh`.
        folder: where it came from.
        loaded: names of the tensors that were read.
        fresh: names of those that the folder does not have, to be initialized.
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
        num_params = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        source = "shapes alone" if self.shapes_only else f"{len(self.loaded)} tensors loaded"
        line = f"{self.folder}: {source} ({num_params:,} parameters)"
        for title, names in (("fresh", self.fresh), ("not used", self.unused)):
            if names:
                line += f"; {title}: {', '.join(names[:MAX_PROBLEMS])}"
            if len(names) > MAX_PROBLEMS:
                line += f" and {len(names) - MAX_PROBLEMS} more"
        return line


def find_model(name: str, *, weights: bool = True) -> Path:
    """Return the folder of a model: shipped with jaxppo, a toy, on this machine, or downloaded from the hub.

    Args:
        name: name of a shipped model or a toy, path of a folder, or a hub id, "user/name" or "user/name@revision".
        weights: False: of a model on the hub only the tokenizer and the configuration are downloaded.

    Raises:
        ModelError: it is none of these, the hub cannot be reached, or its model is of another family.
    """
    # Names that jaxppo knows come first, wherever it is called: a folder that has one of them is
    # named by a path, such as ./blocksworld-sft.
    if name in _shipped_models():
        return ASSETS / name
    toy = toys.find(name)
    if toy is not None:
        return toy
    match = _HUB_ID.fullmatch(name)
    # A folder comes before a repository of the same name.
    if Path(name).is_dir() or match is None:
        return existing_folder(name)
    return _download(match["repo"], match["revision"], weights)


def _shipped_models() -> list[str]:
    return sorted(path.name for path in ASSETS.iterdir())


def _download(repo: str, revision: str | None, weights: bool) -> Path:
    """Download weights as safetensors, or as `pytorch_model.bin` where the repository has nothing else.

    The configuration comes first: nobody waits for gigabytes that cannot be used.
    """
    # Slow to import, and not needed for a local folder
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=_HUB_FILES))
        if not weights:
            return folder
        if (folder / CONFIG_FILE).exists():
            with naming(f"{repo}: {CONFIG_FILE}"):
                family_of(read_json(folder / CONFIG_FILE).get("model_type"))
        # By patterns: a repository may hold the weights of other libraries as well.
        snapshot_download(repo, revision=revision, allow_patterns=_HUB_WEIGHTS)
        # Pickles last: safetensors cannot hold code.
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


def load_pretrained(
    folder: str | os.PathLike[str], *, dtype: str = "float32"
) -> tuple[ModelConfig, Params]:
    """Read a model folder as transformers writes it; see `load_model`.

    Returns:
        The configuration, and parameters as at the top of `models.py`.
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
) -> LoadedModel:
    """Read a model folder as transformers writes it: `config.json` and weights, in one file or in shards.

    Weights are read from safetensors, else from `pytorch_model.bin` by torch's loader of plain tensors. Code in the
    folder is never run.

    Args:
        folder: local folder of a `...ForCausalLM`, a `...ForSequenceClassification` with one label, or a bare trunk.
        head: "lm", "score", None (the trunk alone), or "saved": what the folder has. A missing score head is fresh.
        dtype: of the parameters, "auto" for that on disk.
        placement: where parameters go; every device then reads its own parts, and none holds more. Default: whole, on
            the default device.
        shapes_only: return `jax.ShapeDtypeStruct`s in place of arrays; a folder without weights is enough.

    Raises:
        ModelError: the folder or a file is missing or unreadable, the model is of an unsupported kind, or tensors are
            missing, unexpected or of another shape; the message names them.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if head not in ("saved", "lm", "score", None):
        raise ModelError(f"head: expected 'saved', 'lm', 'score' or None, got {head!r}")
    folder = existing_folder(folder)
    config, saved_head = read_config(folder)
    if head == "saved":
        head = saved_head
    with naming(folder), activity.show(f"loading {folder}"):
        # Its `original` then names the architecture with
        # this head, as the model's own export would.
        if head != saved_head:
            config = config_from_hf(config_to_hf(config, head))
        if (
            shapes_only
            and not any(folder.glob("*.safetensors"))
            and not any(folder.glob("pytorch_model*"))
        ):
            # A plan of a run needs no weights: their shapes follow from the configuration.
            params = jax.eval_shape(lambda: init_params(config, jax.random.key(0), head))
            return LoadedModel(config, params, folder, (), (), (), shapes_only=True)
        tensors = open_tensors(folder)
        # transformers prefixes the trunk's names where a head is beside it, but reads folders of either kind.
        prefix = family_of(config.model_type).trunk_prefix
        has_prefix = any(name.startswith(prefix) for name in tensors)
        entries = expected_tensors(config, head, has_prefix, "score.bias" in tensors)
        fresh = tuple(
            name
            for name, entry in entries.items()
            if entry.path[0] == "score" and name not in tensors
        )
        # Not drawn here: the caller does it with the seed of its run.
        for name in fresh:
            del entries[name]
        # All tensors are compared before the first is read, which may take minutes.
        unused = check_tensors(config, head, entries, tensors)
        if not shapes_only and head == "lm" and config.tie_word_embeddings:
            _check_tied(config, entries, tensors)
        params: Params = {}
        array_dtype = None if dtype == "auto" else dtype
        for name, entry in entries.items():
            if shapes_only:
                shape = entry.shape[::-1] if entry.transpose else entry.shape
                array = jax.ShapeDtypeStruct(shape, array_dtype or jnp.float32)
            else:
                array = _read(name, tensors[name], entry, array_dtype, placement)
            set_path(params, entry.path, array)
    return LoadedModel(config, params, folder, tuple(entries), fresh, unused, shapes_only)


def _check_tied(
    config: ModelConfig, entries: dict[str, Expected], tensors: dict[str, Tensor]
) -> None:
    """Raise a `ModelError` where a folder with a tied head has another one: transformers 5 takes it, 4 does not."""
    head_name = family_of(config.model_type).names["lm_head/kernel"].name
    if head_name not in tensors:
        return
    name = next(
        name for name, entry in entries.items() if entry.path == ("trunk", "embed_in", "embedding")
    )
    head = tensors[head_name]
    embedding = tensors[name]
    shape = entries[name].shape
    # transformers 4 ties the head and drops these numbers,
    # 5 uses them: only equal ones mean the same to both.
    is_same = head.shape == shape
    for start in range(0, shape[0], _ROWS):
        # safetensors has no slices beyond the end.
        rows = slice(start, min(start + _ROWS, shape[0]))
        is_same = is_same and np.array_equal(head.read(rows), embedding.read(rows))
    if not is_same:
        raise ModelError(
            f"{head_name}: expected the numbers of {name}, as tie_word_embeddings is true, got others; set it to false "
            "to use them"
        )


def read_config(folder: str | os.PathLike[str]) -> tuple[ModelConfig, str | None]:
    """Return the configuration of a model folder, and the head that it was saved with."""
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
        config: the model; further keys of its `original` config.json are written again.
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
    # A folder has a tensor for each layer, a run may hold all layers of a kind in one array.
    params = stacks.unstack(params)
    head = head_in(config, params)
    arrays = hf_arrays(config, head, params)
    dtypes = {name: np.dtype(dtype or array.leaf.dtype) for name, array in arrays.items()}
    # `config.json` names one dtype for all tensors: the one that holds the numbers of all.
    widest_dtype = max(dtypes.values(), key=lambda array_dtype: array_dtype.itemsize)
    with replaced_model(Path(folder), CONFIG_FILE, card) as partial:
        write_json(partial / CONFIG_FILE, config_to_hf(config, head, str(widest_dtype)))
        if head == "lm" and generation_config is not False:
            generation = special_tokens(config)
            if generation_config is not True:
                generation |= generation_config
            write_json(partial / GENERATION_FILE, redact(generation))
        # Sizes alone: the shards are planned before any array leaves the devices.
        sizes = {name: array.leaf.size * dtypes[name].itemsize for name, array in arrays.items()}
        write_tensors(
            partial, sizes, lambda name: arrays[name].stored(name, dtypes[name]), max_shard_size
        )
        if tokenizer is not None:
            save_tokenizer(tokenizer, partial)


def save_value_head(folder: str | os.PathLike[str], head: Params, card: str | None = None) -> None:
    """Write the value head of a policy's trunk, {"kernel": [D, 1], "bias": [1]}, under the names of TRL's `v_head`.

    Raises:
        ModelError: the folder holds something else or cannot be written.
    """
    # A linear layer of torch holds [outputs, inputs].
    tensors = {name: np.asarray(head[our_name]).T for name, our_name in VALUE_HEAD_NAMES.items()}
    with replaced_model(Path(folder), VALUE_HEAD_FILE, card) as partial:
        write_file(partial / VALUE_HEAD_FILE, tensors)


def load_value_head(folder: str | os.PathLike[str], config: ModelConfig) -> Params:
    """Read the value head of a policy's trunk: a file of `save_value_head`, or beside the weights of a TRL model.

    Raises:
        ModelError: the folder has none, or it is of another size.
    """
    folder = existing_folder(folder)
    shapes = {"v_head.summary.weight": (1, config.hidden_size), "v_head.summary.bias": (1,)}
    head = {}
    with naming(folder):
        tensors = open_tensors(folder, VALUE_HEAD_FILE)
        for name, our_name in VALUE_HEAD_NAMES.items():
            shape = tensors[name].shape if name in tensors else "no tensor"
            if shape != shapes[name]:
                raise ModelError(f"{name}: expected shape {shapes[name]}, got {shape}")
            head[our_name] = jnp.asarray(cast(name, read_weights(name, tensors[name]), "float32").T)
    return head


class LoadedPolicy(NamedTuple):
    """A language model with its tokenizer."""

    config: ModelConfig
    params: Params
    tokenizer: Any
    loaded: LoadedModel


def load_policy(
    name: str | os.PathLike[str], placement: Placement | None = None, shapes_only: bool = False
) -> LoadedPolicy:
    """Read a language model with its tokenizer, ready to sample from.

    Args:
        name: see `find_model`.
        placement: see `load_model`.
        shapes_only: see `load_model`.

    Raises:
        ModelError: as for `load_model` and `load_tokenizer`, or the folder holds no language model, the tokenizer
            has no end of sequence, or more tokens than the model, or a file lists ends of a text that are no tokens.
    """
    folder = find_model(str(name), weights=not shapes_only)
    config, head = read_config(folder)
    if head != "lm":
        architecture = family_of(config.model_type).architectures["lm"]
        raise ModelError(
            f"{folder}: expected a language model ({architecture}), got one without lm_head"
        )
    # The tokenizer first: weights take longer to read, and are of no use without it.
    tokenizer = load_padding_tokenizer(folder)
    check_tokenizer(tokenizer, config, str(folder))
    model = load_model(folder, placement=placement, shapes_only=shapes_only)
    return LoadedPolicy(with_tokens(config, tokenizer, folder), model.params, tokenizer, model)


def _read(
    name: str, tensor: Tensor, entry: Expected, dtype: str | None, placement: Placement | None
) -> jax.Array:
    """Read a parameter; with a placement each device's callback reads its part of the file, and no other."""

    def read_part(index: Any) -> np.ndarray:
        # Ours is the transpose of the file's: so are the slices of its axes.
        array = read_weights(name, tensor, index[::-1] if entry.transpose else index)
        array = cast(name, array, dtype or array.dtype)
        return array.T if entry.transpose else array

    shape = entry.shape[::-1] if entry.transpose else entry.shape
    if placement is None:
        return jnp.asarray(read_part((slice(None),) * len(shape)))
    # Each device's callback runs on the process that has
    # the device: no process reads the parts of others.
    return jax.make_array_from_callback(shape, placement(entry.path, shape), read_part)
