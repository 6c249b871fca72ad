"""The stages of a PPO update, compiled for all devices: generate, score, make_trajectories, update.

`train.py` calls them in a straight line; so can any other loop, with rewards of its own.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import data, models, ops, rollout, update
from jaxppo.config import TrainConfig
from jaxppo.models import ModelConfig
from jaxppo.parallel import DATA, DataParallel
from jaxppo.types import (
    Array,
    Params,
    PromptBatch,
    Rollout,
    Scored,
    Sequences,
    TrainState,
    Trajectories,
)
from jaxppo.update import Stats

SEQUENCE_BUCKET = 32
"""Packed sequences are rounded up to a multiple of this (or to the longest possible), so that few shapes compile."""


class PPO:
    """Compiled programs of one policy architecture.

    Args:
        config: hyper-parameters.
        model: architecture of policy, reference and a separate value model.
        eos_id: ends a completion.
        pad_id: fills what lies outside the masks.
        parallel: devices.
    """

    def __init__(self, config: TrainConfig, model: ModelConfig, eos_id: int, pad_id: int, parallel: DataParallel):
        self.config, self.model, self.parallel = config, model, parallel
        self._optimizer = update.make_optimizer(config.optimizer)
        temperature = config.sampling.temperature
        self._generate = parallel.map(
            partial(rollout.generate, model=model, eos_id=eos_id, pad_id=pad_id, temperature=temperature),
            row_axes=(None, 0, 0),
            out_axes=0,
        )
        self._logprobs = parallel.map(
            partial(rollout.completion_logprobs, model=model, temperature=temperature), row_axes=(None, 0), out_axes=0
        )
        self._values = parallel.map(partial(rollout.completion_values, model=model), row_axes=(None, 0), out_axes=0)
        self._trajectories = parallel.map(
            partial(update.make_trajectories, ppo=config.ppo, axis_name=DATA),
            row_axes=(0, 0, 0, 0),
            out_axes=(0, None),
        )
        loss = partial(update.ppo_loss, model=model, ppo=config.ppo, temperature=temperature, axis_name=DATA)
        rates = update.make_learning_rates(config.optimizer, config.num_updates)
        self._update = parallel.map(
            partial(update.update, loss=loss, optimizer=self._optimizer, rates=rates, axis_name=DATA),
            row_axes=(None, 1),
            out_axes=(None, None),
            donate=(0,),
        )
        self._uniforms = jax.jit(ops.row_uniforms, static_argnums=(1, 2))
        self._pack = jax.jit(rollout.to_sequences, static_argnames="length")
        self._mini_batches = jax.jit(self._cut_mini_batches)

    def init_state(self, policy: Params, value: Params | None = None) -> TrainState:
        """The state before the first update, on all devices; copies, since updates take over the memory of a state.

        Args:
            policy: {"trunk", "lm_head"}.
            value: {"trunk", "score"}; default: a head with zero weights, on the policy's trunk (`value_model: shared`)
                or on a copy of it (`separate`), so that every value starts at 0.
        """
        if value is None:
            shared = self.config.value_model == "shared"
            key = ops.purpose_key(self.config.run.seed, ops.Purpose.INIT)
            value = {"score": models.init_score_head(self.model, key, scale=0.0, use_bias=shared)}
            if not shared:
                value["trunk"] = policy["trunk"]
        params = jax.tree.map(lambda x: jnp.array(x, copy=True), {"policy": policy, "value": value})
        return self.parallel.put(update.init_state(params, self._optimizer))

    def generate(self, state: TrainState, prompts: PromptBatch, step: int) -> Rollout:
        """Sample one completion per prompt; row i of update `step` sees the same random numbers on any device count."""
        key = ops.purpose_key(self.config.run.seed, ops.Purpose.ROLLOUT, step)
        uniforms = self._uniforms(key, prompts.prompt_ids.shape[0], self.config.sampling.response_length)
        prompts, uniforms = self.parallel.put((prompts, uniforms), 0)
        return self._generate(state.params["policy"], prompts, uniforms)

    def pack(self, prompts: PromptBatch, rollout: Rollout) -> Sequences:
        """Right-padded sequences, no longer than the bucket of the longest; waits for the rollout."""
        lengths = np.sum(prompts.prompt_mask, axis=1) + np.sum(np.asarray(rollout.completion_mask), axis=1)
        longest = prompts.prompt_ids.shape[1] + rollout.completion_ids.shape[1]
        length = min(data.bucket(int(lengths.max()), SEQUENCE_BUCKET), longest)
        return self._pack(self.parallel.put(prompts, 0), rollout, length=length)

    def score(self, state: TrainState, reference: Params, sequences: Sequences, rollout: Rollout) -> Scored:
        """Reference log-probabilities and values; old log-probabilities as sampled, or recomputed. Does not wait."""
        ref_logprobs, _ = self._logprobs(reference, sequences)
        logprobs = rollout.logprobs
        if self.config.ppo.logprobs == "recompute":
            logprobs, _ = self._logprobs(state.params["policy"], sequences)
        return Scored(logprobs, ref_logprobs, self._values(state.params, sequences))

    def make_trajectories(
        self, scored: Scored, rollout: Rollout, sequences: Sequences, scores: np.ndarray | Array
    ) -> tuple[Trajectories, Stats]:
        """Advantages and returns from the host's scores, [B] fp32."""
        scores = self.parallel.put(jnp.asarray(scores, jnp.float32), 0)
        return self._trajectories(scored, rollout, sequences, scores)

    def update(self, state: TrainState, trajectories: Trajectories, step: int) -> tuple[TrainState, Stats]:
        """All epochs and mini-batches of one update; the memory of `state` is taken over."""
        key = ops.purpose_key(self.config.run.seed, ops.Purpose.MINI_BATCHES, step)
        return self._update(state, self._mini_batches(trajectories, key))

    def _cut_mini_batches(self, trajectories: Trajectories, key: Array) -> Trajectories:
        """[B, ...] -> [S, B / num_mini_batches, ...], the same rows on any device count."""
        ppo = self.config.ppo
        rows = update.mini_batch_rows(key, self.config.batch_size, ppo.num_ppo_epochs, ppo.num_mini_batches)
        return jax.tree.map(lambda x: x[rows], trajectories)
