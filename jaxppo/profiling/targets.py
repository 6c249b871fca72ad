"""What makers publish about their accelerators, and those that programs can be compiled for without having one.

A new card or slice is a row of a table here. All bandwidths are in one direction; a gigabyte is 10^9 bytes.
"""

import math
import re
from typing import NamedTuple

from jaxppo.errors import ConfigError

GIB = 2**30
GB = 1e9
TERA = 1e12


class Peak(NamedTuple):
    """Most operations per second of one device, dense matrix products, in TFLOP/s."""

    device_kind: str  # regular expression, found anywhere in JAX's `device_kind`
    bfloat16: float
    float32: float  # at the matmul precision "highest", which the commands set


PEAKS = (
    # NVIDIA's data sheets of B200, H100, H200, A100, L4, V100 and T4, and
    # the white paper of the Ada architecture (RTX 4090, with float32
    # accumulation); where a sheet gives numbers with sparsity, half of them.
    Peak(r"\bB200\b", 2250.0, 75.0),
    Peak(r"\bH100 PCIe", 756.5, 51.0),
    Peak(r"\bH[12]00 NVL", 835.5, 60.0),
    Peak(r"\bH[12]00\b", 989.5, 67.0),  # SXM
    Peak(r"\bA100\b", 312.0, 19.5),
    Peak(r"\bL4$", 121.0, 30.3),
    Peak(r"RTX 4090$", 165.2, 82.6),
    # These have no units for bfloat16, which is computed in float32.
    Peak(r"\bV100-PCIE", 14.0, 14.0),
    Peak(r"\bV100-", 15.7, 15.7),
    Peak(r"\bT4$", 8.1, 8.1),
    # cloud.google.com/tpu/docs: v4, v5e, v5p, v6e; per chip, which is one device of JAX. A product in
    # float32 is six in bfloat16 (XLA's BF16_BF16_F32_X6, see jax.lax.Precision).
    Peak(r"^TPU v4$", 275.0, 275.0 / 6),
    Peak(r"^TPU v5 ?(lite|e)", 197.0, 197.0 / 6),
    Peak(r"^TPU v5p?$", 459.0, 459.0 / 6),
    Peak(r"^TPU v6 ?(lite|e)", 918.0, 918.0 / 6),
)
"""Known devices; the first that fits counts."""


def peak_tflops(device_kind: str, dtype: str) -> float | None:
    """Return the peak operations per second of one device, in TFLOP/s; None where it is not known.

    Args:
        device_kind: as JAX names it.
        dtype: "float32" or "bfloat16", what models compute in.
    """
    if "MIG" in device_kind:  # a slice of a GPU, of which JAX does not say how large it is
        return None
    for peak in PEAKS:
        if re.search(peak.device_kind, device_kind):
            return peak.bfloat16 if dtype == "bfloat16" else peak.float32
    return None


class Chip(NamedTuple):
    """One device of JAX.

    Attributes:
        platform: "tpu" or "gpu".
        device_kind: as JAX names it.
        memory_bytes: all that programs of any framework may use.
        bandwidth: bytes per second between memory and processor.
        links: bytes per second that a device sends to the others of its host, or of its slice.
        network: bytes per second that a device sends to other hosts; a TPU's slice is one network.
        config: of a GPU, what XLA asks to know.
    """

    platform: str
    device_kind: str
    memory_bytes: int
    bandwidth: float
    links: float
    network: float
    config: str = ""

    def peak_flops(self, dtype: str) -> float:
        """Return the operations per second of matrix products, in float32 at the precision that the commands set."""
        peak = peak_tflops(self.device_kind, dtype)
        assert peak is not None, self.device_kind
        return peak * TERA


class Target(NamedTuple):
    """A number of devices, together."""

    name: str
    chip: Chip
    topology: str  # as XLA names it
    devices: int
    per_host: int

    @property
    def platform(self) -> str:
        """Whose compiler it takes: "tpu" or "gpu"."""
        return self.chip.platform


def _tpu(device_kind: str, memory_gib: float, bandwidth_gb: float, links_gb: float) -> Chip:
    """Return a TPU, with the memory that its compiler fills at most."""
    return Chip(
        "tpu", device_kind, int(memory_gib * GIB), bandwidth_gb * GB, links_gb * GB, links_gb * GB
    )


_EVERY_CARD = """
threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
registers_per_core_limit: 65536 registers_per_block_limit: 65536
block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
shared_memory_per_block: 49152
"""
"""What all cards have in common, in the words of XLA's GpuTargetConfigProto."""


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


