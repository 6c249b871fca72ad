"""Rows that are read while a run goes on (`--streaming`), for data that are larger than memory.

The order of rows is a function of the seed and of the data alone. A checkpoint says where the block begins that rows
are drawn from, and how many of them were drawn; a resumed run reads that block again, and goes on with the next row.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxppo.config import DataConfig, StreamingConfig
from jaxppo.data.batches import Batch, bucket, length_gaps, padded_size, prompt_batch
from jaxppo.data.chat_template import ChatTemplate
from jaxppo.data.rows import (
    PROMPT_ONLY,
    Row,
    RowReader,
    check_same,
    column_names,
    find_dataset,
    hugging_face_table,
)
from jaxppo.data.tokens import RowLimit, encode_prompts, encode_rows, limited_rows, prompt_lengths
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

    count: int
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
        if self._end["part"] < self._parts.count:
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
        order = np.random.default_rng((self._seed, epoch, 0)).permutation(self._parts.count)
        self._block = block = []
        while True:
            number = int(order[place])
            if self._reading is None:
                part = self._parts.open(number, state)
                self._reading = part, iter(part)
            part, rows = self._reading
            for row, where, count in itertools.islice(rows, begin["size"] - len(block)):
                block.append((row, where, count if self._parts.count == 1 else f"{number}-{count}"))
            if len(block) == begin["size"]:
                self._end = {"part": place, "part_state": part.state_dict()}
                break
            place, state, self._reading = place + 1, {}, None
            if place == self._parts.count:
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


# --- the rows of each step


class Selected(NamedTuple):
    """What is learned from of some rows."""

    rows: list[Any]
    overlong: int  # how many were too long
    left_out: int  # how many of these are not among the rows


Select = Callable[[Sequence[Row]], Selected]


def select_supervised(
    tokenizer: Any, config: DataConfig, template: ChatTemplate, limit: RowLimit | None, *, assistant_only: bool = False
) -> Select:
    """Return what makes `EncodedRow`s of rows, as `SupervisedData` does.

    Args:
        tokenizer: of the model.
        config: limits of prompts.
        template: how prompts stand in front of the model.
        limit: what becomes of long rows; None: they stay.
        assistant_only: see `encode_rows`.
    """
    # A long prompt is part of a long row.
    longest = config.longest_prompt if limit is None else None

    def select(rows: Sequence[Row]) -> Selected:
        fitting = _fitting(tokenizer, rows, config, template)
        encoded = encode_rows(tokenizer, fitting, longest, template, assistant_only=assistant_only)
        limited = limited_rows(fitting, encoded, limit)
        overlong = len(rows) - len(fitting)
        return Selected(limited.rows, limited.overlong + overlong, limited.left_out + overlong)

    return select


def select_prompts(tokenizer: Any, config: DataConfig, template: ChatTemplate, longest: int) -> Select:
    """Return what makes of rows pairs of a row and the token ids of its prompt, as `PromptData` does.

    Args:
        tokenizer: of the model.
        config: whether long prompts are left out.
        template: how prompts stand in front of the model.
        longest: most tokens of a prompt.
    """

    def select(rows: Sequence[Row]) -> Selected:
        fitting = _fitting(tokenizer, rows, config, template)
        encoded = encode_prompts(tokenizer, fitting, longest, template=template)
        overlong = len(rows) - len(fitting)
        return Selected(list(zip(fitting, encoded, strict=True)), overlong, overlong)

    return select


def _fitting(tokenizer: Any, rows: Sequence[Row], config: DataConfig, template: ChatTemplate) -> Sequence[Row]:
    """Return the rows whose prompts are no longer than `filter_overlong_prompts` lets them be."""
    if not config.filter_overlong_prompts:
        return rows
    most = config.longest_prompt
    assert most is not None
    lengths = prompt_lengths(tokenizer, rows, template)
    return [row for row, length in zip(rows, lengths, strict=True) if length <= most]


class StepRows:
    """The rows that the steps of a run learn from; steps come in order, and the last two can be asked for again.

    Args:
        stream: of rows.
        batch_size: rows of a step.
        select: what is learned from of the rows that are drawn; others take the place of those left out.
        warn: told once that there are rows that are too long.

    Attributes:
        stream: of rows.
    """

    def __init__(self, stream: RowStream, batch_size: int, select: Select, warn: Callable[[str], None]):
        self.stream, self._batch_size, self._select, self._warn = stream, batch_size, select, warn
        self._rows: dict[int, list[Any]] = {}
        self._counts = {"read": 0, "overlong": 0, "left_out": 0}
        self._first_state = self._state()
        self._states = {0: self._first_state}

    def __call__(self, step: int) -> list[Any]:
        """Return the rows of step `step` (0-based).

        Raises:
            DataError: a row is malformed or too long, or cannot be read; or there is none that is not left out.
        """
        if step not in self._rows:
            if step != max(self._states):
                raise ValueError(f"step: expected {max(self._states)}, the next one, got {step}")
            self._rows[step] = self._draw()
            self._states[step + 1] = self._state()
            # A checkpoint is of the step before at the earliest, also where the next batch is sampled ahead.
            self._rows = {number: rows for number, rows in self._rows.items() if number >= step - 1}
            self._states = {number: state for number, state in self._states.items() if number >= step - 1}
        return self._rows[step]

    def epoch(self, step: int) -> float:
        """Return how many passes over all rows are done before a step: a whole number."""
        return float(self._states[step]["stream"]["begin"]["epoch"])

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return what a run goes on from before a step, as JSON keeps it."""
        return self._states[step]

    def load_state_dict(self, step: int, state: dict[str, Any] | None) -> None:
        """Go on before a step.

        Args:
            step: its number, from 0.
            state: of a checkpoint; where it has none, or that of other data, the first rows come next.
        """
        if state is None or state["name"] != self.stream.name:
            self._warn(f"{self.stream.name}: the checkpoint was not made with these rows: the first of them come next")
            state = self._first_state
        self.stream.load_state_dict(state["stream"])
        self._counts = dict(state["counts"])
        self._rows, self._states = {}, {step: state}

    def describe(self) -> str:
        """Say how many rows were read so far, and what became of those that are too long."""
        read, overlong, left_out = self._counts.values()
        text = f"{read} rows of {self.stream.name} read, over {self.stream.epoch} whole passes"
        return f"{text}; {overlong} too long: {overlong - left_out} cut, {left_out} left out" if overlong else text

    def _state(self) -> dict[str, Any]:
        return {"name": self.stream.name, "stream": self.stream.state_dict(), "counts": dict(self._counts)}

    def _draw(self) -> list[Any]:
        rows: list[Any] = []
        epoch = self.stream.epoch
        while len(rows) < self._batch_size:
            wanted = self._batch_size - len(rows)
            drawn = self.stream.draw(wanted)
            selected = self._select(drawn)
            if selected.overlong and not self._counts["overlong"]:
                self._warn(f"{self.stream.name}: there are rows that are too long; they are counted")
            self._counts["read"] += wanted
            self._counts["overlong"] += selected.overlong
            self._counts["left_out"] += selected.left_out
            rows += selected.rows
            if not rows and self.stream.epoch > epoch + 1:
                got = f"none in a whole pass, {self._counts['left_out']} of them too long"
                raise DataError(f"{self.stream.name}: expected a row that is not left out, got {got}")
        return rows


