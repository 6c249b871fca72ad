"""Conditions of PDDL: what must hold before a step, for an effect, or at the end; read from text and written back.

Source: McDermott et al., PDDL - The Planning Domain Definition Language (1998), sections 6 and 7.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from jaxppo.planning.language.numeric import (
    COMPARISONS,
    Expression,
    Operation,
    is_number,
    read_expression,
    read_number,
    write_expression,
)
from jaxppo.planning.language.scope import Atom, Parameter, Scope, headed, read_atom
from jaxppo.planning.language.sexpr import Node
from jaxppo.planning.language.typed_lists import read_parameters


class Literal(NamedTuple):
    """An atom or its negation."""

    atom: Atom
    positive: bool


class Junction(NamedTuple):
    """`and`, `or`, `imply`, or `not` of what is no atom, over conditions."""

    word: str
    parts: tuple["Condition", ...]

    def signed_parts(self, sign: bool) -> list[tuple["Condition", bool]]:
        """List the parts, each with `sign` where its truth helps the whole, and the contrary where it hurts."""
        signs = [sign] * len(self.parts)
        # `(imply left right)` is `(or (not left) right)`.
        if self.word in ("not", "imply"):
            signs[0] = not sign
        return list(zip(self.parts, signs, strict=True))


class Quantified(NamedTuple):
    """`forall` or `exists` over the objects of the variables' types.

    `fallible` says that reading the body may meet a function without a value, so that the order of reading matters.
    """

    word: str
    parameters: tuple[Parameter, ...]
    body: "Condition"
    fallible: bool


class Comparison(NamedTuple):
    """`< <= = >= >` of two numeric expressions."""

    operator: str
    left: Expression
    right: Expression


Condition: TypeAlias = Literal | Junction | Quantified | Comparison
Binding = Mapping[str, str]
"""Variable to object."""


def read_condition(node: Node, scope: Scope, may_be_empty: bool = True) -> Condition:
    """Read a condition.

    Args:
        node: the parenthesised form.
        scope: the names it may use.
        may_be_empty: whether `()` and `(and)`, which always hold, may stand here. As in VAL they may as a whole
            precondition or goal, and there inside `and` and `forall`; nowhere else.
    """
    if node == [] and may_be_empty:
        return Junction("and", ())
    form, head = headed(node, scope, "a condition '(predicate ...)'")
    match str(head):
        case "and":
            return Junction("and", _parts(form, scope, may_be_empty, 0 if may_be_empty else 1))
        case "or":
            return Junction("or", _parts(form, scope, False, 1))
        case "not":
            return _negated(*_parts(form, scope, False, 1, 1))
        case "imply":
            return Junction("imply", _parts(form, scope, False, 2, 2))
        case "forall" | "exists":
            return _quantified(form, scope, may_be_empty and head == "forall")
    # `=` compares numbers or objects; between objects it is an atom like any other.
    if head in COMPARISONS and (head != "=" or _compares_numbers(form, scope)):
        return _comparison(form, scope)
    return Literal(read_atom(form, head, scope), True)


def read_conjuncts(node: Node, scope: Scope, may_be_empty: bool = True) -> tuple[Condition, ...]:
    """Read a condition as the conditions that an outer `and` joins."""
    return tuple(conjuncts(read_condition(node, scope, may_be_empty)))


def conjuncts(condition: Condition) -> Iterator[Condition]:
    """Yield the conditions that an outer `and`, nested or not, joins."""
    if isinstance(condition, Junction) and condition.word == "and":
        for part in condition.parts:
            yield from conjuncts(part)
    else:
        yield condition


def predicates_in(condition: Condition, positive: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield the predicates of a condition, each with whether its truth helps (True) or hurts the condition."""
    match condition:
        case Literal(atom, sign):
            yield atom[0], sign == positive
        case Junction():
            for part, sign in condition.signed_parts(positive):
                yield from predicates_in(part, sign)
        case Quantified(body=body):
            yield from predicates_in(body, positive)


def is_fallible(condition: Condition, fallible: frozenset[str]) -> bool:
    """Return whether reading a condition may meet a function without a value."""
    match condition:
        case Comparison():
            return True
        case Literal(atom, _):
            return atom[0] in fallible
        case Junction(_, parts):
            return any(is_fallible(part, fallible) for part in parts)
        case Quantified(body=body):
            return is_fallible(body, fallible)


