"""All measurements of an update in one place: what it achieves, compiles, waits for, holds, and spends its time on."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxppo.config import TrainConfig
from jaxppo.nn import ModelConfig
from jaxppo.parallel import processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import flops, peak
from jaxppo.profiling.compilation import Compilations
from jaxppo.profiling.device_clock import FinishClock
from jaxppo.profiling.throughput import Throughput
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
        self._config, self._parallel = config, parallel
        self._throughput = Throughput(config, flops.of_models(model, value_model, params), parallel)
        self._clock = FinishClock()

    def finish_time(self, arrays: Any) -> Future[float]:
        """Note when arrays are ready, see `FinishClock.finish_time`."""
        return self._clock.finish_time(arrays)

    def throughput(
        self, prompt_ids: Any, mask: Any, input_ids: Any, seconds: float
    ) -> dict[str, float]:
        """Return what an update achieved, see `Throughput.metrics`.

        Args:
            prompt_ids: [G, P] of its batch.
            mask: [B, C] of its completions.
            input_ids: [B, T] of its sequences.
            seconds: its wall time.
        """
        return self._throughput.metrics(flops.shapes_of(prompt_ids, mask, input_ids), seconds)

    @contextmanager
    def watching(self, start: int, console: Console, folder: Path) -> Iterator["WatchedUpdates"]:
        """Count compilations and write the profile that was asked for, while the block runs.

        Args:
            start: updates done before.
            console: for what is found.
            folder: run folder, for the profile.
        """
        profile = self._config.profile if processes.is_first() else 0
        with (
            Compilations(console.print) as compilations,
            Profile(profile, start, self._config.num_updates, folder, console) as trace,
        ):
            yield WatchedUpdates(compilations, trace, self._parallel.local_devices, start, console)

    def close(self) -> None:
        """Wait for what is being watched."""
        self._clock.close()


class WatchedUpdates:
    """Measure one update after the other: `begin` it, `end` it."""

    def __init__(
        self,
        compilations: Compilations,
        trace: Profile,
        devices: list[Any],
        start: int,
        console: Console,
    ):
        self._compilations, self._trace = compilations, trace
        self._devices, self._start, self._console = devices, start, console

    def begin(self, number: int) -> None:
        """Update `number` (from 0) begins."""
        self._compilations.begin()
        self._trace.begin(number)

    def end(self, number: int, length: int) -> dict[str, float]:
        """Return the metrics of update `number`, which ends here.

        Args:
            number: from 0.
            length: tokens of its sequences, padding included.
        """
        self._trace.end(number)
        metrics = self._compilations.end(number + 1, length) | peak.measured(self._devices)
        if number == self._start and "memory/peak_mib" in metrics:
            self._console.print(
                peak.describe_measured({"step": number + 1, **metrics}, self._devices)
            )
        return metrics
