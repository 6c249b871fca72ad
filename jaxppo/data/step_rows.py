"""What the steps of a run learn from, where rows are read while it goes on."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxppo.config import DataConfig
from jaxppo.data.batches import bucket, length_gaps, padded_size, prompt_batch
from jaxppo.data.chat_template import ChatTemplate
from jaxppo.data.encoding import encode_prompts, encode_rows
from jaxppo.data.overlong import LimitedRows, RowLimit, fitting_rows, limited_rows
from jaxppo.data.rows import Row, column_names
from jaxppo.data.streaming import RowStream
from jaxppo.errors import DataError
from jaxppo.types import Batch, Curriculum

Select = Callable[[Sequence[Row]], LimitedRows]


def select_supervised(
    tokenizer: Any,
    config: DataConfig,
    template: ChatTemplate,
    limit: RowLimit | None,
    *,
    assistant_only: bool = False,
) -> Select:
    """Return the function from rows to `EncodedRow`s, as `SupervisedData` has them.

    Args:
        tokenizer: of the model.
        config: limits of prompts.
        template: how the model gets the texts of a row.
        limit: what becomes of long rows; None: they stay.
        assistant_only: see `encode_rows`.
    """
    # A prompt that is too long is part of a row that is too long, which the limit is for.
    longest = config.longest_prompt if limit is None else None

    def select(rows: Sequence[Row]) -> LimitedRows:
        fitting = fitting_rows(tokenizer, rows, config, template)
        encoded = encode_rows(tokenizer, fitting, longest, template, assistant_only=assistant_only)
        limited = limited_rows(fitting, encoded, limit)
        overlong = len(rows) - len(fitting)
        return LimitedRows(limited.rows, limited.overlong + overlong, limited.left_out + overlong)

    return select


def select_prompts(
    tokenizer: Any,
    config: DataConfig,
    template: ChatTemplate,
    longest: int,
) -> Select:
    """Return the function from rows to pairs of a row and the token ids of its prompt, as `PromptData` has them.

    Args:
        tokenizer: of the model.
        config: whether long prompts are left out.
        template: how the model gets the texts of a row.
        longest: most tokens of a prompt.
    """

    def select(rows: Sequence[Row]) -> LimitedRows:
        fitting = fitting_rows(tokenizer, rows, config, template)
        encoded = encode_prompts(tokenizer, fitting, longest, template=template)
        overlong = len(rows) - len(fitting)
        return LimitedRows(list(zip(fitting, encoded, strict=True)), overlong, overlong)

    return select


class StepRows:
    """The rows that the steps of a run learn from; steps come in order, and the last two can be asked for again.

    Rows that are too long are left out when they are drawn, so that the number of rows a step has read is not known
    before. That is why the state of the stream is kept for each step, and why a step cannot be asked for at random.

    Args:
        stream: of rows.
        batch_size: rows of a step.
        select: what is learned from of the rows that are drawn; others take the place of those left out.
        warn: called once when there are rows that are too long.

    Attributes:
        stream: of rows.
    """

    def __init__(
        self,
        stream: RowStream,
        batch_size: int,
        select: Select,
        warn: Callable[[str], None],
    ):
        self.stream = stream
        self._batch_size = batch_size
        self._select = select
        self._warn = warn
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
            next_step = max(self._states)
            if step != next_step:
                raise ValueError(f"step: expected {next_step}, the next one, got {step}")
            self._rows[step] = self._draw()
            self._states[step + 1] = self._state()
            # Where the next batch is sampled ahead, a checkpoint is of the step before this one;
            # never of an older one.
            self._rows.pop(step - 2, None)
            self._states.pop(step - 2, None)
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
            self._warn(
                f"{self.stream.name}: the checkpoint was not made with these rows: the first of them come next"
            )
            state = self._first_state
        self.stream.load_state_dict(state["stream"])
        self._counts = dict(state["counts"])
        self._rows, self._states = {}, {step: state}

    def describe(self) -> str:
        """Say how many rows were read so far, and what became of those that are too long."""
        counts = self._counts
        text = f"{counts['read']} rows of {self.stream.name} read, over {self.stream.epoch} whole passes"
        if counts["overlong"]:
            num_cut = counts["overlong"] - counts["left_out"]
            text += f"; {counts['overlong']} too long: {num_cut} cut, {counts['left_out']} left out"
        return text

    def _state(self) -> dict[str, Any]:
        return {
            "name": self.stream.name,
            "stream": self.stream.state_dict(),
            "counts": dict(self._counts),
        }

    def _draw(self) -> list[Any]:
        rows: list[Any] = []
        first_epoch = self.stream.epoch
        counts = self._counts
        while len(rows) < self._batch_size:
            num_missing = self._batch_size - len(rows)
            selected = self._select(self.stream.draw(num_missing))
            if selected.overlong and not counts["overlong"]:
                self._warn(
                    f"{self.stream.name}: there are rows that are too long; they are counted"
                )
            counts["read"] += num_missing
            counts["overlong"] += selected.overlong
            counts["left_out"] += selected.left_out
            rows += selected.rows
            # Two epochs on, a whole pass is over. Without this, rows that are all too long would be
            # read for ever.
            if not rows and self.stream.epoch > first_epoch + 1:
                raise DataError(
                    f"{self.stream.name}: expected a row that is not left out, got none in a whole pass, "
                    f"{counts['left_out']} of them too long"
                )
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

    def __init__(
        self,
        step_rows: StepRows,
        batch_size: int,
        seed: int,
        max_prompt_length: int,
        pad_id: int,
    ):
        self.step_rows = step_rows
        self.batch_size = batch_size
        self.seed = seed
        # Nobody has seen all prompts, so memory is planned for the longest that is allowed.
        self.longest = max_prompt_length
        self.prompt_length = bucket(max_prompt_length)
        self._pad_id = pad_id
        pairs = step_rows(0)
        self.length_gaps = length_gaps([len(ids) for _, ids in pairs])
        first_rows = [row for row, _ in pairs]
        self.columns = column_names(first_rows + step_rows.stream.block)

    def batch(self, step: int, curriculum: Curriculum | None = None) -> Batch:
        """Return the batch of update `step` (0-based), padded to one of few sizes; no curriculum draws the rows."""
        del curriculum
        pairs = self.step_rows(step)
        rows = [row for row, _ in pairs]
        encoded = [ids for _, ids in pairs]
        length = padded_size(max(map(len, encoded)), self.prompt_length)
        # Later rows may have columns that the first ones lack.
        columns = list(dict.fromkeys([*self.columns, *column_names(rows)]))
        return prompt_batch(rows, encoded, columns, length, self._pad_id)

    def epoch(self, step: int) -> float:
        """Return how many whole passes over the rows are done before a step."""
        return self.step_rows.epoch(step)
