"""The sampling and scoring programs, for the rows of one device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo import models, ops
from jaxppo.models import ModelConfig
from jaxppo.types import Array, Params, PromptBatch, Rollout, Sequences

SAMPLING_BLOCK = 128
"""Tokens per block of the sampler's cumulative sum; about the square root of a large vocabulary."""


class Sampled(NamedTuple):
    """One sampled token per row and its log-probability."""

    ids: Array  # [B] int32
    logprobs: Array  # [B] fp32


def sample_tokens(logits: Array, uniforms: Array, temperature: float) -> Sampled:
    """Draw from softmax(logits / temperature) by inverting its cumulative sum; temperature 0 takes the largest logit.

    Args:
        logits: [B, V] fp32.
        uniforms: [B] fp32 in [0, 1), one draw per row instead of one Gumbel per vocabulary entry.
        temperature: at least 0; at 0 the log-probabilities are those of temperature 1.
    """
    log_p = jax.nn.log_softmax(logits / (temperature if temperature > 0 else 1.0), axis=-1)
    ids = _invert_cumulative(log_p, uniforms) if temperature > 0 else jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return Sampled(ids, jnp.take_along_axis(log_p, ids[:, None], axis=-1)[:, 0])


def _invert_cumulative(log_p: Array, uniforms: Array) -> Array:
    """The first token whose cumulative probability exceeds the uniform: [B, V], [B] -> [B] int32.

    Probabilities are counted in whole units of 2^-30: parallel sums of floats do not grow steadily, so that a uniform
    near 1 could fall behind the last possible token. The sum goes over blocks of tokens, then over the tokens of one
    block: for 64 rows of 50304 tokens on the CPU this takes 5 ms, one cumulative sum 33 ms.
    """
    units = lambda log_p: jnp.round(jnp.exp(log_p) * 2.0**30).astype(jnp.int32)  # noqa: E731
    num_rows, vocab_size = log_p.shape
    width = min(SAMPLING_BLOCK, vocab_size)
    padded = jnp.pad(log_p, ((0, 0), (0, -vocab_size % width)), constant_values=-jnp.inf)
    blocks = padded.reshape(num_rows, -1, width)
    ends = jnp.cumsum(jnp.sum(units(blocks), axis=-1), axis=-1)
    target = jnp.minimum((uniforms * ends[:, -1]).astype(jnp.int32), ends[:, -1] - 1)[:, None]
    block = jnp.sum(ends <= target, axis=-1, keepdims=True, dtype=jnp.int32)
    inside = units(jnp.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0])
    begin = jnp.take_along_axis(ends, block, axis=1) - jnp.sum(inside, axis=-1, keepdims=True)
    return block[:, 0] * width + jnp.sum(begin + jnp.cumsum(inside, axis=-1) <= target, axis=-1, dtype=jnp.int32)


class _Decoding(NamedTuple):
    """Where the decoding loop stands."""

    t: Array  # [] int32, tokens drawn for each row
    rollout: Rollout
    cache: models.Cache | None


def generate(
    params: Params,
    prompts: PromptBatch,
    uniforms: Array,
    *,
    model: ModelConfig,
    eos_id: int,
    pad_id: int,
    temperature: float,
) -> Rollout:
    """Sample a completion per prompt with a KV cache, until every row has ended or C tokens are drawn.

    Args:
        params: language model.
        prompts: B left-padded prompts.
        uniforms: [B, C] fp32 in [0, 1); its width is the most tokens a completion may have.
        model: configuration of the model.
        eos_id: a row ends with this token.
        pad_id: fills completion_ids after the end.
        temperature: see `sample_tokens`.
    """
    num_rows, prompt_length = prompts.prompt_ids.shape
    length = uniforms.shape[1]
    # Slots past a query are hidden from it by causality, so one mask serves every step.
    real_slots = jnp.pad(prompts.prompt_mask, ((0, 0), (0, length)), constant_values=True)
    lengths = ops.prompt_lengths(prompts.prompt_mask)

    def append(rollout: Rollout, logits: Array, t: Array) -> Rollout:
        u = jax.lax.dynamic_slice_in_dim(uniforms, t, 1, axis=1)[:, 0]
        return _append(rollout, sample_tokens(logits, u, temperature), t, eos_id, pad_id)

    def step(state: _Decoding) -> _Decoding:
        """Feed the last token drawn, draw the next."""
        last = state.t - 1
        ids = jax.lax.dynamic_slice_in_dim(state.rollout.completion_ids, last, 1, axis=1)
        out = models.apply(
            model,
            params,
            ids,
            positions=(lengths + last)[:, None],
            attention_mask=real_slots,
            cache=state.cache,
            cache_index=prompt_length + last,
            logits=False,
        )
        logits = models.lm_logits(model, params, out.hidden[:, 0])
        return _Decoding(state.t + 1, append(state.rollout, logits, state.t), out.cache)

    cache = models.init_cache(model, num_rows, prompt_length + length)
    prefill = models.apply(model, params, prompts.prompt_ids, attention_mask=real_slots, cache=cache, logits=False)
    logits = models.lm_logits(model, params, prefill.hidden[:, -1])
    first = append(_empty_rollout(num_rows, length, pad_id), logits, jnp.int32(0))
    unfinished = lambda state: (state.t < length) & ~jnp.all(state.rollout.ended)  # noqa: E731
    return jax.lax.while_loop(unfinished, step, _Decoding(jnp.int32(1), first, prefill.cache)).rollout


