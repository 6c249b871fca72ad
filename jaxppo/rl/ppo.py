"""The stages of an update, compiled for all devices: generate, score, make_trajectories, update.

`train.py` calls them in a straight line; so can any other loop, with rewards of its own.
"""

from collections.abc import Collection, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import data, models
from jaxppo.config import TrainConfig
from jaxppo.errors import DataError
from jaxppo.nn import ModelConfig, by_rows, lora
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel import stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.parallel.partition import TENSOR
from jaxppo.profiling import memory
from jaxppo.profiling.halving import Halving
from jaxppo.rl import losses, ops, optimizer, padding, programs, rollout, trajectories, update
from jaxppo.rl.start import adapter_of
from jaxppo.run.checkpoints import is_whole
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


class PPO:
    """Compiled programs of one policy architecture, for any algorithm of the table.

    Args:
        config: hyper-parameters; `total_episodes` must be known (`TrainConfig.with_episodes`).
        model: architecture of policy, reference and a separate value model.
        eos_id: ends a completion, as do the model's `end_ids`, unless the configuration names another stop token.
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
        self.config, self.parallel = config, parallel
        self.model = models.computing_in(model, config.dtype, config.run.attention)
        self.value_model = models.computing_in(value_model or model, config.dtype, config.run.attention)
        self._length_gaps = length_gaps
        for each in (self.model, self.value_model):
            parallel.check_model(each)
        self.adapter = (adapter or adapter_of(config.peft)) if config.peft.use_peft else None
        if self.adapter is not None and adapter is None:
            lora.check_targets(self.model, self.adapter)
        self.end_ids, self.pad_id = model.ends_beside(eos_id), pad_id
        self.stop_ids = config.sampling.stop_ids(self.end_ids)
        self._optimizer = optimizer.make_optimizer(config.optimizer)
        self._sampling, self._scoring, self._learning = map(Halving, ("sampling", "scoring", "learning"))
        self._compile_scoring()
        sampling = config.sampling
        self._stop_table = stop_table
        can_end = bool(self.stop_ids) or stop_table is not None or sampling.output_min_length is not None
        self._generate = parallel.map(
            partial(
                rollout.generate,
                model=self.model,
                stop_ids=self.stop_ids,
                pad_id=pad_id,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                repetition_penalty=sampling.repetition_penalty,
                stop_table=stop_table,
                drop_ended=sampling.drop_ended_rows if can_end else False,
            ),
            row_axes=(None, 0, 0, 0),
            out_axes=0,
        )
        self._trajectories = parallel.map(
            partial(trajectories.make_trajectories, config=config, axis_name=parallel.axes),
            row_axes=(None, 0, 0, 0, 0, 0),
            out_axes=(None, 0, None),
        )
        rates = optimizer.make_learning_rates(config.optimizer, config.num_updates)
        # Donated: the new parameters and moments are written over the old ones.
        self._update = parallel.map(
            partial(self._update_program, rates=rates, skip_rules=self._skip_rules()),
            row_axes=(None, None, 2),
            out_axes=(None, None),
            donate=(0,),
            compiler_options=update.compiler_options(self.learned),
        )
        self._uniforms = jax.jit(ops.row_uniforms, static_argnums=(1, 2))
        self._cast = jax.jit(partial(models.cast, self.model))
        self._pack = jax.jit(rollout.to_sequences, static_argnames="length")
        self._mini_batches = jax.jit(self._cut_mini_batches)
        self._sampled_rows: dict[int, int | None] = {}  # by the length of prompts

    def _compile_scoring(self) -> None:
        """Compile the forward passes of policy, reference and value model, in parts of at most the configured rows."""

        def scoring(program: Any) -> Any:
            def in_parts(params: Params, sequences: Sequences) -> Any:
                length = sequences.input_ids.shape[1]
                score, most = partial(program, params), self.scored_rows(length)
                if self._has_one_length(length):
                    return padding.in_cut_parts(score, sequences, most, self._length_gaps)
                return by_rows(score, sequences, most)

            return self.parallel.map(in_parts, row_axes=(None, 0), out_axes=0)

        with_temperature = {"model": self.model, "temperature": self.config.sampling.temperature}
        self._logprobs = scoring(partial(rollout.completion_logprobs, **with_temperature))
        self._values = scoring(partial(rollout.completion_values, model=self.model, value_model=self.value_model))
        self._full_kl = scoring(partial(rollout.completion_kl, **with_temperature))

    def _skip_rules(self) -> update.SkipRules:
        rl = self.config.rl
        return update.SkipRules(
            ratio_threshold=rl.ratio_threshold if rl.row.needs_values else None,
            max_policykl=1.5 * rl.target_kl if rl.early_stopping else None,
        )

    def _update_program(
        self,
        state: TrainState,
        frozen: Params | None,
        mini_batches: tuple[Any, Any],
        *,
        rates: optimizer.LearningRates,
        skip_rules: update.SkipRules,
    ) -> tuple[TrainState, Stats]:
        """Run `update.update` on one device, for adapters on frozen weights where there are any."""

        def loss(params: Params, batch: Trajectories, weights: Weights) -> tuple[Array, Stats]:
            return update.policy_gradient_loss(
                self._attached(frozen, params),
                batch,
                weights,
                model=self.learned[0],
                value_model=self.learned[-1],
                rl=self.config.rl,
                temperature=self.config.sampling.temperature,
            )

        return update.update(
            state,
            mini_batches,
            loss=loss,
            optimizer=self._optimizer,
            rates=rates,
            skip_rules=skip_rules,
            axis_name=self.parallel.axes,
            length_gaps=self._length_gaps,
        )

    @property
    def has_value_model(self) -> bool:
        """Whether the algorithm learns a value function."""
        return self.config.rl.row.needs_values

    @property
    def learned(self) -> list[ModelConfig]:
        """Architectures of what is learned: the policy, and a separate value model."""
        separate = self.has_value_model and self.config.value_model == "separate"
        trained = [self.model, self.value_model] if separate else [self.model]
        return [models.with_checkpointing(model, self.config.gradient_checkpointing) for model in trained]

    def micro_batches(self, length: int) -> int:
        """Return into how many micro-batches each mini-batch is cut, for rows of `length` tokens."""
        shards, tensor = self.parallel.row_shards, self.parallel.sizes[TENSOR]
        parts = memory.micro_batches(self.config, self.learned, length, shards, self.room, tensor)
        rows = self.config.mini_batch_size // shards
        return memory.equal_parts(rows, self._learning.rows(rows // parts))

    def _has_one_length(self, longest: int) -> bool:
        """See `padding.has_one_length`."""
        return padding.has_one_length(self.learned, self._length_gaps, longest, self.micro_batches(longest))

    def scored_rows(self, length: int) -> int | None:
        """Return how many rows of `length` tokens a device scores at once; None: all."""
        most = memory.scored_rows(self.config, self.learned, length, self.room)
        if self._scoring.divisor == 1:
            return most
        rows = self.config.batch_size // self.parallel.row_shards
        return self._scoring.rows(min(rows, most or rows))

    def sampling_parts(self, prompt_length: int) -> int:
        """Return into how many parts the prompts of an update are cut, which are sampled one after the other."""
        if prompt_length not in self._sampled_rows:
            self._sampled_rows[prompt_length] = programs.sampled_rows(self, prompt_length)
        prompts = self.config.num_prompts // self.parallel.row_shards
        fitting = self._sampled_rows[prompt_length]
        most = prompts if fitting is None else min(prompts, max(1, fitting // self.config.rl.group_size))
        return memory.equal_parts(prompts, self._sampling.rows(most))

    @cached_property
    def shapes(self) -> tuple[Any, Any, Any]:
        """See `programs.shapes_of`."""
        return programs.shapes_of(self)

    @cached_property
    def room(self) -> int | None:
        """See `memory.room_to_learn`."""
        return programs.room_to_learn(self)

    def init_state(self, policy: Params, value: Params | None = None, adapter: Params | None = None) -> TrainState:
        """Make the state before the first update, on all devices; copies, as updates take over the memory of a state.

        Layers that are one loop are stacked (`parallel/stacks.py`), unless their adapters differ.
        With `use_peft` the given models are frozen, shared and not copied; what is copied and trained are adapters and
        the value head.

        Args:
            policy: {"trunk", "lm_head"}.
            value: {"trunk", "score"} or, for `value_model: shared`, {"score"}; default: a head with zero weights, on
                the policy's trunk (`shared`) or on a copy of it (`separate`), so that every value starts at 0; such a
                head is also made where only that is missing. Only PPO has one.
            adapter: of the policy, to start from; default: a fresh one.
        """
        adapters: Params = {} if self.adapter is None else self._fresh_adapters(adapter)
        stack = lambda model, params, name: models.for_training(model, params, adapters.get(name))  # noqa: E731
        policy = stack(self.learned[0], policy, "policy")
        if self.adapter is not None:
            policy = self.parallel.put(policy)  # once, so that the value model can share it
        whole = {"policy": policy}
        if self.has_value_model:
            value = None if value is None else stack(self.learned[-1], value, "value")
            whole["value"] = self._value(policy, value)
        trained, frozen = (whole, None) if self.adapter is None else self._adapters(whole, adapters)
        copies = jax.tree.map(lambda x: jnp.array(x, copy=True), trained)
        controls = trajectories.initial_controls(self.config.rl)
        state = self.parallel.put(update.init_state(copies, self._optimizer, controls))
        return state._replace(frozen=self.parallel.put(frozen))

    def _value(self, policy: Params, value: Params | None) -> Params:
        shared = self.config.value_model == "shared"
        if value is None:
            value = {} if shared else {"trunk": policy["trunk"]}
        if "score" in value:
            return value
        key = ops.purpose_key(self.config.run.seed, ops.Purpose.INIT)
        return value | {"score": models.init_score_head(self.value_model, key, scale=0.0, use_bias=shared)}

    def _fresh_adapters(self, policy_adapter: Params | None) -> Params:
        """Draw the adapters of policy and value model; the policy's may be given."""
        assert self.adapter is not None
        shape, seed = self.adapter, self.config.run.seed
        draw = lambda model, purpose: lora.init_adapter(model, shape, ops.purpose_key(seed, purpose))  # noqa: E731
        if policy_adapter is None:
            policy_adapter = draw(self.model, ops.Purpose.POLICY_ADAPTER)
        return {"policy": policy_adapter, "value": draw(self.value_model, ops.Purpose.VALUE_ADAPTER)}

    def _adapters(self, whole: Params, adapters: Params) -> tuple[Params, Params]:
        """Split models into what is trained and the frozen weights under it, both with layers stacked or both not."""
        frozen = {name: {part: p for part, p in model.items() if part != "score"} for name, model in whole.items()}
        trained: Params = {}
        for name, model in whole.items():
            trained[name] = {"score": model["score"]} if "score" in model else {}
            if "trunk" in model:
                in_stacks = stacks.is_stacked(model["trunk"]["layers"])
                trained[name] |= stacks.stacked(adapters[name]) if in_stacks else adapters[name]
        return trained, frozen

    def _attached(self, frozen: Params | None, trained: Params) -> Params:
        """Return {"policy", "value"} as `models.apply` takes them."""
        if frozen is None:
            return trained
        assert self.adapter is not None
        return {name: lora.attach(frozen[name], tree, self.adapter.scale) for name, tree in trained.items()}

    def models_of(self, state: TrainState) -> Params:
        """Return {"policy", "value"} as `models.apply` takes them, adapters attached, without copies where possible."""
        return self._attached(state.frozen, state.params)

    def with_changed_settings(self, state: TrainState, names: Collection[str]) -> TrainState:
        """Return a restored state under settings that a resumed run has changed.

        The KL coefficient is part of the state, where the controller moves it: a new one is where that starts from.

        Args:
            state: of a checkpoint.
            names: the settings that have another value now.
        """
        if "kl_coef" not in names:
            return state
        assert state.controls is not None  # only supervised training has none
        kl_coef = self.parallel.put(jnp.float32(self.config.rl.kl_coef))
        return state._replace(controls=state.controls._replace(kl_coef=kl_coef))

    def reference(self, state: TrainState, policy: Params) -> Params | None:
        """Return the reference on all devices, the policy at the start of the run; None with kl_coef 0.

        Frozen weights are shared with it, and an adapter that the policy starts from is copied.

        Args:
            state: before the first update.
            policy: what the run starts from.
        """
        if self.config.rl.kl_coef == 0:
            return None
        if state.frozen is not None:
            if self.config.peft.lora_path is None:  # a fresh adapter is 0
                return state.frozen["policy"]
            return self._attached(state.frozen, {"policy": jax.tree.map(jnp.copy, state.params["policy"])})["policy"]
        return self.parallel.put(models.cast(self.model, models.for_training(self.learned[0], policy)))

    def generate(self, state: TrainState, prompts: PromptBatch, step: int) -> Rollout:
        """Sample `num_generations` completions per prompt, in adjacent rows.

        Row i of update `step` sees the same random numbers on any number of devices.
        """
        rows = prompts.prompt_ids.shape[0] * self.config.rl.group_size
        seed, sampling = self.config.run.seed, self.config.sampling
        uniforms = self._uniforms(ops.purpose_key(seed, ops.Purpose.ROLLOUT, step), rows, sampling.response_length)
        lengths = jnp.full((rows,), sampling.response_length, jnp.int32)
        if sampling.output_min_length is not None:
            key = ops.purpose_key(seed, ops.Purpose.LENGTHS, step)
            lengths = jax.random.randint(key, (rows,), sampling.output_min_length, sampling.response_length + 1)
        policy, prompt_length = self.models_of(state)["policy"], prompts.prompt_ids.shape[1]

        def sample() -> Rollout:
            parts = self.sampling_parts(prompt_length)
            if parts == 1:
                return self._generate(policy, *self.parallel.put((prompts, uniforms, lengths), 0))
            cut = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), (prompts, uniforms, lengths))
            rollouts = []
            for part in range(parts):
                inputs = self.parallel.put(jax.tree.map(lambda x, part=part: x[part], cut), 0)
                rollouts.append(self.parallel.to_host(self._generate(policy, *inputs)))
            return self.parallel.put(jax.tree.map(lambda *x: np.concatenate(x), *rollouts), 0)

        prompts_at_once = lambda: self.config.num_prompts // self.sampling_parts(prompt_length)  # noqa: E731
        return self._sampling.repeated(sample, prompts_at_once)

    def rollout_of(self, completions: Sequence[Sequence[int]]) -> Rollout:
        """Make a rollout of completions from elsewhere; `score` will compute their log-probabilities.

        Args:
            completions: token ids, 1 to `response_length` each, a stop token last where there is one.

        Raises:
            DataError: a completion of no token, of too many, or that goes on behind a stop token.
        """
        length = self.config.sampling.response_length
        for row, ids in enumerate(completions):
            if not 1 <= len(ids) <= length:
                raise DataError(f"completion {row}: expected 1 to response_length={length} tokens, got {len(ids)}")
            for stop_id in self.stop_ids:
                if stop_id in ids[:-1]:
                    raise DataError(f"completion {row}: expected its stop token {stop_id} last, got more behind it")
        ids = np.full((len(completions), length), self.pad_id, np.int32)
        for row, tokens in enumerate(completions):
            ids[row, : len(tokens)] = tokens
        mask = np.arange(length) < np.array([len(tokens) for tokens in completions])[:, None]
        table = self._stop_table
        ended = [tokens[-1] in self.stop_ids or data.has_stop_string(table, tokens) for tokens in completions]
        return self.parallel.put(Rollout(ids, mask, None, np.array(ended)), 0)  # type: ignore[arg-type]

    def pack(self, prompts: PromptBatch, rollout: Rollout) -> Sequences:
        """Make right-padded sequences, no longer than the bucket of the longest; waits for the rollout."""
        completions = np.sum(self.parallel.to_host(rollout.completion_mask), axis=1)
        self._check_rows("completions", len(completions))
        self._check_rows("prompts", len(prompts.prompt_ids) * self.config.rl.group_size)
        lengths = np.repeat(np.sum(prompts.prompt_mask, axis=1), len(completions) // len(prompts.prompt_ids))
        longest = prompts.prompt_ids.shape[1] + rollout.completion_ids.shape[1]
        length = min(data.bucket(int((lengths + completions).max()), data.SEQUENCE_BUCKET), longest)
        if self._has_one_length(longest):
            length = longest
        return self._pack(self.parallel.put(prompts, 0), rollout, length=length)

    def _check_rows(self, name: str, rows: int) -> None:
        if rows != self.config.batch_size:
            raise DataError(f"{name}: expected those of {self.config.batch_size} rows (batch_size), got {rows}")

    def score(self, state: TrainState, reference: Params | None, sequences: Sequences, rollout: Rollout) -> Scored:
        """Compute old and reference log-probabilities and values, without waiting; the old ones may be the sampler's.

        Args:
            state: policy and value model.
            reference: language model; None: no KL.
            sequences: from `pack`.
            rollout: from `generate`.
        """
        length, rows = sequences.input_ids.shape[1], self.config.batch_size // self.parallel.row_shards
        divisor = self._scoring.divisor

        def score() -> Scored:
            nonlocal divisor
            if self._scoring.divisor != divisor:
                divisor = self._scoring.divisor
                self._compile_scoring()  # how many rows it takes at once is part of the program
            return self._scored(state, reference, sequences, rollout)

        return self._scoring.repeated(score, lambda: min(rows, self.scored_rows(length) or rows))

    def _scored(self, state: TrainState, reference: Params | None, sequences: Sequences, rollout: Rollout) -> Scored:
        params, rl, logprobs = self.models_of(state), self.config.rl, rollout.logprobs
        values = self._values(params, sequences) if self.has_value_model else None
        policy, entropy = self.scored_policy(state, reference), None
        some_tokens = rl.top_entropy_quantile < 1.0
        if logprobs is None or self.config.logprobs == "recompute":
            logprobs, entropy = self._logprobs(policy, sequences)  # by the reference's program: equal weights, KL of 0
        elif some_tokens:
            _, entropy = self._logprobs(policy, sequences)
        ref_logprobs = full_kl = None
        if reference is not None:
            ref_logprobs, _ = self._logprobs(reference, sequences)
            if rl.kl_estimator == "full":
                full_kl = self._full_kl({"policy": policy, "reference": reference}, sequences)
        return Scored(logprobs, ref_logprobs, values, full_kl, entropy if some_tokens else None)

    def scored_policy(self, state: TrainState, reference: Params | None) -> Params:
        """Return the policy in the dtype of a reference without adapters, so that one program is compiled for both."""
        policy = self.models_of(state)["policy"]
        is_cast = self.model.compute_dtype is None or state.frozen is not None
        return policy if reference is None or is_cast else self._cast(policy)

    def make_trajectories(
        self,
        state: TrainState,
        scored: Scored,
        rollout: Rollout,
        sequences: Sequences,
        scores: np.ndarray | Sequence[float] | Array,
        token_scores: np.ndarray | None = None,
    ) -> tuple[TrainState, Trajectories, Stats]:
        """Estimate advantages and returns from the host's scores [B]; the state keeps KL coefficient and moments.

        A score of NaN says that a completion has none; it is left out of what is learned. `token_scores` [B, C] has the
        parts of scores, NaN at tokens without one; what they leave over is given at the completion's end.
        """
        values = np.asarray(scores, np.float32)
        if values.shape != (self.config.batch_size,):
            raise DataError(f"scores: expected {self.config.batch_size} numbers, got the shape {values.shape}")
        if token_scores is not None:
            token_scores = np.asarray(token_scores, np.float32)
            shape = sequences.completion_mask.shape
            if token_scores.shape != shape:
                raise DataError(f"token_scores: expected {shape} numbers, got the shape {token_scores.shape}")
        for name, given in (("scores", values), ("token_scores", token_scores)):
            if given is not None and np.isinf(given).any():
                raise DataError(f"{name}: expected finite numbers, and NaN where there is none, got an infinite one")
        on_devices = self.parallel.put((values, token_scores), 0)
        given = state.controls, scored, rollout, sequences, *on_devices
        controls, result, stats = self._trajectories(*given)
        return state._replace(controls=controls), result, stats

    def update(self, state: TrainState, batch: Trajectories, step: int) -> tuple[TrainState, Stats]:
        """Learn in all epochs and mini-batches of one update; the memory of `state` is taken over."""
        key = ops.purpose_key(self.config.run.seed, ops.Purpose.MINI_BATCHES, step)
        trained = state._replace(frozen=None, ahead=None)
        divisor = self._learning.divisor

        def learn() -> tuple[TrainState, Stats]:
            nonlocal divisor
            if self._learning.divisor != divisor:
                divisor = self._learning.divisor
                self._mini_batches = jax.jit(lambda *args: self._cut_mini_batches(*args))  # a trace of its own
            return self._update(trained, state.frozen, self._mini_batches(batch, key))

        def rows_at_once() -> int:
            parts = self.micro_batches(batch.sequences.input_ids.shape[1])
            return self.config.mini_batch_size // self.parallel.row_shards // parts

        after, stats = self._learning.repeated(learn, rows_at_once, lambda: is_whole(trained))
        return after._replace(frozen=state.frozen), stats

    def _cut_mini_batches(self, batch: Trajectories, key: Array) -> tuple[Trajectories, Weights]:
        """Cut [B, ...] into [S, M, rows of a micro-batch, ...], the same rows on any device count, with weights."""
        rl = self.config.rl
        rows = update.mini_batch_rows(key, self.config.batch_size, rl.num_ppo_epochs, rl.num_mini_batches)
        length = batch.sequences.input_ids.shape[1]
        parts = self.micro_batches(length)
        if parts > 1 and len(padding.cut_lengths(length, self._length_gaps)) > 1:
            # Rows of similar length share a micro-batch, so that it can be cut; sums over them stay the same.
            by_length = jnp.argsort(ops.real_lengths(batch.sequences)[rows], axis=1)
            rows = jnp.take_along_axis(rows, by_length, axis=1)
        mini_batches = jax.tree.map(lambda x: x[rows], batch)
        response = self.config.sampling.response_length
        both = (mini_batches, losses.loss_weights(mini_batches, rl.ratio_level, rl.mean_of_losses, response))
        return jax.tree.map(lambda x: x.reshape(x.shape[0], parts, -1, *x.shape[2:]), both)
