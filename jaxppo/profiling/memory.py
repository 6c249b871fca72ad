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


def scored_rows(
    config: TrainConfig, models: Sequence[ModelConfig], length: int, room: int | None = None
) -> int | None:
    """Return how many rows a device takes per scoring pass, as configured or by default; None: all.

    On an accelerator, so many that a layer's results take no more than the `room` for a gradient's.
    """
    configured = config.rl.local_rollout_forward_batch_size
    if configured is not None:
        return configured
    if platform.current().name == "cpu" or room is None:
        return rows_at_once(models, length, room)
    return max(1, room // max(sizes.layer_bytes(model, 1, length) for model in models))


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
    return equal_parts(
        config.mini_batch_size // row_shards, rows_at_once(models, length, room, tensor)
    )


def equal_parts(rows: int, limit: int | None) -> int:
    """Return the fewest equal parts of some rows that have at most so many each; None: any number."""
    return next(
        parts
        for parts in range(1, rows + 1)
        if rows % parts == 0 and rows // parts <= (limit or rows)
    )


def activation_budget(
    models: Sequence[ModelConfig],
    resident: Any,
    trained: Mapping[str, Any],
    weights: Mapping[str, Any],
    mesh: Mapping[str, int],
) -> int | None:
    """Return the bytes that a device has for what a gradient keeps of its rows; None where its memory is not known.

    Args:
        models: see `budget`.
        resident: what stays on a device, tree of arrays or of their shapes.
        trained: see `budget`.
        weights: see `budget`.
        mesh: see `budget`.
    """
    limit = _most_bytes()
    if limit is None:
        return None
    copies, gradients = _learning(models, trained, weights, mesh)
    most_logits = sizes.logits_bytes(models[0], 2**31)
    return limit - sizes.tree_bytes(resident) - copies - 2 * gradients - most_logits


def device_bytes() -> int | None:
    """Return the memory of a device; None where it is not known, as of a CPU that pretends to be several devices."""
    name, size = platform.current()
    return None if name == "cpu" and jax.local_device_count() > 1 else size


def _most_bytes() -> int | None:
    """Return the bytes that a run takes of a device by default; None where its memory is not known."""
    size = device_bytes()
    if size is None:
        return None
    return int((MOST_OF_MACHINE if platform.current().name == "cpu" else MOST_OF_DEVICE) * size)


def sampled_rows(
    model: ModelConfig,
    resident: Any,
    weights: Any,
    prompt: int,
    response: int,
    mesh: Mapping[str, int],
    merged: bool,
) -> int | None:
    """Return how many rows a device decodes at once in an update, as far as memory allows; None: any number.

    Args:
        model: the policy.
        resident: see `activation_budget`.
        weights: of the policy: tree of arrays or of their shapes.
        prompt: tokens of a prompt, padding included.
        response: most tokens of a completion.
        mesh: see `budget`.
        merged: adapters are merged into the weights.
    """
    limit = _most_bytes()
    if limit is None:
        return None
    tensor = mesh.get(TENSOR, 1)
    copies = _decoding_weights(model, weights, mesh, merged=merged)
    # Prompts are read before there is anything else, in parts on an accelerator.
    of_row = sum(_decoding(model, 1, prompt + response, tensor).values())
    if platform.current().name == "cpu":
        of_row += sizes.reading_bytes(model, 1, prompt)
    return max(1, (limit - sizes.tree_bytes(resident) - copies) // of_row)


def decodes_split(model: ModelConfig, weights: Any, mesh: Mapping[str, int]) -> bool:
    """Return whether sampling leaves the policy's weights in their shards, see `partition.decodes_split`."""
    num_bytes = sizes.compute_bytes(model, weights) // mesh.get(TENSOR, 1)
    return mesh.get(FSDP, 1) > 1 and partition.decodes_split(num_bytes)


def _decoding_weights(
    model: ModelConfig, weights: Any, mesh: Mapping[str, int], *, merged: bool
) -> int:
    """Return the bytes of the policy's weights as they are decoded with, where they are not those that are held."""
    tensor = mesh.get(TENSOR, 1)
    if mesh.get(FSDP, 1) > 1:
        num_bytes = sizes.compute_bytes(model, weights) // tensor  # adapters are merged before
        if not decodes_split(model, weights, mesh):
            return num_bytes
        # layers, to read prompts
        return num_bytes // mesh[FSDP] + sizes.gathered_bytes(model, weights, tensor)
    return sizes.copy_bytes(model, weights, merged=merged) // tensor


def _learning(
    models: Sequence[ModelConfig],
    trained: Mapping[str, Any],
    weights: Mapping[str, Any],
    mesh: Mapping[str, int],
) -> tuple[int, int]:
    """Return the bytes of weights as they are computed with, and of one gradient of all that is trained."""
    tensor, split = mesh.get(TENSOR, 1), mesh.get(FSDP, 1) > 1
    if split:
        gathered = [
            sizes.gathered_bytes(model, tree, tensor) for model, tree in _trunks(models, weights)
        ]
        # Gradients of as many layers are whole, in float32, before each device keeps its part of
        # them.
        whole_gradients = [
            size * sizes.FP32 // sizes.itemsize(model)
            for size, (model, tree) in zip(gathered, _trunks(models, trained), strict=True)
            if model.accelerated and "embed_in" in tree["trunk"]
        ]
        return sum(gathered) + max(whole_gradients, default=0), sizes.tree_bytes(trained)
    return sizes.copy_bytes(models[0], weights) // tensor, sizes.tree_bytes(trained)


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
    (count, prompt), (rows, response) = prompts_shape, uniforms_shape
    if platform.current().name == "cpu":
        return count
    resident = sizes.compute_bytes(model, weights) + sizes.kv_cache_bytes(
        model, rows, prompt + response
    )
    limit = max(1, int(READING_SHARE * resident / sizes.reading_bytes(model, 1, prompt)))
    return next(part for part in range(min(limit, count), 0, -1) if count % part == 0)


EVALUATION_SHARE = 0.25
"""Share of a device's memory that the rows of an evaluation take at most.

The rest is for what training holds meanwhile, of which the evaluation knows nothing.
"""


def decoded_rows(model: ModelConfig, prompt: int, response: int) -> int | None:
    """Return how many rows an evaluation decodes at once on each device; None: memory is not known, any number.

    Args:
        model: what decodes.
        prompt: tokens of a prompt, padding included.
        response: most tokens of a completion.
    """
    memory = platform.current().memory_bytes
    if memory is None:
        return None
    return max(
        1,
        int(EVALUATION_SHARE * memory)
        // sum(evaluation_bytes(model, 1, prompt, response).values()),
    )


def evaluation_bytes(model: ModelConfig, rows: int, prompt: int, response: int) -> dict[str, int]:
    """Return the bytes that rows of an evaluation take beside the weights, by what takes them.

    All prompts are read at once, or on an accelerator in parts: see `prompts_at_once`.
    """
    return _decoding(model, rows, prompt + response) | {
        "prompts": sizes.reading_bytes(model, rows, prompt)
    }


def _decoding(model: ModelConfig, rows: int, length: int, tensor: int = 1) -> dict[str, int]:
    """Return the bytes of the cache of rows of `length` tokens, and of the logits of the next one."""
    cache = sizes.kv_cache_bytes(model, rows, length) // _dividing(
        model.num_key_value_heads, tensor
    )
    return {"KV cache": cache, "logits": sizes.LOGITS_COPIES * sizes.FP32 * rows * model.vocab_size}


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
    models: Sequence[ModelConfig],
    resident: Mapping[str, Any],
    trained: Mapping[str, Any],
    weights: Mapping[str, Any],
    prompt_length: int,
    row_shards: int,
    mesh: Mapping[str, int] | None = None,
    room: int | None = None,
    evaluated: tuple[int, int] | None = None,
    sampled: int | None = None,
) -> Budget:
    """Estimate the memory that a run will take.

    Args:
        config: hyper-parameters.
        models: architectures of what is learned: the policy, then a separate value model.
        resident: what stays on a device, by name: trees of arrays or of their shapes.
        trained: {"policy", "value"}, trees of what has gradients, as far as it is on a device.
        weights: {"policy", "value"}, whole models: trees of arrays or of their shapes.
        prompt_length: tokens of a prompt, padding included.
        row_shards: parts that rows are split into.
        mesh: devices along the axes that split parameters, `FSDP` and `TENSOR`; default: none does.
        room: see `rows_at_once`.
        evaluated: rows that a device decodes at once in an evaluation, and tokens of their prompts; default: none.
        sampled: rows that a device samples at once, from `sampled_rows`; default: all.
    """
    policy, mesh = models[0], mesh or {}
    response = config.sampling.response_length
    length = prompt_length + response
    tensor, split = mesh.get(TENSOR, 1), mesh.get(FSDP, 1) > 1
    rows, parts = (
        config.batch_size // row_shards,
        micro_batches(config, models, length, row_shards, room, tensor),
    )
    micro_rows = config.mini_batch_size // row_shards // parts
    at_once = min(rows, scored_rows(config, models, length, room) or rows)
    decoding = _decoding_weights(policy, weights["policy"], mesh, merged=config.peft.use_peft)
    if split:
        scoring = max(
            sizes.gathered_bytes(model, tree, tensor) for model, tree in _trunks(models, weights)
        )
    else:
        scoring = max(sizes.copy_bytes(policy, tree) for tree in weights.values()) // tensor
    learning = _learning_stage(models, trained, weights, mesh, micro_rows, parts, length, response)
    evaluation = {}
    if evaluated is not None:
        evaluation = {
            "evaluation": {"weights": decoding} | evaluation_bytes(policy, *evaluated, response)
        }
    return Budget(
        resident={name: sizes.tree_bytes(tree) for name, tree in resident.items()},
        stages={
            "sampling": {"weights": decoding}
            | _decoding(policy, min(rows, sampled or rows), length, tensor),
            "scoring": {
                "weights": scoring,
                "activations": max(sizes.scored_bytes(model, at_once, length) for model in models)
                // tensor,
                "logits": sizes.logits_bytes(policy, at_once * response),
            },
            "learning": learning,
            **evaluation,
        },
    )


