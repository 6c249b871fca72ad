"""Programs compiled for a target by its own compiler, on a machine that has none: what they take, nothing is run.

XLA's compilers for TPU (`libtpu`) and GPU (JAX's CUDA plug-in, without a driver) come as wheels. JAX itself stays on
the CPU, see `platform.compile_only`.
"""

import functools
import importlib.metadata
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
from jaxppo.profiling import collectives, counts
from jaxppo.profiling.targets import Target

GPU_FRACTION = 0.75
"""Share of a GPU's memory that JAX takes. Source: JAX's page on GPU memory allocation."""
_FRACTION_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Set another share; the second is the older name, and JAX reads only one of them."""

_WHEELS = {"tpu": ("libtpu",), "gpu": ("jax_plugins.xla_cuda13", "nvidia.cu13")}
_OLDER_WHEELS = {"gpu": ("jax_plugins.xla_cuda12", "nvidia.cuda_nvcc")}
"""Packages that make up a compiler, all of which must be installed."""

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
    expected: Mapping[str, int] = {}  # by stage: what it adds by the budget of `memory.py`
    trips: int = 1  # rounds of a decoding loop
    parts: int = 1  # micro-batches of a mini-batch
    most_parts: int = 1  # that they can be, one row each
    scored: int = 1  # rows per scoring pass


class Compiled(NamedTuple):
    """What a compiler says of a program, or of several that run one after the other; bytes on one device."""

    compile_s: float
    argument_bytes: int
    temp_bytes: int
    peak_bytes: int  # arguments, results and temporaries together
    added_bytes: int  # of these, what is not held throughout
    counted: counts.Count
    sent: collectives.Sent
    refused: str | None = None  # the compiler's own words, where the program is too big for it

    def then(self, other: "Compiled") -> "Compiled":
        """Return both, one after the other."""
        return Compiled(
            self.compile_s + other.compile_s,
            max(self.argument_bytes, other.argument_bytes),
            max(self.temp_bytes, other.temp_bytes),
            max(self.peak_bytes, other.peak_bytes),
            max(self.added_bytes, other.added_bytes),
            self.counted.plus(other.counted),
            {
                name: self.sent.get(name, 0.0) + other.sent.get(name, 0.0)
                for name in {**self.sent, **other.sent}
            },
            self.refused or other.refused,
        )


def devices_of(target: Target) -> list[Any]:
    """Return the devices of a target: of no use but to compile for.

    Raises:
        ConfigError: the compiler is not installed, or does not know this topology.
    """
    _check_installed(target.platform)
    # JAX registers its plug-ins on the first use of a device, and the topology needs them
    jax.devices()
    try:
        if target.platform == "tpu":
            topology = topologies.get_topology_desc(target.topology, "tpu", **dict(target.options))
        else:
            options = {"topology": target.topology, "target_config": target.chip.config}
            topology = topologies.get_topology_desc("", "cuda", **options)
    except Exception as error:  # each compiler has exceptions of its own
        expected = f"a topology that the compiler of {target.platform} knows"
        raise ConfigError(
            f"target: expected {expected}, got {target.name}: {first_line(error)[:300]}"
        ) from None
    return list(topology.devices)


def _check_installed(name: str) -> None:
    """Raise a `ConfigError` where the compiler for a platform is missing, or is of another version than JAX."""
    if name == "tpu" and "TPU_LIBRARY_PATH" in os.environ:
        return
    choices = [wheels[name] for wheels in (_WHEELS, _OLDER_WHEELS) if name in wheels]
    if not any(all(map(_is_installed, packages)) for packages in choices):
        fix = f"pip install 'jaxppo[aot-{name}]' (a compiler alone: it needs no {name.upper()} and no driver)"
        raise ConfigError(
            f"target: expected XLA's compiler for {name.upper()}, got none installed; {fix}"
        )
    if name != "gpu":
        return
    for package in ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version != jax.__version__:
            fix = f"pip install {package}=={jax.__version__} {package[:-6]}pjrt=={jax.__version__}"
            raise ConfigError(
                f"target: expected the plug-in of JAX {jax.__version__}, got {version}; {fix}"
            )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package is missing, too
        return False


def memory_of(target: Target) -> int:
    """Return the bytes of a device that JAX takes: all of a TPU, and of a GPU the share that its variable says."""
    if target.platform == "tpu":
        return target.chip.memory_bytes
    return int(target.chip.memory_bytes * gpu_fraction())


def gpu_fraction() -> float:
    """Return the share of a GPU's memory that JAX takes."""
    name = gpu_fraction_variable()
    text = os.environ.get(name) or str(GPU_FRACTION)
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf:
        raise ConfigError(f"{name}: expected a share of the memory above 0, got {text!r}")
    return share


def gpu_fraction_variable() -> str:
    """Return the name of the environment variable that says the share: the one that is set, or the newer one."""
    for name in _FRACTION_VARIABLES:
        if os.environ.get(name):
            return name
    return _FRACTION_VARIABLES[0]


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
        # A program that runs twice, such as the scoring of policy and reference, is compiled once.
        distinct = [program for i, program in enumerate(programs) if program not in programs[:i]]
        compiled = [compile_program(program, plan.parallel, plan.trips) for program in distinct]
        yield name, functools.reduce(Compiled.then, compiled)


def compile_program(program: Program, parallel: DataParallel, trips: int) -> Compiled:
    """Trace and compile one program; one that is too big for its compiler is a result, too.

    Args:
        program: with the shapes of its arguments.
        parallel: the target's devices.
        trips: rounds of a decoding loop.
    """
    start = time.monotonic()
    traced = program.function.trace(*program.arguments)
    count = counts.of_program(traced.jaxpr, parallel.num_devices, trips)
    rows = shard_bytes(program.rows)
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        # Such a compiler names the memory that it would have needed; that is the answer to the
        # question.
        seconds = time.monotonic() - start
        arguments = shard_bytes(program.arguments)
        temporaries = needed_bytes(str(error), arguments)
        return Compiled(
            compile_s=seconds,
            argument_bytes=arguments,
            temp_bytes=temporaries,
            peak_bytes=arguments + temporaries,
            added_bytes=rows + temporaries,
            counted=count,
            sent={},
            refused=first_line(error),
        )
    seconds = time.monotonic() - start
    traffic: collectives.Sent = {}
    if parallel.num_devices > 1:
        traffic = collectives.sent(compiled.as_text(), dict(parallel.mesh.shape), trips)
    arguments, temporaries, results = _memory(compiled)
    return Compiled(
        compile_s=seconds,
        argument_bytes=arguments,
        temp_bytes=temporaries,
        peak_bytes=arguments + results + temporaries,
        added_bytes=rows + results + temporaries,
        counted=count,
        sent=traffic,
    )


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
