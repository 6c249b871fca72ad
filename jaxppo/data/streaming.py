"""Rows that are read while a run goes on (`--streaming`), for data that are larger than memory.

The order of rows is a function of the seed and of the data alone. A checkpoint says where the block begins that rows
are drawn from, and how many of them were drawn; a resumed run reads that block again, and goes on with the next row.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxppo.config import DataConfig, StreamingConfig
from jaxppo.data.rows import (
    PROMPT_ONLY,
    Row,
    RowReader,
    check_same,
    find_dataset,
    hugging_face_table,
)
from jaxppo.errors import DataError, first_line
from jaxppo.planning.datasets import files as dataset_files

# --- parts of a split, each read from its beginning or from where a checkpoint says


class Part(Protocol):
    """A part of a split that is being read."""

    def __iter__(self) -> Iterator[tuple[Row, str, int]]:
        """Yield the rows that are left: the row, what names it in errors, and its number in the part."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what another reader goes on from, as JSON keeps it."""
        ...


class _File:
    """The file of a split in a folder."""

    def __init__(self, name: str, split: str, state: dict[str, Any]):
        self._count = state.get("rows", 0)
        self._rows = dataset_files.iterate_split(name, split, self._count)

    def __iter__(self) -> Iterator[tuple[Row, str, int]]:
        for row, where in self._rows:
            self._count += 1
            yield row, where, self._count - 1

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._count}


class _Shard:
    """A shard of what the `datasets` library streams."""

    def __init__(self, shard: Any, where: str, state: dict[str, Any]):
        self._shard, self._where, self._count = shard, where, state.get("rows", 0)
        if state:
            shard.load_state_dict(copy.deepcopy(state["dataset"]))

    def __iter__(self) -> Iterator[tuple[Row, str, int]]:
        rows = iter(self._shard)
        while True:
            try:
                row = next(rows, None)
            except Exception as error:  # whatever the many readers and the hub raise
                got = f"{type(error).__name__}: {first_line(error)}"
                raise DataError(f"{self._where}, row {self._count}: expected a row, got {got}") from error
            if row is None:
                return
            self._count += 1
            yield row, f"{self._where}, row {self._count - 1}", self._count - 1

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._count, "dataset": self._shard.state_dict()}


class Parts(NamedTuple):
    """The parts of a split."""

    num_parts: int
    open: Callable[[int, dict[str, Any]], Part]  # number of a part, and its state; {}: from its beginning


def find_parts(config: DataConfig, split: str) -> Parts:
    """Find what a split is streamed from: a file of a folder, or the shards of the `datasets` library.

    Raises:
        DataError: there is no such split, or it cannot be streamed.
    """
    name, is_read_here = find_dataset(config.dataset, split, config.dataset_config)
    if is_read_here:
        return Parts(1, lambda _, state: _File(name, split, state))
    table = hugging_face_table(name, split, config.dataset_config, streaming=True)
    count = table.num_shards

    def shard(number: int, state: dict[str, Any]) -> Part:
        where = f"{name}, split {split}" + ("" if count == 1 else f", part {number}")
        return _Shard(table.shard(count, number), where, state)

    return Parts(count, shard)


# --- their rows, shuffled


