"""Rows in, batches of left-padded prompts out; the order of rows is a pure function of (seed, epoch)."""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxppo import planning, toys
from jaxppo.config import DataConfig, parse_sizes
from jaxppo.config.paths import cache_dir
from jaxppo.data.chat_template import Turns
from jaxppo.errors import DataError, MissingColumnError, PddlError, hub_fix
from jaxppo.planning import find_val, needs_time_stamps, parse_action, prompts
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.planning.domains import blocksworld
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.types import PromptBatch, Sequences

Row = dict[str, Any]
T = TypeVar("T")
PROMPT_BUCKET = 8
"""Prompt lengths are rounded up to a multiple of this, so that few shapes are compiled."""
SEQUENCE_BUCKET = 32
"""Packed sequences of a batch are rounded up to a multiple of this, or to the longest possible, for the same reason."""

SHIPPED_DATA, REQUESTS_FILE = Path(__file__).parent / "shipped", "requests.json"
"""The splits of the default run, ready made; `runs/shipped_data.py` writes them."""

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
            expected = f"one of {', '.join(SPLITS)} for blocksworld"
            raise DataError(f"train_split, eval_splits: expected {expected}, got {split!r}")
        if config.dataset_config is not None:
            raise DataError(f"dataset_config: expected none for blocksworld, got {config.dataset_config!r}")
        return _built_in_split(config, split)
    if validator is None:
        return _text_rows(config, split, columns)
    try:
        rows = read_rows(config.dataset, split, datasets.COLUMNS, config.dataset_config)
    except MissingColumnError as error:
        fix = "rows that are no planning problems need --reward_funcs module:function in place of plan"
        raise error.with_fix(fix) from None
    for row in rows:
        check_row(row, f"{config.dataset}, split {split}, row {row['id']}", validator)
    return rows


def _text_rows(config: DataConfig, split: str, columns: Mapping[str, type]) -> list[Row]:
    """Rows of a split that are no planning problems, with `id` and `prompt`, and with a prompt that is long enough."""
    name, least = config.prompt_column, config.min_prompt_characters
    wanted = {name if column == "prompt" else column: kind for column, kind in columns.items()}
    try:
        rows = read_rows(config.dataset, split, wanted, config.dataset_config)
    except MissingColumnError as error:
        raise error.with_fix("--prompt_column names another") from None
    kept = [
        {"id": f"{split}-{i}"} | row | {"prompt": row[name]} for i, row in enumerate(rows) if len(row[name]) >= least
    ]
    if not kept:
        raise DataError(
            f"min_prompt_characters: expected a row of split {split} with at least {least}, got none of {len(rows)}"
        )
    return kept


def read_rows(dataset: str, split: str, columns: Mapping[str, type], configuration: str | None = None) -> list[Row]:
    """The rows of `<dataset>/<split>.jsonl` or `.parquet`, or of whatever the `datasets` library reads.

    Args:
        dataset: a folder, a toy or a hub id.
        split: name of the split.
        columns: which every row must have, with their types.
        configuration: which of several data sets of one hub repository; always read by the `datasets` library.

    Raises:
        DataError: the data set or the split is missing or empty, or a row is malformed.
    """
    folder = toys.find(dataset) or Path(dataset)
    if folder.is_file():
        fix = f"give its folder, and the split {folder.stem} (other formats: convert them to JSON lines or Parquet)"
        raise DataError(f"dataset: expected a folder with one file per split, got the file {folder}; {fix}")
    if (folder / "state.json").exists():
        fix = "save DatasetDict({'train': ...}), which has splits"
        raise DataError(f"dataset: expected splits, got one `datasets.Dataset` without a name in {folder}; {fix}")
    if folder.is_dir() and configuration is None and not _is_hugging_faces(folder, split):
        rows = dataset_files.read_split(folder, split, columns)
    else:
        rows = _hugging_face_rows(str(folder) if folder.is_dir() else dataset, split, columns, configuration)
    if not rows:
        raise DataError(f"{dataset}, split {split}: expected at least one row, got none")
    return rows


