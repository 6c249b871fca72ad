"""The files of a data set: rows as JSON lines or Parquet, and the JSON beside them."""

import csv
import io
import itertools
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from jaxppo.config.paths import write_atomically
from jaxppo.config.reading import parse_json
from jaxppo.errors import DataError
from jaxppo.planning.datasets.rows import COLUMNS, SPLIT_PARTITIONS, Row, checked_row

_LOG = logging.getLogger(__name__)

REPORT_FILE, CARD_FILE, REJECTED_FILE = "report.json", "README.md", "rejected.jsonl"
VOCABULARY_FILE, OBFUSCATION_FILE = "vocabulary.json", "obfuscation.json"

Convert = Callable[[Row, str], Row]
"""Changes a row before its columns are checked; the text names the row in errors."""

PAPER_COLUMNS: Mapping[str, type] = {"domain": str, "instruction": str, "input": str, "raw_plan": list}
"""Of the paper's ten columns those that are used, beside `instance_id`."""
SOURCE_COLUMNS: Mapping[str, type] = {
    name: COLUMNS[name] for name in ("id", "domain", "reference_plan", "domain_pddl", "problem_pddl")
}
"""Of our columns those that an import needs; the others are made anew."""


def ordered_splits(names: Collection[str]) -> list[str]:
    """Put the splits in their usual order, others behind them."""
    return [*(split for split in SPLIT_PARTITIONS if split in names), *(s for s in names if s not in SPLIT_PARTITIONS)]


def split_files(source: Path) -> list[Path]:
    """List the files with rows of a data set folder, damaged ones too if they are named like a split.

    A split that is there twice is taken from its JSON lines.
    """
    if source.is_file():
        return [source] if source.suffix == ".parquet" or first_row(source).keys() >= SOURCE_COLUMNS.keys() else []
    first_rows = {path: first_row(path) for path in source.glob("*.jsonl")}
    lines = [
        path
        for path, row in first_rows.items()
        if row.keys() >= SOURCE_COLUMNS.keys()
        or (path.stem in SPLIT_PARTITIONS and not row.keys() >= PAPER_COLUMNS.keys())
    ]
    stems = {path.stem for path in lines}
    return sorted([*lines, *(path for path in source.glob("*.parquet") if path.stem not in stems)])


def written_files(folder: Path) -> list[Path]:
    """List the files of a data set that `write_dataset` has written: its splits, report and card, and what lies beside.

    Raises:
        DataError: the folder is none, or not complete.
    """
    report = folder / REPORT_FILE
    content = parse_json(read_text(report)) if report.is_file() else None
    if not isinstance(content, dict) or not isinstance(content.get("splits"), dict):
        raise DataError(f"{folder}: expected a data set with {REPORT_FILE}, as build and import write it last")
    others = (CARD_FILE, REPORT_FILE, REJECTED_FILE, VOCABULARY_FILE, OBFUSCATION_FILE)
    names = [*others, *(f"{split}.{suffix}" for split in content["splits"] for suffix in ("jsonl", "parquet"))]
    return [folder / name for name in names if Path(name).name == name and (folder / name).is_file()]


