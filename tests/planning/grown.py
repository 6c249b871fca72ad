"""PDDL grown from a grammar: texts of which some parts, or all, are others that may stand there, or nearly so.

A text is one that can be read, with one to four of its parts replaced by what the grammar makes of a symbol, mostly one
that belongs at such a place; names are those of the text, so that what is grown is often right. Everything is a
function of the random generator.
"""

import random
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from jaxppo.planning.language.sexpr import Node, read_fast

Tree: TypeAlias = "str | list[Tree]"

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
    "DOMAIN": """(define (domain NAME) (:requirements :adl) (:types TYPED) (:constants TYPED)
        (:predicates SIGNATURE*) (:functions SIGNATURE*) ACTION*) | (define (domain NAME) SECTION*)""",
    "PROBLEM": """(define (problem NAME) (:domain NAME) (:objects TYPED) (:init FACT*) (:goal CONDITION))
        | (define (problem NAME) (:domain NAME) SECTION*)""",
}
MAX_DEPTH = 6
"""Deeper, a symbol becomes a name."""
STARS = 4
"""A starred symbol comes fewer times than that."""

RULES: dict[str, list[list[Node]]] = {
    symbol.lower(): [read_fast(f"({rule})", symbol) for rule in " ".join(rules.split()).split(" | ")]
    for symbol, rules in GRAMMAR.items()
}
KINDS = {
    head: kinds
    for heads, kinds in (
        ("and or not imply forall exists ()", ("condition", "effect")),
        ("< > <= >= =", ("condition", "condition", "fact")),
        ("when increase decrease assign scale-up scale-down", ("effect",)),
        ("+ - * /", ("value",)),
    )
    for head in heads.split()
}
"""What may stand in the place of a form, by its first word."""
SOMETIMES = 0.08
"""Share of places where anything may stand."""

Texts = tuple[str, str, str]
"""Domain, problem and plan."""


class Stock(NamedTuple):
    """What a case has words for: names, and forms without others inside."""

    names: list[str]
    atoms: list[list[Tree]]


def regrown(texts: Texts, rng: random.Random) -> Texts:
    """Return the texts with one of them changed, and the plan, now and then, a new one."""
    domain, problem, plan = texts
    trees = read_fast(domain, "<domain>"), read_fast(problem, "<problem>")
    names = [word for word in re.findall(r"(?<![:?\w-])[a-z][\w-]*+", f"{domain} {problem}") if word not in WORDS]
    is_first = rng.random() < 0.5
    places = list(_places(trees[1 - is_first]))
    stock = Stock(names, [part for parent, at in places if _is_atom(part := parent[at])])
    if rng.random() < 0.1:
        plan = "".join(write(part) for part in _follow(["atom*"], 0, stock, rng))
    if rng.random() < 0.05:
        changed = "".join(write(part) for part in _grow("domain" if is_first else "problem", 0, stock, rng))
    else:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            _change(*rng.choice(places), stock, rng)
        changed = write(trees[1 - is_first])
    return (changed, problem, plan) if is_first else (domain, changed, plan)


def _places(tree: list[Any]) -> Iterator[tuple[list[Any], int]]:
    """Every part of a tree, as the list that holds it and its number there."""
    for at, part in enumerate(tree):
        yield tree, at
        if isinstance(part, list):
            yield from _places(part)


def _is_atom(tree: Tree) -> bool:
    return (
        isinstance(tree, list)
        and all(isinstance(part, str) for part in tree)
        and bool(tree)
        and str(tree[0])[0].isalpha()
        and tree[0] not in WORDS
    )


def _change(parent: list[Any], at: int, stock: Stock, rng: random.Random) -> None:
    if at >= len(parent):  # by an earlier change
        return
    how, part = rng.random(), parent[at]
    if how < 0.1:
        del parent[at]
    elif how < 0.2:
        parent.insert(rng.randrange(len(parent) + 1), part)
    elif isinstance(part, str):
        parent[at] = rng.choice((*rng.sample(stock.names, 4), rng.choice(WORDS + NUMBERS)))
    else:
        head = part[0] if part and isinstance(part[0], str) else "()"
        kinds = ("action", "section") if head[0] == ":" else KINDS.get(head, ("atom", "condition", "effect", "value"))
        symbol = rng.choice(tuple(RULES) if rng.random() < SOMETIMES else kinds)
        parent[at : at + 1] = _grow(symbol, 0, stock, rng)


def _grow(symbol: str, depth: int, stock: Stock, rng: random.Random) -> list[Tree]:
    if depth > MAX_DEPTH or rng.random() < 0.01:
        return [rng.choice((rng.choice(stock.names), rng.choice(WORDS)))]
    if symbol == "atom" and stock.atoms and rng.random() < 0.95:
        return [list(rng.choice(stock.atoms))]
    return _follow(rng.choice(RULES[symbol]), depth + 1, stock, rng)


def _follow(rule: list[Node], depth: int, stock: Stock, rng: random.Random) -> list[Tree]:
    grown: list[Tree] = []
    for part in rule:
        if isinstance(part, list):
            grown.append(_follow(part, depth, stock, rng))
        elif part == "name":
            grown.append(rng.choice(stock.names))
        elif part == "number":
            grown.append(rng.choice(NUMBERS))
        elif part.rstrip("*") in RULES:
            for _ in range(rng.randrange(STARS) if part.endswith("*") else 1):
                grown += _grow(part.rstrip("*"), depth, stock, rng)
        else:
            grown.append(part)
    return grown


def write(tree: Tree) -> str:
    """Write a tree as PDDL."""
    return tree if isinstance(tree, str) else f"({' '.join(map(write, tree))})"
