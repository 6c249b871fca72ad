"""The sampling and scoring programs, for the rows of one device."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo import models
from jaxppo.nn import ModelConfig
from jaxppo.nn.head_logprobs import token_kl, token_logprobs
from jaxppo.parallel import partition
from jaxppo.rl import ops
from jaxppo.types import Array, Params, PromptBatch, Rollout, Sequences

SAMPLING_BLOCK = 128
"""Tokens per block of the sampler's cumulative sum; about the square root of a large vocabulary."""


class Sampled(NamedTuple):
    """One sampled token per row and its log-probability."""

    ids: Array  # [B] int32
    logprobs: Array  # [B] fp32


def sample_tokens(
    logits: Array, uniforms: Array, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float | None = None
) -> Sampled:
    """Draw from softmax(logits / temperature) by inverting its cumulative sum; temperature 0 takes the largest logit.

    Args:
        logits: [B, V] fp32.
        uniforms: [B] fp32 in [0, 1), one draw per row instead of one Gumbel per vocabulary entry.
        temperature: at least 0; at 0 the log-probabilities are those of temperature 1.
        top_k: see `truncate`.
        top_p: see `truncate`.
        min_p: see `truncate`.

    Returns:
        Token ids, and their log-probabilities under the very distribution they were drawn from.
    """
    if temperature > 0:
        log_p = jax.nn.log_softmax(truncate(logits, temperature, top_k, top_p, min_p) / temperature, axis=-1)
        ids = _invert_cumulative(log_p, uniforms)
    else:
        log_p = jax.nn.log_softmax(logits, axis=-1)
        ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return Sampled(ids, jnp.take_along_axis(log_p, ids[:, None], axis=-1)[:, 0])


def truncate(
    logits: Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float | None = None
) -> Array:
    """Drop unlikely tokens, one rule after the other; tokens as likely as the last one kept stay too.

    Compared are the logits as they come: a compiler may compute log-probabilities twice, in different ways, and the
    last token to be kept would fall short of itself.

    Args:
        logits: [B, V] fp32.
        temperature: above 0, of the probabilities that the rules are about.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the fewest tokens, most likely first, whose probabilities add up to at least this; 1 keeps all.
        min_p: keep tokens at least this times as likely as the most likely one.

    Returns:
        [B, V] fp32, the logits, -inf for what was dropped.

    Source: the logits warpers of transformers, in their order.
    """
    if 0 < top_k < logits.shape[1]:
        logits = _keep_from(logits, jax.lax.top_k(logits, top_k)[0][:, -1:])
    if top_p < 1.0:
        falling = -jnp.sort(-logits, axis=-1)
        p = jax.nn.softmax(falling / temperature, axis=-1)
        kept = jnp.cumsum(p, axis=-1) - p < top_p
        logits = _keep_from(logits, jnp.min(jnp.where(kept, falling, jnp.inf), axis=-1, keepdims=True))
    if min_p is not None and min_p > 0.0:
        logits = _keep_from(logits, jnp.max(logits, axis=-1, keepdims=True) + temperature * math.log(min_p))
    return logits


def _keep_from(logits: Array, lowest: Array) -> Array:
    return jnp.where(logits >= lowest, logits, -jnp.inf)


def _invert_cumulative(log_p: Array, uniforms: Array) -> Array:
    """Find the first token whose cumulative probability exceeds the uniform: [B, V], [B] -> [B] int32.

    Probabilities are counted in whole units of 2^-30: parallel sums of floats do not grow steadily, so that a uniform
    near 1 could fall behind the last possible token. The sum goes over blocks of tokens, then over the tokens of one
    block: for 64 rows of 50304 tokens on the CPU this takes 5 ms, one cumulative sum 33 ms. A compiler may compute the
    probabilities of the block anew, and a unit less or more: it is never a token without one that is drawn for that.
    """
    units = lambda log_p: jnp.round(jnp.exp(log_p) * 2.0**30).astype(jnp.int32)  # noqa: E731
    num_rows, vocab_size = log_p.shape
    width = min(SAMPLING_BLOCK, vocab_size)
    padded = jnp.pad(log_p, ((0, 0), (0, -vocab_size % width)), constant_values=-jnp.inf)
    blocks = padded.reshape(num_rows, -1, width)
    ends = jnp.cumsum(jnp.sum(units(blocks), axis=-1), axis=-1)
    target = jnp.minimum((uniforms * ends[:, -1]).astype(jnp.int32), ends[:, -1] - 1)[:, None]
    block = jnp.sum(ends <= target, axis=-1, keepdims=True, dtype=jnp.int32)
    of_block = jnp.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]
    inside = units(of_block)
    begin = jnp.where(block > 0, jnp.take_along_axis(ends, jnp.maximum(block - 1, 0), axis=1), 0)
    passed = jnp.sum(begin + jnp.cumsum(inside, axis=-1) <= target, axis=-1, dtype=jnp.int32)
    most_likely = jnp.argmax(of_block, axis=-1, keepdims=True).astype(jnp.int32)
    last = jnp.max(jnp.where(inside > 0, jnp.arange(width, dtype=jnp.int32), most_likely), axis=-1)
    return block[:, 0] * width + jnp.minimum(passed, last)


