"""The files of a data set: rows as JSON lines or Parquet, and the JSON beside them."""

import codecs
import csv
import itertools
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from jaxppo.config.paths import write_atomically
from jaxppo.config.reading import POINTER, is_pointer, parse_json
from jaxppo.config.sources import CONFIG_FILE
from jaxppo.errors import DataError
from jaxppo.planning.datasets.rows import COLUMNS, SPLIT_PARTITIONS, Row, checked_row

_LOG = logging.getLogger(__name__)

REPORT_FILE = "report.json"
CARD_FILE = "README.md"
REJECTED_FILE = "rejected.jsonl"
VOCABULARY_FILE = "vocabulary.json"
OBFUSCATION_FILE = "obfuscation.json"

Convert = Callable[[Row, str], Row]
"""Changes a row before its columns are checked; the text names the row in errors."""

PAPER_COLUMNS: Mapping[str, type] = {
    "domain": str,
    "instruction": str,
    "input": str,
    "raw_plan": list,
}
"""Those of the paper's ten columns that are used, beside `instance_id`."""
SOURCE_COLUMNS: Mapping[str, type] = {
    name: COLUMNS[name]
    for name in ("id", "domain", "reference_plan", "domain_pddl", "problem_pddl")
}
"""Those of our columns that an import needs; the others are made anew."""

SPLIT_ENDINGS = (".jsonl", ".parquet", ".json", ".csv")
"""Of files that a split is read from; the first one that exists is taken. `build` writes the first; earlier versions
wrote the second beside it."""
# Files that an error names at most.
_MAX_NAMED = 20
# Of a CSV file, in characters; Python's own limit is 131072.
_LARGEST_CELL = 2**31 - 1
# Rows of a Parquet file that become Python objects together.
_BATCH_SIZE = 1000


def ordered_splits(names: Collection[str]) -> list[str]:
    """Put the splits in their usual order, and others after them."""
    usual = [split for split in SPLIT_PARTITIONS if split in names]
    return usual + [split for split in names if split not in SPLIT_PARTITIONS]


def split_files(source: Path) -> list[Path]:
    """List the files of a data set folder that hold rows; a split that has two is taken from its JSON lines.

    A damaged file counts where it is named like a split, so that its reader says what is wrong with it.
    """
    if source.is_file():
        return [source] if source.suffix == ".parquet" or _has_source_columns(source) else []
    jsonl_paths = []
    for path in source.glob("*.jsonl"):
        # The paper's files may be named like splits, too.
        is_split = (
            path.stem in SPLIT_PARTITIONS and not first_row(path).keys() >= PAPER_COLUMNS.keys()
        )
        if is_split or _has_source_columns(path):
            jsonl_paths.append(path)
    stems = {path.stem for path in jsonl_paths}
    return sorted(
        jsonl_paths + [path for path in source.glob("*.parquet") if path.stem not in stems]
    )


def _has_source_columns(path: Path) -> bool:
    return first_row(path).keys() >= SOURCE_COLUMNS.keys()


def written_files(folder: Path) -> list[Path]:
    """List the files of a data set that `write_dataset` has written: its splits, report, card and the other JSON.

    Raises:
        DataError: the folder holds no data set, or one that is not complete.
    """
    report = folder / REPORT_FILE
    content = parse_json(read_text(report)) if report.is_file() else None
    if not isinstance(content, dict) or not isinstance(content.get("splits"), dict):
        raise DataError(
            f"{folder}: expected a data set with {REPORT_FILE}, as build and import write it last"
        )
    names = [CARD_FILE, CONFIG_FILE, REPORT_FILE, REJECTED_FILE, VOCABULARY_FILE, OBFUSCATION_FILE]
    for split in content["splits"]:
        names += [f"{split}.jsonl", f"{split}.parquet"]
    # A name with a slash in it would lead out of the folder: the report may be anybody's.
    return [
        folder / name for name in names if Path(name).name == name and (folder / name).is_file()
    ]


