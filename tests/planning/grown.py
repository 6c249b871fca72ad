"""PDDL grown from a grammar: texts of which some parts are others that may stand there, or nearly so.

A text is one that can be read, with one to three of its parts replaced by what the grammar makes of a symbol; names
and atoms are those of the text, so that what is grown is often right. Everything is a function of the random generator.
"""

import random
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from jaxppo.planning.language.sexpr import Node, read_fast

Tree: TypeAlias = "str | list[Tree]"
Texts = tuple[str, str, str]
"""Domain, problem and plan."""

NUMBERS = "0 1 2 3 10 0.5 -1 1e3 1e400 .5 5. 00 +1 99999999999999999999 0.1.2 nan inf".split()  # noqa: SIM905
WORDS = """and or not when forall exists imply either = < > <= >= + - * / increase decrease assign scale-up scale-down
?x ?y ?duration #t total-time total-cost object number define domain problem minimize maximize at start over all end
preference always sometime within at-most-once () :init :goal :metric :types :action :parameters is-violated""".split()  # noqa: SIM905

GRAMMAR = {
    "CONDITION": """(and CONDITION*) | (or CONDITION*) | (not CONDITION) | (imply CONDITION CONDITION)
        | (QUANTIFIER (VARIABLES) CONDITION) | ATOM | ATOM | ATOM | (= TERM TERM) | (COMPARE VALUE VALUE) | ()""",
    "QUANTIFIER": "forall | exists",
    "COMPARE": "< | > | <= | >= | =",
    "EFFECT": """(and EFFECT*) | (when CONDITION EFFECT) | (forall (VARIABLES) EFFECT) | ATOM | ATOM | (not ATOM)
        | (UPDATE VALUE VALUE) | (when CONDITION (and EFFECT*))""",
    "UPDATE": "increase | decrease | assign | scale-up | scale-down",
    "ATOM": "(NAME TERM*)",
    "TERM": "NAME | ?x | ?y",
    "VALUE": "NUMBER | ATOM | (OPERATOR VALUE*) | NAME | #t | ?duration | total-time",
    "OPERATOR": "+ | - | * | /",
    "TYPED": "TERM* | TERM* - TYPE | TERM* - TYPE TERM* - TYPE | ?x ?y | ?x - TYPE",
    "TYPE": "NAME | object | (either TYPE*)",
    "VARIABLES": "?x | ?x ?y | ?x - TYPE | ?x - TYPE ?y - TYPE | TYPED",
    "SIGNATURE": "(NAME VARIABLES)",
    "FACT": "ATOM | (= ATOM NUMBER) | (not ATOM) | (at NUMBER ATOM) | (at NUMBER (not ATOM))",
    "ACTION": """(:action NAME :parameters (VARIABLES) :precondition CONDITION :effect EFFECT)
        | (:action NAME :parameters (VARIABLES) :effect EFFECT) | (:derived SIGNATURE CONDITION)
        | (:durative-action NAME :parameters (VARIABLES) :duration (= ?duration VALUE) :condition (and TIMED*)
            :effect (and TIMED*))
        | (:process NAME :parameters (VARIABLES) :precondition CONDITION :effect EFFECT)""",
    "TIMED": "(at start EFFECT) | (at end CONDITION) | (over all CONDITION)",
    "SECTION": """ACTION | (:types TYPED) | (:constants TYPED) | (:predicates SIGNATURE*) | (:functions SIGNATURE*)
        | (:functions SIGNATURE* - number) | (:objects TYPED) | (:init FACT*) | (:goal CONDITION)
        | (:metric minimize VALUE) | (:requirements :adl) | (:domain NAME) | (:constraints CONDITION)""",
}
MAX_DEPTH, STARS = 6, 4
"""Deeper, a symbol becomes a name; a starred symbol comes fewer times than that."""
RULES: dict[str, list[list[Node]]] = {
    symbol.lower(): [read_fast(f"({rule})", symbol) for rule in " ".join(rules.split()).split(" | ")]
    for symbol, rules in GRAMMAR.items()
}
LIKELY = ("atom", "condition", "condition", "effect", "effect", "value")
"""What parts are mostly replaced by; now and then it is anything."""


