"""Steps on fixed rows, as `sft`, `self_train` and `reward_model` take them in the loop of a run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import jax

from jaxppo import models
from jaxppo.config import SelfTrainConfig, SFTConfig
from jaxppo.data import FreshData, SupervisedData
from jaxppo.errors import TrainingError
from jaxppo.nn import ModelConfig, lora
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel import stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.parallel.partition import TENSOR
from jaxppo.profiling import memory
from jaxppo.profiling.halving import Halving
from jaxppo.rl import ops, optimizer, padding, rollout, update
from jaxppo.rl.trained_models import split_adapters
from jaxppo.run import activity
from jaxppo.run.checkpoints import can_be_saved
from jaxppo.run.loop import StepOutput
from jaxppo.types import Array, Params, Prefetched, Sequences, Stats, TrainState

MODEL = "policy"
"""Name of the model in the state: the one under which the update program knows a model that is trained alone."""


def sft_loss(
    params: Params, batch: Sequences, weights: Array, *, model: ModelConfig
) -> tuple[Array, Stats]:
    """Compute this device's share of the mean negative log-likelihood of the learned tokens, in nats."""
    logprobs, entropy = rollout.completion_logprobs(params, batch, model=model, temperature=1.0)
    loss = -ops.weighted_sum(logprobs, weights)
    return loss, {"loss": loss, "entropy": ops.weighted_sum(entropy, weights)}


