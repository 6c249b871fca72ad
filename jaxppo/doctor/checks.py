"""Check versions, environment and devices of JAX, for `jaxppo doctor`.

Importing this module needs nothing but Python, because it has to run in installations that do not work.
"""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jaxppo
from jaxppo import __version__

Status = Literal["ok", "note", "warning", "failed"]
"""In this order: works; a fact, or something optional that is missing; works badly; required, and does not work."""

REPORT_IT = "please report this, with what `jaxppo doctor --json` prints"
"""Advice for errors that should never happen."""

# What a bug report has to say about the environment, as each of these changes a run.
_VARIABLES = (
    "JAX_PLATFORMS",
    "XLA_FLAGS",
    "CUDA_VISIBLE_DEVICES",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
    "JAXPPO_CACHE",
    "JAXPPO_VAL",
    "HF_HOME",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
)
# Accelerators that JAX may overlook: the file of the first one, and the extra that it needs.
_ACCELERATORS = {
    "NVIDIA GPU": (Path("/dev/nvidia0"), "gpu"),
    "TPU": (Path("/dev/accel0"), "tpu"),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was checked.
        status: the result.
        finding: what was found.
        fix: what to install or do; empty: nothing.
    """

    name: str
    status: Status
    finding: str
    fix: str = ""


Probe = Callable[[], Iterator[Check]]
"""Checks one thing; it may raise anything."""


def python_version() -> Iterator[Check]:
    """Check the version of Python; show the system."""
    finding = f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    is_supported = sys.version_info >= (3, 11)
    if is_supported:
        yield Check("python", "ok", finding)
    else:
        yield Check("python", "failed", finding, "install Python 3.11 or newer")


def packages() -> Iterator[Check]:
    """Check the versions of jaxppo's requirements."""
    from packaging.requirements import Requirement

    # Its metadata lists the requirements, so without it there is nothing to compare with.
    if version_of("jaxppo") is None:
        fix = "pip install -e . in the folder of jaxppo"
        yield Check("jaxppo", "failed", f"{__version__}, not installed", fix)
        return
    yield Check("jaxppo", "ok", f"{__version__} at {Path(jaxppo.__file__).parent}")
    # jaxlib is required by jax, not by jaxppo, and has to be in a bug report.
    fitting = [f"jaxlib {version_of('jaxlib')}"]
    for text in importlib.metadata.requires("jaxppo") or ():
        requirement = Requirement(text)
        # Those of an extra have a marker that does not hold without it.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = version_of(requirement.name)
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            fitting.append(f"{requirement.name} {version}")
            continue
        finding = f"{version or 'not installed'}, expected {requirement.specifier}"
        fix = f"pip install --upgrade '{requirement.name}{requirement.specifier}'"
        yield Check(requirement.name, "failed", finding, fix)
    yield Check("requirements", "ok", ", ".join(sorted(fitting)))


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment() -> Iterator[Check]:
    """Show the environment variables that change a run."""
    variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    yield Check(
        "environment", "note", ", ".join(variables) or "none of the variables that matter is set"
    )


def devices() -> Iterator[Check]:
    """Show the devices of JAX, and check whether it overlooks an accelerator."""
    try:
        import jax

        from jaxppo.parallel import platform

        platform.leave_out_absent()
        jax_devices = jax.devices()
    # A plugin that does not fit its driver may raise anything.
    except Exception as error:
        platforms = os.environ.get("JAX_PLATFORMS")
        fix = f"unset JAX_PLATFORMS, which is {platforms}, or install what it needs"
        if not platforms:
            fix = "pip install --upgrade jax jaxlib; JAX_PLATFORMS=cpu leaves accelerators alone"
        yield Check("devices", "failed", f"JAX does not start: {reason_of(error)}", fix)
        return
    platform_name = jax_devices[0].platform
    finding = f"{len(jax_devices)} x {jax_devices[0].device_kind} ({platform_name}, JAX {jax.__version__})"
    # CPUs have no statistics of memory.
    all_stats = [device.memory_stats() or {} for device in jax_devices]
    limits = [stats["bytes_limit"] for stats in all_stats if "bytes_limit" in stats]
    if limits:
        finding += f", {min(limits) / (1 << 30):,.1f} GiB each"
    yield Check("devices", "ok", finding)
    # JAX falls back to the CPU when the plugin for an
    # accelerator is missing, with a warning at most.
    if platform_name == "cpu":
        yield from _overlooked()


def _overlooked() -> Iterator[Check]:
    """Find accelerators of this machine that JAX does not use."""
    platforms = os.environ.get("JAX_PLATFORMS")
    for name, (file, extra) in _ACCELERATORS.items():
        if not file.exists():
            continue
        if platforms:
            # Somebody chose it, so it is no warning.
            finding = f"present, not used: JAX_PLATFORMS={platforms}"
            yield Check(name, "note", finding, f"unset JAX_PLATFORMS to use the {name}")
        else:
            fix = f"pip install 'jaxppo[{extra}]'"
            yield Check(name, "warning", "present, but JAX sees only the CPU", fix)


def reason_of(error: Exception) -> str:
    """Return an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