class _Decoding(NamedTuple):
    """Where the decoding loop stands."""

    t: Array  # [] int32, tokens drawn for each row
    rollout: Rollout
    cache: models.Cache | None


def generate(
    params: Params,
    prompts: PromptBatch,
    uniforms: Array,
    lengths: Array | None = None,
    *,
    model: ModelConfig,
    stop_ids: tuple[int, ...],
    pad_id: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float | None = None,
) -> Rollout:
    """Sample B / G completions per prompt with a KV cache, until every row is done.

    Prompts are read once each; their part of the cache is then copied for every completion.

    Args:
        params: language model.
        prompts: G left-padded prompts.
        uniforms: [B, C] fp32 in [0, 1), B a multiple of G; the completions of a prompt are adjacent rows.
        lengths: [B] int32, most tokens of each completion, 1 to C; default: C.
        model: configuration of the model.
        stop_ids: a completion ends with any of these tokens; none: all run to their full length.
        pad_id: fills completion_ids after the end.
        temperature: see `sample_tokens`.
        top_k: see `truncate`.
        top_p: see `truncate`.
        min_p: see `truncate`.
    """
    params = models.for_decoding(model, params)
    num_prompts, prompt_length = prompts.prompt_ids.shape
    num_rows, length = uniforms.shape
    copies = num_rows // num_prompts
    # Slots past a query are hidden from it by causality, so one mask serves every step.
    slots = jnp.pad(prompts.prompt_mask, ((0, 0), (0, length)), constant_values=True)
    row_slots = jnp.repeat(slots, copies, axis=0)
    positions = jnp.repeat(ops.prompt_lengths(prompts.prompt_mask), copies)
    limits = jnp.full((num_rows,), length, jnp.int32) if lengths is None else lengths

    def append(rollout: Rollout, logits: Array, t: Array) -> Rollout:
        u = jax.lax.dynamic_slice_in_dim(uniforms, t, 1, axis=1)[:, 0]
        sampled = sample_tokens(partition.over_tensor(logits, None), u, temperature, top_k, top_p, min_p)
        return _append(rollout, sampled, t, limits, stop_ids, pad_id)

    def step(state: _Decoding) -> _Decoding:
        """Feed the last token drawn, draw the next."""
        last = state.t - 1
        ids = jax.lax.dynamic_slice_in_dim(state.rollout.completion_ids, last, 1, axis=1)
        out = models.apply(
            model,
            params,
            ids,
            positions=(positions + last)[:, None],
            attention_mask=row_slots,
            cache=state.cache,
            cache_index=prompt_length + last,
            logits=False,
        )
        logits = models.lm_logits(model, params, out.hidden[:, 0])
        return _Decoding(state.t + 1, append(state.rollout, logits, state.t), out.cache)

    logits, cache = _prefill(params, prompts, slots, copies, model)
    first = append(_empty_rollout(num_rows, length, pad_id), logits, jnp.int32(0))
    unfinished = lambda state: jnp.any(~state.rollout.ended & (state.t < limits))  # noqa: E731
    return jax.lax.while_loop(unfinished, step, _Decoding(jnp.int32(1), first, cache)).rollout


def _prefill(
    params: Params, prompts: PromptBatch, slots: Array, copies: int, model: ModelConfig
) -> tuple[Array, models.Cache]:
    """Compute logits behind each prompt and the cache that holds it, `copies` times each: [B, V] and B rows."""
    cache = models.init_cache(model, *slots.shape)
    last = jnp.full((slots.shape[0], 1), prompts.prompt_ids.shape[1] - 1)
    out = models.apply(model, params, prompts.prompt_ids, attention_mask=slots, cache=cache, read=last)
    assert out.logits is not None
    assert out.cache is not None
    both = (out.logits[:, 0], out.cache)
    return both if copies == 1 else jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), both)


def _empty_rollout(num_rows: int, length: int, pad_id: int) -> Rollout:
    return Rollout(
        completion_ids=jnp.full((num_rows, length), pad_id, jnp.int32),
        completion_mask=jnp.zeros((num_rows, length), bool),
        logprobs=jnp.zeros((num_rows, length), jnp.float32),
        ended=jnp.zeros((num_rows,), bool),
    )