def _empty_rollout(num_rows: int, length: int, pad_id: int) -> Rollout:
    return Rollout(
        completion_ids=jnp.full((num_rows, length), pad_id, jnp.int32),
        completion_mask=jnp.zeros((num_rows, length), bool),
        logprobs=jnp.zeros((num_rows, length), jnp.float32),
        ended=jnp.zeros((num_rows,), bool),
    )


def _append(rollout: Rollout, sampled: Sampled, t: Array, eos_id: int, pad_id: int) -> Rollout:
    """Write token t of the rows that have not ended."""
    live = ~rollout.ended
    ids = jnp.where(live, sampled.ids, pad_id)
    put = lambda buffer, column: jax.lax.dynamic_update_slice(buffer, column[:, None], (0, t))  # noqa: E731
    return Rollout(
        completion_ids=put(rollout.completion_ids, ids),
        completion_mask=put(rollout.completion_mask, live),
        logprobs=put(rollout.logprobs, jnp.where(live, sampled.logprobs, 0.0)),
        ended=rollout.ended | (live & (ids == eos_id)),
    )


def to_sequences(prompts: PromptBatch, rollout: Rollout, *, length: int) -> Sequences:
    """Pack prompts and completions into right-padded sequences of `length` tokens."""
    return Sequences(
        input_ids=ops.pack(prompts.prompt_ids, prompts.prompt_mask, rollout.completion_ids, length),
        prompt_lengths=ops.prompt_lengths(prompts.prompt_mask),
        completion_ids=rollout.completion_ids,
        completion_mask=rollout.completion_mask,
    )


def completion_hidden(params: Params, sequences: Sequences, model: ModelConfig) -> Array:
    """Final hidden states that predict each completion token: [B, C, D]."""
    hidden = models.apply(model, params, sequences.input_ids, logits=False).hidden
    return ops.completion_hidden(hidden, sequences.prompt_lengths, sequences.completion_ids.shape[1])


def completion_logprobs(
    params: Params, sequences: Sequences, *, model: ModelConfig, temperature: float
) -> tuple[Array, Array]:
    """Log-probabilities and entropies of completion tokens, both [B, C] fp32 and 0 outside the mask.

    Policy and reference go through this one program, so that equal parameters give equal bits.
    """
    hidden = completion_hidden(params, sequences, model)
    return logprobs_of_hidden(params, hidden, sequences, model=model, temperature=temperature)


def logprobs_of_hidden(
    params: Params, hidden: Array, sequences: Sequences, *, model: ModelConfig, temperature: float
) -> tuple[Array, Array]:
    """The head's part of `completion_logprobs`, for hidden states already at hand."""
    kernel = models.lm_head_kernel(model, params)
    logprobs, entropy = ops.token_logprobs(hidden, kernel, sequences.completion_ids, temperature=temperature)
    mask = sequences.completion_mask
    return jnp.where(mask, logprobs, 0.0), jnp.where(mask, entropy, 0.0)


def completion_values(params: Params, sequences: Sequences, *, model: ModelConfig) -> Array:
    """Value of the state before each completion token: [B, C] fp32, 0 outside the mask.

    `params` is {"policy", "value"}: the value model has a trunk of its own, or only a head for the policy's trunk.
    """
    separate = "trunk" in params["value"]
    hidden = completion_hidden(params["value"] if separate else params["policy"], sequences, model)
    return values_of_hidden(params, hidden, sequences)


def values_of_hidden(params: Params, hidden: Array, sequences: Sequences) -> Array:
    """The head's part of `completion_values`."""
    return jnp.where(sequences.completion_mask, models.scores(params["value"], hidden), 0.0)
