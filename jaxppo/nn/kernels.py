"""Fused attention kernels that ship with JAX: Triton's on GPUs, splash attention on TPUs.

They are for bfloat16. In float32 a kernel may round the factors of its products, while the other forms of
`attention.py` follow `matmul_precision`.

Shape letters: B rows, T tokens, H heads, G heads of keys and values, K head size.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxppo.types import Array

ATTENDED = "attended"
"""Name of what attention takes and what a kernel gives, which layers that are no loop save, see `depth.run_layers`."""
TRITON_BLOCK = 64
"""Queries, and keys, of a tile. Its gradient takes half as many."""
SPLASH_LANES = 128
"""Tiles are a multiple of it."""
SPLASH_TILE = 8
"""Largest tile of splash attention, in lanes."""


def attend(
    form: str,
    q_bhtk: Array,
    k_bgtk: Array,
    v_bgtk: Array,
    mask: Array | None,
    scale: float,
    window: int | None,
) -> Array | None:
    """Causal attention of T tokens to each other by a kernel; None where it does not cover the call.

    Args:
        form: "triton" or "splash".
        q_bhtk: [B, H, T, K] queries; head h reads the keys of head h G // H.
        k_bgtk: [B, G, T, K] keys.
        v_bgtk: [B, G, T, K] values.
        mask: [B, T] bool, real tokens; None: all. What is computed at others is finite and means nothing.
        scale: of the scores.
        window: tokens this many or more before a query are hidden from it; None: none is.

    Returns:
        [B, H, T, K], in the dtype of the values.
    """
    if q_bhtk.dtype != jnp.bfloat16:
        return None
    program = partial(splash, scale=scale, window=window)
    if form == "triton":
        if window is not None:
            return None
        program = partial(triton, scale=scale)
    return _at_default_precision(program)(q_bhtk, k_bgtk, v_bgtk, mask)


def triton(
    q_bhtk: Array,
    k_bgtk: Array,
    v_bgtk: Array,
    mask: Array | None,
    *,
    scale: float,
    interpret: bool = False,
) -> Array:
    """`attend` by `jax.experimental.pallas.ops.gpu.attention`, which has no windows.

    Source: FlashAttention (arXiv:2205.14135).
    """
    num_tokens = q_bhtk.shape[2]
    # The kernel has no shared heads: keys and values are repeated for each head of queries.
    queries_per_key = q_bhtk.shape[1] // k_bgtk.shape[1]
    k_bhtk = jnp.repeat(k_bgtk, queries_per_key, axis=1)
    v_bhtk = jnp.repeat(v_bgtk, queries_per_key, axis=1)
    # Tokens see those of their own segment: 1 for real ones, 0 for padding.
    segments = (
        None if mask is None else _pad_to_multiple(mask.astype(jnp.int32), TRITON_BLOCK, axis=1)
    )
    arrays = [
        _pad_to_multiple(x.transpose(0, 2, 1, 3), TRITON_BLOCK, axis=1)
        for x in (q_bhtk, k_bhtk, v_bhtk)
    ]
    attended: Any = _flash_attention(*arrays, segments, scale, interpret)
    return attended[:, :num_tokens].transpose(0, 2, 1, 3)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _flash_attention(
    q_bthk: Array,
    k_bthk: Array,
    v_bthk: Array,
    segments_bt: Array | None,
    scale: float,
    interpret: bool,
) -> Array:
    """JAX's kernel with a gradient that can save what the kernel gives, as `ATTENDED`: its own rule names nothing."""
    mha, settings = _mha(scale, interpret)
    return mha(q_bthk, k_bthk, v_bthk, segments_bt, *settings, False)


def _flash_forward(*arguments: Any) -> tuple[Array, tuple[Array | None, ...]]:
    *arrays, scale, interpret = arguments
    mha, settings = _mha(scale, interpret)
    # The second result is of each query the logarithm of its softmax sum, [B, H, T].
    out, log_sums = checkpoint_name(mha(*arrays, *settings, True), ATTENDED)
    return out, (*arrays, out, log_sums)


