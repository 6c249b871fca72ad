"""Typed lists of PDDL: `a b - type c - (either t u)`, and the hierarchy that `:types` declares.

A name that is declared more than once has the types that VAL gives it, which reads the last declaration first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxppo.planning.language.scope import (
    ROOT_TYPE,
    Parameter,
    Scope,
    Types,
    read_name,
    read_variable,
)
from jaxppo.planning.language.sexpr import Node


def _named_types(items: Sequence[Node], scope: Scope) -> Iterator[tuple[str, Types | None, Node]]:
    """Yield the names of `a b - type c` with their types (None where not stated) and the node that states the type."""
    waiting: list[str] = []
    nodes = iter(items)
    for node in nodes:
        if node == "-":
            stated = next(nodes, None)
            # As in VAL, a type without names before it is read and belongs to nothing.
            if stated is None:
                scope.fail(node, "names, '-' and a type")
            types = _type_names(stated, scope)
            for name in waiting:
                yield name, types, stated
            waiting = []
        elif isinstance(node, str):
            waiting.append(node)
        else:
            scope.fail(node, "a name or '- type'")
    for name in waiting:
        yield name, None, name


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


def ancestors_of(types: Mapping[str, Types]) -> dict[str, frozenset[str]]:
    """Map every type, declared or used as a parent, to itself and all types above it (cycles are harmless).

    `object` is a type of every domain, but as in VAL it is above the others only where `:types` says so.
    """
    # A parent need not be declared itself.
    names = {ROOT_TYPE, *types}
    for parents in types.values():
        names.update(parents)
    return {name: frozenset(reachable(name, types)) for name in names}


def reachable(name: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    """Return a name and all that edges lead to from it, directly or not."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting.extend(edges.get(current, ()))
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
    """Read a typed list of variables; of several with one name each has the types of all, and the last one's value."""
    declarations = []
    for name, types in read_typed_list(items, scope):
        declarations.append((read_variable(name, scope), types))
    types_of = declared_types(declarations)
    return tuple(Parameter(name, types_of[name]) for name, _ in declarations)


def declared_types(
    declarations: Sequence[tuple[str, Types]], earlier_types: Mapping[str, Types] | None = None
) -> dict[str, Types]:
    """Map each name of a list to its types, in the order of the list.

    Args:
        declarations: names with the types declared for them there; a name may come again.
        earlier_types: the types of names that an earlier list has declared.
    """
    types_of = dict(earlier_types or {})
    # First every name in the order of the text, then its
    # types from the last declaration on, as VAL reads them.
    for name, _ in declarations:
        types_of.setdefault(name, ())
    for name, types in reversed(declarations):
        types_of[name] = _joined(types_of[name], types)
    return types_of


def _joined(types: Types, more: Types) -> Types:
    """Join the types that a name has with those of another declaration.

    `a - t a - u` is of both types; but where an `either` is one of the declarations, a plain type that VAL has read
    before hides it, and it hides an earlier list of types.
    """
    if not types or not more:
        return types or more
    if len(more) == 1:
        return tuple(dict.fromkeys((*types, *more)))
    return types if len(types) == 1 else more