def first_row(path: Path) -> Row:
    """Read the first row of a JSON-lines file; empty where that cannot be read."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            row = parse_json(next((line for line in file if line.strip()), ""))
    except (OSError, UnicodeDecodeError, DataError):
        return {}
    return row if isinstance(row, dict) else {}


def read_mappings(folder: Path) -> Mapping[str, Any]:
    """Read the words of a data set's obfuscations; empty where it has none.

    Raises:
        DataError: the file exists and cannot be read.
    """
    path = folder / OBFUSCATION_FILE
    if not path.exists():
        return {}
    mappings = parse_json(read_text(path))
    if not isinstance(mappings, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(mappings).__name__}")
    return mappings


def read_split(
    folder: Path | str,
    split: str,
    columns: Mapping[str, type] = COLUMNS,
    convert: Convert | None = None,
) -> list[Row]:
    """Read the rows of a split from `<split>.jsonl`, or else from `<split>.parquet`, `.json` or `.csv`.

    JSON is a list of objects or, as in JSON lines, one object a line; CSV has texts alone, None for an empty cell.

    Args:
        folder: of the data set.
        split: its name.
        columns: those that every row must have.
        convert: changes a row before its columns are checked.

    Raises:
        DataError: no file can be read, or a row does not have every one of the columns in the right type.
    """
    path = _split_path(Path(folder), split)
    return checked_rows(rows_of_file(path), columns, convert)


def files_of_split(folder: Path, split: str) -> list[Path]:
    """List the files that a split may be read from; the first one is taken."""
    paths = [folder / f"{split}{ending}" for ending in SPLIT_ENDINGS]
    return [path for path in paths if path.exists()]


def _split_path(folder: Path, split: str) -> Path:
    """Return the file that a split is read from, with a warning where others of its name are not read."""
    existing = files_of_split(folder, split)
    if not existing:
        endings = ", ".join(SPLIT_ENDINGS[1:])
        files = sorted(path.name for path in folder.glob("*"))[:_MAX_NAMED]
        raise DataError(
            f"{folder / split}{SPLIT_ENDINGS[0]}: expected this file, or one that ends in {endings}, got "
            f"{', '.join(files) or 'no files'} in the folder; train_split and eval_splits name them"
        )
    # Parquet beside JSON lines is usual: earlier versions of `build` wrote both.
    unread = [path.name for path in existing[1:] if path.suffix != ".parquet"]
    if unread:
        _LOG.warning(f"dataset: {existing[0]} is read; {', '.join(unread)} beside it is not")
    return existing[0]


def rows_of_file(path: Path) -> Iterator[tuple[Row, str]]:
    """Yield the rows of a file, each with what names it in errors; the form is that of the name's ending.

    Raises:
        DataError: the file, or a row, cannot be read.
    """
    if is_pointer(path):
        raise DataError(f"{path}: expected rows, got {POINTER}")
    # Every reader raises what it finds wrong as a `DataError` that names the file.
    readers = {
        ".jsonl": _jsonl_rows,
        ".parquet": _parquet_rows,
        ".json": _json_rows,
        ".csv": _csv_rows,
    }
    return readers.get(path.suffix, _jsonl_rows)(path)


def is_json_list(path: Path) -> bool:
    """Return whether a JSON file is one list, not one object, or an object a line.

    Raises:
        DataError: the file cannot be read.
    """
    with _opened(path) as file:
        return next((line.lstrip() for line in file if line.strip()), "").startswith("[")


def _json_rows(path: Path) -> Iterator[tuple[Row, str]]:
    if not is_json_list(path):
        yield from _jsonl_rows(path)
        return
    for number, row in enumerate(read_json_list(path), 1):
        location = f"{path}, row {number}"
        yield _object(row, location), location


def read_json_list(path: Path) -> list[Any]:
    """Read a JSON file that is one list.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return parse_json(read_text(path))
    except DataError as error:
        raise DataError(
            f"{path}: expected a list of JSON objects, or one a line, got {error}"
        ) from error


def _csv_rows(path: Path) -> Iterator[tuple[Row, str]]:
    csv.field_size_limit(_LARGEST_CELL)
    with _opened(path) as file:
        reader = csv.DictReader(file, strict=True)
        try:
            names = reader.fieldnames or ()
            if len(set(names)) < len(names):
                raise DataError(f"{path}:1: expected each column once, got {', '.join(names)}")
            for row in reader:
                location = f"{path}:{reader.line_num}"
                # The reader has None for the name of cells that
                # are too many, and for the text of missing ones.
                if None in row or None in row.values():
                    raise DataError(
                        f"{location}: expected {len(names)} cells, as in the first line, got more or fewer"
                    )
                yield {name: cell or None for name, cell in row.items()}, location
        except csv.Error as error:
            raise DataError(
                f"{path}:{reader.line_num}: expected a CSV file, got: {error}"
            ) from error


def read_jsonl(path: Path | str) -> list[Row]:
    """Read rows and check that each has every one of `COLUMNS` in the right type; other columns are kept.

    Raises:
        DataError: the file cannot be read, or a line is not such a row.
    """
    return checked_rows(_jsonl_rows(Path(path)), COLUMNS, None)


