"""Style `nl`: English. The rules are written from the domain itself, so that they are right for every domain."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from jaxppo.planning.language.axioms import Rule
from jaxppo.planning.language.effects import Effect
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.language.scope import ROOT_TYPE, TOTAL_COST, Types
from jaxppo.planning.language.task import ActionSchema, Domain, Problem
from jaxppo.planning.prompts.clauses import NOT, Clauses, expression, term, update
from jaxppo.planning.prompts.phrases import listed, phrases_of
from jaxppo.planning.prompts.repair import Fault, literal_of, turn
from jaxppo.planning.prompts.sentences import parse_completion, render_completion
from jaxppo.planning.prompts.style import PromptStyle
from jaxppo.planning.prompts.words import SPECIAL_WORDS, split_words

_PROBLEM_MARK = "\nObjects: "
_OBJECTS = "Objects: {}."
_START = "At the start: {}; and nothing else is true."
_GOAL = "Goal: {}."
_CHEAP = "The lower the total cost, the better."
_REQUEST = (
    "Write a plan: for each action a sentence such as those after You can, with names in place of the capitals.\n"
    "Plan:\n"
)
_AGAIN = "Write the whole plan again.\nPlan:"
_FRAMES = (_OBJECTS, _START, _GOAL, _REQUEST, NOT, "nothing , and")


def render_prompt(domain_pddl: str, problem_pddl: str) -> str:
    """Write what the domain allows, the objects and facts at the start, the goal, and the request for a plan.

    Raises:
        PddlError: a text cannot be read.
    """
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    clauses = Clauses(phrases_of(problem.domain))
    start = [*map(clauses.atom, problem.init_order), *_values(problem)]
    lines = [
        _domain_text(problem.domain),
        _OBJECTS.format(_objects(problem)),
        _START.format(_joined(start)),
        _GOAL.format(_joined(map(clauses.condition, problem.conditions))),
        *_metric(problem),
        _REQUEST,
    ]
    return "\n".join(lines)


@lru_cache(maxsize=256)
def _domain_text(domain: Domain) -> str:
    phrases = phrases_of(domain)
    clauses = Clauses(phrases)
    parents = {name: tuple(parent for parent in above if parent != ROOT_TYPE) for name, above in domain.types.items()}
    lines = [
        phrases.about,
        *(f"Whatever {clauses.is_of((name,))} {clauses.is_of(above)}." for name, above in parents.items() if above),
        *(_action(schema, domain, clauses) for schema in domain.actions.values()),
        *(_rule(rule, clauses) for rules in domain.rules.values() for rule in rules),
    ]
    return "\n".join(lines)


def _rule(rule: Rule, clauses: Clauses) -> str:
    atom = (rule.predicate, *(name for name, _ in rule.parameters))
    return f"Always true: {clauses.atom(atom)} if {clauses.condition(rule.body)}."


def _action(schema: ActionSchema, domain: Domain, clauses: Clauses) -> str:
    """Write `You can stack block X on block Y. Needed: ... Then true: ... Then false: ...`."""
    phrase = clauses.phrases.actions[schema.name].format(*(term(name) for name, _ in schema.parameters))
    kinds = [f"{term(name)} {clauses.is_of(types)}" for name, types in schema.parameters if types and domain.typed]
    always = Effect((), (), schema.add, schema.delete, schema.updates)
    return " ".join(
        [
            f"You can {phrase}{', where ' * bool(kinds)}{listed(kinds) if kinds else ''}.",
            *([f"Needed: {_joined(map(clauses.condition, schema.precondition))}."] if schema.precondition else []),
            *_results(always, clauses),
            *(sentence for effect in schema.effects for sentence in _conditional(effect, clauses)),
        ]
    )


def _results(effect: Effect, clauses: Clauses) -> Iterator[str]:
    if effect.add:
        yield f"Then true: {_joined(map(clauses.atom, effect.add))}."
    if effect.delete:
        yield f"Then false: {_joined(map(clauses.atom, effect.delete))}."
    if effect.updates:
        yield f"Then {_joined(map(update, effect.updates))}."


def _conditional(effect: Effect, clauses: Clauses) -> Iterator[str]:
    """Yield `For every X that is a truck, if X is empty, then true: ...`."""
    every = [f"for every {clauses.variables(effect.parameters)}"] if effect.parameters else []
    conditions = [f"if {_joined(map(clauses.condition, effect.conditions))}"] if effect.conditions else []
    for result in _results(effect, clauses):
        sentence = ", ".join([*every, *conditions, f"t{result.removeprefix('T')}"])
        yield sentence[0].upper() + sentence[1:]


def _objects(problem: Problem) -> str:
    """Write `a, b and c are blocks; d is a table`."""
    kinds = phrases_of(problem.domain).kinds
    groups: dict[Types, list[str]] = {}
    for name, types in problem.objects.items():
        groups.setdefault(types, []).append(name)
    return _joined(
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} "
        + (" and ".join(kinds[name][len(names) > 1] for name in types) or "of no kind")
        for types, names in groups.items()
    )


def _values(problem: Problem) -> Iterator[str]:
    return (
        f"{expression(function)} is {expression(value)}"
        for function, value in problem.values.items()
        if function != (TOTAL_COST,)
    )


def _metric(problem: Problem) -> Iterator[str]:
    if problem.metric is None:
        return
    if problem.metric == ("minimize", (TOTAL_COST,)):
        yield _CHEAP
    else:
        better = {"minimize": "lower", "maximize": "higher"}[problem.metric.direction]
        yield f"The {better} {expression(problem.metric.expression)}, the better."


def _joined(clauses: Iterable[str]) -> str:
    return "; ".join(clauses) or "nothing"


def render_fault(fault: Fault, domain_pddl: str) -> str:
    """Write `This plan is not valid: step 3: stack block a on block b: this is not so: nothing is on block b.`."""
    domain = parse_domain(domain_pddl)
    clauses = Clauses(phrases_of(domain))
    literals = [(literal_of(condition, domain_pddl), condition) for condition in fault.missing]
    missing = [condition if literal is None else clauses.literal(literal) for literal, condition in literals]
    name, *arguments = fault.action or ("",)
    known = name in domain.actions and len(arguments) == len(domain.actions[name].parameters)
    action = clauses.phrases.actions[name].format(*arguments) if known else " ".join([name, *arguments])
    return turn(fault, action, f"this is not so: {_joined(missing)}" if missing else "", _AGAIN)


def vocabulary(domain_pddls: Iterable[str], names: Iterable[str]) -> set[str]:
    """Collect the words of the domains and of problems that have these names; numbers are not among them."""
    texts = list(_FRAMES)
    for domain in map(parse_domain, domain_pddls):
        phrases = phrases_of(domain)
        kinds = [kind for pair in phrases.kinds.values() for kind in pair]
        texts += [_domain_text(domain), *kinds, *phrases.predicates.values(), *phrases.actions.values()]
        texts += ["is are", *domain.constants]
    return ({*SPECIAL_WORDS, *names}.union(*map(split_words, texts))) - {"{}"}


NL = PromptStyle(
    *("nl", render_prompt, render_completion, parse_completion, vocabulary),
    reads_domain=True,
    problem_mark=_PROBLEM_MARK,
    render_fault=render_fault,
)
