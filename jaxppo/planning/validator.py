"""Plan execution in this process: STRIPS, typing, constants, equality and negative preconditions.

Agrees with VAL on every plan that is a list of known actions, except on purpose (`docs/validator.md` has the table):

- a plan is refused where VAL guesses or crashes: too many arguments (ignored by VAL in untyped domains), too few
  (VAL crashes), an object that the problem does not declare (invented by VAL in untyped domains);
- PDDL files are refused where VAL reads on: undeclared predicates, objects or types, a wrong number of arguments in
  an atom, an action declared twice, text behind the problem's end.

Source: Howey, Long and Fox, VAL: automatic plan validation, ICTAI 2004; Fox and Long, PDDL2.1, JAIR 20 (2003).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from jaxppo.planning.pddl import Atom, Literal, Problem
from jaxppo.planning.plans import Action
from jaxppo.planning.verdicts import PlanError, PlanVerdict


class _Step(NamedTuple):
    """An operator with its arguments filled in."""

    true: frozenset[Atom]
    false: frozenset[Atom]
    delete: frozenset[Atom]
    add: frozenset[Atom]


class _Task(NamedTuple):
    """What is computed once per problem; `steps` grows with the legal actions that plans use.

    That a function (cost) has a value is an atom here as well, marked with `#`: VAL rejects a plan that reads a
    function without a value, be it in an action's cost or in the metric.
    """

    init: frozenset[Atom]
    goal_true: frozenset[Atom]
    goal_false: frozenset[Atom]
    steps: dict[Action, _Step]


def execute(problem: Problem, actions: Sequence[Action]) -> PlanVerdict:
    """Run a plan: `state := (state - delete) | add` at each step.

    As in VAL, every step is checked against the domain first (operator, arity, objects, types); then steps are applied
    up to the first one with a false precondition. The empty plan is executable, and valid where the goal holds at once.

    Args:
        problem: from `parse_problem`.
        actions: the plan, lower case.
    """
    task = _task(problem)
    steps: list[_Step] = []
    for number, action in enumerate(actions, 1):
        step = task.steps.get(action)
        if step is None:
            error = check_action(problem, action)
            if error is not None:
                return PlanVerdict.refused(error, number)
            step = task.steps[action] = _instantiate(problem, action)
        steps.append(step)
    state = set(task.init)
    for number, (true, false, delete, add) in enumerate(steps, 1):
        if not (true <= state and false.isdisjoint(state)):
            return PlanVerdict.refused(PlanError.PRECONDITION, number)
        state -= delete
        state |= add
    return PlanVerdict.executed(task.goal_true <= state and task.goal_false.isdisjoint(state))


def check_action(problem: Problem, action: Action) -> PlanError | None:
    """Check one step against the domain: operator, number of arguments, objects, types, in this order."""
    schema = problem.domain.actions.get(action[0]) if action else None
    if schema is None:
        return PlanError.UNKNOWN_ACTION
    if len(action) - 1 != len(schema.parameters):
        return PlanError.WRONG_ARITY
    if not all(name in problem.objects for name in action[1:]):
        return PlanError.UNKNOWN_OBJECT
    pairs = zip(action[1:], schema.parameters, strict=True)
    if not all(problem.domain.is_of_type(problem.objects[name], parameter.types) for name, parameter in pairs):
        return PlanError.WRONG_TYPE
    return None


@lru_cache(maxsize=4096)
def _task(problem: Problem) -> _Task:
    goal_true, goal_false = _split(problem.goal, {})
    init = problem.init | _has_value(problem.functions)
    return _Task(init, goal_true | _has_value(problem.metric), goal_false, {})


def _instantiate(problem: Problem, action: Action) -> _Step:
    schema = problem.domain.actions[action[0]]
    binding = {parameter.name: name for parameter, name in zip(schema.parameters, action[1:], strict=True)}
    true, false = _split(schema.precondition, binding)
    true |= _has_value(_bound(schema.reads, binding))
    add = _bound(schema.add, binding) | _has_value(_bound(schema.sets, binding))
    return _Step(true, false, _bound(schema.delete, binding), add)


def _split(literals: Iterable[Literal], binding: Mapping[str, str]) -> tuple[frozenset[Atom], frozenset[Atom]]:
    """The atoms that must be in the state and those that must not.

    An equality is decided here: a false one is kept as an atom to be found, which no state contains.
    """
    true, false = set(), set()
    for literal in literals:
        (atom,) = _bound([literal.atom], binding)
        if atom[0] != "=":
            (true if literal.positive else false).add(atom)
        elif (atom[1] == atom[2]) != literal.positive:
            true.add(atom)
    return frozenset(true), frozenset(false)


def _bound(atoms: Iterable[Atom], binding: Mapping[str, str]) -> frozenset[Atom]:
    return frozenset((atom[0], *(binding.get(term, term) for term in atom[1:])) for atom in atoms)


def _has_value(functions: Iterable[Atom]) -> frozenset[Atom]:
    return frozenset((f"#{atom[0]}", *atom[1:]) for atom in functions)