def checked_rows(
    located_rows: Iterable[tuple[Row, str]], columns: Mapping[str, type], convert: Convert | None
) -> list[Row]:
    """Convert and check rows, each of which comes with what names it in errors; see `read_split`."""
    rows = []
    for row, location in located_rows:
        converted = row if convert is None else convert(row, location)
        rows.append(checked_row(converted, location, columns, source=row))
    return rows


def _jsonl_rows(path: Path) -> Iterator[tuple[Row, str]]:
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            # Empty lines are no rows, but count as lines.
            if not line.strip():
                continue
            location = f"{path}:{number}"
            try:
                row = parse_json(line)
            except DataError as error:
                raise DataError(f"{location}: expected a JSON object, got {error}") from error
            yield _object(row, location), location


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a text file with universal newlines; errors of reading it in the block become a `DataError`."""
    try:
        # `utf-8-sig`: editors and spreadsheets of Windows begin a file with a byte order mark.
        with path.open(encoding="utf-8-sig") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        kind = "CSV" if path.suffix == ".csv" else "one JSON object a line"
        raise DataError(f"{path}: expected a UTF-8 text file with {kind}, got: {error}") from error


def _object(row: Any, location: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{location}: expected a JSON object, got {type(row).__name__}")
    return row


def write_jsonl(rows: Sequence[Mapping[str, Any]], path: Path | str) -> None:
    """Write rows, one JSON object a line; the file appears complete or not at all."""
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_json(content: Any, path: Path) -> None:
    """Write a JSON file; it appears complete or not at all."""
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def _parquet_rows(path: Path) -> Iterator[tuple[Row, str]]:
    import pyarrow as pa  # slow to import, and not needed for JSON lines
    import pyarrow.parquet

    number = 0
    try:
        # Pages are verified by their checksum: a damaged file raises an error, where wrong rows
        # would go unnoticed. `read_table` would import pandas.
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_BATCH_SIZE):
                for row in batch.to_pylist():
                    number += 1
                    yield row, f"{path}:{number}"
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path}: expected a Parquet file, got: {error}") from error


def features_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Map each column to its type, in the words of the `datasets` library; `{"list": ...}` for a list.

    Raises:
        DataError: a column has values of several types, or of another one.
    """
    features = {}
    for name in rows[0]:
        features[name] = _feature([row[name] for row in rows], name)
    return features


def _feature(values: Iterable[Any], name: str) -> Any:
    values = [value for value in values if value is not None]
    kinds = {type(value) for value in values}
    if kinds and kinds <= {list, tuple}:
        return {"list": _feature(itertools.chain.from_iterable(values), name)}
    # Also a column without a value: any type fits, and a file needs one.
    if kinds <= {str}:
        return "string"
    if kinds <= {int, float}:
        return "float64" if float in kinds else "int64"
    if kinds == {bool}:
        return "bool"
    kind_names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(
        f"column {name}: expected texts, numbers or lists of one of them, got {kind_names}"
    )


def read_text(path: Path) -> str:
    r"""Read a text file, with `\n` at the end of every line.

    Raises:
        DataError: the file cannot be read, or is not UTF-8.
    """
    try:
        text = _read_bytes(path, None).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name}: expected a UTF-8 text file, got: {error}") from error
    return _with_plain_line_ends(text)


def read_pddl_text(path: Path, max_bytes: int | None = None) -> str:
    r"""Read a PDDL file or a plan, with `\n` at the end of every line, in UTF-8 or an older encoding.

    Raises:
        DataError: the file cannot be read, or has more bytes.
    """
    return decode_pddl_text(_read_bytes(path, max_bytes), path.name)


def _read_bytes(path: Path, max_bytes: int | None) -> bytes:
    try:
        num_bytes = path.stat().st_size
        if max_bytes is not None and num_bytes > max_bytes:
            raise DataError(f"{path.name}: expected at most {max_bytes} bytes, got {num_bytes}")
        return path.read_bytes()
    except OSError as error:
        # The text of the exception would name the whole path.
        reason = error.strerror or type(error).__name__
        raise DataError(f"{path.name}: expected a UTF-8 text file, got: {reason}") from error


def decode_pddl_text(content: bytes, name: str) -> str:
    r"""Read the bytes of PDDL or a plan, with `\n` at the end of every line.

    UTF-8, or UTF-16 with its byte order mark, or else Latin-1: old comments have names with umlauts, which VAL passes
    over, and every byte is a character of Latin-1.

    Args:
        content: the bytes.
        name: their file's, for the error.

    Raises:
        DataError: the byte order mark is that of UTF-16, and the rest is not.
    """
    try:
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return _with_plain_line_ends(content.decode("utf-16"))
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: expected UTF-16, as it begins, got: {error}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return _with_plain_line_ends(text)


def _with_plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
