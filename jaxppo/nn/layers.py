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

from jaxppo.nn.attention import KEPT
from jaxppo.nn.blocks import columns
from jaxppo.nn.config import ModelConfig
from jaxppo.parallel import partition
from jaxppo.parallel.partition import FSDP, NARROWS, TENSOR, WIDENS


class Keys(nnx.Rngs):
    """Random keys for the parameters of a model, the same as those of `nnx.Rngs`.

    That one counts in a traced variable, which takes time with the square of the layers.
    """

    def __init__(self, key: jax.Array | int):
        super().__init__()
        self._key = jax.random.key(key) if isinstance(key, int) else key
        self._count = itertools.count()

    def params(self) -> jax.Array:
        """Return the next key."""
        return jax.random.fold_in(self._key, next(self._count))


def _gelu(x: jax.Array) -> jax.Array:
    """Exact GELU, x / 2 (1 + erf(x / sqrt(2))). Source: torch.nn.functional.gelu."""
    # jax.nn.gelu(approximate=False) goes through erfc, which takes more than twice as long on the CPU.
    return 0.5 * x * (1.0 + jax.lax.erf(x * 0.5**0.5))


def _clipped_gelu(x: jax.Array) -> jax.Array:
    """Exact GELU, cut to [-10, 10]. Source: transformers activations.py, ClippedGELUActivation."""
    return jnp.clip(_gelu(x), -10.0, 10.0)


def _quick_gelu(x: jax.Array) -> jax.Array:
    """Sigmoid GELU, x sigmoid(1.702 x). Source: transformers activations.py, QuickGELUActivation."""
    return x * jax.nn.sigmoid(1.702 * x)


def _laplace(x: jax.Array) -> jax.Array:
    """Half of 1 + erf((x - mu) / (sigma sqrt(2))). Source: transformers activations.py, LaplaceActivation."""
    return 0.5 * (1.0 + jax.lax.erf((x - 0.707107) / (0.282095 * 2.0**0.5)))


# The names are transformers' (activations.py, ACT2CLS); several of them are spellings of one function.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_10": _clipped_gelu,
    "gelu_new": jax.nn.gelu,
    "gelu_fast": jax.nn.gelu,
    "gelu_accurate": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "gelu_python_tanh": jax.nn.gelu,
    "quick_gelu": _quick_gelu,
    "laplace": _laplace,
    "hardswish": jax.nn.hard_swish,
    "leaky_relu": jax.nn.leaky_relu,
    "linear": lambda x: x,
    "mish": jax.nn.mish,
    "relu": jax.nn.relu,
    "relu2": lambda x: jax.nn.relu(x) ** 2,
    "relu6": jax.nn.relu6,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "sqrtsoftplus": lambda x: jnp.sqrt(jax.nn.softplus(x)),
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}


