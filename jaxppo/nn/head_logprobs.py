"""Log-probabilities, entropies and exact KL of next-token distributions, without a [B, T, V] array.

The head's product with the hidden states is computed in blocks of some rows and some columns of the vocabulary. Sums
over the vocabulary go from block to block as in an online softmax (arXiv:1805.02867); the backward pass computes each
block once more. Nothing of the size of the logits outlives a block, however many tokens there are.

Why by hand. Training needs three numbers of each token: the logit of the token that came, the logsumexp of all logits,
and their mean under the distribution. All three are sums over the vocabulary, so they can be
gathered block by block while the logits of the block are still in the cache. Sums of exponentials need the largest
logit taken out first, and it is not known before the last block: so `_Softmax` holds them relative to the largest logit
so far, and rescales them where a later block has a larger one. The gradient needs the probabilities again,
exp(z - logsumexp(z)); it computes z of the block once more, rather than have [N, V] numbers stored.

The order of the two loops differs. Forward, rows are outside: a row's three numbers are finished and stored once.
Backward, columns are outside: the gradient of the head, [D, V], is the large result, and each of its blocks is finished
before the next one begins, while the small gradient of the hidden states adds up.

Shape letters: N rows (tokens), D hidden size, V vocabulary, R rows and C columns of a block.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.nn.blocks import Blocks, einsum_fp32, equal_parts, map_in_chunks, split_rows, where_new
from jaxppo.parallel import partition, platform
from jaxppo.types import Array


class Block(NamedTuple):
    """Size of the largest block of logits that is computed at once."""

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
        vocab: number of tokens of the distributions, the first columns of the kernel; default: all columns.
        block: largest block of logits at once; default: `default_block`.
        transposed: the kernel is [V, D], as an embedding is, and so is its gradient: neither is transposed whole.

    Returns:
        Log-probabilities and entropies in nats, both [...] fp32; both can be differentiated. An id outside of the
        vocabulary has the log-probability NaN.
    """
    vocab_axis = 0 if transposed else 1
    settings = _Settings(
        temperature=float(temperature),
        vocab=kernel.shape[vocab_axis] if vocab is None else vocab,
        block=block or default_block(),
        vocab_axis=vocab_axis,
    )
    flat_hidden = hidden.reshape(ids.size, -1)
    flat_ids = ids.reshape(ids.size)
    logprobs, entropy = _logprobs(flat_hidden, kernel, flat_ids, settings)
    return logprobs.reshape(ids.shape), entropy.reshape(ids.shape)


class _Settings(NamedTuple):
    """What is static in a program, see `token_logprobs`."""

    temperature: float
    vocab: int
    block: Block
    vocab_axis: int  # of the kernel


def _without_gradient(
    hidden: Array, kernel: Array, ids: Array, settings: _Settings
) -> tuple[Array, Array]:
    return _forward(hidden, kernel, ids, settings)[:2]


