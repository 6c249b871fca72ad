"""Check versions, folders, devices of JAX and planners, for `jaxppo doctor`.

Importing this module needs nothing but Python, because it has to run in installations that do not work.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jaxppo
from jaxppo import __version__

Status = Literal["ok", "note", "warning", "failed"]
"""In this order: works; a fact, or something optional that is missing; works badly; required, and does not work."""

REPORT_IT = "please report this, with what `jaxppo doctor --json` prints"
"""Advice for errors that should never happen."""

MIN_FREE_MIB = 2048
"""Less free disk than this gives a warning: a default run takes about half of it."""

_MIB = 1 << 20
_GIB = 1 << 30
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# The first driver for CUDA 13, which the extra `gpu` installs.
_CUDA13_DRIVER = 580
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
)
# Of the vendor Google on the PCI bus: TPU v3, v4, v5p, v5e, v6e and 7x, as in
# jax/_src/hardware_utils.py.
_GOOGLE = "0x1ae0"
_TPUS = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")


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
    # Its metadata lists the requirements, so without it there is nothing to compare with.
    if version_of("jaxppo") is None:
        yield Check(
            "jaxppo",
            "failed",
            f"{__version__}, not installed",
            "pip install -e . in the folder of jaxppo",
        )
        return
    yield Check("jaxppo", "ok", f"{__version__} at {Path(jaxppo.__file__).parent}")
    # jaxlib is required by jax, not by jaxppo, and has to be in a bug report.
    fitting = [f"jaxlib {version_of('jaxlib')}"]
    for requirement in requirements("jaxppo"):
        name = requirement.name
        version = version_of(name)
        if fits(requirement):
            fitting.append(f"{name} {version}")
        elif version is None:
            yield Check(
                name, "failed", "not installed", f"pip install '{name}{requirement.specifier}'"
            )
        else:
            fix = f"pip install --upgrade '{name}{requirement.specifier}'"
            yield Check(name, "failed", f"{version}, expected {requirement.specifier}", fix)
    yield Check("requirements", "ok", ", ".join(sorted(fitting)))


def requirements(package: str, extra: str = "") -> list[Any]:
    """Return what an installed package requires on this machine, as `packaging` reads it.

    Args:
        package: its name.
        extra: return what this extra adds; empty: what the package itself requires.
    """
    from packaging.requirements import Requirement

    def applies(requirement: Requirement, extra: str) -> bool:
        return requirement.marker is None or requirement.marker.evaluate({"extra": extra})

    required = []
    for text in importlib.metadata.requires(package) or ():
        requirement = Requirement(text)
        # A marker that holds without any extra holds with each of them, too.
        comes_without_extra = extra != "" and applies(requirement, "")
        if applies(requirement, extra) and not comes_without_extra:
            required.append(requirement)
    return required


def fits(requirement: Any) -> bool:
    """Return whether a required package is installed in a required version."""
    version = version_of(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def has_extra(package: str, extra: str) -> bool:
    """Return whether all packages of an extra are installed, with their extras in turn."""
    extra_requirements = requirements(package, extra)
    for requirement in extra_requirements:
        # Such as jax[cuda13]: that jax is installed does not say that its plugin is.
        if not fits(requirement) or not all(
            has_extra(requirement.name, name) for name in requirement.extras
        ):
            return False
    return bool(extra_requirements)


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


def disks(output_dir: Path) -> Iterator[Check]:
    """Check the free disk for runs, caches and temporary files."""
    from jaxppo.config.paths import cache_dir

    places = {
        "outputs": (output_dir, "--output_dir"),
        "cache": (cache_dir(), "JAXPPO_CACHE"),
        "temporary files": (Path(tempfile.gettempdir()), "TMPDIR"),
    }
    for name, (folder, setting) in places.items():
        # Before the first run the folder does not exist: its disk is that of the nearest folder
        # above it.
        absolute = folder.absolute()
        existing = next(parent for parent in (absolute, *absolute.parents) if parent.exists())
        free_bytes = shutil.disk_usage(existing).free
        finding = f"{_size(free_bytes)} free at {absolute}"
        if not os.access(existing, os.W_OK):
            fix = f"chmod u+w {existing}, or another {setting}"
            yield Check(f"disk, {name}", "failed", f"{finding}, not writable", fix)
        elif free_bytes < MIN_FREE_MIB * _MIB:
            fix = f"free some: checkpoints and models of a run want {MIN_FREE_MIB} MiB and more"
            yield Check(f"disk, {name}", "warning", finding, fix)
        else:
            yield Check(f"disk, {name}", "ok", finding)


def cache_folder() -> Iterator[Check]:
    """Check that nobody else can write to the cache: it holds compiled code."""
    from jaxppo.config.paths import cache_dir

    folder = cache_dir()
    if not folder.exists():
        yield Check("cache", "ok", f"{folder}, made by the first run")
        return
    num_bytes = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
    finding = f"{folder}, {_size(num_bytes)}"
    # Writable by the group or by everybody; the bits mean nothing on Windows.
    shared = [
        path for path in (folder, folder / "xla") if path.is_dir() and path.stat().st_mode & 0o022
    ]
    if shared and os.name == "posix":
        fix = f"chmod go-w {' '.join(map(str, shared))}"
        yield Check("cache", "warning", f"{finding}, others can write to it", fix)
    else:
        yield Check("cache", "ok", f"{finding}; it may be deleted at any time")


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
        finding += f", {_size(min(limits))} each"
    yield Check("devices", "ok", finding)
    # JAX falls back to the CPU when the plugin for an accelerator is missing, with a warning at
    # most.
    if platform_name == "cpu":
        yield from _overlooked()


def _overlooked() -> Iterator[Check]:
    """Find accelerators of this machine that JAX does not use."""
    platforms = os.environ.get("JAX_PLATFORMS")
    for name, is_present, extra in (
        ("NVIDIA GPU", _has_nvidia(), _gpu_extra()),
        ("TPU", _has_tpu(), "tpu"),
    ):
        if is_present and platforms:
            # Somebody chose it, so it is no warning.
            finding = f"present, not used: JAX_PLATFORMS={platforms}"
            yield Check(name, "note", finding, f"unset JAX_PLATFORMS to use the {name}")
        elif is_present:
            yield Check(
                name,
                "warning",
                "present, but JAX sees only the CPU",
                f"pip install 'jaxppo[{extra}]'",
            )


def _has_nvidia() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def _gpu_extra() -> str:
    """Return the extra that fits the driver; the newer one where its version is unknown."""
    version = re.search(r"Kernel Module.*?\s(\d{3,})\.", _read(_NVIDIA_DRIVER))
    return "gpu-cuda12" if version and int(version[1]) < _CUDA13_DRIVER else "gpu"


def _has_tpu() -> bool:
    if Path("/dev/accel0").exists():
        return True
    folders = Path("/sys/bus/pci/devices").glob("*")
    return any(
        _read(folder / "vendor") == _GOOGLE and _read(folder / "device") in _TPUS
        for folder in folders
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def planners() -> Iterator[Check]:
    """List the planners that are installed."""
    from jaxppo.errors import ConfigError
    from jaxppo.planning.solve.planners import PLANNERS, planner_version

    installed = []
    missing_by_fix: dict[str, list[str]] = {}
    for name in PLANNERS:
        try:
            installed.append(planner_version(name))
        except ConfigError:
            fix = f"pip install 'jaxppo[{PLANNERS[name].extra}]'"
            missing_by_fix.setdefault(fix, []).append(name)
    yield Check("planners", "ok", ", ".join(installed))
    for fix, names in missing_by_fix.items():
        yield Check("planners", "note", f"not installed: {', '.join(names)}", fix)


def hub(network: bool) -> Iterator[Check]:
    """Show the settings of the Hugging Face hub; send a request only on demand."""
    from huggingface_hub import constants

    is_offline = constants.HF_HUB_OFFLINE
    state = "offline (HF_HUB_OFFLINE): only what is downloaded already" if is_offline else "online"
    has_token = os.environ.get("HF_TOKEN") or Path(constants.HF_TOKEN_PATH).exists()
    token = "a token is set" if has_token else "no token"
    yield Check("hub", "note", f"{state}, {token}, downloads in {constants.HF_HUB_CACHE}")
    if network:
        yield _request_hub(constants.ENDPOINT)


def _request_hub(address: str) -> Check:
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(address, method="HEAD"), timeout=5) as response:
            return Check("hub, network", "ok", f"{address} answers with {response.status}")
    except OSError as error:
        fix = (
            "work offline with local folders (HF_HUB_OFFLINE=1), or set HTTPS_PROXY or HF_ENDPOINT"
        )
        return Check(
            "hub, network", "warning", f"{address} does not answer: {reason_of(error)}", fix
        )


def reason_of(error: Exception) -> str:
    """Return an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _size(num_bytes: int) -> str:
    if num_bytes >= _GIB:
        return f"{num_bytes / _GIB:,.1f} GiB"
    return f"{num_bytes / _MIB:,.1f} MiB"