def has_quantifier(condition: Condition) -> bool:
    """Return whether a condition ranges over all objects of some types."""
    if isinstance(condition, Junction):
        return any(map(has_quantifier, condition.parts))
    return isinstance(condition, Quantified)


def write_condition(condition: Condition, binding: Binding) -> str:
    """Write a condition as PDDL, with the bound variables filled in."""
    match condition:
        case Literal(atom, positive):
            text = f"({' '.join(bound_atom(atom, binding))})"
            return text if positive else f"(not {text})"
        case Junction(word, parts):
            return _form(word, (write_condition(part, binding) for part in parts))
        case Quantified(word, parameters, body, _):
            # The quantifier's variables hide those of the same name around it.
            quantified = dict(parameters)
            free = {name: term for name, term in binding.items() if name not in quantified}
            variables = " ".join(map(_write_parameter, parameters))
            return _form(word, [f"({variables})", write_condition(body, free)])
        case Comparison(operator, left, right):
            sides = (bound_expression(side, binding) for side in (left, right))
            return _form(operator, map(write_expression, sides))


def bound_atom(atom: Atom, binding: Binding) -> Atom:
    """Fill the bound variables of an atom in."""
    return (atom[0], *[binding.get(term, term) for term in atom[1:]])


def bound_expression(expression: Expression, binding: Binding) -> Expression:
    """Fill the bound variables of an expression in."""
    if is_number(expression):
        return expression
    if isinstance(expression, Operation):
        arguments = tuple(bound_expression(part, binding) for part in expression.arguments)
        return Operation(expression.operator, arguments)
    return bound_atom(expression, binding)


def _form(head: str, parts: Iterable[str]) -> str:
    return f"({' '.join((head, *parts))})"


def _write_parameter(parameter: Parameter) -> str:
    if parameter.types in ((), ("object",)):
        return parameter.name
    types = " ".join(parameter.types)
    if len(parameter.types) > 1:
        types = f"(either {types})"
    return f"{parameter.name} - {types}"


def _parts(
    form: list[Node], scope: Scope, may_be_empty: bool, min_parts: int, max_parts: int | None = None
):
    """Read the conditions after a form's head and check their number."""
    n_parts = len(form) - 1
    if n_parts < min_parts or (max_parts is not None and n_parts > max_parts):
        number = f"{min_parts}" if min_parts == max_parts else f"at least {min_parts}"
        scope.fail(form, f"'({form[0]} ...)' with {number} condition(s)")
    return tuple(read_condition(part, scope, may_be_empty) for part in form[1:])


def _negated(part: Condition) -> Condition:
    # Nearly all negations are of atoms, and validators check literals as sets of atoms.
    if isinstance(part, Literal) and part.positive:
        return Literal(part.atom, False)
    return Junction("not", (part,))


def _quantified(form: list[Node], scope: Scope, may_be_empty: bool) -> Quantified:
    if len(form) != 3:
        scope.fail(form, f"'({form[0]} (?variable ...) (condition))'")
    parameters, inner = quantifier_scope(form[1], scope)
    body = read_condition(form[2], inner, may_be_empty)
    return Quantified(str(form[0]), parameters, body, is_fallible(body, scope.fallible))


def quantifier_scope(node: Node, scope: Scope) -> tuple[tuple[Parameter, ...], Scope]:
    """Read the variables of a `forall` or `exists`, and make the scope of what follows."""
    if isinstance(node, str):
        scope.fail(node, "'(?variable ...)'")
    parameters = read_parameters(node, scope)
    # VAL ends with an exception where it has to list the objects of no type.
    if not all(parameter.types for parameter in parameters):
        scope.fail(node, "a type for every variable, since the domain has ':types'")
    return parameters, replace(scope, terms={**scope.terms, **dict(parameters)})


def _compares_numbers(form: list[Node], scope: Scope) -> bool:
    """Return whether an `=` is between numbers and not between objects."""
    for side in form[1:]:
        if isinstance(side, list) or side in scope.functions:
            return True
        if read_number(side, scope) is not None:
            return True
    return False


def _comparison(form: list[Node], scope: Scope) -> Comparison:
    if len(form) != 3:
        scope.fail(form, f"'({form[0]} expression expression)'")
    left = read_expression(form[1], scope)
    right = read_expression(form[2], scope)
    return Comparison(str(form[0]), left, right)
