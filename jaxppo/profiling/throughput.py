"""How much of the devices' arithmetic a run makes use of: operations per second, and their share of the peak."""

import re
from typing import Any, NamedTuple

import jax

from jaxppo.config import TrainConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import flops


class Peak(NamedTuple):
    """Most operations per second of one device, dense matrix products, in TFLOP/s."""

    device_kind: str  # regular expression, found anywhere in JAX's `device_kind`
    bfloat16: float
    tensorfloat32: float  # float32 at a matmul precision below "highest"
    float32: float  # float32 at the matmul precision "highest", which the commands set


def _tpu(device_kind: str, bfloat16: float) -> Peak:
    """Return the peak of a TPU: products in bfloat16, six of them for one of float32 at "highest".

    Source of the passes: jax.lax.Precision and XLA's BF16_BF16_F32_X6.
    """
    return Peak(device_kind, bfloat16, bfloat16, bfloat16 / 6)


PEAKS = (
    # NVIDIA's data sheets of B200, H100, H200, A100, L4, V100 and T4, and the white paper of the Ada architecture (RTX
    # 4090, with float32 accumulation); where a sheet gives numbers with sparsity, half of them.
    Peak(r"\bB200\b", 2250.0, 1125.0, 75.0),
    Peak(r"\bH100 PCIe", 756.5, 378.0, 51.0),
    Peak(r"\bH[12]00 NVL", 835.5, 417.5, 60.0),
    Peak(r"\bH[12]00\b", 989.5, 494.5, 67.0),  # SXM
    Peak(r"\bA100\b", 312.0, 156.0, 19.5),
    Peak(r"\bL4$", 121.0, 60.0, 30.3),
    Peak(r"RTX 4090$", 165.2, 82.6, 82.6),
    # These have neither bfloat16 nor TF32 units: both are computed in float32.
    Peak(r"\bV100-PCIE", 14.0, 14.0, 14.0),
    Peak(r"\bV100-", 15.7, 15.7, 15.7),
    Peak(r"\bT4$", 8.1, 8.1, 8.1),
    # cloud.google.com/tpu/docs: v4, v5e, v5p, v6e; per chip, which is one device of JAX.
    _tpu(r"^TPU v4$", 275.0),
    _tpu(r"^TPU v5 ?(lite|e)", 197.0),
    _tpu(r"^TPU v5p?$", 459.0),
    _tpu(r"^TPU v6 ?(lite|e)", 918.0),
)
"""Known devices; the first that fits counts."""


def peak_tflops(device_kind: str, dtype: str, precision: str | None) -> float | None:
    """Return the peak operations per second of one device, in TFLOP/s; None where it is not known.

    Args:
        device_kind: as JAX names it.
        dtype: "float32" or "bfloat16", what models compute in.
        precision: JAX's default matmul precision.
    """
    if "MIG" in device_kind:  # a slice of a GPU, of which JAX does not say how large it is
        return None
    for peak in PEAKS:
        if re.search(peak.device_kind, device_kind):
            if dtype == "bfloat16":
                return peak.bfloat16
            return peak.float32 if precision in ("highest", "float32") else peak.tensorfloat32
    return None


class Throughput:
    """What the updates of a run achieve.

    Args:
        config: hyper-parameters.
        models: shapes of its models.
        parallel: devices.
    """

    def __init__(self, config: TrainConfig, models: flops.Models, parallel: DataParallel):
        self._config, self._models = config, models
        peak = config.peak_tflops
        if peak is None:
            precision: Any = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
            peak = peak_tflops(parallel.devices[0].device_kind, config.dtype, precision)
        self._peak_tflops = None if peak is None else peak * parallel.num_devices

    def metrics(self, shapes: flops.Shapes, seconds: float, extra_batches: int = 0) -> dict[str, float]:
        """Return the metrics of one update.

        Args:
            shapes: of its batch.
            seconds: its wall time.
            extra_batches: see `flops.of_update`.
        """
        tflops = flops.of_update(self._config, self._models, shapes, extra_batches) / seconds / 1e12
        found = {"throughput/samples_per_s": shapes.completions / seconds, "throughput/tflops": tflops}
        return found if self._peak_tflops is None else found | {"throughput/mfu": tflops / self._peak_tflops}
