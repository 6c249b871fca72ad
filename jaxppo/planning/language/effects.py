"""Effects of PDDL: what a step adds, deletes and changes, always or under conditions.

The shapes are those that VAL reads: a numeric effect stands inside `and` or `when`; an `and` inside an `and`, or inside
a `when`, holds plain effects only.

Source: Fox and Long, PDDL2.1, JAIR 20 (2003), appendix A.
"""

from dataclasses import dataclass, field

from jaxppo.planning.language.conditions import (
    Condition,
    Literal,
    quantifier_scope,
    read_condition,
    read_conjuncts,
)
from jaxppo.planning.language.numeric import UPDATES, Update, read_update
from jaxppo.planning.language.scope import Atom, Parameter, Scope, headed
from jaxppo.planning.language.sexpr import Node


@dataclass(frozen=True, slots=True)
class Effect:
    """What happens for each binding of the parameters for which the conditions held before the step.

    Attributes:
        parameters: the variables of the `forall`s around it.
        conditions: those of the `when`s around it.
        add: the atoms that become true.
        delete: the atoms that become false, unless some effect of the step makes them true.
        updates: the changes of numbers.
    """

    parameters: tuple[Parameter, ...]
    conditions: tuple[Condition, ...]
    add: list[Atom] = field(default_factory=list)
    delete: list[Atom] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)


# The place of a form to the place of the forms inside
# its `and`; a `flat` place holds plain effects only.
_NESTED = {"top": "and", "forall": "and", "and": "flat", "when": "flat"}


def read_effects(node: Node, scope: Scope) -> tuple[Effect, ...]:
    """Read an effect: first what always happens, then what happens under conditions or for several objects."""
    # The first group has no `forall` or `when` around it.
    groups = [Effect((), ())]
    _read(node, scope, groups, groups[0], "top")
    return tuple(groups)


def _read(node: Node, scope: Scope, groups: list[Effect], group: Effect, place: str) -> None:
    form, head = headed(node, scope, "an effect '(predicate ...)' or '(and)'")
    if head in ("and", "when", "forall") and place == "flat":
        scope.fail(
            form, "plain effects here ('when' holds no 'and' in an 'and', and 'and' nests once)"
        )
    if head == "and":
        for part in form[1:]:
            _read(part, scope, groups, group, _NESTED[place])
    elif head == "when":
        _read_when(form, scope, groups, group)
    elif head == "forall":
        _read_forall(form, scope, groups, group)
    elif head in UPDATES:
        if place in ("top", "forall"):
            scope.fail(
                form,
                f"'(and ({head} ...))'; VAL reads a numeric effect only inside 'and' or 'when'",
            )
        group.updates.append(read_update(form, scope))
    else:
        _add_literal(form, scope, group)


def _read_when(form: list[Node], scope: Scope, groups: list[Effect], outer: Effect) -> None:
    if len(form) != 3:
        scope.fail(form, "'(when (condition) (effect))'")
    conditions = (*outer.conditions, *read_conjuncts(form[1], scope, may_be_empty=False))
    groups.append(Effect(outer.parameters, conditions))
    _read(form[2], scope, groups, groups[-1], "when")


def _read_forall(form: list[Node], scope: Scope, groups: list[Effect], outer: Effect) -> None:
    if len(form) != 3:
        scope.fail(form, "'(forall (?variable ...) (effect))'")
    parameters, inner = quantifier_scope(form[1], scope)
    # An effect keeps the variables and conditions around it as flat lists, so a variable of the
    # same name would change what the outer conditions speak of.
    is_nested = outer.parameters or outer.conditions
    if is_nested and not scope.terms.keys().isdisjoint(dict(parameters)):
        scope.fail(form, "a 'forall' inside a 'forall' or 'when' to have variables of its own")
    groups.append(Effect((*outer.parameters, *parameters), outer.conditions))
    _read(form[2], inner, groups, groups[-1], "forall")


def _add_literal(form: list[Node], scope: Scope, group: Effect) -> None:
    negated = form[1] if form[0] == "not" and len(form) == 2 else None
    if isinstance(negated, list) and negated[:1] in (["not"], ["and"], ["or"]):
        scope.fail(form, "an effect '(predicate ...)' or '(not (predicate ...))'")
    literal = read_condition(form, scope, may_be_empty=False)
    if not isinstance(literal, Literal) or literal.atom[0] == "=":
        scope.fail(form, "an effect on a predicate")
    if literal.atom[0] in scope.derived:
        scope.fail(form, "an effect on a predicate that no ':derived' rule defines")
    atoms = group.add if literal.positive else group.delete
    atoms.append(literal.atom)
