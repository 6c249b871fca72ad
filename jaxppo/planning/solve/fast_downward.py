"""Fast Downward as the wheel `up-fast-downward` carries it, called on the files themselves.

The layer of unified-planning above it reads less PDDL than the program does.

Source: Helmert, The Fast Downward planning system, JAIR 26 (2006); exit codes: fast-downward.org/ExitCodes.
"""

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from jaxppo.planning.language.plans import parse_plan_text
from jaxppo.planning.solve.engines import PlannerAnswer

_PACKAGE = "up_fast_downward"
_PROGRAM = Path("downward", "fast-downward.py")
_SATISFICING = ("--alias", "lama-first")
_OPTIMAL = ("--search", "astar(lmcut())")
_REASONS = {
    10: "unsolvable",
    11: "unsolvable",
    12: "no plan: the planner gave up",
    20: "memory",
    21: "timeout",
    22: "memory",
    23: "timeout",
    24: "memory",
}
"""What its exit status means where it finds no plan."""
_MISSING_BLANK = re.compile(r"(?<=\s-)(?=[A-Za-z])|(?<=[\w-])(?=\?)")
"""Where it needs a blank and others do not: in `-truck`, and in `off?x`."""
_NO_REASON = ("INFO", "Driver aborting", "translate exit code", "search exit code", "Planner time")
_ERROR_STATUS = range(30, 40)  # of the translator or the search: input or usage


class FastDownward:
    """The program, with one of its configurations: `lama-first`, or A* with LM-cut for optimal plans."""

    def __init__(self, optimal: bool):
        # Found, not imported: only the program beside it is needed.
        package = importlib.util.find_spec(_PACKAGE)
        if package is None or package.origin is None:
            raise FileNotFoundError(f"{_PACKAGE}/{_PROGRAM.as_posix()}")
        self._program = Path(package.origin).parent / _PROGRAM
        self._optimal = optimal

    def __call__(self, domain_pddl: str, problem_pddl: str) -> PlannerAnswer:
        """Run it on the texts; its processes end with the process that called."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            domain_file = folder / "domain.pddl"
            problem_file = folder / "problem.pddl"
            plan_file = folder / "plan"
            domain_file.write_text(_MISSING_BLANK.sub(" ", domain_pddl), encoding="utf-8")
            problem_file.write_text(_MISSING_BLANK.sub(" ", problem_pddl), encoding="utf-8")
            # An alias is an option of the driver, before the
            # files; a search is one of the planner, after them.
            files = (str(domain_file), str(problem_file))
            arguments = (*files, *_OPTIMAL) if self._optimal else (*_SATISFICING, *files)
            command = [
                sys.executable,
                str(self._program),
                "--plan-file",
                plan_file.name,
                *arguments,
            ]
            process = subprocess.run(command, cwd=folder, capture_output=True, check=False)
            # The file decides, not the status, which may be
            # that of a time-out after a plan was written.
            if not plan_file.is_file():
                return PlannerAnswer(None, _reason(process))
            plan = parse_plan_text(plan_file.read_text(encoding="utf-8"))
        if plan.error is not None:
            return PlannerAnswer(None, "crash: its plan cannot be read")
        return PlannerAnswer(plan.actions)


def _reason(process: "subprocess.CompletedProcess[bytes]") -> str:
    """Say why there is no plan: by the exit status, and where that is an error by the last line that says something."""
    status = process.returncode
    if status in _REASONS:
        return _REASONS[status]
    kind = "unsupported" if status in _ERROR_STATUS else f"crash: status {status}"
    output = (process.stderr.strip() or process.stdout).decode("utf-8", "replace")
    for line in reversed(output.split("\n")):
        if line.strip() and not line.startswith(_NO_REASON):
            return f"{kind}: {line.strip()[:200]}"
    return f"{kind}: "
