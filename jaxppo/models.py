"""Causal language models of any family, in Flax NNX, computed exactly as transformers computes them.

Outside of this module and `nn/` a model is a `ModelConfig` (static) and a nested dict of arrays:

    {"trunk": {"embed_in", "layers": {"0": ...}, "final_layer_norm"},   # token ids -> hidden states; see `stacks.py`
     "lm_head": {"kernel": [D, V]},                                     # absent where the embeddings are tied
     "score": {"kernel": [D, 1]}}                                       # value or reward models

Any subset of heads may sit on one trunk, under any name. Kernels are stored as [inputs, outputs]; the dict of one that
has an adapter (`lora.py`) also holds its factors. The computation is in the configuration's `compute_dtype`, or in the
dtype of the arrays; softmax, layer norm statistics, logits and scores are float32 in any case.

Shape letters: B rows, T new tokens, S tokens attended to (T, or the slots of the cache), R of the T tokens that are
read, V vocabulary, D hidden size, H heads, G heads of keys and values, K head size.
"""

import dataclasses
import logging
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint

from jaxppo.errors import ModelError
from jaxppo.nn import FAMILIES, ModelConfig, depth, lora
from jaxppo.nn import layers as blocks
from jaxppo.nn.attention import Cache
from jaxppo.nn.layers import with_adapters
from jaxppo.parallel import partition, platform, stacks

_LOG = logging.getLogger(__name__)

Params = dict[str, Any]

TPU_LANES = 128
"""Numbers that a TPU works on side by side."""


class ModelOutput(NamedTuple):
    """What `apply` returns.

    Attributes:
        hidden: [B, T or R, D], after the final layer norm.
        logits: [B, T or R, V] float32, or None where they were not asked for.
        cache: the cache with this call's keys and values written, or None where none was given.
    """

    hidden: jax.Array
    logits: jax.Array | None
    cache: Cache | None


def init_params(config: ModelConfig, key: jax.Array, head: str | None = "lm") -> Params:
    """Draw the parameters of a new model as transformers does: normal(0, initializer_range), biases 0, norms 1.

    GPT-2 draws the layers that write to its residual stream smaller (`GPT2Config.residual_init_scale`).

    Args:
        config: the model.
        key: PRNG key.
        head: "lm" (language model), "score" (value or reward model) or None (the trunk alone).

    Returns:
        Nested dict of float32 arrays, as at the top of this module.

    Raises:
        ModelError: the head is none of these.
    """
    if head not in ("lm", "score", None):
        raise ModelError(f"head: expected 'lm', 'score' or None, got {head!r}")
    trunk_key, head_key = jax.random.split(key)
    params: Params = {"trunk": _init_trunk(config, trunk_key)}
    if head == "lm" and not config.tie_word_embeddings:
        shape = (config.hidden_size, config.vocab_size)
        params["lm_head"] = {"kernel": config.initializer_range * jax.random.normal(head_key, shape)}
    if head == "score":
        params["score"] = init_score_head(config, head_key)
    return params


def init_score_head(config: ModelConfig, key: jax.Array, scale: float | None = None, use_bias: bool = False) -> Params:
    """Draw a head that maps a hidden state to one number.

    Args:
        config: gives the hidden size.
        key: PRNG key.
        scale: standard deviation of the kernel, default `initializer_range`; 0.0 starts every score at 0.
        use_bias: add a bias of 0 (a value head on the policy's trunk has one, a `ForSequenceClassification` has none).

    Returns:
        {"kernel": [D, 1], "bias": [1]} float32, the bias only where asked for.
    """
    scale = config.initializer_range if scale is None else scale
    head: Params = {"kernel": scale * jax.random.normal(key, (config.hidden_size, 1))}
    if use_bias:
        head["bias"] = jnp.zeros((1,))
    return head


def init_cache(config: ModelConfig, batch_size: int, length: int) -> Cache:
    """Make an empty cache of `length` slots per row: per layer, keys and values of [B, G, S, K].

    Its dtype is the configuration's `compute_dtype`, or float32.
    """
    heads = partition.heads_of_device(config.num_attention_heads, config.num_key_value_heads)
    shape, dtype = (batch_size, heads, length, config.head_dim), config.compute_dtype or jnp.float32
    return tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(config.num_hidden_layers))


