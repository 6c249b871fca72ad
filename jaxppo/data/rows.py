"""Rows of data sets: read from a folder, a toy, the hub or the built-in domain, and checked."""

import dataclasses
import gc
import json
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxppo.config import DEFAULT_EVAL_SPLITS, DataConfig
from jaxppo.data.builtin import GeneratedSplit, builtin_split
from jaxppo.data.chats import ANSWER, Row, plain_row
from jaxppo.data.dataset_source import find_dataset, has_split, library_table
from jaxppo.data.stream import stream_split
from jaxppo.errors import DataError, MissingColumnError, PddlError
from jaxppo.parallel import processes
from jaxppo.planning import find_val, needs_time_stamps, parse_action, prompts
from jaxppo.planning.datasets import files as dataset_files
from jaxppo.planning.datasets import rows as datasets
from jaxppo.planning.datasets.renamed_rows import numbered_row
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.run import activity
from jaxppo.run.jsonl import to_plain_json

# Columns of rows that are not planning problems.
PROMPT_ONLY: Mapping[str, type] = {"prompt": str}
# Columns by one of which a row shows that it is meant as a planning problem.
_PLANNING_COLUMNS = {"domain_pddl", "problem_pddl", "reference_plan"}

# --- splits


def load_split(
    config: DataConfig,
    split: str,
    validator: str | None = "builtin",
    columns: Mapping[str, type] = PROMPT_ONLY,
) -> list[Row]:
    """Return the rows of one split: generated and cached where it is built in or a stream, else read from the data set.

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
    generated = generated_split(config, split)
    if generated is not None:
        with activity.show(f"reading split {split}"):
            rows = generated.read()
        # A stream has numbered its rows already.
        if config.numbers_objects and config.stream_domains is None:
            rows = [_with_numbered_objects(row, config.data_seed) for row in rows]
        return rows
    # A chat in `messages` has its prompt in `prompt` once it is converted.
    prompt_column = "prompt" if config.prompt_column == "messages" else config.prompt_column
    if validator is not None:
        columns = datasets.COLUMNS
    else:
        names = {"prompt": prompt_column}
        columns = {names.get(name, name): kind for name, kind in columns.items()}

    def convert(row: Row, location: str) -> Row:
        if validator is not None:
            return plain_row(row, location)
        return _with_json_id(plain_row(row, location, prompt_column), location)

    # Columns are checked as rows are read, before the slow
    # checks of their PDDL: the first bad file is named at once.
    try:
        with paused_collection(), activity.show(f"reading split {split}"):
            source_rows = read_rows(config.dataset, split, columns, config.dataset_config, convert)
    except MissingColumnError as error:
        raise error.with_fix(_advice_on_columns(columns, validator)) from None
    rows = []
    for number, row in enumerate(activity.track("checking", source_rows)):
        if validator is not None:
            check_row(row, f"{config.dataset}, split {split}, row {row['id']}", validator)
        else:
            prompt = row[prompt_column]
            if len(prompt) < config.min_prompt_characters:
                continue
            # Metrics and pages name rows by their ids, which texts of others seldom have.
            row = {"id": f"{split}-{number}"} | row | {"prompt": prompt}
        if config.numbers_objects:
            row = _with_numbered_objects(row, config.data_seed)
        rows.append(row)
    if not rows:
        raise DataError(
            f"min_prompt_characters: expected a row of split {split} with at least {config.min_prompt_characters}, "
            f"got none of {len(source_rows)}"
        )
    return rows


def generated_split(config: DataConfig, split: str) -> GeneratedSplit | None:
    """Return a split of the built-in data set or of a stream; None for data that are read.

    Raises:
        ConfigError, DataError: there is no such split.
    """
    if config.dataset == "blocksworld":
        return builtin_split(config, split)
    if config.stream_domains is not None:
        return stream_split(config, split)
    return None


def missing_splits(config: DataConfig, splits: Sequence[str]) -> list[str]:
    """List those of the splits that a data set does not have; none where it is generated, or cannot be looked into."""
    if config.is_generated:
        return []
    return [
        split for split in splits if not has_split(config.dataset, split, config.dataset_config)
    ]


def without_missing_splits(
    config: DataConfig,
    default: tuple[str, ...] = DEFAULT_EVAL_SPLITS,
    *,
    needs_one: bool = False,
) -> tuple[DataConfig, str | None]:
    """Leave out evaluation splits of the default that a data set does not have; those that were named stay.

    Args:
        config: which data set and splits.
        default: what its splits are where none were named.
        needs_one: whether the command cannot do without an evaluation.

    Returns:
        The settings, and a line that says what is left out; None where nothing is.

    Raises:
        DataError: one is needed, and none of the default is there.
    """
    # By identity: who names the splits of the default wants all of them.
    missing = missing_splits(config, default) if config.eval_splits is default else []
    if not missing:
        return config, None
    remaining = tuple(split for split in default if split not in missing)
    if needs_one and not remaining:
        raise DataError(
            f"eval_splits: expected a split of {config.dataset} to evaluate on, got none of the default "
            f"{', '.join(default)}; --eval_splits names others"
        )
    nothing = "" if remaining else ", so nothing is evaluated"
    line = (
        f"eval_splits: {', '.join(missing)} left out, which {config.dataset} does not have{nothing}; --eval_splits "
        "names others"
    )
    return dataclasses.replace(config, eval_splits=remaining), line


def check_splits(config: DataConfig, splits: Sequence[str]) -> None:
    """Raise a `DataError` for a split that a data set does not have, without reading those that it has."""
    for split in missing_splits(config, splits):
        # Its reader says what there is instead.
        read_rows(config.dataset, split, PROMPT_ONLY, config.dataset_config)


def holds_problems(config: DataConfig, split: str) -> bool:
    """Return whether the first row of a split is meant as a planning problem; True where it cannot be read."""
    if config.is_generated:
        return True
    try:
        name, is_read_here = find_dataset(config.dataset, split, config.dataset_config)
        if is_read_here:
            path = dataset_files.files_of_split(Path(name), split)[0]
            row, _ = next(dataset_files.rows_of_file(path))
        else:
            row = library_table(name, split, config.dataset_config)[0]
    # No file, no row, or one that cannot be read: the reader of the whole split says so.
    except (DataError, IndexError, StopIteration):
        return True
    return not _PLANNING_COLUMNS.isdisjoint(row)


def make_splits(config: DataConfig, splits: Sequence[str]) -> None:
    """Generate those splits that are generated and not cached yet: what is wrong with any of them is said at once.

    Raises:
        DataError: there are fewer problems than asked for; all such splits are named.
    """
    shortages = []
    for split in dict.fromkeys(splits):
        generated = generated_split(config, split)
        if generated is None:
            continue
        try:
            with activity.show(f"making split {split}"):
                generated.folder()
        except datasets.TooFewProblemsError as error:
            shortages.append(str(error))
    if shortages:
        raise DataError("; ".join(shortages))


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
        located_rows = (
            (row, f"{name}, split {split}, row {number}")
            for number, row in enumerate(library_table(name, split, configuration))
        )
        rows = dataset_files.checked_rows(located_rows, columns, convert)
    if not rows:
        raise DataError(f"{dataset}, split {split}: expected at least one row, got none")
    return rows


@contextmanager
def paused_collection() -> Iterator[None]:
    """Keep Python from searching for garbage in cycles while many objects are made that are no garbage.

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


