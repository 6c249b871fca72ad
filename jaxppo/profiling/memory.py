"""How much memory a run takes on each device: a budget by arithmetic before it starts, and what was measured.

What is held from the first update to the last is exact. What a stage of an update adds is partly an estimate, and as
the stages come one after the other, the peak is what is held plus what the greediest stage adds. A learned
reward is not counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxppo.config import TrainConfig
from jaxppo.nn import ModelConfig
from jaxppo.parallel import partition, platform
from jaxppo.parallel.partition import FSDP, TENSOR
from jaxppo.profiling import sizes

MIB = 2**20

READING_SHARE = 0.1
"""Share of weights and cache that reading prompts may take in addition on an accelerator."""

CPU_ACTIVATIONS = 920_000
"""Numbers in the widest activation of a layer, for all rows that a CPU computes at once: 3.5 MiB in fp32.

Measured on two cores with 1 MiB of second-level cache each (docs/performance.md): W1 takes longer with twice as many
rows, W2 with twice and with half as many.
"""

WIDE_TOKENS = 768
"""Tokens that a CPU computes at once with a wide model: its weights are read, and a gradient as large as they are is
added to the others, once for all of them.

Measured on the same machine (docs/performance.md): W3 takes longer with 260, and as long with 1,040, in more memory.
"""

MOST_OF_DEVICE = 0.8
"""Share of a device's memory that a run takes by default: what XLA holds between is not counted."""
MOST_OF_MACHINE = 0.5
"""The same where the device is a machine, on which there are other programs, compilers and the host's own arrays."""


class RunShapes(NamedTuple):
    """What a run holds and learns: trees of arrays, or of their shapes.

    Attributes:
        models: architectures of what is learned: the policy, then a separate value model.
        resident: what stays on a device, by name.
        trained: {"policy", "value"}, trees of what has gradients, as far as it is on a device.
        weights: {"policy", "value"}, whole models.
        mesh: devices along the axes that split parameters, `FSDP` and `TENSOR`.
    """

    models: Sequence[ModelConfig]
    resident: Mapping[str, Any]
    trained: Mapping[str, Any]
    weights: Mapping[str, Any]
    mesh: Mapping[str, int]

    @property
    def tensor(self) -> int:
        """Devices along `TENSOR`."""
        return self.mesh[TENSOR]

    @property
    def is_split(self) -> bool:
        """Whether parameters are split over `FSDP`."""
        return self.mesh[FSDP] > 1

    @property
    def resident_bytes(self) -> dict[str, int]:
        """Bytes on each device from the first step to the last."""
        return {name: sizes.tree_bytes(tree) for name, tree in self.resident.items()}