def densely_laid(cache: Cache) -> Cache:
    """Have a TPU lay out a cache densely, and in one way for all that computes with it.

    It pads what lies side by side to 128 numbers: heads of 64 would take twice the memory, and twice the time to read,
    so that slots lie there instead. Left to itself, its compiler lays heads of 256 in one way to read prompts and in
    another to decode, and holds the cache twice in between.
    """
    if platform.current().name != "tpu":
        return cache
    order = (0, 1, 2, 3) if cache[0][0].shape[3] % TPU_LANES == 0 else (0, 1, 3, 2)
    return jax.tree.map(lambda x: with_layout_constraint(x, Layout(order)), cache)


def apply(
    config: ModelConfig,
    params: Params,
    input_ids: jax.Array,
    *,
    positions: jax.Array | None = None,
    attention_mask: jax.Array | None = None,
    cache: Cache | None = None,
    cache_index: int | jax.Array = 0,
    read: jax.Array | None = None,
    logits: bool = True,
) -> ModelOutput:
    """Run the model; without further arguments every token is real, whatever its id.

    Right-padded rows need no mask: a token never sees what comes after it. Left-padded rows need `attention_mask`.
    With a cache, this call's T tokens are written to the slots `cache_index ... cache_index + T - 1`, and see all
    earlier slots and each other causally; a prompt (T = P) and one sampled token (T = 1) take the same path.

    Args:
        config: the model, static under `jax.jit`.
        params: nested dict of arrays, as at the top of this module.
        input_ids: [B, T] int.
        positions: [B or 1, T] int; default: the number of real tokens before each token in its row.
        attention_mask: [B, T] bool, True = real token; with a cache [B, S], the slots that hold a real token,
            those written by this call included. Default: all are real.
        cache: from `init_cache` or an earlier call.
        cache_index: slot of the first new token, int or int32 scalar (may be traced); must be <= S - T.
        read: [B, R] int, numbers in [0, T) of the tokens whose hidden states are wanted; default: all, in their order.
            The last layer computes no more than the keys and values of the others.
        logits: whether to compute them; False where a caller computes them in blocks, or has no head.

    Returns:
        Hidden states, logits and the new cache. What is computed at a padding token is finite and means nothing.

    Raises:
        ModelError: `logits` are asked of parameters without a language model head.
        ValueError: the shapes of the arguments do not fit.
    """
    num_slots = input_ids.shape[1] if cache is None else cache[0][0].shape[2]
    _check_shapes(input_ids, attention_mask, num_slots)
    query_slots = cache_index + jnp.arange(input_ids.shape[1])
    if positions is None:
        positions = _count_before(query_slots, attention_mask)
    trunk = _ready(config, params["trunk"])
    graphs = _graphs(config, _adapted(trunk))
    rest, layers = {name: part for name, part in trunk.items() if name != "layers"}, trunk["layers"]

    def run(hidden: jax.Array, shared: tuple[Any, ...]) -> tuple[jax.Array, Cache | None]:
        if cache is None:
            return depth.run_layers(config, graphs.layers, layers, hidden, shared, read), None
        index = None if isinstance(cache_index, int) and cache_index == 0 else jnp.asarray(cache_index)
        return depth.run_cached(graphs.layers, layers, hidden, shared, cache, index, read)

    hidden, cache = nnx.merge(graphs.rest, rest)(input_ids, positions, attention_mask, run)
    return ModelOutput(hidden, lm_logits(config, params, hidden) if logits else None, cache)


def _ready(config: ModelConfig, trunk: Params) -> Params:
    """Return the parameters of a trunk in the dtype of the computation, shards of this device as they are.

    Layers gather theirs one by one (`nn/depth.py`), embeddings look up in them.
    """
    if not partition.is_split(trunk, config.hidden_size):
        return cast(config, trunk)
    rest = {name: part for name, part in trunk.items() if name != "layers"}
    return cast(config, rest) | {"layers": trunk["layers"]}


def cast(config: ModelConfig, tree: Any) -> Any:
    """Cast parameters to the dtype of the computation; the very same arrays where they are in it already."""
    if config.compute_dtype is None:
        return tree
    return jax.tree.map(lambda x: x.astype(config.compute_dtype), tree)


