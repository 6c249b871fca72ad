"""All measurements of an update in one place: what it achieves, compiles, waits for, holds, and spends its time on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxppo.config import TrainConfig
from jaxppo.nn import ModelConfig
from jaxppo.parallel import processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import flops, peak_memory, targets
from jaxppo.profiling.compilation import Compilations
from jaxppo.profiling.device_clock import FinishClock
from jaxppo.profiling.trace import Profile, check_updates
from jaxppo.run.console import Console
from jaxppo.types import Params


class UpdateMeter:
    """Measure the updates of a run.

    Args:
        config: hyper-parameters.
        model: architecture of the policy.
        value_model: that of a separate value model.
        params: {"policy"} and maybe {"value"}, arrays or their shapes.
        parallel: devices.

    Attributes:
        clock: notes when devices finish.

    Raises:
        ConfigError: the run has too few updates for the profile that was asked for.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: ModelConfig,
        value_model: ModelConfig,
        params: Params,
        parallel: DataParallel,
    ):
        check_updates(config.profile, config.num_updates)
        self.clock = FinishClock()
        self._config = config
        self._parallel = parallel
        self._models = flops.of_models(model, value_model, params)
        # Of all devices together, as an update's operations are those of all rows.
        peak = targets.peak_tflops(parallel.devices[0].device_kind, config.dtype)
        self._peak_tflops = None if peak is None else peak * parallel.num_devices

    def throughput(
        self, prompt_ids: Any, mask: Any, input_ids: Any, seconds: float
    ) -> dict[str, float]:
        """Return what an update achieved: completions and operations per second, and their share of the peak.

        Args:
            prompt_ids: [G, P] of its batch.
            mask: [B, C] of its completions.
            input_ids: [B, T] of its sequences.
            seconds: its wall time.
        """
        shapes = flops.shapes_of(prompt_ids, mask, input_ids)
        tflops = flops.of_update(self._config, self._models, shapes) / seconds / targets.TERA
        metrics = {
            "throughput/samples_per_s": shapes.completions / seconds,
            "throughput/tflops": tflops,
        }
        if self._peak_tflops is not None:
            metrics["throughput/mfu"] = tflops / self._peak_tflops
        return metrics

    @contextmanager
    def watching(self, start: int, console: Console, folder: Path) -> Iterator["WatchedUpdates"]:
        """Count compilations and write the profile that was asked for, while the block runs.

        Args:
            start: updates done before.
            console: for what is found.
            folder: run folder, for the profile.
        """
        # Only the first process writes into the run folder.
        profile = self._config.profile if processes.is_first() else 0
        with (
            Compilations(console.print) as compilations,
            Profile(profile, start, self._config.num_updates, folder, console) as trace,
        ):
            yield WatchedUpdates(compilations, trace, self._parallel.local_devices)


@dataclass(frozen=True)
class WatchedUpdates:
    """Measure one update after the other: `begin` it, `end` it."""

    compilations: Compilations
    trace: Profile
    devices: list[Any]

    def begin(self, number: int) -> None:
        """Update `number` (from 0) begins."""
        self.compilations.begin()
        self.trace.begin(number)

    def end(self, number: int, length: int) -> dict[str, float]:
        """Return the metrics of update `number`, which ends here.

        Args:
            number: from 0.
            length: tokens of its sequences, padding included.
        """
        self.trace.end(number)
        return self.compilations.end(number + 1, length) | peak_memory.measured(self.devices)
