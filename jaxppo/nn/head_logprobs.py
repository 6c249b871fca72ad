"""Log-probabilities, entropies and exact KL of next-token distributions, without a [B, T, V] array.

The head's product with the hidden states is computed in blocks of some rows and some columns of the vocabulary. Sums
over the vocabulary go from block to block as in an online softmax (arXiv:1805.02867); the backward pass computes each
block once more. Nothing of the size of the logits outlives a block, whatever the number of tokens.

Shape letters: N rows (tokens), D hidden size, V vocabulary, R rows and C columns of a block.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.nn.blocks import Blocks, by_rows, equal_parts, split_rows, where_new
from jaxppo.parallel import partition, platform
from jaxppo.types import Array


class Block(NamedTuple):
    """Most logits that are computed at once."""

    rows: int
    columns: int


CPU_BLOCK = Block(1024, 1024)
"""4 MiB in fp32: a block stays in the cache between the product and what is done with it."""
ACCELERATOR_BLOCK = Block(4096, 8192)
"""128 MiB in fp32: products large enough for a GPU or TPU."""


def default_block() -> Block:
    """Return the block sizes that suit the devices that JAX computes on."""
    return CPU_BLOCK if platform.current().name == "cpu" else ACCELERATOR_BLOCK


def token_logprobs(
    hidden: Array,
    kernel: Array,
    ids: Array,
    *,
    temperature: float = 1.0,
    vocab: int | None = None,
    block: Block | None = None,
    transposed: bool = False,
) -> tuple[Array, Array]:
    """Log-probability of each id and entropy of its distribution, from hidden states.

    logp = z[id] - logsumexp(z) and H = logsumexp(z) - sum_v softmax(z)[v] z[v], with z = hidden @ kernel / temperature
    in fp32.

    Args:
        hidden: [..., D].
        kernel: [D, V]; or a device's shard of it over `partition.FSDP`, which is gathered and whose gradient is summed
            and split block by block, so that no device ever has all of either.
        ids: [...] int32.
        temperature: divides the logits.
        vocab: the distributions are over the first so many columns of the kernel; default: all.
        block: most logits at once; default: `default_block`.
        transposed: the kernel is [V, D], as an embedding is, and so is its gradient: neither is transposed whole.

    Returns:
        Log-probabilities and entropies in nats, both [...] fp32; both can be differentiated. An id outside of the
        vocabulary has the log-probability NaN.
    """
    flat = (hidden.reshape(ids.size, -1), kernel, ids.reshape(ids.size))
    vocab_axis = 0 if transposed else 1
    vocab = kernel.shape[vocab_axis] if vocab is None else vocab
    logprobs, entropy = _logprobs(*flat, float(temperature), vocab, block or default_block(), vocab_axis)
    return logprobs.reshape(ids.shape), entropy.reshape(ids.shape)


def _without_gradient(
    hidden: Array, kernel: Array, ids: Array, temperature: float, vocab: int, block: Block, vocab_axis: int
) -> tuple[Array, Array]:
    return _forward(hidden, kernel, ids, temperature, vocab, block, vocab_axis)[:2]


def _forward(
    hidden: Array, kernel: Array, ids: Array, temperature: float, vocab: int, block: Block, vocab_axis: int
) -> tuple[Array, Array, Array]:
    """Log-probability, entropy and logsumexp of each row, [N] each."""
    columns = _columns(vocab, block, vocab_axis)

    def of_rows(rows: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        h, i = rows

        def step(carry: tuple[_Softmax, Array], c: Array) -> tuple[tuple[_Softmax, Array], None]:
            softmax, chosen = carry
            z = _logits(h, _whole(columns.of(kernel, c), h, vocab_axis), temperature, vocab_axis)
            softmax = _extend(softmax, z, columns.new(c))
            local = i - columns.start(c)
            picked = jnp.take_along_axis(z, jnp.clip(local, 0, columns.size - 1)[:, None], axis=1)[:, 0]
            return (softmax, jnp.where(columns.holds(c, i), picked, chosen)), None

        zero = jnp.zeros(i.shape, jnp.float32)
        nowhere = zero + jnp.nan  # what an id outside of the vocabulary gets
        (softmax, chosen), _ = jax.lax.scan(step, (_empty(zero), nowhere), columns.numbers)
        log_z = softmax.largest + jnp.log(softmax.total)
        # H = logsumexp(z) - E[z], both relative to the largest logit
        return chosen - log_z, jnp.log(softmax.total) - softmax.weighted / softmax.total, log_z

    return by_rows(of_rows, (hidden, ids), block.rows)


def _forward_rule(
    hidden: Array, kernel: Array, ids: Array, temperature: float, vocab: int, block: Block, vocab_axis: int
) -> tuple[Any, Any]:
    logprobs, entropy, log_z = _forward(hidden, kernel, ids, temperature, vocab, block, vocab_axis)
    return (logprobs, entropy), (hidden, kernel, ids, log_z, entropy)


def _backward_rule(
    temperature: float, vocab: int, block: Block, vocab_axis: int, kept: Any, grads: tuple[Array, Array]
) -> tuple[Array, Array, None]:
    """dlogp/dz[v] = 1[v = id] - p[v] and dH/dz[v] = -p[v] (z[v] - E[z]).

    Blocks of columns are the outer loop: the head's gradient is finished one block after the other, and the hidden
    states' gradient, which is small, is what accumulates.
    """
    hidden, kernel, ids, log_z, entropy = kept
    columns, of_part = _columns(vocab, block, vocab_axis), _AXES[vocab_axis]
    rows = split_rows((hidden, ids, log_z, log_z - entropy, *grads), block.rows)

    def of_columns(carry: tuple[Array, Array], c: Array) -> tuple[tuple[Array, Array], None]:
        d_hidden, d_kernel = carry
        part = _whole(columns.of(kernel, c), hidden, vocab_axis)

        def of_rows(d_part: Array, row_block: tuple[Any, Array]) -> tuple[Array, Array]:
            (h, i, log_z, mean, d_logprob, d_entropy), d_h = row_block
            z = _logits(h, part, temperature, vocab_axis)
            chosen = jnp.arange(columns.size) == (i - columns.start(c))[:, None]
            pull = d_logprob[:, None] + d_entropy[:, None] * (z - mean[:, None])
            d_z = jnp.where(chosen, d_logprob[:, None], 0.0) - jnp.exp(z - log_z[:, None]) * pull
            d_z = (where_new(columns.new(c), d_z) / temperature).astype(h.dtype)
            d_h += jnp.einsum(f"rc,{of_part}->rd", d_z, part, preferred_element_type=jnp.float32)
            return d_part + jnp.einsum(f"rd,rc->{of_part}", h, d_z, preferred_element_type=jnp.float32), d_h

        d_part, d_hidden = jax.lax.scan(of_rows, jnp.zeros(part.shape, jnp.float32), (rows, d_hidden))
        if d_part.shape[1 - vocab_axis] != kernel.shape[1 - vocab_axis]:
            d_part = partition.scattered(d_part, 1 - vocab_axis)
        return (d_hidden, columns.put(d_kernel, c, columns.of(d_kernel, c) + d_part)), None

    start = (jnp.zeros(rows[0].shape, jnp.float32), jnp.zeros(kernel.shape, jnp.float32))
    (d_hidden, d_kernel), _ = jax.lax.scan(of_columns, start, columns.numbers)
    d_hidden = d_hidden.reshape(-1, hidden.shape[1])[: hidden.shape[0]]
    return d_hidden.astype(hidden.dtype), d_kernel.astype(kernel.dtype), None


_logprobs = jax.custom_vjp(_without_gradient, nondiff_argnums=(3, 4, 5, 6))
_logprobs.defvjp(_forward_rule, _backward_rule)


def token_kl(
    hidden: Array,
    kernel: Array,
    ref_hidden: Array,
    ref_kernel: Array,
    *,
    temperature: float = 1.0,
    vocab: int | None = None,
    block: Block | None = None,
) -> Array:
    """Exact KL(p || q) = sum_v p[v] (log p[v] - log q[v]) of two next-token distributions.

    Args:
        hidden: [..., D], of p.
        kernel: [D, V], of p.
        ref_hidden: [..., D'], of q.
        ref_kernel: [D', V], of q.
        temperature: divides both logits.
        vocab: as for `token_logprobs`, of both kernels.
        block: most logits at once; default: `default_block`.

    Returns:
        [...] fp32, nats.

    Source: TRL 0.11 `PPOTrainer._kl_penalty`, `kl_penalty="full"`.
    """
    block = block or default_block()
    columns = _columns(kernel.shape[1] if vocab is None else vocab, block, 1)
    width = max(kernel.shape[0], ref_kernel.shape[0])
    widen = lambda x, axis: jnp.pad(x, [(0, width - x.shape[i] if i == axis else 0) for i in range(2)])  # noqa: E731
    kernels = widen(kernel, 0), widen(ref_kernel, 0)

    def of_rows(rows: tuple[Array, Array]) -> Array:
        # p and q go through one product and one sum, the rows of q below those of p: equal ones give exactly 0.
        hidden_of_both = jnp.stack(rows)

        def step(both: _Softmax, c: Array) -> tuple[_Softmax, None]:
            parts = jnp.stack([columns.of(each, c) for each in kernels])
            z = jnp.einsum("nrd,ndc->nrc", hidden_of_both, parts, preferred_element_type=jnp.float32)
            # Not z / temperature less ref_z / temperature: with a fused multiply-add that is not 0 for equal ones.
            gap = jnp.concatenate([(z[0] - z[1]) / temperature, jnp.zeros_like(z[1])])
            return _extend(both, z.reshape(gap.shape) / temperature, columns.new(c), gap), None

        start = _empty(jnp.zeros(2 * rows[0].shape[0], jnp.float32))
        both, _ = jax.lax.scan(step, start, columns.numbers)
        largest, log_total = both.largest.reshape(2, -1), jnp.log(both.total).reshape(2, -1)
        mean_gap = (both.weighted / both.total).reshape(2, -1)[0]
        # sum_v p (z - ref_z) - logsumexp(z) + logsumexp(ref_z)
        return mean_gap + (largest[1] - largest[0]) + (log_total[1] - log_total[0])

    both = (widen(x.reshape(-1, x.shape[-1]), 1) for x in (hidden, ref_hidden))
    return by_rows(of_rows, tuple(both), block.rows).reshape(hidden.shape[:-1])


# ----------------------------------------------------------------------------------------- sums over the vocabulary


class _Softmax(NamedTuple):
    """Sums over the columns so far, relative to the largest logit m among them, [R] each."""

    largest: Array  # m
    total: Array  # sum of exp(z - m)
    weighted: Array  # sum of exp(z - m) x, for x = z - m or some other x per column


def _empty(zero: Array) -> _Softmax:
    return _Softmax(zero + jnp.finfo(jnp.float32).min, zero, zero)


def _extend(sums: _Softmax, z: Array, new: Array | None, x: Array | None = None) -> _Softmax:
    """Add those columns of z [R, C] that are new; x [R, C] is what they are weighted for, default: z - m."""
    largest = jnp.maximum(sums.largest, z.max(axis=1))
    shift, shifted = sums.largest - largest, z - largest[:, None]
    scale, weights = jnp.exp(shift), where_new(new, jnp.exp(shifted))
    before = sums.weighted
    if x is None:  # the columns before move with m
        before, x = before + jnp.where(sums.total > 0, shift * sums.total, 0.0), shifted
    return _Softmax(largest, scale * sums.total + weights.sum(axis=1), scale * before + (weights * x).sum(axis=1))


_AXES = ("cd", "dc")
"""Axes of a block of the kernel, by that of the vocabulary in it."""


def _columns(vocab: int, block: Block, vocab_axis: int) -> Blocks:
    """Return the vocabulary in blocks of the columns of [D, V] matrices, or of the rows of [V, D]."""
    size = min(vocab, equal_parts(vocab, block.columns, multiple=min(block.columns, 128)))
    return Blocks(vocab, size, vocab_axis)


def _whole(part: Array, hidden: Array, vocab_axis: int) -> Array:
    """Gather a block of the kernel of which this device may have a shard, in the dtype of the hidden states."""
    axis = 1 - vocab_axis
    return part if part.shape[axis] == hidden.shape[-1] else partition.gathered(part, axis, hidden.dtype)


def _logits(hidden: Array, kernel: Array, temperature: float, vocab_axis: int) -> Array:
    """[R, D] and [D, C] or [C, D] -> [R, C] fp32."""
    return jnp.einsum(f"rd,{_AXES[vocab_axis]}->rc", hidden, kernel, preferred_element_type=jnp.float32) / temperature
