"""`python -m jaxppo.planning validate` and `solve`: one plan explained, one problem solved."""

import json

import pytest

from jaxppo.planning import find_val
from jaxppo.planning.__main__ import run
from jaxppo.run import cli
from tests.commands import one_line
from tests.planning import kiln
from tests.planning.vault import DOMAIN, PROBLEM, SOLUTION

PLAN = SOLUTION.replace(") ", ")\n") + "\n"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run a command on files in a folder; returns its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments, domain=DOMAIN, problem=PROBLEM, plan=PLAN):
        for name, text in (("domain.pddl", domain), ("p.pddl", problem), ("p.plan", plan)):
            (tmp_path / name).write_text(text)
        status = 0
        try:
            cli.main(lambda: run(arguments), uses_jax=False)
        except SystemExit as end:
            status = end.code
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return called


FILES = ("domain.pddl", "p.pddl", "p.plan")
STAMPED = "".join(f"{number}.5: {step} [1]\n" for number, step in enumerate(PLAN.splitlines()))
GOALS = ["(in vault)", "(not (locked vault))"]
VERDICTS = [
    # plan, failing step and its action, what was missing there, what the goal lacks where the plan stops
    (PLAN, None, None, [], []),
    (STAMPED, None, None, [], []),
    ("(walk hall vault)\n", 1, "(walk hall vault)", ["(in hall)", "(not (locked vault))"], GOALS),
    ("(walk attic hall) (take k) (take k)", 3, "(take k)", ["(lies k hall)"], GOALS),
    ("(walk attic hall) (take k) (unlock vault k)", None, None, [], GOALS[:1]),
    ("(walk attic hall) (paint hall)", 2, "(paint hall)", [], GOALS),
    ("First (walk attic hall)", 1, None, [], []),
    ("0: (walk attic hall)\n0: (take k)\n", 1, None, [], []),
]


@pytest.mark.parametrize(("plan", "step", "action", "preconditions", "goals"), VERDICTS)
def test_validate_says_where_a_plan_fails_and_what_is_missing(call, plan, step, action, preconditions, goals):
    status, out, _ = call("validate", *FILES, "--json", plan=plan)
    found = json.loads(out)
    assert (found["failed_step"], found["failed_action"]) == (step, action)
    assert (found["unmet_preconditions"], found["unmet_goals"]) == (preconditions, goals)
    assert found["valid"] == (status == 0) == (plan in (PLAN, STAMPED))
    shown = call("validate", *FILES, plan=plan)
    assert shown[0] == status
    assert all(condition in shown[1] for condition in [*preconditions, *goals, action or ""])


@pytest.mark.skipif(find_val() is None, reason="VAL is not installed")
def test_validate_shows_the_verdict_of_val_beside(call):
    status, out, _ = call("validate", *FILES, "--json", "--val", plan="(walk attic hall) (take k) (take k)")
    failed = {"valid": False, "error": "precondition", "failed_step": 3, "failed_condition": "(lies k hall)"}
    assert status == 1 and json.loads(out)["val"] == failed
    timed = call("validate", *FILES, "--json", domain=kiln.DOMAIN, problem=kiln.PROBLEM, plan=kiln.PLAN)
    assert timed[0] == 0 and json.loads(timed[1])["validator"] == "val"


UMLAUT = "; J\u00fcrgen\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_files_of_any_usual_encoding_are_read(call, tmp_path, encoding):
    call("validate", *FILES)
    for name, text in (("d.pddl", DOMAIN), ("q.pddl", PROBLEM), ("q.plan", PLAN)):
        (tmp_path / name).write_bytes((UMLAUT + text).encode(encoding))
    assert call("validate", "d.pddl", "q.pddl", "q.plan")[0] == 0
    (tmp_path / "d.pddl").write_bytes(b"\xff\xfe(")
    status, _, err = call("validate", "d.pddl", "q.pddl", "q.plan")
    assert "d.pddl: expected UTF-16" in one_line(status, err)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("validate", "domain.pddl", "p.pddl"), "PLAN"),
        (("validate", "domain.pddl", "p.pddl", "none.plan"), "none.plan"),
        (("validate", "p.pddl", "p.pddl", "p.plan"), "domain"),
        (("solve", "domain.pddl", "p.pddl", "--planner", "aries", "--optimal"), "expected one of builtin, "),
    ],
)
def test_what_gives_no_verdict_is_one_line_and_status_2(call, arguments, expected):
    status, _, err = call(*arguments)
    assert expected in one_line(status, err)


@pytest.mark.parametrize("command", [("validate", *FILES), ("solve", *FILES[:2])])
def test_an_error_in_a_file_names_it(call, command):
    broken = {"domain": DOMAIN.rstrip()[:-1]}, {"problem": PROBLEM.rstrip()[:-1]}
    for texts, name in zip(broken, FILES[:2], strict=True):
        _, _, err = call(*command, **texts)
        assert f" {name}:" in err and "<" not in err


@pytest.mark.parametrize("flags", [(), ("--optimal",)])
def test_solve_prints_a_plan_file_that_validate_accepts_or_says_why_there_is_no_plan(call, flags):
    status, out, _ = call("solve", "domain.pddl", "p.pddl", *flags)
    assert status == 0 and out.endswith("; cost = 4 (unit cost)\n")
    assert call("validate", *FILES, plan=out)[0] == 0
    status, out, err = call("solve", "domain.pddl", "p.pddl", *flags, problem=PROBLEM.replace("(lies k hall)", ""))
    assert (status, out) == (1, "") and "unsolvable" in err