class Grower:
    """Grows trees from the names and atoms of a text."""

    def __init__(self, names: list[str], atoms: list[list[Tree]], rng: random.Random):
        self._names, self._atoms, self._rng = names, atoms, rng

    def change(self, parent: list[Any], at: int) -> None:
        """Drop, repeat or replace a part."""
        how, part = self._rng.random(), parent[at]
        if how < 0.1:
            del parent[at]
        elif how < 0.2:
            parent.insert(self._rng.randrange(len(parent) + 1), part)
        elif isinstance(part, str):
            parent[at] = self._rng.choice((*self._rng.sample(self._names, 4), self._rng.choice(WORDS + NUMBERS)))
        else:
            is_section = part and isinstance(part[0], str) and part[0][0] == ":"
            symbols = tuple(RULES) if self._rng.random() < 0.08 else ("action", "section") if is_section else LIKELY
            parent[at : at + 1] = self.grow(self._rng.choice(symbols), 0)

    def grow(self, symbol: str, depth: int) -> list[Tree]:
        if depth > MAX_DEPTH or self._rng.random() < 0.01:
            return [self._rng.choice((self._rng.choice(self._names), self._rng.choice(WORDS)))]
        if symbol == "atom" and self._atoms and self._rng.random() < 0.95:
            return [list(self._rng.choice(self._atoms))]
        return self._follow(self._rng.choice(RULES[symbol]), depth + 1)

    def _follow(self, rule: list[Node], depth: int) -> list[Tree]:
        grown: list[Tree] = []
        for part in rule:
            if isinstance(part, list):
                grown.append(self._follow(part, depth))
            elif part in ("name", "number"):
                grown.append(self._rng.choice(self._names if part == "name" else NUMBERS))
            elif part.rstrip("*") in RULES:
                for _ in range(self._rng.randrange(STARS) if part.endswith("*") else 1):
                    grown += self.grow(part.rstrip("*"), depth)
            else:
                grown.append(part)
        return grown


def regrown(texts: Texts, rng: random.Random) -> Texts:
    """Return the texts with the domain or the problem changed, and the plan, now and then, a new one."""
    domain, problem, plan = texts
    trees = read_fast(domain, "<domain>"), read_fast(problem, "<problem>")
    names = [word for word in re.findall(r"(?<![:?\w-])[a-z][\w-]*+", f"{domain} {problem}") if word not in WORDS]
    which = rng.randrange(2)
    places = list(_places(trees[which]))
    grower = Grower(names, [parent[at] for parent, at in places if _is_atom(parent[at])], rng)
    if rng.random() < 0.1:
        plan = "".join(write(grower.grow("atom", 0)[0]) for _ in range(rng.randrange(STARS)))
    for parent, at in rng.sample(places, rng.choice((1, 1, 1, 2, 3))):
        if at < len(parent):  # an earlier change may have taken it away
            grower.change(parent, at)
    changed = write(trees[which])
    return (domain, changed, plan) if which else (changed, problem, plan)


def _places(tree: list[Any]) -> Iterator[tuple[list[Any], int]]:
    """Every part of a tree, as the list that holds it and its number in it."""
    for at, part in enumerate(tree):
        yield tree, at
        if isinstance(part, list):
            yield from _places(part)


def _is_atom(tree: Any) -> bool:
    return (
        isinstance(tree, list) and bool(tree) and all(isinstance(part, str) for part in tree) and tree[0][0].isalpha()
    )


def write(tree: Tree) -> str:
    """Write a tree as PDDL."""
    return tree if isinstance(tree, str) else f"({' '.join(map(write, tree))})"
