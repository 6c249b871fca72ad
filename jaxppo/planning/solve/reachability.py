"""All steps of a problem that could ever be taken, for search.

Each fact is joined once with those reached before it, so that the work is about the number of steps, not of all choices
of objects.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple, NoReturn

from jaxppo.errors import JaxppoError
from jaxppo.planning.language.conditions import Binding, Literal, bound_atom
from jaxppo.planning.language.parse import Atom, Parameter, Problem, UnsupportedPddlError
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.task import ActionSchema, check_action
from jaxppo.planning.validate.ground import NEVER, GroundStep
from jaxppo.planning.validate.grounding import Grounder

MAX_BINDINGS = 1_000_000
"""Choices of objects that filling in the operators may try: some seconds."""


class SearchLimitError(JaxppoError):
    """A problem is too large for the built-in search; another planner may solve it."""


def refuse(problem: Problem, feature: str) -> NoReturn:
    """Say what the built-in search does not cover."""
    raise UnsupportedPddlError(
        f"problem {problem.name}", 1, f"got {feature}, which the built-in search does not cover"
    )


class _Pattern(NamedTuple):
    """A precondition to look up in the facts reached: an atom with variables, and the places that are bound by then."""

    atom: Atom
    places: tuple[int, ...]


# The fact that a schema without preconditions to look up waits for: it is the first one reached.
_START: Atom = ("",)


class _Join(NamedTuple):
    """How a new fact that fits `trigger` is completed: by reached facts, and the objects of the remaining variables."""

    schema: ActionSchema
    trigger: Atom
    patterns: tuple[_Pattern, ...]
    free: tuple[Parameter, ...]


_FactsByNames = dict[tuple[str, ...], list[Atom]]
"""The names at some places of a predicate, to the facts that have them there."""


class _ReachedFacts:
    """The facts reached so far, found by some of their arguments, and the actions that they complete."""

    def __init__(self, problem: Problem, grounder: Grounder, joins: Iterable[_Join]):
        self._problem = problem
        self._grounder = grounder
        # Choices of objects that may still be tried.
        self._budget = MAX_BINDINGS
        # Predicate to places to an index: one for each look-up that some join makes.
        self._indexes: dict[str, dict[tuple[int, ...], _FactsByNames]] = {}
        for join in joins:
            for atom, places in join.patterns:
                self._indexes.setdefault(atom[0], {})[places] = {}

    def add(self, atom: Atom) -> None:
        for places, index in self._indexes.get(atom[0], {}).items():
            names = tuple([atom[place] for place in places])
            index.setdefault(names, []).append(atom)

    def complete(self, join: _Join, binding: Binding, depth: int = 0) -> Iterator[Action]:
        """Yield the actions of a join: patterns from `depth` on filled in by facts, then the rest by objects."""
        self._spend()
        if depth < len(join.patterns):
            atom, places = join.patterns[depth]
            # What is no variable is a constant, which stands for itself.
            names = tuple([binding.get(atom[place], atom[place]) for place in places])
            for fact in self._indexes[atom[0]][places].get(names, ()):
                bound = _matched(atom, fact, binding)
                if bound is not None:
                    yield from self.complete(join, bound, depth + 1)
            return
        variables = [parameter.name for parameter in join.schema.parameters]
        free_variables = [parameter.name for parameter in join.free]
        choices = [self._grounder.objects_of(parameter.types) for parameter in join.free]
        for objects in product(*choices):
            self._spend()
            bound = {**binding, **dict(zip(free_variables, objects, strict=True))}
            yield bound_atom((join.schema.name, *variables), bound)

    def _spend(self) -> None:
        self._budget -= 1
        if self._budget < 0:
            reason = f"more than {MAX_BINDINGS} ways to fill in the operators"
            raise SearchLimitError(f"problem {self._problem.name}: {reason}")


def reachable_steps(problem: Problem) -> dict[Action, GroundStep]:
    """Find the steps whose preconditions can be reached when nothing is ever deleted.

    A queue of facts, to begin with those of the start. Each new fact triggers the joins whose precondition it fits; a
    join looks up the other preconditions among the facts before it, and each way to fill in all variables is a step,
    whose new facts go to the end of the queue. So a step is found when the last fact that it needs is taken from the
    queue, and nothing is tried twice.

    Source: Helmert, Concise finite-domain representations for PDDL planning tasks, Artificial Intelligence 173 (2009),
    section 6 (the same by Datalog rules).

    Returns:
        Action to step, in the order of the actions.

    Raises:
        SearchLimitError: there are more than `MAX_BINDINGS` ways to fill in the operators.
        UnsupportedPddlError: a step has a precondition or an effect that goes beyond STRIPS.
    """
    joins: list[_Join] = []
    for schema in problem.domain.actions.values():
        joins += _joins(schema)
    grounder = Grounder(problem)
    reached = _ReachedFacts(problem, grounder, joins)
    joins_by_predicate: dict[str, list[_Join]] = {}
    for join in joins:
        joins_by_predicate.setdefault(join.trigger[0], []).append(join)
    steps: dict[Action, GroundStep] = {}
    tried: set[Action] = set()
    queue = [_START, *problem.init_order]
    queued = set(queue)
    # Joined only with facts before it, and with itself:
    # a pair is completed by the later of the two.
    for fact in queue:  # it grows
        reached.add(fact)
        for join in joins_by_predicate.get(fact[0], ()):
            binding = _matched(join.trigger, fact, {})
            if binding is None:
                continue
            for action in reached.complete(join, binding):
                if action in tried:
                    continue
                tried.add(action)
                if check_action(problem, action) is not None:
                    continue
                step = grounder.step(action)
                _require_strips(problem, action, step)
                if NEVER in step.true:
                    continue
                steps[action] = step
                # Sorted: the order of a set would differ
                # between processes, and with it the plan.
                new_facts = sorted(step.add - queued)
                queued.update(new_facts)
                queue.extend(new_facts)
    return {action: steps[action] for action in sorted(steps)}


def _require_strips(problem: Problem, action: Action, step: GroundStep) -> None:
    if any(effect.condition is not True for effect in step.extras.effects):
        refuse(problem, f"conditional effects in '{action[0]}'")
    if step.extras.conditions:
        refuse(problem, f"a precondition that is no conjunction of literals in '{action[0]}'")


def _joins(schema: ActionSchema) -> Iterator[_Join]:
    """Make one join for each precondition that a new fact may fit; a schema without any is filled in by types alone."""
    atoms: list[Atom] = []
    # Equalities, and negative conditions, find no objects; grounding checks them.
    for condition in schema.precondition:
        if isinstance(condition, Literal) and condition.positive and condition.atom[0] != "=":
            atoms.append(condition.atom)
    bound = set().union(*map(_variables, atoms))
    free = tuple(parameter for parameter in schema.parameters if parameter.name not in bound)
    atoms = atoms or [_START]
    for number, trigger in enumerate(atoms):
        other_atoms = atoms[:number] + atoms[number + 1 :]
        yield _Join(schema, trigger, _in_order(other_atoms, _variables(trigger)), free)


def _in_order(atoms: list[Atom], bound: set[str]) -> tuple[_Pattern, ...]:
    """Order the look-ups: always next the one with the fewest open variables."""
    # Few open variables, few facts that fit: what is
    # tried grows with the product over all look-ups.
    patterns = []
    while atoms:
        atom = min(atoms, key=lambda candidate: len(_variables(candidate) - bound))
        atoms.remove(atom)
        places = []
        for place, term in enumerate(atom[1:], 1):
            is_variable = term[0] == "?"
            if not is_variable or term in bound:
                places.append(place)
        patterns.append(_Pattern(atom, tuple(places)))
        bound = bound | _variables(atom)
    return tuple(patterns)


def _variables(atom: Atom) -> set[str]:
    return {term for term in atom[1:] if term[0] == "?"}


def _matched(pattern: Atom, fact: Atom, binding: Binding) -> dict[str, str] | None:
    """Bind the variables of a pattern to the names of a fact; None where a name differs from what is bound."""
    bound = dict(binding)
    for term, name in zip(pattern[1:], fact[1:], strict=True):
        value = bound.setdefault(term, name) if term[0] == "?" else term
        if value != name:
            return None
    return bound
