"""Bytes of what a model holds and computes: weights, KV cache, a layer, what a gradient keeps, blocks of logits."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.nn import ModelConfig, attention, family_of, head_logprobs

FP32 = 4
"""Bytes."""

LOGITS_COPIES = 2
"""Blocks of logits that are alive together: probabilities and their gradient."""


def tree_bytes(tree: Any) -> int:
    """Return the bytes of all arrays of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def copy_bytes(model: ModelConfig, weights: Any, merged: bool = False) -> int:
    """Return the bytes that weights take a second time while they are computed with: 0 where they are used as they are.

    Args:
        model: gives the dtype of the computation.
        weights: tree of arrays or of their shapes.
        merged: adapters are added to them.
    """
    if model.computation.dtype is None and not merged:
        return 0
    return compute_bytes(model, weights)


def compute_bytes(model: ModelConfig, weights: Any) -> int:
    """Return the bytes of all weights in the dtype of the computation."""
    return sum(leaf.size for leaf in jax.tree.leaves(weights)) * itemsize(model)


def gathered_bytes(model: ModelConfig, weights: Any, tensor: int) -> int:
    """Return the bytes that a device gathers at once of a model that is split over `FSDP`.

    That is two layers, one that is computed with and one that is on its way, or two blocks of the head.

    Args:
        model: gives the dtype of the computation.
        weights: whole model: tree of arrays or of their shapes.
        tensor: devices along `TENSOR`.
    """
    layers = [compute_bytes(model, layer) for layer in weights["trunk"]["layers"].values()]
    columns = min(model.vocab_size, head_logprobs.default_block().columns)
    block = columns * model.hidden_size * itemsize(model)
    # `tensor` splits layers, and not the width of a block of the head.
    return 2 * max(*layers, block * tensor) // tensor


def kv_cache_bytes(model: ModelConfig, rows: int, length: int) -> int:
    """Return the bytes of keys and values of every layer: 2 L B H S K numbers in the dtype of the computation.

    Args:
        model: gives L layers, H heads of keys, and their size K.
        rows: B.
        length: S, tokens of prompt and completion.
    """
    numbers = (
        2 * model.num_hidden_layers * rows * model.num_key_value_heads * length * model.head_dim
    )
    return numbers * itemsize(model)


def layer_bytes(model: ModelConfig, rows: int, length: int) -> int:
    """Estimate of what one layer computes on the way through: B T (10 D + 3 I) numbers, and attention weights.

    Of these there are B H T T, or a block, or none, by the form of attention.

    Args:
        model: gives D, I (intermediate size), H and the dtype of the computation.
        rows: B.
        length: T.
    """
    tokens = rows * length
    hidden, inner = family_of(model.model_type).saved_widths
    numbers = tokens * (hidden * model.hidden_size + inner * model.intermediate_size)
    scores = 0  # a fused kernel holds none
    if model.computation.attention in ("plain", "blocks"):
        scores = tokens * length * model.num_attention_heads
    if model.computation.attention == "blocks":
        scores = min(scores, attention.BLOCK_SCORES)
    # Softmax is computed in float32 whatever the dtype; its result is cast.
    weight = FP32 if model.computation.dtype is None else FP32 + itemsize(model)
    return numbers * itemsize(model) + scores * weight


def learned_layer_bytes(model: ModelConfig, rows: int, length: int) -> int:
    """Estimate of what the layer takes whose gradient is computed: `layer_bytes`, or half of it where it is no loop.

    The half is what compilers for GPUs said (docs/accelerators.md); where all layers keep everything it is whole.
    """
    layer = layer_bytes(model, rows, length)
    return layer // 2 if model.is_unrolled else layer


def scored_bytes(model: ModelConfig, rows: int, length: int) -> int:
    """Estimate of what a layer takes where no gradient follows: all of it, or its widest part by fused attention."""
    if model.computation.attention not in ("triton", "splash"):
        return layer_bytes(model, rows, length)
    inner = family_of(model.model_type).saved_intermediates * model.intermediate_size
    return rows * length * (2 * model.hidden_size + inner) * itemsize(model)


def activation_bytes(model: ModelConfig, rows: int, length: int, tensor: int = 1) -> int:
    """Estimate of what the gradient keeps of a forward pass: `layer_bytes` of every layer.

    An accelerated model keeps of all layers but the last their inputs, queries, keys and values, and what goes into the
    activation: B T (D + H K + 2 G K + n I) numbers, n 2 where another layer gates it, and of some families the results
    of attention and MLP. With `gradient_checkpointing`
    it is their inputs alone. Inputs are on every device along `TENSOR`. Either computes one whole layer at a time.

    Args:
        model: what is learned.
        rows: B, of a micro-batch on one device.
        length: T, tokens of a row, padding included.
        tensor: devices along `TENSOR`.
    """
    layer = learned_layer_bytes(model, rows, length) // tensor
    tokens = rows * length
    if not (model.computation.accelerated or model.computation.gradient_checkpointing):
        return model.num_hidden_layers * layer
    saved_width = 0
    whole_width = model.hidden_size
    if not model.computation.gradient_checkpointing:
        family = family_of(model.model_type)
        heads = model.num_attention_heads + 2 * model.num_key_value_heads
        inner = family.saved_intermediates * model.intermediate_size
        whole_width += family.saved_outputs * model.hidden_size
        saved_width = heads * model.head_dim + inner
        # What attention gives, where it is not computed again.
        if model.computation.attention == "blocks" or model.is_unrolled:
            saved_width += model.num_attention_heads * model.head_dim
    width = whole_width + saved_width // tensor
    # One layer is computed whole at a time; of the others this is all that is kept.
    return (model.num_hidden_layers - 1) * tokens * width * itemsize(model) + layer


def logits_bytes(model: ModelConfig, predictions: int) -> int:
    """Return the bytes of the logits of one block of predictions, and as many numbers beside them.

    Args:
        model: gives the vocabulary.
        predictions: completion tokens, padding included.
    """
    rows, columns = head_logprobs.default_block()
    return LOGITS_COPIES * FP32 * min(predictions, rows) * min(model.vocab_size, columns)


def reading_bytes(model: ModelConfig, prompts: int, length: int) -> int:
    """Estimate of what reading prompts takes beside the cache: a layer's activations, and what all layers leave.

    That is the part of the cache before it is written to the whole, and twice B T D numbers from each layer: compilers
    for GPUs add up the residual stream anew in every layer from all that was ever added to it.

    Args:
        model: gives layers and sizes.
        prompts: B.
        length: T.
    """
    residual = 2 * model.num_hidden_layers * prompts * length * model.hidden_size * itemsize(model)
    return residual + layer_bytes(model, prompts, length) + kv_cache_bytes(model, prompts, length)


def itemsize(model: ModelConfig) -> int:
    """Return the bytes of a number that is computed with."""
    return FP32 if model.computation.dtype is None else jnp.dtype(model.computation.dtype).itemsize
