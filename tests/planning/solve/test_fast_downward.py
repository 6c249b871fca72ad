"""Fast Downward called on the files: what it is given, what its exit status and its plan file mean."""

import importlib
import json
from pathlib import Path

import pytest

from jaxppo.planning.solve.fast_downward import FastDownward

# Stands for the wheel's program: it notes its arguments and its files, and does what the problem says.
PROGRAM = """
import json, pathlib, sys
arguments = sys.argv[1:]
files = [pathlib.Path(word) for word in arguments if word.endswith(".pddl")]
said = json.loads(files[1].read_text(encoding="utf-8"))
note = {"arguments": arguments, "domain": files[0].read_text(encoding="utf-8")}
pathlib.Path(said["note"]).write_text(json.dumps(note))
if "plan" in said:
    pathlib.Path(arguments[arguments.index("--plan-file") + 1]).write_text(said["plan"])
print("Something else on the standard output")
sys.exit(said.get("status", 0) and (print(said.get("words", ""), file=sys.stderr) or said["status"]))
"""


@pytest.fixture
def downward(tmp_path, monkeypatch):
    """Run it on a problem that says what should happen; returns the answer and what the program was given."""
    program = tmp_path / "up_fast_downward" / "downward" / "fast-downward.py"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    (tmp_path / "up_fast_downward" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()

    def run(optimal=False, **said):
        note = tmp_path / "note.json"
        answer = FastDownward(optimal)(
            "(domain text \u00e9 ?x -truck) (off?l) -5 a-b", json.dumps({"note": str(note), **said})
        )
        return answer, json.loads(note.read_text())

    return run


def test_the_files_are_given_as_they_are_and_the_plan_is_read(downward):
    answer, given = downward(plan="(Move a B)\n(stop)\n; cost = 2 (unit cost)\n")
    assert (answer.plan, answer.reason) == ((("move", "a", "b"), ("stop",)), None)
    assert given["domain"] == "(domain text \u00e9 ?x - truck) (off ?l) -5 a-b"
    assert given["arguments"][:4] == ["--plan-file", "plan", "--alias", "lama-first"]
    assert not any(Path(word).exists() for word in given["arguments"] if word.endswith(".pddl"))
    _, given = downward(optimal=True, plan="")
    assert given["arguments"][-2:] == ["--search", "astar(lmcut())"] and "--alias" not in given["arguments"]


STATUSES = [
    ({"status": 10}, "unsolvable"),
    ({"status": 11}, "unsolvable"),
    ({"status": 12}, "no plan"),
    ({"status": 22}, "memory"),
    ({"status": 23}, "timeout"),
    ({"status": 31}, "unsupported: undefined predicate"),
    ({"status": 34}, "unsupported: undefined predicate"),
    ({"status": 1}, "crash: status 1: undefined predicate"),
    ({"plan": "no plan"}, "crash"),
]


@pytest.mark.parametrize(("said", "reason"), STATUSES)
def test_a_status_without_a_plan_and_a_plan_file_that_is_none_are_a_reason(downward, said, reason):
    answer, _ = downward(**said, words="Traceback ...\nundefined predicate")
    assert answer.plan is None and (answer.reason or "").startswith(reason)


def test_a_wheel_without_the_program_is_an_error(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="up_fast_downward"):
        FastDownward(optimal=False)
