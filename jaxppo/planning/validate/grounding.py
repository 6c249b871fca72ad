"""Conditions, steps and rules of one problem with objects filled in, as simple as what never changes allows.

Static facts (of predicates that no effect touches), equalities and static numbers are decided here once; quantifiers
become conjunctions and disjunctions of what is left. So a precondition such as "every order that includes the product
has been started" becomes a few atoms, and checking it is a set operation.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NoReturn

from jaxppo.planning.language.axioms import Rule
from jaxppo.planning.language.conditions import (
    Binding,
    Comparison,
    Condition,
    Implication,
    Junction,
    Literal,
    Negation,
    Quantified,
    bound_atom,
    conjuncts,
    is_fallible,
)
from jaxppo.planning.language.effects import Effect
from jaxppo.planning.language.numeric import Expression, Operation, Update, compare, evaluate, is_number
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import Atom, Parameter, Types, UnsupportedPddlError
from jaxppo.planning.language.task import Domain, Problem
from jaxppo.planning.validate.ground import (
    Body,
    Derived,
    Extras,
    Ground,
    GroundEffect,
    Node,
    Step,
    Test,
    size_of,
    size_of_updates,
    sort_in,
)
from jaxppo.planning.validate.templates import FactIndex, templates_of

# Parts of formulas that one step, one atom's rules or a goal may have: this bounds the memory.
MAX_GROUNDING = 80_000
# Parts and choices of objects that may be looked at for these, most of which static facts decide: about a second.
MAX_LOOKS = 500_000
# Parts that all rules may have on which an atom depends.
MAX_RULES = 160_000
# Stands in a guard for a variable of an inner quantifier.
_ANYTHING = "?"


@lru_cache(maxsize=256)
def changing(domain: Domain) -> frozenset[str]:
    """Collect the predicates and functions that some effect of the domain changes."""
    names: set[str] = set()
    for schema in domain.actions.values():
        for effect in (schema, *schema.effects):
            names.update(atom[0] for atom in (*effect.add, *effect.delete))
            names.update(update.function[0] for update in effect.updates)
    return frozenset(names)


class Grounder:
    """Fills in the objects of one problem, and remembers the bodies of its rules.

    Raises from every method:
        UnsupportedPddlError: what is asked for has more than `MAX_GROUNDING` parts, or takes more than `MAX_LOOKS`.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._changing = changing(problem.domain)
        self._rules = problem.domain.rules
        self._templates = templates_of(problem.domain)
        self._objects: dict[Types, dict[str, None]] = {}
        self._facts = FactIndex(problem.init)
        self._bodies: dict[Atom, Body] = {}
        self._spent = self._kept = 0

    def start(self) -> None:
        """Begin to count the work anew, for the next step or goal."""
        self._spent = self._kept = 0

    def step(self, action: Action) -> Step:
        """Fill in an operator."""
        template = self._templates.get(action[0])
        if template is not None:
            return Step(*template.fill(action))
        self.start()
        schema = self._problem.domain.actions[action[0]]
        binding = bindings_of(schema.parameters, action[1:])
        true: set[Atom] = set()
        false: set[Atom] = set()
        others: list[Node] = []
        for condition in schema.precondition:
            sort_in(self.condition(condition, binding), true, false, others)
        always = GroundEffect(
            True,
            tuple([bound_atom(atom, binding) for atom in schema.add]),
            tuple([bound_atom(atom, binding) for atom in schema.delete]),
            tuple([self._update(update, binding) for update in schema.updates]),
        )
        happens = [always]
        if schema.effects:  # in the order in which VAL changes numbers, which shows in how sums are rounded
            once = [effect for effect in schema.effects if not effect.parameters]
            each = [effect for effect in schema.effects if effect.parameters]
            happens = [*self._effects(once, binding), always, *self._effects(each, binding)]
        add: list[Atom] = []
        delete: list[Atom] = []
        effects: list[GroundEffect] = []
        for effect in happens:
            if effect.condition is not True:
                effects.append(effect)
                continue
            add += effect.add
            delete += effect.delete
            if effect.updates:
                effects.append(GroundEffect(True, (), (), effect.updates))
        size = sum(map(size_of, others))
        size += sum(size_of(effect.condition) + size_of_updates(effect.updates) for effect in effects)
        extras = Extras(tuple(others), tuple(effects), size) if size else None
        return Step(frozenset(true), frozenset(false), frozenset(delete), frozenset(add), extras, self._spent)

    def condition(self, condition: Condition, binding: Binding, wanted: bool = True) -> Node:
        """Fill in a condition (or its negation, where it is not wanted) and simplify it."""
        self._spend()
        match condition:
            case Literal(atom, positive):
                return self._literal(bound_atom(atom, binding), positive == wanted)
            case Junction(word, parts):
                joined = (self.condition(part, binding, wanted) for part in parts)
                return self._join((word == "and") == wanted, joined)
            case Negation(part):
                return self.condition(part, binding, not wanted)
            case Implication(left, right):
                sides = ((left, not wanted), (right, wanted))
                return self._join(not wanted, (self.condition(part, binding, sign) for part, sign in sides))
            case Quantified():
                return self._quantified(condition, binding, wanted)
            case Comparison(operator, left, right):
                return self._test(operator, self._expression(left, binding), self._expression(right, binding), wanted)

    def goal_parts(self, conditions: Iterable[Condition], binding: Binding) -> Iterator[tuple[Condition, Binding]]:
        """Yield the conditions that a goal joins by `and` and by `forall`, each with its binding."""
        for condition in conditions:
            self._keep()
            if isinstance(condition, Quantified) and condition.word == "forall":
                inner = tuple(conjuncts(condition.body))
                for extended in self._bindings(condition.parameters, binding, ()):
                    yield from self.goal_parts(inner, extended)
            else:
                yield condition, binding

    def body(self, atom: Atom) -> Body:
        """Fill in when a derived atom holds: the bodies of its rules, joined by `or`."""
        known = self._bodies.get(atom)
        if known is None:
            self.start()
            node = self._join(False, (self._rule_body(rule, atom) for rule in self._rules[atom[0]]))
            known = self._bodies[atom] = Body(node, self._spent, size_of(node))
        return known

    def refuse(self) -> NoReturn:
        """Refuse a problem that is too large."""
        message = f"got formulas with more than {MAX_GROUNDING} parts (rules: {MAX_RULES}) when objects are filled in, "
        message += f"or more than {MAX_LOOKS} choices of objects, "
        message += "which is not supported by the built-in validator"
        raise UnsupportedPddlError(f"problem {self._problem.name}", 1, message)

    def _rule_body(self, rule: Rule, atom: Atom) -> Node:
        return self.condition(rule.body, bindings_of(rule.parameters, atom[1:]))

    def _spend(self, work: int = 1) -> None:
        self._spent += work
        if self._spent > MAX_LOOKS:
            self.refuse()

    def _keep(self, parts: int = 1) -> None:
        """Count parts of what is made; a step's effects are as many as the objects that they change."""
        self._spend(parts)
        self._kept += parts
        if self._kept > MAX_GROUNDING:
            self.refuse()

    def _literal(self, atom: Atom, wanted: bool) -> Node:
        if atom[0] == "=":
            return (atom[1] == atom[2]) is wanted
        if atom[0] in self._rules:
            self._keep()
            return Derived(atom, wanted)
        if atom[0] in self._changing:
            self._keep()
            return Literal(atom, wanted)
        return (atom in self._problem.init) is wanted

    def _test(self, operator: str, left: Expression, right: Expression, wanted: bool) -> Node:
        if is_number(left) and is_number(right):
            return compare(operator, left, right) is wanted
        self._keep()
        return Test(operator, left, right, wanted)

    def _join(self, conjunction: bool, parts: Iterable[Node]) -> Node:
        """Join by `and` or `or`, as simply as possible, keeping the order where a function without a value matters."""
        kept: list[Node] = []
        for part in parts:
            if part is conjunction:
                continue
            if isinstance(part, bool):
                if not any(map(self._may_fail, kept)):
                    return part
                kept.append(part)
                break
            kept.append(part)
        if len(kept) < 2:
            return kept[0] if kept else conjunction
        return Ground("and" if conjunction else "or", tuple(kept))

    def _may_fail(self, node: Node) -> bool:
        if isinstance(node, Ground):
            return any(map(self._may_fail, node.parts))
        return isinstance(node, Test) or (isinstance(node, Derived) and node.atom[0] in self._problem.domain.fallible)

    def _quantified(self, quantified: Quantified, binding: Binding, wanted: bool) -> Node:
        conjunction = (quantified.word == "forall") == wanted
        # The instances that decide: for an `and` those whose body may be false, for an `or` those where it may be true.
        deciding = wanted is not conjunction
        guards = () if quantified.fallible else tuple(self._guards(quantified.body, deciding))
        bindings = self._bindings(quantified.parameters, binding, guards)
        return self._join(conjunction, (self.condition(quantified.body, inner, wanted) for inner in bindings))

    def _guards(self, condition: Condition, wanted: bool) -> Iterator[Literal]:
        """Yield static literals without which a condition cannot be true (or false, where that is wanted)."""
        match condition:
            case Literal(atom, positive):
                if atom[0] == "=" or not (atom[0] in self._changing or atom[0] in self._rules):
                    yield Literal(atom, positive == wanted)
            case Junction(word, parts):
                if (word == "and") == wanted or len(parts) == 1:
                    for part in parts:
                        yield from self._guards(part, wanted)
            case Negation(part):
                yield from self._guards(part, not wanted)
            case Implication(left, right):
                if not wanted:
                    yield from self._guards(left, True)
                    yield from self._guards(right, False)
            case Quantified(word, parameters, body, _):
                if (word == "exists") == wanted:
                    anything = dict.fromkeys((parameter.name for parameter in parameters), _ANYTHING)
                    for atom, positive in self._guards(body, wanted):
                        yield Literal(bound_atom(atom, anything), positive)

    def _bindings(
        self, parameters: Sequence[Parameter], binding: Binding, guards: Sequence[Literal]
    ) -> Iterator[dict[str, str]]:
        """Extend the binding by every choice of objects for the parameters that the guards allow."""
        if not parameters:
            yield dict(binding)
            return
        (name, types), *rest = parameters
        unbound = {_ANYTHING, *(parameter.name for parameter in rest)}
        ready = [guard for guard in guards if unbound.isdisjoint(guard.atom[1:])]
        for object_name in self._candidates(name, types, binding, guards):
            self._spend()
            extended = {**binding, name: object_name}
            if all(self._literal(bound_atom(guard.atom, extended), guard.positive) is True for guard in ready):
                yield from self._bindings(rest, extended, guards)

    def _candidates(self, name: str, types: Types, binding: Binding, guards: Sequence[Literal]) -> Iterable[str]:
        """List the objects of the types; only those in static facts that the guards ask for, where they do."""
        objects = self._objects_of(types)
        patterns = [atom for atom, positive in guards if positive and name in atom[1:] and atom[0] != "="]
        if not patterns:
            return objects
        inner = {variable: term for variable, term in binding.items() if variable != name}
        found = (self._facts.matches(bound_atom(atom, inner), name) for atom in patterns)
        return [name for name in min(found, key=len) if name in objects]

    def _objects_of(self, types: Types) -> dict[str, None]:
        if types not in self._objects:
            domain, objects = self._problem.domain, self._problem.objects
            self._objects[types] = {name: None for name, own in objects.items() if domain.is_of_type(own, types)}
        return self._objects[types]

    def _effects(self, effects: Iterable[Effect], binding: Binding) -> Iterator[GroundEffect]:
        fallible = self._problem.domain.fallible
        for effect in effects:
            ordered = any(is_fallible(condition, fallible) for condition in effect.conditions)
            guards = [] if ordered else [g for condition in effect.conditions for g in self._guards(condition, True)]
            for inner in self._bindings(effect.parameters, binding, guards):
                node = self._join(True, (self.condition(condition, inner) for condition in effect.conditions))
                if node is not False:
                    self._keep(len(effect.add) + len(effect.delete) + len(effect.updates))
                    yield GroundEffect(
                        node,
                        tuple(bound_atom(atom, inner) for atom in effect.add),
                        tuple(bound_atom(atom, inner) for atom in effect.delete),
                        tuple(self._update(update, inner) for update in effect.updates),
                    )

    def _update(self, update: Update, binding: Binding) -> Update:
        amount = self._expression(update.amount, binding)
        return Update(update.operator, bound_atom(update.function, binding), amount)

    def _expression(self, expression: Expression, binding: Binding) -> Expression:
        """Fill in an expression; what does not change becomes a number."""
        if is_number(expression):
            return expression
        if isinstance(expression, Operation):
            self._spend()
            parts = tuple(self._expression(part, binding) for part in expression.arguments)
            filled = Operation(expression.operator, parts)
            return evaluate(filled, {}) if all(map(is_number, parts)) else filled
        atom = bound_atom(expression, binding)
        value = None if atom[0] in self._changing else self._problem.values.get(atom)
        return atom if value is None else value


def bindings_of(parameters: Sequence[Parameter], names: Sequence[str]) -> dict[str, str]:
    """Return the binding that fills in these objects."""
    return {parameter.name: name for parameter, name in zip(parameters, names, strict=True)}