def supervised_budget(
    model: ModelConfig,
    resident: Mapping[str, Any],
    trained: Any,
    weights: Any,
    shape: tuple[int, int, int, int],
    mesh: Mapping[str, int],
    evaluation: Mapping[str, int],
) -> Budget:
    """Estimate the memory that steps on fixed rows take.

    Args:
        model: what is learned.
        resident: see `budget`.
        trained: tree of what has gradients, as far as it is on a device.
        weights: of the whole model: tree of arrays or of their shapes.
        shape: rows of a micro-batch on a device, micro-batches of a step, tokens of a row, predictions of a row.
        mesh: see `budget`.
        evaluation: bytes that an evaluation takes, by what takes them; empty: there is none.
    """
    learning = _learning_stage([model], {"policy": trained}, {"policy": weights}, mesh, *shape)
    return Budget(
        resident={name: sizes.tree_bytes(tree) for name, tree in resident.items()},
        stages={"learning": learning} | ({"evaluation": dict(evaluation)} if evaluation else {}),
    )


def _learning_stage(
    models: Sequence[ModelConfig],
    trained: Mapping[str, Any],
    weights: Mapping[str, Any],
    mesh: Mapping[str, int],
    micro_rows: int,
    parts: int,
    length: int,
    predictions: int,
) -> dict[str, int]:
    """Return the bytes that learning adds, by what takes them: `parts` micro-batches of so many rows and tokens."""
    tensor, split = mesh.get(TENSOR, 1), mesh.get(FSDP, 1) > 1
    copies, gradients = _learning(models, trained, weights, mesh)
    activations = sum(sizes.activation_bytes(model, micro_rows, length, tensor) for model in models)
    layers = [sizes.layer_bytes(model, micro_rows, length) // tensor for model in models]
    total = gradients if parts > 1 else 0  # of micro-batches before
    if platform.current().name != "cpu" and not split:
        # No compiler makes float32 of a gradient before it is added to a sum or goes into the
        # optimizer.
        gradients = gradients * sizes.itemsize(models[0]) // sizes.FP32
    if platform.current().name != "cpu" and models[0].accelerated:
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


def _trunks(
    models: Sequence[ModelConfig], trees: Mapping[str, Any]
) -> Iterator[tuple[ModelConfig, Any]]:
    """Return the arrays that belong to each of the models, heads on the trunk of another one left out."""
    return zip(models, [tree for tree in trees.values() if "trunk" in tree], strict=True)