def _is_hugging_faces(folder: Path, split: str) -> bool:
    """Whether a folder is of `save_to_disk`, or as on the hub: with a card that lists files, or with numbered parts."""
    if (folder / "dataset_dict.json").exists():
        return True
    if any((folder / f"{split}{ending}").exists() for ending in (".jsonl", ".parquet")):
        return False
    card = folder / "README.md"
    if card.is_file() and re.match(r"---\n(.*\n)*?configs:", card.read_text(encoding="utf-8", errors="replace")):
        return True
    part = "-?????-of-?????.parquet"
    hubs = (f"*{part}", f"*/*{part}", f"data/{split}.jsonl", f"data/{split}.parquet")
    return any(path for pattern in hubs for path in folder.glob(pattern))


def _hugging_face_rows(name: str, split: str, columns: Mapping[str, type], configuration: str | None) -> list[Row]:
    """Rows of a split through the `datasets` library: a folder of its own or of the hub's layout, or a hub id."""
    import datasets as hugging_face  # slow to import, and not needed for built-in domains

    folder = Path(name)
    if not folder.is_dir() and name.count("/") != 1:
        expected = "a folder or a hub id such as 'user/name'"
        raise DataError(f"dataset: expected {expected}, got {name!r} (planning problems are built in as blocksworld)")
    is_saved = (folder / "dataset_dict.json").exists()
    if is_saved and configuration is not None:
        raise DataError(f"dataset_config: expected none for the saved data set {name}, got {configuration!r}")
    try:
        if is_saved:
            table = hugging_face.load_from_disk(name)[split]
        else:
            table = hugging_face.load_dataset(name, configuration, split=split)
    except Exception as error:  # whatever the many readers and the hub raise
        if "Config name is missing" in str(error):
            names = hugging_face.get_dataset_config_names(name)
            raise DataError(f"dataset_config: expected one of {', '.join(names)} for {name}, got none") from error
        reason = str(error).strip().split("\n")[0]
        there = "" if folder.is_dir() else "there is no such folder (`python -m jaxppo.planning build` makes one), and "
        got = f"{there}{type(error).__name__}: {reason}" + (f"; {hub_fix()}" if there else "")
        raise DataError(f"dataset: expected a split {split!r} in {name}, got {got}") from error
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
    if needs_time_stamps(row["domain_pddl"], row["problem_pddl"]):
        got = "durative actions, events or timed facts"
        raise DataError(f"{where}, domain_pddl: expected plans that are lists of actions, got {got}")
    column = "domain_pddl"
    try:
        # Without a name of their own the parsed texts are shared between rows, and with the validator later.
        domain = parse_domain(row["domain_pddl"])
        column = "problem_pddl"
        parse_problem(row["problem_pddl"], domain)
    except PddlError as error:
        # The sentences of `nl` are read with the domain's own actions.
        val_can_judge = validator != "builtin" and find_val() is not None and row["prompt_style"] != "nl"
        if not (isinstance(error, UnsupportedPddlError) and val_can_judge):
            raise PddlError(f"{where}, {column}", error.line, error.message) from None


def _reference_actions(value: list[Any], where: str) -> list[Any]:
    if all(isinstance(entry, str | list) for entry in value):
        return [action for plan in datasets.reference_plans(value) for action in plan]
    raise DataError(f"{where}, reference_plan: expected '(action args)' strings or lists of them, got {value!r:.60}")


def _built_in_split(config: DataConfig, split: str) -> list[Row]:
    request = built_in_request(config, split)
    if request == _shipped_requests().get(split):
        return dataset_files.read_split(SHIPPED_DATA, split)
    path = cache_dir() / "datasets" / f"blocksworld-{split}-{_digest(request)}.jsonl"
    if not path.exists():
        dataset_files.write_jsonl(build_request(request), path)
    return dataset_files.read_jsonl(path)


def built_in_request(config: DataConfig, split: str) -> dict[str, Any]:
    """What decides the rows of a split of the built-in data set, as JSON keeps it."""
    return {
        "split": split,
        "sizes": getattr(config, f"{split}_sizes"),
        "seed": config.data_seed,
        "prompt_style": config.prompt_style,
        "unique": split != "train",
    }


def build_request(request: Mapping[str, Any]) -> list[Row]:
    """The rows that a request is about, drawn and solved now."""
    return datasets.build_split(**{**request, "sizes": parse_sizes(request["sizes"])})