class RowStream:
    """The rows of a split, epoch after epoch, of which a block is held at a time.

    An epoch goes through the parts in an order drawn anew, and its rows come in blocks that are shuffled. Where a block
    does not hold the whole split, the first block of later epochs is shorter, by chance, so that other rows meet.

    Args:
        name: of data set and split, for errors.
        parts: of the split.
        reader: from a row as it was read, what names it in errors, and its number, to a row; None: it is left out.
        seed: of the order.
        buffer_size: rows of a block.

    Raises:
        DataError: there is no row, or it cannot be read.
    """

    def __init__(
        self,
        name: str,
        parts: Parts,
        reader: Callable[[Row, str, int | str], Row | None],
        seed: int,
        buffer_size: int,
    ):
        self.name = name
        self._parts, self._reader, self._seed, self._buffer_size = parts, reader, seed, buffer_size
        self._reading: tuple[Part, Iterator[tuple[Row, str, int]]] | None = None  # the part behind the block
        self.load_state_dict(None)

    @property
    def epoch(self) -> int:
        """How many passes over all rows are done."""
        return self._begin["epoch"]

    @property
    def block(self) -> list[Row]:
        """The rows that are drawn from, as they were read."""
        return [row for row, _, _ in self._block]

    def draw(self, count: int) -> list[Row]:
        """Return the next `count` rows, without those that the reader leaves out.

        Raises:
            DataError: a row is malformed, or cannot be read.
        """
        rows = []
        for _ in range(count):
            if self._drawn == len(self._block):
                self._next_block()
            row = self._reader(*self._block[self._drawn])
            self._drawn += 1
            if row is not None:
                rows.append(row)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the next row, as JSON keeps it."""
        return {"begin": self._begin, "drawn": self._drawn}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go to a place; None: to the first row."""
        self._reading = None
        self._read_block(_begin(0, self._buffer_size) if state is None else state["begin"])
        # A block that is read again is shorter where the data have changed.
        self._drawn = 0 if state is None else min(state["drawn"], len(self._block))

    def _next_block(self) -> None:
        """Read the block behind this one, of the next epoch where this one is over."""
        begin, fits = self._begin, self._begin["fits"]
        if self._end["part"] < self._parts.num_parts:
            self._read_block({**begin, **self._end, "block": begin["block"] + 1, "size": self._buffer_size})
            if self._block:
                return
        if fits is None:
            fits = begin["block"] == 0
        epoch, size = begin["epoch"] + 1, self._buffer_size
        if not fits:
            size = int(np.random.default_rng((self._seed, epoch)).integers(1, self._buffer_size, endpoint=True))
        self._reading = None
        self._read_block(_begin(epoch, size, fits))

    def _read_block(self, begin: dict[str, Any]) -> None:
        """Read and shuffle the block that begins at a place; it has no rows where the epoch is over there."""
        epoch, place, state = begin["epoch"], begin["part"], begin["part_state"]
        order = np.random.default_rng((self._seed, epoch, 0)).permutation(self._parts.num_parts)
        self._block = block = []
        while True:
            number = int(order[place])
            if self._reading is None:
                part = self._parts.open(number, state)
                self._reading = part, iter(part)
            part, rows = self._reading
            for row, where, count in itertools.islice(rows, begin["size"] - len(block)):
                block.append((row, where, count if self._parts.num_parts == 1 else f"{number}-{count}"))
            if len(block) == begin["size"]:
                self._end = {"part": place, "part_state": part.state_dict()}
                break
            place, state, self._reading = place + 1, {}, None
            if place == self._parts.num_parts:
                self._end = {"part": place, "part_state": {}}
                break
        if not block and begin["block"] == 0:
            raise DataError(f"{self.name}: expected at least one row, got none")
        shuffled = np.random.default_rng((self._seed, epoch, 1, begin["block"])).permutation(len(block))
        if self._buffer_size > 1:
            self._block = [block[place] for place in shuffled]
        self._begin, self._drawn = begin, 0


def _begin(epoch: int, size: int, fits: bool | None = None) -> dict[str, Any]:
    """Return where the first block of an epoch begins.

    Args:
        epoch: its number.
        size: rows of the block, if there are as many.
        fits: whether a block holds all rows, once that is known.
    """
    return {"epoch": epoch, "block": 0, "size": size, "part": 0, "part_state": {}, "fits": fits}


def open_stream(
    config: DataConfig,
    streaming: StreamingConfig,
    seed: int,
    validator: str | None,
    columns: Mapping[str, type] = PROMPT_ONLY,
) -> RowStream:
    """Open the split to train on.

    Args:
        config: which data set.
        streaming: how many rows are held.
        seed: of the order.
        validator: see `load_split`.
        columns: see `load_split`.

    Raises:
        DataError: there is no such split, it has no rows, or it cannot be streamed.
        ConfigError: another process has read other rows.
    """
    split = config.train_split
    reader = RowReader(config, split, validator, columns)
    parts = find_parts(config, split)
    stream = RowStream(f"{config.dataset}, split {split}", parts, reader, seed, streaming.shuffle_buffer_size)
    check_same(config.dataset, split, stream.block)
    return stream
