"""Rows in, batches of left-padded prompts out; the order of rows is a pure function of (seed, epoch)."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import platformdirs

from jaxppo.config import DataConfig, parse_sizes
from jaxppo.errors import DataError
from jaxppo.planning import datasets, prompts
from jaxppo.planning.domains import blocksworld
from jaxppo.planning.pddl import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.types import PromptBatch, Sequences

Row = dict[str, Any]
T = TypeVar("T")
PROMPT_BUCKET = 8
"""Prompt and sequence lengths are rounded up to a multiple of this, so that few shapes are compiled."""

SPLITS = ("train", "rl", "test", "test_longer")
"""Splits of a built-in domain."""


class Batch(NamedTuple):
    """One batch of prompts and everything the data set says about them."""

    prompts: PromptBatch  # numpy arrays, still on the host
    texts: list[str]
    columns: dict[str, list[Any]]


def cache_dir() -> Path:
    """The private folder of all caches: $JAXPPO_CACHE, or the user's cache folder."""
    return Path(os.environ.get("JAXPPO_CACHE") or platformdirs.user_cache_dir("jaxppo"))


def bucket(length: int, multiple: int = PROMPT_BUCKET) -> int:
    """The smallest multiple that is at least `length`."""
    return -(-length // multiple) * multiple


def load_split(config: DataConfig, split: str) -> list[Row]:
    """The rows of one split: built and cached for a built-in domain, else read from the data set.

    Raises:
        DataError: the data set or the split is missing, or a row is malformed.
        PddlError: the PDDL of a row has a syntax error.
    """
    if config.dataset == "blocksworld":
        if split not in SPLITS:
            raise DataError(f"split: expected one of {', '.join(SPLITS)} for blocksworld, got {split!r}")
        return _built_in_split(config, split)
    path = Path(config.dataset) / f"{split}.jsonl"
    rows = datasets.read_jsonl(path) if path.exists() else _hugging_face_rows(config.dataset, split)
    for row in rows:
        check_pddl(row, f"{config.dataset}, split {split}")
    return rows


def _hugging_face_rows(name: str, split: str) -> list[Row]:
    """Rows of a split through the `datasets` library: a `save_to_disk` folder, a folder it can read, or a hub id."""
    import datasets as hugging_face  # slow to import, and not needed for built-in domains

    folder = Path(name)
    if not folder.is_dir() and name.count("/") != 1:
        raise DataError(f"dataset: expected blocksworld, a folder or a hub id such as 'user/name', got {name!r}")
    try:
        if (folder / "dataset_dict.json").exists():
            table = hugging_face.load_from_disk(name)[split]
        else:
            table = hugging_face.load_dataset(name, split=split)
    except Exception as error:  # whatever the many readers and the hub raise
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            f"dataset: expected a split {split!r} in {name}, got {type(error).__name__}: {reason}"
        ) from error
    return [datasets.checked_row(row, f"{name}, split {split}, row {i}") for i, row in enumerate(table)]


def check_pddl(row: Row, where: str) -> None:
    """Parse a row's domain and problem, so that a syntax error stops a run before it starts.

    PDDL beyond the in-process validator passes: it is for VAL to judge.

    Raises:
        PddlError: with the row and column of the data file, and the line within the PDDL text.
    """
    source = f"{where}, row {row['id']}, "
    with contextlib.suppress(UnsupportedPddlError):
        domain = parse_domain(row["domain_pddl"], source + "domain_pddl")
        parse_problem(row["problem_pddl"], domain, source + "problem_pddl")


def _built_in_split(config: DataConfig, split: str) -> list[Row]:
    request: dict[str, Any] = {
        "split": split,
        "sizes": parse_sizes(getattr(config, f"{split}_sizes"), f"{split}_sizes"),
        "seed": config.data_seed,
        "prompt_style": config.prompt_style,
        "unique": split != "train",
    }
    path = cache_dir() / "datasets" / f"blocksworld-{split}-{_digest(request)}.jsonl"
    if not path.exists():
        datasets.write_jsonl(datasets.build_split(**request), path)
    return datasets.read_jsonl(path)


def _digest(request: dict[str, Any]) -> str:
    """Name of a cached split: changes with the request and with the code that builds it."""
    folder = Path(prompts.__file__).parent
    sources = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    code = b"".join(path.read_bytes() for path in sources)
    text = json.dumps(request, sort_keys=True).encode()
    return hashlib.sha256(text + code).hexdigest()[:16]