# --- one row


def _advice_on_columns(columns: Mapping[str, type], validator: str | None) -> str:
    """Say what helps where a row lacks one of the columns."""
    if validator is not None:
        return "rows that are not planning problems need --reward_funcs module:function in place of plan"
    if "completion" in columns:
        return (
            "rows to learn from have prompt and completion, or messages that end with the assistant's turn: rename the "
            "columns"
        )
    return "--prompt_column names another, and messages may hold a chat"


def _with_json_id(row: Row, location: str) -> Row:
    """Return a row with its id as the files and pages of a run hold it; without one where it is empty."""
    # Tables have ids that JSON cannot hold, such as dates.
    row_id = to_plain_json(row.get("id"))
    if row_id is None:
        return {column: value for column, value in row.items() if column != "id"}
    if not isinstance(row_id, str | int | float):
        raise DataError(
            f"{location}: field 'id': expected a text, a number, a date, bytes or a UUID, got {row['id']!r:.60}"
        )
    return row | {"id": row_id}


def _with_numbered_objects(row: Row, seed: int) -> Row:
    """Return a planning row with its objects numbered, further columns as they are."""
    require_problem(row, "number_objects")
    return row | numbered_row(row, random.Random(f"{seed}/{row['id']}"))


def require_problem(row: Row, setting: str) -> None:
    """Raise a `DataError` that names the setting, unless the row is a planning problem as the generators write it."""
    if not datasets.COLUMNS.keys() <= row.keys() or "messages" in row:
        raise DataError(
            f"{setting}: expected planning problems, got row {row['id']} with columns {', '.join(row)}"
        )