def _append(
    rollout: Rollout, sampled: Sampled, t: Array, limits: Array, stop_ids: tuple[int, ...], pad_id: int
) -> Rollout:
    """Write token t of the rows that are not done."""
    live = ~rollout.ended & (t < limits)
    ids = jnp.where(live, sampled.ids, pad_id)
    ended = rollout.ended
    for stop_id in stop_ids:
        ended |= live & (sampled.ids == stop_id)
    put = lambda buffer, column: jax.lax.dynamic_update_slice(buffer, column[:, None], (0, t))  # noqa: E731
    return Rollout(
        completion_ids=put(rollout.completion_ids, ids),
        completion_mask=put(rollout.completion_mask, live),
        logprobs=put(rollout.logprobs, jnp.where(live, sampled.logprobs, 0.0)),
        ended=ended,
    )


def to_sequences(prompts: PromptBatch, rollout: Rollout, *, length: int) -> Sequences:
    """Pack prompts and completions into right-padded sequences of `length` tokens; each prompt once per completion."""
    copies = rollout.completion_ids.shape[0] // prompts.prompt_ids.shape[0]
    prompt_ids, prompt_mask = (jnp.repeat(x, copies, axis=0) for x in prompts)
    return Sequences(
        input_ids=ops.pack(prompt_ids, prompt_mask, rollout.completion_ids, length),
        prompt_lengths=ops.prompt_lengths(prompt_mask),
        completion_ids=rollout.completion_ids,
        completion_mask=rollout.completion_mask,
    )


def completion_hidden(params: Params, sequences: Sequences, model: ModelConfig) -> Array:
    """Compute the final hidden states that predict each completion token: [B, C, D]."""
    sizes = (sequences.completion_ids.shape[1], sequences.input_ids.shape[1])
    read = ops.prediction_columns(sequences.prompt_lengths, *sizes)
    return models.apply(model, params, sequences.input_ids, read=read, logits=False).hidden


def completion_logprobs(
    params: Params, sequences: Sequences, *, model: ModelConfig, temperature: float
) -> tuple[Array, Array]:
    """Compute log-probabilities and entropies of completion tokens, both [B, C] fp32 and 0 outside the mask.

    Policy and reference go through this one program, so that equal parameters give equal bits.
    """
    hidden = completion_hidden(params, sequences, model)
    return logprobs_of_hidden(params, hidden, sequences, model=model, temperature=temperature)


def logprobs_of_hidden(
    params: Params, hidden: Array, sequences: Sequences, *, model: ModelConfig, temperature: float
) -> tuple[Array, Array]:
    """Compute the head's part of `completion_logprobs`, for hidden states already at hand."""
    kernel = partition.over_tensor(models.lm_head_kernel(model, params), None)  # its blocks go over all columns
    ids = sequences.completion_ids
    logprobs, entropy = token_logprobs(hidden, kernel, ids, temperature=temperature, vocab=model.num_logits)
    mask = sequences.completion_mask
    return jnp.where(mask, logprobs, 0.0), jnp.where(mask, entropy, 0.0)


def values_of_hidden(params: Params, hidden: Array) -> Array:
    """Compute the head's part of `completion_values`, for hidden states already at hand."""
    return models.scores(params["value"], hidden)


def completion_values(params: Params, sequences: Sequences, *, model: ModelConfig, value_model: ModelConfig) -> Array:
    """Compute the value of the state before each completion token, and behind the last: [B, C] fp32, not masked.

    `params` is {"policy", "value"}: the value model has a trunk of its own, or only a head for the policy's trunk.
    """
    if "trunk" in params["value"]:
        hidden = completion_hidden(params["value"], sequences, value_model)
    else:
        hidden = completion_hidden(params["policy"], sequences, model)
    return values_of_hidden(params, hidden)


def completion_kl(params: Params, sequences: Sequences, *, model: ModelConfig, temperature: float) -> Array:
    """Compute the exact KL of the policy's next-token distributions to the reference's: [B, C], 0 outside the mask.

    `params` is {"policy", "reference"}.
    """
    kernel = lambda p: partition.over_tensor(models.lm_head_kernel(model, p), None)  # noqa: E731
    of = lambda p: (completion_hidden(p, sequences, model), kernel(p))  # noqa: E731
    kl = token_kl(*of(params["policy"]), *of(params["reference"]), temperature=temperature, vocab=model.num_logits)
    return jnp.where(sequences.completion_mask, kl, 0.0)
