"""Rows in, batches of left-padded prompts out; the order of rows is a pure function of (seed, epoch)."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import platformdirs

from jaxppo.config import DataConfig, parse_sizes
from jaxppo.errors import DataError, PddlError
from jaxppo.planning import datasets, find_val, parse_action, prompts
from jaxppo.planning.domains import blocksworld
from jaxppo.planning.pddl import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.types import PromptBatch, Sequences

Row = dict[str, Any]
T = TypeVar("T")
PROMPT_BUCKET = 8
"""Prompt and sequence lengths are rounded up to a multiple of this, so that few shapes are compiled."""

SPLITS = ("train", "rl", "test", "test_longer")
"""Splits of a built-in domain."""


PROMPT_ONLY: Mapping[str, type] = {"prompt": str}
"""Columns of rows that a reward needs no more of."""


class Batch(NamedTuple):
    """One batch of prompts and everything the data set says about them."""

    prompts: PromptBatch  # numpy arrays, still on the host
    texts: list[str]
    columns: dict[str, list[Any]]

    def per_completion(self, copies: int) -> tuple[list[str], dict[str, list[Any]]]:
        """Texts and columns with every row `copies` times, next to each other: one for each of its completions."""
        repeat = lambda values: [value for value in values for _ in range(copies)]  # noqa: E731
        return repeat(self.texts), {name: repeat(values) for name, values in self.columns.items()}


def cache_dir() -> Path:
    """The private folder of all caches: $JAXPPO_CACHE, or the user's cache folder."""
    return Path(os.environ.get("JAXPPO_CACHE") or platformdirs.user_cache_dir("jaxppo"))


