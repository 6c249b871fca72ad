"""Steps on fixed rows, as `sft`, `self_train` and `reward_model` take them in the loop of a run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import jax

from jaxppo import models
from jaxppo.config import OptimizerConfig, SelfTrainConfig, SFTConfig
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
from jaxppo.run import activity
from jaxppo.run.checkpoints import can_be_saved
from jaxppo.run.loop import StepOutput
from jaxppo.types import Array, Params, Prefetched, Sequences, Stats, TrainState

B = TypeVar("B")

MODEL = "policy"
"""Name of the model in the state: the one under which the update program knows a model that is trained alone."""


def init_state(
    config: OptimizerConfig,
    model: ModelConfig,
    params: Params,
    shape: LoraConfig | None = None,
    adapter: Params | None = None,
) -> TrainState:
    """Return the state before the first step of a model that is trained alone.

    Args:
        config: of the optimizer.
        model: as it is trained.
        params: the model; where nothing is stacked the state shares its memory.
        shape: of an adapter that is trained, with a score head if there is one, on the frozen rest; None: all weights.
        adapter: to start from.
    """
    if shape is None or adapter is None:
        trained = models.for_training(model, params)
        return update.init_state({MODEL: trained}, optimizer.make_optimizer(config))
    # A score head is trained as a whole beside the adapter, so it is no part of what is frozen.
    without_head = {name: tree for name, tree in params.items() if name != "score"}
    base = models.for_training(model, without_head, adapter)
    # Adapters follow their base: a loop over layers needs both as one array.
    is_stacked = stacks.is_stacked(base["trunk"]["layers"])
    trained = stacks.stack(adapter) if is_stacked else dict(adapter)
    if "score" in params:
        trained["score"] = params["score"]
    state = update.init_state({MODEL: trained}, optimizer.make_optimizer(config))
    return state._replace(frozen={MODEL: base})


def whole_model(trained: Params, frozen: Params | None, shape: LoraConfig | None) -> Params:
    """Return a model that is trained alone as `models.apply` takes it, with the adapter attached.

    Args:
        trained: parameters of the state.
        frozen: weights under the adapter, of the state.
        shape: of the adapter; None: all weights are trained.
    """
    if shape is None or frozen is None:
        return trained[MODEL]
    return lora.attach(frozen[MODEL], trained[MODEL], shape.scale)


def sft_loss(
    params: Params, batch: Sequences, weights: Array, *, model: ModelConfig
) -> tuple[Array, Stats]:
    """Compute this device's share of the mean negative log-likelihood of the learned tokens, in nats."""
    logprobs, entropy = rollout.completion_logprobs(params, batch, model=model, temperature=1.0)
    loss = -ops.weighted_sum(logprobs, weights)
    return loss, {"loss": loss, "entropy": ops.weighted_sum(entropy, weights)}


class TrainedAlone:
    """What `SFT` and the training of reward models share: the memory of a step, and fewer rows where it is short."""

    parallel: DataParallel

    @property
    def _trained(self) -> ModelConfig:
        """The architecture as it is trained."""
        raise NotImplementedError

    def _start(self) -> tuple[TrainState, Params]:
        """Return the state before the first step, and the whole model with its layers one by one."""
        raise NotImplementedError

    def _step(
        self, state: TrainState, mini_batches: tuple[Any, Any], *, rates: optimizer.LearningRates
    ) -> Any:
        """Take the optimizer step on a device: see `update.update`."""
        raise NotImplementedError

    def _compiled(self, rates: optimizer.LearningRates) -> Any:
        """Compile `_step` for all devices; the memory of a state is taken over."""
        return self.parallel.map(
            partial(self._step, rates=rates),
            row_axes=(None, 2),
            out_axes=(None, None),
            donate=(0,),
            compiler_options=update.compiler_options([self._trained]),
        )

    @cached_property
    def _shapes(self) -> memory.RunShapes:
        state, weights = jax.eval_shape(self._start)
        trained = self.parallel.shards(state.params)
        persistent = {
            "model to train": trained,
            "optimizer": self.parallel.shards(state.opt_state),
        }
        if state.frozen is not None:
            persistent["frozen base"] = self.parallel.shards(state.frozen)
        return memory.RunShapes(
            [self._trained], persistent, trained, {MODEL: weights}, self.parallel.sizes
        )

    @cached_property
    def room(self) -> int | None:
        """See `memory.activation_budget`."""
        if memory.device_bytes() is None:
            return None
        return memory.activation_budget(self._shapes)

    @cached_property
    def halving(self) -> Halving:
        """Fewer rows of a micro-batch, where there is no memory for those that were planned."""
        return Halving("learning")

    def _budget(
        self, rows: int, micro_batch: tuple[int, int, int], evaluation: Mapping[str, int]
    ) -> memory.Budget:
        """Estimate the memory of steps, and of an evaluation.

        Args:
            rows: of a step, over all devices.
            micro_batch: rows on a device, tokens of a row, predictions of a row.
            evaluation: see `memory.supervised_budget`.
        """
        # The gradient of all micro-batches is one sum, so more of them take no more memory.
        at_once, length, predictions = micro_batch
        num_micro_batches = rows // self.parallel.row_shards // at_once
        shape = (at_once, num_micro_batches, length, predictions)
        return memory.supervised_budget(self._shapes, shape, evaluation)


