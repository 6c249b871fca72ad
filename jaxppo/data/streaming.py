"""Rows that are read while a run goes on (`--streaming`), for data that are larger than memory.

The order of rows is a function of the seed and of the data alone. A checkpoint says where the block begins that rows
are drawn from, and how many of them were drawn; a resumed run reads that block again, and goes on with the next row.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxppo.config import DataConfig, StreamingConfig
from jaxppo.data.dataset_source import find_dataset, library_table
from jaxppo.data.rows import PROMPT_ONLY, Row, RowReader, check_same
from jaxppo.errors import DataError, first_line
from jaxppo.planning.datasets import files as dataset_files

# --- parts of a split, each read from its beginning or from where a checkpoint says


SourceRow = tuple[Row, str, int]
"""A row as it was read, its name in errors, and its number in the part."""


class _FilePart:
    """The file of a split in a folder.

    Args:
        name: of the folder.
        split: name of the split.
        state: from `state_dict`, which says where to go on; empty: at the beginning.
    """

    def __init__(self, name: str, split: str, state: dict[str, Any]):
        self._count = state.get("rows", 0)
        self._rows = dataset_files.iterate_split(name, split, self._count)

    def __iter__(self) -> Iterator[SourceRow]:
        for row, location in self._rows:
            # Before the row is given away: the reader stops in the middle, and asks for the state
            # then.
            self._count += 1
            yield row, location, self._count - 1

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._count}


class _ShardPart:
    """A shard of what the `datasets` library streams."""

    def __init__(self, shard: Any, location: str, state: dict[str, Any]):
        self._shard = shard
        self._location = location
        self._count = state.get("rows", 0)
        if state:
            # A copy, as the block keeps this state, and saves it again with each row that is drawn.
            shard.load_state_dict(copy.deepcopy(state["dataset"]))

    def __iter__(self) -> Iterator[SourceRow]:
        rows = iter(self._shard)
        while True:
            location = f"{self._location}, row {self._count}"
            try:
                row = next(rows, None)
            except Exception as error:  # whatever the many readers and the hub raise
                raise DataError(
                    f"{location}: expected a row, got {type(error).__name__}: {first_line(error)}"
                ) from error
            if row is None:
                return
            self._count += 1
            yield row, location, self._count - 1

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._count, "dataset": self._shard.state_dict()}


SplitPart = _FilePart | _ShardPart


class SplitParts(NamedTuple):
    """The parts of a split."""

    num_parts: int
    # Number of a part, and its state; {}: from its beginning
    open: Callable[[int, dict[str, Any]], SplitPart]


def find_parts(config: DataConfig, split: str) -> SplitParts:
    """Find what a split is streamed from: a file of a folder, or the shards of the `datasets` library.

    Raises:
        DataError: there is no such split, or it cannot be streamed.
    """
    name, is_read_here = find_dataset(config.dataset, split, config.dataset_config)
    # A file is one part, which is read from its beginning to its end.
    if is_read_here:
        return SplitParts(1, lambda _, state: _FilePart(name, split, state))
    table = library_table(name, split, config.dataset_config, streaming=True)
    num_parts = table.num_shards

    def open_shard(number: int, state: dict[str, Any]) -> SplitPart:
        location = f"{name}, split {split}"
        if num_parts > 1:
            location += f", part {number}"
        return _ShardPart(table.shard(num_parts, number), location, state)

    return SplitParts(num_parts, open_shard)


# --- their rows, shuffled


class RowStream:
    """The rows of a split, epoch after epoch, of which a block is held at a time.

    An epoch goes through the parts in an order drawn anew, and its rows come in blocks that are shuffled. Where a block
    does not hold the whole split, the first block of later epochs is shorter, by chance, so that other rows meet.

    A block is a function of where it begins: epoch, number of the block, its size, and the part with its state. That
    place and the number of rows that were drawn are the whole state of a stream. To resume is to read the block again,
    which costs at most `buffer_size` rows, and needs no copy of rows in a checkpoint.

    Args:
        name: of data set and split, for errors.
        parts: of the split.
        reader: from a row as it was read, its name in errors, and its number, to a row; None: it is left out.
        seed: of the order.
        buffer_size: rows of a block.

    Raises:
        DataError: there is no row, or it cannot be read.
    """

    def __init__(
        self,
        name: str,
        parts: SplitParts,
        reader: Callable[[Row, str, int | str], Row | None],
        seed: int,
        buffer_size: int,
    ):
        self.name = name
        self._parts = parts
        self._reader = reader
        self._seed = seed
        self._buffer_size = buffer_size
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
            if self._num_drawn == len(self._block):
                self._next_block()
            row = self._reader(*self._block[self._num_drawn])
            self._num_drawn += 1
            if row is not None:
                rows.append(row)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the next row, as JSON keeps it."""
        return {"begin": self._begin, "drawn": self._num_drawn}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go to a place; None: to the first row."""
        # The part that rows after the block are read from; None: to be opened.
        self._reading: tuple[SplitPart, Iterator[SourceRow]] | None = None
        if state is None:
            self._read_block(_first_block(0, self._buffer_size))
        else:
            self._read_block(state["begin"])
            # A block that is read again is shorter where the data have changed.
            self._num_drawn = min(state["drawn"], len(self._block))

    def _next_block(self) -> None:
        """Read the block after this one, of the next epoch where this one is over."""
        begin = self._begin
        if self._end["part"] < self._parts.num_parts:
            next_begin = begin | self._end
            next_begin["block"] += 1
            next_begin["size"] = self._buffer_size
            self._read_block(next_begin)
            if self._block:
                return
            # The last block ended with the last row of the last part, which nobody can know before.
        # Blocks that all begin at the same rows in every epoch would bring the same rows together
        # each time.
        epoch = begin["epoch"] + 1
        fits = begin["fits"]
        if fits is None:
            fits = begin["block"] == 0
        size = self._buffer_size
        if not fits:
            rng = np.random.default_rng((self._seed, epoch))
            size = int(rng.integers(1, self._buffer_size, endpoint=True))
        self._reading = None
        self._read_block(_first_block(epoch, size, fits))

    def _read_block(self, begin: dict[str, Any]) -> None:
        """Read and shuffle the block that begins at a place; it has no rows where the epoch is over there."""
        epoch = begin["epoch"]
        size = begin["size"]
        place = begin["part"]
        state = begin["part_state"]
        num_parts = self._parts.num_parts
        # One generator for the order of parts and one for each block: a resumed run draws no
        # numbers for those before.
        order = np.random.default_rng((self._seed, epoch, 0)).permutation(num_parts)
        # The rows of the last block go first, so that no more than one block is in memory.
        self._block = block = []
        while place < num_parts and len(block) < size:
            number = int(order[place])
            if self._reading is None:
                part = self._parts.open(number, state)
                self._reading = (part, iter(part))
            for row, location, row_number in itertools.islice(self._reading[1], size - len(block)):
                row_id = row_number if num_parts == 1 else f"{number}-{row_number}"
                block.append((row, location, row_id))
            if len(block) < size:
                # The part is over; the next one is read from its beginning.
                place += 1
                state = {}
                self._reading = None
        if not block and begin["block"] == 0:
            raise DataError(f"{self.name}: expected at least one row, got none")
        if self._reading is not None:
            state = self._reading[0].state_dict()
        self._end = {"part": place, "part_state": state}
        # With a buffer of one row, rows come in the order of the files.
        if self._buffer_size > 1:
            rng = np.random.default_rng((self._seed, epoch, 1, begin["block"]))
            self._block = [block[index] for index in rng.permutation(len(block))]
        self._begin = begin
        self._num_drawn = 0


def _first_block(epoch: int, size: int, fits: bool | None = None) -> dict[str, Any]:
    """Return where the first block of an epoch begins.

    Args:
        epoch: its number.
        size: rows of the block, if there are as many.
        fits: whether a block holds all rows; None: not found yet, in the first epoch.
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
    stream = RowStream(
        f"{config.dataset}, split {split}", parts, reader, seed, streaming.shuffle_buffer_size
    )
    check_same(config.dataset, split, stream.block)
    return stream
