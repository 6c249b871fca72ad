"""An estimate of how long a program takes at least on a target, from its counts and the published peaks."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from jaxppo.profiling.aot import Compiled
from jaxppo.profiling.collectives import Sent
from jaxppo.profiling.targets import Target


class Roofline(NamedTuple):
    """Estimated seconds of a program if one thing alone took time."""

    compute_s: float
    memory_s: float
    network_s: float

    @property
    def seconds(self) -> float:
        """At least so many."""
        return max(self)

    @property
    def binds(self) -> str:
        """What takes longest: "compute", "memory" or "network"."""
        return ("compute", "memory", "network")[self.index(max(self))]


def of(compiled: Compiled, target: Target, sizes: Mapping[str, int], dtype: str) -> Roofline:
    """Estimate the time of a program.

    Args:
        compiled: its counts.
        target: with the peaks.
        sizes: of the axes of the mesh, in its order.
        dtype: what models compute in, "float32" or "bfloat16".
    """
    chip = target.chip
    peak = chip.peak_flops(dtype)
    count = compiled.counted
    return Roofline(
        count.flops / peak,
        count.bytes / chip.bandwidth,
        network_seconds(compiled.sent, target, sizes),
    )


def network_seconds(sent: Sent, target: Target, sizes: Mapping[str, int]) -> float:
    """Estimate the time of collectives, one after the other, each as a ring.

    Of n devices, each sends (n - 1) / n of what is gathered, scattered or exchanged, and twice that of a sum, which is
    scattered and then gathered. Source of the volumes: Thakur et al. 2005, Optimization of Collective Communication
    Operations in MPICH.

    Args:
        sent: by kind and axes.
        target: with its bandwidths.
        sizes: of the axes of the mesh, in its order.
    """
    chip = target.chip
    total = 0.0
    for (kind, axes), size in sent.items():
        devices = math.prod(sizes[axis] for axis in axes)
        share = 1.0
        if kind != "collective-permute":
            share = (devices - 1) / devices
        if kind == "all-reduce":
            share *= 2
        # A ring is as fast as its slowest link, so one step between hosts is enough for the
        # network's speed.
        bandwidth = chip.network if _leaves_host(axes, target.per_host, sizes) else chip.links
        total += share * size / bandwidth
    return total


def _leaves_host(axes: tuple[str, ...], per_host: int, sizes: Mapping[str, int]) -> bool:
    """Return whether devices along these axes are on several hosts: those of a host are adjacent in the mesh."""
    names = list(sizes)
    outermost = min(names.index(axis) for axis in axes)
    # The devices of a host follow one another along the last axes; a group along an outer axis
    # spans all within it.
    return math.prod(list(sizes.values())[outermost:]) > per_host
