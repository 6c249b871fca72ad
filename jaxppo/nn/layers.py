"""Building blocks of the families, in Flax NNX.

Shape letters: B rows, T new tokens, R of the T tokens that are read, D hidden size, H heads, K head size.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxppo.nn.attention import PROJECTED, SAVED, AttentionContext, LayerCache
from jaxppo.nn.blocks import select_tokens
from jaxppo.nn.config import ModelConfig
from jaxppo.parallel import partition
from jaxppo.parallel.partition import COLUMN_PARALLEL, FSDP, ROW_PARALLEL, TENSOR
from jaxppo.types import Array


class Keys(nnx.Rngs):
    """Random keys for the parameters of a model, the same as those of `nnx.Rngs`.

    That one counts in a traced variable, which takes time with the square of the layers.
    """

    def __init__(self, key: Array | int):
        super().__init__()
        self._key = jax.random.key(key) if isinstance(key, int) else key
        self._count = itertools.count()

    def params(self) -> Array:
        """Return the next key."""
        return jax.random.fold_in(self._key, next(self._count))


def _gelu(x: Array) -> Array:
    """Exact GELU, x / 2 (1 + erf(x / sqrt(2))). Source: torch.nn.functional.gelu."""
    # jax.nn.gelu(approximate=False) goes through erfc,
    # which takes more than twice as long on the CPU.
    return 0.5 * x * (1.0 + jax.lax.erf(x * 0.5**0.5))


# The names are transformers' (activations.py, ACT2CLS), of what
# published models have; several are spellings of one function.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _gelu,
    "gelu_new": jax.nn.gelu,
    "gelu_fast": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
}


class Linear(nnx.Module):
    """x W + b, and (x A) B on top where an adapter is attached (see `with_adapters`).

    Source of the latter: LoRA, arXiv:2106.09685; its factor alpha / r is in B already. W is drawn from
    normal(0, initializer_range * init_scale). `axes` are the device axes that W is split over. Along `TENSOR`, a
    layer that is `COLUMN_PARALLEL` has some of the outputs on each device, one that is `ROW_PARALLEL` some of the
    inputs.
    """

    lora_a: nnx.LoRAParam
    lora_b: nnx.LoRAParam

    def __init__(
        self,
        config: ModelConfig,
        inputs: int,
        outputs: int,
        *,
        use_bias: bool = True,
        init_scale: float = 1.0,
        axes: tuple[str, str] = COLUMN_PARALLEL,
        rngs: nnx.Rngs,
    ):
        self.axes = axes
        self.shape = (inputs, outputs)
        draw = nnx.initializers.normal(config.initializer_range * init_scale)
        self.kernel = nnx.Param(draw(rngs.params(), (inputs, outputs)))
        # A bias takes its turn in the stream of keys, though it
        # starts at 0: models of old seeds stay as they were.
        self.bias = (
            nnx.Param(nnx.initializers.zeros(rngs.params(), (outputs,))) if use_bias else None
        )

    def __call__(
        self, inputs: Array, pick: Callable[[Array], Array] = lambda outputs: outputs
    ) -> Array:
        """Map the last axis: [..., inputs] -> [..., outputs], or those outputs that `pick` takes of [..., outputs].

        A device along `TENSOR` tells by the shape of its kernel whether it has a part of it. Where it has some of the
        outputs, the input is the same on all of them, and its gradient is summed (`partition.copy_to_devices`);
        where it has some of the inputs, its product is a share of the result, which is summed
        (`partition.sum_over_devices`).
        """
        kernel = self.kernel[...]
        tensor_axis = self.axes.index(TENSOR)
        has_part = kernel.shape[tensor_axis] < self.shape[tensor_axis]
        has_some_outputs = has_part and self.axes == COLUMN_PARALLEL
        has_some_inputs = has_part and self.axes == ROW_PARALLEL
        hidden_size = self.shape[self.axes.index(FSDP)]

        # As one matrix: the gradient of the kernel then contracts
        # one axis, not two, for which XLA would transpose.
        rows = inputs.reshape(-1, inputs.shape[-1])
        kernel_rows = partition.copy_to_devices(rows) if has_some_outputs else rows
        result = partition.product(kernel_rows, pick(kernel), self.axes, hidden_size)
        if has_some_inputs:
            result = partition.sum_over_devices(result)
        if self.bias is not None:
            result += pick(self.bias[...])

        # Adapters are whole on every device, which takes the
        # part of A or B that fits its part of the kernel.
        if hasattr(self, "lora_a"):
            lora_a = self.lora_a[...]
            lora_b = self.lora_b[...]
            if has_some_inputs:
                lora_a = partition.local_part(partition.copy_to_devices(lora_a), 0, kernel.shape[0])
            low_rank = rows @ lora_a
            if has_some_inputs:
                low_rank = partition.sum_over_devices(low_rank)
            if has_some_outputs:
                low_rank = partition.copy_to_devices(low_rank)
                lora_b = partition.local_part(partition.copy_to_devices(lora_b), 1, kernel.shape[1])
            result += (low_rank @ pick(lora_b)).astype(result.dtype)
        return result.reshape(*inputs.shape[:-1], result.shape[-1])


def saved_residual(x: Array) -> Array:
    """Mark what the gradient of a layer saves where it does not save everything, see `depth.py`."""
    return checkpoint_name(x, SAVED)


def with_adapters(trunk: nnx.Module, paths: Iterable[str]) -> nnx.Module:
    """Give the linear layers at these paths ("layers/0/attention/dense") the places for an adapter."""
    for path in paths:
        module: Any = trunk
        for part in path.split("/"):
            module = module[part] if isinstance(module, nnx.Dict) else getattr(module, part)
        # Only their being there counts: the graph is merged with arrays of other shapes.
        module.lora_a = nnx.LoRAParam(jnp.zeros((1, 1)))
        module.lora_b = nnx.LoRAParam(jnp.zeros((1, 1)))
    return trunk


def layer_norm(config: ModelConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer norm over the hidden size."""
    # The fast variance, E[x^2] - E[x]^2, loses digits that torch has.
    return nnx.LayerNorm(
        config.hidden_size, epsilon=config.layer_norm_eps, use_fast_variance=False, rngs=rngs
    )


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) over the last axis, in float32, cast back, times the weights. Source: arXiv:1910.07467.

    The product comes after the cast, as in transformers' LlamaRMSNorm. With `adds_one` it is one with 1 + weights, and
    comes before the cast, as in its Gemma3RMSNorm.
    """

    def __init__(self, size: int, eps: float, adds_one: bool = False):
        self.eps = eps
        self.adds_one = adds_one
        self.scale = nnx.Param(jnp.zeros((size,)) if adds_one else jnp.ones((size,)))

    def __call__(self, x: Array, is_part: bool = False) -> Array:
        """Normalise the last axis: [..., size] -> [..., size]; `is_part`: devices along `TENSOR` have different x."""
        x_fp32 = x.astype(jnp.float32)
        normed = x_fp32 * jax.lax.rsqrt(
            jnp.mean(x_fp32 * x_fp32, axis=-1, keepdims=True) + self.eps
        )
        scale = partition.copy_to_devices(self.scale[...]) if is_part else self.scale[...]
        if self.adds_one:
            return ((1.0 + scale.astype(jnp.float32)) * normed).astype(x.dtype)
        return scale * normed.astype(x.dtype)


def embedding(config: ModelConfig, num_embeddings: int, rngs: nnx.Rngs) -> nnx.Embed:
    """Table of `num_embeddings` vectors of the hidden size; read it with `embed`."""
    init = nnx.initializers.normal(config.initializer_range)
    return nnx.Embed(num_embeddings, config.hidden_size, embedding_init=init, rngs=rngs)


def embed(table: nnx.Embed, ids: Array, mode: str = "fill") -> Array:
    """Look up rows of a table: [B, T] -> [B, T, D]. Ids outside of it give NaN ("fill") or its last row ("clip").

    A device may have a shard of the hidden size (`FSDP`) and a part of the rows (`TENSOR`). Along `FSDP` devices have
    different tokens, so each looks up the ids of all of them in its shard, and the results are exchanged. Along
    `TENSOR` they have the same tokens, so each looks up the ids that are in its rows, and the results are summed.
    """
    # nnx.Embed would cast to the dtype of its construction, and take another row for ids outside.
    rows = table.embedding[...]
    # By the shapes of its arrays a device tells what it
    # has, so that programs are the same on one device.
    in_shards = rows.shape[1] < table.features
    in_parts = rows.shape[0] < table.num_embeddings
    shape = ids.shape
    ids = partition.gather_rows(ids) if in_shards else ids
    if in_parts:
        in_table = (ids >= 0) & (ids < table.num_embeddings)
        ids -= jax.lax.axis_index(TENSOR) * rows.shape[0]
        in_part = (ids >= 0) & (ids < rows.shape[0])
        # Ids of other devices' rows add 0 to the sum; ids
        # that no device has are NaN, as on one device.
        vectors = jnp.where(
            in_part[..., None], jnp.take(rows, jnp.where(in_part, ids, 0), axis=0), 0
        )
        result = jnp.where(in_table[..., None], partition.sum_over_devices(vectors), jnp.nan)
    else:
        result = jnp.take(rows, ids, axis=0, mode=mode)
    if not in_shards:
        return result
    # Each device's tokens side by side: a row of them travels as one.
    vectors = partition.to_rows(result.reshape(-1, result.shape[-1]))
    return vectors.reshape(*shape, table.features)


def project_qkv(
    linear: Linear, x_btd: Array, read: Array | None, shape: tuple[int, int, int], axis: int
) -> tuple[Array, Array, Array]:
    """Compute queries of the tokens that are read, and keys and values of all, by one layer for the three.

    Args:
        linear: maps D to 3 H K.
        x_btd: [B, T, D].
        read: see `select_tokens`.
        shape: how the outputs lie: (3, H, K), or (H, 3, K); H is -1, as a device may have some of the heads.
        axis: that of the 3.

    Returns:
        [B, H, T or R, K], and twice [B, H, T, K].
    """

    def project(x_btd: Array, start: int, stop: int) -> list[Array]:
        """Compute those of the three from `start` to before `stop`."""

        # Columns are picked from the kernel, not from the
        # product: what is not wanted is not computed.
        def pick(outputs: Array) -> Array:
            unpacked = outputs.reshape(*outputs.shape[:-1], *shape)
            chosen = jax.lax.slice_in_dim(unpacked, start, stop, axis=axis - 3 + unpacked.ndim)
            return chosen.reshape(*outputs.shape[:-1], -1)

        sizes = list(shape)
        sizes[axis] = stop - start
        fused = checkpoint_name(linear(x_btd, pick), PROJECTED).reshape(*x_btd.shape[:2], *sizes)
        # Split before they are transposed: the gradient joins
        # three parts once, instead of padding each to all three.
        parts = jax.lax.split(fused, [1] * (stop - start), axis + 2)
        return [part.squeeze(axis + 2).transpose(0, 2, 1, 3) for part in parts]

    # One product for all three, unless queries are of fewer tokens.
    if read is None:
        query, key, value = project(x_btd, 0, 3)
    else:
        (query,) = project(select_tokens(x_btd, read, 1), 0, 1)
        key, value = project(x_btd, 1, 3)
    return query, key, value


def split_heads(x_bte: Array, head_dim: int) -> Array:
    """Part the heads that lie side by side in the last axis: [B, T, H K] -> [B, H, T, K]."""
    return x_bte.reshape(*x_bte.shape[:2], -1, head_dim).transpose(0, 2, 1, 3)


def pre_norm_layer(
    x_btd: Array,
    context: AttentionContext,
    *,
    attention_norm: Callable[[Array], Array],
    attention: Callable[[Array, AttentionContext], tuple[Array, LayerCache | None]],
    mlp_norm: Callable[[Array], Array],
    mlp: Callable[[Array], Array],
    parallel: bool = False,
) -> tuple[Array, LayerCache | None]:
    """Add attention and MLP, each of the normalised input, to one residual stream.

    One after the other: y = x + attention(norm(x)), then y + mlp(norm'(y)). Side by side (`parallel`), both of the same
    x: x + attention(norm(x)) + mlp(norm'(x)).

    Args:
        x_btd: [B, T, D], the residual stream.
        context: see `AttentionContext`; of the tokens that are not read only keys and values are computed.
        attention_norm: before attention.
        attention: mixes the tokens, [B, T, D] -> [B, T or R, D] and the cache with their keys and values.
        mlp_norm: before the MLP.
        mlp: transforms each token alone.
        parallel: whether the MLP reads what attention reads.

    Returns:
        [B, T or R, D], and the cache of this layer.
    """
    # Attention needs every token, for its keys and
    # values; from here on only those that are read go on.
    attended, cache = attention(attention_norm(x_btd), context)
    x_btd = select_tokens(x_btd, context.read, axis=1)
    if parallel:
        return mlp(mlp_norm(x_btd)) + attended + x_btd, cache
    x_btd = attended + x_btd
    return mlp(mlp_norm(x_btd)) + x_btd, cache
