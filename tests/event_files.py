"""TensorBoard's event files, read back."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c


def read_events(folder: Path) -> list[Any]:
    """All events of a run folder, in the order in which TensorBoard reads them."""
    paths = sorted((folder / "tensorboard").iterdir())
    return [Event.FromString(record) for path in paths for record in _records(path.read_bytes())]


def _records(data: bytes) -> Iterator[bytes]:
    """Complete records whose checksums are right; a kill may leave a part of one at the end."""
    at = 0
    while at + 12 <= len(data):
        (size,) = struct.unpack("<Q", data[at : at + 8])
        record, end = data[at + 12 : at + 12 + size], at + 12 + size + 4
        if end > len(data):
            return
        assert struct.unpack("<I", data[at + 8 : at + 12])[0] == masked_crc32c(data[at : at + 8])
        assert struct.unpack("<I", data[end - 4 : end])[0] == masked_crc32c(record)
        yield record
        at = end


def scalars(events: list[Any]) -> list[tuple[int, str, float]]:
    """(step, tag, value) of every point."""
    values = ((event.step, value) for event in events for value in event.summary.value)
    return [(step, value.tag, value.simple_value) for step, value in values if value.HasField("simple_value")]


def texts(events: list[Any]) -> list[tuple[int, str, str]]:
    """(step, tag, text) of every text."""
    values = ((event.step, value) for event in events for value in event.summary.value if value.tensor.string_val)
    return [(step, value.tag, value.tensor.string_val[0].decode()) for step, value in values]


def shown_by_tensorboard(events: list[Any]) -> list[tuple[int, str, float]]:
    """The points that are left when every session has hidden those from its first step on."""
    points: list[tuple[int, str, float]] = []
    for event in events:
        if event.HasField("session_log"):
            points = [point for point in points if point[0] < event.step]
        points += scalars([event])
    return points
