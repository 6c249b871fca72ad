"""The names that a PDDL text may use, and the atoms that they form."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from jaxppo.errors import PddlError
from jaxppo.planning.language.plans import NAME_PATTERN
from jaxppo.planning.language.sexpr import Node, line_of, show

Atom = tuple[str, ...]
"""A predicate's or function's name followed by its arguments; `("=", a, b)` is equality."""

Types = tuple[str, ...]
"""The alternatives of `either`; one entry for a plain type, none where a typed domain states no type."""

ROOT_TYPE = "object"
TOTAL_COST = "total-cost"
TOTAL_TIME = "total-time"
_NAME = re.compile(NAME_PATTERN)
_VARIABLE = re.compile(r"\?" + NAME_PATTERN)
# VAL reads these as keywords wherever they stand (each was tried), so they cannot name anything.
RESERVED = frozenset(
    """define domain problem either and or not when forall exists imply increase decrease assign scale-up scale-down
    always sometime within at-most-once sometime-after sometime-before always-within hold-during hold-after preference
    name number duration minimize maximize total-time is-violated""".split()  # noqa: SIM905
)
# Words of PDDL's conditions and effects that are not
# covered here (`at` and `over` may also name predicates).
BEYOND = frozenset(
    """always sometime within at-most-once sometime-after sometime-before always-within hold-during hold-after
    preference at over""".split()  # noqa: SIM905
)
# Words of other languages than PDDL 2 and 3: neither the built-in validator nor VAL reads them.
BEYOND_ALL = {
    "oneof": "effects of which one happens by chance (non-deterministic planning)",
    "probabilistic": "effects with probabilities (PPDDL)",
    "unknown": "facts that are not known (contingent planning)",
    ":observe": "observations (contingent planning)",
    ":sense": "observations (contingent planning)",
    ":task": "hierarchical task networks (HDDL)",
    ":tasks": "hierarchical task networks (HDDL)",
    ":method": "hierarchical task networks (HDDL)",
    ":htn": "hierarchical task networks (HDDL)",
    ":axiom": "axioms of PDDL 1 (in PDDL 2.2 ':derived')",
    ":vars": "variables of PDDL 1 beside the parameters",
    ":situation": "situations of PDDL 1",
    "situation": "situations of PDDL 1",
}


class UnsupportedPddlError(PddlError):
    """Correct PDDL that the built-in validator does not cover; VAL may."""


class UncoveredPddlError(UnsupportedPddlError):
    """A planning language, or a part of PDDL, that neither the built-in validator nor VAL covers."""


class Parameter(NamedTuple):
    """A variable (`?x`) and the types it may have."""

    name: str
    types: Types


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The names that a text may use at some place, and their types.

    Attributes:
        source: the file's name for messages.
        typed: whether the domain has a section `:types`; only there VAL checks types.
        ancestors: type to itself and everything above it.
        predicates: name to the types of its arguments.
        functions: the same for numeric functions.
        derived: the predicates that rules define.
        fallible: those of them whose rules compare numbers, so that reading them may meet a function without a value.
        terms: variable, constant or object to its types.
        undeclared: where not None, undeclared names are collected here instead of being an error.
        names_only: read what exists (actions, parameters, objects), not what holds (conditions, effects, facts).
    """

    source: str
    typed: bool = False
    ancestors: Mapping[str, frozenset[str]] = field(default_factory=dict)
    predicates: Mapping[str, tuple[Types, ...]] = field(default_factory=dict)
    functions: Mapping[str, tuple[Types, ...]] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()
    fallible: frozenset[str] = frozenset()
    terms: Mapping[str, Types] = field(default_factory=dict)
    undeclared: set[str] | None = None
    names_only: bool = False

    def fail(self, node: Node, requirement: str) -> NoReturn:
        """Refuse text that is not PDDL."""
        raise PddlError(self.source, line_of(node), f"expected {requirement}, got '{show(node)}'")

    def refuse(self, node: Node, feature: str) -> NoReturn:
        """Refuse PDDL that is not covered here; the error says whether VAL may cover it."""
        if feature in BEYOND_ALL:
            self.refuse_for_all(node, BEYOND_ALL[feature])
        message = f"got '{feature}', which is not supported by the built-in validator"
        raise UnsupportedPddlError(self.source, line_of(node), message)

    def refuse_for_all(self, node: Node, feature: str) -> NoReturn:
        """Refuse what VAL does not read either."""
        message = f"got '{show(node)}': {feature} are read neither here nor by VAL"
        raise UncoveredPddlError(self.source, line_of(node), message)


