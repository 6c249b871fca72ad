"""Check versions, folders, devices of JAX and planners, for `jaxppo doctor`.

Importing this module needs nothing but Python: it is there for installations that do not work.
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
"""Works; a fact, or something optional that is missing; works, but not as it should; required, and does not work."""

REPORT_IT = "please report this, with what `jaxppo doctor --json` prints"
"""Advice for errors that should never happen."""

MIN_FREE_MIB = 2048
"""Less free disk than this gives a warning: a default run takes about half of it."""

_MIB = 1 << 20
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_CUDA13_DRIVER = 580
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
# Of the vendor Google on the PCI bus: TPU v3, v4, v5p, v5e, v6e and 7x, as in jax/_src/hardware_utils.py.
_GOOGLE = "0x1ae0"
_TPUS = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was checked.
        status: the result.
        found: what was found.
        fix: what to install or do; empty: nothing.
    """

    name: str
    status: Status
    found: str
    fix: str = ""


Probe = Callable[[], Iterator[Check]]
"""Checks one thing; it may raise anything."""


# ------------------------------------------------------------------------------------------------------ installation


def python_version() -> Iterator[Check]:
    """Check the version of Python; show the system."""
    where = f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    supported = sys.version_info >= (3, 11)
    yield Check("python", "ok" if supported else "failed", where, "" if supported else "install Python 3.11 or newer")


def packages() -> Iterator[Check]:
    """Check the versions of jaxppo's requirements."""
    if version_of("jaxppo") is None:
        yield Check("jaxppo", "failed", f"{__version__}, not installed", "pip install -e . in the folder of jaxppo")
        return
    yield Check("jaxppo", "ok", f"{__version__} at {Path(jaxppo.__file__).parent}")
    fitting = [f"jaxlib {version_of('jaxlib')}"]
    for requirement in requirements("jaxppo"):
        name = requirement.name
        version = version_of(name)
        if fits(requirement):
            fitting.append(f"{name} {version}")
        elif version is None:
            yield Check(name, "failed", "not installed", f"pip install '{name}{requirement.specifier}'")
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

    found = []
    for text in importlib.metadata.requires(package) or ():
        requirement = Requirement(text)
        comes_without_extra = extra != "" and applies(requirement, "")
        if applies(requirement, extra) and not comes_without_extra:
            found.append(requirement)
    return found


