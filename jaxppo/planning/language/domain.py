"""The text of a domain to a `Domain`.

Source: McDermott et al., PDDL - The Planning Domain Definition Language (1998); Fox and Long, PDDL2.1, JAIR 20 (2003).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jaxppo.planning.language.axioms import compare_numbers, derived_predicates, read_rules
from jaxppo.planning.language.conditions import read_conjuncts
from jaxppo.planning.language.effects import read_effects
from jaxppo.planning.language.scope import BEYOND_ALL, TOTAL_COST, Scope, Types, read_name
from jaxppo.planning.language.sexpr import Node
from jaxppo.planning.language.task import ACTION_PARTS, ActionSchema, Domain
from jaxppo.planning.language.typed_lists import (
    ancestors_of,
    declared_types,
    read_parameters,
    read_typed_list,
    read_types,
)

_KEYWORD = re.compile(r":[a-z][a-z0-9-]*+")
# Each of these at most once, and before the first action or
# rule: otherwise VAL reads on and loses what it has read.
_DECLARATIONS = frozenset({":requirements", ":types", ":constants", ":predicates", ":functions"})
_SECTIONS = _DECLARATIONS | {":action", ":derived"}
# Durative actions are refused, except where only names are read.
_OPERATORS = frozenset({":action", ":durative-action"})


def read_domain(form: list[Node], scope: Scope) -> Domain:
    """Read a domain, or only its names where `scope.names_only`.

    The order of reading is that of the names: types before functions, functions before everything that VAL would read
    as a function of that name, constants and predicates before the rules and actions that use them.
    """
    name, sections = read_definition(form, "domain", _SECTIONS, scope)
    if not scope.names_only:
        _check_order(form, sections, scope)
    typed = any(section[0] == ":types" for section in sections)
    types = read_types(items_of(sections, ":types"), scope)
    ancestors = ancestors_of(types)
    # An untyped domain may use objects that only its
    # problems declare; they are collected in `undeclared`.
    scope = replace(scope, typed=typed, ancestors=ancestors, undeclared=None if typed else set())
    if not scope.names_only:
        scope = replace(scope, functions=_functions(items_of(sections, ":functions"), scope))
    constants = read_objects(items_of(sections, ":constants"), {}, scope)
    predicates = _predicates(items_of(sections, ":predicates"), scope)
    derived_forms = [] if scope.names_only else sections_of(sections, ":derived")
    derived = derived_predicates(derived_forms)
    # The rules are not read yet, so it is not known which
    # of them lead to a comparison: all count as fallible.
    fallible = derived if compare_numbers(derived_forms) else frozenset()
    scope = replace(scope, predicates=predicates, terms=constants)
    scope = replace(scope, derived=derived, fallible=fallible)
    rules, strata = read_rules(derived_forms, scope)
    operators = [section for section in sections if section[0] in _OPERATORS]
    actions = _actions(operators, scope)
    return Domain(
        name=name,
        typed=typed,
        types=types,
        ancestors=ancestors,
        constants=constants,
        late_constants=frozenset(scope.undeclared or ()),
        predicates=predicates,
        functions=scope.functions,
        actions=actions,
        rules=rules,
        strata=strata,
        fallible=fallible,
    )


def read_definition(
    form: list[Node], kind: str, keywords: frozenset[str], scope: Scope
) -> tuple[str, list[list[Node]]]:
    """Read the name and the sections of `(define (kind name) (:section ...) ...)`."""
    head = form[1] if len(form) > 1 and form[0] == "define" else form
    if isinstance(head, list) and head[:1] == ["situation"]:
        scope.refuse(head, "situation")
    if head is form or not isinstance(head, list) or len(head) != 2 or head[0] != kind:
        scope.fail(head, f"'(define ({kind} NAME) ...)'")
    name = read_name(head[1], scope, f"the {kind}'s name")
    return name, [_checked_section(node, keywords, scope) for node in form[2:]]


def _checked_section(node: Node, keywords: frozenset[str], scope: Scope) -> list[Node]:
    keyword = node[0] if isinstance(node, list) and node else None
    if isinstance(node, str) or not isinstance(keyword, str) or not _KEYWORD.fullmatch(keyword):
        scope.fail(node, "a section '(:keyword ...)'")
    if keyword == ":requirements":
        for item in node[1:]:
            if not isinstance(item, str) or not _KEYWORD.fullmatch(item):
                scope.fail(item, "a requirement ':keyword'")
    # Where only names are read, other sections are skipped: they declare none that a plan can use.
    is_skipped = scope.names_only and keyword not in BEYOND_ALL
    if keyword not in keywords and not is_skipped:
        scope.refuse(node, keyword)
    return node


def sections_of(sections: Iterable[list[Node]], keyword: str) -> list[list[Node]]:
    """List the sections of that keyword."""
    return [section for section in sections if section[0] == keyword]


def items_of(sections: Iterable[list[Node]], keyword: str) -> list[Node]:
    """List the items of all sections of that keyword."""
    items = []
    for section in sections_of(sections, keyword):
        items += section[1:]
    return items


def check_once(sections: Iterable[list[Node]], keywords: frozenset[str], scope: Scope) -> None:
    """Refuse a second section of one of these keywords."""
    # VAL keeps one of the two, by their order, which is hardly what the file means.
    used_keywords = set()
    for section in sections:
        if section[0] in used_keywords:
            scope.fail(section, f"one section '{section[0]}'")
        if section[0] in keywords:
            used_keywords.add(section[0])


def _check_order(form: list[Node], sections: Sequence[list[Node]], scope: Scope) -> None:
    check_once(sections, _DECLARATIONS, scope)
    if all(section[0] in _DECLARATIONS for section in sections):
        scope.fail(form, "an action or a rule (VAL reads no domain without)")
    keywords = [section[0] for section in sections]
    # VAL reads a name as a function wherever it stands after the function's declaration.
    if ":functions" in keywords and ":predicates" in keywords[keywords.index(":functions") :]:
        functions = items_of(sections, ":functions")
        names = [item[0] for item in functions if isinstance(item, list) and item]
        for item in items_of(sections, ":predicates"):
            if isinstance(item, list) and item and item[0] in names:
                scope.fail(item, "a predicate that is not named like a function declared before it")
    declarations_ended = False
    for section in sections:
        if section[0] not in _DECLARATIONS:
            declarations_ended = True
        elif declarations_ended:
            scope.fail(section, "the declarations in front of the actions and rules")


def read_objects(
    items: Sequence[Node], constants: Mapping[str, Types], scope: Scope
) -> dict[str, Types]:
    """Read constants or objects, and list them after the given constants."""
    declarations = []
    for name, types in read_typed_list(items, scope):
        declarations.append((read_name(name, scope, "an object"), types))
        if name in scope.functions:
            scope.fail(name, "an object that is not named like a function (VAL reads the function)")
    return declared_types(declarations, constants)


def _predicates(items: Sequence[Node], scope: Scope) -> dict[str, tuple[Types, ...]]:
    predicates: dict[str, tuple[Types, ...]] = {}
    for node in items:
        name, types = _signature(node, "predicate", scope)
        if name in predicates:
            scope.fail(node, "a predicate to be declared once")
        # A predicate with the name of a function cannot be
        # used: VAL reads the function wherever the name stands.
        if name not in scope.functions:
            predicates[name] = types
    return predicates


def _functions(items: Sequence[Node], scope: Scope) -> dict[str, tuple[Types, ...]]:
    """Read the declared functions; `- number` may follow them."""
    functions: dict[str, tuple[Types, ...]] = {}
    nodes = iter(items)
    for node in nodes:
        if node == "-":
            # The one type of values that PDDL 2.1 knows.
            kind = next(nodes, node)
            if kind != "number":
                scope.refuse_for_all(kind, "functions whose values are objects (object fluents)")
            continue
        name, types = _signature(node, "function", scope)
        if name in functions or name in scope.ancestors:
            scope.fail(node, "a function to be declared once, and not as a type")
        functions[name] = types
    return functions


def _signature(node: Node, what: str, scope: Scope) -> tuple[str, tuple[Types, ...]]:
    if isinstance(node, str) or not node:
        scope.fail(node, f"'({what} ?argument ...)'")
    name = read_name(node[0], scope, f"a {what}")
    # Only here may a variable have the name of a function.
    scope = replace(scope, functions={})
    return name, tuple(types for _, types in read_parameters(node[1:], scope))


def _actions(forms: Sequence[list[Node]], scope: Scope) -> dict[str, ActionSchema]:
    actions: dict[str, ActionSchema] = {}
    for form in forms:
        schema = _action(form, scope)
        if schema.name in actions:
            scope.fail(form, f"the action '{schema.name}' to be declared once")
        if schema.name in scope.functions or schema.name == TOTAL_COST:
            scope.fail(form, "an action that is not named like a function (VAL reads the function)")
        actions[schema.name] = schema
    return actions


def _action(form: list[Node], scope: Scope) -> ActionSchema:
    if len(form) < 2:
        scope.fail(form, "'(:action NAME :parameters ... :effect ...)'")
    name = read_name(form[1], scope, "an action")
    if scope.names_only:
        return ActionSchema(name, read_parameters(_stated_parameters(form, scope), scope))
    parts = _action_parts(form, scope)
    parameters = read_parameters(parts.get(":parameters", []), scope)
    scope = replace(scope, terms={**scope.terms, **dict(parameters)})
    precondition = read_conjuncts(parts.get(":precondition", []), scope)
    effects = read_effects(parts.get(":effect") or ["and"], scope)
    return ActionSchema(name, parameters, precondition, effects)


def _stated_parameters(form: list[Node], scope: Scope) -> list[Node]:
    """Find the parameters of an operator whose other parts are not read."""
    if form[0] == ":action" and ":parameters" not in form:
        return []
    following = form[form.index(":parameters") + 1 :] if ":parameters" in form else []
    if not following or isinstance(following[0], str):
        scope.fail(form, f"'({form[0]} NAME :parameters (...) ...)'")
    return following[0]


def _action_parts(form: list[Node], scope: Scope) -> dict[str, list[Node]]:
    """Read the parts after an action's name; a missing part has no parameters, no condition or no effect.

    VAL needs all three, in this order, and loses other actions.
    """
    parts: dict[str, list[Node]] = {}
    nodes = iter(form[2:])
    for keyword in nodes:
        part = next(nodes, None)
        if isinstance(keyword, str) and keyword in BEYOND_ALL:
            scope.refuse(keyword, keyword)
        if keyword not in ACTION_PARTS or keyword in parts or not isinstance(part, list):
            scope.fail(form, f"'{' (...) '.join(ACTION_PARTS)} (...)' and nothing else")
        parts[str(keyword)] = part
    return parts