@cache
def _shipped_requests() -> dict[str, dict[str, Any]]:
    """Split to the request whose rows are shipped: those of the default run."""
    return json.loads((SHIPPED_DATA / REQUESTS_FILE).read_text(encoding="utf-8"))


def _digest(request: dict[str, Any]) -> str:
    """Name of a cached split: changes with the request and with the code that builds it."""
    folder = Path(planning.__file__).parent
    sources = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    code = b"".join(path.read_bytes() for path in sources)
    text = json.dumps(request, sort_keys=True).encode()
    return hashlib.sha256(text + code).hexdigest()[:16]


def words_of_dataset(config: DataConfig) -> list[str]:
    """The words that a fresh word-level tokenizer needs for a data set.

    They are those of all problems of the built-in domain; those of the list in `vocabulary.json` of a folder that has
    one; else those of the rows of `train_split` and `eval_splits`.

    Raises:
        DataError: the file is no list of words, or a row is malformed.
    """
    if config.dataset == "blocksworld":
        return prompts.vocabulary([blocksworld.DOMAIN_PDDL], blocksworld.NAMES, config.prompt_style)
    path = Path(config.dataset) / dataset_files.VOCABULARY_FILE
    if path.is_file():
        return _read_words(path)
    splits = dict.fromkeys((config.train_split, *config.eval_splits))
    rows = [row for split in splits for row in load_split(config, split, None)]
    return prompts.words_of(row[column] for row in rows for column in ("prompt", "completion") if row.get(column))


def _read_words(path: Path) -> list[str]:
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected a JSON list of words, got: {error}") from error
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise DataError(f"{path}: expected a JSON list of words, got {words!r:.60}")
    return words


