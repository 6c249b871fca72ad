"""Accelerators that programs can be compiled for without having one: what their makers publish about them.

A new card or slice is a row of a table here. All bandwidths are in one direction; a gigabyte is 10^9 bytes.
"""

import math
import re
from typing import Any, NamedTuple

from jaxppo.errors import ConfigError

GIB = 2**30
GB = 1e9
TERA = 1e12


class Chip(NamedTuple):
    """One device of JAX.

    Attributes:
        platform: "tpu" or "gpu".
        memory_bytes: all that programs of any framework may use.
        bfloat16: operations per second of matrix products.
        float32: the same at the matmul precision "highest", which the commands set.
        bandwidth: bytes per second between memory and processor.
        links: bytes per second that a device sends to the others of its host, or of its slice.
        network: bytes per second that a device sends to other hosts; a TPU's slice is one network.
        config: of a GPU, what XLA asks to know.
    """

    platform: str
    memory_bytes: int
    bfloat16: float
    float32: float
    bandwidth: float
    links: float
    network: float
    config: str = ""


class Target(NamedTuple):
    """A number of devices, together."""

    name: str
    chip: Chip
    topology: str  # as XLA names it
    devices: int
    per_host: int
    options: tuple[tuple[str, Any], ...] = ()  # of the topology, beside its name

    @property
    def platform(self) -> str:
        """Whose compiler it takes: "tpu" or "gpu"."""
        return self.chip.platform


def _tpu(memory_gib: float, tflops: float, bandwidth_gb: float, links_gb: float) -> Chip:
    """Return a TPU, with the memory that its compiler fills at most; a float32 product takes six of bfloat16."""
    bandwidths = bandwidth_gb * GB, links_gb * GB, links_gb * GB
    return Chip("tpu", int(memory_gib * GIB), tflops * TERA, tflops / 6 * TERA, *bandwidths)


class _Card(NamedTuple):
    """What XLA's GPU compiler asks to know, beside what all cards have in common."""

    name: str
    capability: tuple[int, int]
    cores: int
    units: int  # multiply-adds of float32 per core and cycle
    clock_ghz: float
    cache: int  # bytes, second level
    shared: int  # bytes of a core
    shared_of_block: int


def _gpu(
    card: _Card, memory: int, tflops: float, tflops_float32: float, bandwidth: float, links: float, network: float
) -> Chip:
    """Return a GPU; bandwidths in GB/s."""
    speeds = tflops * TERA, tflops_float32 * TERA, bandwidth * GB, links * GB, network * GB
    return Chip("gpu", memory, *speeds, config=_gpu_config(card, memory, bandwidth * GB))


def _gpu_config(card: _Card, memory: int, bandwidth: float) -> str:
    """Write the description of a card as XLA's GPU compiler reads it, a GpuTargetConfigProto."""
    major, minor = card.capability
    facts = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": card.shared,
        "shared_memory_per_block_optin": card.shared_of_block,
        "core_count": card.cores,
        "fpus_per_core": card.units,
        "clock_rate_ghz": card.clock_ghz,
        "l2_cache_size": card.cache,
        "memory_bandwidth": int(bandwidth),
        "device_memory_size": memory,
    }
    fields = " ".join(f"{name}: {value}" for name, value in facts.items())
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    library = "dnn_version_info { major: 9 minor: 10 patch: 0 }"
    device = f"gpu_device_info {{ {fields} {capability} }}"
    return f'{device} platform_name: "CUDA" {library} device_description_str: "{card.name}"'


_A100 = _Card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 41_943_040, 167_936, 166_912)
_H100 = _Card("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 52_428_800, 233_472, 232_448)
_H200 = _H100._replace(name="NVIDIA H200 141GB HBM3e")
_B200 = _Card("NVIDIA B200", (10, 0), 148, 128, 1.965, 132_644_864, 233_472, 232_448)

CHIPS = {
    # https://cloud.google.com/tpu/docs/v5e, /v5p, /v6e: peak, HBM bandwidth, and half of the bidirectional inter-chip
    # bandwidth per chip. Memory: what libtpu says is there when a program does not fit.
    "v5e": _tpu(15.75, 197, 819, 200),
    "v5p": _tpu(95.74, 459, 2765, 600),
    "v6e": _tpu(31.25, 918, 1640, 400),
    # NVIDIA's data sheets and architecture white papers of A100, H100, H200 and B200 (SXM): dense products, NVLink in
    # one direction; the network cards per GPU of its DGX systems. What a driver reports as memory, and the sizes that
    # a kernel is made for, are those of XLA's descriptions of the cards (xla/backends/gpu/target_config/specs).
    "a100": _gpu(_A100, 85_100_068_864, 312, 19.5, 2039, 300, 25),
    "h100": _gpu(_H100, 84_942_979_072, 989.5, 67, 3352, 450, 50),
    "h200": _gpu(_H200, 151_397_597_184, 989.5, 67, 4800, 450, 50),
    "b200": _gpu(_B200, 191_514_411_008, 2250, 75, 7672, 900, 50),
}
"""Devices by the name that a target has for them."""

_SLICES = {
    "tpu-v5e-1": ("v5e", "1x1"),
    "tpu-v5e-4": ("v5e", "2x2"),
    "tpu-v5e-8": ("v5e", "2x4"),
    "tpu-v5e-16": ("v5e", "4x4"),
    "tpu-v5e-64": ("v5e", "8x8"),
    "tpu-v5p-8": ("v5p", "2x2x1"),  # named by its cores: four chips, each one device
    "tpu-v6e-8": ("v6e", "2x4"),
    "gpu-a100x1": ("a100", "1x1"),
    "gpu-h100x1": ("h100", "1x1"),
    "gpu-h100x8": ("h100", "1x8"),
    "gpu-h200x1": ("h200", "1x1"),
    "gpu-b200x8": ("b200", "1x8"),
}

NAMES = tuple(_SLICES)
"""Targets with a name of their own."""

_TOPOLOGY = re.compile(r"(tpu|gpu):(\w+):([1-9]\d*(?:x[1-9]\d*){1,2})")


def find(name: str) -> Target:
    """Return the target of a name, or of a topology like `tpu:v5e:4x8` (chips) or `gpu:h100:2x8` (hosts x devices).

    Raises:
        ConfigError: there is no such target.
    """
    if name in _SLICES:
        return _target(name, *_SLICES[name])
    match = _TOPOLOGY.fullmatch(name)
    if match is None or match[2] not in CHIPS or CHIPS[match[2]].platform != match[1]:
        chips = ", ".join(CHIPS)
        expected = f"one of {', '.join(NAMES)}, or tpu:CHIP:TOPOLOGY or gpu:CHIP:HOSTSxDEVICES of the chips {chips}"
        raise ConfigError(f"target: expected {expected}, got {name!r}")
    return _target(name, match[2], match[3])


def _target(name: str, chip: str, topology: str) -> Target:
    sizes = [int(size) for size in topology.split("x")]
    devices = math.prod(sizes)
    if CHIPS[chip].platform == "gpu":
        if len(sizes) != 2:
            raise ConfigError(f"target: expected gpu:{chip}:HOSTSxDEVICES, got {name!r}")
        return Target(name, CHIPS[chip], f"1x{topology}", devices, sizes[1])
    # libtpu takes a host to have 2 x 2 chips, and a smaller slice to be a mistake unless it is told.
    alone = (("chips_per_host_bounds", (1, 1, 1)),) if devices == 1 else ()
    return Target(name, CHIPS[chip], f"{chip}:{topology}", devices, min(4, devices), alone)
