"""Numbers in PDDL: expressions over numeric functions, their comparison, and how steps change them.

Arithmetic and comparison are VAL's: double precision, division by zero gives an infinity or NaN, and two numbers that
differ by less than 0.0001 count as equal. `<` and `>` hold for equal numbers as well (measured: VAL is lenient); who is
stricter there calls a plan valid that VAL does not, by way of a `not`.

Source: Fox and Long, PDDL2.1, JAIR 20 (2003), sections 4 and 8; the behaviour of VAL (docs/validator.md).
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from jaxppo.planning.language.scope import TOTAL_COST, TOTAL_TIME, Atom, Scope, headed, read_arguments, read_name
from jaxppo.planning.language.sexpr import Node

Values = Mapping[Atom, float]
"""The functions that have a value."""

COMPARISONS = frozenset({"<", "<=", "=", ">=", ">"})
UPDATES = frozenset({"increase", "decrease", "assign", "scale-up", "scale-down"})
_ADDITIVE = frozenset({"increase", "decrease"})
_TOLERANCE = 0.0001
_NUMBER = re.compile(r"-?\d++(?:\.\d*+)?")
# VAL reads whole numbers as 32-bit integers, and larger ones as something else.
_LARGEST_WHOLE = 2**31 - 1


class Operation(NamedTuple):
    """Arithmetic: `-` with one argument is the negative."""

    operator: str
    arguments: tuple["Expression", ...]


Expression: TypeAlias = float | Operation | Atom
"""A number, a function of objects, or arithmetic over them."""


class Update(NamedTuple):
    """A numeric effect: `(increase (fuel ?t) 3)`."""

    operator: str
    function: Atom
    amount: Expression


class UndefinedNumberError(Exception):
    """A function without a value was read."""


class UpdateError(Exception):
    """A numeric effect cannot be applied; the argument is that effect."""


def read_number(node: Node, scope: Scope) -> float | None:
    """Read a number; None where the node is none."""
    if not isinstance(node, str) or not _NUMBER.fullmatch(node):
        return None
    number = float(node)
    if "." not in node and abs(number) > _LARGEST_WHOLE:
        scope.fail(node, f"whole numbers up to {_LARGEST_WHOLE} (VAL reads no larger ones; with a '.0' it does)")
    return number


def read_expression(node: Node, scope: Scope, in_metric: bool = False) -> Expression:
    """Read an expression of `(function ...)`, numbers, `+ - * /` with two arguments and `-` with one.

    Args:
        node: the expression.
        scope: the names it may use.
        in_metric: also read `total-time`, and sums and products of more than two.
    """
    number = read_number(node, scope)
    if number is not None:
        return number
    if isinstance(node, str):
        node = [node]
    form, head = headed(node, scope, "a number or '(function ...)'")
    if head in ("+", "-", "*", "/"):
        _check_length(form, head, scope, in_metric)
        return Operation(str(head), tuple(read_expression(part, scope, in_metric) for part in form[1:]))
    if head == TOTAL_TIME and in_metric and len(form) == 1:
        return (TOTAL_TIME,)
    return read_function(form, scope)


def _check_length(form: list[Node], head: str, scope: Scope, in_metric: bool) -> None:
    longer = in_metric and head in ("+", "*") and len(form) > 3
    if not (len(form) == 3 or (len(form) == 2 and head == "-") or longer):
        scope.fail(form, f"'({head} ...)' with two arguments (VAL reads no others; nest them)")


def read_function(node: Node, scope: Scope) -> Atom:
    """Read a function of declared terms; `total-cost` needs no declaration in an untyped domain."""
    if isinstance(node, str):
        node = [node]
    form, head = headed(node, scope, "'(function ...)'")
    if head in ("?duration", "#t"):
        scope.refuse(form, head)
    wanted = scope.functions.get(head)
    if wanted is None and head == TOTAL_COST and not scope.typed:
        wanted = ()
    if wanted is None:
        scope.fail(form, "a number or a function declared under ':functions'")
    return (read_name(head, scope, "a function"), *read_arguments(form, wanted, scope, typed=scope.typed))


def read_update(form: list[Node], scope: Scope) -> Update:
    """Read `(increase (function ...) expression)` and its like."""
    if len(form) != 3:
        scope.fail(form, f"'({form[0]} (function ...) expression)'")
    return Update(str(form[0]), read_function(form[1], scope), read_expression(form[2], scope))


def evaluate(expression: Expression, values: Values) -> float:
    """Compute the value of a ground expression.

    Raises:
        UndefinedNumberError: it reads a function without a value.
    """
    if isinstance(expression, float | int):
        return expression
    if isinstance(expression, Operation):
        return _operate(expression.operator, [evaluate(part, values) for part in expression.arguments])
    if expression not in values:
        raise UndefinedNumberError(expression)
    return values[expression]


def _operate(operator: str, numbers: list[float]) -> float:
    if operator == "+":
        return math.fsum(numbers) if len(numbers) > 2 else numbers[0] + numbers[1]
    if operator == "*":
        return math.prod(numbers)
    if operator == "/":
        return _divide(*numbers)
    return -numbers[0] if len(numbers) == 1 else numbers[0] - numbers[1]


def _divide(dividend: float, divisor: float) -> float:
    """Divide as the hardware does: by zero it gives an infinity, or NaN for 0/0."""
    if divisor != 0:
        return dividend / divisor
    if dividend == 0 or math.isnan(dividend):
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1, divisor)


_HOLDS: dict[str, Callable[[float], bool]] = {
    "<": lambda difference: difference < _TOLERANCE,
    "<=": lambda difference: difference < _TOLERANCE,
    "=": lambda difference: abs(difference) < _TOLERANCE,
    ">=": lambda difference: difference > -_TOLERANCE,
    ">": lambda difference: difference > -_TOLERANCE,
}


def compare(operator: str, left: float, right: float) -> bool:
    """Compare as VAL does, with its tolerance; NaN compares to nothing."""
    return _HOLDS[operator](left - right)


def updated(updates: Iterable[Update], values: Values) -> dict[Atom, float]:
    """Compute the new values of the functions that a step changes, all from the old values.

    Increases and decreases of one function add up; any other two changes of one function contradict each other. A
    function without a value is changed as if it were 0, as in VAL.

    Raises:
        UpdateError: two changes contradict each other, or one reads a function without a value.
    """
    changed: dict[Atom, float] = {}
    exclusive: set[Atom] = set()
    for update in updates:
        operator, function, _ = update
        if function in exclusive or (function in changed and operator not in _ADDITIVE):
            raise UpdateError(update)
        if operator not in _ADDITIVE:
            exclusive.add(function)
        changed[function] = _updated_value(update, changed.get(function, values.get(function, 0.0)), values)
    return changed


def _updated_value(update: Update, old: float, values: Values) -> float:
    try:
        amount = evaluate(update.amount, values)
    except UndefinedNumberError:
        raise UpdateError(update) from None
    match update.operator:
        case "increase":
            return old + amount
        case "decrease":
            return old - amount
        case "assign":
            return amount
        case "scale-up":
            return old * amount
        case _:
            return _divide(old, amount)


def write_expression(expression: Expression) -> str:
    """Write an expression as PDDL."""
    if isinstance(expression, float | int):
        return f"{expression:.0f}" if abs(expression) < 1e15 and expression == int(expression) else repr(expression)
    if isinstance(expression, Operation):
        return f"({expression.operator} {' '.join(map(write_expression, expression.arguments))})"
    return f"({' '.join(expression)})"


def write_update(update: Update) -> str:
    """Write a numeric effect as PDDL."""
    return f"({update.operator} {write_expression(update.function)} {write_expression(update.amount)})"
