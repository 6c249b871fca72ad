"""Attention in several forms that compute the same, and the cache of keys and values.

`plain` holds all scores of a call at once, [B, H, T, S]; of long rows only those up to the last key that some queries
see. `blocks` holds those of a few queries and computes them again for the gradient, so that nothing grows with T times
S. `triton` and `splash` are kernels of GPUs and TPUs (`kernels.py`), for the calls that they cover; `blocks` takes the
others. One token behind a cache has few scores: it is always `plain`.

Shape letters: B rows, T new tokens, S tokens attended to (T, or the slots of the cache), R of the T tokens that are
read, H heads, G heads of keys and values, K head size, N queries of a block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxppo.nn import kernels
from jaxppo.nn.blocks import Blocks, columns, where_new

LayerCache: TypeAlias = tuple[jax.Array, jax.Array]
"""Keys and values of one layer, each [B, G, S, K]."""
Cache: TypeAlias = tuple[LayerCache, ...]
"""One `LayerCache` per layer: separate arrays, so that a loop updates each of them in place."""

Run: TypeAlias = Callable[[jax.Array, tuple[Any, ...]], tuple[jax.Array, Cache | None]]
"""(input of the first layer [B, T, D], what every layer gets) -> output of the last one [B, T or R, D], the new cache.