def fits(requirement: Any) -> bool:
    """Return whether a required package is installed in a required version."""
    version = version_of(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def has_extra(package: str, extra: str) -> bool:
    """Return whether all packages of an extra are installed, with their extras in turn."""
    added = requirements(package, extra)
    for requirement in added:
        if not fits(requirement) or not all(has_extra(requirement.name, name) for name in requirement.extras):
            return False
    return bool(added)


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment() -> Iterator[Check]:
    """Show the environment variables that change a run."""
    variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    yield Check("environment", "note", ", ".join(variables) or "none of the variables that matter is set")


# ----------------------------------------------------------------------------------------------------------- machine


def disks(output_dir: Path) -> Iterator[Check]:
    """Check the free disk for runs, caches and temporary files."""
    from jaxppo.config.paths import cache_dir

    places = {
        "outputs": (output_dir, "--output_dir"),
        "cache": (cache_dir(), "JAXPPO_CACHE"),
        "temporary files": (Path(tempfile.gettempdir()), "TMPDIR"),
    }
    for name, (folder, setting) in places.items():
        existing = _existing(folder)
        free = shutil.disk_usage(existing).free
        found = f"{_size(free)} free at {folder.absolute()}"
        if not os.access(existing, os.W_OK):
            fix = f"chmod u+w {existing}, or another {setting}"
            yield Check(f"disk, {name}", "failed", f"{found}, not writable", fix)
        elif free < MIN_FREE_MIB * _MIB:
            fix = f"free some: checkpoints and models of a run want {MIN_FREE_MIB} MiB and more"
            yield Check(f"disk, {name}", "warning", found, fix)
        else:
            yield Check(f"disk, {name}", "ok", found)


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def cache_folder() -> Iterator[Check]:
    """Check that nobody else can write to the cache: it holds compiled code."""
    from jaxppo.config.paths import cache_dir

    folder = cache_dir()
    if not folder.exists():
        yield Check("cache", "ok", f"{folder}, made by the first run")
        return
    num_bytes = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
    found = f"{folder}, {_size(num_bytes)}"
    shared = [place for place in (folder, folder / "xla") if place.is_dir() and place.stat().st_mode & 0o022]
    if shared and os.name == "posix":
        yield Check("cache", "warning", f"{found}, others can write to it", f"chmod go-w {' '.join(map(str, shared))}")
    else:
        yield Check("cache", "ok", f"{found}; it may be deleted at any time")


# -------------------------------------------------------------------------------------------------------------- JAX


def devices() -> Iterator[Check]:
    """Show the devices of JAX, and check whether it overlooks an accelerator."""
    try:
        import jax

        from jaxppo.parallel import platform

        platform.leave_out_absent()
        found = jax.devices()
    except Exception as error:  # a plugin and a driver that do not fit raise anything
        platforms = os.environ.get("JAX_PLATFORMS")
        fix = f"unset JAX_PLATFORMS, which is {platforms}, or install what it needs"
        if not platforms:
            fix = "pip install --upgrade jax jaxlib; JAX_PLATFORMS=cpu leaves accelerators alone"
        yield Check("devices", "failed", f"JAX does not start: {reason_of(error)}", fix)
        return
    platform_name = found[0].platform
    shown = f"{len(found)} x {found[0].device_kind} ({platform_name}, JAX {jax.__version__})"
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in found]
    known_limits = [limit for limit in limits if limit is not None]
    yield Check("devices", "ok", f"{shown}, {_size(min(known_limits))} each" if known_limits else shown)
    if platform_name == "cpu":
        yield from _overlooked()


def _overlooked() -> Iterator[Check]:
    """Find accelerators of this machine that JAX does not use."""
    platforms = os.environ.get("JAX_PLATFORMS")
    for name, is_present, extra in (("NVIDIA GPU", _has_nvidia(), _gpu_extra()), ("TPU", _has_tpu(), "tpu")):
        if is_present and platforms:
            found = f"present, not used: JAX_PLATFORMS={platforms}"
            yield Check(name, "note", found, f"unset JAX_PLATFORMS to use the {name}")
        elif is_present:
            yield Check(name, "warning", "present, but JAX sees only the CPU", f"pip install 'jaxppo[{extra}]'")


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
    return any(_read(folder / "vendor") == _GOOGLE and _read(folder / "device") in _TPUS for folder in folders)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


# ------------------------------------------------------------------------------------------------- VAL and planners


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


# ----------------------------------------------------------------------------------------------------- Hugging Face


def hub(network: bool) -> Iterator[Check]:
    """Show the settings of the Hugging Face hub; send a request only on demand."""
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    state = "offline (HF_HUB_OFFLINE): only what is downloaded already" if offline else "online"
    token = "a token is set" if os.environ.get("HF_TOKEN") or Path(constants.HF_TOKEN_PATH).exists() else "no token"
    yield Check("hub", "note", f"{state}, {token}, downloads in {constants.HF_HUB_CACHE}")
    if network:
        yield _answer_of(constants.ENDPOINT)


def _answer_of(address: str) -> Check:
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(address, method="HEAD"), timeout=5) as answer:
            return Check("hub, network", "ok", f"{address} answers with {answer.status}")
    except OSError as error:
        fix = "work offline with local folders (HF_HUB_OFFLINE=1), or set HTTPS_PROXY or HF_ENDPOINT"
        return Check("hub, network", "warning", f"{address} does not answer: {reason_of(error)}", fix)


def reason_of(error: Exception) -> str:
    """Return an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _size(count: int) -> str:
    return f"{count / _MIB / 1024:,.1f} GiB" if count >= 1024 * _MIB else f"{count / _MIB:,.1f} MiB"
