"""The layers of a model one after the other: each in its own place of the program, or all in one loop.

A loop is compiled once, however deep the model is, and says what the gradient keeps of every layer. It takes the layers
stacked (`parallel/stacks.py`); those that are not are stacked first, which is a copy.

Shape letters: B rows, T tokens, R of them that are read, D hidden size.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxppo.nn.attention import KEPT, Cache, LayerCache
from jaxppo.nn.config import ModelConfig
from jaxppo.parallel import partition, stacks
from jaxppo.types import Params


def run_layers(
    config: ModelConfig,
    graphs: Sequence[nnx.GraphDef],
    layers: Params,
    hidden: jax.Array,
    shared: tuple[Any, ...],
    read: jax.Array | None,
) -> jax.Array:
    """Pass the residual stream through `layer(hidden, *shared, None, None, read)` for each in order.

    Layers of one kind are traced and lowered once, whatever their number. All but the last get `read` None: they read
    every token. The last one computes only keys and values of the tokens that are not read.

    Args:
        config: says whether they are a loop, and what their gradient keeps (`accelerated`, `gradient_checkpointing`).
        graphs: what each of them computes.
        layers: their weights, by their numbers "0", "1", ..., or stacked.
        hidden: [B, T, D], the input of the first one.
        shared: what every layer gets.
        read: [B, R] int, tokens whose result is wanted; None: all.

    Returns:
        [B, R or T, D].
    """
    run, last = _remembering(config), len(graphs) - 1
    if stacks.is_stacked(layers) or config.loops:
        hidden = _run_loops(run, graphs[:last], layers, hidden, shared)
    else:
        for i in range(last):
            hidden = run(graphs[i], layers[str(i)], hidden, shared, None)
    # The gradient begins with the last layer: what it keeps of it is held for no time.
    run = _keeping_all if config.gradient_checkpointing else run
    return run(graphs[last], _part(layers, last), hidden, shared, read)


def _run_loops(
    run: Callable[..., jax.Array], graphs: Sequence[nnx.GraphDef], layers: Params, hidden: jax.Array, shared: Any
) -> jax.Array:
    """Make a loop of the layers of one kind that follow one another."""

    def kind(i: int) -> Any:
        return graphs[i], None if stacks.is_stacked(layers) else stacks.kind_of(layers[str(i)])

    for (graph, _), numbers in itertools.groupby(range(len(graphs)), kind):

        def step(hidden: jax.Array, weights: Params, graph: nnx.GraphDef = graph) -> tuple[jax.Array, None]:
            return run(graph, weights, hidden, shared, None), None

        of_kind = list(numbers)
        hidden, _ = jax.lax.scan(step, hidden, _together(layers, of_kind[0], of_kind[-1] + 1))
    return hidden


def _part(layers: Params, i: int) -> Params:
    return jax.tree.map(lambda x: x[i], layers[stacks.ALL]) if stacks.is_stacked(layers) else layers[str(i)]


def _together(layers: Params, first: int, stop: int) -> Params:
    """Return the layers from `first` to before `stop`, stacked."""
    if stacks.is_stacked(layers):
        return jax.tree.map(lambda x: x[first:stop], layers[stacks.ALL])
    chosen = {str(i - first): layers[str(i)] for i in range(first, stop)}
    return stacks.stacked({"layers": chosen})["layers"][stacks.ALL]


def run_cached(
    graphs: Sequence[nnx.GraphDef],
    layers: Params,
    hidden: jax.Array,
    shared: tuple[Any, ...],
    cache: Cache,
    cache_index: jax.Array | None,
    read: jax.Array | None,
) -> tuple[jax.Array, Cache]:
    """Do as `run_layers` with a cache, each layer in its own place: a loop would copy the cache.

    Args:
        graphs: see `run_layers`.
        layers: see `run_layers`.
        hidden: see `run_layers`.
        shared: see `run_layers`.
        cache: of all layers.
        cache_index: slot of the first token; None: the cache is empty.
        read: see `run_layers`.

    Returns:
        [B, R or T, D] and the new cache.
    """
    new_cache, last = [], len(graphs) - 1
    for i, graph in enumerate(graphs):
        of_these = read if i == last else None
        weights = _part(layers, i)
        hidden, layer_cache = _run_with_cache(graph, weights, hidden, shared, cache[i], cache_index, of_these)
        new_cache.append(layer_cache)
    return hidden, tuple(new_cache)


# ------------------------------------------------------------------------------- what the gradient keeps of a layer


def _remembering(config: ModelConfig) -> Callable[..., jax.Array]:
    """Return `_run_layer` as the gradient of this model is to keep it."""
    if config.gradient_checkpointing:
        return _keeping_inputs
    return _keeping_named if config.accelerated else _keeping_all


def _gathered(weights: Params, hidden: jax.Array) -> Params:
    """Gather weights of which this device has shards: now, and again for the gradient, which does not keep them."""
    if not partition.is_split(weights, hidden.shape[-1]):
        return weights
    return checkpoint_name(partition.whole(weights, hidden.shape[-1], hidden.dtype), "gathered")


@partial(jax.jit, static_argnums=0)
def _run_layer(
    graph: nnx.GraphDef, weights: Params, hidden: jax.Array, shared: tuple[Any, ...], read: jax.Array | None
) -> jax.Array:
    return nnx.merge(graph, _gathered(weights, hidden))(hidden, *shared, None, None, read)[0]


@partial(jax.jit, static_argnums=0)
def _run_with_cache(
    graph: nnx.GraphDef,
    weights: Params,
    hidden: jax.Array,
    shared: tuple[Any, ...],
    cache: LayerCache,
    cache_index: jax.Array | None,
    read: jax.Array | None,
) -> tuple[jax.Array, LayerCache]:
    if hidden.shape[1] > 1:  # single tokens travel to the weights (`partition.product`): they are less
        weights = _gathered(weights, hidden)
    return nnx.merge(graph, weights)(hidden, *shared, cache, cache_index, read)


@partial(jax.jit, static_argnums=0)
def _keeping_all(graph: nnx.GraphDef, weights: Params, hidden: jax.Array, *rest: Any) -> jax.Array:
    """Keep all but gathered weights, so that no device ever holds all layers."""
    if not partition.is_split(weights, hidden.shape[-1]):
        return _run_layer(graph, weights, hidden, *rest)
    kept = jax.checkpoint_policies.save_anything_except_these_names("gathered")
    return jax.checkpoint(partial(_run_layer, graph), policy=kept)(weights, hidden, *rest)


@partial(jax.jit, static_argnums=0)
def _keeping_named(graph: nnx.GraphDef, weights: Params, hidden: jax.Array, *rest: Any) -> jax.Array:
    """Keep what goes into attention and into the activation; what lies between, and fused attention, is computed again.

    No product with weights is computed again (docs/accelerators.md has what it takes).
    """
    named = jax.checkpoint_policies.save_only_these_names(KEPT)
    return jax.checkpoint(partial(_run_layer, graph), policy=named, prevent_cse=False)(weights, hidden, *rest)


@partial(jax.jit, static_argnums=0)
def _keeping_inputs(graph: nnx.GraphDef, weights: Params, hidden: jax.Array, *rest: Any) -> jax.Array:
    """Keep the input alone. In a loop: elsewhere XLA on the CPU finds that the second computation is the first."""
    return jax.checkpoint(partial(_run_layer, graph), prevent_cse=False)(weights, hidden, *rest)
