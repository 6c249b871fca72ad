"""Attention in several forms that compute the same, and the cache of keys and values.

`plain` holds all scores of a call at once, [B, H, T, S]; of long rows only those up to the last key that some queries
see. `blocks` holds those of a few queries and computes them again for the gradient, so that nothing grows with T times
S. `triton` and `splash` are kernels of GPUs and TPUs (`kernels.py`), for the calls that they cover; `blocks` takes the
others. One token after a cache has few scores: it is always `plain`.

One slot of the cache is one column of the batch, padding included. A query sees the slots up to its own that hold a
real token, so a left-padded row needs the mask and a right-padded one does not: whatever comes after a token is hidden
from it anyway. This is all that attention knows of positions; rotary angles count real tokens, and are applied to
queries and keys before they come here. The cache therefore holds rotated keys, and no later step rotates them again.

Shape letters: B rows, T new tokens, S tokens attended to (T, or the slots of the cache), R of the T tokens that are
read, H heads, G heads of keys and values, K head size, N queries of a block.
"""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxppo.nn import kernels
from jaxppo.nn.blocks import Blocks, einsum_fp32, select_tokens, where_new
from jaxppo.nn.rotary import Rotary
from jaxppo.types import Array

LayerCache: TypeAlias = tuple[Array, Array]
"""Keys and values of one layer, each [B, G, S, K]."""
Cache: TypeAlias = tuple[LayerCache, ...]
"""One `LayerCache` per layer: separate arrays, so that a loop updates each of them in place."""

MASKED = -1e30
"""Added to the attention scores of hidden slots; finite, so that a row with nothing to attend to gives no NaN."""

CAUSAL_BLOCK = 128
"""Queries of a row that `plain` computes at once where there are at least twice as many: docs/performance.md."""

BLOCK_SCORES = 2**25
"""Number of scores that `blocks` computes at once, 128 MiB in fp32: products large enough for a GPU or TPU."""

SAVED = "saved"
"""Name of what the gradient of a layer saves where it does not save everything, see `depth.run_layers`."""
PROJECTED = "projected"
"""Name of queries, keys and values as products with weights give them, before rotation, which loops save."""


class AttentionContext(NamedTuple):
    """What a layer gets in addition to the residual stream; all layers of a call share everything but the cache.

    Attributes:
        rotary: of the new tokens; None in a family without rotary embeddings.
        mask: [B, S] bool, the slots that hold a real token; None: all.
        cache: keys and values of this layer; None: they are not stored.
        cache_index: slot of the first new token; None: 0, and nothing is in the cache yet.
        read: [B, R] int, the new tokens whose results are wanted; None: all.
    """

    rotary: Rotary | None = None
    mask: Array | None = None
    cache: LayerCache | None = None
    cache_index: Array | None = None
    read: Array | None = None


def causal_bias(
    query_slots: Array, num_slots: int, mask: Array | None, window: int | None
) -> Array:
    """Return what is added to attention scores: 0 where a query sees a slot, `MASKED` elsewhere.

    Args:
        query_slots: [B or 1, N] int32, the queries' own slots; they see no later ones.
        num_slots: S.
        mask: [B, S] bool, slots that hold a real token; None: all.
        window: slots this many or more before a query's own are hidden; None: none is.

    Returns:
        [B or 1, 1, N, S] float32.
    """
    slots = jnp.arange(num_slots)
    # Padding before a token is hidden by the mask, whatever comes after it by its slot.
    visible = slots <= query_slots[..., None]
    if window is not None:
        visible &= query_slots[..., None] - slots < window
    if mask is not None:
        visible &= mask[:, None].astype(bool)
    return jnp.where(visible[:, None], 0.0, MASKED)