def _forward(
    hidden: Array, kernel: Array, ids: Array, settings: _Settings
) -> tuple[Array, Array, Array]:
    """Log-probability, entropy and logsumexp of each row, [N] each."""
    temperature, vocab, block, vocab_axis = settings
    columns = _vocab_blocks(vocab, block, vocab_axis)

    def row_stats(rows: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        h, row_ids = rows

        def step(carry: tuple[_Softmax, Array], c: Array) -> tuple[tuple[_Softmax, Array], None]:
            softmax, chosen = carry
            z = _logits(
                h, _gather_block(columns.get(kernel, c), h, vocab_axis), temperature, vocab_axis
            )
            softmax = _extend(softmax, z, columns.new(c))
            # The id's column in this block; of an id that the
            # block does not have, any column, which is not used.
            column = row_ids - columns.start(c)
            column_in_block = jnp.clip(column, 0, columns.size - 1)
            picked = jnp.take_along_axis(z, column_in_block[:, None], axis=1)[:, 0]
            chosen = jnp.where(columns.holds(c, row_ids), picked, chosen)
            return (softmax, chosen), None

        zero = jnp.zeros(row_ids.shape, jnp.float32)
        not_in_vocab = zero + jnp.nan
        (softmax, chosen), _ = jax.lax.scan(step, (_empty(zero), not_in_vocab), columns.numbers)
        log_z = softmax.largest + jnp.log(softmax.total)
        logprobs = chosen - log_z
        # H = logsumexp(z) - E[z], both relative to the largest logit
        entropy = jnp.log(softmax.total) - softmax.weighted / softmax.total
        return logprobs, entropy, log_z

    return map_in_chunks(row_stats, (hidden, ids), block.rows)


def _forward_rule(hidden: Array, kernel: Array, ids: Array, settings: _Settings) -> tuple[Any, Any]:
    logprobs, entropy, log_z = _forward(hidden, kernel, ids, settings)
    return (logprobs, entropy), (hidden, kernel, ids, log_z, entropy)


def _backward_rule(
    settings: _Settings, residuals: Any, grads: tuple[Array, Array]
) -> tuple[Array, Array, None]:
    """dlogp/dz[v] = 1[v = id] - p[v] and dH/dz[v] = -p[v] (z[v] - E[z])."""
    temperature, vocab, block, vocab_axis = settings
    hidden, kernel, ids, log_z, entropy = residuals
    hidden_axis = 1 - vocab_axis
    kernel_axes = _KERNEL_AXES[vocab_axis]
    columns = _vocab_blocks(vocab, block, vocab_axis)
    # H = logsumexp(z) - E[z], so that E[z] need not be saved.
    mean_logit = log_z - entropy
    rows = split_rows((hidden, ids, log_z, mean_logit, *grads), block.rows)

    def add_columns(carry: tuple[Array, Array], c: Array) -> tuple[tuple[Array, Array], None]:
        d_hidden, d_kernel = carry
        part = _gather_block(columns.get(kernel, c), hidden, vocab_axis)

        def add_rows(d_part: Array, row_block: tuple[Any, Array]) -> tuple[Array, Array]:
            (h, row_ids, log_z, mean, d_logprob, d_entropy), d_h = row_block
            z = _logits(h, part, temperature, vocab_axis)
            chosen = jnp.arange(columns.size) == (row_ids - columns.start(c))[:, None]
            # -p[v] is common to both derivatives: this is what it is multiplied by.
            pull = d_logprob[:, None] + d_entropy[:, None] * (z - mean[:, None])
            d_z = jnp.where(chosen, d_logprob[:, None], 0.0) - jnp.exp(z - log_z[:, None]) * pull
            # Columns that two blocks have count once; the temperature divided the logits.
            d_z = (where_new(columns.new(c), d_z) / temperature).astype(h.dtype)
            d_h += einsum_fp32(f"rc,{kernel_axes}->rd", d_z, part)
            d_part += einsum_fp32(f"rd,rc->{kernel_axes}", h, d_z)
            return d_part, d_h

        d_part, d_hidden = jax.lax.scan(
            add_rows, jnp.zeros(part.shape, jnp.float32), (rows, d_hidden)
        )
        if d_part.shape[hidden_axis] != kernel.shape[hidden_axis]:
            d_part = partition.scattered(d_part, hidden_axis)
        d_kernel = columns.set(d_kernel, c, columns.get(d_kernel, c) + d_part)
        return (d_hidden, d_kernel), None

    row_blocks_of_hidden = rows[0]
    no_d_hidden = jnp.zeros(row_blocks_of_hidden.shape, jnp.float32)
    no_d_kernel = jnp.zeros(kernel.shape, jnp.float32)
    (d_hidden, d_kernel), _ = jax.lax.scan(add_columns, (no_d_hidden, no_d_kernel), columns.numbers)
    # Without the rows of zeros that filled up the last block.
    d_hidden = d_hidden.reshape(-1, hidden.shape[1])[: hidden.shape[0]]
    return d_hidden.astype(hidden.dtype), d_kernel.astype(kernel.dtype), None


_logprobs = jax.custom_vjp(_without_gradient, nondiff_argnums=(3,))
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
        ref_hidden: [..., D], of q.
        ref_kernel: [D, V], of q.
        temperature: divides both logits.
        vocab: as for `token_logprobs`, of both kernels.
        block: largest block of logits at once; default: `default_block`.

    Returns:
        [...] fp32, nats.

    Source: TRL 0.11 `PPOTrainer._kl_penalty`, `kl_penalty="full"`.
    """
    block = block or default_block()
    vocab = kernel.shape[1] if vocab is None else vocab
    columns = _vocab_blocks(vocab, block, vocab_axis=1)

    def row_kl(rows: tuple[Array, Array]) -> Array:
        # p and q go through one product and one sum, the rows
        # of q below those of p: equal ones give exactly 0.
        stacked_hidden = jnp.stack(rows)

        def step(sums: _Softmax, c: Array) -> tuple[_Softmax, None]:
            parts = jnp.stack([columns.get(kernel, c), columns.get(ref_kernel, c)])
            z = einsum_fp32("nrd,ndc->nrc", stacked_hidden, parts)
            # Not z / temperature less ref_z / temperature: with
            # a fused multiply-add that is not 0 for equal ones.
            gap = jnp.concatenate([(z[0] - z[1]) / temperature, jnp.zeros_like(z[1])])
            return _extend(sums, z.reshape(gap.shape) / temperature, columns.new(c), gap), None

        start = _empty(jnp.zeros(2 * rows[0].shape[0], jnp.float32))
        sums, _ = jax.lax.scan(step, start, columns.numbers)
        largest = sums.largest.reshape(2, -1)
        log_total = jnp.log(sums.total).reshape(2, -1)
        mean_gap = (sums.weighted / sums.total).reshape(2, -1)[0]
        # Row 0 is p, row 1 is q: sum_v p (z - ref_z) - logsumexp(z) + logsumexp(ref_z).
        return mean_gap + (largest[1] - largest[0]) + (log_total[1] - log_total[0])

    flat_hidden = hidden.reshape(-1, hidden.shape[-1])
    flat_ref_hidden = ref_hidden.reshape(-1, hidden.shape[-1])
    kl = map_in_chunks(row_kl, (flat_hidden, flat_ref_hidden), block.rows)
    return kl.reshape(hidden.shape[:-1])


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
    shift = sums.largest - largest
    shifted = z - largest[:, None]
    scale = jnp.exp(shift)
    weights = where_new(new, jnp.exp(shifted))
    weighted = sums.weighted
    if x is None:
        # x = z - m of the earlier columns moves with m. Before the first block m is the smallest
        # number there is, whose product with a total of 0 could be NaN.
        weighted = weighted + jnp.where(sums.total > 0, shift * sums.total, 0.0)
        x = shifted
    return _Softmax(
        largest=largest,
        total=scale * sums.total + weights.sum(axis=1),
        weighted=scale * weighted + (weights * x).sum(axis=1),
    )


_KERNEL_AXES = ("cd", "dc")
"""Axes of a block of the kernel, by that of the vocabulary in it."""


def _vocab_blocks(vocab: int, block: Block, vocab_axis: int) -> Blocks:
    """Return the vocabulary in blocks of the columns of [D, V] matrices, or of the rows of [V, D]."""
    size = equal_parts(vocab, block.columns, multiple=min(block.columns, 128))
    return Blocks(vocab, min(vocab, size), vocab_axis)


def _gather_block(part: Array, hidden: Array, vocab_axis: int) -> Array:
    """Gather a block of the kernel of which this device may have a shard, in the dtype of the hidden states."""
    hidden_axis = 1 - vocab_axis
    if part.shape[hidden_axis] == hidden.shape[-1]:
        return part
    return partition.gathered(part, hidden_axis, hidden.dtype)


def _logits(hidden: Array, kernel: Array, temperature: float, vocab_axis: int) -> Array:
    """[R, D] and [D, C] or [C, D] -> [R, C] fp32."""
    axes = _KERNEL_AXES[vocab_axis]
    return einsum_fp32(f"rd,{axes}->rc", hidden, kernel) / temperature