def read_name(node: Node, scope: Scope, what: str) -> str:
    """Check a name that a text declares."""
    if not isinstance(node, str) or not _NAME.fullmatch(node) or node in RESERVED:
        scope.fail(node, f"{what} (letters, digits, '_' and '-', not a word of the language)")
    return str(node)


def read_variable(node: Node, scope: Scope) -> str:
    """Check a variable that a text declares."""
    if not isinstance(node, str) or not _VARIABLE.fullmatch(node):
        scope.fail(node, "a variable such as '?x'")
    if node[1:] in RESERVED or node[1:] in scope.functions:
        scope.fail(
            node,
            "a variable that is not named like a function or a word of the language (VAL reads that)",
        )
    return str(node)


def headed(node: Node, scope: Scope, requirement: str) -> tuple[list[Node], str]:
    """Read a form and the word that it starts with."""
    head = node[0] if isinstance(node, list) and node else None
    if isinstance(node, str) or not isinstance(head, str):
        scope.fail(node, requirement)
    return node, head


def read_atom(form: list[Node], head: str, scope: Scope) -> Atom:
    """Read an atom whose predicate, number of arguments and argument types are as declared."""
    if (head in BEYOND or head in BEYOND_ALL) and head not in scope.predicates:
        scope.refuse(form, head)
    argument_types = _EQUALITY if head == "=" else scope.predicates.get(head)
    if argument_types is None:
        scope.fail(form, "a predicate declared under ':predicates'")
    return (str(head), *read_arguments(form, argument_types, scope))


# `=` compares two objects of any types.
_EQUALITY: tuple[Types, Types] = ((ROOT_TYPE,), (ROOT_TYPE,))


def read_arguments(form: list[Node], argument_types: Sequence[Types], scope: Scope) -> list[str]:
    """Read the arguments of a predicate or function: declared variables, constants and objects of its types."""
    arguments = [item for item in form[1:] if isinstance(item, str)]
    if len(arguments) != len(form) - 1:
        scope.refuse(form, f"numeric or nested {show(form)}")
    if len(arguments) != len(argument_types):
        scope.fail(form, f"{len(argument_types)} argument(s) for '{form[0]}'")
    for argument, types in zip(arguments, argument_types, strict=True):
        _check_declared(argument, scope)
        # As in VAL, types mean nothing in a domain without `:types`, nor for `=`.
        if scope.typed and argument_types is not _EQUALITY:
            _check_type(argument, types, scope)
    return list(map(str, arguments))


def _check_declared(term: str, scope: Scope) -> None:
    if term in scope.terms:
        return
    if term[0] == "?":
        scope.fail(term, "a declared variable")
    # In an untyped domain an action may name an object that only the problem declares.
    if scope.undeclared is None:
        scope.fail(term, "a declared object or constant")
    scope.undeclared.add(read_name(term, scope, "an object"))


def _check_type(term: str, argument_types: Types, scope: Scope) -> None:
    types = scope.terms[term]
    if not types or not argument_types:
        scope.fail(term, "a type for it and for what it stands for, since the domain has ':types'")
    fits = [not scope.ancestors[name].isdisjoint(argument_types) for name in types]
    # A variable may turn out to be of any of its types; an object is of all of them.
    is_fitting = all(fits) if term[0] == "?" else any(fits)
    if not is_fitting:
        scope.fail(term, f"an argument of type '{' or '.join(argument_types)}'")
