"""The JSON-lines logs of a run: appended while it runs, cut back when it resumes, read by anybody meanwhile."""

import datetime
import decimal
import json
import math
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from jaxppo.config.paths import write_atomically
from jaxppo.errors import DataError


class JsonlLog:
    """Appends JSON objects, one per line, to a file that others may read while it grows.

    A record has left the process when `append` returns, so a kill loses at most the line being written; opening the log
    again drops such a half-written line. NaN and infinities are written as `null` (JSON has no word for them), and
    all text as ASCII escapes, so that showing the file sends no control codes to a terminal.

    Args:
        path: the file; its folder is made, existing records are kept.
        enabled: False: nothing is read or written, as another process has this log.
    """

    def __init__(self, path: str | os.PathLike[str], enabled: bool = True):
        self.path = Path(path)
        self._enabled = enabled
        if enabled:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                # A kill may have left half a line, to which the next record would be appended.
                os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        self._file = self._open()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record; values may be scalars and arrays of numpy or jax, lists, mappings and strings."""
        self._file.write(json.dumps(to_plain_json(record), allow_nan=False) + "\n")

    def truncate_after(self, step: int) -> None:
        """Cut the log back to the records with `record["step"] <= step`, as a resumed run needs.

        The new file replaces the old one in one move: a kill leaves either of them whole.

        Raises:
            DataError: a line is not a JSON object with a `step`.
        """
        if not self._enabled:
            return
        lines = [line for line, record in _read(self.path) if _step(record, self.path) <= step]
        self._file.close()
        try:
            write_atomically(self.path, "".join(lines))
        finally:
            self._file = self._open()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "JsonlLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> TextIO:
        path = self.path if self._enabled else Path(os.devnull)
        # Buffered by lines: a record has left the process when `append` returns.
        return path.open("a", encoding="utf-8", buffering=1, newline="\n")


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the records of a `metrics.jsonl` or `samples.jsonl`; a half-written last line is left out.

    Raises:
        DataError: the file is missing, or a line is not a JSON object.
    """
    return list(iter_records(path))


def iter_records(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of `read_metrics` one after the other, for files larger than memory.

    Raises:
        DataError: as for `read_metrics`, once the reading gets there.
    """
    return (record for _, record in _read(Path(path)))


def _read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (line with its newline, record) of every complete line."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(
            f"{path}: expected a file of JSON lines, found nothing; check the run folder"
        ) from None
    with file:
        # As bytes: broken UTF-8 is then an error of its line, with its number.
        for number, content in enumerate(file, start=1):
            # Whoever reads while the run goes on may meet half a last line.
            if content.endswith(b"\n"):
                yield _parse(content, f"{path}:{number}")


def _parse(content: bytes, source: str) -> tuple[str, dict[str, Any]]:
    try:
        line = content.decode("utf-8")
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: expected a JSON object in UTF-8, got: {error}") from None
    if not isinstance(record, dict):
        raise DataError(f"{source}: expected a JSON object, got {type(record).__name__}")
    return line, record


def _step(record: dict[str, Any], path: Path) -> int:
    step = record.get("step")
    if not isinstance(step, int):
        raise DataError(f"{path}: expected an integer `step` in every record, got {step!r}")
    return step


def to_plain_json(value: Any) -> Any:
    """Turn a value into what `json.dumps` writes: arrays into numbers and lists, NaN and infinities into None.

    Dates, times, decimals, UUIDs and bytes, which tables have and JSON has not, become text.
    """
    if isinstance(value, Mapping):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(item) for item in value]
    # NaN within an array is found in the lists that it becomes.
    if hasattr(value, "tolist"):  # scalars and arrays of numpy and jax
        return to_plain_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _text_of(value) if isinstance(value, _TYPES_WRITTEN_AS_TEXT) else value


_TYPES_WRITTEN_AS_TEXT = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
    bytes,
)
"""Types of cells of Parquet files that JSON has no form for; a `datetime` is a date."""


def _text_of(value: Any) -> str:
    """Return a cell of a table as text: dates and times in ISO form, bytes that are not printable in hexadecimal."""
    if not isinstance(value, bytes):
        return value.isoformat() if hasattr(value, "isoformat") else str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value.hex()
    return text if text.isprintable() else value.hex()


def json_value(value: Any) -> Any:
    """Return a value as JSON can hold it: arrays as lists, anything without a JSON form as text."""
    value = to_plain_json(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
