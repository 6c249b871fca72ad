"""Steps on fixed rows, as `sft` and `reward_model` take them in the loop of a run."""

import time
from collections.abc import Callable
from typing import Any

import jax

from jaxppo.errors import TrainingError
from jaxppo.parallel.devices import DataParallel
from jaxppo.run.loop import StepOutput
from jaxppo.types import TrainState


def supervised_step(
    program: Callable[[TrainState, Any], Any], batch: Callable[[int], tuple[Any, Any]], parallel: DataParallel
) -> Callable[[TrainState, int], StepOutput]:
    """Return the step of a run that learns from fixed rows.

    Args:
        program: (state, what `batch` gives) -> (state, statistics), on all devices.
        batch: number of the step, from 0 -> rows [1, M, B / M, ...] and their weights, on the host.
        parallel: devices.
    """

    def step(state: TrainState, number: int) -> StepOutput:
        began = time.monotonic()
        state, stats = program(state, parallel.put(batch(number), 2))
        record = {"step": number + 1, **jax.device_get(stats), "time/step_s": time.monotonic() - began}
        return StepOutput(state, record)

    return step


def check_finite(output: StepOutput) -> None:
    """Raise a `TrainingError` after a step whose loss or gradient was not finite: the same rows would give it again."""
    if output.record["policy/nonfinite_steps"]:
        raise TrainingError(
            f"step {output.record['step']}: expected a finite loss and gradient, got NaN or infinity; a lower "
            "learning_rate or max_grad_norm, in a new run"
        )


def in_parts(batch: Any, parts: int = 1) -> Any:
    """Reshape the mini-batch of a step as the update program takes it: [B, ...] -> [1, parts, B / parts, ...]."""
    return jax.tree.map(lambda x: x.reshape(1, parts, -1, *x.shape[1:]), batch)