@dataclass(frozen=True)
class SFT(TrainedAlone):
    """Supervised fine-tuning of one architecture on all devices; its step is compiled once.

    Args:
        config: optimizer, gradient checkpointing, and over how many steps the learning rate decays.
        model: architecture, as it computes.
        parallel: devices.
        length_gaps: `data.length_gaps` of the rows; default: micro-batches are not cut.
        adapter: shape of the adapter that is trained; None: all weights are.
    """

    config: SFTConfig | SelfTrainConfig
    model: ModelConfig
    parallel: DataParallel
    length_gaps: Sequence[int] = ()
    adapter: LoraConfig | None = None

    @property
    def _trained(self) -> ModelConfig:
        return models.with_checkpointing(self.model, self.config.gradient_checkpointing)

    @cached_property
    def program(self) -> Any:
        """The optimizer step: (state, what `weighted` gives) -> (state, stats); the memory of a state is taken over."""
        return self._compiled(
            optimizer.make_learning_rates(self.config.optimizer, self.config.num_updates)
        )

    def _step(
        self,
        state: TrainState,
        mini_batches: tuple[Sequences, Array],
        *,
        rates: optimizer.LearningRates,
    ) -> tuple[TrainState, Stats]:
        def loss(trained: Params, batch: Sequences, weights: Array) -> tuple[Array, Stats]:
            return sft_loss(
                whole_model(trained, state.frozen, self.adapter),
                batch,
                weights,
                model=self._trained,
            )

        return update.update(
            state,
            mini_batches,
            loss=loss,
            optimizer=optimizer.make_optimizer(self.config.optimizer),
            rates=rates,
            axis_name=self.parallel.axes,
            length_gaps=padding.compiled_gaps([self._trained], self.length_gaps),
        )

    def init_state(self, params: Params, adapter: Params | None = None) -> TrainState:
        """Return the state before the first step; where nothing is stacked it shares the memory of the parameters.

        Args:
            params: the model.
            adapter: to start from; default: a fresh one.
        """
        if self.adapter is not None and adapter is None:
            key = ops.purpose_key(self.config.run.seed, ops.Purpose.POLICY_ADAPTER)
            adapter = lora.init_adapter(self.model, self.adapter, key)
        return init_state(self.config.optimizer, self._trained, params, self.adapter, adapter)

    def policy(self, state: TrainState) -> Params:
        """Return the model of a state as `models.apply` takes it."""
        return whole_model(state.params, state.frozen, self.adapter)

    def _start(self) -> tuple[TrainState, Params]:
        params = models.init_params(self.model, jax.random.key(0))
        state = self.init_state(params)
        return state, stacks.unstack(self.policy(state))

    def rows_at_once(self, rows: int, length: int) -> int:
        """Return how many of the rows of a step a device learns from at once, for rows of `length` tokens."""
        # Memory is that of one device, and so are the rows that it is asked for.
        rows //= self.parallel.row_shards
        fitting = memory.rows_at_once(
            [self._trained], length, self.room, self.parallel.sizes[TENSOR]
        )
        at_once = self.halving.rows(min(rows, fitting or rows))
        return rows // memory.num_equal_parts(rows, at_once)

    def _has_one_length(self, rows: SupervisedData) -> bool:
        """See `padding.has_one_length`."""
        rows_of_device = rows.batch_size // self.parallel.row_shards
        parts = rows_of_device // self.rows_at_once(rows.batch_size, rows.length)
        return padding.has_one_length([self._trained], self.length_gaps, rows.length, parts)

    def weighted(self, batch: Sequences) -> tuple[Sequences, Array]:
        """Return the rows of a step and each token's share of the mean, in the fastest micro-batches that fit."""
        learned = batch.completion_mask if batch.loss_mask is None else batch.loss_mask
        # Every learned token of the step weighs the same,
        # however the rows are cut into micro-batches.
        weights = ops.mean_weights(learned, (0, 1))
        rows_at_once = self.rows_at_once(*batch.input_ids.shape)
        # The mask is in the weights: as an array of its own it would only be carried along.
        rows = batch._replace(loss_mask=None)
        return in_parts((rows, weights), rows_at_once, self.parallel)

    def step(
        self, rows: SupervisedData | FreshData
    ) -> Callable[[TrainState, Prefetched, int], StepOutput]:
        """Return the step of a run that learns from these rows."""

        def rows_at_once(batch: Sequences) -> int:
            return self.rows_at_once(*batch.input_ids.shape)

        def batch(number: int) -> Sequences:
            if isinstance(rows, SupervisedData) and self._has_one_length(rows):
                return rows.batch(number, rows.length)
            return rows.batch(number)

        return supervised_step(
            self.program, batch, self.weighted, rows_at_once, self.parallel, self.halving
        )

    def budget(
        self, rows: SupervisedData | FreshData, evaluation: Mapping[str, int]
    ) -> memory.Budget:
        """Estimate the memory of steps on these rows, and of an evaluation: see `memory.supervised_budget`."""
        batch = rows.longest_batch()
        count, length = batch.input_ids.shape
        micro_batch = (self.rows_at_once(count, length), length, batch.completion_ids.shape[1])
        return self._budget(count, micro_batch, evaluation)