A layer is `layer(hidden, *shared, cache, cache_index, read)`, with its own part of the cache.
"""

MASKED = -1e30
"""Added to the attention scores of hidden slots; finite, so that a row with nothing to attend to gives no NaN."""

CAUSAL_BLOCK = 128
"""Queries of a row that `plain` computes at once where there are at least twice as many: docs/performance.md."""

BLOCK_SCORES = 2**25
"""Scores that `blocks` computes at once, 128 MiB in fp32: products large enough for a GPU or TPU."""

KEPT = "kept"
"""Name of what the gradient of a layer keeps where it does not keep everything, see `depth.run_layers`."""


class Seen(NamedTuple):
    """Which slots the queries of a call see: no later ones than their own, among those that hold a real token."""

    queries: jax.Array  # [B or 1, T or R] int32, their own slots
    mask: jax.Array | None  # [B, S] bool, slots that hold a real token; None: all
    window: int | None  # slots this many or more before a query's own are hidden; None: none is

    def bias(self, queries: jax.Array, num_slots: int) -> jax.Array:
        """Return what is added to the scores of some of the queries [B or 1, N]: [B or 1, 1, N, S] float32."""
        slots = jnp.arange(num_slots)
        visible = slots <= queries[..., None]
        if self.window is not None:
            visible &= queries[..., None] - slots < self.window
        if self.mask is not None:
            visible &= self.mask[:, None].astype(bool)
        return jnp.where(visible[:, None], 0.0, MASKED)


def attend_cached(
    q_bhtk: jax.Array,
    k_bgtk: jax.Array,
    v_bgtk: jax.Array,
    mask: jax.Array | None,
    cache: LayerCache | None,
    cache_index: jax.Array | None,
    read: jax.Array | None,
    form: str = "plain",
    scale: float | None = None,
    window: int | None = None,
) -> tuple[jax.Array, LayerCache | None]:
    """Attention of new tokens to the cache they are written to, or to each other where nothing is in it yet.

    Args:
        q_bhtk: [B, H, T or R, K] queries of the tokens that are read; head h reads the keys of head h G // H.
        k_bgtk: [B, G, T, K] keys of all new tokens.
        v_bgtk: [B, G, T, K] values.
        mask: [B, S] bool, the slots that hold a real token; None: all.
        cache: of this layer, or None.
        cache_index: slot of the first new token; None: 0, and nothing is in the cache yet.
        read: [B, R] int, the new tokens that are read; None: all.
        form: see the top of this module.
        scale: of the scores; default 1 / sqrt(K).
        window: see `Seen`.

    Returns:
        [B, T or R, H K], and the cache with these keys and values.
    """
    t, first = k_bgtk.shape[2], 0 if cache_index is None else cache_index
    if cache is not None:
        cache = _write_cache(cache, k_bgtk, v_bgtk, first)
    if cache is None or cache_index is None:
        keys, values, mask = k_bgtk, v_bgtk, None if mask is None else mask[:, :t]
    else:
        keys, values = cache
    queries = columns((first + jnp.arange(t))[None], read, 1)
    factor = float(q_bhtk.shape[3] ** -0.5) if scale is None else scale
    arrays = q_bhtk, keys.astype(q_bhtk.dtype), values.astype(q_bhtk.dtype)
    seen = Seen(queries, mask, window)
    if form == "plain" and read is None and cache_index is None and t >= 2 * CAUSAL_BLOCK:
        attended = attend_causally(*arrays, seen, factor)
    elif form == "plain" or t == 1:
        attended = attend(*arrays, seen.bias(queries, keys.shape[2]), factor)
    else:
        attended = None
        if form != "blocks" and cache_index is None and read is None:
            attended = kernels.attend(form, *arrays, mask, factor, window)
        if attended is None:
            attended = attend_in_blocks(*arrays, queries, mask, factor, window)
    return attended.transpose(0, 2, 1, 3).reshape(*attended.shape[::2], -1), cache


def _write_cache(cache: LayerCache, key: jax.Array, value: jax.Array, first: int | jax.Array) -> LayerCache:
    start = (0, 0, first, 0)
    keys, values = cache
    return (
        jax.lax.dynamic_update_slice(keys, key.astype(keys.dtype), start),
        jax.lax.dynamic_update_slice(values, value.astype(values.dtype), start),
    )


def attend(q_bhtk: jax.Array, k_bgsk: jax.Array, v_bgsk: jax.Array, bias: jax.Array, scale: float) -> jax.Array:
    """Attention: softmax(scale q k^T + bias) v, the softmax in float32; H / G heads of queries share a head of keys.

    Written out, and on [B, H, T, K] arrays, because of the CPU: for [64, 96, 4 heads, 32], forward and gradient take
    14 ms this way, 29 ms as an einsum on [B, T, H, K], 67 ms with `jax.nn.dot_product_attention(is_causal=True)`;
    one cached step takes 0.2 ms instead of 0.65 ms, as the cache needs no transposition. The division by the softmax
    sum comes after the product with the values, on K numbers per row instead of S. Heads of queries that share keys are
    so many more queries of that head: keys and values are never repeated.

    Args:
        q_bhtk: [B, H, T, K] queries; head h reads the keys of head h G // H.
        k_bgsk: [B, G, S, K] keys.
        v_bgsk: [B, G, S, K] values.
        bias: [B or 1, 1, T, S] float32, 0 where a query sees a key, very negative elsewhere.
        scale: of the scores.

    Returns:
        [B, H, T, K], in the dtype of the values.
    """
    scores = _scores(q_bhtk, k_bgsk, bias, scale)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    weighted = jnp.einsum("bgts,bgsk->bgtk", weights.astype(v_bgsk.dtype), v_bgsk, preferred_element_type=jnp.float32)
    attended = (weighted / weights.sum(axis=-1)[..., None]).astype(v_bgsk.dtype)
    return attended.reshape(q_bhtk.shape)


def attend_causally(q_bhtk: jax.Array, k_bgtk: jax.Array, v_bgtk: jax.Array, seen: Seen, scale: float) -> jax.Array:
    """`attend` of tokens to each other, some queries at a time, which see no key after the last of them.

    Of two blocks three quarters of the scores are computed, of many little more than half.

    Args:
        q_bhtk: [B, H, T, K] queries.
        k_bgtk: [B, G, T, K] keys.
        v_bgtk: [B, G, T, K] values.
        seen: of all queries.
        scale: of the scores.

    Returns:
        [B, H, T, K], in the dtype of the values.
    """
    parts = []
    for start in range(0, q_bhtk.shape[2], CAUSAL_BLOCK):
        stop = min(start + CAUSAL_BLOCK, q_bhtk.shape[2])
        of_these = seen._replace(mask=None if seen.mask is None else seen.mask[:, :stop])
        bias = of_these.bias(seen.queries[:, start:stop], stop)
        parts.append(attend(q_bhtk[:, :, start:stop], k_bgtk[:, :, :stop], v_bgtk[:, :, :stop], bias, scale))
    return jnp.concatenate(parts, axis=2)


def _scores(q_bhtk: jax.Array, k_bgsk: jax.Array, bias: jax.Array, scale: float) -> jax.Array:
    """Return scale q k^T + bias, the heads that share keys one after the other: [B, G, H / G T, S] float32."""
    b, h, t, k = q_bhtk.shape
    g, s = k_bgsk.shape[1:3]
    queries = (q_bhtk * scale).reshape(b, g, -1, k)
    scores = jnp.einsum("bgtk,bgsk->bgts", queries, k_bgsk, preferred_element_type=jnp.float32)
    return (scores.reshape(b, h, t, s) + bias).reshape(b, g, -1, s)


# ------------------------------------------------------------------------------------------------- blocks of queries


def attend_in_blocks(
    q_bhtk: jax.Array,
    k_bgsk: jax.Array,
    v_bgsk: jax.Array,
    queries: jax.Array,
    mask: jax.Array | None,
    scale: float,
    window: int | None = None,
    block: int | None = None,
) -> jax.Array:
    """`attend` for a block of queries at a time, whose scores the gradient computes once more.

    With p = softmax(s) and d_out the gradient of out = p v, the backward pass of a block is
    d_v = p^T d_out, d_s = p (d_out v^T - sum_k d_out out), d_q = scale d_s k, d_k = scale d_s^T q.

    Args:
        q_bhtk: [B, H, T, K] queries.
        k_bgsk: [B, G, S, K] keys.
        v_bgsk: [B, G, S, K] values.
        queries: [B or 1, T] int32, see `Seen`.
        mask: see `Seen`.
        scale: of the scores.
        window: see `Seen`.
        block: queries at once; default: as many as `BLOCK_SCORES` allows, but 16 in any case.

    Returns:
        [B, H, T, K], in the dtype of the values.

    Source: FlashAttention-2 (arXiv:2307.08691), section 2.3, the backward pass.
    """
    if block is None:
        block = max(16, BLOCK_SCORES // (q_bhtk.shape[0] * q_bhtk.shape[1] * k_bgsk.shape[2]))
    if mask is None:
        mask = jnp.ones((1, k_bgsk.shape[2]), bool)
    return _in_blocks(q_bhtk, k_bgsk, v_bgsk, queries, mask, scale, window, min(block, q_bhtk.shape[2]))


def _without_gradient(*arguments: Any) -> jax.Array:
    return _forward(*arguments)[0]


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    queries: jax.Array,
    mask: jax.Array,
    scale: float,
    window: int | None,
    n: int,
) -> tuple[jax.Array, jax.Array]:
    """Return the results [B, H, T, K], and of each query the largest score m and the sum of exp(s - m): [B, H, T, 2].

    Not their logsumexp: where a query sees nothing, m is `MASKED` and absorbs whatever is added to it.
    """
    blocks, seen, group = Blocks(q.shape[2], n, 2), Seen(queries, mask, window), (q.shape[0], q.shape[1], n, -1)

    def step(done: tuple[jax.Array, jax.Array], i: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        bias = seen.bias(blocks._replace(axis=1).of(queries, i), k.shape[2])
        scores = _scores(blocks.of(q, i), k, bias, scale)
        largest = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - largest)
        total = weights.sum(axis=-1, keepdims=True)
        weighted = jnp.einsum("bgts,bgsk->bgtk", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        out, sums = done
        both = jnp.concatenate([largest, total], axis=-1)
        out = blocks.put(out, i, (weighted / total).reshape(group))
        return (out, blocks.put(sums, i, both.reshape(group))), None

    start = jnp.zeros_like(q), jnp.zeros_like(q, shape=(*q.shape[:3], 2), dtype=jnp.float32)
    return jax.lax.scan(step, start, blocks.numbers)[0]


def _forward_rule(*arguments: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    out, sums = checkpoint_name(_forward(*arguments), KEPT)
    return out, (*arguments[:5], out, sums)  # its arrays; the rest are plain numbers


def _backward_rule(
    scale: float, window: int | None, n: int, kept: tuple[jax.Array, ...], d_out: jax.Array
) -> tuple[jax.Array | None, ...]:
    q, k, v, queries, mask, out, sums = kept
    blocks, seen, shared = Blocks(q.shape[2], n, 2), Seen(queries, mask, window), (*k.shape[:2], -1)
    d_out_out = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True)

    def step(done: tuple[jax.Array, ...], i: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
        d_q, d_k, d_v = done
        of = lambda x: blocks.of(x, i).reshape(*shared, x.shape[-1])  # noqa: E731
        scores = _scores(blocks.of(q, i), k, seen.bias(blocks._replace(axis=1).of(queries, i), k.shape[2]), scale)
        largest, total = jnp.split(of(sums), 2, axis=-1)
        weights = jnp.exp(scores - largest) / total
        d_weights = jnp.einsum("bgtk,bgsk->bgts", of(d_out), v, preferred_element_type=jnp.float32)
        d_scores = (weights * (d_weights - of(d_out_out)) * scale).astype(q.dtype)
        # Queries of two blocks count once for the keys; each finds its own gradient again.
        new = blocks.new(i)
        new = None if new is None else jnp.tile(new, q.shape[1] // k.shape[1])[:, None]
        q_i, d_out_i = where_new(new, of(q)), where_new(new, of(d_out))
        d_v += jnp.einsum("bgts,bgtk->bgsk", weights.astype(v.dtype), d_out_i, preferred_element_type=jnp.float32)
        d_k += jnp.einsum("bgts,bgtk->bgsk", d_scores, q_i, preferred_element_type=jnp.float32)
        d_q_i = jnp.einsum("bgts,bgsk->bgtk", d_scores, k, preferred_element_type=jnp.float32)
        return (blocks.put(d_q, i, d_q_i.reshape(*q.shape[:2], n, -1)), d_k, d_v), None

    zeros = lambda x: jnp.zeros_like(x, dtype=jnp.float32)  # noqa: E731
    (d_q, d_k, d_v), _ = jax.lax.scan(step, (jnp.zeros_like(q), zeros(k), zeros(v)), blocks.numbers)
    return d_q, d_k.astype(k.dtype), d_v.astype(v.dtype), None, None


_in_blocks = jax.custom_vjp(_without_gradient, nondiff_argnums=(5, 6, 7))
_in_blocks.defvjp(_forward_rule, _backward_rule)
