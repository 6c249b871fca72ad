"""Small planning domains, one family of PDDL features each, with random problems, walks and changes of plans.

Problems come with a random goal formula, half of the time made of parts that hold at the end of a random walk.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jaxppo.planning import Problem, execute, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.blocksworld import solve as solve_blocksworld
from jaxppo.planning.validate.trace import trace

Case = tuple[str, str, tuple[Action, ...]]


class Family(NamedTuple):
    """A domain, how to draw objects and an initial state, and which formulas goals may use."""

    domain: str
    draw: Callable[[random.Random], tuple[str, str]]
    features: frozenset[str] = frozenset()


def _some(rng: random.Random, atoms: Sequence[str], share: float = 0.5) -> str:
    return " ".join(atom for atom in atoms if rng.random() < share)


POST = """(define (domain post) (:requirements :strips :typing)
  (:types place carrier parcel - object van bike - carrier town - place heavy - parcel)
  (:constants depot - town)
  (:predicates (at ?c - carrier ?p - place) (lies ?x - parcel ?p - place) (in ?x - parcel ?c - carrier)
    (road ?a ?b - place) (sorted ?x - parcel))
  (:action ride :parameters (?c - carrier ?a ?b - place) :precondition (and (at ?c ?a) (road ?a ?b))
    :effect (and (at ?c ?b) (not (at ?c ?a))))
  (:action load :parameters (?x - parcel ?c - van ?p - place) :precondition (and (at ?c ?p) (lies ?x ?p))
    :effect (and (in ?x ?c) (not (lies ?x ?p))))
  (:action drop :parameters (?x - parcel ?c - carrier ?p - place) :precondition (and (at ?c ?p) (in ?x ?c))
    :effect (and (lies ?x ?p) (not (in ?x ?c))))
  (:action sort :parameters (?x - heavy) :precondition (lies ?x depot) :effect (sorted ?x)))"""


def _draw_post(rng: random.Random) -> tuple[str, str]:
    places = ["depot", "t1", "p1"]
    roads = [f"(road {a} {b})" for a in places for b in places]
    lies = " ".join(f"(lies {x} {rng.choice(places)})" for x in ("x1", "x2", "h1"))
    init = f"{lies} (at v1 {rng.choice(places)}) (at b1 depot) {_some(rng, roads, 0.7)}"
    return "t1 - town p1 - place v1 - van b1 - bike x1 x2 - parcel h1 - heavy", init


LAB = """(define (domain lab) (:requirements :typing :equality :negative-preconditions)
  (:types acid base salt - object strong - acid tray)
  (:predicates (clean ?t - tray) (holds ?t - tray ?s - (either acid base salt)) (used ?s - (either acid base salt))
    (mixed ?a ?b - (either acid base)))
  (:action pour :parameters (?s - (either strong base) ?t - tray) :precondition (and (clean ?t) (not (used ?s)))
    :effect (and (holds ?t ?s) (not (clean ?t)) (used ?s)))
  (:action mix :parameters (?a ?b - (either acid base) ?t ?u - tray)
    :precondition (and (holds ?t ?a) (holds ?u ?b) (not (= ?t ?u)) (not (= ?a ?b)))
    :effect (and (mixed ?a ?b) (not (holds ?u ?b)) (clean ?u)))
  (:action wash :parameters (?t - tray ?s - (either acid base salt)) :precondition (and (holds ?t ?s) (= ?s ?s))
    :effect (and (not (holds ?t ?s)) (clean ?t)))
  (:action renew :parameters (?s - (either salt strong)) :precondition (used ?s) :effect (not (used ?s))))"""


def _draw_lab(rng: random.Random) -> tuple[str, str]:
    used = _some(rng, ["(used c)", "(used k)", "(used s)", "(used n)"], 0.3)
    return "a - acid k s - strong c - base n - salt q - (either base salt) t1 t2 t3 - tray", (
        f"{used} {_some(rng, ['(clean t1)', '(clean t2)', '(clean t3)'], 0.8)} (holds t3 a)"
    )


LAMPS = """(define (domain lamps) (:requirements :adl)
  (:types lamp room - object)
  (:constants master - lamp)
  (:predicates (lit ?l - lamp) (in ?l - lamp ?r - room) (me ?r - room) (linked ?l ?m - lamp) (broken ?l - lamp) (dark))
  (:action move :parameters (?a ?b - room)
    :precondition (and (me ?a) (or (not (dark)) (exists (?l - lamp) (and (in ?l ?a) (lit ?l)))) (not (= ?a ?b)))
    :effect (and (me ?b) (not (me ?a))))
  (:action press :parameters (?l - lamp ?r - room) :precondition (and (me ?r) (in ?l ?r) (imply (broken ?l) (lit ?l)))
    :effect (and (when (lit ?l) (not (lit ?l))) (when (not (lit ?l)) (lit ?l))
      (forall (?m - lamp) (when (and (linked ?l ?m) (not (= ?l ?m))) (and (lit ?m) (not (broken ?m)))))))
  (:action fall :parameters (?r - room) :precondition (forall (?l - lamp) (or (not (in ?l ?r)) (lit ?l) (broken ?l)))
    :effect (and (dark) (forall (?l - lamp) (when (in ?l ?r) (not (lit ?l)))) (lit master)))
  (:action dawn :parameters () :precondition (not (forall (?l - lamp) (not (lit ?l))))
    :effect (and (not (dark)) (forall (?l - lamp) (and (when (lit ?l) (broken ?l)) (not (lit ?l)))))))"""


def _draw_lamps(rng: random.Random) -> tuple[str, str]:
    lamps, rooms = ["l1", "l2", "l3", "master"], ["r1", "r2"]
    places = " ".join(f"(in {lamp} {rng.choice(rooms)})" for lamp in lamps)
    links = _some(rng, [f"(linked {a} {b})" for a in lamps for b in lamps], 0.3)
    facts = _some(rng, ["(lit l1)", "(lit l2)", "(lit master)", "(broken l3)", "(broken l1)", "(dark)"])
    return "l1 l2 l3 - lamp r1 r2 - room", f"(me r1) {places} {links} {facts}"


TRUCKS = """(define (domain trucks) (:requirements :adl :typing :fluents)
  (:types truck place)
  (:predicates (at ?t - truck ?p - place) (tired ?t - truck) (seen ?p - place))
  (:functions (fuel ?t - truck) (size ?t - truck) (way ?a ?b - place) (total-cost) (trips))
  (:action drive :parameters (?t - truck ?a ?b - place)
    :precondition (and (at ?t ?a) (>= (fuel ?t) (way ?a ?b)) (not (= ?a ?b)))
    :effect (and (not (at ?t ?a)) (at ?t ?b) (seen ?b) (decrease (fuel ?t) (way ?a ?b)) (increase (trips) 1)
      (increase (total-cost) (* 2 (way ?a ?b))) (when (< (fuel ?t) 4) (tired ?t))))
  (:action refuel :parameters (?t - truck) :precondition (< (fuel ?t) (- (size ?t) 0.5))
    :effect (and (assign (fuel ?t) (size ?t)) (not (tired ?t)) (increase (total-cost) 3)))
  (:action share :parameters (?t ?u - truck ?p - place)
    :precondition (and (at ?t ?p) (at ?u ?p) (> (/ (fuel ?t) 2) (fuel ?u)))
    :effect (and (scale-down (fuel ?t) 2) (increase (fuel ?u) (/ (fuel ?t) 2))))
  (:action grow :parameters (?t - truck) :precondition (<= (+ (size ?t) (trips)) 14)
    :effect (and (scale-up (size ?t) 1.5) (forall (?u - truck) (when (not (= ?u ?t)) (decrease (size ?u) 1))))))"""


def _draw_trucks(rng: random.Random) -> tuple[str, str]:
    places, trucks = ["p", "q", "r"], ["t", "u"]
    ways = " ".join(f"(= (way {a} {b}) {rng.randint(1, 6)})" for a in places for b in places if rng.random() < 0.85)
    tanks = " ".join(f"(= (fuel {t}) {rng.randint(0, 9)}) (= (size {t}) {rng.randint(6, 9)}.5)" for t in trucks)
    spots = " ".join(f"(at {t} {rng.choice(places)})" for t in trucks)
    return "p q r - place t u - truck", f"{spots} {ways} {tanks} (= (trips) 0) (= (total-cost) 0)"


GRIDS = """(define (domain grids) (:requirements :adl :typing :derived-predicates)
  (:types node)
  (:predicates (wire ?a ?b - node) (closed ?a - node) (source ?a - node) (fed ?a - node) (dead ?a - node)
    (linked ?a ?b - node) (calm) (marked ?a - node))
  (:derived (linked ?a ?b - node)
    (and (closed ?a) (or (wire ?a ?b) (exists (?c - node) (and (wire ?a ?c) (linked ?c ?b))))))
  (:derived (fed ?a - node) (or (source ?a) (exists (?s - node) (and (source ?s) (linked ?s ?a)))))
  (:derived (dead ?a - node) (not (fed ?a)))
  (:derived (calm) (forall (?a - node) (imply (marked ?a) (dead ?a))))
  (:derived (calm) (not (exists (?a - node) (closed ?a))))
  (:action open :parameters (?a - node) :precondition (and (closed ?a) (fed ?a)) :effect (not (closed ?a)))
  (:action close :parameters (?a - node) :precondition (and (not (closed ?a)) (or (dead ?a) (calm)))
    :effect (closed ?a))
  (:action lay :parameters (?a ?b - node) :precondition (and (not (linked ?a ?b)) (not (= ?a ?b)))
    :effect (and (wire ?a ?b) (when (dead ?b) (marked ?b))))
  (:action sweep :parameters () :precondition (not (calm))
    :effect (forall (?a - node) (when (fed ?a) (and (not (marked ?a)) (not (source ?a)))))))"""


def _draw_grids(rng: random.Random) -> tuple[str, str]:
    nodes = ["a", "b", "c"]
    facts = [f"({word} {node})" for word in ("closed", "source", "marked") for node in nodes]
    wires = [f"(wire {a} {b})" for a in nodes for b in nodes if a != b]
    return "a b c - node", f"{_some(rng, facts)} {_some(rng, wires, 0.35)}"


FAMILIES = {
    "typing and constants": Family(POST, _draw_post),
    "either, equality, negation": Family(LAB, _draw_lab, frozenset({"not"})),
    "adl": Family(LAMPS, _draw_lamps, frozenset({"not", "or", "quantifiers"})),
    "numbers": Family(TRUCKS, _draw_trucks, frozenset({"not", "or", "numbers"})),
    "derived": Family(GRIDS, _draw_grids, frozenset({"not", "or", "quantifiers"})),
}


def draw_cases(name: str, rng: random.Random, n: int) -> Iterator[Case]:
    for _ in range(n):
        yield _draw_blocks(rng) if name == "blocksworld" else _draw_case(FAMILIES[name], rng)


def _draw_blocks(rng: random.Random) -> Case:
    text = BLOCKSWORLD.generate_problem(rng.randint(3, 6), rng, "blocks")
    problem = parse_problem(text, parse_domain(BLOCKSWORLD.pddl))
    return BLOCKSWORLD.pddl, text, change(solve_blocksworld(problem), problem, rng)


def _draw_case(family: Family, rng: random.Random) -> Case:
    objects, init = family.draw(rng)
    template = f"(define (problem p) (:domain d) (:objects {objects}) (:init {init}) (:goal (and {{}})))"
    domain = parse_domain(family.domain)
    problem = parse_problem(template.format(""), domain)
    plan = _walk(problem, rng, rng.randint(1, 7))
    candidates = [_formula(problem, rng, family.features, {}, 2) for _ in range(8)]
    goal = " ".join(f"(or {part})" for part in candidates)  # each counts as one condition
    end = trace(parse_problem(template.format(goal), domain), plan)
    holds = end.steps[-1].goals if plan else [check.holds for check in end.goals]
    held = [part for part, is_true in zip(candidates, holds, strict=True) if is_true]
    parts = held[:3] if rng.random() < 0.75 else candidates[:2]
    return family.domain, template.format(" ".join(parts)), change(plan, problem, rng)


def random_action(problem: Problem, rng: random.Random) -> Action:
    """An operator with arguments of the right types, where there are such."""
    schema = rng.choice(list(problem.domain.actions.values()))
    fitting = [
        [name for name, types in problem.objects.items() if problem.domain.is_of_type(types, parameter.types)]
        for parameter in schema.parameters
    ]
    return (schema.name, *(rng.choice(names or list(problem.objects)) for names in fitting))


def _walk(problem: Problem, rng: random.Random, length: int) -> tuple[Action, ...]:
    plan: tuple[Action, ...] = ()
    for _ in range(length):
        tried = (random_action(problem, rng) for _ in range(60))
        step = next((action for action in tried if execute(problem, (*plan, action)).executable), None)
        plan = plan if step is None else (*plan, step)
    return plan


def change(plan: tuple[Action, ...], problem: Problem, rng: random.Random) -> tuple[Action, ...]:
    """Up to two random changes of a plan; half of the plans stay as they are."""
    steps = list(plan)
    for _ in range(rng.choice([0, 0, 1, 2])):
        i, j = rng.randrange(len(steps) + 1), rng.randrange(len(steps) + 1)
        kind = rng.choice(["drop", "repeat", "swap", "rename", "insert", "cut"])
        if kind == "drop":
            del steps[i : i + 1]
        elif kind == "repeat":
            steps[j:j] = steps[i : i + 1]
        elif kind == "swap" and max(i, j) < len(steps):
            steps[i], steps[j] = steps[j], steps[i]
        elif kind == "rename" and i < len(steps) and len(steps[i]) > 1:
            steps[i] = (*steps[i][:-1], rng.choice(list(problem.objects)))
        elif kind == "insert":
            steps.insert(i, random_action(problem, rng))
        elif kind == "cut":
            del steps[i:]
    return tuple(steps)


def _formula(
    problem: Problem, rng: random.Random, features: frozenset[str], variables: dict[str, str], depth: int
) -> str:
    """A random condition over the predicates, functions and objects of a problem."""
    kind = rng.choice(["atom", *sorted(features if depth else features - {"quantifiers", "or"})])
    if kind == "not":
        return f"(not {_formula(problem, rng, features - {'not'}, variables, depth)})"
    if kind == "or":
        word = rng.choice(["or", "and", "imply"])
        return f"({word} {' '.join(_formula(problem, rng, features, variables, depth - 1) for _ in range(2))})"
    if kind == "quantifiers":
        name, own_type = f"?v{depth}", rng.choice([name for name in problem.domain.types if name != "object"])
        body = _formula(problem, rng, features, {**variables, name: own_type}, depth - 1)
        return f"({rng.choice(['forall', 'exists'])} ({name} - {own_type}) {body})"
    if kind == "numbers":
        return _comparison(problem, rng)
    return _atom(problem, rng, variables)


def _atom(problem: Problem, rng: random.Random, variables: dict[str, str]) -> str:
    name, arguments = rng.choice(list(problem.domain.predicates.items()))
    return f"({' '.join((name, *(_term(problem, rng, types, variables) for types in arguments)))})"


def _term(problem: Problem, rng: random.Random, types: tuple[str, ...], variables: dict[str, str]) -> str:
    domain = problem.domain
    fitting = [name for name, own in variables.items() if domain.is_of_type((own,), types)]
    return rng.choice(fitting or [name for name, own in problem.objects.items() if domain.is_of_type(own, types)])


def _comparison(problem: Problem, rng: random.Random) -> str:
    function = rng.choice([atom for atom in problem.values if atom[0] != "way"])
    number = rng.choice([problem.values[function], rng.randint(0, 12)])
    return f"({rng.choice(['<', '<=', '=', '>=', '>'])} ({' '.join(function)}) {number})"
