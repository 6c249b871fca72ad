"""Random arithmetic at the edge: sums that rounding decides, constants near VAL's tolerance, overflow, division by 0.

Many cases share one domain and one problem, so that VAL, which takes several plans, is started once for all of them.
"""

import math
import operator
import random
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple, TypeAlias

Expression: TypeAlias = float | str | tuple
"""A number, a function as PDDL, or an operator and its arguments."""

FUNCTIONS = ("(f)", "(u)", "(h a)", "(h b)")
# Where rounding shows: the tolerance and its neighbours, the ends of 53 and 64 bits of mantissa, and of the exponents.
_SMALL = (0.0, 1.0, 3.0, 0.1, 0.2, 0.3, 0.5, 1e-4, 2e-4, 1e-5, 1e-19, 1e-300)
_LARGE = (1e15, 1e16, 1e17, 2.0**53, 2.0**53 + 2, 2.0**63, 2.0**64, 2.0**64 + 4096, 1e300, sys.float_info.max)
_COMPUTE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


class NumericCases(NamedTuple):
    """Each plan is a case: a step that changes numbers, taken up to twice, and one whose precondition reads them."""

    domain: str
    problem: str
    plans: tuple[str, ...]


def draw_numeric_cases(rng: random.Random, n_cases: int) -> NumericCases:
    """Draw cases, each with two actions of its own, over the same functions."""
    values = {function: _draw_number(rng) for function in FUNCTIONS}
    init = " ".join(f"(= {function} {_write(value)})" for function, value in values.items())
    actions = "\n".join(
        f"(:action change{n} :parameters () :precondition (p) :effect {_draw_effects(rng)})"
        f"(:action check{n} :parameters () :precondition {_draw_condition(rng, values)} :effect (g))"
        for n in range(n_cases)
    )
    domain = f"""(define (domain d) (:requirements :adl :fluents) (:predicates (p) (g) (r ?x))
        (:functions (f) (u) (h ?x)) {actions})"""
    problem = f"(define (problem x) (:domain d) (:objects a b) (:init (p) (r a) (r b) {init}) (:goal (g)))"
    return NumericCases(
        domain, problem, tuple(f"(change{n})\n" * rng.randrange(3) + f"(check{n})\n" for n in range(n_cases))
    )


def _draw_effects(rng: random.Random) -> str:
    return f"(and (p) {' '.join(_draw_effect(rng) for _ in range(rng.randrange(4)))})"


def _draw_effect(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.1:
        return f"(forall (?x) (and (increase (f) (* (h ?x) {_write(_draw_number(rng))}))))"
    change = rng.choice(("increase", "increase", "increase", "decrease", "assign", "scale-up", "scale-down"))
    update = f"({change} {rng.choice(FUNCTIONS)} {_write(_draw_expression(rng, 1))})"
    return f"(when (p) (and {update}))" if kind < 0.3 else update


def _draw_condition(rng: random.Random, values: Mapping[str, float]) -> str:
    left, right = _draw_expression(rng, 2), _draw_expression(rng, 1)
    if rng.random() < 0.6:  # where the tolerance ends, as far as doubles say
        edge = _near(_value(left, values) + rng.choice((1e-4, -1e-4, 0.0)), rng)
        right = edge if math.isfinite(edge) else right
    test = f"({rng.choice(('<', '<=', '=', '>=', '>'))} {_write(left)} {_write(right)})"
    return f"(not {test})" if rng.random() < 0.5 else test


def _draw_expression(rng: random.Random, depth: int) -> Expression:
    kind = rng.random() if depth else rng.random() / 2
    if kind < 0.25:
        return _draw_number(rng)
    if kind < 0.5:
        return rng.choice(FUNCTIONS)
    if kind < 0.55:
        return "-", _draw_expression(rng, depth - 1)
    return rng.choice("++--**/"), _draw_expression(rng, depth - 1), _draw_expression(rng, depth - 1)


def _draw_number(rng: random.Random) -> float:
    number = rng.choice(_SMALL if rng.random() < 0.6 else _LARGE)
    return min(_near(number, rng), sys.float_info.max) if rng.random() < 0.3 else number


def _near(number: float, rng: random.Random) -> float:
    """Step up to three doubles to either side."""
    for _ in range(rng.randrange(4)):
        number = math.nextafter(number, rng.choice((-math.inf, math.inf)))
    return number


def _write(expression: Expression) -> str:
    """Write PDDL; a number gets a point and no exponent."""
    if isinstance(expression, tuple):
        return f"({expression[0]} {' '.join(map(_write, expression[1:]))})"
    if isinstance(expression, str):
        return expression
    text = format(Decimal(repr(expression)), "f")
    return text if "." in text else f"{text}.0"


def _value(expression: Expression, values: Mapping[str, float]) -> float:
    """Compute in doubles, before any step."""
    if isinstance(expression, float):
        return expression
    if isinstance(expression, str):
        return values[expression]
    parts: Sequence[float] = [_value(part, values) for part in expression[1:]]
    try:
        return -parts[0] if len(parts) == 1 else _COMPUTE[expression[0]](*parts)
    except ZeroDivisionError:
        return math.inf
