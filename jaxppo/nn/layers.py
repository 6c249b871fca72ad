"""Building blocks of the families, in Flax NNX.

Shape letters: B rows, T new tokens, S tokens attended to (T, or the slots of the cache), R of the T tokens that are
read, D hidden size, H heads, G heads of keys and values, K head size.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxppo.nn.config import ModelConfig
from jaxppo.parallel import partition

LayerCache: TypeAlias = tuple[jax.Array, jax.Array]
"""Keys and values of one layer, each [B, G, S, K]."""
Cache: TypeAlias = tuple[LayerCache, ...]
"""One `LayerCache` per layer: separate arrays, so that a loop updates each of them in place."""

MASKED = -1e30
"""Added to the attention scores of hidden slots; finite, so that a row with nothing to attend to gives no NaN."""


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
    normal(0, initializer_range * init_scale).
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
        rngs: nnx.Rngs,
    ):
        draw = nnx.initializers.normal(config.initializer_range * init_scale)
        self.kernel = nnx.Param(draw(rngs.params(), (inputs, outputs)))
        # A bias takes its turn in the stream of keys, though it starts at 0: models of old seeds stay as they were.
        self.bias = nnx.Param(nnx.initializers.zeros(rngs.params(), (outputs,))) if use_bias else None

    def __call__(
        self, inputs: jax.Array, pick: Callable[[jax.Array], jax.Array] = lambda outputs: outputs
    ) -> jax.Array:
        """Map the last axis: [..., inputs] -> [..., outputs], or those outputs that `pick` takes of [..., outputs]."""
        # As one matrix: the gradient of the kernel then contracts one axis, not two, for which XLA would transpose.
        rows = inputs.reshape(-1, inputs.shape[-1])
        result = rows @ pick(self.kernel[...])
        if self.bias is not None:
            result += pick(self.bias[...])
        if hasattr(self, "lora_a"):
            result += ((rows @ self.lora_a[...]) @ pick(self.lora_b[...])).astype(result.dtype)
        return result.reshape(*inputs.shape[:-1], result.shape[-1])


def with_adapters(trunk: nnx.Module, paths: tuple[str, ...]) -> nnx.Module:
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

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise the last axis: [..., size] -> [..., size]."""
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return self.scale[...] * normed.astype(x.dtype)


def embedding(config: ModelConfig, num_embeddings: int, rngs: nnx.Rngs) -> nnx.Embed:
    """Table of `num_embeddings` vectors of the hidden size; read it with `look_up`."""
    init = nnx.initializers.normal(config.initializer_range)
    return nnx.Embed(num_embeddings, config.hidden_size, embedding_init=init, rngs=rngs)


def look_up(table: nnx.Embed, ids: jax.Array, mode: str = "fill") -> jax.Array:
    """Look up rows of a table: [B, T] -> [B, T, D]. Ids outside of it give NaN ("fill") or its last row ("clip")."""
    # nnx.Embed would cast to the dtype of its construction, and take another row for ids outside.
    return jnp.take(table.embedding[...], ids, axis=0, mode=mode)


def columns(tree: Any, read: jax.Array | None, axis: int) -> Any:
    """Of the tokens along an axis of every array only those that are read: [B or 1, ..., T, ...] -> [B, ..., R, ...].

    Args:
        tree: arrays.
        read: [B, R] int, numbers of tokens; None: all, in their order.
        axis: that of the tokens, at least 1.
    """
    if read is None:
        return tree

    def take(x: jax.Array) -> jax.Array:
        shape = (read.shape[0], *[1] * (axis - 1), read.shape[1], *[1] * (x.ndim - axis - 1))
        return jnp.take_along_axis(x, read.reshape(shape), axis=axis)

    return jax.tree.map(take, tree)