class Linear(nnx.Module):
    """x W + b, and (x A) B on top where an adapter is attached (see `with_adapters`).

    Source of the latter: LoRA, arXiv:2106.09685; its factor alpha / r is in B already. W is drawn from
    normal(0, initializer_range * init_scale). `axes` are those that devices split it over: one that widens has all of
    its inputs on every device along `TENSOR`, and some of its outputs, one that narrows the other way round.
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
        axes: tuple[str, str] = WIDENS,
        rngs: nnx.Rngs,
    ):
        self.axes, self.shape = axes, (inputs, outputs)
        draw = nnx.initializers.normal(config.initializer_range * init_scale)
        self.kernel = nnx.Param(draw(rngs.params(), (inputs, outputs)))
        # A bias takes its turn in the stream of keys, though it starts at 0: models of old seeds stay as they were.
        self.bias = nnx.Param(nnx.initializers.zeros(rngs.params(), (outputs,))) if use_bias else None

    def __call__(
        self, inputs: jax.Array, pick: Callable[[jax.Array], jax.Array] = lambda outputs: outputs
    ) -> jax.Array:
        """Map the last axis: [..., inputs] -> [..., outputs], or those outputs that `pick` takes of [..., outputs]."""
        # As one matrix: the gradient of the kernel then contracts one axis, not two, for which XLA would transpose.
        rows, kernel = inputs.reshape(-1, inputs.shape[-1]), self.kernel[...]
        has_part = kernel.shape[self.axes.index(TENSOR)] < self.shape[self.axes.index(TENSOR)]
        some_outputs, some_inputs = has_part and self.axes == WIDENS, has_part and self.axes == NARROWS
        size = self.shape[self.axes.index(FSDP)]
        result = partition.product(partition.enter(rows) if some_outputs else rows, pick(kernel), self.axes, size)
        result = partition.leave(result) if some_inputs else result
        if self.bias is not None:
            result += pick(self.bias[...])
        if hasattr(self, "lora_a"):
            lora_a, lora_b = self.lora_a[...], self.lora_b[...]
            if some_inputs:
                lora_a = partition.own_part(partition.enter(lora_a), 0, kernel.shape[0])
            low = rows @ lora_a
            low = partition.leave(low) if some_inputs else low
            if some_outputs:
                low = partition.enter(low)
                lora_b = partition.own_part(partition.enter(lora_b), 1, kernel.shape[1])
            result += (low @ pick(lora_b)).astype(result.dtype)
        return result.reshape(*inputs.shape[:-1], result.shape[-1])


def kept(x: jax.Array) -> jax.Array:
    """Mark what the gradient of a layer keeps where it does not keep everything, see `depth.py`."""
    return checkpoint_name(x, KEPT)


def with_adapters(trunk: nnx.Module, paths: Iterable[str]) -> nnx.Module:
    """Give the linear layers at these paths ("layers/0/attention/dense") the places for an adapter."""
    for path in paths:
        module: Any = trunk
        for part in path.split("/"):
            module = module[part] if isinstance(module, nnx.Dict) else getattr(module, part)
        module.lora_a, module.lora_b = (nnx.LoRAParam(jnp.zeros((1, 1))) for _ in range(2))
    return trunk


def layer_norm(config: ModelConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer norm over the hidden size."""
    # The fast variance, E[x^2] - E[x]^2, loses digits that torch keeps.
    return nnx.LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps, use_fast_variance=False, rngs=rngs)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) over the last axis, in float32, cast back, times the weights. Source: arXiv:1910.07467.

    The product comes after the cast, as in transformers' LlamaRMSNorm.
    """

    def __init__(self, size: int, eps: float):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((size,)))

    def __call__(self, x: jax.Array, of_part: bool = False) -> jax.Array:
        """Normalise the last axis: [..., size] -> [..., size]; `of_part`: devices along `TENSOR` have different x."""
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        scale = partition.enter(self.scale[...]) if of_part else self.scale[...]
        return scale * normed.astype(x.dtype)


def embedding(config: ModelConfig, num_embeddings: int, rngs: nnx.Rngs) -> nnx.Embed:
    """Table of `num_embeddings` vectors of the hidden size; read it with `look_up`."""
    init = nnx.initializers.normal(config.initializer_range)
    return nnx.Embed(num_embeddings, config.hidden_size, embedding_init=init, rngs=rngs)


def look_up(table: nnx.Embed, ids: jax.Array, mode: str = "fill") -> jax.Array:
    """Look up rows of a table: [B, T] -> [B, T, D]. Ids outside of it give NaN ("fill") or its last row ("clip").

    Of a table over devices each looks up what it has of it, for everyone's ids.
    """
    # nnx.Embed would cast to the dtype of its construction, and take another row for ids outside.
    rows = table.embedding[...]
    in_shards, in_parts = rows.shape[1] < table.features, rows.shape[0] < table.num_embeddings
    shape = ids.shape
    ids = partition.of_everyone(ids) if in_shards else ids
    if in_parts:
        known = (ids >= 0) & (ids < table.num_embeddings)
        ids -= jax.lax.axis_index(TENSOR) * rows.shape[0]
        own = (ids >= 0) & (ids < rows.shape[0])
        found = jnp.where(own[..., None], jnp.take(rows, jnp.where(own, ids, 0), axis=0), 0)
        result = jnp.where(known[..., None], partition.leave(found), jnp.nan)
    else:
        result = jnp.take(rows, ids, axis=0, mode=mode)
    if not in_shards:
        return result
    # Each device's tokens side by side: a row of them travels as one.
    whole = partition.to_rows(result.reshape(-1, result.shape[-1]))
    return whole.reshape(*shape, table.features)


def project(
    linear: Linear, x_btd: jax.Array, read: jax.Array | None, shape: tuple[int, int, int], axis: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute queries of the tokens that are read, and keys and values of all, by one layer for the three.

    Args:
        linear: maps D to 3 H K.
        x_btd: [B, T, D].
        read: see `columns`.
        shape: how the outputs lie: (3, H, K), or (H, 3, K); H is -1, as a device may have some of the heads.
        axis: that of the 3.

    Returns:
        [B, H, T or R, K], and twice [B, H, T, K].
    """

    def parts(x_btd: jax.Array, start: int, stop: int) -> list[jax.Array]:
        def pick(outputs: jax.Array) -> jax.Array:
            apart = outputs.reshape(*outputs.shape[:-1], *shape)
            of_these = jax.lax.slice_in_dim(apart, start, stop, axis=axis - 3 + apart.ndim)
            return of_these.reshape(*outputs.shape[:-1], -1)

        sizes = list(shape)
        sizes[axis] = stop - start
        together = kept(linear(x_btd, pick)).reshape(*x_btd.shape[:2], *sizes)
        # Split before they are transposed: the gradient joins three parts once, instead of padding each to all three.
        each = jax.lax.split(together, [1] * (stop - start), axis + 2)
        return [part.squeeze(axis + 2).transpose(0, 2, 1, 3) for part in each]

    if read is None:
        query, key, value = parts(x_btd, 0, 3)
    else:
        (query,), (key, value) = parts(columns(x_btd, read, 1), 0, 1), parts(x_btd, 1, 3)
    return query, key, value


def split_heads(x_bte: jax.Array, head_dim: int) -> jax.Array:
    """Part the heads that lie side by side in the last axis: [B, T, H K] -> [B, H, T, K]."""
    return x_bte.reshape(*x_bte.shape[:2], -1, head_dim).transpose(0, 2, 1, 3)
