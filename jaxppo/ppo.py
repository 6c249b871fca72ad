"""The stages of an update, compiled for all devices: generate, score, make_trajectories, update.

`train.py` calls them in a straight line; so can any other loop, with rewards of its own.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import data, models, ops, optimizer, rollout, trajectories, update
from jaxppo.config import TrainConfig
from jaxppo.errors import DataError
from jaxppo.models import ModelConfig
from jaxppo.parallel import DATA, DataParallel
from jaxppo.types import (
    Array,
    Params,
    PromptBatch,
    Rollout,
    Scored,
    Sequences,
    Stats,
    TrainState,
    Trajectories,
    Weights,
)

SEQUENCE_BUCKET = 32
"""Packed sequences are rounded up to a multiple of this (or to the longest possible), so that few shapes compile."""


class PPO:
    """Compiled programs of one policy architecture, for PPO or RLOO.

    Args:
        config: hyper-parameters; `total_episodes` must be known (`TrainConfig.with_episodes`).
        model: architecture of policy, reference and a separate value model.
        eos_id: ends a completion, unless the configuration names another stop token.
        pad_id: fills what lies outside the masks.
        parallel: devices.
    """

    def __init__(self, config: TrainConfig, model: ModelConfig, eos_id: int, pad_id: int, parallel: DataParallel):
        self.config, self.model, self.parallel = config, model, parallel
        self.stop_id, self.pad_id = config.sampling.stop_id(eos_id), pad_id
        self._optimizer = optimizer.make_optimizer(config.optimizer)
        self._compile_scoring()
        sampling, ppo = config.sampling, config.ppo
        self._generate = parallel.map(
            partial(
                rollout.generate,
                model=model,
                stop_id=self.stop_id,
                pad_id=pad_id,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
            ),
            row_axes=(None, 0, 0, 0),
            out_axes=0,
        )
        self._trajectories = parallel.map(
            partial(trajectories.make_trajectories, config=config, axis_name=DATA),
            row_axes=(None, 0, 0, 0, 0),
            out_axes=(None, 0, None),
        )
        self._update = parallel.map(
            partial(
                update.update,
                loss=partial(update.policy_gradient_loss, model=model, ppo=ppo, temperature=sampling.temperature),
                optimizer=self._optimizer,
                rates=optimizer.make_learning_rates(config.optimizer, config.num_updates),
                guards=self._guards(),
                axis_name=DATA,
            ),
            row_axes=(None, 2),
            out_axes=(None, None),
            donate=(0,),
        )
        self._uniforms = jax.jit(ops.row_uniforms, static_argnums=(1, 2))
        self._pack = jax.jit(rollout.to_sequences, static_argnames="length")
        self._mini_batches = jax.jit(self._cut_mini_batches)

    def _compile_scoring(self) -> None:
        """The forward passes of policy, reference and value model, in parts of at most the configured rows."""

        def scoring(program: Any) -> Any:
            chunk = self.config.ppo.local_rollout_forward_batch_size
            return self.parallel.map(
                lambda params, sequences: rollout.by_chunks(program, params, sequences, chunk),
                row_axes=(None, 0),
                out_axes=0,
            )

        with_temperature = {"model": self.model, "temperature": self.config.sampling.temperature}
        self._logprobs = scoring(partial(rollout.completion_logprobs, **with_temperature))
        self._values = scoring(partial(rollout.completion_values, model=self.model))
        self._full_kl = scoring(partial(rollout.completion_kl, **with_temperature))

    def _guards(self) -> update.Guards:
        ppo = self.config.ppo
        return update.Guards(
            ratio_threshold=ppo.ratio_threshold if ppo.algorithm == "ppo" else None,
            max_policykl=1.5 * ppo.target_kl if ppo.early_stopping else None,
        )

    @property
    def has_value_model(self) -> bool:
        """PPO learns a value function, RLOO does without."""
        return self.config.ppo.algorithm == "ppo"

    def init_state(self, policy: Params, value: Params | None = None) -> TrainState:
        """The state before the first update, on all devices; copies, since updates take over the memory of a state.

        Args:
            policy: {"trunk", "lm_head"}.
            value: {"trunk", "score"}; default: a head with zero weights, on the policy's trunk (`value_model: shared`)
                or on a copy of it (`separate`), so that every value starts at 0. RLOO has none.
        """
        params = {"policy": policy}
        if self.has_value_model:
            params["value"] = self._fresh_value(policy) if value is None else value
        copies = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
        controls = trajectories.initial_controls(self.config.ppo)
        return self.parallel.put(update.init_state(copies, self._optimizer, controls))

    def _fresh_value(self, policy: Params) -> Params:
        shared = self.config.value_model == "shared"
        key = ops.purpose_key(self.config.run.seed, ops.Purpose.INIT)
        head = {"score": models.init_score_head(self.model, key, scale=0.0, use_bias=shared)}
        return head if shared else head | {"trunk": policy["trunk"]}

    def generate(self, state: TrainState, prompts: PromptBatch, step: int) -> Rollout:
        """Sample `num_generations` completions per prompt, in adjacent rows.

        Row i of update `step` sees the same random numbers on any number of devices.
        """
        rows = prompts.prompt_ids.shape[0] * self.config.ppo.group_size
        seed, sampling = self.config.run.seed, self.config.sampling
        uniforms = self._uniforms(ops.purpose_key(seed, ops.Purpose.ROLLOUT, step), rows, sampling.response_length)
        lengths = jnp.full((rows,), sampling.response_length, jnp.int32)
        if sampling.output_min_length is not None:
            key = ops.purpose_key(seed, ops.Purpose.LENGTHS, step)
            lengths = jax.random.randint(key, (rows,), sampling.output_min_length, sampling.response_length + 1)
        prompts, uniforms, lengths = self.parallel.put((prompts, uniforms, lengths), 0)
        return self._generate(state.params["policy"], prompts, uniforms, lengths)

    def rollout_of(self, completions: Sequence[Sequence[int]]) -> Rollout:
        """Completions from elsewhere as a rollout; `score` will compute their log-probabilities.

        Args:
            completions: token ids, 1 to `response_length` each, the stop token last where there is one.

        Raises:
            DataError: a completion of no token, of too many, or that goes on behind its stop token.
        """
        length = self.config.sampling.response_length
        for row, ids in enumerate(completions):
            if not 1 <= len(ids) <= length:
                raise DataError(f"completion {row}: expected 1 to response_length={length} tokens, got {len(ids)}")
            if self.stop_id in ids[:-1]:
                raise DataError(f"completion {row}: expected its stop token {self.stop_id} last, got more behind it")
        ids = np.full((len(completions), length), self.pad_id, np.int32)
        for row, tokens in enumerate(completions):
            ids[row, : len(tokens)] = tokens
        mask = np.arange(length) < np.array([len(tokens) for tokens in completions])[:, None]
        ended = np.array([tokens[-1] == self.stop_id for tokens in completions])
        return self.parallel.put(Rollout(ids, mask, None, ended), 0)  # type: ignore[arg-type]

    def pack(self, prompts: PromptBatch, rollout: Rollout) -> Sequences:
        """Right-padded sequences, no longer than the bucket of the longest; waits for the rollout."""
        completions = np.sum(np.asarray(rollout.completion_mask), axis=1)
        self._check_rows("completions", len(completions))
        self._check_rows("prompts", len(prompts.prompt_ids) * self.config.ppo.group_size)
        lengths = np.repeat(np.sum(prompts.prompt_mask, axis=1), len(completions) // len(prompts.prompt_ids))
        longest = prompts.prompt_ids.shape[1] + rollout.completion_ids.shape[1]
        length = min(data.bucket(int((lengths + completions).max()), SEQUENCE_BUCKET), longest)
        return self._pack(self.parallel.put(prompts, 0), rollout, length=length)

    def _check_rows(self, name: str, rows: int) -> None:
        if rows != self.config.batch_size:
            raise DataError(f"{name}: expected those of {self.config.batch_size} rows (batch_size), got {rows}")

    def score(self, state: TrainState, reference: Params | None, sequences: Sequences, rollout: Rollout) -> Scored:
        """Reference log-probabilities and values; old log-probabilities as sampled, or recomputed. Does not wait.

        Args:
            state: policy and value model.
            reference: language model; None: no KL.
            sequences: from `pack`.
            rollout: from `generate`.
        """
        ppo, policy, logprobs = self.config.ppo, state.params["policy"], rollout.logprobs
        if logprobs is None or ppo.logprobs == "recompute":
            logprobs, _ = self._logprobs(policy, sequences)
        ref_logprobs = full_kl = None
        if reference is not None:
            ref_logprobs, _ = self._logprobs(reference, sequences)
            if ppo.kl_estimator == "full":
                full_kl = self._full_kl({"policy": policy, "reference": reference}, sequences)
        values = self._values(state.params, sequences) if self.has_value_model else None
        return Scored(logprobs, ref_logprobs, values, full_kl)

    def make_trajectories(
        self,
        state: TrainState,
        scored: Scored,
        rollout: Rollout,
        sequences: Sequences,
        scores: np.ndarray | Sequence[float] | Array,
    ) -> tuple[TrainState, Trajectories, Stats]:
        """Advantages and returns from the host's scores, [B] fp32; the state carries the KL coefficient and moments."""
        values = jnp.asarray(scores, jnp.float32)
        if values.shape != (self.config.batch_size,):
            raise DataError(f"scores: expected {self.config.batch_size} numbers, got the shape {values.shape}")
        device_scores = self.parallel.put(values, 0)
        controls, result, stats = self._trajectories(state.controls, scored, rollout, sequences, device_scores)
        return state._replace(controls=controls), result, stats

    def update(self, state: TrainState, batch: Trajectories, step: int) -> tuple[TrainState, Stats]:
        """All epochs and mini-batches of one update; the memory of `state` is taken over."""
        key = ops.purpose_key(self.config.run.seed, ops.Purpose.MINI_BATCHES, step)
        return self._update(state, self._mini_batches(batch, key))

    def _cut_mini_batches(self, batch: Trajectories, key: Array) -> tuple[Trajectories, Weights]:
        """[B, ...] -> [S, M, rows of a micro-batch, ...], the same rows on any device count, and their weights."""
        ppo = self.config.ppo
        rows = update.mini_batch_rows(key, self.config.batch_size, ppo.num_ppo_epochs, ppo.num_mini_batches)
        mini_batches = jax.tree.map(lambda x: x[rows], batch)
        both = (mini_batches, trajectories.weigh(mini_batches))
        parts = ppo.gradient_accumulation_steps
        return jax.tree.map(lambda x: x.reshape(x.shape[0], parts, -1, *x.shape[2:]), both)