def computing_in(config: ModelConfig, dtype: str, attention: str = "auto") -> ModelConfig:
    """Return the same model, computing as suits the platform; its parameters stay as they are.

    Args:
        config: the model.
        dtype: "float32" or "bfloat16".
        attention: a form of `nn/attention.py`, or "auto": plain on a CPU, elsewhere the platform's kernel.
    """
    name = platform.current().name
    if attention == "auto":
        attention = {"cpu": "plain", "gpu": "triton", "tpu": "splash"}.get(name, "blocks")
    compute_dtype = None if dtype == "float32" else dtype
    return dataclasses.replace(config, compute_dtype=compute_dtype, attention=attention, accelerated=name != "cpu")


def with_checkpointing(config: ModelConfig, gradient_checkpointing: bool) -> ModelConfig:
    """Return the same model, whose gradient keeps all of its layers, or their inputs alone."""
    return dataclasses.replace(config, gradient_checkpointing=gradient_checkpointing)


def for_training(config: ModelConfig, params: Params, adapter: Params | None = None) -> Params:
    """Stack the layers of a model that is one loop, unless its adapter is not the same in all of them; a copy of them.

    Args:
        config: the model.
        params: what to stack.
        adapter: what will be attached to them, or its shapes.
    """
    return stacks.stacked(params) if config.loops and stacks.can_stack((params, adapter)) else params


def for_decoding(config: ModelConfig, params: Params) -> Params:
    """Prepare the parameters of a language model for many steps: adapters merged, in the dtype of the computation.

    W + A B takes the place of W, A and B. What devices hold shards of is gathered, once for all steps, unless that is
    too much for one (`partition.decodes_split`).
    """
    dtype, parts = config.compute_dtype, {name: params[name] for name in ("trunk", "lm_head") if name in params}
    ready = cast(config, lora.merged(stacks.unstacked(parts), dtype))
    if partition.decodes_split(partition.whole_bytes(ready, config.hidden_size)):
        return params | ready
    return params | partition.whole(ready, config.hidden_size)


def lm_head_kernel(config: ModelConfig, params: Params) -> jax.Array:
    """Return the language model head as a [D, V] matrix, gathered; with tied embeddings, the transposed embedding.

    Raises:
        ModelError: the parameters have no language model head.
    """
    kernel, axis = stored_lm_head(config, params), 1 if config.tie_word_embeddings else 0
    if kernel.shape[axis] != config.hidden_size:
        kernel = partition.gathered(kernel, axis, config.compute_dtype or kernel.dtype)
    return kernel.T if config.tie_word_embeddings else kernel


def stored_lm_head(config: ModelConfig, params: Params) -> jax.Array:
    """Return the language model head as it is stored: a [D, V] matrix; with tied embeddings the embedding, [V, D].

    It has the whole vocabulary, but may be this device's shard of the hidden size, which is not cast.

    Raises:
        ModelError: the parameters have no language model head.
    """
    part, vocab_axis = _part_of_lm_head(config, params), 0 if config.tie_word_embeddings else 1
    is_shard = part.shape[1 - vocab_axis] != config.hidden_size
    return partition.all_parts(part if is_shard else cast(config, part), vocab_axis, config.vocab_size)


def _part_of_lm_head(config: ModelConfig, params: Params) -> jax.Array:
    """Return what this device has of `stored_lm_head`."""
    if config.tie_word_embeddings:
        return params["trunk"]["embed_in"]["embedding"]
    if "lm_head" not in params:
        raise ModelError(f"lm_head: expected among the parameters, got {', '.join(params)}; pass logits=False")
    return params["lm_head"]["kernel"]


