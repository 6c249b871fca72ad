"""Numbers in PDDL: expressions over numeric functions, their comparison, and how steps change them.

Arithmetic and comparison are VAL's, to the last bit. It computes and keeps the functions' values as `long double` (on
x86 64 bits of mantissa, and exponents up to 2^16384), but reads numbers, functions and the difference of the two sides
of a comparison as doubles; division by zero gives an infinity or NaN. Two numbers that differ by less than 0.0001 count
as equal. `<` and `>` hold for equal numbers as well (measured: VAL is lenient). Being stricter is no safe side: a
comparison may stand under a `not`, and a plan that VAL rejects would be called valid.

Source: Fox and Long, PDDL2.1, JAIR 20 (2003), sections 4 and 8; the behaviour of VAL (docs/validator.md).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from operator import add, mul, sub, truediv
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jaxppo.planning.language.scope import (
    TOTAL_COST,
    TOTAL_TIME,
    Atom,
    Scope,
    headed,
    read_arguments,
    read_name,
)
from jaxppo.planning.language.sexpr import Node

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Number: TypeAlias = float
"""A double as read from text, or a numpy `long double` where it was computed, which is used like a float."""
Values = Mapping[Atom, Number]
"""The functions that have a value."""

COMPARISONS = frozenset({"<", "<=", "=", ">=", ">"})
UPDATES = frozenset({"increase", "decrease", "assign", "scale-up", "scale-down"})
# Several of these may change one function in one step: their changes add up.
_ADDITIVE = frozenset({"increase", "decrease"})
_ARITHMETIC: dict[str, Callable] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": truediv,
    "increase": add,
    "decrease": sub,
    "scale-up": mul,
    "scale-down": truediv,
}
_DIVISIONS = frozenset({"/", "scale-down"})
# The product of two whole numbers up to 2^26 is below 2^53, so a double holds it exactly.
_SMALL_WHOLE = 2.0**26
# VAL's tolerance in comparisons.
_TOLERANCE = 0.0001
_NUMBER = re.compile(r"-?\d++(?:\.\d*+)?")
# VAL reads whole numbers as 32-bit integers, and larger ones as something else.
_LARGEST_WHOLE = 2**31 - 1


class Operation(NamedTuple):
    """Arithmetic: `-` with one argument is the negative."""

    operator: str
    arguments: tuple["Expression", ...]


Expression: TypeAlias = Number | Operation | Atom
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
    """Read a number; None where the node is not a number."""
    if not isinstance(node, str) or not _NUMBER.fullmatch(node):
        return None
    number = float(node)
    if "." not in node and abs(number) > _LARGEST_WHOLE:
        scope.fail(node, f"whole numbers up to {_LARGEST_WHOLE}; VAL reads larger ones with a '.0'")
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
    # VAL reads a function without arguments with or without parentheses.
    if isinstance(node, str):
        node = [node]
    form, head = headed(node, scope, "a number or '(function ...)'")
    if head in ("+", "-", "*", "/"):
        _check_length(form, head, scope, in_metric)
        arguments = tuple(read_expression(part, scope, in_metric) for part in form[1:])
        return Operation(str(head), arguments)
    if head == TOTAL_TIME and in_metric and len(form) == 1:
        return (TOTAL_TIME,)
    return read_function(form, scope)


def _check_length(form: list[Node], head: str, scope: Scope, in_metric: bool) -> None:
    n_arguments = len(form) - 1
    is_negative = head == "-" and n_arguments == 1
    is_long_metric = in_metric and head in ("+", "*") and n_arguments > 2
    if n_arguments != 2 and not is_negative and not is_long_metric:
        scope.fail(form, f"'({head} ...)' with two arguments (VAL reads no others; nest them)")


def read_function(node: Node, scope: Scope) -> Atom:
    """Read a function of declared terms; `total-cost` needs no declaration in an untyped domain."""
    if isinstance(node, str):
        node = [node]
    form, head = headed(node, scope, "'(function ...)'")
    if head in ("?duration", "#t"):
        scope.refuse(form, head)
    argument_types = scope.functions.get(head)
    if argument_types is None and head == TOTAL_COST and not scope.typed:
        argument_types = ()
    if argument_types is None:
        scope.fail(form, "a number or a function declared under ':functions'")
    name = read_name(head, scope, "a function")
    return (name, *read_arguments(form, argument_types, scope))


def read_update(form: list[Node], scope: Scope) -> Update:
    """Read `(increase (function ...) expression)` and its like."""
    if len(form) != 3:
        scope.fail(form, f"'({form[0]} (function ...) expression)'")
    return Update(str(form[0]), read_function(form[1], scope), read_expression(form[2], scope))


def is_number(expression: Expression) -> "TypeIs[Number]":
    """Return whether an expression is a number, and not a function or arithmetic, which are tuples."""
    return not isinstance(expression, tuple)


def evaluate(expression: Expression, values: Values) -> Number:
    """Compute the value of a ground expression.

    Raises:
        UndefinedNumberError: it reads a function without a value.
    """
    if is_number(expression):
        return expression
    if isinstance(expression, Operation):
        numbers = [evaluate(part, values) for part in expression.arguments]
        if len(numbers) == 1:
            return -numbers[0]
        result = numbers[0]
        for number in numbers[1:]:
            result = _operate(expression.operator, result, number)
        return result
    if expression not in values:
        raise UndefinedNumberError(expression)
    # VAL keeps a `long double` but reads it into an expression as a double.
    return float(values[expression])


def _operate(operator: str, left: Number, right: Number) -> Number:
    """Compute as C does: what is too large becomes an infinity, and division by zero an infinity or NaN."""
    if operator not in _DIVISIONS and _is_small_whole(left) and _is_small_whole(right):
        # Already exact as a double, and much faster than numpy.
        return _ARITHMETIC[operator](left, right)
    # Planning is imported without arrays; most domains never need them.
    import numpy as np

    with np.errstate(all="ignore"):
        return _ARITHMETIC[operator](np.longdouble(left), right)


def _is_small_whole(number: Number) -> bool:
    """Return whether a product of two such numbers is exact as a double."""
    if not isinstance(number, float) or not number.is_integer():
        return False
    return abs(number) <= _SMALL_WHOLE


_HOLDS: dict[str, Callable[[float], bool]] = {
    "<": lambda difference: difference < _TOLERANCE,
    "<=": lambda difference: difference <= _TOLERANCE,
    "=": lambda difference: abs(difference) < _TOLERANCE,
    ">=": lambda difference: difference >= -_TOLERANCE,
    ">": lambda difference: difference > -_TOLERANCE,
}


def compare(operator: str, left: Number, right: Number) -> bool:
    """Compare as VAL does, with its tolerance; NaN compares to nothing."""
    return _HOLDS[operator](float(_operate("-", left, right)))


def updated(updates: Iterable[Update], values: Values) -> dict[Atom, Number]:
    """Compute the new values of the functions that a step changes, all from the old values.

    Increases and decreases of one function add up; any other two changes of one function contradict each other. A
    function without a value is changed as if it were 0, as in VAL.

    Raises:
        UpdateError: two changes contradict each other, or one reads a function without a value.
    """
    changed: dict[Atom, Number] = {}
    exclusive: set[Atom] = set()
    for update in updates:
        operator, function, _ = update
        if function in exclusive or (function in changed and operator not in _ADDITIVE):
            raise UpdateError(update)
        if operator not in _ADDITIVE:
            exclusive.add(function)
        # The amount is computed from the old values, whatever this step has changed so far.
        old = changed.get(function, values.get(function, 0.0))
        changed[function] = _updated_value(update, old, values)
    return changed


def _updated_value(update: Update, old: Number, values: Values) -> Number:
    try:
        amount = evaluate(update.amount, values)
    except UndefinedNumberError:
        raise UpdateError(update) from None
    if update.operator == "assign":
        return amount
    return _operate(update.operator, old, amount)


def write_expression(expression: Expression) -> str:
    """Write an expression as PDDL."""
    if is_number(expression):
        is_whole = abs(expression) < 1e15 and expression == int(expression)
        return f"{expression:.0f}" if is_whole else repr(float(expression))
    if isinstance(expression, Operation):
        arguments = " ".join(map(write_expression, expression.arguments))
        return f"({expression.operator} {arguments})"
    return f"({' '.join(expression)})"


def write_update(update: Update) -> str:
    """Write a numeric effect as PDDL."""
    function = write_expression(update.function)
    return f"({update.operator} {function} {write_expression(update.amount)})"