def attend_cached(
    q_bhtk: Array,
    k_bgtk: Array,
    v_bgtk: Array,
    context: AttentionContext,
    form: str = "plain",
    scale: float | None = None,
    window: int | None = None,
) -> tuple[Array, LayerCache | None]:
    """Attention of new tokens to the cache they are written to, or to each other where nothing is in it yet.

    Args:
        q_bhtk: [B, H, T or R, K] queries of the tokens that are read; head h reads the keys of head h G // H.
        k_bgtk: [B, G, T, K] keys of all new tokens.
        v_bgtk: [B, G, T, K] values.
        context: cache, mask and tokens that are read.
        form: see the top of this module.
        scale: of the scores; default 1 / sqrt(K).
        window: see `causal_bias`.

    Returns:
        [B, T or R, H K], and the cache with these keys and values.
    """
    q_bhtk, k_bgtk, v_bgtk = checkpoint_name((q_bhtk, k_bgtk, v_bgtk), kernels.ATTENDED)
    num_new = k_bgtk.shape[2]
    mask = context.mask
    cache = context.cache
    first_slot = 0 if context.cache_index is None else context.cache_index
    # Written before they are read: a token sees itself.
    if cache is not None:
        cache = _write_cache(cache, k_bgtk, v_bgtk, first_slot)
    # A prompt attends to itself: the slots of the cache after
    # it are empty, and would be masked scores for nothing.
    if cache is None or context.cache_index is None:
        keys, values = k_bgtk, v_bgtk
        mask = None if mask is None else mask[:, :num_new]
    else:
        keys, values = cache
    query_slots = select_tokens((first_slot + jnp.arange(num_new))[None], context.read, axis=1)
    scale = float(q_bhtk.shape[3] ** -0.5) if scale is None else scale
    # A cache may be in another dtype than the computation.
    keys = keys.astype(q_bhtk.dtype)
    values = values.astype(q_bhtk.dtype)
    # One query for each new token, in their order, from
    # slot 0 on: the calls that causal forms can take.
    is_square = context.cache_index is None and context.read is None

    if form == "plain" and is_square and num_new >= 2 * CAUSAL_BLOCK:
        attended = attend_causally(q_bhtk, keys, values, query_slots, mask, scale, window)
    elif form == "plain" or num_new == 1:
        bias = causal_bias(query_slots, keys.shape[2], mask, window)
        # For one query a GPU's compiler makes one kernel of all steps of a softmax, and four of these.
        softmax_first = form == "triton"
        attended = attend(q_bhtk, keys, values, bias, scale, softmax_first)
    else:
        # A kernel returns None for what it does not cover.
        attended = None
        if form != "blocks" and is_square:
            attended = kernels.attend(form, q_bhtk, keys, values, mask, scale, window)
        if attended is None:
            attended = attend_in_blocks(q_bhtk, keys, values, query_slots, mask, scale, window)
    batch_size, _, num_queries, _ = attended.shape
    return attended.transpose(0, 2, 1, 3).reshape(batch_size, num_queries, -1), cache


def _write_cache(
    cache: LayerCache, key: Array, value: Array, first_slot: int | Array
) -> LayerCache:
    start = (0, 0, first_slot, 0)
    keys, values = cache
    keys = jax.lax.dynamic_update_slice(keys, key.astype(keys.dtype), start)
    values = jax.lax.dynamic_update_slice(values, value.astype(values.dtype), start)
    return keys, values


def attend(
    q_bhtk: Array,
    k_bgsk: Array,
    v_bgsk: Array,
    bias: Array,
    scale: float,
    softmax_first: bool = False,
) -> Array:
    """Attention: softmax(scale q k^T + bias) v, the softmax in float32; H / G heads of queries share a head of keys.

    Written out, and on [B, H, T, K] arrays, because of the CPU: for [64, 96, 4 heads, 32], forward and gradient take
    14 ms this way, 29 ms as an einsum on [B, T, H, K], 67 ms with `jax.nn.dot_product_attention(is_causal=True)`;
    one cached step takes 0.2 ms instead of 0.65 ms, as the cache needs no transposition.

    Args:
        q_bhtk: [B, H, T, K] queries; head h reads the keys of head h G // H.
        k_bgsk: [B, G, S, K] keys.
        v_bgsk: [B, G, S, K] values.
        bias: [B or 1, 1, T, S] float32, 0 where a query sees a key, very negative elsewhere.
        scale: of the scores.
        softmax_first: divide by the softmax sum before the product with the values.

    Returns:
        [B, H, T, K], in the dtype of the values.
    """
    scores = _scores(q_bhtk, k_bgsk, bias, scale)
    if softmax_first:
        weights = jax.nn.softmax(scores, axis=-1).astype(v_bgsk.dtype)
        weighted = einsum_fp32("bgts,bgsk->bgtk", weights, v_bgsk)
        return weighted.astype(v_bgsk.dtype).reshape(q_bhtk.shape)
    # The largest score is taken out so that nothing overflows; it cancels, and so has no gradient.
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    # The division by the softmax sum comes after the product
    # with the values: on K numbers per query instead of S.
    weighted = einsum_fp32("bgts,bgsk->bgtk", weights.astype(v_bgsk.dtype), v_bgsk)
    attended = (weighted / weights.sum(axis=-1)[..., None]).astype(v_bgsk.dtype)
    return attended.reshape(q_bhtk.shape)


