"""Rows of JSON lines, CSV and Parquet, with the place of each."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxppo.config.reading import parse_json
from jaxppo.errors import DataError
from jaxppo.planning.answers.answer import UnusableAnswer
from jaxppo.planning.datasets.files import read_text

Rows = Iterator[tuple[str, Mapping[str, Any] | UnusableAnswer]]
"""Place and row, or what is wrong with it."""

_LARGEST_CELL = 100_000_000
"""Of a CSV file, in characters; Python's own limit is 131,072."""


def _json_lines(path: Path, label: str) -> Rows:
    # Not `splitlines`, which also splits at characters that JSON allows inside a text.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        place = f"{label}:{number}"
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise DataError(f"expected a JSON object, got {type(row).__name__}")
            yield place, row
        except DataError as error:
            yield place, UnusableAnswer.from_error(place, error)


def _csv(path: Path, label: str) -> Rows:
    """Read what spreadsheets write; a cell is text, whatever it begins with, and an empty one says nothing."""
    # The limit is the whole process's: it is put back as it was.
    previous_limit = csv.field_size_limit(_LARGEST_CELL)
    try:
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
        for row in reader:
            # Without a name are the cells that a row has more than the first line.
            cells = {name: value or None for name, value in row.items() if isinstance(name, str)}
            yield f"{label}:{reader.line_num}", cells
    except csv.Error as error:
        raise DataError(f"{label}: expected CSV, got: {error}") from error
    finally:
        csv.field_size_limit(previous_limit)


def _parquet(path: Path, label: str) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        # Not `read_table`, which needs pandas.
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            rows = file.read().to_pylist()
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{label}: expected a Parquet file, got: {error}") from error
    for number, row in enumerate(rows, 1):
        yield f"{label}: row {number}", row


READERS: Mapping[str, Callable[[Path, str], Rows]] = {
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}
"""What a file's name ends with to what reads it; a file that cannot be read at all is a `DataError`."""
