"""Conditions, steps and rules of one problem with objects filled in, as simple as what never changes allows.

Static facts (of predicates that no effect touches), equalities and static numbers are decided here once; quantifiers
become conjunctions and disjunctions of what remains. So a precondition such as "every order that includes the product
has been started" becomes a few atoms, and checking it is a set operation.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from jaxppo.planning.language.conditions import (
    Binding,
    Comparison,
    Condition,
    Junction,
    Literal,
    Quantified,
    bound_atom,
    conjuncts,
    is_fallible,
)
from jaxppo.planning.language.numeric import (
    Expression,
    Operation,
    Update,
    compare,
    evaluate,
    is_number,
)
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import Atom, Parameter, Types, UnsupportedPddlError
from jaxppo.planning.language.task import ActionSchema, Domain, Problem
from jaxppo.planning.validate.ground import (
    NO_EXTRAS,
    DerivedLiteral,
    Extras,
    GroundComparison,
    GroundEffect,
    GroundJunction,
    GroundStep,
    Node,
    sort_in,
)

# Most parts and choices of objects to look at for one step, for the rules of an atom and of those
# that it uses, or for a goal: about a second.
MAX_LOOKS = 500_000
# A part that remains takes memory too, and counts as many looks.
_LOOKS_OF_A_PART = 6
# Stands in a guard for a variable of an inner quantifier, and matches every object.
_ANYTHING = "?"


@lru_cache(maxsize=256)
def changing(domain: Domain) -> frozenset[str]:
    """Collect the predicates and functions that some effect of the domain changes."""
    # Everything else is static: the initial state decides it for good.
    names: set[str] = set()
    for schema in domain.actions.values():
        for effect in schema.effects:
            names.update(atom[0] for atom in (*effect.add, *effect.delete))
            names.update(update.function[0] for update in effect.updates)
    return frozenset(names)


class Grounder:
    """Fills in the objects of one problem.

    Quantifiers in quantifiers grow exponentially, so the looks are counted, anew after each `start`.

    Raises from every method:
        UnsupportedPddlError: what is asked for takes more than `MAX_LOOKS`.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._changing = changing(problem.domain)
        self._rules = problem.domain.rules
        self._objects: dict[Types, dict[str, int]] = {}
        # For a predicate, the places of fixed arguments and the place of a variable: the objects of
        # the variable, by the fixed arguments.
        self._indices: dict[
            tuple[str, tuple[int, ...], int], Mapping[tuple[str, ...], set[str]]
        ] = {}
        self._num_looks = 0

    def start(self) -> None:
        """Begin to count the looks anew, for the next step, rules or goal."""
        self._num_looks = 0

    def step(self, action: Action) -> GroundStep:
        """Fill in an operator."""
        self.start()
        schema = self._problem.domain.actions[action[0]]
        binding = _bind(schema.parameters, action[1:])
        true: set[Atom] = set()
        false: set[Atom] = set()
        conditions: list[Node] = []
        for condition in schema.precondition:
            sort_in(self.condition(condition, binding), true, false, conditions)
        add: list[Atom] = []
        delete: list[Atom] = []
        effects: list[GroundEffect] = []
        for effect in self._effects(schema, binding):
            if effect.condition is not True:
                effects.append(effect)
                continue
            # What always happens to atoms is a set operation; only the numbers remain an effect.
            add += effect.add
            delete += effect.delete
            if effect.updates:
                effects.append(GroundEffect(True, (), (), effect.updates))
        extras = NO_EXTRAS
        if conditions or effects:
            extras = Extras(tuple(conditions), tuple(effects))
        return GroundStep(
            frozenset(true), frozenset(false), frozenset(delete), frozenset(add), extras
        )

    def condition(self, condition: Condition, binding: Binding, polarity: bool = True) -> Node:
        """Fill in a condition and simplify it, its negations pushed to the leaves.

        Args:
            condition: the condition.
            binding: the objects of its variables.
            polarity: False fills in the negation of the condition.
        """
        self._count_look()
        match condition:
            case Literal(atom, positive):
                return self._literal(bound_atom(atom, binding), positive == polarity)
            case Junction(word):
                parts = condition.signed_parts(polarity)
                ground_parts = (self.condition(part, binding, sign) for part, sign in parts)
                return self._join((word == "and") == polarity, ground_parts)
            case Quantified():
                return self._quantified(condition, binding, polarity)
            case Comparison(operator, left, right):
                left_value = self._expression(left, binding)
                right_value = self._expression(right, binding)
                return self._comparison(operator, left_value, right_value, polarity)

    def precondition_parts(self, action: Action) -> list[tuple[Condition, Binding]]:
        """Return the conditions that a precondition joins, each with its binding."""
        schema = self._problem.domain.actions[action[0]]
        binding = _bind(schema.parameters, action[1:])
        return [(condition, binding) for condition in schema.precondition]

    def goal_parts(
        self, conditions: Iterable[Condition], binding: Binding
    ) -> Iterator[tuple[Condition, Binding]]:
        """Yield the conditions that a goal joins by `and` and by `forall`, each with its binding."""
        for condition in conditions:
            self._count_parts()
            if isinstance(condition, Quantified) and condition.word == "forall":
                # Instance by instance, so that a verdict can count and name them one by one.
                inner = tuple(conjuncts(condition.body))
                for extended in self._bindings(condition.parameters, binding, ()):
                    yield from self.goal_parts(inner, extended)
            else:
                yield condition, binding

    def body(self, atom: Atom) -> Node:
        """Fill in when a derived atom holds: the bodies of its rules, joined by `or`."""
        names = atom[1:]
        bodies = (
            self.condition(rule.body, _bind(rule.parameters, names))
            for rule in self._rules[atom[0]]
        )
        return self._join(False, bodies)

    def _count_parts(self, count: int = 1) -> None:
        """Count parts of the result; the effects of a step are as many as the objects that they change."""
        self._count_look(_LOOKS_OF_A_PART * count)

    def _count_look(self, count: int = 1) -> None:
        self._num_looks += count
        if self._num_looks > MAX_LOOKS:
            message = f"got more than {MAX_LOOKS} parts and choices when objects are filled in, "
            message += "which is not supported by the built-in validator"
            raise UnsupportedPddlError(f"problem {self._problem.name}", 1, message)

    def _literal(self, atom: Atom, positive: bool) -> Node:
        """Decide a literal that no step can change; keep the others."""
        if atom[0] == "=":
            return (atom[1] == atom[2]) is positive
        if atom[0] in self._rules:
            self._count_parts()
            return DerivedLiteral(atom, positive)
        if atom[0] in self._changing:
            self._count_parts()
            return Literal(atom, positive)
        return (atom in self._problem.init) is positive

    def _comparison(
        self, operator: str, left: Expression, right: Expression, positive: bool
    ) -> Node:
        if is_number(left) and is_number(right):
            return compare(operator, left, right) is positive
        self._count_parts()
        return GroundComparison(operator, left, right, positive)

    def _join(self, is_and: bool, nodes: Iterable[Node]) -> Node:
        """Join by `and` or `or`, as simply as possible.

        A constant that decides the result (False under `and`, True under `or`) replaces the whole, unless a part before
        it may read a function without a value: parts are read from left to right, and that one fails the condition.
        """
        parts: list[Node] = []
        for node in nodes:
            if node is is_and:
                continue
            parts.append(node)
            if isinstance(node, bool):
                if not any(map(self._may_fail, parts)):
                    return node
                break
        if not parts:
            return is_and
        if len(parts) == 1:
            return parts[0]
        return GroundJunction("and" if is_and else "or", tuple(parts))

    def _may_fail(self, node: Node) -> bool:
        """Return whether evaluating a condition may read a function without a value."""
        if isinstance(node, GroundJunction):
            return any(map(self._may_fail, node.parts))
        if isinstance(node, DerivedLiteral):
            return node.atom[0] in self._problem.domain.fallible
        return isinstance(node, GroundComparison)

    def _quantified(self, quantified: Quantified, binding: Binding, polarity: bool) -> Node:
        is_and = (quantified.word == "forall") == polarity
        # Only instances that can decide the result matter: under `and` those whose part may be
        # false, under `or` those whose part may be true. In terms of the body itself, which a
        # negation turns around, that is this truth value.
        deciding = polarity is not is_and
        # Where an instance may read a function without a value, all are filled in, in order.
        guards = () if quantified.fallible else tuple(self._guards(quantified.body, deciding))
        bindings = self._bindings(quantified.parameters, binding, guards)
        instances = (self.condition(quantified.body, inner, polarity) for inner in bindings)
        return self._join(is_and, instances)

    def _guards(self, condition: Condition, truth: bool) -> Iterator[Literal]:
        """Yield static literals that must hold for a condition to be true (or false, for `truth=False`).

        In `(forall (?o) (imply (includes ?o p) (started ?o)))` the body is false only where `(includes ?o p)` holds, so
        the facts of `includes` list the only objects worth looking at.
        """
        match condition:
            case Literal(atom, positive):
                if atom[0] == "=" or not (atom[0] in self._changing or atom[0] in self._rules):
                    yield Literal(atom, positive == truth)
            case Junction(word, parts):
                # All parts of a true `and`, or of a false `or`,
                # have the same truth; of the others any one may.
                if (word == "and") == truth or len(parts) == 1:
                    for part, sign in condition.signed_parts(truth):
                        yield from self._guards(part, sign)
            case Quantified(word, parameters, body, _):
                if (word == "exists") == truth:
                    anything = {parameter.name: _ANYTHING for parameter in parameters}
                    for atom, positive in self._guards(body, truth):
                        yield Literal(bound_atom(atom, anything), positive)

    def _bindings(
        self, parameters: Sequence[Parameter], binding: Binding, guards: Sequence[Literal]
    ) -> Iterator[dict[str, str]]:
        """Extend the binding by every choice of objects for the parameters that the guards allow.

        One parameter after another, as a join in a database: its candidates come from the facts, and a guard is checked
        as soon as the last of its variables has an object, so that a wrong choice is not extended further.
        """
        if not parameters:
            yield dict(binding)
            return
        (name, types), *remaining = parameters
        unbound = {_ANYTHING, *(parameter.name for parameter in remaining)}
        ready = [guard for guard in guards if unbound.isdisjoint(guard.atom[1:])]
        for object_name in self._candidates(name, types, binding, guards):
            self._count_look()
            extended = {**binding, name: object_name}
            checks = (
                self._literal(bound_atom(atom, extended), positive) for atom, positive in ready
            )
            # A check is a condition; that of a static literal is a truth value.
            if all(check is True for check in checks):
                yield from self._bindings(remaining, extended, guards)

    def _candidates(
        self, name: str, types: Types, binding: Binding, guards: Sequence[Literal]
    ) -> Iterable[str]:
        """List the objects of the types; where a positive guard names the parameter, only those that its facts name."""
        objects = self.objects_of(types)
        patterns = []
        for atom, positive in guards:
            if positive and name in atom[1:] and atom[0] != "=":
                patterns.append(atom)
        if not patterns:
            return objects
        # An inner variable may hide an outer one of the same
        # name, whose object must not be filled in for it.
        visible = {variable: term for variable, term in binding.items() if variable != name}
        matches = [self._matches(bound_atom(atom, visible), name) for atom in patterns]
        fewest_matches = min(matches, key=len)
        # In the order of the declaration, as without a guard: it shows in how sums are rounded.
        return sorted(fewest_matches & objects.keys(), key=objects.__getitem__)

    def _matches(self, pattern: Atom, variable: str) -> set[str]:
        """Find the objects of the variable in facts that agree with the pattern; its other variables match anything."""
        target = pattern.index(variable)
        places = tuple(place for place, term in enumerate(pattern) if place and term[0] != "?")
        key = (pattern[0], places, target)
        if key not in self._indices:
            index: dict[tuple[str, ...], set[str]] = defaultdict(set)
            for atom in self._problem.init:
                if atom[0] == pattern[0]:
                    index[tuple(atom[place] for place in places)].add(atom[target])
            self._indices[key] = index
        return self._indices[key].get(tuple(pattern[place] for place in places), set())

    def objects_of(self, types: Types) -> dict[str, int]:
        """Return the objects of the types, in the order of their declaration, with their places there."""
        if types not in self._objects:
            domain = self._problem.domain
            objects = {}
            for place, (name, object_types) in enumerate(self._problem.objects.items()):
                if domain.is_of_type(object_types, types):
                    objects[name] = place
            self._objects[types] = objects
        return self._objects[types]

    def _effects(self, schema: ActionSchema, binding: Binding) -> Iterator[GroundEffect]:
        """Yield what an operator does: `when`, then what always happens, then `forall`.

        VAL changes numbers in this order, which shows in how sums are rounded.
        """
        always, *others = schema.effects
        conditional = [effect for effect in others if not effect.parameters]
        universal = [effect for effect in others if effect.parameters]
        fallible = self._problem.domain.fallible
        for effect in (*conditional, always, *universal):
            guards: list[Literal] = []
            if not any(is_fallible(condition, fallible) for condition in effect.conditions):
                for condition in effect.conditions:
                    guards.extend(self._guards(condition, True))
            for extended in self._bindings(effect.parameters, binding, guards):
                parts = (self.condition(condition, extended) for condition in effect.conditions)
                node = self._join(True, parts)
                if node is not False:
                    self._count_parts(len(effect.add) + len(effect.delete) + len(effect.updates))
                    yield GroundEffect(
                        node,
                        tuple([bound_atom(atom, extended) for atom in effect.add]),
                        tuple([bound_atom(atom, extended) for atom in effect.delete]),
                        tuple([self._update(update, extended) for update in effect.updates]),
                    )

    def _update(self, update: Update, binding: Binding) -> Update:
        amount = self._expression(update.amount, binding)
        return Update(update.operator, bound_atom(update.function, binding), amount)

    def _expression(self, expression: Expression, binding: Binding) -> Expression:
        """Fill in an expression; what does not change becomes a number."""
        if is_number(expression):
            return expression
        if isinstance(expression, Operation):
            self._count_look()
            arguments = [self._expression(argument, binding) for argument in expression.arguments]
            operation = Operation(expression.operator, tuple(arguments))
            return evaluate(operation, {}) if all(map(is_number, arguments)) else operation
        atom = bound_atom(expression, binding)
        if atom[0] in self._changing:
            return atom
        # A function without a value stays, and fails whoever reads it.
        return self._problem.values.get(atom, atom)


def _bind(parameters: Sequence[Parameter], names: Sequence[str]) -> dict[str, str]:
    """Return the binding that fills in these objects."""
    return {parameter.name: name for parameter, name in zip(parameters, names, strict=True)}
