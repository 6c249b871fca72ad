"""The domains' own rules: hand-worked shortest plans, and steps that are refused."""

import pytest

from jaxppo.planning import execute, parse_domain, parse_problem
from jaxppo.planning.domains import DOMAINS
from tests.planning.breadth_first import shortest_plan

NEW = sorted(DOMAINS.keys() - {"blocksworld"})


# Objects, facts and goal of a small problem, and its shortest plan, worked out by hand; others may be as short.
EXAMPLES = {
    # One hand: the robot has to come twice.
    "gripper": (
        "r1 r2 b1 b2 g",
        "(room r1) (room r2) (ball b1) (ball b2) (gripper g) (free g) (at-robby r2) (at b1 r1) (at b2 r1)",
        "(at b1 r2) (at b2 r2)",
        "move r2 r1; pick b1 r1 g; move r1 r2; drop b1 r2 g; move r2 r1; pick b2 r1 g; move r1 r2; drop b2 r2 g",
    ),
    "ferry": (
        "c1 c2 - car s1 s2 - shore",
        "(at c1 s1) (at c2 s1) (at-ferry s2) (empty-ferry)",
        "(at c1 s2) (at c2 s2)",
        "sail s2 s1; board c1 s1; sail s1 s2; debark c1 s2; sail s2 s1; board c2 s1; sail s1 s2; debark c2 s2",
    ),
    # The package needs both trucks and the plane, which is at the wrong airport.
    "logistics": (
        "c1 c2 - city a1 a2 - airport l1 l2 - location t1 t2 - truck f - airplane k - package",
        "(in-city a1 c1) (in-city l1 c1) (in-city a2 c2) (in-city l2 c2) (at t1 a1) (at t2 a2) (at f a2) (at k l1)",
        "(at k l2)",
        "drive-truck t1 a1 l1 c1; load-truck k t1 l1; drive-truck t1 l1 a1 c1; unload-truck k t1 a1;"
        "fly-airplane f a2 a1; load-airplane k f a1; fly-airplane f a1 a2; unload-airplane k f a2; load-truck k t2 a2;"
        "drive-truck t2 a2 l2 c2; unload-truck k t2 l2",
    ),
    # Three discs take 2^3 - 1 moves.
    "hanoi": (
        "d1 d2 d3 p1 p2 p3",
        "(on d1 d2) (on d2 d3) (on d3 p1) (clear d1) (clear p2) (clear p3) (smaller d1 d2) (smaller d1 d3)"
        " (smaller d2 d3)"
        + "".join(f" (smaller {disc} {peg})" for disc in ("d1", "d2", "d3") for peg in ("p1", "p2", "p3")),
        "(on d1 d2) (on d2 d3) (on d3 p3)",
        "move d1 d2 p3; move d2 d3 p2; move d1 p3 d2; move d3 p1 p3; move d1 d2 p1; move d2 p2 d3; move d1 p1 d2",
    ),
    "miconic": (
        "p1 p2 - passenger f1 f2 f3 - floor",
        "(above f2 f1) (above f3 f1) (above f3 f2) (lift-at f3)"
        " (origin p1 f1) (destin p1 f2) (origin p2 f2) (destin p2 f1)",
        "(served p1) (served p2)",
        "down f3 f1; board f1 p1; up f1 f2; depart f2 p1; board f2 p2; down f2 f1; depart f1 p2",
    ),
    # A star with the robot on one of its three points.
    "visitall": (
        "c1 c2 c3 c4 - cell",
        "(connected c1 c2) (connected c2 c1) (connected c2 c3) (connected c3 c2) (connected c2 c4) (connected c4 c2)"
        " (at-robot c1) (visited c1)",
        "(visited c3) (visited c4)",
        "move c1 c2; move c2 c3; move c3 c2; move c2 c4",
    ),
    # A pile of two is built the other way round at another place; the truck is there.
    "depots": (
        "a - depot b - distributor t - truck h1 h2 - hoist q1 q2 - pallet c1 c2 - crate",
        "(at h1 a) (at h2 b) (available h1) (available h2) (at q1 a) (at q2 b) (at c1 a) (at c2 a) (on c1 q1)"
        " (on c2 c1) (clear c2) (clear q2) (at t b)",
        "(on c2 q2) (on c1 c2)",
        "drive t b a; lift h1 c2 c1 a; load h1 c2 t a; lift h1 c1 q1 a; load h1 c1 t a; drive t a b; unload h2 c2 t b;"
        "drop h2 c2 q2 b; unload h2 c1 t b; drop h2 c1 c2 b",
    ),
    # The driver cannot drive to the truck nor walk to the package; the other one is of no use.
    "driverlog": (
        "l1 l2 l3 - location d e - driver t - truck k - package",
        "(path l1 l2) (path l2 l1) (link l2 l3) (link l3 l2) (at d l1) (at e l3) (at t l2) (empty t) (at k l3)",
        "(at k l2) (at d l1)",
        "walk d l1 l2; board-truck d t l2; drive-truck t l2 l3 d; load-truck k t l3; drive-truck t l3 l2 d;"
        "unload-truck k t l2; disembark-truck d t l2; walk d l2 l1",
    ),
    # Two instruments share the power, and switching on undoes a calibration; the other satellite carries nothing.
    "satellite": (
        "s z - satellite i1 i2 - instrument m1 m2 - mode d1 d2 - direction",
        "(on_board i1 s) (on_board i2 s) (supports i1 m1) (supports i2 m2) (calibration_target i1 d1)"
        " (calibration_target i2 d1) (pointing s d2) (power_avail s) (pointing z d1)",
        "(have_image d2 m1) (have_image d2 m2)",
        "switch_on i1 s; turn_to s d1 d2; calibrate s i1 d1; turn_to s d2 d1; take_image s d2 i1 m1; switch_off i1 s;"
        "switch_on i2 s; turn_to s d1 d2; calibrate s i2 d1; turn_to s d2 d1; take_image s d2 i2 m2",
    ),
    "childsnack": (
        "c1 c2 - child b1 b2 - bread f1 f2 - filling s1 s2 - sandwich t - tray t1 - place",
        "(allergic c1) (not_allergic c2) (waiting c1 t1) (waiting c2 t1) (bread_in_kitchen b1) (bread_in_kitchen b2)"
        " (filling_in_kitchen f1) (filling_in_kitchen f2) (gluten_free_bread b1) (gluten_free_filling f1) (not_made s1)"
        " (not_made s2) (at t kitchen)",
        "(served c1) (served c2)",
        "make_gluten_free_sandwich s1 b1 f1; make_sandwich s2 b2 f2; put_on_tray s1 t; put_on_tray s2 t;"
        "move_tray t kitchen t1; serve_gluten_free_sandwich s1 c1 t t1; serve_sandwich s2 c2 t t1",
    ),
    # The depot has two cells in a row, the far one with the hoist in it; both crates get in, the first one far in.
    "storage": (
        "a b k1 k2 - cell o - dock p - depot q - container h - hoist c1 c2 - crate",
        "(connected a b) (connected b a) (connected a o) (connected o a) (connected o k1) (connected k1 o)"
        " (connected o k2) (connected k2 o) (part-of a p) (part-of b p) (part-of k1 q) (part-of k2 q)"
        " (on c1 k1) (on c2 k2) (in c1 q) (in c2 q) (at h b) (available h) (clear a)",
        "(in c1 p) (in c2 p)",
        "move h b a; go-out h a o; lift h c1 k1 o q; go-in h o a; drop h c1 b a p; go-out h a o; lift h c2 k2 o q;"
        "drop h c2 a o p",
    ),
}

