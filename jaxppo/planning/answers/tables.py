"""Rows of JSON lines, CSV and Parquet, with the place of each."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxppo.config.reading import parse_json
from jaxppo.errors import DataError
from jaxppo.planning.answers.answer import Unread
from jaxppo.planning.datasets.files import read_text

Rows = Iterator[tuple[str, Mapping[str, Any] | Unread]]
"""Place and row, or what is wrong with it."""

_MOST_CHARACTERS = 100_000_000  # of a field of CSV; the module stops at 131,072


def _json_lines(path: Path, label: str) -> Rows:
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{label}:{number}"
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise DataError(f"expected a JSON object, got {type(row).__name__}")
            yield where, row
        except DataError as error:
            yield where, Unread.of(where, error)


def _csv(path: Path, label: str) -> Rows:
    """Read what spreadsheets write; a cell is text, whatever it begins with, and an empty one says nothing."""
    before = csv.field_size_limit(_MOST_CHARACTERS)
    try:
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
        for row in reader:
            cells = {name: value or None for name, value in row.items() if isinstance(name, str)}
            yield f"{label}:{reader.line_num}", cells
    except csv.Error as error:
        raise DataError(f"{label}: expected CSV, got: {error}") from error
    finally:
        csv.field_size_limit(before)


def _parquet(path: Path, label: str) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:  # read_table needs pandas
            rows = file.read().to_pylist()
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{label}: expected a Parquet file, got: {error}") from error
    yield from ((f"{label}: row {number}", row) for number, row in enumerate(rows, 1))


READERS: Mapping[str, Callable[[Path, str], Rows]] = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
"""What a file's name ends with to what reads it; a file that cannot be read at all is a `DataError`."""
