"""Masked statistics that are global over devices, packing of sequences, and random keys.

`axis_name` is the mapped device axis inside a per-device program, or None outside of one.
"""

from enum import IntEnum

import jax
import jax.numpy as jnp

from jaxppo.types import Array, Axes, Sequences


def global_sum(x: Array, axis_name: Axes = None) -> Array:
    """Sum up all elements over all devices."""
    total = jnp.sum(x)
    return total if axis_name is None else jax.lax.psum(total, axis_name)


def masked_mean(x: Array, mask: Array, axis_name: Axes = None) -> Array:
    """Compute the mean of x over the True positions of mask on all devices; 0 where there are none.

    It is sum / count with both taken over all devices: a mean of per-device means weighs rows wrongly.

    Args:
        x: [...] float.
        mask: [...] bool.
        axis_name: mapped device axis.
    """
    # `where`, not a product: what lies outside the mask may be NaN.
    count = global_sum(mask.astype(x.dtype), axis_name)
    total = global_sum(jnp.where(mask, x, 0), axis_name)
    return total / jnp.maximum(count, 1)


def global_max(x: Array, axis_name: Axes = None) -> Array:
    """Return the largest of all elements on all devices."""
    largest = jnp.max(x)
    return largest if axis_name is None else jax.lax.pmax(largest, axis_name)


def mean(x: Array, axis_name: Axes = None) -> Array:
    """Compute the mean of all elements on all devices."""
    return masked_mean(x, jnp.ones(x.shape, bool), axis_name)


def std(x: Array, axis_name: Axes = None) -> Array:
    """Compute the standard deviation (n - 1) of all elements on all devices."""
    variance = masked_var(x, jnp.ones(x.shape, bool), axis_name)
    return jnp.sqrt(variance)


def masked_quantile(x: Array, mask: Array, q: float, axis_name: Axes = None) -> Array:
    """Compute the q-quantile of x over the True positions of mask on all devices, linear in between; [] or NaN."""
    real = jnp.where(mask, x, jnp.nan)
    # A quantile is no sum over devices, so each of them gathers all numbers.
    if axis_name is not None:
        real = jax.lax.all_gather(real, axis_name)
    return jnp.nanquantile(real, q)


def mean_weights(mask: Array, axis: int | tuple[int, ...]) -> Array:
    """Compute weights that make a sum the mean over the True positions along `axis`: mask / count, or 0 for none.

    A mean written as a weighted sum may be added up over micro-batches and devices in any partition of the rows; a mean
    of means may not, as parts with fewer real tokens would count too much.
    """
    count = jnp.sum(mask, axis=axis, keepdims=True, dtype=jnp.float32)
    return mask / jnp.maximum(count, 1.0)


def weighted_sum(x: Array, weights: Array) -> Array:
    """Sum up x times weights; positions of weight 0 do not count whatever they hold, NaN included."""
    return jnp.sum(jnp.where(weights > 0, x, 0.0) * weights)


def masked_var(x: Array, mask: Array, axis_name: Axes = None) -> Array:
    """Compute the unbiased (n - 1) variance over the True positions of mask on all devices; 0 for fewer than two."""
    count = global_sum(mask.astype(x.dtype), axis_name)
    centred = x - masked_mean(x, mask, axis_name)
    sum_of_squares = global_sum(jnp.where(mask, centred**2, 0), axis_name)
    return sum_of_squares / jnp.maximum(count - 1, 1)


def masked_whiten(
    x: Array,
    mask: Array,
    *,
    shift_mean: bool = True,
    axis_name: Axes = None,
    eps: float = 1e-8,
) -> Array:
    """Scale x to unit variance, and zero mean if `shift_mean`, over the mask on all devices; 0 outside of it.

    y = (x - mean) / sqrt(var + eps), plus mean if not shift_mean, with the unbiased variance.

    Source: TRL `masked_whiten`, with global instead of per-process statistics.
    """
    mean = masked_mean(x, mask, axis_name)
    centred = x - mean
    variance = masked_var(x, mask, axis_name)
    whitened = centred * jax.lax.rsqrt(variance + eps)
    if not shift_mean:
        whitened = whitened + mean
    return jnp.where(mask, whitened, 0)


def prompt_lengths(prompt_mask: Array) -> Array:
    """Count the real tokens of each prompt: [B, P] bool -> [B] int32."""
    return jnp.sum(prompt_mask, axis=-1, dtype=jnp.int32)


def real_lengths(sequences: Sequences) -> Array:
    """Count the tokens of prompt and completion together: [..., B] int32."""
    completion_lengths = jnp.sum(sequences.completion_mask, axis=-1, dtype=jnp.int32)
    return sequences.prompt_lengths + completion_lengths


def pack(prompt_ids: Array, prompt_mask: Array, completion_ids: Array, length: int) -> Array:
    """Move left-padded prompts and their completions together and pad on the right.

    Args:
        prompt_ids: [B, P] int32, left-padded.
        prompt_mask: [B, P] bool.
        completion_ids: [B, C] int32.
        length: T, at least the longest prompt plus its completion.

    Returns:
        [B, T] int32; what lies past a completion's end is its own padding, or 0.
    """
    joined_ids = jnp.concatenate([prompt_ids, completion_ids], axis=1)
    shift = prompt_ids.shape[1] - prompt_lengths(prompt_mask)
    # Column t of the result is column t + shift of prompt and
    # completion side by side: the left padding drops out.
    columns = jnp.arange(length)[None, :] + shift[:, None]
    num_columns = joined_ids.shape[1]
    packed = jnp.take_along_axis(joined_ids, jnp.minimum(columns, num_columns - 1), axis=1)
    return jnp.where(columns < num_columns, packed, 0)


def prediction_columns(prompt_lengths: Array, completion_length: int, length: int) -> Array:
    """Return the columns of packed sequences that predict each completion token t: prompt_length - 1 + t.

    Args:
        prompt_lengths: [B] int32.
        completion_length: C.
        length: T of the packed sequences.

    Returns:
        [B, C] int32; past the end, the last column.
    """
    # The state at a token predicts the next one, so the first
    # token of a completion is read off the prompt's last.
    last_of_prompt = prompt_lengths[:, None] - 1
    positions = last_of_prompt + jnp.arange(completion_length)[None, :]
    return jnp.clip(positions, 0, length - 1)


class Purpose(IntEnum):
    """What a random key is for; part of every key, so that no two uses share one."""

    INIT = 0
    ROLLOUT = 1
    MINI_BATCHES = 2
    EVALUATION = 3
    LENGTHS = 4
    POLICY_ADAPTER = 5
    VALUE_ADAPTER = 6


def purpose_key(seed: int, purpose: Purpose, step: int = 0) -> Array:
    """Return the random key of (seed, purpose, step): a pure function, so a resumed run needs no key state."""
    key = jax.random.key(seed)
    # One after the other, not their sum: purpose 1 at step 2 must not be purpose 2 at step 1.
    key = jax.random.fold_in(key, int(purpose))
    return jax.random.fold_in(key, step)


def row_uniforms(key: Array, num_rows: int, length: int) -> Array:
    """Draw one uniform in [0, 1) per row and step, from a key folded with the global row number.

    Row i gets the same numbers whatever the batch size and the number of devices.

    Returns:
        [num_rows, length] fp32.
    """

    # A key for each row by its number in the whole batch: one
    # draw of [num_rows, length] would depend on num_rows.
    def draw(row: Array) -> Array:
        row_key = jax.random.fold_in(key, row)
        return jax.random.uniform(row_key, (length,))

    return jax.vmap(draw)(jnp.arange(num_rows))
