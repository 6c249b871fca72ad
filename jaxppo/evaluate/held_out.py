"""What supervised training measures on held-out rows: the loss of reference completions, and scores of answers.

The loss is that of the steps (`rl.supervised.sft_loss`), of rows that are encoded as theirs are, in forward passes
alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxppo import data, models
from jaxppo.config import SFTConfig
from jaxppo.data import ChatTemplate, EncodedRow, Row
from jaxppo.evaluate.evaluator import Evaluator
from jaxppo.evaluate.plan_metrics import Measures
from jaxppo.nn import ModelConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory, sizes
from jaxppo.profiling.halving import Halving
from jaxppo.rl import ops
from jaxppo.rl.supervised import sft_loss
from jaxppo.run import activity, preemption
from jaxppo.types import Array, Params, Sequences

Splits = Mapping[str, Sequence[EncodedRow]]
"""{split: rows, as they would be learned}."""


class ReferenceLoss:
    """Measures the loss of splits; call it with the parameters of a language model.

    Args:
        model: architecture, as it computes.
        parallel: devices.
        pad_id: of the tokenizer.
        batch_size: most rows read at once, over all devices (rounded up to a multiple of them).
        room: bytes of a device, see `memory.scored_rows`; None: not known.
    """

    def __init__(
        self,
        model: ModelConfig,
        parallel: DataParallel,
        pad_id: int,
        batch_size: int,
        room: int | None = None,
    ):
        self._model = model
        self._parallel = parallel
        self._pad_id = pad_id
        self._batch_size = batch_size
        self._room = room
        self._halving = Halving("held-out loss")
        self._program = parallel.map(self._share_of_loss, row_axes=(None, 0, 0), out_axes=None)

    def __call__(self, params: Params, splits: Splits) -> dict[str, Measures]:
        """Compute the mean negative log-likelihood over all learned tokens of each split.

        Args:
            params: of the language model, adapters attached.
            splits: their rows; a split without a learned token is left out.

        Returns:
            {split: {"loss": nats per token, "loss_tokens": number of tokens}}.
        """
        completion_length = _longest_completion(splits)
        results: dict[str, Measures] = {}
        for split, rows in splits.items():
            num_tokens = sum(row.num_learned for row in rows)
            if num_tokens:
                loss = self._loss(params, rows, num_tokens, completion_length)
                results[split] = {"loss": loss, "loss_tokens": num_tokens}
        return results

    def memory(self, splits: Splits) -> dict[str, int]:
        """Return the bytes that the longest rows take on a device beside the weights; {} without a row."""
        rows_of_splits = [rows for rows in splits.values() if rows]
        if not rows_of_splits:
            return {}
        length = data.padded_size(max(row.length for rows in rows_of_splits for row in rows))
        num_rows = max(map(len, rows_of_splits))
        rows = self._rows_at_once(num_rows, length) // self._parallel.row_shards
        predictions = rows * min(length, _longest_completion(splits))
        return {
            "activations": sizes.scored_bytes(self._model, rows, length),
            "logits": sizes.logits_bytes(self._model, predictions),
        }

    def _loss(
        self,
        params: Params,
        rows: Sequence[EncodedRow],
        num_tokens: int,
        completion_length: int,
    ) -> float:
        # The longest first: rows of like length share a batch, and
        # the batch that is filled up with padding is a short one.
        remaining = sorted(rows, key=lambda row: row.length, reverse=True)
        # A row without a completion adds nothing.
        empty_row = EncodedRow([self._pad_id], [])

        def next_length() -> int:
            return data.padded_size(remaining[0].length, self._model.max_length)

        def rows_at_once() -> int:
            return self._rows_at_once(len(rows), next_length())

        # Where memory runs out, `_halving` calls this again, and it takes fewer rows.
        def compute_next() -> tuple[float, int]:
            size = rows_at_once()
            batch = remaining[:size]
            filled = [*batch, *[empty_row] * (size - len(batch))]
            length = next_length()
            sequences = data.packed(filled, length, min(length, completion_length), self._pad_id)
            learned = sequences.loss_mask
            if learned is None:
                learned = sequences.completion_mask
            # Every token's share of the mean over the whole split: the sum over
            # batches and devices is that mean, however the rows are cut into them.
            weights = np.asarray(learned, np.float32) / num_tokens
            inputs = (sequences._replace(loss_mask=None), weights)

            def compute() -> float:
                share = self._program(params, *self._parallel.put(inputs, 0))
                return float(self._parallel.to_host(share))

            return activity.run_interruptibly(compute), len(batch)

        loss = 0.0
        with activity.show("held-out loss", len(rows), compiles=True) as progress:
            while remaining:
                preemption.check()
                part, count = self._halving.repeated(compute_next, rows_at_once)
                loss += part
                remaining = remaining[count:]
                progress.done += count
        return loss

    def _share_of_loss(self, params: Params, rows: Sequences, weights: Array) -> Array:
        """Compute what a batch adds to the mean of its split, all devices together: []."""
        loss, _ = sft_loss(params, rows, weights, model=self._model)
        return ops.global_sum(loss, self._parallel.axes)

    def _rows_at_once(self, num_rows: int, length: int) -> int:
        """Return how many of some rows of `length` tokens are read at once, over all devices."""
        shards = self._parallel.row_shards
        # Few rows are padded to one of few numbers, as each is a program of its own.
        rows = min(self._batch_size, data.padded_size(num_rows, min_size=1))
        rows_of_device = data.bucket(rows, shards) // shards
        fitting = memory.scored_rows([self._model], length, self._room)
        return shards * self._halving.rows(min(rows_of_device, fitting or rows_of_device))


def _longest_completion(splits: Splits) -> int:
    """Return to how many tokens completions are padded: one number, so that batches differ in their length alone."""
    lengths = [len(row.completion) for rows in splits.values() for row in rows]
    return data.padded_size(max(lengths, default=1))


class HeldOut(NamedTuple):
    """What evaluations look at, and what measures it."""

    # Rows with a reference completion, as they would be learned
    rows: Splits
    # Those of evaluations during training
    fixed_rows: Splits
    loss: ReferenceLoss
    # Of answers; None: nothing scores them.
    evaluator: Evaluator | None

    def measure(self, params: Params, *, fixed_rows_only: bool = False) -> dict[str, Measures]:
        """Return {split: results}: those of `Evaluator`, if there is one, and of `ReferenceLoss`.

        Args:
            params: of the language model.
            fixed_rows_only: see `Evaluator`.
        """
        results: dict[str, Measures] = {}
        if self.evaluator is not None:
            results = self.evaluator(params, fixed_rows_only=fixed_rows_only)
        losses = self.loss(params, self.fixed_rows if fixed_rows_only else self.rows)
        # The order of eval_splits: a split may have answers alone, or a loss alone.
        return {
            split: results.get(split, {}) | losses.get(split, {})
            for split in self.rows
            if split in results or split in losses
        }

    @property
    def memory(self) -> dict[str, int]:
        """The bytes that an evaluation takes on a device beside the weights: of its stage that takes more."""
        answers = {} if self.evaluator is None else self.evaluator.memory
        return max(answers, self.loss.memory(self.rows), key=lambda parts: sum(parts.values()))

    @property
    def loss_names(self) -> list[str]:
        """The names that `eval_metrics` has for the losses of an evaluation of the fixed rows."""
        return [
            f"eval/{split}/loss"
            for split, rows in self.fixed_rows.items()
            if any(row.num_learned for row in rows)
        ]


def encode_held_out(
    config: SFTConfig,
    model: ModelConfig,
    tokenizer: Any,
    template: ChatTemplate,
    split: str,
    rows: Sequence[Row],
    tell: Callable[[str], None] | None = None,
) -> list[EncodedRow]:
    """Encode the rows of an evaluation split as those of training are.

    Args:
        config: says what is learned of a row, and how long it may be.
        model: a row may have the tokens that it was made for, unless max_length says more.
        tokenizer: of the model.
        template: how the model gets the texts of a row.
        split: name of the split.
        rows: of the split; those without a completion are left out.
        tell: gets a line where rows are cut or left out.

    Raises:
        DataError: as for `data.encode_rows` and `data.within_limit`.
    """
    # A reward function scores answers to rows without one, too.
    complete = [row for row in rows if isinstance(row.get("completion"), str)]
    made_for, _ = models.made_for(model, tokenizer.model_max_length)
    max_prompt_length, limit = data.limits_of(config, made_for)
    if model.max_length is not None and model.max_length < limit.max_length:
        # Such rows of train_split are an error. Held-out ones do not stop a run that could do without them.
        limit = data.RowLimit(model.max_length, limit.overlong)
    encoded = data.encode_rows(
        tokenizer,
        complete,
        max_prompt_length,
        template,
        assistant_only=config.assistant_only_loss,
    )
    within = data.within_limit(complete, encoded, limit)
    if tell is not None:
        if len(complete) < len(rows):
            count = len(rows) - len(complete)
            tell(f"loss of split {split}: {count} of {len(rows)} rows left out: no completion")
        if within.overlong:
            tell(
                f"loss of split {split}: {within.overlong} of {len(rows)} rows longer than {limit.max_length} tokens: "
                f"{within.overlong - within.left_out} cut, {within.left_out} left out"
            )
    return within.rows