def bucket(length: int, multiple: int = PROMPT_BUCKET) -> int:
    """The smallest multiple that is at least `length`."""
    return -(-length // multiple) * multiple


def load_split(
    config: DataConfig, split: str, validator: str | None = "builtin", columns: Mapping[str, type] = PROMPT_ONLY
) -> list[Row]:
    """The rows of one split: built and cached for a built-in domain, else read from the data set.

    Args:
        config: which data set.
        split: name of the split.
        validator: who will judge plans for these rows; `builtin` covers less of PDDL than VAL. None: nobody, and rows
            need no more than `columns`.
        columns: what rows without plans have.

    Raises:
        DataError: the data set or the split is missing, or a row is malformed.
        PddlError: the PDDL of a row has a syntax error, or is beyond the validator.
    """
    if config.dataset == "blocksworld":
        if split not in SPLITS:
            raise DataError(f"split: expected one of {', '.join(SPLITS)} for blocksworld, got {split!r}")
        return _built_in_split(config, split)
    rows = read_rows(config.dataset, split, datasets.COLUMNS if validator is not None else columns)
    if validator is None:
        return [{"id": f"{split}-{i}"} | row for i, row in enumerate(rows)]
    for row in rows:
        check_row(row, f"{config.dataset}, split {split}, row {row['id']}", validator)
    return rows


def read_rows(dataset: str, split: str, columns: Mapping[str, type]) -> list[Row]:
    """The rows of `<dataset>/<split>.jsonl`, or of whatever the `datasets` library reads.

    Args:
        dataset: a folder or a hub id.
        split: name of the split.
        columns: which every row must have, with their types.

    Raises:
        DataError: the data set or the split is missing or empty, or a row is malformed.
    """
    folder = Path(dataset)
    if folder.is_dir() and not (folder / "dataset_dict.json").exists():
        rows = datasets.read_jsonl(folder / f"{split}.jsonl", columns)
    else:
        rows = _hugging_face_rows(dataset, split, columns)
    if not rows:
        raise DataError(f"{dataset}, split {split}: expected at least one row, got none")
    return rows


def _hugging_face_rows(name: str, split: str, columns: Mapping[str, type]) -> list[Row]:
    """Rows of a split through the `datasets` library: a `save_to_disk` folder or a hub id."""
    import datasets as hugging_face  # slow to import, and not needed for built-in domains

    folder = Path(name)
    if not folder.is_dir() and name.count("/") != 1:
        expected = "a folder or a hub id such as 'user/name'"
        raise DataError(f"dataset: expected {expected}, got {name!r} (planning problems are built in as blocksworld)")
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
    return [datasets.checked_row(row, f"{name}, split {split}, row {i}", columns) for i, row in enumerate(table)]


def check_row(row: Row, where: str, validator: str) -> None:
    """Read everything that the reward will read in a row, so that bad data stops a run before it starts.

    Raises:
        DataError: the prompt style or an action of the reference plan.
        PddlError: with the row, the column and the line within its text; also for PDDL that the built-in validator
            does not cover, unless VAL judges and is installed.
    """
    if row["prompt_style"] not in prompts.PROMPT_STYLES:
        expected = f"one of {', '.join(prompts.PROMPT_STYLES)}"
        raise DataError(f"{where}, prompt_style: expected {expected}, got {row['prompt_style']!r}")
    for action in _reference_actions(row["reference_plan"], where):
        try:
            parse_action(action)
        except (TypeError, ValueError):
            raise DataError(f"{where}, reference_plan: expected '(action args)', got {action!r}") from None
    column = "domain_pddl"
    try:
        # Without a name of their own the parsed texts are shared between rows, and with the validator later.
        domain = parse_domain(row["domain_pddl"])
        column = "problem_pddl"
        parse_problem(row["problem_pddl"], domain)
    except PddlError as error:
        val_can_judge = validator != "builtin" and find_val() is not None
        if not (isinstance(error, UnsupportedPddlError) and val_can_judge):
            raise PddlError(f"{where}, {column}", error.line, error.message) from None


def _reference_actions(value: list[Any], where: str) -> list[Any]:
    if all(isinstance(entry, str | list) for entry in value):
        return [action for plan in datasets.reference_plans(value) for action in plan]
    raise DataError(f"{where}, reference_plan: expected '(action args)' strings or lists of them, got {value!r:.60}")


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


def encode_prompts(
    tokenizer: Any, rows: Sequence[Row], max_length: int, cut_to: Sequence[int] | None = None
) -> list[list[int]]:
    """Token ids of every row's prompt, of its first `cut_to` tokens where that is given.

    Raises:
        DataError: a prompt is empty or longer than `max_length` tokens; the message names the row.
    """
    encoded = _encode(tokenizer, rows, "prompt")
    if cut_to is not None:
        encoded = [ids[:length] for ids, length in zip(encoded, cut_to, strict=True)]
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
        batch_size: G, prompts per batch.
        seed: of the order, and of the lengths that prompts are cut to.
        max_prompt_length: longest prompt allowed.
        text_lengths: cut every prompt to a number of tokens drawn from this range (both ends may come out).
    """

    def __init__(
        self,
        rows: Sequence[Row],
        tokenizer: Any,
        batch_size: int,
        seed: int,
        max_prompt_length: int,
        text_lengths: tuple[int, int] | None = None,
    ):
        if not rows:
            raise DataError("train_split: expected at least one row, got none")
        self.rows, self.seed, self.batch_size = rows, seed, batch_size
        if text_lengths is None:
            self._encoded = encode_prompts(tokenizer, rows, max_prompt_length)
        else:
            lengths = np.random.default_rng((seed, len(rows))).integers(*text_lengths, len(rows), endpoint=True)
            self._encoded = encode_prompts(tokenizer, rows, max_prompt_length, lengths.tolist())
            self.rows = [row | {"prompt": tokenizer.decode(ids)} for row, ids in zip(rows, self._encoded, strict=True)]
        self._pad_id = tokenizer.pad_token_id
        self.longest = max(map(len, self._encoded))
        self.prompt_length = bucket(self.longest)

    def batch(self, step: int) -> Batch:
        """The batch of update `step` (0-based)."""
        order = row_order(len(self.rows), self.seed, step * self.batch_size, self.batch_size)
        rows, encoded = [self.rows[i] for i in order], [self._encoded[i] for i in order]
        prompts = pad_left(encoded, self.prompt_length, self._pad_id)
        return Batch(prompts, [row["prompt"] for row in rows], columns_of(rows) | {"prompt_ids": encoded})


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
    """Text of each completion without the end of sequence that closes it: [B, C] ids and mask -> B strings.

    Any other special token stays in the text: left out, it would be junk that a plan may hold for nothing.
    """
    rows = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    bodies = [row[:-1] if row and row[-1] == tokenizer.eos_token_id else row for row in rows]
    words = [[_visible(tokenizer, i) for i in row] for row in bodies]
    return [tokenizer.convert_tokens_to_string(row) if row else "" for row in words]


def _visible(tokenizer: Any, token_id: int) -> str:
    """The token, or `<id>` for one of a padded vocabulary that the tokenizer does not know."""
    return tokenizer.convert_ids_to_tokens(token_id) if token_id < len(tokenizer) else f"<{token_id}>"