def first_row(path: Path) -> Row:
    """Read the first row of a JSON-lines file; empty where there is none."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            row = parse_json(next((line for line in file if line.strip()), ""))
    except (OSError, UnicodeDecodeError, DataError):
        return {}
    return row if isinstance(row, dict) else {}


def read_mappings(folder: Path) -> Mapping[str, Any]:
    """Read the words of a data set's obfuscations; empty where it has none.

    Raises:
        DataError: the file is there, and cannot be read.
    """
    path = folder / OBFUSCATION_FILE
    if not path.exists():
        return {}
    mappings = parse_json(read_text(path))
    if not isinstance(mappings, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(mappings).__name__}")
    return mappings


SPLIT_ENDINGS = (".jsonl", ".parquet", ".json", ".csv")
"""Of files that a split is read from, the first one there; `build` writes the first two, with the same rows."""
_MOST_NAMED = 8


def split_file(folder: Path, split: str) -> Path | None:
    """Return the file that a split of a folder is read from, with a warning where others of that name are not."""
    found = [path for ending in SPLIT_ENDINGS if (path := folder / f"{split}{ending}").exists()]
    others = [path.name for path in found[1:] if path.suffix != ".parquet"]
    if others:
        _LOG.warning(f"dataset: {found[0]} is read; {', '.join(others)} beside it is not")
    return found[0] if found else None


def read_split(
    folder: Path | str, split: str, columns: Mapping[str, type] = COLUMNS, convert: Convert | None = None
) -> list[Row]:
    """Read the rows of a split from `<split>.jsonl`, or else from `<split>.parquet`, `.json` or `.csv`.

    JSON is a list of objects or, as in JSON lines, one object a line; CSV has texts alone, None where one is empty.

    Raises:
        DataError: none can be read, or a row does not have every one of the columns in the right type.
    """
    path = _existing_file(Path(folder), split)
    return [_checked(row, where, columns, convert) for row, where in _rows_of_file(path)]


def iterate_split(folder: Path | str, split: str, first: int = 0) -> Iterator[tuple[Row, str]]:
    """Yield the rows of a split as `read_split` reads them, each with what names it in errors, and hold one at a time.

    Args:
        folder: of the data set.
        split: its name.
        first: number of the row to begin with; those before it are passed over without being parsed, where that can be.

    Raises:
        DataError: as for `read_split`; or it is one JSON list, which has to be read as a whole.
    """
    path = _existing_file(Path(folder), split)
    if path.suffix == ".json" and _is_list(path):
        raise DataError(f"streaming: expected one JSON object a line, got a list of them in {path}")
    return _rows_of_file(path, first)


def _existing_file(folder: Path, split: str) -> Path:
    path = split_file(folder, split)
    if path is None:
        endings = ", ".join(SPLIT_ENDINGS[1:])
        raise DataError(
            f"{folder / f'{split}{SPLIT_ENDINGS[0]}'}: expected this file, or one that ends in {endings}, got "
            f"{_seen(folder)} in the folder; train_split, eval_splits, headline_split name them"
        )
    return path


def _rows_of_file(path: Path, first: int = 0) -> Iterator[tuple[Row, str]]:
    readers = {".jsonl": _jsonl_rows, ".parquet": _parquet_rows, ".json": _json_rows, ".csv": _csv_rows}
    return readers[path.suffix](path, first)


def _seen(folder: Path) -> str:
    """Name the splits of a folder, or whatever files it has."""
    names = sorted(path.name for path in folder.glob("*") if not path.name.startswith("."))
    no_splits = (REPORT_FILE, REJECTED_FILE, VOCABULARY_FILE, OBFUSCATION_FILE)
    splits = [name for name in names if Path(name).suffix in SPLIT_ENDINGS and name not in no_splits]
    shown = splits or names
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    return (", ".join(shown[:_MOST_NAMED]) + more) if shown else "no files"


def _is_list(path: Path) -> bool:
    """Return whether a JSON file is one list, not an object a line."""
    with _opened(path) as file:
        return next((line.lstrip() for line in file if line.strip()), "").startswith("[")


def _json_rows(path: Path, first: int) -> Iterator[tuple[Row, str]]:
    if not _is_list(path):
        yield from _jsonl_rows(path, first)
        return
    try:
        rows = parse_json(read_text(path))
    except DataError as error:
        raise DataError(f"{path}: expected a list of JSON objects, or one a line, got {error}") from error
    for number, row in enumerate(rows[first:], first + 1):
        where = f"{path}, row {number}"
        yield _object(row, where), where


def _csv_rows(path: Path, first: int) -> Iterator[tuple[Row, str]]:
    csv.field_size_limit(_LARGEST_CELL)
    with _opened(path) as file:
        reader = csv.DictReader(file, strict=True)
        try:
            names = reader.fieldnames or ()
            if len(set(names)) < len(names):
                raise DataError(f"{path}:1: expected each column once, got {', '.join(names)}")
            for row in itertools.islice(reader, first, None):
                where = f"{path}:{reader.line_num}"
                if None in row or None in row.values():
                    expected = f"{len(names)} cells, as in the first line"
                    raise DataError(f"{where}: expected {expected}, got more or fewer")
                yield {name: cell or None for name, cell in row.items()}, where
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: expected a CSV file, got: {error}") from error


_LARGEST_CELL = 2**31 - 1
"""Of a CSV file, in characters; Python's own limit is 131072."""


def read_jsonl(path: Path | str, columns: Mapping[str, type] = COLUMNS, convert: Convert | None = None) -> list[Row]:
    """Read rows and check that each has every one of the columns in the right type; other columns are kept.

    Raises:
        DataError: the file cannot be read, or a line is not such a row.
    """
    return [_checked(row, where, columns, convert) for row, where in _jsonl_rows(Path(path))]


def _jsonl_rows(path: Path, first: int = 0) -> Iterator[tuple[Row, str]]:
    with _opened(path) as file:
        filled = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        for number, line in itertools.islice(filled, first, None):
            where = f"{path}:{number}"
            try:
                row = parse_json(line)
            except DataError as error:
                raise DataError(f"{where}: expected a JSON object, got {error}") from error
            yield _object(row, where), where


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a text file, in which every line ends in a newline alone; what cannot be read of it is a `DataError`."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        kind = "CSV" if path.suffix == ".csv" else "one JSON object a line"
        raise DataError(f"{path}: expected a UTF-8 text file with {kind}, got: {error}") from error


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row


