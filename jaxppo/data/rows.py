"""Rows of data sets: read from a folder, a toy, the hub or the built-in domain, and checked."""

import gc
import json
import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxppo import toys
from jaxppo.config import DataConfig
from jaxppo.data.builtin import Drawn, built_in
from jaxppo.data.chats import ANSWER, plain_row
from jaxppo.data.stream import drawn_stream
from jaxppo.errors import DataError, MissingColumnError, PddlError, hub_fix
from jaxppo.parallel import processes
from jaxppo.planning import find_val, needs_time_stamps, parse_action, prompts
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.planning.datasets.renamed_rows import numbered_row
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.run import activity
from jaxppo.run.jsonl import plain

Row = dict[str, Any]

PROMPT_ONLY: Mapping[str, type] = {"prompt": str}
"""Columns of rows that are not planning problems."""


def load_split(
    config: DataConfig, split: str, validator: str | None = "builtin", columns: Mapping[str, type] = PROMPT_ONLY
) -> list[Row]:
    """Return the rows of one split: built and cached where it is built in or a stream, else read from the data set.

    Every row has a text as `prompt`, and those that are chats have `messages`: see `chats.plain_row`.

    Args:
        config: which data set.
        split: name of the split.
        validator: judges the plans for these rows; `builtin` covers less of PDDL than VAL. None: plans are not judged,
            and rows need no more than `columns`.
        columns: what rows without plans have.

    Raises:
        DataError: the data set or the split is missing, or a row is malformed.
        PddlError: the PDDL of a row has a syntax error, or is beyond the validator.
    """
    if (drawn := drawn_split(config, split)) is not None:
        with activity.shown(f"reading split {split}"):
            rows = drawn.read()
        # A stream has numbered its rows already.
        numbered = config.numbers_objects and config.stream_domains is None
        return [_numbered(row, config.data_seed) for row in rows] if numbered else rows
    reader = RowReader(config, split, validator, columns)
    with reader.naming_the_fix(), paused_collection(), activity.shown(f"reading split {split}"):
        rows = read_rows(config.dataset, split, reader.columns, config.dataset_config, reader.convert)
    finished = [reader.finish(row, number) for number, row in enumerate(activity.counted("checking", rows))]
    kept = [row for row in finished if row is not None]
    if not kept:
        raise DataError(
            f"min_prompt_characters: expected a row of split {split} with at least {config.min_prompt_characters}, "
            f"got none of {len(rows)}"
        )
    return kept


