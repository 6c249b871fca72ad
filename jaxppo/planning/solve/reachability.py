"""All steps of a problem that could ever be taken, for search.

Each fact is joined once with those reached before it, so that the work is about the number of steps, not of all choices
of objects.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, NoReturn

from jaxppo.errors import JaxppoError
from jaxppo.planning.language.conditions import Binding, Literal, bound_atom
from jaxppo.planning.language.parse import Atom, Parameter, Problem, UnsupportedPddlError
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.task import ActionSchema, check_action
from jaxppo.planning.validate.ground import NEVER, Step
from jaxppo.planning.validate.grounding import Grounder

MAX_BINDINGS = 1_000_000
"""Choices of objects that filling in the operators may try: some seconds."""


class SearchLimitError(JaxppoError):
    """A problem is too large for the built-in search; another planner may solve it."""


def refuse(problem: Problem, feature: str) -> NoReturn:
    """Say what the built-in search does not cover."""
    raise UnsupportedPddlError(f"problem {problem.name}", 1, f"got {feature}, which the built-in search does not cover")


class _Pattern(NamedTuple):
    """A precondition to look up in the facts reached: an atom with variables, and the places that are bound by then."""

    atom: Atom
    places: tuple[int, ...]


class _Join(NamedTuple):
    """How a new fact that fits `first` is completed: by reached facts, and the objects of the remaining variables."""

    schema: ActionSchema
    first: Atom | None
    rest: tuple[_Pattern, ...]
    free: tuple[Parameter, ...]


class _Reached:
    """The facts reached so far, found by some of their arguments."""

    def __init__(self, patterns: Iterable[_Pattern]):
        self._found: dict[str, dict[tuple[int, ...], dict[tuple[str, ...], list[Atom]]]] = {}
        for atom, places in patterns:
            self._found.setdefault(atom[0], {})[places] = {}

    def add(self, atom: Atom) -> None:
        for places, groups in self._found.get(atom[0], {}).items():
            groups.setdefault(tuple([atom[place] for place in places]), []).append(atom)

    def matching(self, pattern: _Pattern, binding: Binding) -> Sequence[Atom]:
        atom, places = pattern
        key = tuple([binding.get(atom[place], atom[place]) for place in places])
        return self._found[atom[0]][places].get(key, ())


class _Budget:
    """Counts the choices of objects that were tried."""

    def __init__(self, problem: Problem):
        self._name, self._left = problem.name, MAX_BINDINGS

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise SearchLimitError(f"problem {self._name}: more than {MAX_BINDINGS} ways to fill in the operators")


def reachable_steps(problem: Problem) -> dict[Action, Step]:
    """Find the steps whose preconditions can be reached when nothing is ever deleted.

    Source: Helmert, Concise finite-domain representations for PDDL planning tasks, Artificial Intelligence 173 (2009),
    section 6 (the same by Datalog rules).

    Returns:
        Action to step, in the order of the actions.

    Raises:
        SearchLimitError: there are more than `MAX_BINDINGS` ways to fill in the operators.
        UnsupportedPddlError: a step has a precondition or an effect that goes beyond STRIPS.
    """
    joins = [join for schema in problem.domain.actions.values() for join in _joins(schema)]
    waiting: dict[str | None, list[_Join]] = {}
    for join in joins:
        waiting.setdefault(None if join.first is None else join.first[0], []).append(join)
    reached = _Reached(pattern for join in joins for pattern in join.rest)
    grounder, budget = Grounder(problem), _Budget(problem)
    steps: dict[Action, Step] = {}
    queue = list(problem.init_order)
    known = set(queue)

    def use(join: _Join, binding: Binding) -> None:
        for action in _completed(problem, join, binding, reached, budget):
            if action not in steps and check_action(problem, action) is None:
                step = steps[action] = _plain(problem, action, grounder.step(action))
                new = [] if NEVER in step.true else sorted(step.add - known)
                known.update(new)
                queue.extend(new)

    for join in waiting.get(None, ()):
        use(join, {})
    for fact in queue:  # it grows
        reached.add(fact)
        for join in waiting.get(fact[0], ()):
            binding = None if join.first is None else _matched(join.first, fact, {})
            if binding is not None:
                use(join, binding)
    return {action: steps[action] for action in sorted(steps) if NEVER not in steps[action].true}


def _plain(problem: Problem, action: Action, step: Step) -> Step:
    if step.extras is not None:
        if any(effect.condition is not True for effect in step.extras.effects):
            refuse(problem, f"conditional effects in '{action[0]}'")
        if step.extras.conditions:
            refuse(problem, f"a precondition that is no conjunction of literals in '{action[0]}'")
    return step


def _joins(schema: ActionSchema) -> Iterator[_Join]:
    """Make one join for each precondition that a new fact may fit; a schema without any is filled in by types alone."""
    atoms = [part.atom for part in schema.precondition if isinstance(part, Literal) and part.positive]
    atoms = [atom for atom in atoms if atom[0] != "="]
    if not atoms:
        yield _Join(schema, None, (), schema.parameters)
    for number, first in enumerate(atoms):
        rest, bound = _in_order(atoms[:number] + atoms[number + 1 :], _variables(first))
        yield _Join(schema, first, rest, tuple(each for each in schema.parameters if each.name not in bound))


def _in_order(atoms: list[Atom], bound: set[str]) -> tuple[tuple[_Pattern, ...], set[str]]:
    """Order the look-ups: always next the one with the fewest open variables, and all variables bound in the end."""
    patterns = []
    while atoms:
        atom = min(atoms, key=lambda each: len(_variables(each) - bound))
        atoms.remove(atom)
        places = tuple(place for place in range(1, len(atom)) if atom[place][0] != "?" or atom[place] in bound)
        patterns.append(_Pattern(atom, places))
        bound = bound | _variables(atom)
    return tuple(patterns), bound


def _variables(atom: Atom) -> set[str]:
    return {term for term in atom[1:] if term[0] == "?"}


def _matched(pattern: Atom, fact: Atom, binding: Binding) -> dict[str, str] | None:
    bound = dict(binding)
    for term, name in zip(pattern[1:], fact[1:], strict=True):
        if (bound.setdefault(term, name) if term[0] == "?" else term) != name:
            return None
    return bound


def _completed(
    problem: Problem, join: _Join, binding: Binding, reached: _Reached, budget: _Budget, depth: int = 0
) -> Iterator[Action]:
    budget.spend()
    if depth < len(join.rest):
        pattern = join.rest[depth]
        for fact in reached.matching(pattern, binding):
            bound = _matched(pattern.atom, fact, binding)
            if bound is not None:
                yield from _completed(problem, join, bound, reached, budget, depth + 1)
        return
    names = [parameter.name for parameter in join.schema.parameters]
    for objects in product(*(_objects(problem, parameter) for parameter in join.free)):
        budget.spend()
        bound = {**binding, **{parameter.name: name for parameter, name in zip(join.free, objects, strict=True)}}
        yield bound_atom((join.schema.name, *names), bound)


def _objects(problem: Problem, parameter: Parameter) -> list[str]:
    domain = problem.domain
    return [
        name for name, own in problem.objects.items() if not domain.typed or domain.is_of_type(own, parameter.types)
    ]
