"""The loop of the commands that learn from fixed rows, `sft` and `reward_model`: step, evaluate, log, save, stop."""

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxppo.config import LoopConfig
from jaxppo.errors import TrainingError
from jaxppo.parallel import processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.run import headline
from jaxppo.run.checkpoints import Checkpoints, is_whole
from jaxppo.run.console import Console, ProgressView
from jaxppo.run.jsonl import JsonlLog, read_metrics
from jaxppo.run.preemption import Preemption
from jaxppo.run.trackers import Trackers
from jaxppo.types import TrainState


class Steps(NamedTuple):
    """What is done in every step."""

    num_steps: int  # steps of the whole run
    batch: Callable[[int], tuple[Any, Any]]  # step, from 0 -> rows [1, M, B / M, ...] and their weights, on the host
    program: Callable[[TrainState, Any], Any]  # (state, what `batch` gives) -> (state, statistics)
    evaluate: Callable[[TrainState], dict[str, float]]  # what an evaluation adds to the record of a step
    title: str  # for the view
    header: str  # the run in a line, for the view
    resume: str  # the command that goes on after a stop


def run_steps(
    steps: Steps,
    loop: LoopConfig,
    folder: Path,
    state: TrainState,
    meta: dict[str, Any],
    parallel: DataParallel,
    console: Console,
    trackers: Trackers,
) -> tuple[TrainState, dict[str, Any]]:
    """All steps from the last checkpoint on.

    Args:
        steps: what to do.
        loop: when to evaluate and to save.
        folder: run folder; gets `metrics.jsonl` and `checkpoints/`.
        state: before the first step.
        meta: what a checkpoint says of the run.
        parallel: devices.
        console: view of the run.
        trackers: begin here, and get every record.

    Returns:
        The state after them, and `meta` with the last step and its metrics.

    Raises:
        Preempted: the run was asked to stop, and the last finished step is saved.
        Exception: whatever an evaluation or else has failed with; the last finished step is saved, as in `train`.
        TrainingError: a loss or gradient is not finite.
    """
    last, best = steps.num_steps, loop.best_metric
    checkpoints = Checkpoints(folder / "checkpoints", loop.save_total_limit, best, loop.greater_is_better)
    state = parallel.put(state)
    if processes.on_first(lambda: checkpoints.steps):
        state = checkpoints.resume(state, console.warn)
    start = saved = int(state.step)
    record: dict[str, Any] = {}
    trackers.begin(start)
    with (
        Preemption(steps.resume, processes.largest, console.stop_noted) as preemption,
        checkpoints,
        JsonlLog(folder / "metrics.jsonl", enabled=processes.is_first()) as log,
        console.progress(last, steps.title, start, header=steps.header, hint=headline.hint) as progress,
    ):
        log.truncate_after(start)
        recall(progress, folder, start)
        progress.doing("compiling")

        def tell(record: dict[str, Any]) -> None:
            log.append(record)
            trackers.log(int(record["step"]), record)

        for step in range(start, last):
            began, done = time.monotonic(), step
            try:
                after, stats = steps.program(state, parallel.put(steps.batch(step), 2))
                record = {"step": step + 1, **jax.device_get(stats), "time/step_s": time.monotonic() - began}
                state, done = after, step + 1
                if loop.evaluates_at(step + 1, last):
                    progress.doing("evaluation")
                    record |= steps.evaluate(state)
                loop.check_record(record, last)
            except Exception:
                if saved < done and is_whole(state):
                    if done > step:
                        warn_of_evaluation(console, done)
                        tell(record)
                    trackers.flush()
                    checkpoints.save(done, state, meta | {"step": done}, record)
                if processes.is_alone():
                    preemption.check()  # Ctrl-C also ends what a reward function has started, which then fails
                raise
            tell(record)
            if record["policy/nonfinite_steps"]:
                raise TrainingError(
                    f"step {step + 1}: expected a finite loss and gradient, got NaN or infinity; a lower "
                    "learning_rate or max_grad_norm, in a new run"
                )
            progress.update(step + 1, **headline.numbers(record))
            stop = preemption.requested  # asked once: a signal after it is for the next step, which then saves
            if loop.saves_at(step + 1, last) or stop:
                trackers.flush()
                checkpoints.save(step + 1, state, meta | {"step": step + 1}, record)
                saved = step + 1
            if stop:
                preemption.check()
    print_best(console, checkpoints, folder)
    record = processes.on_first(lambda: read_metrics(folder / "metrics.jsonl")[-1])
    return state, meta | {"step": last, "metrics": record}


def in_parts(batch: Any, parts: int = 1) -> Any:
    """The mini-batch of a step as the update program takes it: a tree of [B, ...] -> [1, parts, B / parts, ...]."""
    return jax.tree.map(lambda x: x.reshape(1, parts, -1, *x.shape[1:]), batch)


def recall(progress: ProgressView, folder: Path, start: int) -> None:
    """Tell a view the numbers of the updates before this process, as the log has them."""
    if start and processes.is_first():
        progress.recall(map(headline.numbers, read_metrics(folder / "metrics.jsonl")))


def warn_of_evaluation(console: Console, step: int) -> None:
    """Say that an update is saved whose evaluation has failed."""
    console.warn(f"update {step} is saved without its evaluation, which is not made up for")


def print_best(console: Console, checkpoints: Checkpoints, folder: Path) -> None:
    """Say which checkpoint is the best one, where one is chosen, and how to get its models."""
    step = checkpoints.best_step
    if step is not None:
        command = f"python -m jaxppo.export --run_dir {shlex.quote(str(folder))} --step {step}"
        console.print(f"best checkpoint: update {step}; {command} gives its models")