@contextmanager
def paused_collection() -> Iterator[None]:
    """Keep Python from looking for garbage in cycles while many objects are made that are none.

    Each of its full searches goes through all objects of the process; they took a seventh of the time of reading and
    tokenizing 32,000 chats.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class RowReader:
    """Makes rows of what was read from a data set: checked problems or, where plans are not judged, texts and chats.

    Args:
        config: which data set.
        split: name of the split.
        validator: see `load_split`.
        columns: see `load_split`.

    Attributes:
        columns: which every row must have after `convert`.
    """

    def __init__(
        self,
        config: DataConfig,
        split: str,
        validator: str | None = "builtin",
        columns: Mapping[str, type] = PROMPT_ONLY,
    ):
        self._config, self._split, self._validator = config, split, validator
        self._prompt = "prompt" if config.prompt_column == "messages" else config.prompt_column
        named = {self._prompt if column == "prompt" else column: kind for column, kind in columns.items()}
        self.columns = named if validator is None else datasets.COLUMNS

    def __call__(self, row: Row, where: str, number: int | str) -> Row | None:
        """Return a row as `load_split` does; None for one that is left out.

        Args:
            row: as it was read.
            where: names it in errors.
            number: of the row, for one without an id.

        Raises:
            DataError, PddlError: as for `load_split`.
        """
        with self.naming_the_fix():
            row = datasets.checked_row(self.convert(row, where), where, self.columns)
        return self.finish(row, number)

    def convert(self, row: Row, where: str) -> Row:
        """Return a row with its turns read, before its columns are checked."""
        return plain_row(row, where) if self._validator is not None else _text_row(row, where, self._prompt)

    def finish(self, row: Row, number: int | str) -> Row | None:
        """Return a row whose columns are checked as it is used; None for one whose prompt is too short."""
        config = self._config
        if self._validator is not None:
            check_row(row, f"{config.dataset}, split {self._split}, row {row['id']}", self._validator)
        elif len(row[self._prompt]) < config.min_prompt_characters:
            return None
        else:
            row = {"id": f"{self._split}-{number}"} | row | {"prompt": row[self._prompt]}
        return _numbered(row, config.data_seed) if config.numbers_objects else row

    @contextmanager
    def naming_the_fix(self) -> Iterator[None]:
        """Say what helps where a column is missing."""
        try:
            yield
        except MissingColumnError as error:
            if self._validator is None:
                raise error.with_fix("--prompt_column names another, and messages may hold a chat") from None
            fix = "rows that are not planning problems need --reward_funcs module:function in place of plan"
            raise error.with_fix(fix) from None


def _numbered(row: Row, seed: int) -> Row:
    """Return a planning row with its objects numbered, further columns as they are."""
    require_problem(row, "number_objects")
    return row | numbered_row(row, random.Random(f"{seed}/{row['id']}"))


def require_problem(row: Row, setting: str) -> None:
    """Raise a `DataError` that names the setting, unless the row is a planning problem as the generators write it."""
    if not datasets.COLUMNS.keys() <= row.keys() or "messages" in row:
        raise DataError(f"{setting}: expected planning problems, got row {row['id']} with columns {', '.join(row)}")


def drawn_split(config: DataConfig, split: str) -> Drawn | None:
    """Return a split of the built-in data set or of a stream; None for data that are read.

    Raises:
        ConfigError, DataError: there is no such split.
    """
    if config.dataset == "blocksworld":
        return built_in(config, split)
    return None if config.stream_domains is None else drawn_stream(config, split)


def make_splits(config: DataConfig, splits: Sequence[str]) -> None:
    """Make those splits that are drawn, where they are not kept yet: what is wrong with any of them is said at once.

    Raises:
        DataError: there are fewer problems than asked for; all such splits are named.
    """
    shortages = []
    for split in dict.fromkeys(splits):
        drawn = drawn_split(config, split)
        if drawn is None:
            continue
        try:
            with activity.shown(f"making split {split}"):
                drawn.make_ready()
        except datasets.TooFewProblemsError as error:
            shortages.append(str(error))
    if shortages:
        raise DataError("; ".join(shortages))


def _text_row(row: Row, where: str, prompt_column: str) -> Row:
    """Read turns of a row, and write its id as the files and pages of a run hold it."""
    row = plain_row(row, where, prompt_column)
    name = plain(row.get("id"))
    if name is None:
        return {column: value for column, value in row.items() if column != "id"}
    if not isinstance(name, str | int | float):
        expected = "a text, a number, a date, bytes or a UUID"
        raise DataError(f"{where}: field 'id': expected {expected}, got {row['id']!r:.60}")
    return row | {"id": name}


def read_rows(
    dataset: str,
    split: str,
    columns: Mapping[str, type],
    configuration: str | None = None,
    convert: dataset_files.Convert | None = None,
) -> list[Row]:
    """Read the rows of `<dataset>/<split>.jsonl`, `.parquet`, `.json` or `.csv`, or of what `datasets` reads.

    Args:
        dataset: a folder, a toy or a hub id.
        split: name of the split.
        columns: which every row must have, with their types.
        configuration: which of several data sets of one hub repository; always read by the `datasets` library.
        convert: changes a row before its columns are checked.

    Raises:
        DataError: the data set or the split is missing or empty, or a row is malformed.
    """
    name, is_read_here = find_dataset(dataset, split, configuration)
    if is_read_here:
        rows = dataset_files.read_split(name, split, columns, convert)
    else:
        table = hugging_face_table(name, split, configuration)
        named = [(row, f"{name}, split {split}, row {i}") for i, row in enumerate(table)]
        rows = [datasets.checked_row(row if convert is None else convert(row, at), at, columns) for row, at in named]
    if not rows:
        raise DataError(f"{dataset}, split {split}: expected at least one row, got none")
    return rows


def find_dataset(dataset: str, split: str, configuration: str | None) -> tuple[str, bool]:
    """Return the folder of a data set, or its hub id, and whether this package reads its files by itself.

    Raises:
        DataError: it is a file, or has no splits.
    """
    folder = toys.find(dataset) or Path(dataset)
    if folder.is_file():
        endings = ", ".join(dataset_files.SPLIT_ENDINGS)
        fix = f"give its folder, and the split {folder.stem} (files that end in {endings} are read)"
        raise DataError(f"dataset: expected a folder with one file per split, got the file {folder}; {fix}")
    if (folder / "state.json").exists():
        fix = "save DatasetDict({'train': ...}), which has splits"
        raise DataError(f"dataset: expected splits, got one `datasets.Dataset` without a name in {folder}; {fix}")
    is_read_here = folder.is_dir() and configuration is None and not _is_hugging_faces(folder, split)
    return str(folder) if folder.is_dir() else dataset, is_read_here


def _is_hugging_faces(folder: Path, split: str) -> bool:
    """Return whether `save_to_disk` wrote a folder, or it is laid out as on the hub: a card, or numbered parts."""
    if (folder / "dataset_dict.json").exists():
        return True
    if any((folder / f"{split}{ending}").exists() for ending in (".jsonl", ".parquet")):
        return False
    card = folder / "README.md"
    if card.is_file() and re.match(r"---\n(.*\n)*?configs:", card.read_text(encoding="utf-8", errors="replace")):
        return True
    part = "-?????-of-?????.parquet"
    hubs = (f"*{part}", f"*/*{part}", *(f"data/{split}{ending}" for ending in dataset_files.SPLIT_ENDINGS))
    return any(path for pattern in hubs for path in folder.glob(pattern))


def hugging_face_table(name: str, split: str, configuration: str | None, *, streaming: bool = False) -> Any:
    """Return a split as the `datasets` library has it: a folder in its format or in the hub's layout, or a hub id.

    Args:
        name: folder or hub id.
        split: name of the split.
        configuration: which of several data sets of one hub repository.
        streaming: as an `IterableDataset`, which reads rows when they are asked for.

    Raises:
        DataError: it cannot be opened.
    """
    import datasets as hugging_face  # slow to import, and not needed for built-in domains

    folder = Path(name)
    if not folder.is_dir() and name.count("/") != 1:
        expected = "a folder or a hub id such as 'user/name'"
        raise DataError(f"dataset: expected {expected}, got {name!r} (planning problems are built in as blocksworld)")
    is_saved = (folder / "dataset_dict.json").exists()
    if is_saved and configuration is not None:
        raise DataError(f"dataset_config: expected none for the saved data set {name}, got {configuration!r}")
    table: Any
    try:
        if is_saved:
            table = hugging_face.load_from_disk(name)[split]
            table = table.to_iterable_dataset(len(table.cache_files)) if streaming else table
        else:
            table = hugging_face.load_dataset(name, configuration, split=split, streaming=streaming)
    except Exception as error:  # whatever the many readers and the hub raise
        if "Config name is missing" in str(error):
            names = hugging_face.get_dataset_config_names(name)
            raise DataError(f"dataset_config: expected one of {', '.join(names)} for {name}, got none") from error
        reason = str(error).strip().split("\n")[0]
        there = "" if folder.is_dir() else "there is no such folder (`python -m jaxppo.planning build` makes one), and "
        got = f"{there}{type(error).__name__}: {reason}" + (f"; {hub_fix()}" if there else "")
        raise DataError(f"dataset: expected a split {split!r} in {name}, got {got}") from error
    return table


def check_row(row: Row, where: str, validator: str) -> None:
    """Check everything that the reward will read in a row, so that bad data stop a run before it starts.

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
        can_read = not prompts.PROMPT_STYLES[row["prompt_style"]].reads_domain
        val_can_judge = validator != "builtin" and find_val() is not None and can_read
        if not (isinstance(error, UnsupportedPddlError) and val_can_judge):
            raise PddlError(f"{where}, {column}", error.line, error.message) from None