def supervised_step(
    program: Callable[[TrainState, Any], Any],
    batch: Callable[[int], B],
    weighted: Callable[[B], tuple[Any, Any]],
    rows_at_once: Callable[[B], int],
    parallel: DataParallel,
    halving: Halving,
) -> Callable[[TrainState, Prefetched, int], StepOutput]:
    """Return the step of a run that learns from fixed rows.

    Args:
        program: (state, what `weighted` gives) -> (state, statistics), on all devices.
        batch: number of the step, from 0 -> its rows, on the host.
        weighted: cuts them into micro-batches [1, M, B / M, ...], with their weights.
        rows_at_once: how many of them a micro-batch has on a device.
        parallel: devices.
        halving: makes `weighted` take fewer at once.
    """

    # The statistics are fetched here, so that an error of the devices is met in this step, not in
    # the next one.
    def learned(state: TrainState, rows: B) -> tuple[TrainState, Stats]:
        new_state, stats = program(state, parallel.put(weighted(rows), 2))
        return new_state, jax.device_get(stats)

    def step(state: TrainState, prefetched: Prefetched, number: int) -> StepOutput:
        del prefetched  # nothing is sampled
        began_s = time.monotonic()
        rows = batch(number)
        with activity.show("learning", compiles=True):
            new_state, stats = halving.repeated(
                lambda: activity.run_interruptibly(lambda: learned(state, rows), takes_state=True),
                lambda: rows_at_once(rows),
                lambda: can_be_saved(state),
            )
        step_s = time.monotonic() - began_s
        record = {"step": number + 1, **stats, "time/step_s": step_s}
        return StepOutput(new_state, record)

    return step


def check_finite(output: StepOutput) -> None:
    """Raise a `TrainingError` after a step whose loss or gradient was not finite: the same rows would give it again."""
    if output.record["policy/nonfinite_steps"]:
        raise TrainingError(
            f"step {output.record['step']}: expected a finite loss and gradient, got NaN or infinity; a lower "
            "learning_rate or max_grad_norm, in a new run"
        )


def in_parts(batch: Any, rows_at_once: int | None, parallel: DataParallel) -> Any:
    """Reshape the mini-batch of a step as the update program takes it: [B, ...] -> [1, M, B / M, ...].

    Args:
        batch: tree of arrays.
        rows_at_once: rows of a micro-batch on each device, at most; None: any number.
        parallel: devices.
    """
    num_rows = jax.tree.leaves(batch)[0].shape[0]
    rows_of_device = num_rows // parallel.row_shards
    parts = memory.num_equal_parts(rows_of_device, rows_at_once)
    return jax.tree.map(lambda x: x.reshape(1, parts, -1, *x.shape[1:]), batch)
