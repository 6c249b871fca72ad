"""Programs compiled for a target by its own compiler, on a machine that has none: what they take, nothing is run.

XLA's compilers for TPU (`libtpu`) and GPU (JAX's CUDA plug-in, without a driver) come as wheels. JAX itself stays on
the CPU, see `platform.compile_only`.
"""

import functools
import importlib.util
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from jaxppo.errors import ConfigError, first_line
from jaxppo.parallel import platform
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import counts
from jaxppo.profiling.targets import Target

GPU_FRACTION = 0.75
"""Share of a GPU's memory that JAX takes. Source: JAX's page on GPU memory allocation."""
_FRACTION_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Set another share; the second is the older name, and JAX reads only one of them."""

_WHEELS = {
    "tpu": [("libtpu",)],
    "gpu": [
        ("jax_plugins.xla_cuda13", "nvidia.cu13"),
        ("jax_plugins.xla_cuda12", "nvidia.cuda_nvcc"),
    ],
}
"""Packages that make up a compiler, newer and older ones, all of which must be installed."""

_NOT_TILED = "Couldn't find output tile sizes"
"""What XLA's compiler for GPUs says of a product that its first guess of tiles does not fit."""

_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Program(NamedTuple):
    """A program to be compiled."""

    function: Any  # from `DataParallel.map`
    # First arguments, which are on the devices throughout: trees of shapes with their places
    resident: tuple[Any, ...]
    rows: tuple[Any, ...]  # the others

    @property
    def arguments(self) -> tuple[Any, ...]:
        """All arguments, in their order."""
        return (*self.resident, *self.rows)


class Plan(NamedTuple):
    """What a run executes on a target, from shapes."""

    parallel: DataParallel
    # Programs by the stage that runs them, one after the other
    stages: Mapping[str, Sequence[Program]]
    held_bytes: int  # on each device from the first update to the last
    budget: Mapping[str, int]  # by stage: what it adds by the arithmetic of `memory.py`
    trips: int  # rounds of a decoding loop


class Compiled(NamedTuple):
    """What a compiler says of a program, or of several that run one after the other; bytes on one device."""

    compile_s: float
    argument_bytes: int
    temp_bytes: int
    peak_bytes: int  # arguments, results and temporaries together
    added_bytes: int  # of these, what is not held throughout
    counted: counts.Count
    refused: str | None = None  # the compiler's own words, where the program is too big for it

    def then(self, following: "Compiled") -> "Compiled":
        """Return both, one after the other."""
        return Compiled(
            compile_s=self.compile_s + following.compile_s,
            argument_bytes=max(self.argument_bytes, following.argument_bytes),
            temp_bytes=max(self.temp_bytes, following.temp_bytes),
            peak_bytes=max(self.peak_bytes, following.peak_bytes),
            added_bytes=max(self.added_bytes, following.added_bytes),
            counted=self.counted.plus(following.counted),
            refused=self.refused or following.refused,
        )


def devices_of(target: Target) -> list[Any]:
    """Return the devices of a target: of no use but to compile for.

    Raises:
        ConfigError: the compiler is not installed, or does not know this topology.
    """
    name = target.platform
    if not any(all(map(_is_installed, packages)) for packages in _WHEELS[name]):
        raise ConfigError(
            f"target: expected XLA's compiler for {name.upper()}, got none installed; pip install 'jaxppo[aot-{name}]' "
            f"(a compiler alone: it needs no {name.upper()} and no driver)"
        )
    # JAX registers its plug-ins on the first use of a device, and the topology needs them
    jax.devices()
    options: dict[str, Any] = {}
    try:
        if name == "tpu":
            # libtpu takes a host to have 2 x 2 chips, and a
            # smaller slice to be a mistake unless it is told.
            if target.devices == 1:
                options["chips_per_host_bounds"] = (1, 1, 1)
            topology = topologies.get_topology_desc(target.topology, "tpu", **options)
        else:
            options = {"topology": target.topology, "target_config": target.chip.config}
            topology = topologies.get_topology_desc("", "cuda", **options)
    except Exception as error:  # each compiler has exceptions of its own
        raise ConfigError(
            f"target: expected a topology that the compiler of {name} knows, got {target.name}: "
            f"{first_line(error)[:300]}"
        ) from None
    return list(topology.devices)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package is missing, too
        return False