def _reference_actions(value: list[Any], where: str) -> list[str]:
    is_one = all(isinstance(entry, str) for entry in value)
    if is_one or all(isinstance(plan, list) and all(isinstance(action, str) for action in plan) for plan in value):
        return [action for plan in datasets.reference_plans(value) for action in plan]
    raise DataError(f"{where}, reference_plan: expected '(action args)' strings or lists of them, got {value!r:.60}")


def check_same(dataset: str, split: str, rows: Sequence[Row]) -> None:
    """Raise a `ConfigError` on every process unless all have read the same rows; all of them must call this."""
    if not processes.is_alone():
        processes.check_same({f"{dataset}, split {split}": _fingerprint(rows)})


def _fingerprint(rows: Sequence[Row]) -> str:
    """Return a short digest of rows with all of their columns."""
    digest = 0
    for row in rows:
        digest = zlib.crc32(json.dumps(row, sort_keys=True, default=str).encode(), digest)
    return f"{len(rows)} rows {digest:08x}"


def column_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of the columns for reward functions: all keys of the rows.

    As in TRL without the prompt, which functions get as `prompts`, and without the completion of the data, which is
    easily mistaken for the model's.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in ("prompt", "completion", ANSWER)]


def columns_of(rows: Sequence[Row], names: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Return rows as columns, as reward functions get them; a key missing in a row is None there.

    Args:
        rows: some rows of a data set.
        names: `column_names` of all of them, so that no batch lacks a column; default: of these rows.
    """
    return {name: [row.get(name) for row in rows] for name in (column_names(rows) if names is None else names)}