def word_tokenizer(words: Sequence[str] | None = None) -> Any:
    """A fast word-level tokenizer: one token per word; a mark of `prompts.PUNCTUATION` is a word of its own.

    Args:
        words: the vocabulary, in any order; default: that of the built-in domain.

    Returns:
        `PreTrainedTokenizerFast` with pad token `<pad>`, end token `<eos>`, padding on the left.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = sorted({*prompts.SPECIAL_WORDS, *(words_of_dataset(DataConfig()) if words is None else words)})
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}))
    at_blanks = pre_tokenizers.WhitespaceSplit()
    at_marks = pre_tokenizers.Split(Regex(f"[{prompts.PUNCTUATION}]"), "isolated")
    # The style `atoms` has blanks around its only mark, `;`.
    has_marks = not set(prompts.PUNCTUATION).isdisjoint(set(vocabulary) - {";"})
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([at_blanks, at_marks]) if has_marks else at_blanks
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", padding_side="left", model_max_length=2048
    )


def fingerprint(rows: Sequence[Row]) -> str:
    """A short name of rows by their number and prompts, to compare what two processes have read."""
    return f"{len(rows)} rows {zlib.crc32(json.dumps([row['prompt'] for row in rows]).encode()):08x}"


def encode_prompts(
    tokenizer: Any,
    rows: Sequence[Row],
    max_length: int,
    cut_to: Sequence[int] | None = None,
    turns: Turns | None = None,
) -> list[list[int]]:
    """Token ids of every row's prompt, of its first `cut_to` tokens where that is given.

    Args:
        tokenizer: of the model.
        rows: with `prompt`.
        max_length: most tokens of a prompt.
        cut_to: numbers of tokens.
        turns: how prompts stand in front of the model; default: as they are.

    Raises:
        DataError: a prompt is empty, longer than `max_length` tokens, or has a word that the tokenizer does not know;
            the message names the row.
    """
    texts = [row["prompt"] if turns is None else turns.prompt_text(row["prompt"]) for row in rows]
    encoded = _encode(tokenizer, rows, texts, "prompt")
    if cut_to is not None:
        encoded = [ids[:length] for ids, length in zip(encoded, cut_to, strict=True)]
    for row, ids in zip(rows, encoded, strict=True):
        if not 0 < len(ids) <= max_length:
            expected = f"1 to max_prompt_length={max_length} tokens"
            fix = "; a larger max_prompt_length may help" if ids else ""
            raise DataError(f"prompt of row {row['id']}: expected {expected}, got {len(ids)}{fix}")
    return encoded


def without_overlong(tokenizer: Any, rows: Sequence[Row], config: DataConfig, turns: Turns) -> list[Row]:
    """The rows that `encode_prompts` takes, where `filter_overlong_prompts` is set; otherwise all.

    Raises:
        DataError: there is none.
    """
    if not config.filter_overlong_prompts or config.text_lengths is not None:
        return list(rows)
    encoded = _encode(tokenizer, rows, [turns.prompt_text(row["prompt"]) for row in rows], "prompt")
    kept = [row for row, ids in zip(rows, encoded, strict=True) if len(ids) <= config.max_prompt_length]
    if not kept:
        raise DataError(
            f"max_prompt_length: expected a prompt of at most {config.max_prompt_length} tokens, got {len(rows)} "
            f"longer ones, the shortest with {min(map(len, encoded))}"
        )
    return kept


def tell_left_out(tell: Callable[[str], None], config: DataConfig, counts: Mapping[str, int]) -> None:
    """Says how many rows of which split `without_overlong` has left out, where there are any."""
    for split, count in counts.items():
        if count:
            tell(f"{count} rows of split {split} left out: prompts longer than {config.max_prompt_length} tokens")


def cut_prompts(
    tokenizer: Any, rows: Sequence[Row], max_length: int, text_lengths: tuple[int, int], seed: int
) -> tuple[list[Row], list[list[int]]]:
    """Rows whose prompt is the beginning of the one given, and its token ids.

    Args:
        tokenizer: of the model.
        rows: with `prompt`.
        max_length: most tokens of a prompt.
        text_lengths: range of the lengths in tokens, both ends included.
        seed: of the lengths.

    Raises:
        DataError: as for `encode_prompts`.
    """
    lengths = np.random.default_rng((seed, len(rows))).integers(*text_lengths, len(rows), endpoint=True)
    encoded = encode_prompts(tokenizer, rows, max_length, lengths.tolist())
    return [row | {"prompt": tokenizer.decode(ids)} for row, ids in zip(rows, encoded, strict=True)], encoded


def _encode(tokenizer: Any, rows: Sequence[Row], texts: Sequence[str], column: str) -> list[list[int]]:
    try:
        return tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    except Exception as error:  # tokenizers raises plain Exception for a word that a word-level vocabulary lacks
        for row, text in zip(rows, texts, strict=True):
            for word in _unknown_words(tokenizer, text):
                expected = "words that the model's tokenizer knows"
                fix = "use another model, or train one on this data with `python -m jaxppo.sft`"
                raise DataError(f"{column} of row {row['id']}: expected {expected}, got {word!r}; {fix}") from error
        raise DataError(f"{column}: expected text that the model's tokenizer can encode, got: {error}") from error


def _unknown_words(tokenizer: Any, text: str) -> Iterator[str]:
    known, splitter = tokenizer.get_vocab(), tokenizer.backend_tokenizer.pre_tokenizer
    words = [] if splitter is None else splitter.pre_tokenize_str(text)
    return (word for word, _ in words if word not in known)


def pad_left(encoded: Sequence[Sequence[int]], length: int, pad_id: int) -> PromptBatch:
    """Prompts of different lengths as [B, length] arrays whose last column holds every prompt's last token."""
    ids = np.full((len(encoded), length), pad_id, np.int32)
    mask = np.zeros((len(encoded), length), bool)
    for i, row in enumerate(encoded):
        ids[i, length - len(row) :] = row
        mask[i, length - len(row) :] = True
    return PromptBatch(ids, mask)  # type: ignore[arg-type]


