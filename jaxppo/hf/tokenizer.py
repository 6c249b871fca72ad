"""Read and write tokenizers, and check that a model and its tokenizer fit."""

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jaxppo.config.reading import POINTER, is_pointer
from jaxppo.errors import ModelError, first_line
from jaxppo.hf.files import GENERATION_FILE, existing_folder, naming, read_json, write_json
from jaxppo.hf.names import special_token
from jaxppo.nn import ModelConfig

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")
_CONFIG_FILE = "tokenizer_config.json"


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer's files into a folder, with names that transformers 4 reads, too.

    Raises:
        OSError: they cannot be written.
    """
    try:
        tokenizer.save_pretrained(folder)
        if (folder / _CONFIG_FILE).is_file():
            # transformers 5 reads the names of 4, but not the other way round.
            write_json(folder / _CONFIG_FILE, _with_older_names(read_json(folder / _CONFIG_FILE)))
    except Exception as error:  # tokenizers raises plain ones, also where the disk is full
        raise OSError(f"tokenizer: {first_line(error)}") from error


def _with_older_names(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json` with the names of transformers 4, which 5 reads the same.

    With those of 5, transformers 4 finds no class `TokenizersBackend`, and no keys in a list `extra_special_tokens`.
    """
    raw = dict(raw)
    if raw.get("tokenizer_class") == "TokenizersBackend":
        raw["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(raw.get("extra_special_tokens"), list):
        raw["additional_special_tokens"] = raw.pop("extra_special_tokens")
    return raw


def load_padding_tokenizer(folder: str | os.PathLike[str]) -> Any:
    """`load_tokenizer`; one without a pad token pads with its end of sequence, as nothing reads a mask from ids.

    Raises:
        ModelError: as for `load_tokenizer`, or the tokenizer has no end of sequence.
    """
    tokenizer = load_tokenizer(folder)
    check_end(tokenizer, str(folder))
    # A pad token of its own would need a row of the embedding that the model may not have.
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_tokenizer(tokenizer: Any, config: ModelConfig, source: str) -> None:
    """Raise a `ModelError` unless a tokenizer has an end of sequence, and no more tokens than the model."""
    check_end(tokenizer, source)
    num_ids = _num_ids(tokenizer)
    if num_ids > config.vocab_size:
        raise ModelError(
            f"{source}: expected at most vocab_size={config.vocab_size} tokens, got {num_ids}"
        )


def with_tokens(config: ModelConfig, tokenizer: Any, folder: Path) -> ModelConfig:
    """Return the same model with what its folder says about tokens: how many it has, and which end a text.

    Args:
        config: read from `config.json`.
        tokenizer: of the folder.
        folder: may have a `generation_config.json`.

    Raises:
        ModelError: that lists an end of a text which is no token of the model.
    """
    num_ids = _num_ids(tokenizer)
    end_ids = config.eos_token_ids if "eos_token_id" in config.source.config_json else ()
    file = folder / GENERATION_FILE
    if file.is_file():
        eos_token_id = special_token(read_json(file).get("eos_token_id"), config.vocab_size)
        with naming(file):  # the config checks that they are tokens of the model
            end_ids += dataclasses.replace(config, eos_token_id=eos_token_id).eos_token_ids
    # Many models have more rows of the embedding than tokens: those beyond are never sampled.
    num_tokens = num_ids if num_ids < config.vocab_size else None
    source = dataclasses.replace(
        config.source, num_tokens=num_tokens, end_ids=tuple(dict.fromkeys(end_ids))
    )
    return dataclasses.replace(config, source=source)


def _num_ids(tokenizer: Any) -> int:
    """Return the largest token id + 1: more than the number of tokens where some ids are not used."""
    return max(tokenizer.get_vocab().values()) + 1


def check_end(tokenizer: Any, source: str) -> None:
    """Raise a `ModelError` unless a tokenizer has an end of sequence."""
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{source}: expected a tokenizer with an eos_token, got none")


def load_tokenizer(folder: str | os.PathLike[str]) -> Any:
    """Read the tokenizer of a local model folder; code in the folder is never run.

    Raises:
        ModelError: the folder is missing or holds no tokenizer that transformers can read.
    """
    folder = existing_folder(folder)
    # Transformers would make up an empty one
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"{folder}: expected a tokenizer ({' or '.join(_TOKENIZER_FILES)}), got none of these files"
        )
    try:
        return _tokenizer_loader(folder)(folder)
    except Exception as error:  # tokenizers raises plain ones, and a damaged file leads anywhere
        reason = first_line(error)
        for name in _TOKENIZER_FILES:
            if is_pointer(folder / name):
                reason = f"{name} is {POINTER}"
        raise ModelError(f"{folder}: expected a readable tokenizer, got: {reason}") from error


def _tokenizer_loader(folder: Path) -> Callable[[Path], Any]:
    """Return transformers' reader of the tokenizer: its plain class where the folder names it, else its chooser.

    The import of the chooser takes 2 s where torch is installed, which it imports; that of the plain class a third.
    """
    file = folder / _CONFIG_FILE
    if (folder / "tokenizer.json").is_file() and file.is_file():
        tokenizer_class = read_json(file).get("tokenizer_class")
        # Its names in transformers 5 and 4
        if tokenizer_class in ("TokenizersBackend", "PreTrainedTokenizerFast"):
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained
    from transformers import AutoTokenizer

    return partial(AutoTokenizer.from_pretrained, local_files_only=True, trust_remote_code=False)