ON_TRAY = "make_sandwich s1 b1 f1; put_on_tray s1 t"
DRIVING = "walk d l1 l2; board-truck d t l2"
CALIBRATED = "switch_on i1 s; turn_to s d1 d2; calibrate s i1 d1"
# Plans for these problems, and the condition that keeps the last step from being applied.
REFUSED = {
    "childsnack": [
        ("make_sandwich s1 b1 f1; make_sandwich s1 b1 f1", "not_made s1"),
        ("make_sandwich s1 b1 f1; make_sandwich s2 b1 f2", "bread_in_kitchen b1"),
        ("make_sandwich s1 b1 f1; make_sandwich s2 b2 f1", "filling_in_kitchen f1"),
        ("make_gluten_free_sandwich s1 b1 f1; make_gluten_free_sandwich s1 b1 f1", "not_made s1"),
        ("make_gluten_free_sandwich s1 b1 f1; make_gluten_free_sandwich s2 b1 f2", "bread_in_kitchen b1"),
        ("make_gluten_free_sandwich s1 b1 f1; make_gluten_free_sandwich s2 b2 f1", "filling_in_kitchen f1"),
        ("make_gluten_free_sandwich s1 b2 f1", "gluten_free_bread b2"),
        ("make_gluten_free_sandwich s1 b1 f2", "gluten_free_filling f2"),
        (f"{ON_TRAY}; put_on_tray s1 t", "sandwich_in_kitchen s1"),
        ("make_sandwich s1 b1 f1; move_tray t kitchen t1; put_on_tray s1 t", "at t kitchen"),
        (f"{ON_TRAY}; move_tray t kitchen t1; serve_sandwich s1 c1 t t1", "not_allergic c1"),
        (f"{ON_TRAY}; move_tray t kitchen t1; serve_gluten_free_sandwich s1 c1 t t1", "gluten_free_sandwich s1"),
        ("serve_gluten_free_sandwich s1 c2 t t1", "allergic c2"),
        ("serve_gluten_free_sandwich s1 c1 t kitchen", "waiting c1 kitchen"),
        ("make_gluten_free_sandwich s1 b1 f1; put_on_tray s1 t; serve_gluten_free_sandwich s1 c1 t t1", "at t t1"),
    ],
    "driverlog": [
        (f"{DRIVING}; drive-truck t l2 l3 d; load-truck k t l3; unload-truck k t l2", "at t l2"),
        (f"{DRIVING}; drive-truck t l2 l3 d; board-truck e t l3", "empty t"),
        (f"{DRIVING}; drive-truck t l2 l1 d", "link l2 l1"),
        ("walk d l1 l3", "path l1 l3"),
    ],
    # The domain is untyped: its predicates say what is a room, a ball or a gripper.
    "gripper": [
        ("move b1 r1", "room b1"),
        ("pick r1 r2 g", "ball r1"),
        ("pick b1 b2 g", "room b2"),
        ("pick b1 r2 b2", "gripper b2"),
        ("drop r1 r2 g", "ball r1"),
        ("drop b1 b2 g", "room b2"),
        ("drop b1 r2 b2", "gripper b2"),
    ],
    "miconic": [
        ("up f3 f1", "above f1 f3"),
        ("down f3 f1; down f1 f2", "above f1 f2"),
        ("down f3 f1; board f1 p1; up f1 f2; depart f2 p1; depart f2 p1", "boarded p1"),
    ],
    "satellite": [
        ("turn_to s d1 d2; calibrate s i1 d1", "power_on i1"),
        ("switch_on i1 s; calibrate z i1 d1", "on_board i1 z"),
        (f"{CALIBRATED}; take_image z d1 i1 m1", "on_board i1 z"),
        (f"{CALIBRATED}; switch_off i1 s; switch_on i1 s; take_image s d1 i1 m1", "calibrated i1"),
    ],
    "storage": [
        ("move h b k1", "connected b k1"),
        ("move h b a; go-out h a o; lift h c1 k1 o q; go-in h o a; drop h c1 b a p; move h a b", "clear b"),
        ("move h b a; go-out h a o; go-in h o b", "connected o b"),
    ],
}


def example(domain):
    objects, init, goal, plan = EXAMPLES[domain]
    text = f"(define (problem p) (:domain {domain}) (:objects {objects}) (:init {init}) (:goal (and {goal})))"
    problem = parse_problem(text, parse_domain(DOMAINS[domain].pddl))
    return problem, steps(plan)


def steps(plan):
    return [tuple(step.split()) for step in plan.split(";")]


@pytest.mark.parametrize("domain", NEW)
def test_hand_worked_plans_are_valid_and_shortest(domain):
    problem, plan = example(domain)
    assert execute(problem, plan).valid
    assert len(shortest_plan(problem) or ()) == len(plan)
    for number in range(len(plan)):
        assert not execute(problem, plan[:number] + plan[number + 1 :]).valid, plan[number]


@pytest.mark.parametrize(("domain", "plan", "condition"), [(name, *case) for name in REFUSED for case in REFUSED[name]])
def test_steps_are_refused_for_the_right_reason(domain, plan, condition):
    verdict = execute(example(domain)[0], steps(plan))
    assert (verdict.failed_step, verdict.failed_condition) == (len(steps(plan)), f"({condition})")
