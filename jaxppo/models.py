"""Causal language models of any family, in Flax NNX, computed exactly as transformers computes them.

Outside of this module and `nn/` a model is a `ModelConfig` (static) and a nested dict of arrays:

    {"trunk": {"embed_in", "layers": {"0": ...}, "final_layer_norm"},   # token ids -> hidden states; see `stacks.py`
     "lm_head": {"kernel": [D, V]},                                     # absent where the embeddings are tied
     "score": {"kernel": [D, 1]}}                                       # value or reward models

Any subset of heads may sit on one trunk, under any name. Kernels are stored as [inputs, outputs]; the dict of one that
has an adapter (`lora.py`) also holds its factors. The computation is in the dtype of `Computation`, or in that of the
arrays; softmax, layer norm statistics, logits and scores are float32 in any case.

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
from jaxppo.nn.attention import AttentionContext, Cache
from jaxppo.nn.layers import Keys, with_adapters
from jaxppo.parallel import partition, platform, stacks
from jaxppo.types import Array, Params

_LOG = logging.getLogger(__name__)

TPU_LANES = 128
"""Numbers that a TPU works on side by side."""


class ModelOutput(NamedTuple):
    """What `apply` returns.

    Attributes:
        hidden: [B, T or R, D], after the final layer norm.
        logits: [B, T or R, V] float32, or None if `logits` is false.
        cache: the cache with this call's keys and values written, or None where none was given.
    """

    hidden: Array
    logits: Array | None
    cache: Cache | None


def init_params(config: ModelConfig, key: Array, head: str | None = "lm") -> Params:
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
    # A key for each, so that the trunk of a seed is the same under any head.
    trunk_key, head_key = jax.random.split(key)
    params: Params = {"trunk": _init_trunk(config, trunk_key)}
    if head == "lm" and not config.tie_word_embeddings:
        shape = (config.hidden_size, config.vocab_size)
        params["lm_head"] = {
            "kernel": config.initializer_range * jax.random.normal(head_key, shape)
        }
    if head == "score":
        params["score"] = init_score_head(config, head_key)
    return params


def init_score_head(
    config: ModelConfig, key: Array, scale: float | None = None, use_bias: bool = False
) -> Params:
    """Draw a head that maps a hidden state to one number.

    Args:
        config: gives the hidden size.
        key: PRNG key.
        scale: standard deviation of the kernel, default `initializer_range`; 0.0 starts every score at 0.
        use_bias: add a bias of 0 (a value head on the policy's trunk has one, a `ForSequenceClassification` has none).

    Returns:
        {"kernel": [D, 1], "bias": [1]} float32, the bias only with `use_bias`.
    """
    scale = config.initializer_range if scale is None else scale
    head: Params = {"kernel": scale * jax.random.normal(key, (config.hidden_size, 1))}
    if use_bias:
        head["bias"] = jnp.zeros((1,))
    return head


def init_cache(config: ModelConfig, batch_size: int, length: int) -> Cache:
    """Make an empty cache of `length` slots per row: per layer, keys and values of [B, G, S, K].

    Its dtype is that of the computation, or float32.
    """
    # On several devices each has the heads that its own queries read.
    num_heads = partition.heads_of_device(config.num_attention_heads, config.num_key_value_heads)
    shape = (batch_size, num_heads, length, config.head_dim)
    dtype = config.computation.dtype or jnp.float32
    return tuple(
        (jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(config.num_hidden_layers)
    )


def dense_layout(cache: Cache) -> Cache:
    """Have a TPU lay out a cache densely, and in one way for all that computes with it.

    It pads what lies side by side to 128 numbers: heads of 64 would take twice the memory, and twice the time to read,
    so that slots lie there instead. Left to itself, its compiler lays heads of 256 in one way to read prompts and in
    another to decode, and holds the cache twice in between.
    """
    if platform.current().name != "tpu":
        return cache
    head_dim = cache[0][0].shape[3]
    axis_order = (0, 1, 2, 3) if head_dim % TPU_LANES == 0 else (0, 1, 3, 2)
    return jax.tree.map(lambda x: with_layout_constraint(x, Layout(axis_order)), cache)


def apply(
    config: ModelConfig,
    params: Params,
    input_ids: Array,
    *,
    positions: Array | None = None,
    attention_mask: Array | None = None,
    cache: Cache | None = None,
    cache_index: int | Array = 0,
    read: Array | None = None,
    logits: bool = True,
) -> ModelOutput:
    """Run the model; without further arguments every token is real, whatever its id.

    One function trains, scores, reads prompts and decodes, so that all of them compute the same numbers. Slots and
    positions are two things: a slot is a column of the batch or of the cache, padding included, and says what a token
    sees; a position counts the real tokens before a token in its row, and is what embeddings of positions get. So the
    logits of a row do not depend on its padding.

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
        ModelError: `logits` is true, and the parameters have no language model head.
        ValueError: the shapes of the arguments do not fit.
    """
    num_new = input_ids.shape[1]
    num_slots = num_new if cache is None else cache[0][0].shape[2]
    _check_shapes(input_ids, attention_mask, num_slots)
    if positions is None:
        positions = _count_before(cache_index + jnp.arange(num_new), attention_mask)
    trunk_params = _trunk_to_compute(config, params["trunk"])
    layers = trunk_params["layers"]
    other_params = {name: part for name, part in trunk_params.items() if name != "layers"}
    # What is computed (graphs) apart from the weights: layers
    # are given theirs one by one, where they are computed.
    graphs = _graphs(config, _adapter_paths(trunk_params))
    trunk = nnx.merge(graphs.trunk, other_params)

    hidden, rotary = trunk.embed(input_ids, positions)
    context = AttentionContext(rotary, attention_mask, read=read)
    if cache is None:
        hidden = depth.run_layers(config, graphs.layers, layers, hidden, context)
    else:
        # A number that is 0 while tracing says that the
        # cache is empty; a traced index may be anything.
        is_empty = isinstance(cache_index, int) and cache_index == 0
        context = context._replace(cache_index=None if is_empty else jnp.asarray(cache_index))
        hidden, cache = depth.run_cached(graphs.layers, layers, hidden, context, cache)
    hidden = trunk.final_layer_norm(hidden)
    return ModelOutput(hidden, lm_logits(config, params, hidden) if logits else None, cache)


def _trunk_to_compute(config: ModelConfig, trunk: Params) -> Params:
    """Return the parameters of a trunk in the dtype of the computation, shards of this device as they are.

    Layers gather theirs one by one (`nn/depth.py`), embeddings look up in them.
    """
    # Shards travel in the dtype of the computation, so
    # that a layer's are cast where they are gathered.
    if not partition.is_split(trunk, config.hidden_size):
        return cast(config, trunk)
    other_params = {name: part for name, part in trunk.items() if name != "layers"}
    return cast(config, other_params) | {"layers": trunk["layers"]}


def cast(config: ModelConfig, tree: Any) -> Any:
    """Cast parameters to the dtype of the computation; the very same arrays where they are in it already."""
    dtype = config.computation.dtype
    if dtype is None:
        return tree
    return jax.tree.map(lambda x: x.astype(dtype), tree)


def with_dtype(config: ModelConfig, dtype: str, attention: str = "auto") -> ModelConfig:
    """Return the same model, computing as suits the platform; its parameters stay as they are.

    Args:
        config: the model.
        dtype: "float32" or "bfloat16".
        attention: a form of `nn/attention.py`, or "auto": plain on a CPU, elsewhere the platform's kernel.
    """
    platform_name = platform.current().name
    if attention == "auto":
        attention = {"cpu": "plain", "gpu": "triton", "tpu": "splash"}.get(platform_name, "blocks")
    computation = dataclasses.replace(
        config.computation,
        dtype=None if dtype == "float32" else dtype,
        attention=attention,
        accelerated=platform_name != "cpu",
    )
    return dataclasses.replace(config, computation=computation)


def with_checkpointing(config: ModelConfig, gradient_checkpointing: bool) -> ModelConfig:
    """Return the same model, whose gradient saves all of its layers, or their inputs alone."""
    computation = dataclasses.replace(
        config.computation, gradient_checkpointing=gradient_checkpointing
    )
    return dataclasses.replace(config, computation=computation)


def for_training(config: ModelConfig, params: Params, adapter: Params | None = None) -> Params:
    """Stack the layers of a model that is one loop, unless its adapter is not the same in all of them; a copy of them.

    Args:
        config: the model.
        params: what to stack.
        adapter: what will be attached to them, or its shapes.
    """
    if config.scans_layers and stacks.can_stack((params, adapter)):
        return stacks.stack(params)
    return params


def for_decoding(config: ModelConfig, params: Params) -> Params:
    """Prepare the parameters of a language model for many steps: adapters merged, in the dtype of the computation.

    W + A B takes the place of W, A and B. What devices hold shards of is gathered, once for all steps, unless that is
    too much for one (`partition.decodes_split`).
    """
    # One product a layer for each token in place of three; other heads are not used for decoding.
    parts = {name: params[name] for name in ("trunk", "lm_head") if name in params}
    merged = cast(config, lora.merge_attached(stacks.unstack(parts), config.computation.dtype))
    # Gathered here once for all tokens; else every token travels to the shards.
    if partition.decodes_split(partition.whole_bytes(merged, config.hidden_size)):
        return params | merged
    return params | partition.whole(merged, config.hidden_size)


def lm_head_kernel(config: ModelConfig, params: Params) -> Array:
    """Return the language model head as a [D, V] matrix, gathered; with tied embeddings, the transposed embedding.

    Raises:
        ModelError: the parameters have no language model head.
    """
    kernel = stored_lm_head(config, params)
    hidden_axis = 1 if config.tie_word_embeddings else 0
    if kernel.shape[hidden_axis] != config.hidden_size:
        kernel = partition.gathered(kernel, hidden_axis, config.computation.dtype or kernel.dtype)
    return kernel.T if config.tie_word_embeddings else kernel


def stored_lm_head(config: ModelConfig, params: Params) -> Array:
    """Return the language model head as it is stored: a [D, V] matrix; with tied embeddings the embedding, [V, D].

    It has the whole vocabulary, but may be this device's shard of the hidden size, which is not cast.

    Raises:
        ModelError: the parameters have no language model head.
    """
    part = _device_lm_head(config, params)
    vocab_axis = 0 if config.tie_word_embeddings else 1
    is_shard = part.shape[1 - vocab_axis] != config.hidden_size
    # A shard is cast block by block where it is gathered (`head_logprobs`), not whole.
    if not is_shard:
        part = cast(config, part)
    return partition.gather_parts(part, vocab_axis, config.vocab_size)


def _device_lm_head(config: ModelConfig, params: Params) -> Array:
    """Return what this device has of `stored_lm_head`."""
    if config.tie_word_embeddings:
        return params["trunk"]["embed_in"]["embedding"]
    if "lm_head" not in params:
        raise ModelError(
            f"lm_head: expected among the parameters, got {', '.join(params)}; pass logits=False"
        )
    return params["lm_head"]["kernel"]


def lm_logits(config: ModelConfig, params: Params, hidden: Array) -> Array:
    """Compute the logits of the next token from hidden states: [..., D] -> [..., V] float32.

    Those of a padded vocabulary, from `num_logits` on, are -inf. To leave them out of the matrix would be a copy of it.
    """
    part = cast(config, _device_lm_head(config, params))
    kernel = part.T if config.tie_word_embeddings else part
    # As one matrix, see `Linear`.
    rows = hidden.reshape(-1, hidden.shape[-1])
    has_part = kernel.shape[1] < config.vocab_size
    if has_part:
        rows = partition.copy_to_devices(rows)
    device_logits = partition.product(
        rows, kernel, partition.COLUMN_PARALLEL, config.hidden_size, jnp.float32
    )
    logits: Any = partition.gather_parts(device_logits, 1, config.vocab_size)
    logits = logits.reshape(*hidden.shape[:-1], -1)
    if config.num_logits == config.vocab_size:
        return logits
    return jnp.where(jnp.arange(config.vocab_size) < config.num_logits, logits, -jnp.inf)


def scores(params: Params, hidden: Array) -> Array:
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

    trunk: nnx.GraphDef  # without its layers
    layers: tuple[nnx.GraphDef, ...]


# Modules of a deep model take a while to build, and every program of a run asks for them.
@lru_cache(maxsize=32)
def _graphs(config: ModelConfig, adapter_paths: tuple[str, ...]) -> _Graphs:
    """Return the graphs of a trunk whose linear layers at these paths have adapters."""
    numbers = [str(i) for i in range(config.num_hidden_layers)]
    paths: dict[str, None] = {}
    for path in adapter_paths:
        # A stacked layer stands for all of them.
        for number in numbers:
            paths[path.replace(f"layers/{stacks.ALL}/", f"layers/{number}/")] = None

    def make_trunk() -> nnx.Module:
        return with_adapters(FAMILIES[config.model_type].trunk(config, Keys(0)), paths)

    trunk: Any = nnx.eval_shape(make_trunk)
    layer_graphs = tuple(nnx.split(trunk.layers[number])[0] for number in numbers)
    # They are merged with their weights one by one in `depth.py`.
    del trunk.layers
    return _Graphs(nnx.split(trunk)[0], layer_graphs)


def _adapter_paths(tree: Params, path: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the paths of the layers with an adapter, in the order of the tree."""
    if "lora_a" in tree:
        return ("/".join(path),)
    paths: list[str] = []
    for name, child in tree.items():
        if isinstance(child, dict):
            paths += _adapter_paths(child, (*path, name))
    return tuple(paths)


@partial(jax.jit, static_argnums=0)
def _init_trunk(config: ModelConfig, key: Array) -> Params:
    return nnx.to_pure_dict(nnx.split(FAMILIES[config.model_type].trunk(config, Keys(key)))[1])


def made_for(config: ModelConfig, model_max_length: int | None = None) -> tuple[int, str]:
    """Return the most tokens that a model was made for, and the setting of model or tokenizer that says it.

    Args:
        config: of the model.
        model_max_length: what the tokenizer says of the model.
    """
    limits = {"max_position_embeddings": config.max_position_embeddings}
    if model_max_length is not None:
        limits["model_max_length"] = model_max_length
    # The lowest: tokenizers and models are sometimes published with different ones.
    name = min(limits, key=lambda key: limits[key])
    # JSON may have 512.0 for it, which is no length of a list.
    return int(limits[name]), name


def check_length(
    config: ModelConfig, tokens: int, rows_name: str, model_max_length: int | None = None
) -> None:
    """Check how long rows are; warn once where they are longer than those that the model was made for.

    Args:
        config: of the model.
        tokens: real tokens of the longest row.
        rows_name: what they are, for the message.
        model_max_length: what the tokenizer says of the model.

    Raises:
        ModelError: the model has fewer positions.
    """
    if config.max_length is not None and tokens > config.max_length:
        limit = f"at most {config.max_length} tokens (positions of this {config.model_type} model)"
        raise ModelError(f"{rows_name}: expected {limit}, got {tokens}")
    # Rotary embeddings compute any position; beyond these the model was not trained.
    limit, name = made_for(config, model_max_length)
    # Once for a model: training, value model and evaluation all ask.
    if tokens > limit and limit not in _warned_limits:
        _warned_limits.add(limit)
        _LOG.warning(
            f"{rows_name}: {tokens} tokens, and this {config.model_type} model was made for {limit} ({name})"
        )


_warned_limits: set[int] = set()


def _check_shapes(input_ids: Array, attention_mask: Array | None, num_slots: int) -> None:
    b, t = input_ids.shape
    if t > num_slots:
        raise ValueError(
            f"cache: expected at least {t} slots for input_ids of shape {(b, t)}, got {num_slots}"
        )
    if attention_mask is not None and attention_mask.shape != (b, num_slots):
        raise ValueError(
            f"attention_mask: expected shape {(b, num_slots)}, got {attention_mask.shape}"
        )


def _count_before(query_slots: Array, attention_mask: Array | None) -> Array:
    """[B or 1, T] int32: the number of real tokens before each new token."""
    if attention_mask is None:
        return query_slots[None]
    # Padding before a token does not count: a row's numbers are those that it has without padding.
    is_earlier = jnp.arange(attention_mask.shape[1]) < query_slots[:, None]
    return (is_earlier & attention_mask[:, None].astype(bool)).sum(axis=-1)