@dataclass(frozen=True)
class TrainedAlone:
    """One architecture that is trained alone on all devices: what `SFT` and the training of reward models share.

    Args:
        config: optimizer, gradient checkpointing, and over how many steps the learning rate decays.
        model: architecture, as it computes.
        parallel: devices.
        length_gaps: `data.length_gaps` of the rows; default: micro-batches are not cut.
        adapter: shape of the adapter that is trained; None: all weights are.
    """

    config: Any
    model: ModelConfig
    parallel: DataParallel
    length_gaps: Sequence[int] = ()
    adapter: LoraConfig | None = None

    head: ClassVar[str] = "lm"
    """As in `models.init_params`."""
    texts_per_row: ClassVar[int] = 1
    """That the model reads of each row of the data."""

    def loss(self, params: Params, batch: Any, weights: Array) -> tuple[Array, Stats]:
        """Compute the loss of a micro-batch: see `update.Loss`."""
        raise NotImplementedError

    def with_weights(self, batch: Any) -> tuple[Any, Any]:
        """Return the rows of a step, and each one's or each token's share of the mean."""
        raise NotImplementedError

    @property
    def trained(self) -> ModelConfig:
        """The architecture as it is trained."""
        return models.with_checkpointing(self.model, self.config.gradient_checkpointing)

    def init_state(self, params: Params, adapter: Params | None = None) -> TrainState:
        """Return the state before the first step; where nothing is stacked it shares the memory of the parameters.

        Args:
            params: the model; with an adapter its trunk is frozen, and a score head is trained as a whole beside it.
            adapter: to start from; default: a fresh one.
        """
        frozen = None
        if self.adapter is not None and adapter is None:
            key = ops.purpose_key(self.config.run.seed, ops.Purpose.POLICY_ADAPTER)
            adapter = lora.init_adapter(self.model, self.adapter, key)
        trained = {MODEL: models.for_training(self.trained, params, adapter)}
        if adapter is not None:
            trained, frozen = split_adapters(trained, {MODEL: adapter})
        state = update.init_state(trained, optimizer.make_optimizer(self.config.optimizer))
        return state._replace(frozen=frozen)

    def whole_model(self, state: TrainState) -> Params:
        """Return the model of a state as `models.apply` takes it, with the adapter attached."""
        if self.adapter is None or state.frozen is None:
            return state.params[MODEL]
        return lora.attach(state.frozen[MODEL], state.params[MODEL], self.adapter.scale)

    def make_step(self, num_steps: int) -> Any:
        """Compile the optimizer step: (state, what `weighted` gives) -> (state, stats); takes the state's memory over.

        Args:
            num_steps: over which the learning rate decays.
        """
        rates = optimizer.make_learning_rates(self.config.optimizer, num_steps)
        return self.parallel.map(
            partial(self._step, rates=rates),
            row_axes=(None, 2),
            out_axes=(None, None),
            donate=(0,),
            compiler_options=update.compiler_options([self.trained]),
        )

    def _step(
        self, state: TrainState, mini_batches: tuple[Any, Any], *, rates: optimizer.LearningRates
    ) -> tuple[TrainState, Stats]:
        def loss(params: Params, batch: Any, weights: Array) -> tuple[Array, Stats]:
            return self.loss(self.whole_model(state._replace(params=params)), batch, weights)

        return update.update(
            state,
            mini_batches,
            loss=loss,
            optimizer=optimizer.make_optimizer(self.config.optimizer),
            rates=rates,
            axis_name=self.parallel.axes,
            length_gaps=padding.compiled_gaps([self.trained], self.length_gaps),
        )

    # --- how many rows at once

    @cached_property
    def _shapes(self) -> memory.RunShapes:
        def start() -> tuple[TrainState, Params]:
            params = models.init_params(self.model, jax.random.key(0), self.head)
            state = self.init_state(params)
            return state, stacks.unstack(self.whole_model(state))

        state, weights = jax.eval_shape(start)
        trained = self.parallel.shards(state.params)
        persistent = {
            "model to train": trained,
            "optimizer": self.parallel.shards(state.opt_state),
        }
        if state.frozen is not None:
            persistent["frozen base"] = self.parallel.shards(state.frozen)
        return memory.RunShapes(
            [self.trained], persistent, trained, {MODEL: weights}, self.parallel.sizes
        )

    @cached_property
    def room(self) -> int | None:
        """See `memory.activation_budget`."""
        # Shapes take a trace of the model.
        return None if memory.device_bytes() is None else memory.activation_budget(self._shapes)

    @cached_property
    def halving(self) -> Halving:
        """Fewer rows of a micro-batch, where there is no memory for those that were planned."""
        return Halving("learning")

    def rows_at_once(self, rows: int, length: int) -> int:
        """Return how many of the rows of a step a device learns from at once, for texts of `length` tokens."""
        # Memory is that of one device, and so are the rows that it is asked for.
        rows //= self.parallel.row_shards
        fitting = memory.rows_at_once(
            [self.trained], length, self.room, self.parallel.sizes[TENSOR]
        )
        at_once = rows if fitting is None else min(rows, max(1, fitting // self.texts_per_row))
        return rows // memory.num_equal_parts(rows, self.halving.rows(at_once))

    def _rows_of_batch_at_once(self, batch: Any) -> int:
        # The first array of a batch holds the ids of a text of each row.
        num_rows, length = jax.tree.leaves(batch)[0].shape
        return self.rows_at_once(num_rows, length)

    def budget_of(
        self, rows: int, length: int, predictions: int, evaluation: Mapping[str, int]
    ) -> memory.Budget:
        """Estimate the memory of steps, and of an evaluation.

        Args:
            rows: of a step, over all devices.
            length: tokens of a text.
            predictions: of a text.
            evaluation: see `memory.supervised_budget`.
        """
        # The gradient of all micro-batches is one sum, so more of them take no more memory.
        at_once = self.rows_at_once(rows, length)
        num_micro_batches = rows // self.parallel.row_shards // at_once
        shape = (at_once * self.texts_per_row, num_micro_batches, length, predictions)
        return memory.supervised_budget(self._shapes, shape, evaluation)

    # --- steps

    def weighted(self, batch: Any) -> tuple[Any, Any]:
        """Return the rows of a step with their weights, in the fastest micro-batches that fit: [1, M, B / M, ...]."""
        rows = jax.tree.leaves(batch)[0].shape[0] // self.parallel.row_shards
        parts = rows // self._rows_of_batch_at_once(batch)

        def in_parts(x: Any) -> Any:
            return x.reshape(1, parts, -1, *x.shape[1:])

        return jax.tree.map(in_parts, self.with_weights(batch))

    def step_on(
        self, program: Callable[[TrainState, Any], Any], batch: Callable[[int], Any]
    ) -> Callable[[TrainState, Prefetched, int], StepOutput]:
        """Return the step of a run.

        Args:
            program: from `make_step`.
            batch: number of the step, from 0 -> its rows, on the host.
        """

        # The statistics are fetched here, so that an error of the devices is met in this step, not in
        # the next one.
        def learned(state: TrainState, rows: Any) -> tuple[TrainState, Stats]:
            new_state, stats = program(state, self.parallel.put(self.weighted(rows), 2))
            return new_state, jax.device_get(stats)

        def step(state: TrainState, prefetched: Prefetched, number: int) -> StepOutput:
            del prefetched  # nothing is sampled
            began_s = time.monotonic()
            rows = batch(number)
            with activity.show("learning", compiles=True):
                new_state, stats = self.halving.repeated(
                    lambda: activity.run_interruptibly(
                        lambda: learned(state, rows), takes_state=True
                    ),
                    lambda: self._rows_of_batch_at_once(rows),
                    lambda: can_be_saved(state),
                )
            step_s = time.monotonic() - began_s
            record = {"step": number + 1, **stats, "time/step_s": step_s}
            return StepOutput(new_state, record)

        return step


class SFT(TrainedAlone):
    """Supervised fine-tuning of one architecture on all devices; its step is compiled once."""

    config: SFTConfig | SelfTrainConfig

    @cached_property
    def program(self) -> Any:
        """The optimizer step: see `make_step`."""
        return self.make_step(self.config.num_updates)

    def loss(self, params: Params, batch: Sequences, weights: Array) -> tuple[Array, Stats]:
        """See `sft_loss`."""
        return sft_loss(params, batch, weights, model=self.trained)

    def with_weights(self, batch: Sequences) -> tuple[Sequences, Array]:
        """Return the rows of a step, and each token's share of the mean."""
        learned = batch.completion_mask if batch.loss_mask is None else batch.loss_mask
        # Every learned token of the step weighs the same,
        # however the rows are cut into micro-batches.
        weights = ops.mean_weights(learned, (0, 1))
        # The mask is in the weights: as an array of its own it would only be carried along.
        return batch._replace(loss_mask=None), weights

    def _has_one_length(self, rows: SupervisedData) -> bool:
        """See `padding.has_one_length`."""
        rows_of_device = rows.batch_size // self.parallel.row_shards
        parts = rows_of_device // self.rows_at_once(rows.batch_size, rows.length)
        return padding.has_one_length([self.trained], self.length_gaps, rows.length, parts)

    def step(
        self, rows: SupervisedData | FreshData
    ) -> Callable[[TrainState, Prefetched, int], StepOutput]:
        """Return the step of a run that learns from these rows."""

        def batch(number: int) -> Sequences:
            if isinstance(rows, SupervisedData) and self._has_one_length(rows):
                return rows.batch(number, rows.length)
            return rows.batch(number)

        return self.step_on(self.program, batch)

    def budget(
        self, rows: SupervisedData | FreshData, evaluation: Mapping[str, int]
    ) -> memory.Budget:
        """Estimate the memory of steps on these rows, and of an evaluation: see `memory.supervised_budget`."""
        batch = rows.longest_batch()
        count, length = batch.input_ids.shape
        return self.budget_of(count, length, batch.completion_ids.shape[1], evaluation)


def check_finite(output: StepOutput) -> None:
    """Raise a `TrainingError` after a step whose loss or gradient was not finite: the same rows would give it again."""
    if output.record["policy/nonfinite_steps"]:
        raise TrainingError(
            f"step {output.record['step']}: expected a finite loss and gradient, got NaN or infinity; a lower "
            "learning_rate or max_grad_norm, in a new run"
        )
