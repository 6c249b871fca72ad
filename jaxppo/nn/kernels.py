"""Fused attention kernels that ship with JAX: Triton's on GPUs, splash attention on TPUs.

They are for bfloat16: in float32 a kernel may round the factors of its products, the other forms of `attention.py` do
as `matmul_precision` says.

Shape letters: B rows, T tokens, H heads, G heads of keys and values, K head size.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

TRITON_BLOCK = 64
"""Queries, and keys, of a tile. Its gradient takes half as many."""
SPLASH_LANES = 128
"""Tiles are a multiple of it."""
SPLASH_TILE = 8
"""Most lanes of a tile of splash attention."""


def attend(
    form: str,
    q_bhtk: jax.Array,
    k_bgtk: jax.Array,
    v_bgtk: jax.Array,
    mask: jax.Array | None,
    scale: float,
    window: int | None,
) -> jax.Array | None:
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
    if q_bhtk.dtype != jnp.bfloat16 or (form == "triton" and window is not None):
        return None
    program = _at_own_precision(lambda *arrays: KERNELS[form](*arrays, scale=scale, window=window))
    return program(q_bhtk, k_bgtk, v_bgtk, mask)


def triton(
    q_bhtk: jax.Array,
    k_bgtk: jax.Array,
    v_bgtk: jax.Array,
    mask: jax.Array | None,
    *,
    scale: float,
    window: None = None,
    interpret: bool = False,
) -> jax.Array:
    """`attend` by `jax.experimental.pallas.ops.gpu.attention`, which knows no window.

    Source: FlashAttention (arXiv:2205.14135).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since JAX 0.11, in favour of another package (tokamax)
        from jax.experimental.pallas.ops.gpu import attention

    assert window is None
    t, copies = q_bhtk.shape[2], q_bhtk.shape[1] // k_bgtk.shape[1]
    k_bgtk, v_bgtk = (jnp.repeat(x, copies, axis=1) for x in (k_bgtk, v_bgtk))
    arrays = (_filled(x.transpose(0, 2, 1, 3), TRITON_BLOCK, axis=1) for x in (q_bhtk, k_bgtk, v_bgtk))
    segments = None if mask is None else _filled(mask.astype(jnp.int32), TRITON_BLOCK, axis=1)
    half = TRITON_BLOCK // 2
    blocks = attention.BlockSizes(TRITON_BLOCK, TRITON_BLOCK, half, half, half, half)
    attended: Any = attention.mha(
        *arrays, segments, sm_scale=scale, causal=True, block_sizes=blocks, interpret=interpret
    )
    return attended[:, :t].transpose(0, 2, 1, 3)


def splash(
    q_bhtk: jax.Array,
    k_bgtk: jax.Array,
    v_bgtk: jax.Array,
    mask: jax.Array | None,
    *,
    scale: float,
    window: int | None = None,
    interpret: bool = False,
) -> jax.Array:
    """`attend` by `jax.experimental.pallas.ops.tpu.splash_attention`, which skips the tiles that no query sees."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    t = q_bhtk.shape[2]
    tiles = -(-t // SPLASH_LANES)
    tile = SPLASH_LANES * (tiles if tiles <= SPLASH_TILE else SPLASH_TILE // 2)
    q_bhtk, k_bgtk, v_bgtk = (_filled(x, tile, axis=2) for x in (q_bhtk * scale, k_bgtk, v_bgtk))
    shape = q_bhtk.shape[2], q_bhtk.shape[2]
    seen = splash_attention.CausalMask(shape)
    if window is not None:
        seen = splash_attention.LocalMask(shape, window_size=(window - 1, 0), offset=0)
    kernel: Any = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([seen] * q_bhtk.shape[1]),
        block_sizes=splash_attention.BlockSizes(tile, tile, tile, tile, tile, tile, tile, tile),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    if mask is None:
        return jax.vmap(kernel)(q_bhtk, k_bgtk, v_bgtk)[:, :, :t]
    segments = _filled(mask.astype(jnp.int32), tile, axis=1)
    return jax.vmap(kernel)(q_bhtk, k_bgtk, v_bgtk, splash_attention.SegmentIds(segments, segments))[:, :, :t]


def _at_own_precision(program: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Compute a function and its gradient at JAX's own matmul precision: products of bfloat16 are exact at any.

    At "highest", which the commands set, Mosaic refuses them.
    """
    own = jax.default_matmul_precision

    @jax.custom_vjp
    def computed(*arrays: jax.Array) -> jax.Array:
        with own("default"):
            return program(*arrays)

    def forward(*arrays: jax.Array) -> tuple[jax.Array, Any]:
        with own("default"):
            return jax.vjp(program, *arrays)

    def backward(pullback: Any, gradient: jax.Array) -> Any:
        with own("default"):
            return pullback(gradient)

    computed.defvjp(forward, backward)
    return computed


KERNELS: dict[str, Callable[..., jax.Array]] = {"triton": triton, "splash": splash}
"""Form of attention -> its kernel."""


def _filled(x: jax.Array, multiple: int, axis: int) -> jax.Array:
    """Fill an axis up with zeros; behind all tokens, causality hides them."""
    return jnp.pad(x, [(0, -size % multiple if i == axis else 0) for i, size in enumerate(x.shape)])
