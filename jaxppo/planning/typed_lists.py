"""Typed lists of PDDL: `a b - type c - (either t u)`, and the hierarchy that `:types` declares."""

from collections.abc import Iterator, Mapping, Sequence

from jaxppo.planning.conditions import ROOT_TYPE, Scope, Types, read_name
from jaxppo.planning.sexpr import Form, Word


def _named_types(items: Sequence[Word | Form], scope: Scope) -> Iterator[tuple[Word, Types, Word | Form]]:
    """The names of `a b - type c` with their types and the node that states the type."""
    waiting: list[Word] = []
    rest = iter(items)
    for node in rest:
        if node == "-":
            stated = next(rest, None)
            if stated is None or not waiting:
                scope.fail(node, "names, '-' and a type")
            types = _type_names(stated, scope)
            yield from ((name, types, stated) for name in waiting)
            waiting = []
        elif isinstance(node, Word):
            waiting.append(node)
        else:
            scope.fail(node, "a name or '- type'")
    yield from ((name, (ROOT_TYPE,), name) for name in waiting)


def _type_names(node: Word | Form, scope: Scope) -> Types:
    if isinstance(node, Word):
        return (read_name(node, scope, "a type"),)
    if len(node) < 2 or node[0] != "either":
        scope.fail(node, "a type or '(either type ...)'")
    return tuple(read_name(item, scope, "a type") for item in node[1:])


def read_types(items: Sequence[Word | Form], scope: Scope) -> dict[str, Types]:
    """Read the section `:types`: each declared type to its parents."""
    types: dict[str, Types] = {}
    for name, parents, _ in _named_types(items, scope):
        types[read_name(name, scope, "a type")] = types.get(name, ()) + parents
    return types


def ancestors_of(types: Mapping[str, Types]) -> dict[str, frozenset[str]]:
    """Every type that is declared or used as a parent, to itself and all types above it (cycles are harmless)."""
    names = {ROOT_TYPE, *types, *(parent for parents in types.values() for parent in parents)}
    return {name: frozenset(_upwards(name, types)) for name in names}


def _upwards(name: str, types: Mapping[str, Types]) -> set[str]:
    reached, waiting = {ROOT_TYPE}, [name]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting.extend(types.get(current, ()))
    return reached


def read_typed_list(items: Sequence[Word | Form], scope: Scope) -> Iterator[tuple[Word, Types]]:
    """A typed list whose types must be declared."""
    for name, types, stated in _named_types(items, scope):
        if not all(entry in scope.ancestors for entry in types):
            scope.fail(stated, "a type declared under ':types'")
        yield name, types
