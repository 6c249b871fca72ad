"""The files of a source in the order that a person expects, and their rows."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxppo.config.reading import parse_json
from jaxppo.errors import DataError
from jaxppo.planning.datasets.files import is_json_list, read_json_list, rows_of_file
from jaxppo.planning.datasets.rows import Row


def natural_key(text: str) -> list[tuple[int, str]]:
    """Make a key for sorting: `p2` before `p10`."""
    # Numbers and texts are never compared with each other: a text has the number -1.
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (-1, part)
        for part in re.split(r"(\d+)", text)
    ]


def list_files(source: Path, pattern: str) -> list[Path]:
    """List the files below a folder whose names match a pattern, in natural order; a file is the only one of itself."""
    if source.is_file():
        return [source]
    return sorted(source.rglob(pattern), key=lambda path: natural_key(path.as_posix()))


def file_label(path: Path, source: Path) -> str:
    """Name a file in messages: by its path in the source, or by its name where it is the source itself."""
    return path.name if path == source else path.relative_to(source).as_posix()


def located_rows(path: Path, label: str) -> Iterator[tuple[str, Row | DataError]]:
    """Yield the rows of JSON, CSV or Parquet, each after its place; for one that cannot be read, the error.

    A line or item of JSON that is no row costs no other; in the other formats nothing comes after an error.
    """
    if path.suffix != ".jsonl":
        try:
            if path.suffix == ".json" and is_json_list(path):
                for number, row in enumerate(read_json_list(path), 1):
                    yield f"{label}, row {number}", _row_or_error(row)
                return
            for row, location in rows_of_file(path):
                yield label + location.removeprefix(str(path)), row
        except DataError as error:
            yield label, error
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = _row_or_error(parse_json(line))
            except DataError as error:
                row = error
            yield f"{label}:{number}", row


def _row_or_error(value: Any) -> Row | DataError:
    if isinstance(value, dict):
        return value
    return DataError(f"expected a JSON object, got {type(value).__name__}")
