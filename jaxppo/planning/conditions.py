"""Conditions, effects and facts: parenthesised forms to literals over declared names.

What goes beyond conjunctions of literals is refused by name.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from jaxppo.errors import PddlError
from jaxppo.planning.plans import NAME_PATTERN
from jaxppo.planning.sexpr import Form, Word, show

Atom = tuple[str, ...]
"""A predicate's name followed by its arguments; `("=", a, b)` is equality."""

Types = tuple[str, ...]
"""The alternatives of `either`; one entry for a plain type."""

ROOT_TYPE = "object"
_NAME = re.compile(NAME_PATTERN)
# VAL reads these as keywords wherever they stand (tried out one by one), so they cannot name anything.
_RESERVED = frozenset(
    """define domain problem either and or not when forall exists imply increase decrease assign scale-up scale-down
    always sometime within at-most-once sometime-after sometime-before always-within hold-during hold-after preference
    name number duration minimize maximize total-time is-violated""".split()  # noqa: SIM905
)
_BEYOND = _RESERVED - {"and", "not"} | {"<", ">", "<=", ">=", "at", "over"}
_UPDATES = frozenset({"increase", "decrease", "assign", "scale-up", "scale-down"})
_ARITHMETIC = frozenset({"+", "-", "*", "/"})
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?|total-time")


class UnsupportedPddlError(PddlError):
    """Right PDDL that the built-in validator does not cover; VAL may."""


