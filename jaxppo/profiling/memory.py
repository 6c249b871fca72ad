"""How much memory a run takes on each device: a budget by arithmetic before it starts, and what was measured.

What is held from the first update to the last is exact. What a stage of an update adds is partly an estimate, and as
the stages come one after the other, the peak is what is held plus what the greediest stage adds. Not counted are a
learned reward and evaluations.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo.config import TrainConfig
from jaxppo.nn import ModelConfig, attention, family_of, head_logprobs
from jaxppo.parallel import platform
from jaxppo.parallel.partition import FSDP, TENSOR

MIB = 2**20

FP32 = 4
"""Bytes."""

LOGITS_COPIES = 2
"""Blocks of logits that are alive together: probabilities and their gradient."""

READING_SHARE = 0.1
"""Share of weights and cache that reading prompts may take in addition on an accelerator."""

CPU_ACTIVATIONS = 920_000
"""Numbers in the widest activation of a layer, for all rows that a CPU computes at once: 3.5 MiB in fp32.

Measured on two cores with 1 MiB of second-level cache each (docs/performance.md): W1 takes longer with twice as many
rows, W2 with twice and with half as many.
"""


MOST_OF_DEVICE = 0.8
"""Share of an accelerator's memory that a run takes by default: what XLA holds between is not counted."""


