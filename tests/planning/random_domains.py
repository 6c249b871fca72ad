"""Random domains of everything that the built-in validator covers, each with a random problem and plan."""

import random
from collections.abc import Mapping
from itertools import product

TYPES = "t u v - object s - t"  # nothing is a v
ABOVE = {"t": {"t"}, "s": {"s", "t"}, "u": {"u"}, "v": {"v"}}
OBJECTS = {"a": "t", "b": "s", "k": "s", "c": "u", "e": "u"}
CONSTANT = "k"
PREDICATES = {"p": (), "g": (), "q": ("t",), "w": ("u",), "r": ("t", "t"), "m": ("s", "u"), "ei": ("(either t u)",)}
DERIVED = {"d1": ("t",), "d2": ("t", "u"), "d3": ("t", "t")}
FUNCTIONS = {"f": (), "h": ("t",), "f2": ()}

Variables = Mapping[str, str]
"""Variable to type."""


class Writer:
    """Writes random PDDL; `predicates` are those that conditions may name."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.predicates = dict(PREDICATES)
        self._n_variables = 0

    def domain(self) -> str:
        rules = self._rules() if self.rng.random() < 0.5 else ""
        signatures = " ".join(_signature(name, types) for name, types in {**PREDICATES, **DERIVED}.items())
        functions = " ".join(_signature(name, types) for name, types in FUNCTIONS.items())
        own = {"?x": "t", "?y": "u"}
        actions = "\n".join(
            f"(:action {name} :parameters (?x - t ?y - u)"
            f" :precondition {self.condition(own, self.rng.randrange(4))} :effect {self._effect(own, 'top')})"
            for name in ("a1", "a2")
        )
        return f"""(define (domain d) (:requirements :adl :fluents :derived-predicates) (:types {TYPES})
            (:constants {CONSTANT} - s) (:predicates {signatures}) (:functions {functions}) {rules} {actions})"""

    def problem(self) -> str:
        facts = [atom for name, types in PREDICATES.items() for atom in _ground(name, types) if self.rng.random() < 0.4]
        values = [
            f"(= {atom} {self.rng.randrange(4)})" for name, types in FUNCTIONS.items() for atom in _ground(name, types)
        ]
        goal = self.condition({}, self.rng.randint(1, 3), with_objects=True)
        return f"""(define (problem p) (:domain d) (:objects a - t b - s c e - u)
            (:init {" ".join(facts + values)}) (:goal {goal}))"""

    def plan(self) -> tuple[tuple[str, ...], ...]:
        return tuple(
            (self.rng.choice(("a1", "a2")), self.rng.choice("abk"), self.rng.choice("ce"))
            for _ in range(self.rng.randrange(4))
        )

    def condition(self, variables: Variables, depth: int, with_objects: bool = False) -> str:
        kind = self.rng.choice(["leaf", "not", "and", "or", "imply", "forall", "exists"]) if depth else "leaf"
        if kind == "leaf":
            return self._leaf(variables, with_objects)
        if kind in ("forall", "exists"):
            name, own_type = self._new_variable(), self.rng.choice("ttsuv")
            inner = self.condition({**variables, name: own_type}, depth - 1, with_objects)
            return f"({kind} ({name} - {own_type}) {inner})"
        n_parts = {"not": 1, "imply": 2}.get(kind, self.rng.randint(1, 3))
        parts = (self.condition(variables, depth - 1, with_objects) for _ in range(n_parts))
        return f"({kind} {' '.join(parts)})"

    def _rules(self) -> str:
        """Two strata and a recursive predicate."""
        first = (
            f"(:derived (d1 ?x - t) {self.condition({'?x': 't'}, 2)}) (:derived (d1 ?o - t) {self._leaf({'?o': 't'})})"
        )
        self.predicates["d1"] = DERIVED["d1"]
        second = f"(:derived (d2 ?x - t ?y - u) {self.condition({'?x': 't', '?y': 'u'}, 2)})"
        # No numbers here: VAL gets those in recursive rules wrong.
        step = f"(and (d3 ?x ?z) (d3 ?z ?y) {self._atom(PREDICATES, {'?z': 't'})})"
        self.predicates.update(DERIVED)
        return f"{first} {second} (:derived (d3 ?x - t ?y - t) (or (r ?x ?y) (exists (?z - t) {step})))"

    def _leaf(self, variables: Variables, with_objects: bool = False) -> str:
        kind = self.rng.random()
        if kind < 0.2:
            sides = f"{self._number(variables)} {self._number(variables)}"
            return f"({self.rng.choice(['<', '<=', '=', '>=', '>'])} {sides})"
        if kind < 0.3 and len(variables) > 1:
            return f"(= {' '.join(self.rng.sample(sorted(variables), 2))})"
        return self._atom(self.predicates, variables, with_objects)

    def _atom(self, names: Mapping[str, tuple[str, ...]], variables: Variables, with_objects: bool = False) -> str:
        """An atom or function whose arguments can be found."""
        while True:
            name = self.rng.choice(sorted(names))
            terms = [self._term(wanted, variables, with_objects) for wanted in names[name]]
            if all(terms):
                return f"({' '.join([name, *terms])})"

    def _term(self, wanted: str, variables: Variables, with_objects: bool) -> str:
        objects = OBJECTS if with_objects else {CONSTANT: OBJECTS[CONSTANT]}
        fitting = [[name for name, own in pool.items() if _fits(own, wanted)] for pool in (variables, objects)]
        some = fitting[0] if fitting[0] and self.rng.random() < 0.8 else fitting[1] or fitting[0]
        return self.rng.choice(some) if some else ""

    def _number(self, variables: Variables, depth: int = 1) -> str:
        kind = self.rng.random()
        if kind < 0.35 or depth < 0:
            return self.rng.choice(["0", "1", "2", "3", "-1", "1.5", "2.00005"])
        if kind < 0.75:
            return self._atom(FUNCTIONS, variables)
        return f"({self.rng.choice('+-*/')} {self._number(variables, depth - 1)} {self._number(variables, depth - 1)})"

    def _effect(self, variables: Variables, place: str) -> str:
        """A random effect in the shapes that VAL reads; `place` as in `jaxppo.planning.language.effects`."""
        plain = ["literal"] if place in ("top", "forall") else ["literal", "update"]
        nested = {"top": ["and", "and", "when"], "forall": ["and", "and", "when"], "and": ["and", "when", "forall"]}
        kind = self.rng.choice([*plain, *nested.get(place, [])])
        if kind == "literal":
            atom = self._atom(PREDICATES, variables)
            return atom if self.rng.random() < 0.6 else f"(not {atom})"
        if kind == "update":
            operator = self.rng.choice(["increase", "increase", "decrease", "assign", "scale-up", "scale-down"])
            return f"({operator} {self._atom(FUNCTIONS, variables)} {self._number(variables)})"
        if kind == "forall":
            name, own_type = self._new_variable(), self.rng.choice("tsu")
            return f"(forall ({name} - {own_type}) {self._effect({**variables, name: own_type}, 'forall')})"
        inside = "and" if place in ("top", "forall") and kind == "and" else "flat"
        parts = f"(and {' '.join(self._effect(variables, inside) for _ in range(self.rng.randint(1, 4)))})"
        return parts if kind == "and" else f"(when {self.condition(variables, 2)} {parts})"

    def _new_variable(self) -> str:
        self._n_variables += 1
        return f"?v{self._n_variables}"


def _fits(own: str, wanted: str) -> bool:
    return bool(ABOVE[own] & set(wanted.strip("()").split()))


def _ground(name: str, types: tuple[str, ...]) -> list[str]:
    choices = [[item for item, own in OBJECTS.items() if _fits(own, wanted)] for wanted in types]
    return [f"({' '.join([name, *names])})" for names in product(*choices)]


def _signature(name: str, types: tuple[str, ...]) -> str:
    return f"({' '.join([name, *(f'?n{place} - {wanted}' for place, wanted in enumerate(types))])})"


def draw_random_case(rng: random.Random) -> tuple[str, str, tuple[tuple[str, ...], ...]]:
    writer = Writer(rng)
    return writer.domain(), writer.problem(), writer.plan()
