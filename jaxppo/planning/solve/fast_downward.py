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
from jaxppo.planning.solve.engines import Answer

_PACKAGE, _PROGRAM = "up_fast_downward", Path("downward", "fast-downward.py")
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

    def __init__(self, optimal: bool = False):
        package = importlib.util.find_spec(_PACKAGE)
        folders = list(package.submodule_search_locations or ()) if package is not None else []
        programs = [path for folder in folders if (path := Path(folder, _PROGRAM)).is_file()]
        if not programs:
            raise FileNotFoundError(f"{_PACKAGE}/{_PROGRAM.as_posix()}")
        self._program, self._optimal = programs[0], optimal

    def __call__(self, domain_pddl: str, problem_pddl: str) -> Answer:
        """Run it on the texts; its processes end with the process that called."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = [folder / "domain.pddl", folder / "problem.pddl"]
            for path, text in zip(files, (domain_pddl, problem_pddl), strict=True):
                path.write_text(_MISSING_BLANK.sub(" ", text), encoding="utf-8")
            options = ["--plan-file", "plan", *([] if self._optimal else _SATISFICING)]
            search = _OPTIMAL if self._optimal else ()
            command = [sys.executable, str(self._program), *options, *map(str, files), *search]
            done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
            plan = folder / "plan"
            if plan.is_file():
                parsed = parse_plan_text(plan.read_text(encoding="utf-8"))
                return (
                    Answer(parsed.actions) if parsed.error is None else Answer(None, "crash: its plan cannot be read")
                )
            return Answer(None, _reason(done))


def _reason(done: "subprocess.CompletedProcess[bytes]") -> str:
    if done.returncode in _REASONS:
        return _REASONS[done.returncode]
    lines = (done.stderr.strip() or done.stdout).decode("utf-8", "replace").split("\n")
    words = next(
        (line.strip()[:200] for line in reversed(lines) if line.strip() and not line.startswith(_NO_REASON)), ""
    )
    kind = "unsupported" if done.returncode in _ERROR_STATUS else f"crash: status {done.returncode}"
    return f"{kind}: {words}"