def _gpu(card: _Card, memory: int, bandwidth: float, links: float, network: float) -> Chip:
    """Return a GPU; bandwidths in GB/s."""
    facts = {
        "shared_memory_per_core": card.shared,
        "shared_memory_per_block_optin": card.shared_of_block,
        "core_count": card.cores,
        "fpus_per_core": card.units,
        "clock_rate_ghz": card.clock_ghz,
        "l2_cache_size": card.cache,
        "memory_bandwidth": int(bandwidth * GB),
        "device_memory_size": memory,
    }
    # As XLA's GPU compiler reads it, a GpuTargetConfigProto.
    fields = " ".join(f"{name}: {value}" for name, value in facts.items())
    capability = "cuda_compute_capability {{ major: {} minor: {} }}".format(*card.capability)
    library = "dnn_version_info { major: 9 minor: 10 patch: 0 }"
    device = f"gpu_device_info {{ {_EVERY_CARD} {fields} {capability} }}"
    config = f'{device} platform_name: "CUDA" {library} device_description_str: "{card.name}"'
    return Chip("gpu", card.name, memory, bandwidth * GB, links * GB, network * GB, config)


_A100 = _Card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 41_943_040, 167_936, 166_912)
_H100 = _Card("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 52_428_800, 233_472, 232_448)
_H200 = _H100._replace(name="NVIDIA H200")
_B200 = _Card("NVIDIA B200", (10, 0), 148, 128, 1.965, 132_644_864, 233_472, 232_448)

CHIPS = {
    # https://cloud.google.com/tpu/docs/v5e, /v5p, /v6e: HBM bandwidth,
    # and half of the bidirectional inter-chip bandwidth per chip.
    # Memory: what libtpu says is there when a program does not fit.
    "v5e": _tpu("TPU v5 lite", 15.75, 819, 200),
    "v5p": _tpu("TPU v5", 95.74, 2765, 600),
    "v6e": _tpu("TPU v6 lite", 31.25, 1640, 400),
    # NVIDIA's data sheets and architecture white papers of A100, H100, H200 and B200 (SXM):
    # bandwidths, NVLink's in one direction; the network cards per GPU of its DGX systems. What a
    # driver reports as memory, and the sizes that a kernel is made for, are those of XLA's
    # descriptions of the cards (xla/backends/gpu/target_config/specs).
    "a100": _gpu(_A100, 85_100_068_864, 2039, 300, 25),
    "h100": _gpu(_H100, 84_942_979_072, 3352, 450, 50),
    "h200": _gpu(_H200, 151_397_597_184, 4800, 450, 50),
    "b200": _gpu(_B200, 191_514_411_008, 7672, 900, 50),
}
"""Devices by the name that a target has for them."""

_SLICES = {
    "tpu-v5e-1": "tpu:v5e:1x1",
    "tpu-v5e-4": "tpu:v5e:2x2",
    "tpu-v5e-8": "tpu:v5e:2x4",
    "tpu-v5e-16": "tpu:v5e:4x4",
    "tpu-v5e-64": "tpu:v5e:8x8",
    "tpu-v5p-8": "tpu:v5p:2x2x1",  # named by its cores: four chips, each one device
    "tpu-v6e-8": "tpu:v6e:2x4",
    "gpu-a100x1": "gpu:a100:1x1",
    "gpu-h100x1": "gpu:h100:1x1",
    "gpu-h100x8": "gpu:h100:1x8",
    "gpu-h200x1": "gpu:h200:1x1",
    "gpu-b200x8": "gpu:b200:1x8",
}

NAMES = tuple(_SLICES)
"""Targets with a name of their own."""

_TOPOLOGY = re.compile(r"(tpu|gpu):(\w+):([1-9]\d*(?:x[1-9]\d*){1,2})")


def find(name: str) -> Target:
    """Return the target of a name, or of a topology like `tpu:v5e:4x8` (chips) or `gpu:h100:2x8` (hosts x devices).

    Raises:
        ConfigError: there is no such target.
    """
    match = _TOPOLOGY.fullmatch(_SLICES.get(name, name))
    if match is None or match[2] not in CHIPS or CHIPS[match[2]].platform != match[1]:
        raise ConfigError(
            f"target: expected one of {', '.join(NAMES)}, or tpu:CHIP:TOPOLOGY or gpu:CHIP:HOSTSxDEVICES of the chips "
            f"{', '.join(CHIPS)}, got {name!r}"
        )
    platform, chip, topology = match.groups()
    sizes = [int(size) for size in topology.split("x")]
    devices = math.prod(sizes)
    if platform == "tpu":
        return Target(name, CHIPS[chip], f"{chip}:{topology}", devices, min(4, devices))
    if len(sizes) != 2:
        raise ConfigError(f"target: expected gpu:{chip}:HOSTSxDEVICES, got {name!r}")
    return Target(name, CHIPS[chip], f"1x{topology}", devices, sizes[1])