def project(
    linear: Linear, x_btd: jax.Array, read: jax.Array | None, shape: tuple[int, int, int], axis: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute queries of the tokens that are read, and keys and values of all, by one layer for the three.

    Args:
        linear: maps D to 3 H K.
        x_btd: [B, T, D].
        read: see `columns`.
        shape: how the outputs lie: (3, H, K), or (H, 3, K).
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
        together = linear(x_btd, pick).reshape(*x_btd.shape[:2], *sizes)
        # Split before they are transposed: the gradient joins three parts once, instead of padding each to all three.
        each = jax.lax.split(together, [1] * (stop - start), axis + 2)
        return [part.squeeze(axis + 2).transpose(0, 2, 1, 3) for part in each]

    if read is None:
        query, key, value = parts(x_btd, 0, 3)
    else:
        (query,), (key, value) = parts(columns(x_btd, read, 1), 0, 1), parts(x_btd, 1, 3)
    return query, key, value


def split_heads(x_bte: jax.Array, heads: int) -> jax.Array:
    """Part the heads that lie side by side in the last axis: [B, T, H K] -> [B, H, T, K]."""
    return x_bte.reshape(*x_bte.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def attend(
    q_bhtk: jax.Array, k_bgsk: jax.Array, v_bgsk: jax.Array, bias: jax.Array, scale: float | None = None
) -> jax.Array:
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
        scale: default 1 / sqrt(K).

    Returns:
        [B, H, T, K], in the dtype of the values.
    """
    b, h, t, k = q_bhtk.shape
    g, s = k_bgsk.shape[1:3]
    queries = (q_bhtk * (k**-0.5 if scale is None else scale)).reshape(b, g, -1, k)
    scores = jnp.einsum("bgtk,bgsk->bgts", queries, k_bgsk, preferred_element_type=jnp.float32)
    scores = (scores.reshape(b, h, t, s) + bias).reshape(b, g, -1, s)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    weighted = jnp.einsum("bgts,bgsk->bgtk", weights.astype(v_bgsk.dtype), v_bgsk, preferred_element_type=jnp.float32)
    attended = (weighted / weights.sum(axis=-1)[..., None]).astype(v_bgsk.dtype)
    return attended.reshape(b, h, t, k)


def attend_cached(
    q_bhtk: jax.Array,
    k_bgtk: jax.Array,
    v_bgtk: jax.Array,
    bias: jax.Array,
    cache: LayerCache | None,
    cache_index: int | jax.Array,
    scale: float | None = None,
) -> tuple[jax.Array, LayerCache | None]:
    """Attention of new tokens to the cache they are written to, or to each other where there is none.

    Returns:
        [B, T, H K], and the cache with these keys and values.
    """
    if cache is not None:
        k_bgtk, v_bgtk = cache = _write_cache(cache, k_bgtk, v_bgtk, cache_index)
    attended = attend(q_bhtk, k_bgtk.astype(q_bhtk.dtype), v_bgtk.astype(q_bhtk.dtype), bias, scale)
    b, _, t, _ = q_bhtk.shape
    return attended.transpose(0, 2, 1, 3).reshape(b, t, -1), cache


def _write_cache(cache: LayerCache, key: jax.Array, value: jax.Array, cache_index: int | jax.Array) -> LayerCache:
    start = (0, 0, cache_index, 0)
    keys, values = cache
    return (
        jax.lax.dynamic_update_slice(keys, key.astype(keys.dtype), start),
        jax.lax.dynamic_update_slice(values, value.astype(values.dtype), start),
    )


def run_layers(
    layers: nnx.Dict,
    hidden: jax.Array,
    shared: tuple[Any, ...],
    cache: Cache | None,
    cache_index: int | jax.Array,
    read: jax.Array | None,
    recompute: bool,
) -> tuple[jax.Array, Cache | None]:
    """Pass the residual stream through `layer(hidden, *shared, layer cache, cache_index, read)` for each in order.

    Layers of one shape are traced and lowered once, whatever their number. All but the last get `read` None: they read
    every token. The last one computes only keys and values of the tokens that are not read.

    Args:
        layers: modules by their numbers "0", "1", ...
        hidden: [B, T, D], the input of the first one.
        shared: what every layer gets.
        cache: of all layers, or None.
        cache_index: slot of the first token.
        read: [B, R] int, tokens whose result is wanted; None: all.
        recompute: as `ModelConfig.gradient_checkpointing`; not with a cache, whose programs have no gradient.

    Returns:
        [B, R or T, D] and the new cache.
    """
    new_cache = []
    split = [nnx.split(layers[str(i)]) for i in range(len(layers))]
    first, last = 0, len(layers) - 1
    if recompute and cache is None:
        hidden, first = _run_recomputed(split[:last], hidden, shared), last
    for i, (graph, weights) in enumerate(split[first:], first):
        layer_cache = None if cache is None else cache[i]
        of_these = read if i == last else None
        run = _run_shards if partition.is_split(weights, hidden.shape[-1]) else _run_layer
        hidden, layer_cache = run(graph, weights, hidden, shared, layer_cache, cache_index, of_these)
        new_cache.append(layer_cache)
    return hidden, None if cache is None else tuple(new_cache)


def _run_recomputed(
    layers: list[tuple[nnx.GraphDef, nnx.State]], hidden: jax.Array, shared: tuple[Any, ...]
) -> jax.Array:
    """Make layers that compute all but their inputs once more for the gradient.

    Those of one kind that follow one another are one loop: without it, XLA on the CPU finds that the second computation
    is the first, and keeps its results after all. The loop takes their weights from one array: a copy, unless they were
    cast just before; of weights split over devices, a copy of the shards.
    """

    def kind(layer: tuple[nnx.GraphDef, nnx.State]) -> Any:
        graph, weights = layer
        leaves, structure = jax.tree.flatten(weights)
        return graph, structure, [(leaf.shape, leaf.dtype) for leaf in leaves]

    for (graph, *_), alike in itertools.groupby(layers, kind):

        def run(hidden: jax.Array, weights: nnx.State, graph: nnx.GraphDef = graph) -> tuple[jax.Array, None]:
            if partition.is_split(weights, hidden.shape[-1]):
                weights = partition.whole(weights, hidden.shape[-1], hidden.dtype)
            return _run_layer(graph, weights, hidden, shared, None, 0, None)[0], None

        stacked = jax.tree.map(lambda *layers: jnp.stack(layers), *[weights for _, weights in alike])
        hidden, _ = jax.lax.scan(jax.checkpoint(run, prevent_cse=False), hidden, stacked)
    return hidden


@partial(jax.jit, static_argnums=0)
def _run_layer(
    graph: nnx.GraphDef,
    weights: nnx.State,
    hidden: jax.Array,
    shared: tuple[Any, ...],
    cache: LayerCache | None,
    cache_index: int | jax.Array,
    read: jax.Array | None,
) -> tuple[jax.Array, LayerCache | None]:
    return nnx.merge(graph, weights)(hidden, *shared, cache, cache_index, read)


@partial(jax.jit, static_argnums=0)
def _run_shards(graph: nnx.GraphDef, weights: nnx.State, hidden: jax.Array, *rest: Any) -> Any:
    """`_run_layer` on weights of which this device holds shards: gathered here, and once more for the gradient.

    What was gathered is not kept from one pass to the other, so that no device ever holds all layers.
    """

    def run(weights: nnx.State, hidden: jax.Array, rest: tuple[Any, ...]) -> Any:
        gathered = partition.whole(weights, hidden.shape[-1], hidden.dtype)
        return _run_layer(graph, checkpoint_name(gathered, "gathered"), hidden, *rest)

    kept = jax.checkpoint_policies.save_anything_except_these_names("gathered")
    return jax.checkpoint(run, policy=kept)(weights, hidden, rest)