def _checked(row: Row, where: str, columns: Mapping[str, type], convert: Convert | None) -> Row:
    return checked_row(row if convert is None else convert(row, where), where, columns)


def write_jsonl(rows: Sequence[Mapping[str, Any]], path: Path | str) -> None:
    """Write rows, one JSON object a line; the file appears complete or not at all."""
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_json(content: Any, path: Path) -> None:
    """Write a JSON file; it appears complete or not at all."""
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def write_parquet(rows: Sequence[Row], path: Path, features: Mapping[str, Any] | None = None) -> None:
    """Write rows as a parquet file, which appears complete or not at all.

    Args:
        rows: with the same columns in all of them.
        path: the file.
        features: column to its type; default: as the rows have them.

    Raises:
        DataError: a column cannot be written.
    """
    import pyarrow as pa  # slow to import, and not needed for JSON lines
    import pyarrow.parquet

    def arrow(feature: Any) -> pa.DataType:
        if isinstance(feature, dict):
            return pa.list_(arrow(feature["list"]))
        return {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}[feature]

    types = features_of(rows) if features is None else features
    schema = pa.schema([(name, arrow(feature)) for name, feature in types.items()])
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(
        pa.Table.from_pylist(list(rows), schema), buffer, compression="zstd", write_page_checksum=True
    )
    write_atomically(path, buffer.getvalue())


def _parquet_rows(path: Path, first: int) -> Iterator[tuple[Row, str]]:
    """Yield the rows of a file, group after group, or of a folder of parts, as Spark writes it."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        if path.is_dir():
            import pyarrow.dataset

            verified = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
            kind = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=verified)
            parts = pyarrow.dataset.dataset(path, format=kind, partitioning="hive")
            batches = parts.to_batches(batch_size=_ROWS_AT_ONCE, batch_readahead=1, fragment_readahead=1)
            yield from _rows_of_batches(batches, path, 0, first)
        else:
            # read_table would import pandas
            with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
                begin = group = 0
                while group < file.num_row_groups and begin + file.metadata.row_group(group).num_rows <= first:
                    begin += file.metadata.row_group(group).num_rows
                    group += 1
                groups = list(range(group, file.num_row_groups))
                batches = file.iter_batches(_ROWS_AT_ONCE, row_groups=groups)
                yield from _rows_of_batches(batches, path, begin, first)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path}: expected a Parquet file, got: {error}") from error


_ROWS_AT_ONCE = 1000
"""Rows of a Parquet file that become Python objects together."""


def _rows_of_batches(batches: Iterable[Any], path: Path, begin: int, first: int) -> Iterator[tuple[Row, str]]:
    """Yield the rows from `first` on of record batches that begin at row `begin`."""
    for batch in batches:
        skipped = min(max(first - begin, 0), batch.num_rows)
        for number, row in enumerate(batch.slice(skipped).to_pylist(), begin + skipped + 1):
            yield row, f"{path}:{number}"
        begin += batch.num_rows


def features_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Map each column to its type, in the words of the `datasets` library; `{"list": ...}` for a list."""
    return {name: _feature([row[name] for row in rows], name) for name in rows[0]}


def _feature(values: Iterable[Any], name: str) -> Any:
    values = [value for value in values if value is not None]
    kinds = {type(value) for value in values}
    if kinds <= {list, tuple} and kinds:
        return {"list": _feature((item for value in values for item in value), name)}
    if kinds <= {str}:
        return "string"
    if kinds <= {int, float}:
        return "float64" if float in kinds else "int64"
    if kinds == {bool}:
        return "bool"
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(f"column {name}: expected texts, numbers or lists of one of them, got {found}")


def read_text(path: Path, most_bytes: int | None = None) -> str:
    r"""Read a text file, with `\n` at the end of every line.

    Raises:
        DataError: the file cannot be read, has more bytes, or is not UTF-8.
    """
    try:
        if most_bytes is not None and path.stat().st_size > most_bytes:
            raise DataError(f"{path.name}: expected at most {most_bytes} bytes, got {path.stat().st_size}")
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{path.name}: expected a UTF-8 text file, got: {reason}") from error
    return decode_text(content, path.name)


def decode_text(content: bytes, name: str) -> str:
    r"""Read bytes as text, with `\n` at the end of every line.

    Raises:
        DataError: they are not UTF-8; `name` says whose they are.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: expected a UTF-8 text file, got: {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
