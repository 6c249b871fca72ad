"""Checksums of the files in a folder, kept beside them: whoever reads the files knows that they are as written."""

import json
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FILE = "checksums.json"
"""{"files": {file: [bytes, CRC-32]}, "crc32": of this table}; the folder that lacks it was not written to its end."""

_CHUNK_BYTES = 1 << 20


def write(folder: Path, items: Sequence[str] | None = None) -> None:
    """Write the checksums of all files of a folder.

    Args:
        folder: gets `FILE`.
        items: the folders in it that count; default: all that is in it.

    Raises:
        OSError: a file cannot be read, or this one not be written.
    """
    roots = [folder] if items is None else [folder / item for item in items]
    paths = [path for root in roots for path in sorted(root.rglob("*")) if path.is_file()]
    with ThreadPoolExecutor() as pool:
        found = pool.map(_checksum, paths)
        table = {path.relative_to(folder).as_posix(): sums for path, sums in zip(paths, found, strict=True)}
    (folder / FILE).write_text(_sealed(table), encoding="utf-8")


def damage(folder: Path, items: Sequence[str] | None = None) -> str | None:
    """Return what is wrong with the files of a folder, or None.

    Args:
        folder: with `FILE`.
        items: the folders in it that are looked at; default: all.
    """
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
        table = json.loads(text)["files"]
    except (OSError, ValueError, LookupError, TypeError):
        return f"{FILE} is missing or broken"
    if text != _sealed(table):
        return f"{FILE} is not as it was written"
    expected = {name: sums for name, sums in table.items() if items is None or name.split("/")[0] in items}
    with ThreadPoolExecutor() as pool:
        found = pool.map(_checksum, (folder / name for name in expected))
        for name, sums in expected.items():
            try:
                if next(found) != sums:
                    return f"{name} is not as it was written"
            except OSError as error:
                return f"{name}: {error.strerror}"
    return None


def _checksum(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]


def _sealed(table: dict[str, list[int]]) -> str:
    """Return the text of `FILE`: a damaged name in it would let the file of that name pass unread."""
    return json.dumps({"files": table, "crc32": zlib.crc32(json.dumps(table).encode())})