def column_names(rows: Sequence[Row]) -> list[str]:
    """The keys that are columns for reward functions: all that a row has.

    Not among them, as in TRL: the prompt, which functions get as `prompts`, and the data's own completion, which is
    easily taken for the model's.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in ("prompt", "completion")]


def columns_of(rows: Sequence[Row], names: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Rows as columns, the form in which reward functions get them; a key missing in a row is None there.

    Args:
        rows: some rows of a data set.
        names: `column_names` of all of them, so that no batch lacks a column; default: of these rows.
    """
    return {name: [row.get(name) for row in rows] for name in (column_names(rows) if names is None else names)}


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
        turns: how prompts stand in front of the model; default: as they are.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        tokenizer: Any,
        batch_size: int,
        seed: int,
        max_prompt_length: int,
        text_lengths: tuple[int, int] | None = None,
        turns: Turns | None = None,
    ):
        if not rows:
            raise DataError("train_split: expected at least one row, got none")
        self.rows, self.seed, self.batch_size = rows, seed, batch_size
        if text_lengths is None:
            self._encoded = encode_prompts(tokenizer, rows, max_prompt_length, turns=turns)
        else:
            self.rows, self._encoded = cut_prompts(tokenizer, rows, max_prompt_length, text_lengths, seed)
        self._pad_id, self._columns = tokenizer.pad_token_id, column_names(self.rows)
        self.lengths = [len(ids) for ids in self._encoded]
        self.longest = max(self.lengths)
        self.prompt_length = bucket(self.longest)

    def batch(self, step: int) -> Batch:
        """The batch of update `step` (0-based)."""
        order = row_order(len(self.rows), self.seed, step * self.batch_size, self.batch_size)
        rows, encoded = [self.rows[i] for i in order], [self._encoded[i] for i in order]
        prompts = pad_left(encoded, self.prompt_length, self._pad_id)
        return Batch(
            prompts, [row["prompt"] for row in rows], columns_of(rows, self._columns) | {"prompt_ids": encoded}
        )


def encode_completions(tokenizer: Any, rows: Sequence[Row], turns: Turns | None = None) -> list[list[int]]:
    """Token ids of every row's completion, with the token that ends it."""
    turns = Turns(tokenizer, False, None, "", tokenizer.eos_token_id) if turns is None else turns
    texts = [turns.completion_text(row["completion"]) for row in rows]
    return [[*ids, turns.end_id] for ids in _encode(tokenizer, rows, texts, "completion")]


class SupervisedData:
    """Prompts with their reference completions, packed and right-padded; ordered as `PromptData`.

    A batch is no longer than the bucket of its longest row.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        tokenizer: Any,
        batch_size: int,
        seed: int,
        max_prompt_length: int,
        turns: Turns | None = None,
    ):
        if not rows:
            raise DataError("train_split: expected at least one row, got none")
        self.seed, self.batch_size, self._pad_id = seed, batch_size, tokenizer.pad_token_id
        self._prompts = encode_prompts(tokenizer, rows, max_prompt_length, turns=turns)
        self._completions = encode_completions(tokenizer, rows, turns)
        self._lengths = [len(p) + len(c) for p, c in zip(self._prompts, self._completions, strict=True)]
        self.longest = max(self._lengths)
        self.length, self.completion_length = bucket(self.longest), bucket(max(map(len, self._completions)))

    def batch(self, step: int) -> Sequences:
        """The sequences of step `step` (0-based), numpy arrays."""
        order = row_order(len(self._prompts), self.seed, step * self.batch_size, self.batch_size)
        length = min(bucket(max(self._lengths[i] for i in order), SEQUENCE_BUCKET), self.length)
        ids = np.full((self.batch_size, length), self._pad_id, np.int32)
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


def decode(tokenizer: Any, ids: np.ndarray, mask: np.ndarray, end_id: int | None = None) -> list[str]:
    """Text of each completion without the token that ends it: [B, C] ids and mask -> B strings.

    Any other special token stays in the text: left out, it would be junk that a plan may hold for nothing.

    Args:
        tokenizer: of the model.
        ids: of the completions.
        mask: True where there is a token.
        end_id: what ends a completion; default: the end of sequence.
    """
    end_id = tokenizer.eos_token_id if end_id is None else end_id
    rows = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    bodies = [row[:-1] if row and row[-1] == end_id else row for row in rows]
    words = [[_visible(tokenizer, i) for i in row] for row in bodies]
    return [tokenizer.convert_tokens_to_string(row) if row else "" for row in words]


def _visible(tokenizer: Any, token_id: int) -> str:
    """The token, or `<id>` for one of a padded vocabulary that the tokenizer does not know."""
    return tokenizer.convert_ids_to_tokens(token_id) if token_id < len(tokenizer) else f"<{token_id}>"
