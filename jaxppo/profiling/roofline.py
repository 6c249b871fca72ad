"""An estimate of how long a program takes at least on a target, from its counts and the published peaks."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from jaxppo.profiling.counts import Count, Sent
from jaxppo.profiling.targets import Target


class Roofline(NamedTuple):
    """Estimated seconds of a program if one thing alone took time: it takes at least the longest of them."""

    compute_s: float
    memory_s: float
    network_s: float

    @property
    def binds(self) -> str:
        """What takes longest: "compute", "memory" or "network"."""
        return ("compute", "memory", "network")[self.index(max(self))]


def estimate(count: Count, target: Target, sizes: Mapping[str, int], dtype: str) -> Roofline:
    """Estimate the time of a program.

    Args:
        count: what it does.
        target: with the peaks.
        sizes: of the axes of the mesh, in its order.
        dtype: what models compute in, "float32" or "bfloat16".
    """
    return Roofline(
        compute_s=count.flops / target.chip.peak_flops(dtype),
        memory_s=count.bytes / target.chip.bandwidth,
        network_s=_network_seconds(count.sent, target, sizes),
    )


def _network_seconds(sent: Sent, target: Target, sizes: Mapping[str, int]) -> float:
    """Estimate the time of collectives, one after the other, each as a ring.

    Of n devices, each sends (n - 1) / n of what is gathered, scattered or exchanged, and twice that of a sum, which is
    scattered and then gathered. Source of the volumes: Thakur et al. 2005, Optimization of Collective Communication
    Operations in MPICH.
    """
    names = list(sizes)
    total = 0.0
    for (kind, axes), size in sent.items():
        devices = math.prod(sizes[axis] for axis in axes)
        rounds = 2 if kind == "all-reduce" else 1
        share = rounds * (devices - 1) / devices
        # A host's devices are neighbours in the mesh, where a group along an outer
        # axis reaches over all that is within it. A ring is as fast as its slowest
        # link, so one step between hosts is enough for the network's speed.
        outermost = min(names.index(axis) for axis in axes)
        reach = math.prod(sizes[name] for name in names[outermost:])
        speed = target.chip.network if reach > target.per_host else target.chip.links
        total += share * size / speed
    return total