def check_row(row: Row, location: str, validator: str) -> None:
    """Check everything that the reward will read in a row, so that bad data stop a run before it starts.

    Raises:
        DataError: the prompt style or an action of the reference plan.
        PddlError: with the row, the column and the line within its text; also for PDDL that the built-in validator
            does not cover, unless VAL judges and is installed.
    """
    style = prompts.PROMPT_STYLES.get(row["prompt_style"])
    if style is None:
        raise DataError(
            f"{location}, prompt_style: expected one of {', '.join(prompts.PROMPT_STYLES)}, got {row['prompt_style']!r}"
        )
    _check_reference_plan(row["reference_plan"], f"{location}, reference_plan")
    if needs_time_stamps(row["domain_pddl"], row["problem_pddl"]):
        raise DataError(
            f"{location}, domain_pddl: expected plans that are lists of actions, got durative actions, events or timed "
            "facts"
        )
    column = "domain_pddl"
    try:
        # Without a name of their own the parsed texts are
        # shared between rows, and with the validator later.
        domain = parse_domain(row["domain_pddl"])
        column = "problem_pddl"
        parse_problem(row["problem_pddl"], domain)
    except PddlError as error:
        # VAL covers more of PDDL, but a style that reads the domain needs our parser all the same.
        val_judges = validator != "builtin" and find_val() is not None and not style.reads_domain
        if not val_judges or not isinstance(error, UnsupportedPddlError):
            raise PddlError(f"{location}, {column}", error.line, error.message) from None


def _check_reference_plan(value: list[Any], location: str) -> None:
    """Check one plan, a list of actions, or several."""
    plans = value if value and isinstance(value[0], list) else [value]
    for plan in plans:
        if not isinstance(plan, list) or not all(isinstance(action, str) for action in plan):
            raise DataError(
                f"{location}: expected '(action args)' strings or lists of them, got {value!r:.60}"
            )
        for action in plan:
            try:
                parse_action(action)
            except (TypeError, ValueError):
                raise DataError(f"{location}: expected '(action args)', got {action!r}") from None


# --- all rows


def check_same(dataset: str, split: str, rows: Sequence[Row]) -> None:
    """Raise a `ConfigError` on every process unless all have read the same rows; all of them must call this."""
    if not processes.is_alone():
        processes.check_same({f"{dataset}, split {split}": _fingerprint(rows)})


def _fingerprint(rows: Sequence[Row]) -> str:
    """Return a short digest of rows with all of their columns."""
    # A checksum is enough: it guards against other files on another machine, not against an attack.
    digest = 0
    for row in rows:
        digest = zlib.crc32(json.dumps(row, sort_keys=True, default=str).encode(), digest)
    return f"{len(rows)} rows {digest:08x}"


def column_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of the columns for reward functions: all keys of the rows.

    As in TRL without the prompt, which functions get as `prompts`, and without the completion of the data, which is
    easily mistaken for the model's.
    """
    names: dict[str, None] = {}  # in the order of their first rows, which a set would lose
    for row in rows:
        names |= dict.fromkeys(row)
    return [name for name in names if name not in ("prompt", "completion", ANSWER)]


def columns_of(rows: Sequence[Row], names: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Return rows as columns, as reward functions get them; a key missing in a row is None there.

    Args:
        rows: some rows of a data set.
        names: `column_names` of all of them, so that no batch lacks a column; default: of these rows.
    """
    if names is None:
        names = column_names(rows)
    return {name: [row.get(name) for row in rows] for name in names}
