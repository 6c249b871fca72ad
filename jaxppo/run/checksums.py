"""Checksums of the files in a folder, kept beside them: whoever reads the files knows that they are as written."""

import json
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FILE = "checksums.json"
"""{"files": {file: [bytes, CRC-32]}, "crc32": of this table}; the folder that lacks it was not written to its end."""

_CHUNK_BYTES = 1 << 20


def write(folder: Path, items: Sequence[str]) -> None:
    """Write the checksums of the files of a folder.

    Args:
        folder: gets `FILE`.
        items: the folders in it that count.

    Raises:
        OSError: a file cannot be read, or this one not be written.
    """
    paths = []
    for item in items:
        paths += [path for path in sorted((folder / item).rglob("*")) if path.is_file()]
    # Python gives up its lock while it reads and while
    # it computes a CRC, so that threads share the work.
    with ThreadPoolExecutor() as pool:
        checksums = list(pool.map(_checksum, paths))
    names = [path.relative_to(folder).as_posix() for path in paths]
    table = dict(zip(names, checksums, strict=True))
    (folder / FILE).write_text(_text_of(table), encoding="utf-8")


def damage(folder: Path, items: Sequence[str]) -> str | None:
    """Return what is wrong with the files of a folder, or None.

    Args:
        folder: with `FILE`.
        items: the folders in it that are looked at.
    """
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
        table = json.loads(text)["files"]
    except (OSError, ValueError, LookupError, TypeError):
        return f"{FILE} is missing or broken"
    # A damaged name in the table would let the file of that name pass unread.
    if text != _text_of(table):
        return f"{FILE} is not as it was written"
    written = {name: checksum for name, checksum in table.items() if name.split("/")[0] in items}
    with ThreadPoolExecutor() as pool:
        checksums = pool.map(_checksum, (folder / name for name in written))
        for name, checksum in written.items():
            try:
                if next(checksums) != checksum:
                    return f"{name} is not as it was written"
            except OSError as error:
                return f"{name}: {error.strerror}"
    return None


def _checksum(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file."""
    size = 0
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return [size, crc]


def _text_of(table: dict[str, list[int]]) -> str:
    """Return the text of `FILE`, with a checksum of the table itself."""
    return json.dumps({"files": table, "crc32": zlib.crc32(json.dumps(table).encode())})