class Literal(NamedTuple):
    """An atom or its negation."""

    atom: Atom
    positive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the names in a text may refer to.

    Attributes:
        source: the file's name for messages.
        ancestors: type to itself and everything above it.
        predicates: name to the types of its arguments.
        terms: variable, constant or object to its types.
        late: where not None, undeclared names are collected here instead of being an error.
        names_only: read what exists (actions, parameters, objects), not what holds (conditions, effects, facts).
    """

    source: str
    ancestors: Mapping[str, frozenset[str]] = field(default_factory=dict)
    predicates: Mapping[str, tuple[Types, ...]] = field(default_factory=dict)
    terms: Mapping[str, Types] = field(default_factory=dict)
    late: set[str] | None = None
    names_only: bool = False

    def fail(self, node: Word | Form, expected: str) -> NoReturn:
        """Refuse text that is not PDDL."""
        raise PddlError(self.source, node.line, f"expected {expected}, got '{show(node)}'")

    def refuse(self, node: Word | Form, feature: str) -> NoReturn:
        """Refuse PDDL that goes too far."""
        message = f"expected STRIPS, got '{feature}', which is not supported by the built-in validator"
        raise UnsupportedPddlError(self.source, node.line, message)


def read_name(node: Word | Form, scope: Scope, what: str) -> str:
    """Check a name that a text declares."""
    if isinstance(node, Form) or not _NAME.fullmatch(node) or node in _RESERVED:
        scope.fail(node, f"{what} (letters, digits, '_' and '-', not a word of the language)")
    return str(node)


def read_condition(node: Word | Form, scope: Scope) -> tuple[Literal, ...]:
    """Read a conjunction of literals; `()` is always true."""
    if node == []:
        return ()
    form, head = _headed(node, scope, "a condition '(predicate ...)'")
    if head == "and":
        return tuple(literal for part in form[1:] for literal in read_condition(part, scope))
    return (_literal(form, head, scope),)


def read_effects(node: Word | Form, scope: Scope) -> tuple[Literal, ...]:
    """Read the literals of an effect; for its numeric updates see `read_updates`."""
    form, head = _headed(node, scope, "an effect '(predicate ...)' or '(and)'")
    if head == "and":
        return tuple(literal for part in form[1:] for literal in read_effects(part, scope))
    if head in _UPDATES:
        return ()
    literal = _literal(form, head, scope)
    if literal.atom[0] == "=":
        scope.fail(form, "an effect on a predicate")
    return (literal,)


def read_updates(node: Word | Form, scope: Scope) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """Read which functions (costs) an effect sets, and which it reads to do so."""
    form, head = _headed(node, scope, "an effect '(predicate ...)' or '(and)'")
    if head == "and":
        parts = [read_updates(part, scope) for part in form[1:]]
        return tuple(atom for sets, _ in parts for atom in sets), tuple(atom for _, reads in parts for atom in reads)
    if head not in _UPDATES:
        return (), ()
    if len(form) != 3:
        scope.fail(form, f"'({head} (function ...) expression)'")
    return tuple(read_functions(form[1], scope)), tuple(read_functions(form[2], scope))


def read_functions(node: Word | Form, scope: Scope) -> Iterator[Atom]:
    """Read which functions an expression names."""
    if isinstance(node, Word):
        if not _NUMBER.fullmatch(node):
            yield (read_name(node, scope, "a number or a function"),)
        return
    form, head = _headed(node, scope, "a number or '(function ...)'")
    if head in _ARITHMETIC:
        for part in form[1:]:
            yield from read_functions(part, scope)
    elif head != "total-time":
        yield (read_name(head, scope, "a function"), *_arguments(form, scope))


def read_facts(items: Sequence[Word | Form], scope: Scope) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """Read which atoms hold at the start, and which functions have a value.

    Negated facts are left out, even where they contradict a positive one (as in VAL).
    """
    facts, functions = [], []
    for node in items:
        form, head = _headed(node, scope, "a fact '(predicate object ...)'")
        if head == "=":
            functions.extend(_valued_functions(form, scope))
        elif (literal := _literal(form, head, scope)).positive:
            facts.append(literal.atom)
    return tuple(dict.fromkeys(facts)), tuple(functions)


def _valued_functions(form: Form, scope: Scope) -> Iterator[Atom]:
    if len(form) != 3 or not isinstance(form[1], Form) or not isinstance(form[2], Word):
        scope.fail(form, "'(= (function ...) number)'")
    return read_functions(form[1], scope)


def _headed(node: Word | Form, scope: Scope, expected: str) -> tuple[Form, Word]:
    """A form and the word that it starts with."""
    head = node[0] if isinstance(node, Form) and node else None
    if isinstance(node, Word) or not isinstance(head, Word):
        scope.fail(node, expected)
    return node, head


def _literal(form: Form, head: Word, scope: Scope) -> Literal:
    if head != "not":
        return Literal(_atom(form, head, scope), True)
    if len(form) != 2:
        scope.fail(form, "'(not (predicate ...))'")
    inner, inner_head = _headed(form[1], scope, "'(predicate ...)' behind 'not'")
    if inner_head in ("and", "not"):
        scope.refuse(form, f"not {inner_head}")
    return Literal(_atom(inner, inner_head, scope), False)


def _atom(form: Form, head: Word, scope: Scope) -> Atom:
    """An atom whose predicate, number of arguments and argument types are as declared."""
    if head in _BEYOND and head not in scope.predicates:
        scope.refuse(form, head)
    arguments = _arguments(form, scope)
    wanted = ((ROOT_TYPE,),) * 2 if head == "=" else scope.predicates.get(head)
    if wanted is None:
        scope.fail(form, "a predicate declared under ':predicates'")
    if len(arguments) != len(wanted):
        scope.fail(form, f"{len(wanted)} argument(s) for '{head}'")
    for argument, types in zip(arguments, wanted, strict=True):
        _check_type(argument, types, scope)
    return (str(head), *map(str, arguments))


def _arguments(form: Form, scope: Scope) -> list[Word]:
    """What stands behind a predicate or function: declared variables, constants and objects."""
    arguments = [item for item in form[1:] if isinstance(item, Word)]
    if len(arguments) != len(form) - 1:
        scope.refuse(form, f"numeric or nested {show(form)}")
    for term in arguments:
        if term not in scope.terms:
            if scope.late is None or term[0] == "?":
                scope.fail(term, "a declared variable" if term[0] == "?" else "a declared object or constant")
            scope.late.add(read_name(term, scope, "an object"))
    return arguments


def _check_type(term: Word, wanted: Types, scope: Scope) -> None:
    # A variable may turn out to be of any of its types; an object is of all of them.
    holds = all if term[0] == "?" else any
    types = scope.terms.get(term, (ROOT_TYPE,))
    if types != wanted and not holds(not scope.ancestors[name].isdisjoint(wanted) for name in types):
        scope.fail(term, f"an argument of type '{' or '.join(wanted)}'")