def rows_at_once(models: Sequence[ModelConfig], length: int, room: int | None = None, tensor: int = 1) -> int | None:
    """Return how many rows of `length` tokens a gradient through all of the models should take at once; None: all.

    On a CPU, so many that the widest activation of a layer stays in the cache: large temporaries cost time there,
    fresh memory pages above all. Accelerators are best with all rows, as far as memory allows.

    Args:
        models: architectures.
        length: tokens of a row, padding included.
        room: bytes that an accelerator has for what a gradient keeps, from `room_to_learn`; None: not known.
        tensor: devices along `TENSOR`.
    """
    if platform.current().name == "cpu":
        widest = max(max(model.intermediate_size, model.num_attention_heads * length) for model in models)
        return max(1, CPU_ACTIVATIONS // (length * widest))
    if room is None:
        return None
    return max(1, room // sum(activation_bytes(model, 1, length, tensor) for model in models))


def scored_rows(config: TrainConfig, models: Sequence[ModelConfig], length: int, room: int | None = None) -> int | None:
    """Return how many rows a device takes per scoring pass, as configured or by default; None: all.

    On an accelerator, so many that a layer's results take no more than the `room` for a gradient's.
    """
    configured = config.rl.local_rollout_forward_batch_size
    if configured is not None:
        return configured
    if platform.current().name == "cpu" or room is None:
        return rows_at_once(models, length)
    return max(1, room // max(layer_bytes(model, 1, length) for model in models))


def micro_batches(
    config: TrainConfig,
    models: Sequence[ModelConfig],
    length: int,
    row_shards: int,
    room: int | None = None,
    tensor: int = 1,
) -> int:
    """Micro-batches of a mini-batch: as configured, or the fewest that `rows_at_once` takes on every device."""
    if config.rl.gradient_accumulation_steps is not None:
        return config.rl.gradient_accumulation_steps
    return parts_at_once(models, config.mini_batch_size // row_shards, length, room, tensor)


def parts_at_once(
    models: Sequence[ModelConfig], rows: int, length: int, room: int | None = None, tensor: int = 1
) -> int:
    """Return into how many equal parts `rows_at_once` cuts the rows of a device."""
    most = rows_at_once(models, length, room, tensor) or rows
    return next(parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts <= most)


def room_to_learn(
    models: Sequence[ModelConfig],
    held: Any,
    trained: Mapping[str, Any],
    weights: Mapping[str, Any],
    mesh: Mapping[str, int],
) -> int | None:
    """Return the bytes that a device has for what a gradient keeps of its rows; None where its memory is not known.

    Args:
        models: see `budget`.
        held: what stays on a device, tree of arrays or of their shapes.
        trained: see `budget`.
        weights: see `budget`.
        mesh: see `budget`.
    """
    memory = platform.current().memory_bytes
    if memory is None:
        return None
    copies, gradients = _learning(models, trained, weights, mesh)
    most_logits = logits_bytes(models[0], 2**31)
    return int(MOST_OF_DEVICE * memory) - tree_bytes(held) - copies - 2 * gradients - most_logits


def _learning(
    models: Sequence[ModelConfig], trained: Mapping[str, Any], weights: Mapping[str, Any], mesh: Mapping[str, int]
) -> tuple[int, int]:
    """Return the bytes of weights as they are computed with, and of one gradient of all that is trained."""
    tensor, split = mesh.get(TENSOR, 1), mesh.get(FSDP, 1) > 1
    if split:
        gathered = sum(gathered_bytes(model, tree, tensor) for model, tree in _trunks(models, weights))
        # Gradients of embedding and head are whole before each device keeps its part.
        outside = sum(FP32 * _outside(model, tree) for model, tree in _trunks(models, trained) if model.accelerated)
        return gathered, tree_bytes(trained) + outside
    return copy_bytes(models[0], weights) // tensor, tree_bytes(trained)


def prompts_at_once(
    model: ModelConfig, weights: Any, prompts_shape: tuple[int, ...], uniforms_shape: tuple[int, ...]
) -> int:
    """Return how many prompts a device reads at once before it samples: an equal part of them.

    On a CPU all. An accelerator is to need little more memory for that than what it holds while it samples, weights and
    cache: no more than `READING_SHARE` of it.

    Args:
        model: the policy.
        weights: as it is decoded with: tree of arrays or of their shapes.
        prompts_shape: [G, P].
        uniforms_shape: [B, C].
    """
    (count, prompt), (rows, response) = prompts_shape, uniforms_shape
    if platform.current().name == "cpu":
        return count
    held = compute_bytes(model, weights) + kv_cache_bytes(model, rows, prompt + response)
    most = max(1, int(READING_SHARE * held / reading_bytes(model, 1, prompt)))
    return next(part for part in range(min(most, count), 0, -1) if count % part == 0)


def reading_bytes(model: ModelConfig, prompts: int, length: int) -> int:
    """Estimate of what reading prompts takes beside the cache: a layer's activations, and what all layers leave.

    That is the part of the cache before it is written to the whole, and twice B T D numbers from each layer: compilers
    for GPUs add up the residual stream anew in every layer from all that was ever added to it.

    Args:
        model: gives layers and sizes.
        prompts: B.
        length: T.
    """
    residual = 2 * model.num_hidden_layers * prompts * length * model.hidden_size * _itemsize(model)
    return residual + layer_bytes(model, prompts, length) + kv_cache_bytes(model, prompts, length)


class Budget(NamedTuple):
    """Bytes on each device."""

    held: dict[str, int]  # from the first update to the last
    stages: dict[str, dict[str, int]]  # what each stage of an update adds while it runs

    @property
    def peak(self) -> int:
        """Bytes at the same time, at most."""
        return sum(self.held.values()) + max(sum(stage.values()) for stage in self.stages.values())

    def by_program(self) -> dict[str, int]:
        """Return what each program of an update adds while it runs: "generate", "score" and "update"."""
        names = {"sampling": "generate", "scoring": "score", "learning": "update"}
        return {names[stage]: sum(parts.values()) for stage, parts in self.stages.items()}

    def describe(self) -> str:
        """Describe the budget in words, in MiB."""
        held = f"{_sum(self.held)} throughout ({_parts(self.held)})"
        stages = [f"{name} adds {_sum(stage)} ({_parts(stage)})" for name, stage in self.stages.items()]
        return f"memory per device in MiB, estimated: {'; '.join([held, *stages])}; {self.peak / MIB:,.1f} at the peak"


def _sum(parts: Mapping[str, int]) -> str:
    return f"{sum(parts.values()) / MIB:,.1f}"


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size / MIB:,.1f}" for name, size in parts.items())


def budget(
    config: TrainConfig,
    models: Sequence[ModelConfig],
    held: Mapping[str, Any],
    trained: Mapping[str, Any],
    weights: Mapping[str, Any],
    prompt_length: int,
    row_shards: int,
    mesh: Mapping[str, int] | None = None,
    room: int | None = None,
) -> Budget:
    """Estimate the memory that a run will take.

    Args:
        config: hyper-parameters.
        models: architectures of what is learned: the policy, then a separate value model.
        held: what stays on a device, by name: trees of arrays or of their shapes.
        trained: {"policy", "value"}, trees of what has gradients, as far as it is on a device.
        weights: {"policy", "value"}, whole models: trees of arrays or of their shapes.
        prompt_length: tokens of a prompt, padding included.
        row_shards: parts that rows are split into.
        mesh: devices along the axes that split parameters, `FSDP` and `TENSOR`; default: none does.
        room: see `rows_at_once`.
    """
    policy, mesh = models[0], mesh or {}
    response = config.sampling.response_length
    length = prompt_length + response
    tensor, split = mesh.get(TENSOR, 1), mesh.get(FSDP, 1) > 1
    rows, parts = config.batch_size // row_shards, micro_batches(config, models, length, row_shards, room, tensor)
    micro_rows = config.mini_batch_size // row_shards // parts
    at_once = min(rows, scored_rows(config, models, length, room) or rows)
    if split:
        decoding = compute_bytes(policy, weights["policy"]) // tensor  # adapters are merged before
        scoring = max(gathered_bytes(model, tree, tensor) for model, tree in _trunks(models, weights))
    else:
        decoding = copy_bytes(policy, weights["policy"], merged=config.peft.use_peft) // tensor
        scoring = max(copy_bytes(policy, tree) for tree in weights.values()) // tensor
    learning, gradients = _learning(models, trained, weights, mesh)
    activations = sum(activation_bytes(model, micro_rows, length, tensor) for model in models)
    layers = [layer_bytes(model, micro_rows, length) // tensor for model in models]
    if parts > 1:
        gradients *= 2  # a sum, and the next term
    elif platform.current().name == "gpu" and not split:  # its compiler makes no float32 of them before the optimizer
        gradients = gradients * _itemsize(policy) // FP32
    if platform.current().name == "gpu" and policy.accelerated:
        activations -= sum(layers) - max(layers)  # one model after the other
    return Budget(
        held={name: tree_bytes(tree) for name, tree in held.items()},
        stages={
            "sampling": {
                "weights": decoding,
                "KV cache": kv_cache_bytes(policy, rows, length) // _dividing(policy.num_key_value_heads, tensor),
                "logits": LOGITS_COPIES * FP32 * rows * policy.vocab_size,
            },
            "scoring": {
                "weights": scoring,
                "activations": max(_scored_bytes(model, at_once, length) for model in models) // tensor,
                "logits": logits_bytes(policy, at_once * response),
            },
            "learning": {
                "weights": learning,
                "gradients": gradients,
                "activations": activations,
                "logits": logits_bytes(policy, micro_rows * response),
            },
        },
    )


def _dividing(heads: int, tensor: int) -> int:
    """Return into how many parts heads are split over `tensor` devices: those that do not divide are copied."""
    return tensor if heads % tensor == 0 else 1


def _trunks(models: Sequence[ModelConfig], trees: Mapping[str, Any]) -> Iterator[tuple[ModelConfig, Any]]:
    """Return the arrays that belong to each of the models, heads on the trunk of another one left out."""
    return zip(models, [tree for tree in trees.values() if "trunk" in tree], strict=True)


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
    if model.compute_dtype is None and not merged:
        return 0
    return compute_bytes(model, weights)


def compute_bytes(model: ModelConfig, weights: Any) -> int:
    """Return the bytes of all weights in the dtype of the computation."""
    return sum(leaf.size for leaf in jax.tree.leaves(weights)) * _itemsize(model)


def gathered_bytes(model: ModelConfig, weights: Any, tensor: int) -> int:
    """Return the bytes that a device gathers at once of a model that is split over `FSDP`.

    That is embedding and head, and two layers, one that is computed with and one that is on its way. The head's
    blocks go over the whole vocabulary, so that it is not split over `TENSOR` while they are computed.

    Args:
        model: gives the dtype of the computation.
        weights: whole model: tree of arrays or of their shapes.
        tensor: devices along `TENSOR`.
    """
    layers = [compute_bytes(model, layer) for layer in weights["trunk"]["layers"].values()]
    outside = compute_bytes(model, weights) - sum(layers)
    return outside + 2 * max(layers) // tensor


def _outside(model: ModelConfig, tree: Any) -> int:
    """Return the numbers of embedding and head, where a tree trains them."""
    ends = [tree["trunk"].get("embed_in"), tree.get("lm_head")]
    return sum(model.vocab_size * model.hidden_size for end in ends if end is not None)


def kv_cache_bytes(model: ModelConfig, rows: int, length: int) -> int:
    """Return the bytes of keys and values of every layer: 2 L B H S K numbers in the dtype of the computation.

    Args:
        model: gives L layers, H heads of keys, and their size K.
        rows: B.
        length: S, tokens of prompt and completion.
    """
    numbers = 2 * model.num_hidden_layers * rows * model.num_key_value_heads * length * model.head_dim
    return numbers * _itemsize(model)


def layer_bytes(model: ModelConfig, rows: int, length: int) -> int:
    """Estimate of what one layer computes on the way through: B T (10 D + 3 I) numbers, and attention weights.

    Of these there are B H T T, or a block, or none, by the form of attention.

    Args:
        model: gives D, I (intermediate size), H and the dtype of the computation.
        rows: B.
        length: T.
    """
    tokens = rows * length
    hidden, inner = family_of(model.model_type).kept_widths
    numbers = tokens * (hidden * model.hidden_size + inner * model.intermediate_size)
    scores = tokens * length * model.num_attention_heads
    scores = {"plain": scores, "blocks": min(scores, attention.BLOCK_SCORES)}.get(model.attention, 0)
    # Softmax is computed in float32 whatever the dtype; its result is cast.
    weight = FP32 if model.compute_dtype is None else FP32 + _itemsize(model)
    return numbers * _itemsize(model) + scores * weight


def _scored_bytes(model: ModelConfig, rows: int, length: int) -> int:
    """Estimate of what a layer takes where no gradient follows: all of it, or its widest part by fused attention."""
    if model.attention not in ("triton", "splash"):
        return layer_bytes(model, rows, length)
    inner = family_of(model.model_type).kept_inner * model.intermediate_size
    return rows * length * (2 * model.hidden_size + inner) * _itemsize(model)


def activation_bytes(model: ModelConfig, rows: int, length: int, tensor: int = 1) -> int:
    """Estimate of what the gradient keeps of a forward pass: `layer_bytes` of every layer.

    An accelerated model keeps of all layers but the last their inputs, queries, keys and values, and what goes into the
    activation: B T (D + H K + 2 G K + n I) numbers, n 2 where another layer gates it. With `gradient_checkpointing`
    it is their inputs alone. Inputs are on every device along `TENSOR`. Either computes one whole layer at a time.

    Args:
        model: what is learned.
        rows: B, of a micro-batch on one device.
        length: T, tokens of a row, padding included.
        tensor: devices along `TENSOR`.
    """
    layer, tokens = layer_bytes(model, rows, length) // tensor, rows * length
    if not (model.accelerated or model.gradient_checkpointing):
        return model.num_hidden_layers * layer
    kept = 0
    if not model.gradient_checkpointing:
        heads = model.num_attention_heads + 2 * model.num_key_value_heads
        kept = heads * model.head_dim + family_of(model.model_type).kept_inner * model.intermediate_size
        kept += (model.attention == "blocks") * model.num_attention_heads * model.head_dim
    return (model.num_hidden_layers - 1) * tokens * (model.hidden_size + kept // tensor) * _itemsize(model) + layer


def logits_bytes(model: ModelConfig, predictions: int) -> int:
    """Return the bytes of the logits of one block of predictions, and as many numbers beside them.

    Args:
        model: gives the vocabulary.
        predictions: completion tokens, padding included.
    """
    rows, columns = head_logprobs.default_block()
    return LOGITS_COPIES * FP32 * min(predictions, rows) * min(model.vocab_size, columns)


def _itemsize(model: ModelConfig) -> int:
    return FP32 if model.compute_dtype is None else jnp.dtype(model.compute_dtype).itemsize
