"""How much memory a run has taken, as its devices or the process say, and whether a budget exceeds what they have."""

import sys
from collections.abc import Sequence
from typing import Any

from jaxppo.profiling.memory import MIB, Budget, device_bytes

if sys.platform != "win32":
    import resource


def excess(budget: Budget) -> str | None:
    """Return a warning where the budget exceeds what a device has; None elsewhere, or if that is not known."""
    limit = device_bytes()
    if limit is None or budget.peak <= limit:
        return None
    return (
        f"memory: expected at most the {limit / MIB:,.1f} MiB that a device allows, got an estimate of "
        f"{budget.peak / MIB:,.1f}; more gradient_accumulation_steps, a smaller local_rollout_forward_batch_size or "
        "batch_size, dtype bfloat16, use_peft or, with it or for long texts, gradient_checkpointing take less"
    )


def measured(devices: Sequence[Any]) -> dict[str, float]:
    """Return the metric of the peak so far.

    On the fullest of these devices or, where they do not say, in the whole process; {} on Windows, where neither is
    known.
    """
    all_stats = [device.memory_stats() or {} for device in devices]
    peaks = [stats["peak_bytes_in_use"] for stats in all_stats if "peak_bytes_in_use" in stats]
    if peaks:
        return {"memory/peak_mib": max(peaks) / MIB}
    if sys.platform == "win32":
        return {}
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    return {"memory/peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB}
