"""The stages of an update, compiled for all devices: generate, pack, score, make_trajectories, update.

`step.py` calls them in a straight line; so can any other loop, with rewards of its own.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import data, models
from jaxppo.config import TrainConfig
from jaxppo.errors import DataError
from jaxppo.nn import ModelConfig, map_in_chunks
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel import stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.parallel.partition import TENSOR
from jaxppo.profiling import memory
from jaxppo.profiling.halving import Halving
from jaxppo.rl import losses, ops, optimizer, padding, rollout, trajectories, update
from jaxppo.rl.trained_models import TrainedModels
from jaxppo.run.checkpoints import can_be_saved
from jaxppo.types import (
    Array,
    ModelOutputs,
    Params,
    PromptBatch,
    Rollout,
    Sequences,
    Stats,
    TrainState,
    Trajectories,
    Weights,
)


class Learner(TrainedModels):
    """Compiled programs of one policy architecture, for any algorithm of the table.

    A program is compiled on its first call, for the shapes of that call; the attributes that end in `_program` are what
    `--target` compiles for absent devices.

    Args:
        config: hyper-parameters; `total_episodes` must be known (`TrainConfig.with_episodes`).
        model: architecture of policy, reference and a separate value model.
        eos_id: ends a completion, as do the `end_ids` of its source, unless the configuration names another stop token.
        pad_id: fills what lies outside the masks.
        parallel: devices.
        value_model: architecture of a separate value model; default: the policy's.
        adapter: shape of the LoRA adapters; default: as configured.
        length_gaps: `data.length_gaps` of the prompts; default: micro-batches are not cut.
        stop_table: `data.stop_table` of `stop_strings`; default: there are none.

    Raises:
        ConfigError: prompts or micro-batches do not divide over the devices.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: ModelConfig,
        eos_id: int,
        pad_id: int,
        parallel: DataParallel,
        value_model: ModelConfig | None = None,
        adapter: LoraConfig | None = None,
        length_gaps: Sequence[int] = (),
        stop_table: np.ndarray | None = None,
    ):
        config.check_devices(parallel.row_shards)
        super().__init__(config, model, value_model or model, parallel, adapter)
        self.end_ids = model.source.eos_ids(eos_id)
        self.pad_id = pad_id
        self.stop_ids = config.sampling.stop_ids(self.end_ids)
        self._stop_table = stop_table
        self._length_gaps = padding.compiled_gaps(self.trained_models, length_gaps)
        self._rates = optimizer.make_learning_rates(config.optimizer, config.num_updates)
        # A stage that runs out of memory is repeated with half the rows at once.
        self._sampling = Halving("sampling")
        self._scoring = Halving("scoring", self._compile_scoring)
        self._learning = Halving("learning", self._compile_mini_batches)
        self._sampled_rows: dict[int, int | None] = {}  # by the length of prompts
        self.sample_program = self._compile_sampling()
        self._compile_scoring()
        self.trajectories_program = parallel.map(
            partial(trajectories.make_trajectories, config=config, axis_name=parallel.axes),
            row_axes=(None, 0, 0, 0, 0),
            out_axes=(None, 0, None),
        )
        # The memory of the state is donated: new parameters
        # and moments are written over the old ones.
        self.update_program = parallel.map(
            self._update_on_device,
            row_axes=(None, None, 2),
            out_axes=(None, None),
            donate=(0,),
            compiler_options=update.compiler_options(self.trained_models),
        )
        self.pack_program = jax.jit(rollout.to_sequences, static_argnames="length")
        self._compile_mini_batches()
        self._uniforms = jax.jit(ops.row_uniforms, static_argnums=(1, 2))
        self._cast = jax.jit(partial(models.cast, self.model))

    # --- programs

    def _compile_sampling(self) -> Any:
        sampling = self.config.sampling
        return self.parallel.map(
            partial(
                rollout.generate,
                model=self.model,
                stop_ids=self.stop_ids,
                pad_id=self.pad_id,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                repetition_penalty=sampling.repetition_penalty,
                stop_table=self._stop_table,
                drop_ended=sampling.drop_ended_rows,
            ),
            row_axes=(None, 0, 0, 0),
            out_axes=0,
        )

    def _compile_scoring(self) -> None:
        """Compile the forward passes of policy, reference and value model, in parts of at most `scored_rows`."""

        def compiled(forward: Any) -> Any:
            def in_parts(params: Params, sequences: Sequences) -> Any:
                length = sequences.input_ids.shape[1]
                score = partial(forward, params)
                rows_at_once = self.scored_rows(length)
                if self._has_one_length(length):
                    return padding.in_cut_parts(score, sequences, rows_at_once, self._length_gaps)
                return map_in_chunks(score, sequences, rows_at_once)

            return self.parallel.map(in_parts, row_axes=(None, 0), out_axes=0)

        settings = {"model": self.model, "temperature": self.config.sampling.temperature}
        self.logprobs_program = compiled(partial(rollout.completion_logprobs, **settings))
        self.full_kl_program = compiled(partial(rollout.completion_kl, **settings))
        self.values_program = compiled(
            partial(rollout.completion_values, model=self.model, value_model=self.value_model)
        )

    def _compile_mini_batches(self) -> None:
        # A new function each time: jax.jit would take the trace
        # of the old one, which has the old number of parts.
        self.mini_batches_program = jax.jit(partial(self._cut_mini_batches))

    def _update_on_device(
        self, state: TrainState, frozen: Params | None, mini_batches: tuple[Any, Any]
    ) -> tuple[TrainState, Stats]:
        """Run `update.update` on one device, for adapters on frozen weights where there are any."""
        rl = self.config.rl

        def loss(params: Params, batch: Trajectories, weights: Weights) -> tuple[Array, Stats]:
            return update.policy_gradient_loss(
                self.attached(frozen, params),
                batch,
                weights,
                model=self.trained_models[0],
                value_model=self.trained_models[-1],
                rl=rl,
                temperature=self.config.sampling.temperature,
            )

        return update.update(
            state,
            mini_batches,
            loss=loss,
            optimizer=self._optimizer,
            rates=self._rates,
            ratio_threshold=rl.ratio_threshold if rl.spec.needs_values else None,
            max_policykl=None if rl.target_kl is None else 1.5 * rl.target_kl,
            axis_name=self.parallel.axes,
            length_gaps=self._length_gaps,
        )

    # --- how many rows at once

    @cached_property
    def shapes(self) -> memory.RunShapes:
        """What the run holds and learns, of fresh parameters."""
        policy = jax.eval_shape(lambda: models.init_params(self.model, jax.random.key(0)))
        value = None
        if self.config.value_model_path is not None and self.config.value_model == "separate":
            value = jax.eval_shape(
                lambda: models.init_params(self.value_model, jax.random.key(0), "score")
            )
        state = jax.eval_shape(self.init_state, policy, value)
        persistent = self.persistent_arrays(state, policy)
        # What samples and scores: with adapters attached, and layers one by one.
        whole_models = jax.eval_shape(lambda state: stacks.unstack(self.models_of(state)), state)
        return memory.RunShapes(
            self.trained_models,
            self.parallel.shards(persistent),
            self.parallel.shards(state.params),
            whole_models,
            self.parallel.sizes,
        )

    @cached_property
    def activation_budget(self) -> int | None:
        """Bytes that a device has for what a gradient keeps of its rows; None where its memory is not known."""
        # Shapes take a trace of all models.
        return None if memory.device_bytes() is None else memory.activation_budget(self.shapes)

    def micro_batches(self, length: int) -> int:
        """Return into how many micro-batches each mini-batch is cut, for rows of `length` tokens."""
        rows = self.config.mini_batch_size // self.parallel.row_shards
        parts = self.config.rl.gradient_accumulation_steps
        if parts is None:
            tensor = self.parallel.sizes[TENSOR]
            at_once = memory.rows_at_once(
                self.trained_models, length, self.activation_budget, tensor
            )
            parts = memory.num_equal_parts(rows, at_once)
        return memory.num_equal_parts(rows, self._learning.rows(rows // parts))

    def scored_rows(self, length: int) -> int:
        """Return how many rows of `length` tokens a device scores at once, as configured or by default."""
        rows = self.config.batch_size // self.parallel.row_shards
        at_once = self.config.rl.local_rollout_forward_batch_size
        if at_once is None:
            at_once = memory.scored_rows(self.trained_models, length, self.activation_budget)
        return self._scoring.rows(min(rows, at_once or rows))

    def sampling_parts(self, prompt_length: int) -> int:
        """Return into how many parts the prompts of an update are cut, which are sampled one after the other."""
        if prompt_length not in self._sampled_rows and memory.device_bytes() is not None:
            self._sampled_rows[prompt_length] = memory.sampled_rows(
                self.shapes,
                prompt_length,
                self.config.sampling.response_length,
                self.config.peft.use_peft,
            )
        prompts = self.config.num_prompts // self.parallel.row_shards
        fitting = self._sampled_rows.get(prompt_length)
        at_once = prompts
        if fitting is not None:
            fitting_prompts = max(1, fitting // self.config.rl.group_size)
            at_once = min(prompts, fitting_prompts)
        return memory.num_equal_parts(prompts, self._sampling.rows(at_once))

    def _has_one_length(self, longest: int) -> bool:
        """See `padding.has_one_length`."""
        parts = self.micro_batches(longest)
        return padding.has_one_length(self.trained_models, self._length_gaps, longest, parts)

    # --- stages

    def generate(self, state: TrainState, prompts: PromptBatch, step: int) -> Rollout:
        """Sample `num_generations` completions per prompt, in adjacent rows.

        Row i of update `step` sees the same random numbers on any number of devices.
        """
        seed = self.config.run.seed
        sampling = self.config.sampling
        num_rows = prompts.prompt_ids.shape[0] * self.config.rl.group_size
        key = ops.purpose_key(seed, ops.Purpose.ROLLOUT, step)
        # Drawn for the whole batch, so that a row has
        # the same numbers on any device and in any part.
        uniforms = self._uniforms(key, num_rows, sampling.response_length)
        lengths = None
        if sampling.output_min_length is not None:
            key = ops.purpose_key(seed, ops.Purpose.LENGTHS, step)
            lengths = jax.random.randint(
                key, (num_rows,), sampling.output_min_length, sampling.response_length + 1
            )
        policy = self.models_of(state)["policy"]
        inputs = (prompts, uniforms, lengths)
        prompt_length = prompts.prompt_ids.shape[1]

        def sample() -> Rollout:
            parts = self.sampling_parts(prompt_length)
            if parts == 1:
                return self.sample_program(policy, *self.parallel.put(inputs, 0))
            # Parts go to the host one by one, so that the devices never hold the caches of two.
            in_parts = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), inputs)
            rollouts = []
            for part in range(parts):
                part_inputs = jax.tree.map(lambda x, part=part: x[part], in_parts)
                sampled = self.sample_program(policy, *self.parallel.put(part_inputs, 0))
                rollouts.append(self.parallel.to_host(sampled))
            joined = jax.tree.map(lambda *x: np.concatenate(x), *rollouts)
            return self.parallel.put(joined, 0)

        return self._sampling.repeated(
            sample, lambda: self.config.num_prompts // self.sampling_parts(prompt_length)
        )

    def rollout_of(self, completions: Sequence[Sequence[int]]) -> Rollout:
        """Make a rollout of completions from elsewhere; `score` will compute their log-probabilities.

        Args:
            completions: token ids, 1 to `response_length` each, a stop token last where there is one.

        Raises:
            DataError: a completion of no token, of too many, or that goes on after a stop token.
        """
        length = self.config.sampling.response_length
        ids = np.full((len(completions), length), self.pad_id, np.int32)
        mask = np.zeros((len(completions), length), bool)
        ended = np.zeros(len(completions), bool)
        for row, tokens in enumerate(completions):
            if not 1 <= len(tokens) <= length:
                raise DataError(
                    f"completion {row}: expected 1 to response_length={length} tokens, got {len(tokens)}"
                )
            for stop_id in self.stop_ids:
                if stop_id in tokens[:-1]:
                    raise DataError(
                        f"completion {row}: expected its stop token {stop_id} last, got more after it"
                    )
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = True
            has_stop_token = tokens[-1] in self.stop_ids
            ended[row] = has_stop_token or data.has_stop_string(self._stop_table, tokens)
        return self.parallel.put(Rollout(ids, mask, None, ended), 0)  # type: ignore[arg-type]

    def pack(self, prompts: PromptBatch, rollout: Rollout) -> Sequences:
        """Make right-padded sequences, see `padding.padded_length`; waits for the rollout."""
        # The host waits for the sampler here: the length of the
        # longest row is a shape of the programs that follow.
        completion_lengths = np.sum(self.parallel.to_host(rollout.completion_mask), axis=1)
        num_rows = len(completion_lengths)
        num_prompts = len(prompts.prompt_ids)
        self._check_rows("completions", num_rows)
        self._check_rows("prompts", num_prompts * self.config.rl.group_size)
        copies = num_rows // num_prompts
        prompt_lengths = np.repeat(np.sum(prompts.prompt_mask, axis=1), copies)
        longest = prompts.prompt_ids.shape[1] + rollout.completion_ids.shape[1]
        longest_row = longest
        if not self._has_one_length(longest):
            longest_row = int((prompt_lengths + completion_lengths).max())
        length = padding.padded_length(self.trained_models, longest_row, longest)
        return self.pack_program(self.parallel.put(prompts, 0), rollout, length=length)

    def _check_rows(self, name: str, rows: int) -> None:
        if rows != self.config.batch_size:
            raise DataError(
                f"{name}: expected those of {self.config.batch_size} rows (batch_size), got {rows}"
            )

    def score(
        self, state: TrainState, reference: Params | None, sequences: Sequences, rollout: Rollout
    ) -> ModelOutputs:
        """Compute old and reference log-probabilities and values, without waiting; the old ones may be the sampler's.

        Args:
            state: policy and value model.
            reference: language model; None: no KL.
            sequences: from `pack`.
            rollout: from `generate`.
        """
        length = sequences.input_ids.shape[1]
        return self._scoring.repeated(
            lambda: self._score(state, reference, sequences, rollout),
            lambda: self.scored_rows(length),
        )

    def _score(
        self, state: TrainState, reference: Params | None, sequences: Sequences, rollout: Rollout
    ) -> ModelOutputs:
        rl = self.config.rl
        values = None
        if self.has_value_model:
            values = self.values_program(self.models_of(state), sequences)
        policy = self.scored_policy(state, reference)
        logprobs = rollout.logprobs
        entropy = None
        needs_entropy = rl.top_entropy_quantile < 1.0
        if logprobs is None or self.config.logprobs == "recompute":
            # By the reference's program, so that equal weights give a KL of exactly 0.
            logprobs, entropy = self.logprobs_program(policy, sequences)
        elif needs_entropy:
            _, entropy = self.logprobs_program(policy, sequences)
        ref_logprobs = None
        full_kl = None
        if reference is not None:
            ref_logprobs, _ = self.logprobs_program(reference, sequences)
            if rl.has_full_kl:
                full_kl = self.full_kl_program(
                    {"policy": policy, "reference": reference}, sequences
                )
        return ModelOutputs(
            logprobs=logprobs,
            ref_logprobs=ref_logprobs,
            values=values,
            full_kl=full_kl,
            entropy=entropy if needs_entropy else None,
        )

    def scored_policy(self, state: TrainState, reference: Params | None) -> Params:
        """Return the policy in the dtype of a reference without adapters, so that one program is compiled for both."""
        policy = self.models_of(state)["policy"]
        is_cast = self.model.computation.dtype is None or state.frozen is not None
        if reference is None or is_cast:
            return policy
        return self._cast(policy)

    def make_trajectories(
        self,
        state: TrainState,
        outputs: ModelOutputs,
        rollout: Rollout,
        sequences: Sequences,
        scores: np.ndarray | Sequence[float | None] | Array,
    ) -> tuple[TrainState, Trajectories, Stats]:
        """Estimate advantages and returns from the host's scores [B]; the state keeps KL coefficient and moments.

        A score of None or NaN says that a completion has none; it is left out of what is learned.
        """
        values = np.asarray(scores, np.float32)  # None becomes NaN
        # An infinite score would make every advantage of
        # its group NaN, and be found only in the gradient.
        if values.shape != (self.config.batch_size,):
            raise DataError(
                f"scores: expected {self.config.batch_size} numbers, got the shape {values.shape}"
            )
        if np.isinf(values).any():
            raise DataError(
                "scores: expected finite numbers, and NaN for a completion without one, got an infinite one"
            )
        controls, result, stats = self.trajectories_program(
            state.controls, outputs, rollout, sequences, self.parallel.put(values, 0)
        )
        return state._replace(controls=controls), result, stats

    def update(self, state: TrainState, batch: Trajectories, step: int) -> tuple[TrainState, Stats]:
        """Learn in all epochs and mini-batches of one update; the memory of `state` is taken over."""
        # By the number of the update: a resumed run draws the
        # mini-batches that the interrupted one would have drawn.
        key = ops.purpose_key(self.config.run.seed, ops.Purpose.MINI_BATCHES, step)
        trained = state._replace(frozen=None)  # frozen weights are no part of what is donated

        def learn() -> tuple[TrainState, Stats]:
            mini_batches = self.mini_batches_program(batch, key)
            return self.update_program(trained, state.frozen, mini_batches)

        def rows_at_once() -> int:
            parts = self.micro_batches(batch.sequences.input_ids.shape[1])
            return self.config.mini_batch_size // self.parallel.row_shards // parts

        new_state, stats = self._learning.repeated(
            learn, rows_at_once, lambda: can_be_saved(trained)
        )
        return new_state._replace(frozen=state.frozen), stats

    def _cut_mini_batches(self, batch: Trajectories, key: Array) -> tuple[Trajectories, Weights]:
        """Cut [B, ...] into [S, M, rows of a micro-batch, ...], the same rows on any device count, with weights."""
        rl = self.config.rl
        rows = update.mini_batch_rows(
            key, self.config.batch_size, rl.num_ppo_epochs, rl.num_mini_batches
        )
        length = batch.sequences.input_ids.shape[1]
        parts = self.micro_batches(length)
        can_cut = len(padding.cut_lengths(length, self._length_gaps)) > 1
        if parts > 1 and can_cut:
            # Rows of similar length share a micro-batch, so
            # that it can be cut; sums over them stay the same.
            row_lengths = ops.real_lengths(batch.sequences)
            by_length = jnp.argsort(row_lengths[rows], axis=1)
            rows = jnp.take_along_axis(rows, by_length, axis=1)
        # All epochs at once, as copies of the rows: [S, b, ...].
        mini_batches: Any = jax.tree.map(lambda x: x[rows], batch)
        # Weights know the whole mini-batch, so that sums
        # over micro-batches and devices are its means.
        weights = losses.loss_weights(
            mini_batches, rl.ratio_level, rl.mean_of_losses, self.config.sampling.response_length
        )

        def in_parts(x: Array) -> Array:
            num_mini_batches, _, *sizes = x.shape
            return x.reshape(num_mini_batches, parts, -1, *sizes)

        return jax.tree.map(in_parts, (mini_batches, weights))


PPO = Learner
"""The name under which `import jaxppo` offers it; it runs every algorithm of the table."""
