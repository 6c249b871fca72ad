"""How much memory a run has taken, as its devices or the process say, and whether a budget exceeds what they have."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.profiling.memory import MIB, Budget, device_bytes

if sys.platform != "win32":
    import resource


def excess(budget: Budget, devices: Sequence[Any]) -> str | None:
    """Return a warning where the budget exceeds the smallest of these devices; None elsewhere, or if nothing says."""
    limit = min(
        (stats["bytes_limit"] for stats in _stats(devices) if "bytes_limit" in stats), default=None
    )
    if limit is None:
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
    peaks = [
        stats["peak_bytes_in_use"] for stats in _stats(devices) if "peak_bytes_in_use" in stats
    ]
    if peaks:
        return {"memory/peak_mib": max(peaks) / MIB}
    if sys.platform == "win32":
        return {}
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    return {"memory/peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB}


def describe_measured(record: Mapping[str, Any], devices: Sequence[Any]) -> str:
    """Describe the peak of a record in a line."""
    whose = (
        "each device"
        if any("peak_bytes_in_use" in stats for stats in _stats(devices))
        else "the whole process"
    )
    return f"memory of {whose} after update {record['step']}: {record['memory/peak_mib']:,.1f} MiB at the peak"


def _stats(devices: Sequence[Any]) -> list[dict[str, int]]:
    return [device.memory_stats() or {} for device in devices]