def memory_of(target: Target) -> int:
    """Return the bytes of a device that JAX takes: all of a TPU, and of a GPU the share that its variable says."""
    if target.platform == "tpu":
        return target.chip.memory_bytes
    newer, older = _FRACTION_VARIABLES
    name = older if os.environ.get(older) and not os.environ.get(newer) else newer
    text = os.environ.get(name) or GPU_FRACTION
    try:
        return int(target.chip.memory_bytes * float(text))
    except ValueError:
        raise ConfigError(f"{name}: expected a share of the memory, got {text!r}") from None


@contextmanager
def aiming_at(target: Target) -> Iterator[None]:
    """Make whatever depends on the platform what it would be on the target, while the block traces and compiles."""
    with platform.compiling_for(platform.Platform(target.platform, memory_of(target))):
        yield


def placed(parallel: DataParallel, tree: Any, row_axis: int | None = None) -> Any:
    """Return the shapes of arrays with their places: along rows, or as parameters are."""
    shardings = (
        parallel.shardings(tree) if row_axis is None else parallel.row_shardings(tree, row_axis)
    )

    def with_sharding(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(with_sharding, tree, shardings)


def compile_plan(plan: Plan) -> Iterator[tuple[str, Compiled]]:
    """Compile the programs of a plan, one stage after the other.

    Yields:
        The name of a stage, and its programs as one.
    """
    for name, programs in plan.stages.items():
        compiled: list[Compiled] = []
        for program in programs:
            first = programs.index(program)
            if first == len(compiled):
                compiled.append(compile_program(program, plan.trips))
            else:
                # A program that runs twice, such as the scoring of policy and reference, is compiled once.
                compiled.append(compiled[first]._replace(compile_s=0.0))
        yield name, functools.reduce(Compiled.then, compiled)


def compile_program(program: Program, trips: int) -> Compiled:
    """Trace and compile one program; one that is too big for its compiler is a result, too.

    Args:
        program: with the shapes of its arguments.
        trips: rounds of a decoding loop.
    """
    start = time.monotonic()
    traced = program.function.trace(*program.arguments)
    count = counts.of_program(traced.jaxpr, trips)
    refused = None
    try:
        arguments, temporaries, results = _memory(_compile(traced.lower()))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        # Such a compiler names the memory that it would
        # have needed; that is the answer to the question.
        arguments = shard_bytes(program.arguments)
        temporaries = needed_bytes(str(error), arguments)
        results = 0
        refused = first_line(error)
    return Compiled(
        compile_s=time.monotonic() - start,
        argument_bytes=arguments,
        temp_bytes=temporaries,
        peak_bytes=arguments + results + temporaries,
        added_bytes=shard_bytes(program.rows) + results + temporaries,
        counted=count,
        refused=refused,
    )


def _compile(lowered: Any) -> Any:
    """Compile a lowered program; where the tiles of a product cannot be guessed, all of them are those of cuBLAS.

    A GPU that is there tries several tilings of each product, and cuBLAS, and leaves out what does not compile. Without
    one the compiler takes its first guess, and ends where that does not fit.

    Source: github.com/openxla/xla, pull request 36792, whose reviewer names both ways out: tuning, and no Triton.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if _NOT_TILED not in str(error):
            raise
        return lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})


def _memory(compiled: Any) -> tuple[int, int, int]:
    """Return bytes of the arguments, of temporaries, and of those results that are not written over arguments.

    For a TPU, `temp_size_in_bytes` is more than is allocated: of a program whose arguments and it are 16.3 GiB, libtpu
    0.0.42 allocates 15.7, and compiles it for 15.75. Its peak is what it allocates, but for gaps between temporaries.
    """
    stats = compiled.memory_analysis()
    arguments = stats.argument_size_in_bytes
    temporaries = stats.temp_size_in_bytes
    results = stats.output_size_in_bytes - stats.alias_size_in_bytes
    if platform.current().name == "tpu":
        temporaries = min(temporaries, max(0, stats.peak_memory_in_bytes - arguments - results))
    return arguments, temporaries, results


def shard_bytes(tree: Any) -> int:
    """Return the bytes that one device has of shapes with places."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def needed_bytes(message: str, arguments: int) -> int:
    """Read from a compiler's refusal how many bytes of temporaries a program asks for; 0 where it does not say.

    Args:
        message: names all that would be used, arguments included; libtpu calls them temporaries, too.
        arguments: bytes of the program's arguments.
    """
    match = re.search(r"(?:\(|[Uu]sed )(\d+(?:\.\d+)?)([KMGT]?)B?(?:\)| of )", message)
    if match is None:
        return 0
    total = int(float(match[1]) * _UNITS[match[2] or "B"])
    return max(0, total - arguments)