def attend_causally(
    q_bhtk: Array,
    k_bgtk: Array,
    v_bgtk: Array,
    query_slots: Array,
    mask: Array | None,
    scale: float,
    window: int | None,
) -> Array:
    """`attend` of tokens to each other, some queries at a time, which leave out the keys after the last of them.

    Of two blocks three quarters of the scores are computed, of many little more than half.

    Args:
        q_bhtk: [B, H, T, K] queries.
        k_bgtk: [B, G, T, K] keys.
        v_bgtk: [B, G, T, K] values.
        query_slots: see `causal_bias`.
        mask: see `causal_bias`.
        scale: of the scores.
        window: see `causal_bias`.

    Returns:
        [B, H, T, K], in the dtype of the values.
    """
    num_tokens = q_bhtk.shape[2]
    parts = []
    for start in range(0, num_tokens, CAUSAL_BLOCK):
        stop = min(start + CAUSAL_BLOCK, num_tokens)
        mask_to_stop = None if mask is None else mask[:, :stop]
        bias = causal_bias(query_slots[:, start:stop], stop, mask_to_stop, window)
        queries = q_bhtk[:, :, start:stop]
        keys = k_bgtk[:, :, :stop]
        values = v_bgtk[:, :, :stop]
        parts.append(attend(queries, keys, values, bias, scale))
    return jnp.concatenate(parts, axis=2)


def _scores(q_bhtk: Array, k_bgsk: Array, bias: Array, scale: float) -> Array:
    """Return scale q k^T + bias, the heads that share keys one after the other: [B, G, H / G T, S] float32."""
    b, h, t, k = q_bhtk.shape
    g, s = k_bgsk.shape[1:3]
    # Heads that share keys are treated as more queries
    # of one head: keys and values are never repeated.
    queries = (q_bhtk * scale).reshape(b, g, -1, k)
    scores = einsum_fp32("bgtk,bgsk->bgts", queries, k_bgsk)
    return (scores.reshape(b, h, t, s) + bias).reshape(b, g, -1, s)


# ------------------------------------------------------------------------------------------------- blocks of queries


def attend_in_blocks(
    q_bhtk: Array,
    k_bgsk: Array,
    v_bgsk: Array,
    query_slots: Array,
    mask: Array | None,
    scale: float,
    window: int | None = None,
    block: int | None = None,
) -> Array:
    """`attend` for a block of queries at a time, whose scores the gradient computes once more.

    A softmax needs all scores of its query, and queries do not need each other: so a block of queries is computed to
    the end, with its N x S scores, before the next one begins. Left to itself, JAX would store the weights of all
    blocks for the gradient, which is T x S again; so the gradient is written by hand. The forward pass saves the result
    and two numbers of each query, its largest score and the sum of its weights. From these and one product of queries
    and keys the backward pass gets the weights of a block back.

    With p = softmax(s) and d_out the gradient of out = p v, the backward pass of a block is
    d_v = p^T d_out, d_s = p (d_out v^T - sum_k d_out out), d_q = scale d_s k, d_k = scale d_s^T q.

    Args:
        q_bhtk: [B, H, T, K] queries.
        k_bgsk: [B, G, S, K] keys.
        v_bgsk: [B, G, S, K] values.
        query_slots: [B or 1, T] int32, see `causal_bias`.
        mask: see `causal_bias`.
        scale: of the scores.
        window: see `causal_bias`.
        block: queries at once; default: as many as `BLOCK_SCORES` allows, but 16 in any case.

    Returns:
        [B, H, T, K], in the dtype of the values.

    Source: FlashAttention-2 (arXiv:2307.08691), section 2.3, the backward pass.
    """
    batch_size, num_heads, num_queries, _ = q_bhtk.shape
    num_slots = k_bgsk.shape[2]
    if block is None:
        block = max(16, BLOCK_SCORES // (batch_size * num_heads * num_slots))
    if mask is None:
        mask = jnp.ones((1, num_slots), bool)
    return _in_blocks(
        q_bhtk, k_bgsk, v_bgsk, query_slots, mask, scale, window, min(block, num_queries)
    )


def _without_gradient(*arguments: Any) -> Array:
    return _forward(*arguments)[0]


def _forward(
    q: Array,
    k: Array,
    v: Array,
    query_slots: Array,
    mask: Array,
    scale: float,
    window: int | None,
    block: int,
) -> tuple[Array, Array]:
    """Return the results [B, H, T, K], and of each query the largest score m and the sum of exp(s - m): [B, H, T, 2].

    Not their logsumexp: where a query sees nothing, m is `MASKED` and absorbs whatever is added to it.
    """
    num_slots = k.shape[2]
    blocks = Blocks(q.shape[2], block, axis=2)
    slot_blocks = blocks._replace(axis=1)
    block_shape = (q.shape[0], q.shape[1], block, -1)

    def step(carry: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], None]:
        out, sums = carry
        bias = causal_bias(slot_blocks.get(query_slots, i), num_slots, mask, window)
        scores = _scores(blocks.get(q, i), k, bias, scale)
        largest = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - largest)
        total = weights.sum(axis=-1, keepdims=True)
        weighted = einsum_fp32("bgts,bgsk->bgtk", weights.astype(v.dtype), v)
        block_sums = jnp.concatenate([largest, total], axis=-1)
        out = blocks.set(out, i, (weighted / total).reshape(block_shape))
        sums = blocks.set(sums, i, block_sums.reshape(block_shape))
        return (out, sums), None

    no_out = jnp.zeros_like(q)
    no_sums = jnp.zeros_like(q, shape=(*q.shape[:3], 2), dtype=jnp.float32)
    (out, sums), _ = jax.lax.scan(step, (no_out, no_sums), blocks.numbers)
    return out, sums


