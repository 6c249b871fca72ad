"""How much of the devices' arithmetic a run makes use of: operations per second, and their share of the peak."""

from typing import Any

import jax

from jaxppo.config import TrainConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import flops, targets


class Throughput:
    """What the updates of a run achieve.

    Args:
        config: hyper-parameters.
        models: shapes of its models.
        parallel: devices.
    """

    def __init__(self, config: TrainConfig, models: flops.Models, parallel: DataParallel):
        self._config = config
        self._models = models
        peak = config.peak_tflops
        if peak is None:
            precision: Any = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
            peak = targets.peak_tflops(parallel.devices[0].device_kind, config.dtype, precision)
        self._peak_tflops = None if peak is None else peak * parallel.num_devices

    def metrics(self, shapes: flops.Shapes, seconds: float) -> dict[str, float]:
        """Return the metrics of one update.

        Args:
            shapes: of its batch.
            seconds: its wall time.
        """
        tflops = flops.of_update(self._config, self._models, shapes) / seconds / 1e12
        metrics = {
            "throughput/samples_per_s": shapes.completions / seconds,
            "throughput/tflops": tflops,
        }
        if self._peak_tflops is not None:
            metrics["throughput/mfu"] = tflops / self._peak_tflops
        return metrics