def rows_at_once(
    models: Sequence[ModelConfig], length: int, room: int | None = None, tensor: int = 1
) -> int | None:
    """Return how many rows of `length` tokens a gradient through all of the models should take at once; None: all.

    On a CPU, so many that the widest activation of a layer stays in the cache: large temporaries cost time there,
    fresh memory pages above all; wide models take `WIDE_TOKENS` at once where that is more, and all models fewer where
    memory is scarce. Accelerators are best with all rows, as far as memory allows.

    Args:
        models: architectures.
        length: tokens of a row, padding included.
        room: bytes that a device has for what a gradient keeps, from `activation_budget`; None: not known.
        tensor: devices along `TENSOR`.
    """
    fitting = None
    if room is not None:
        fitting = max(
            1, room // sum(sizes.activation_bytes(model, 1, length, tensor) for model in models)
        )
    if platform.current().name != "cpu":
        return fitting
    widest = max(
        max(model.intermediate_size, model.num_attention_heads * length) for model in models
    )
    min_rows = WIDE_TOKENS // length if any(model.wide for model in models) else 1
    cached = max(1, min_rows, CPU_ACTIVATIONS // (length * widest))
    return cached if fitting is None else min(cached, fitting)


def scored_rows(models: Sequence[ModelConfig], length: int, room: int | None = None) -> int | None:
    """Return how many rows a device takes in a forward pass alone by default; None: all.

    On an accelerator, so many that a layer's results take no more than the `room` for a gradient's.

    Args:
        models: architectures.
        length: tokens of a row, padding included.
        room: see `rows_at_once`.
    """
    if platform.current().name == "cpu" or room is None:
        return rows_at_once(models, length, room)
    return max(1, room // max(sizes.layer_bytes(model, 1, length) for model in models))


def num_equal_parts(rows: int, limit: int | None) -> int:
    """Return the fewest equal parts of some rows that have at most so many each; None: any number."""
    return next(
        parts
        for parts in range(1, rows + 1)
        if rows % parts == 0 and rows // parts <= (limit or rows)
    )


def activation_budget(shapes: RunShapes) -> int | None:
    """Return the bytes that a device has for what a gradient keeps of its rows; None where its memory is not known."""
    limit = _most_bytes()
    if limit is None:
        return None
    copies, gradients = _learning(shapes)
    # More predictions than any batch has: as many logits as a block can hold.
    most_logits = sizes.logits_bytes(shapes.models[0], 2**31)
    # Two gradients: that of a micro-batch, and the sum of those before.
    return limit - sizes.tree_bytes(shapes.resident) - copies - 2 * gradients - most_logits


def device_bytes() -> int | None:
    """Return the memory of a device; None where it is not known, as of a CPU that pretends to be several devices."""
    name, size = platform.current()
    return None if name == "cpu" and jax.local_device_count() > 1 else size


def _most_bytes() -> int | None:
    """Return the bytes that a run takes of a device by default; None where its memory is not known."""
    size = device_bytes()
    if size is None:
        return None
    share = MOST_OF_MACHINE if platform.current().name == "cpu" else MOST_OF_DEVICE
    return int(share * size)


def sampled_rows(shapes: RunShapes, prompt: int, response: int, merged: bool) -> int | None:
    """Return how many rows a device decodes at once in an update, as far as memory allows; None: any number.

    Args:
        shapes: of the run.
        prompt: tokens of a prompt, padding included.
        response: most tokens of a completion.
        merged: adapters are merged into the weights.
    """
    limit = _most_bytes()
    if limit is None:
        return None
    policy = shapes.models[0]
    copies = _decoding_weights(shapes, merged)
    # Prompts are read before there is anything else, in parts on an accelerator.
    row_bytes = sum(_decoding(policy, 1, prompt + response, shapes.tensor).values())
    if platform.current().name == "cpu":
        row_bytes += sizes.reading_bytes(policy, 1, prompt)
    return max(1, (limit - sizes.tree_bytes(shapes.resident) - copies) // row_bytes)


def decodes_split(model: ModelConfig, weights: Any, mesh: Mapping[str, int]) -> bool:
    """Return whether sampling leaves the policy's weights in their shards, see `partition.decodes_split`."""
    num_bytes = sizes.compute_bytes(model, weights) // mesh[TENSOR]
    return mesh[FSDP] > 1 and partition.decodes_split(num_bytes)


def _decoding_weights(shapes: RunShapes, merged: bool) -> int:
    """Return the bytes of the policy's weights as they are decoded with, where they are not those that are held."""
    policy = shapes.models[0]
    weights = shapes.weights["policy"]
    if not shapes.is_split:
        return sizes.copy_bytes(policy, weights, merged=merged) // shapes.tensor
    num_bytes = sizes.compute_bytes(policy, weights) // shapes.tensor  # adapters are merged before
    if not decodes_split(policy, weights, shapes.mesh):
        return num_bytes
    # Layers are gathered to read prompts.
    gathered = sizes.gathered_bytes(policy, weights, shapes.tensor)
    return num_bytes // shapes.mesh[FSDP] + gathered


def _learning(shapes: RunShapes) -> tuple[int, int]:
    """Return the bytes of weights as they are computed with, and of one gradient of all that is trained."""
    gradients = sizes.tree_bytes(shapes.trained)
    if not shapes.is_split:
        return _cast_weights(shapes, shapes.weights), gradients
    gathered = _gathered(shapes)
    # Gradients of as many layers are whole, in float32, before each device keeps its part.
    whole_gradients = [
        size * sizes.FP32 // sizes.itemsize(model)
        for size, (model, tree) in zip(gathered, _trunks(shapes, shapes.trained), strict=True)
        if model.computation.accelerated and "embed_in" in tree["trunk"]
    ]
    return sum(gathered) + max(whole_gradients, default=0), gradients


def _cast_weights(shapes: RunShapes, weights: Any) -> int:
    """Return the bytes of those copies of weights that are computed with, beside the weights themselves."""
    policy = shapes.models[0]
    if policy.is_unrolled:
        return 0  # a layer's weights are cast when its turn comes
    return sizes.copy_bytes(policy, weights) // shapes.tensor


def _gathered(shapes: RunShapes) -> list[int]:
    """Return the bytes that a device gathers at once of each of the models."""
    return [
        sizes.gathered_bytes(model, tree, shapes.tensor)
        for model, tree in _trunks(shapes, shapes.weights)
    ]


def prompts_at_once(
    model: ModelConfig,
    weights: Any,
    prompts_shape: tuple[int, ...],
    uniforms_shape: tuple[int, ...],
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
    count, prompt = prompts_shape
    rows, response = uniforms_shape
    if platform.current().name == "cpu":
        return count
    cache = sizes.kv_cache_bytes(model, rows, prompt + response)
    resident = sizes.compute_bytes(model, weights) + cache
    limit = max(1, int(READING_SHARE * resident / sizes.reading_bytes(model, 1, prompt)))
    return count // num_equal_parts(count, limit)


EVALUATION_SHARE = 0.25
"""Share of a device's memory that the rows of an evaluation take at most.

The rest is for what training holds meanwhile, of which the evaluation knows nothing.
"""


MOST_WIDE_ROWS = 64
"""On a CPU, most rows of a wide model that are decoded at once; progress is shown after each batch. 128 rows of 135M
parameters took 76 s of processor time in batches of 64, and 73 s in one of 128 or in batches of 32."""


def decoded_rows(model: ModelConfig, prompt: int, response: int) -> int | None:
    """Return how many rows an evaluation decodes at once on each device; None: any number, as memory is not known.

    Args:
        model: what decodes.
        prompt: tokens of a prompt, padding included.
        response: most tokens of a completion.
    """
    name, memory = platform.current()
    limits = []
    if name == "cpu" and model.wide:
        limits.append(MOST_WIDE_ROWS)
    if memory is not None:
        row_bytes = sum(evaluation_bytes(model, 1, prompt, response).values())
        limits.append(max(1, int(EVALUATION_SHARE * memory) // row_bytes))
    return min(limits, default=None)


def evaluation_bytes(model: ModelConfig, rows: int, prompt: int, response: int) -> dict[str, int]:
    """Return the bytes that rows of an evaluation take beside the weights, by what takes them.

    All prompts are read at once, or on an accelerator in parts: see `prompts_at_once`.
    """
    return _decoding(model, rows, prompt + response) | {
        "prompts": sizes.reading_bytes(model, rows, prompt)
    }


def _decoding(model: ModelConfig, rows: int, length: int, tensor: int = 1) -> dict[str, int]:
    """Return the bytes of the cache of rows of `length` tokens, and of the logits of the next one."""
    parts = _dividing(model.num_key_value_heads, tensor)
    return {
        "KV cache": sizes.kv_cache_bytes(model, rows, length) // parts,
        "logits": sizes.LOGITS_COPIES * sizes.FP32 * rows * model.vocab_size,
    }


class Budget(NamedTuple):
    """Bytes on each device."""

    resident: dict[str, int]  # from the first update to the last
    stages: dict[str, dict[str, int]]  # what each stage of an update adds while it runs

    @property
    def peak(self) -> int:
        """Bytes at the same time, at most."""
        return sum(self.resident.values()) + max(
            (sum(stage.values()) for stage in self.stages.values()), default=0
        )

    def by_program(self) -> dict[str, int]:
        """Return what each program of an update adds while it runs: "generate", "score" and "update"."""
        # Of a run of `train`
        names = {"generate": "sampling", "score": "scoring", "update": "learning"}
        return {name: sum(self.stages[stage].values()) for name, stage in names.items()}

    def describe(self) -> str:
        """Describe the budget in words, in MiB."""
        resident = f"{_sum(self.resident)} throughout ({_parts(self.resident)})"
        stages = [
            f"{name} adds {_sum(stage)} ({_parts(stage)})" for name, stage in self.stages.items()
        ]
        parts = "; ".join([resident, *stages])
        return f"memory per device in MiB, estimated: {parts}; {self.peak / MIB:,.1f} at the peak"


def _sum(parts: Mapping[str, int]) -> str:
    return f"{sum(parts.values()) / MIB:,.1f}"


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size / MIB:,.1f}" for name, size in parts.items())


def budget(
    config: TrainConfig,
    shapes: RunShapes,
    prompt_length: int,
    row_shards: int,
    *,
    sampled: int,
    scored: int,
    parts: int,
    evaluated: tuple[int, int] | None = None,
) -> Budget:
    """Estimate the memory that a run will take.

    Args:
        config: hyper-parameters.
        shapes: of the run.
        prompt_length: tokens of a prompt, padding included.
        row_shards: parts that rows are split into.
        sampled: rows that a device samples at once.
        scored: rows that it scores at once.
        parts: micro-batches of a mini-batch.
        evaluated: rows that a device decodes at once in an evaluation, and tokens of their prompts; default: none.
    """
    models = shapes.models
    policy = models[0]
    response = config.sampling.response_length
    length = prompt_length + response
    micro_rows = config.mini_batch_size // row_shards // parts
    decoding = {"weights": _decoding_weights(shapes, config.peft.use_peft)}
    if shapes.is_split:
        scoring = max(_gathered(shapes))
    else:
        scoring = max(_cast_weights(shapes, tree) for tree in shapes.weights.values())
        if policy.is_unrolled and config.peft.use_peft:
            # Compilers for GPUs cast the layers under adapters all at once.
            layers = shapes.weights["policy"]["trunk"]["layers"]
            scoring = sizes.copy_bytes(policy, layers) // shapes.tensor
    activations = max(sizes.scored_bytes(model, scored, length) for model in models)
    stages = {
        "sampling": decoding | _decoding(policy, sampled, length, shapes.tensor),
        "scoring": {
            "weights": scoring,
            "activations": activations // shapes.tensor,
            "logits": sizes.logits_bytes(policy, scored * response),
        },
        "learning": _learning_stage(shapes, micro_rows, parts, length, response),
    }
    if evaluated is not None:
        stages["evaluation"] = decoding | evaluation_bytes(policy, *evaluated, response)
    return Budget(shapes.resident_bytes, stages)


def supervised_budget(
    shapes: RunShapes, micro_batch: tuple[int, int, int, int], evaluation: Mapping[str, int]
) -> Budget:
    """Estimate the memory that steps on fixed rows take.

    Args:
        shapes: of the run.
        micro_batch: rows on a device, micro-batches of a step, tokens of a row, predictions of a row.
        evaluation: bytes that an evaluation takes, by what takes them; empty: there is none.
    """
    stages = {"learning": _learning_stage(shapes, *micro_batch)}
    if evaluation:
        stages["evaluation"] = dict(evaluation)
    return Budget(shapes.resident_bytes, stages)


def _learning_stage(
    shapes: RunShapes, micro_rows: int, parts: int, length: int, predictions: int
) -> dict[str, int]:
    """Return the bytes that learning adds, by what takes them: `parts` micro-batches of so many rows and tokens."""
    models = shapes.models
    tensor = shapes.tensor
    copies, gradients = _learning(shapes)
    activations = sum(sizes.activation_bytes(model, micro_rows, length, tensor) for model in models)
    total = gradients if parts > 1 else 0  # of micro-batches before
    if platform.current().name != "cpu":
        if not shapes.is_split:
            # No compiler makes float32 of a gradient before
            # it is added to a sum or goes into the optimizer.
            gradients = gradients * sizes.itemsize(models[0]) // sizes.FP32
        if models[0].computation.accelerated:
            layers = [
                sizes.learned_layer_bytes(model, micro_rows, length) // tensor for model in models
            ]
            activations -= sum(layers) - max(layers)  # one model after the other
    return {
        "weights": copies,
        "gradients": total + gradients,
        "activations": activations,
        "logits": sizes.logits_bytes(models[0], micro_rows * predictions),
    }


def _dividing(heads: int, tensor: int) -> int:
    """Return into how many parts heads are split over `tensor` devices, of which several may have the same one."""
    if heads % tensor == 0:
        return tensor
    return heads if tensor % heads == 0 else 1


def _trunks(shapes: RunShapes, trees: Mapping[str, Any]) -> Iterator[tuple[ModelConfig, Any]]:
    """Return the arrays that belong to each of the models, heads on the trunk of another one left out."""
    return zip(shapes.models, [tree for tree in trees.values() if "trunk" in tree], strict=True)