class StreamedPrompts:
    """Training prompts that are read as they are needed; see `PromptData`.

    Args:
        step_rows: pairs of a row and the token ids of its prompt.
        batch_size: G, prompts per batch.
        seed: of the order.
        max_prompt_length: longest prompt allowed.
        pad_id: of the tokenizer.

    Attributes:
        longest: `max_prompt_length`, as the longest prompt is not known before.
        prompt_length: what a batch is padded to at most.
        length_gaps: `length_gaps` of the first batch.
        columns: names of the columns that reward functions get.
    """

    num_rows = None

    def __init__(self, step_rows: StepRows, batch_size: int, seed: int, max_prompt_length: int, pad_id: int):
        self.step_rows, self.batch_size, self.seed, self._pad_id = step_rows, batch_size, seed, pad_id
        self.longest, self.prompt_length = max_prompt_length, bucket(max_prompt_length)
        pairs = step_rows(0)
        self.length_gaps = length_gaps([len(ids) for _, ids in pairs])
        self.columns = column_names([*(row for row, _ in pairs), *step_rows.stream.block])

    def batch(self, step: int, drawn: None = None) -> Batch:
        """Return the batch of update `step` (0-based), padded to one of few sizes."""
        pairs = self.step_rows(step)
        rows, encoded = [row for row, _ in pairs], [ids for _, ids in pairs]
        length = padded_size(max(map(len, encoded)), self.prompt_length)
        columns = dict.fromkeys([*self.columns, *column_names(rows)])
        return prompt_batch(rows, encoded, list(columns), length, self._pad_id)

    def epoch(self, step: int) -> float:
        """Return how many whole passes over the rows are done before a step."""
        return self.step_rows.epoch(step)
