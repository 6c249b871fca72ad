"""The sampler: one token per row from logits, and its log-probability."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.types import Array

SAMPLING_BLOCK = 128
"""Tokens per block of the sampler's cumulative sum; about the square root of a large vocabulary."""


class Sampled(NamedTuple):
    """One sampled token per row and its log-probability."""

    ids: Array  # [B] int32
    logprobs: Array  # [B] fp32


def sample_tokens(
    logits: Array,
    uniforms: Array,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float | None = None,
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
    # The kept log-probability is that of the very distribution
    # that was drawn from: the first ratio of PPO is then 1.
    if temperature > 0:
        kept_logits = truncate(logits, temperature, top_k, top_p, min_p)
        log_p = jax.nn.log_softmax(kept_logits / temperature, axis=-1)
        ids = _invert_cumulative(log_p, uniforms)
    else:
        log_p = jax.nn.log_softmax(logits, axis=-1)
        ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logprobs = jnp.take_along_axis(log_p, ids[:, None], axis=-1)
    return Sampled(ids, logprobs[:, 0])


def truncate(
    logits: Array,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float | None = None,
) -> Array:
    """Drop unlikely tokens, one rule after the other; tokens as likely as the last one kept stay too.

    The thresholds are applied to logits, not to log-probabilities: XLA may compute a log-probability twice with
    different rounding, and the last token to be kept could then fail the threshold that it defines.

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
        highest, _ = jax.lax.top_k(logits, top_k)
        logits = _keep_from(logits, highest[:, -1:])
    if top_p < 1.0:
        falling = -jnp.sort(-logits, axis=-1)
        p = jax.nn.softmax(falling / temperature, axis=-1)
        # By the sum before a token: the one that reaches top_p is still kept.
        is_kept = jnp.cumsum(p, axis=-1) - p < top_p
        kept = jnp.where(is_kept, falling, jnp.inf)
        logits = _keep_from(logits, jnp.min(kept, axis=-1, keepdims=True))
    if min_p is not None and min_p > 0.0:
        highest = jnp.max(logits, axis=-1, keepdims=True)
        # p >= min_p p_max, in logits: p is proportional to exp(logit / temperature).
        logits = _keep_from(logits, highest + temperature * math.log(min_p))
    return logits


def penalize_repetition(logits: Array, seen_tokens: Array, penalty: float) -> Array:
    """Make tokens that prompt or completion have already less likely, for a penalty above 1.

    Args:
        logits: [B, V] fp32.
        seen_tokens: [B, V] bool.
        penalty: positive logits are divided by it, negative ones multiplied; 1 changes nothing.

    Source: Keskar et al. 2019, "CTRL"; `RepetitionPenaltyLogitsProcessor` of transformers.
    """
    penalized = jnp.where(logits < 0, logits * penalty, logits / penalty)
    return jnp.where(seen_tokens, penalized, logits)


def _keep_from(logits: Array, lowest: Array) -> Array:
    return jnp.where(logits >= lowest, logits, -jnp.inf)


def _invert_cumulative(log_p: Array, uniforms: Array) -> Array:
    """Find the first token whose cumulative probability exceeds the uniform: [B, V], [B] -> [B] int32.

    Probabilities are counted in whole units of 2^-30: parallel sums of floats do not grow steadily, so that a uniform
    near 1 could fall behind the last possible token. The sum goes over blocks of tokens, then over the tokens of one
    block: for 64 rows of 50304 tokens on the CPU this takes 5 ms, one cumulative sum 33 ms. XLA may compute the
    probabilities of the chosen block again and round some of them to a unit more or less, so the result is at most the
    last token of the block whose rounded probability is above 0: rounding never selects an impossible token after it.
    """

    def units(log_p: Array) -> Array:
        return jnp.round(jnp.exp(log_p) * 2.0**30).astype(jnp.int32)

    num_rows, vocab_size = log_p.shape
    width = min(SAMPLING_BLOCK, vocab_size)
    missing = -vocab_size % width  # tokens that the last block is short of
    padded = jnp.pad(log_p, ((0, 0), (0, missing)), constant_values=-jnp.inf)
    blocks = padded.reshape(num_rows, -1, width)
    # 1. The block: the first one whose end exceeds the target.
    block_units = jnp.sum(units(blocks), axis=-1)
    ends = jnp.cumsum(block_units, axis=-1)
    total = ends[:, -1]
    # A uniform near 1 times the total may round up to the total itself, which no token reaches.
    target = jnp.minimum((uniforms * total).astype(jnp.int32), total - 1)[:, None]
    block = jnp.sum(ends <= target, axis=-1, keepdims=True, dtype=jnp.int32)
    # 2. The token in it, counted on from the end of the block before.
    block_log_p = jnp.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]
    inside = units(block_log_p)
    end_before = jnp.take_along_axis(ends, jnp.maximum(block - 1, 0), axis=1)
    begin = jnp.where(block > 0, end_before, 0)
    token_ends = begin + jnp.cumsum(inside, axis=-1)
    passed = jnp.sum(token_ends <= target, axis=-1, dtype=jnp.int32)
    # Within the block a compiler may have rounded units
    # otherwise: never past its last token with a probability.
    most_likely = jnp.argmax(block_log_p, axis=-1, keepdims=True).astype(jnp.int32)
    columns = jnp.arange(width, dtype=jnp.int32)
    last = jnp.max(jnp.where(inside > 0, columns, most_likely), axis=-1)
    return block[:, 0] * width + jnp.minimum(passed, last)