def word_tokenizer() -> Any:
    """A fast word-level tokenizer for the built-in domains: one token per word of the prompt style.

    Returns:
        `PreTrainedTokenizerFast` with pad token `<pad>`, end token `<eos>`, padding on the left.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = prompts.vocabulary([parse_domain(blocksworld.DOMAIN_PDDL)], blocksworld.NAMES, "atoms")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", padding_side="left", model_max_length=2048
    )


def encode_prompts(tokenizer: Any, rows: Sequence[Row], max_length: int) -> list[list[int]]:
    """Token ids of every row's prompt.

    Raises:
        DataError: a prompt is empty or longer than `max_length` tokens; the message names the row.
    """
    encoded = _encode(tokenizer, rows, "prompt")
    for row, ids in zip(rows, encoded, strict=True):
        if not 0 < len(ids) <= max_length:
            expected = f"1 to max_prompt_length={max_length} tokens"
            raise DataError(f"prompt of row {row['id']}: expected {expected}, got {len(ids)}")
    return encoded


def _encode(tokenizer: Any, rows: Sequence[Row], column: str) -> list[list[int]]:
    try:
        return tokenizer([row[column] for row in rows], add_special_tokens=False)["input_ids"]
    except Exception as error:  # tokenizers raises plain Exception for a word that a word-level vocabulary lacks
        raise DataError(f"{column}: expected text that the model's tokenizer can encode, got: {error}") from error


def pad_left(encoded: Sequence[Sequence[int]], length: int, pad_id: int) -> PromptBatch:
    """Prompts of different lengths as [B, length] arrays whose last column holds every prompt's last token."""
    ids = np.full((len(encoded), length), pad_id, np.int32)
    mask = np.zeros((len(encoded), length), bool)
    for i, row in enumerate(encoded):
        ids[i, length - len(row) :] = row
        mask[i, length - len(row) :] = True
    return PromptBatch(ids, mask)  # type: ignore[arg-type]


def columns_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Rows as columns, the form in which reward functions get them; a key missing in a row is None there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names if name != "prompt"}


def row_order(num_rows: int, seed: int, start: int, count: int) -> np.ndarray:
    """Row numbers `start ... start + count - 1` of the endless stream that shuffles all rows once per epoch."""
    epochs = range(start // num_rows, (start + count - 1) // num_rows + 1)
    stream = np.concatenate([np.random.default_rng((seed, epoch)).permutation(num_rows) for epoch in epochs])
    offset = start - epochs.start * num_rows
    return stream[offset : offset + count]


class PromptData:
    """Training prompts: `batch(step)` depends on nothing but the seed and the step.

    Args:
        rows: data set rows with `prompt` and whatever the reward needs.
        tokenizer: fast tokenizer.
        batch_size: B.
        seed: of the order.
        max_prompt_length: longest prompt allowed.
    """

    def __init__(self, rows: Sequence[Row], tokenizer: Any, batch_size: int, seed: int, max_prompt_length: int):
        if not rows:
            raise DataError("train_split: expected at least one row, got none")
        self.rows, self.seed, self.batch_size = rows, seed, batch_size
        self._encoded = encode_prompts(tokenizer, rows, max_prompt_length)
        self._pad_id = tokenizer.pad_token_id
        self.prompt_length = bucket(max(map(len, self._encoded)))

    def batch(self, step: int) -> Batch:
        """The batch of update `step` (0-based)."""
        order = row_order(len(self.rows), self.seed, step * self.batch_size, self.batch_size)
        rows = [self.rows[i] for i in order]
        prompts = pad_left([self._encoded[i] for i in order], self.prompt_length, self._pad_id)
        return Batch(prompts, [row["prompt"] for row in rows], columns_of(rows))


def encode_completions(tokenizer: Any, rows: Sequence[Row]) -> list[list[int]]:
    """Token ids of every row's completion, with the end of sequence."""
    encoded = _encode(tokenizer, rows, "completion")
    return [[*ids, tokenizer.eos_token_id] for ids in encoded]


class SupervisedData:
    """Prompts with their reference completions, packed and right-padded; ordered as `PromptData`."""

    def __init__(self, rows: Sequence[Row], tokenizer: Any, batch_size: int, seed: int, max_prompt_length: int):
        if not rows:
            raise DataError("train_split: expected at least one row, got none")
        self.seed, self.batch_size, self._pad_id = seed, batch_size, tokenizer.pad_token_id
        self._prompts = encode_prompts(tokenizer, rows, max_prompt_length)
        self._completions = encode_completions(tokenizer, rows)
        lengths = [len(p) + len(c) for p, c in zip(self._prompts, self._completions, strict=True)]
        self.length, self.completion_length = bucket(max(lengths)), bucket(max(map(len, self._completions)))

    def batch(self, step: int) -> Sequences:
        """The sequences of step `step` (0-based), numpy arrays."""
        order = row_order(len(self._prompts), self.seed, step * self.batch_size, self.batch_size)
        ids = np.full((self.batch_size, self.length), self._pad_id, np.int32)
        completions = np.full((self.batch_size, self.completion_length), self._pad_id, np.int32)
        prompt_lengths = np.array([len(self._prompts[i]) for i in order], np.int32)
        completion_lengths = np.array([len(self._completions[i]) for i in order], np.int32)
        for row, i in enumerate(order):
            both = [*self._prompts[i], *self._completions[i]]
            ids[row, : len(both)] = both
            completions[row, : completion_lengths[row]] = self._completions[i]
        mask = np.arange(self.completion_length)[None, :] < completion_lengths[:, None]
        return Sequences(ids, prompt_lengths, completions, mask)  # type: ignore[arg-type]


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Consecutive parts of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def decode(tokenizer: Any, ids: np.ndarray, mask: np.ndarray) -> list[str]:
    """Text of each completion, special tokens left out: [B, C] ids and mask -> B strings."""
    return tokenizer.batch_decode([row[real] for row, real in zip(ids, mask, strict=True)], skip_special_tokens=True)


def model_folder(name: str) -> Path:
    """A folder by path, or a model shipped with jaxppo by name."""
    shipped = Path(__file__).parent / "assets" / name
    return shipped if "/" not in name and shipped.is_dir() else Path(name)