def lm_logits(config: ModelConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """Compute the logits of the next token from hidden states: [..., D] -> [..., V] float32.

    Those of a padded vocabulary, from `num_tokens` on, are -inf. To leave them out of the matrix would be a copy of it.
    """
    part = cast(config, _part_of_lm_head(config, params))
    kernel = part.T if config.tie_word_embeddings else part
    has_part = kernel.shape[1] < config.vocab_size
    rows = hidden.reshape(-1, hidden.shape[-1])
    rows = partition.enter(rows) if has_part else rows
    of_part = partition.product(rows, kernel, partition.WIDENS, config.hidden_size, jnp.float32)
    logits: Any = partition.all_parts(of_part, 1, config.vocab_size)
    logits = logits.reshape(*hidden.shape[:-1], -1)
    if config.num_tokens is None:
        return logits
    return jnp.where(jnp.arange(config.vocab_size) < config.num_tokens, logits, -jnp.inf)


def scores(params: Params, hidden: jax.Array) -> jax.Array:
    """Compute one number per hidden state, hidden @ kernel (+ bias): [..., D] -> [...] float32.

    Args:
        params: nested dict of arrays that holds the head, under the name `score`.
        hidden: [..., D] hidden states from `apply`.
    """
    head = params["score"]
    result = jnp.matmul(hidden, head["kernel"][:, 0], preferred_element_type=jnp.float32)
    return result + head["bias"][0] if "bias" in head else result


class _Graphs(NamedTuple):
    """What a trunk computes, apart from its weights."""

    rest: nnx.GraphDef
    layers: tuple[nnx.GraphDef, ...]


@lru_cache(maxsize=32)
def _graphs(config: ModelConfig, adapted: tuple[str, ...]) -> _Graphs:
    """Return the graphs of a trunk whose linear layers at these paths have adapters."""
    numbers = [str(i) for i in range(config.num_hidden_layers)]
    paths = {path.replace(f"layers/{stacks.ALL}/", f"layers/{i}/"): None for path in adapted for i in numbers}
    trunk: Any = nnx.eval_shape(lambda: with_adapters(FAMILIES[config.model_type].trunk(config, blocks.Keys(0)), paths))
    of_layers = tuple(nnx.split(trunk.layers[i])[0] for i in numbers)
    del trunk.layers
    return _Graphs(nnx.split(trunk)[0], of_layers)


def _adapted(tree: Params, path: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the paths of the layers with an adapter, in the order of the tree."""
    if "lora_a" in tree:
        return ("/".join(path),)
    children = ((name, child) for name, child in tree.items() if isinstance(child, dict))
    return tuple(found for name, child in children for found in _adapted(child, (*path, name)))


@partial(jax.jit, static_argnums=0)
def _init_trunk(config: ModelConfig, key: jax.Array) -> Params:
    return nnx.to_pure_dict(nnx.split(FAMILIES[config.model_type].trunk(config, blocks.Keys(key)))[1])


def check_length(config: ModelConfig, tokens: int, what: str, model_max_length: int | None = None) -> None:
    """Check how long rows are; warn once where they are longer than those that the model was made for.

    Args:
        config: of the model.
        tokens: real tokens of the longest row.
        what: names the rows.
        model_max_length: what the tokenizer says of the model.

    Raises:
        ModelError: the model does not know so many positions.
    """
    if config.max_length is not None and tokens > config.max_length:
        limit = f"at most {config.max_length} tokens (positions of this {config.model_type} model)"
        raise ModelError(f"{what}: expected {limit}, got {tokens}")
    limits = {"max_position_embeddings": config.max_position_embeddings}
    if model_max_length is not None:
        limits["model_max_length"] = model_max_length
    name, limit = min(limits.items(), key=lambda entry: entry[1])
    if tokens > limit:
        made_for = f"this {config.model_type} model was made for {limit} ({name})"
        _warn_of_length(limit, f"{what}: {tokens} tokens, and {made_for}")


_warned_of_length: set[int] = set()


def _warn_of_length(limit: int, message: str) -> None:
    """Warn once of a model: training, value model and evaluation all ask."""
    if limit not in _warned_of_length:
        _warned_of_length.add(limit)
        _LOG.warning(message)


def _check_shapes(input_ids: jax.Array, attention_mask: jax.Array | None, num_slots: int) -> None:
    b, t = input_ids.shape
    if t > num_slots:
        raise ValueError(f"cache: expected at least {t} slots for input_ids of shape {(b, t)}, got {num_slots}")
    if attention_mask is not None and attention_mask.shape != (b, num_slots):
        raise ValueError(f"attention_mask: expected shape {(b, num_slots)}, got {attention_mask.shape}")


def _count_before(query_slots: jax.Array, attention_mask: jax.Array | None) -> jax.Array:
    """[B or 1, T] int32: the number of real tokens before each new token."""
    if attention_mask is None:
        return query_slots[None]
    before = jnp.arange(attention_mask.shape[1]) < query_slots[:, None]
    return (before & attention_mask[:, None].astype(bool)).sum(axis=-1)
