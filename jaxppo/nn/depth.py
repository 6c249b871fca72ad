"""The layers of a model one after the other: each in its own place of the program, or all in one loop.

A loop is compiled once, however deep the model is, and says what the gradient saves of every layer. It takes the layers
stacked (`parallel/stacks.py`); those that are not are stacked first, which is a copy.

Three things are decided here, and none of them changes a number. *Loop or not*: `ModelConfig.scans_layers`. *What the
gradient saves of a layer*: everything, the results of its large products alone, with or without what attention gives,
or its input alone; the four are in `_run_saving`, around the same `_run_layer`. *Where weights are
gathered*: a device that has shards gathers a layer's weights inside that function, so that they are dropped after the
layer and gathered again for its gradient, and no device ever holds all layers. The last layer is apart from the others
in all of this: it computes only the tokens that are read, and its gradient comes first, so that what it saves is held
for no time.

Shape letters: B rows, T tokens, R of them that are read, D hidden size.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxppo.nn.attention import PROJECTED, SAVED, AttentionContext, Cache, LayerCache
from jaxppo.nn.config import ModelConfig
from jaxppo.nn.kernels import ATTENDED
from jaxppo.parallel import partition, stacks
from jaxppo.types import Array, Params

GATHERED = "gathered"
"""Name of weights that a device has gathered, which no gradient saves."""


def run_layers(
    config: ModelConfig,
    graphs: Sequence[nnx.GraphDef],
    layers: Params,
    hidden: Array,
    context: AttentionContext,
) -> Array:
    """Pass the residual stream through `layer(hidden, context)` for each in order, without a cache.

    Layers of one kind are traced and lowered once, however many there are. All but the last read every token; the last
    one computes only keys and values of the tokens that are not read.

    Args:
        config: says whether they are a loop, and what their gradient saves.
        graphs: what each of them computes.
        layers: their weights, by their numbers "0", "1", ..., or stacked.
        hidden: [B, T, D], the input of the first one.
        context: of the last one.

    Returns:
        [B, R or T, D].
    """
    last = len(graphs) - 1
    # Later layers attend to every token, so that all but the last compute every token.
    all_tokens = context._replace(read=None)
    saved = _saved(config)
    run_layer = partial(_run_saving, saved)
    if stacks.is_stacked(layers) or config.scans_layers:
        hidden = _scan_layers(run_layer, graphs[:last], layers, hidden, all_tokens)
    else:
        for i in range(last):
            hidden = run_layer(graphs[i], layers[str(i)], hidden, all_tokens)
    # The gradient begins with the last layer: what it saves of it is held for no time.
    saved_of_last = "all" if saved == "inputs" else saved
    return _run_saving(saved_of_last, graphs[last], _layer_weights(layers, last), hidden, context)


def _scan_layers(
    run_layer: Callable[..., Array],
    graphs: Sequence[nnx.GraphDef],
    layers: Params,
    hidden: Array,
    context: AttentionContext,
) -> Array:
    """Make a loop of the layers of one kind that follow one another."""

    # Layers may differ in what they compute (windows, rotation)
    # and in their weights (adapters on some of them).
    def kind(i: int) -> tuple[nnx.GraphDef, object]:
        weights_kind = None if stacks.is_stacked(layers) else stacks.kind_of(layers[str(i)])
        return graphs[i], weights_kind

    for (graph, _), numbers in itertools.groupby(range(len(graphs)), kind):

        def step(hidden: Array, weights: Params, graph: nnx.GraphDef = graph) -> tuple[Array, None]:
            return run_layer(graph, weights, hidden, context), None

        # `groupby` gives the numbers once: the loop needs the first and the last of them.
        group = list(numbers)
        hidden, _ = jax.lax.scan(step, hidden, _stack_weights(layers, group[0], group[-1] + 1))
    return hidden


def _layer_weights(layers: Params, i: int) -> Params:
    if stacks.is_stacked(layers):
        return jax.tree.map(lambda x: x[i], layers[stacks.ALL])
    return layers[str(i)]


def _stack_weights(layers: Params, first: int, stop: int) -> Params:
    """Return the weights of the layers from `first` to before `stop`, stacked."""
    if stacks.is_stacked(layers):
        return jax.tree.map(lambda x: x[first:stop], layers[stacks.ALL])
    group = {str(i - first): layers[str(i)] for i in range(first, stop)}
    return stacks.stack({"layers": group})["layers"][stacks.ALL]


def run_cached(
    graphs: Sequence[nnx.GraphDef],
    layers: Params,
    hidden: Array,
    context: AttentionContext,
    cache: Cache,
) -> tuple[Array, Cache]:
    """Do as `run_layers` with a cache, each layer in its own place: a loop would copy the cache.

    Args:
        graphs: see `run_layers`.
        layers: see `run_layers`.
        hidden: see `run_layers`.
        context: see `run_layers`.
        cache: of all layers.

    Returns:
        [B, R or T, D] and the new cache.
    """
    last = len(graphs) - 1
    # No choice of what the gradient saves: nothing is learned through a cache.
    new_cache = []
    for i, graph in enumerate(graphs):
        weights = _layer_weights(layers, i)
        layer_context = context._replace(cache=cache[i], read=context.read if i == last else None)
        hidden, layer_cache = _run_layer_cached(graph, weights, hidden, layer_context)
        new_cache.append(layer_cache)
    return hidden, tuple(new_cache)


# ------------------------------------------------------------------------------ what the gradient saves of a layer


def _saved(config: ModelConfig) -> str:
    """Return what the gradient of this model saves of a layer: see `_run_saving`."""
    if config.computation.gradient_checkpointing:
        return "inputs"
    if not config.computation.accelerated:
        return "all"
    return "projected" if config.scans_layers else "attended"


def _gather_weights(weights: Params, hidden: Array) -> Params:
    """Gather weights of which this device has shards: now, and again for the gradient, which does not save them."""
    if not partition.is_split(weights, hidden.shape[-1]):
        return weights
    # In the dtype of the computation: half the bytes travel where that is bfloat16.
    return checkpoint_name(partition.whole(weights, hidden.shape[-1], hidden.dtype), GATHERED)


# Under `jax.jit`, so that layers with the same graph and shapes are traced and lowered once.
@partial(jax.jit, static_argnums=0)
def _run_layer(
    graph: nnx.GraphDef, weights: Params, hidden: Array, context: AttentionContext
) -> Array:
    # Inside of what the gradient computes again, so
    # that gathered weights are dropped with the layer.
    layer = nnx.merge(graph, _gather_weights(weights, hidden))
    return layer(hidden, context)[0]


@partial(jax.jit, static_argnums=0)
def _run_layer_cached(
    graph: nnx.GraphDef, weights: Params, hidden: Array, context: AttentionContext
) -> tuple[Array, LayerCache]:
    # Single tokens travel to the weights instead (`partition.product`): they are less.
    if hidden.shape[1] > 1:
        weights = _gather_weights(weights, hidden)
    return nnx.merge(graph, weights)(hidden, context)


@partial(jax.jit, static_argnums=(0, 1))
def _run_saving(
    saved: str, graph: nnx.GraphDef, weights: Params, hidden: Array, context: AttentionContext
) -> Array:
    """Run a layer whose gradient saves what is said.

    all: all but gathered weights, so that no device ever holds all layers.

    projected: the products that go into attention and the activation; what lies between, and attention, is computed
    again. No product with weights is (docs/accelerators.md has what it takes). For a loop, which copies all that it
    saves.

    attended: what attention takes and its kernel gives, and what goes into the activation; norms are computed again.
    For layers that are no loop: what they save is not copied, and their gradient does not call the kernel again.

    inputs: the layer's input alone; the rest is computed again. This works only in a loop: outside of one, XLA on the
    CPU merges the second computation with the first (common subexpressions), and saves everything.
    """
    run = partial(_run_layer, graph)
    policies = jax.checkpoint_policies
    if saved == "projected":
        policy = policies.save_only_these_names(SAVED, PROJECTED)
        run = jax.checkpoint(run, policy=policy, prevent_cse=False)
    elif saved == "attended":
        # The gradient goes through it as well: that of a layer's weights is computed before that of
        # the layer below. Else XLA may put it off, and hold what it needs of all layers.
        weights, hidden = jax.lax.optimization_barrier((weights, hidden))
        run = jax.checkpoint(run, policy=policies.save_only_these_names(SAVED, ATTENDED))
    elif saved == "inputs":
        run = jax.checkpoint(run, prevent_cse=False)
    elif partition.is_split(weights, hidden.shape[-1]):  # else there is nothing to leave out
        run = jax.checkpoint(run, policy=policies.save_anything_except_these_names(GATHERED))
    return run(weights, hidden, context)