def _forward_rule(*arguments: Any) -> tuple[Array, tuple[Array, ...]]:
    # An accelerated model saves both, and so need not run
    # the forward pass again before the backward pass.
    out, sums = checkpoint_name(_forward(*arguments), SAVED)
    arrays = arguments[:5]  # the others are plain numbers
    return out, (*arrays, out, sums)


def _backward_rule(
    scale: float, window: int | None, block: int, residuals: tuple[Array, ...], d_out: Array
) -> tuple[Array | None, ...]:
    q, k, v, query_slots, mask, out, sums = residuals
    batch_size, num_heads, num_queries, _ = q.shape
    num_kv_heads, num_slots = k.shape[1:3]
    blocks = Blocks(num_queries, block, axis=2)
    slot_blocks = blocks._replace(axis=1)
    # sum_k d_out out is the same for every slot that a query sees.
    d_out_times_out = d_out.astype(jnp.float32) * out.astype(jnp.float32)
    d_out_out = jnp.sum(d_out_times_out, axis=-1, keepdims=True)

    def by_kv_head(x: Array) -> Array:
        """Put the queries that share keys one after the other: [B, H, N, X] -> [B, G, H / G N, X]."""
        return x.reshape(batch_size, num_kv_heads, -1, x.shape[-1])

    def step(carry: tuple[Array, ...], i: Array) -> tuple[tuple[Array, ...], None]:
        d_q, d_k, d_v = carry
        q_block = blocks.get(q, i)
        d_out_block = by_kv_head(blocks.get(d_out, i))
        bias = causal_bias(slot_blocks.get(query_slots, i), num_slots, mask, window)
        scores = _scores(q_block, k, bias, scale)
        largest, total = jnp.split(by_kv_head(blocks.get(sums, i)), 2, axis=-1)
        # The weights of the forward pass, from its sums: no second softmax.
        weights = jnp.exp(scores - largest) / total
        d_weights = einsum_fp32("bgtk,bgsk->bgts", d_out_block, v)
        d_scores = (weights * (d_weights - by_kv_head(blocks.get(d_out_out, i))) * scale).astype(
            q.dtype
        )
        # Queries of two blocks count once for the keys; each finds its own gradient again.
        new = blocks.new(i)
        if new is not None:
            new = jnp.tile(new, num_heads // num_kv_heads)[:, None]
        new_q = where_new(new, by_kv_head(q_block))
        new_d_out = where_new(new, d_out_block)
        d_v += einsum_fp32("bgts,bgtk->bgsk", weights.astype(v.dtype), new_d_out)
        d_k += einsum_fp32("bgts,bgtk->bgsk", d_scores, new_q)
        d_q_block = einsum_fp32("bgts,bgsk->bgtk", d_scores, k)
        d_q = blocks.set(d_q, i, d_q_block.reshape(batch_size, num_heads, block, -1))
        return (d_q, d_k, d_v), None

    # Gradients of keys and values add up over the blocks,
    # in float32; a block writes its queries' gradient once.
    start = (
        jnp.zeros_like(q),
        jnp.zeros_like(k, dtype=jnp.float32),
        jnp.zeros_like(v, dtype=jnp.float32),
    )
    (d_q, d_k, d_v), _ = jax.lax.scan(step, start, blocks.numbers)
    # Slots and mask are no numbers to be learned.
    return d_q, d_k.astype(k.dtype), d_v.astype(v.dtype), None, None


_in_blocks = jax.custom_vjp(_without_gradient, nondiff_argnums=(5, 6, 7))
_in_blocks.defvjp(_forward_rule, _backward_rule)
