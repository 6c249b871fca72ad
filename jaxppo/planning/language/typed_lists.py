"""Typed lists of PDDL: `a b - type c - (either t u)`, and the hierarchy that `:types` declares."""

from collections.abc import Iterator, Mapping, Sequence

from jaxppo.planning.language.scope import ROOT_TYPE, Parameter, Scope, Types, read_name, read_variable
from jaxppo.planning.language.sexpr import Node

_MAX_ANCESTORS = 500_000


def _named_types(items: Sequence[Node], scope: Scope) -> Iterator[tuple[str, Types | None, Node]]:
    """Yield the names of `a b - type c` with their types (None where not stated) and the node that states the type."""
    waiting: list[str] = []
    rest = iter(items)
    for node in rest:
        if node == "-":
            stated = next(rest, None)
            if stated is None or not waiting:
                scope.fail(node, "names, '-' and a type")
            types = _type_names(stated, scope)
            yield from ((name, types, stated) for name in waiting)
            waiting = []
        elif isinstance(node, str):
            waiting.append(node)
        else:
            scope.fail(node, "a name or '- type'")
    yield from ((name, None, name) for name in waiting)


def _type_names(node: Node, scope: Scope) -> Types:
    if isinstance(node, str):
        return (read_name(node, scope, "a type"),)
    if len(node) < 2 or node[0] != "either":
        scope.fail(node, "a type or '(either type ...)'")
    return tuple(read_name(item, scope, "a type") for item in node[1:])


def read_types(items: Sequence[Node], scope: Scope) -> dict[str, Types]:
    """Read the section `:types`: each declared type to its parents."""
    types: dict[str, Types] = {}
    for name, parents, _ in _named_types(items, scope):
        types[read_name(name, scope, "a type")] = types.get(name, ()) + (parents or ())
    return types


def ancestors_of(types: Mapping[str, Types], items: Sequence[Node], scope: Scope) -> dict[str, frozenset[str]]:
    """Map every type, declared or used as a parent, to itself and all types above it (cycles are harmless).

    `object` is a type of every domain, but as in VAL it is above the others only where `:types`, whose items are given,
    says so.
    """
    names = {ROOT_TYPE, *types, *(parent for parents in types.values() for parent in parents)}
    ancestors: dict[str, frozenset[str]] = {}
    room = _MAX_ANCESTORS
    for name in names:
        ancestors[name] = frozenset(_upwards(name, types))
        room -= len(ancestors[name])
        if room < 0:
            scope.fail(items[0], f"types that have at most {_MAX_ANCESTORS} types above them, all in all")
    return ancestors


def _upwards(name: str, types: Mapping[str, Types]) -> set[str]:
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting.extend(types.get(current, ()))
    return reached


def read_typed_list(items: Sequence[Node], scope: Scope) -> Iterator[tuple[str, Types]]:
    """Read a list whose types must be declared; names without one are objects, in a typed domain of no type."""
    unstated = () if scope.typed else (ROOT_TYPE,)
    for name, types, stated in _named_types(items, scope):
        if types is None:
            types = unstated
        elif not all(entry in scope.ancestors for entry in types):
            scope.fail(stated, "a type declared under ':types'")
        yield name, types


def read_parameters(items: Sequence[Node], scope: Scope) -> tuple[Parameter, ...]:
    """Read a typed list of different variables."""
    parameters: dict[str, Parameter] = {}
    for name, types in read_typed_list(items, scope):
        if name in parameters:
            scope.fail(name, "every parameter to have its own name")
        parameters[name] = Parameter(read_variable(name, scope), types)
    return tuple(parameters.values())