def _flash_backward(
    scale: float, interpret: bool, residuals: tuple[Array | None, ...], d_out: Array
) -> tuple[Array | None, ...]:
    mha, settings = _mha(scale, interpret)
    return mha.bwd(*settings, False, residuals, d_out)


_flash_attention.defvjp(_flash_forward, _flash_backward)


def _mha(scale: float, interpret: bool) -> tuple[Any, tuple[Any, ...]]:
    """Return JAX's kernel, and its settings in their order, up to `return_residuals`."""
    with warnings.catch_warnings():
        # JAX 0.11 deprecates it in favour of another package, tokamax.
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.experimental.pallas.ops.gpu import attention

    half = TRITON_BLOCK // 2
    blocks = attention.BlockSizes(TRITON_BLOCK, TRITON_BLOCK, half, half, half, half)
    # Scale, causal, tiles, form of the gradient, warps, stages, grid, interpret, debug.
    return attention.mha, (scale, True, blocks, "triton", None, 2, None, interpret, False)


def splash(
    q_bhtk: Array,
    k_bgtk: Array,
    v_bgtk: Array,
    mask: Array | None,
    *,
    scale: float,
    window: int | None = None,
    interpret: bool = False,
) -> Array:
    """`attend` by `jax.experimental.pallas.ops.tpu.splash_attention`, which skips the tiles that no query sees."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    num_tokens = q_bhtk.shape[2]
    # Short rows are one tile; longer ones are tiles of half the largest size.
    num_lanes = -(-num_tokens // SPLASH_LANES)
    tile = SPLASH_LANES * (num_lanes if num_lanes <= SPLASH_TILE else SPLASH_TILE // 2)
    q_bhtk, k_bgtk, v_bgtk = (
        _pad_to_multiple(x, tile, axis=2) for x in (q_bhtk * scale, k_bgtk, v_bgtk)
    )
    shape = (q_bhtk.shape[2], q_bhtk.shape[2])
    causal_mask = splash_attention.CausalMask(shape)
    if window is not None:
        causal_mask = splash_attention.LocalMask(shape, window_size=(window - 1, 0), offset=0)
    kernel: Any = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([causal_mask] * q_bhtk.shape[1]),
        block_sizes=splash_attention.BlockSizes(tile, tile, tile, tile, tile, tile, tile, tile),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    arrays: list[Any] = [q_bhtk, k_bgtk, v_bgtk]
    if mask is not None:
        segments = _pad_to_multiple(mask.astype(jnp.int32), tile, axis=1)
        arrays.append(splash_attention.SegmentIds(segments, segments))
    return jax.vmap(kernel)(*arrays)[:, :, :num_tokens]


def _at_default_precision(program: Callable[..., Array]) -> Callable[..., Array]:
    """Compute a function and its gradient at JAX's own matmul precision: products of bfloat16 are exact at any.

    At "highest", which the commands set, Mosaic refuses them.
    """
    # The backward pass is traced after the forward pass has returned, outside of a `with` around
    # the call: with a rule of its own, both are traced inside of one.
    at_precision = jax.default_matmul_precision

    @jax.custom_vjp
    def compute(*arrays: Array) -> Array:
        with at_precision("default"):
            return program(*arrays)

    def forward(*arrays: Array) -> tuple[Array, Any]:
        with at_precision("default"):
            return jax.vjp(program, *arrays)

    def backward(pullback: Any, gradient: Array) -> Any:
        with at_precision("default"):
            return pullback(gradient)

    compute.defvjp(forward, backward)
    return compute


def _pad_to_multiple(x: Array, multiple: int, axis: int) -> Array:
    """Fill an axis up with zeros; after all tokens, causality hides them."""
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, -x.shape[axis] % multiple)
    return jnp.pad(x, padding)
