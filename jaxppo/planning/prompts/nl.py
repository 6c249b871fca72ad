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
from jaxppo.planning.prompts.sentences import parse_completion, render_completion
from jaxppo.planning.prompts.style import PromptStyle
from jaxppo.planning.prompts.words import SPECIAL_WORDS, split_words

_PROBLEM_MARK = "\nObjects: "
_OBJECTS = "Objects: {}."
_START = "At the start: {}; and nothing else is true."
_GOAL = "Goal: {}."
_REQUEST = (
    "Write a plan: for each action a sentence such as those after You can, with names in place of the capitals.\n"
    "Plan:\n"
)
# For the vocabulary: all words of a prompt besides those of its domain and its names.
_FRAMES = (_OBJECTS, _START, _GOAL, _REQUEST, NOT, "nothing , and")


def render_prompt(domain_pddl: str, problem_pddl: str) -> str:
    """Write what the domain allows, the objects and facts at the start, the goal, and the request for a plan.

    Raises:
        PddlError: a text cannot be read.
    """
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    clauses = Clauses(phrases_of(problem.domain))
    start = [*map(clauses.atom, problem.init_order), *_values(problem)]
    # The domain first, so that prompts of one domain begin alike: see `prompt_after`.
    lines = [
        _domain_text(problem.domain),
        _OBJECTS.format(_objects(problem)),
        _START.format(_joined(start)),
        _GOAL.format(_joined(map(clauses.condition, problem.conditions))),
        *_metric(problem),
        _REQUEST,
    ]
    return "\n".join(lines)


# A data set has few domains and many problems.
@lru_cache(maxsize=256)
def _domain_text(domain: Domain) -> str:
    phrases = phrases_of(domain)
    clauses = Clauses(phrases)
    lines = [phrases.about]
    for name, supertypes in domain.types.items():
        # That everything is an object says nothing.
        parents = tuple(parent for parent in supertypes if parent != ROOT_TYPE)
        if parents:
            lines.append(f"Whatever {clauses.is_of((name,))} {clauses.is_of(parents)}.")
    lines += [_action(schema, domain, clauses) for schema in domain.actions.values()]
    for rules in domain.rules.values():
        lines += [_rule(rule, clauses) for rule in rules]
    return "\n".join(lines)


def _rule(rule: Rule, clauses: Clauses) -> str:
    variables = [name for name, _ in rule.parameters]
    head = clauses.atom((rule.predicate, *variables))
    return f"Always true: {head} if {clauses.condition(rule.body)}."


def _action(schema: ActionSchema, domain: Domain, clauses: Clauses) -> str:
    """Write `You can stack block X on block Y. Needed: ... Then true: ... Then false: ...`."""
    phrase = clauses.phrases.actions[schema.name].format(
        *(term(name) for name, _ in schema.parameters)
    )
    kinds = [
        f"{term(name)} {clauses.is_of(types)}"
        for name, types in schema.parameters
        if types and domain.typed
    ]
    sentences = [f"You can {phrase}, where {listed(kinds)}." if kinds else f"You can {phrase}."]
    if schema.precondition:
        sentences.append(f"Needed: {_joined(map(clauses.condition, schema.precondition))}.")
    always, *others = schema.effects
    sentences += _results(always, clauses)
    for effect in others:
        sentences += _conditional(effect, clauses)
    return " ".join(sentences)


def _results(effect: Effect, clauses: Clauses) -> Iterator[str]:
    if effect.add:
        yield f"Then true: {_joined(map(clauses.atom, effect.add))}."
    if effect.delete:
        yield f"Then false: {_joined(map(clauses.atom, effect.delete))}."
    if effect.updates:
        yield f"Then {_joined(map(update, effect.updates))}."


def _conditional(effect: Effect, clauses: Clauses) -> Iterator[str]:
    """Yield `For every X that is a truck, if X is empty, then true: ...`."""
    prefix = ""
    if effect.parameters:
        prefix += f"for every {clauses.variables(effect.parameters)}, "
    if effect.conditions:
        prefix += f"if {_joined(map(clauses.condition, effect.conditions))}, "
    for result in _results(effect, clauses):
        sentence = f"{prefix}t{result.removeprefix('T')}"
        # Not `capitalize`, which would write names and variables in lower case.
        yield sentence[0].upper() + sentence[1:]


def _objects(problem: Problem) -> str:
    """Write `a, b and c are blocks; d is a table`."""
    kinds = phrases_of(problem.domain).kinds
    groups: dict[Types, list[str]] = {}
    for name, types in problem.objects.items():
        groups.setdefault(types, []).append(name)
    clauses: list[str] = []
    for types, names in groups.items():
        is_plural = len(names) > 1
        # The phrases of a type are for one and for several, in this order.
        words = " and ".join(kinds[name][is_plural] for name in types)
        verb = "are" if is_plural else "is"
        clauses.append(f"{listed(names)} {verb} {words or 'of no kind'}")
    return _joined(clauses)


def _values(problem: Problem) -> Iterator[str]:
    for function, value in problem.values.items():
        # The cost at the start is the same for all plans.
        if function != (TOTAL_COST,):
            yield f"{expression(function)} is {expression(value)}"


def _metric(problem: Problem) -> Iterator[str]:
    if problem.metric is not None:
        better = {"minimize": "lower", "maximize": "higher"}[problem.metric.direction]
        yield f"The {better} {expression(problem.metric.expression)}, the better."


def _joined(clauses: Iterable[str]) -> str:
    return "; ".join(clauses) or "nothing"


def vocabulary(domain_pddls: Iterable[str], names: Iterable[str]) -> set[str]:
    """Collect the words of the domains and of problems that have these names; numbers are not among them."""
    texts: list[str] = list(_FRAMES)
    for domain in map(parse_domain, domain_pddls):
        phrases = phrases_of(domain)
        for pair in phrases.kinds.values():
            texts += pair
        texts.append(_domain_text(domain))
        texts += phrases.predicates.values()
        texts += phrases.actions.values()
        texts += ["is are", *domain.constants]
    words = {*SPECIAL_WORDS, *names}
    words.update(*map(split_words, texts))
    # The places in the frames are no words.
    return words - {"{}"}


NL = PromptStyle(
    name="nl",
    render_prompt=render_prompt,
    render_completion=render_completion,
    parse_completion=parse_completion,
    vocabulary=vocabulary,
    reads_domain=True,
    problem_mark=_PROBLEM_MARK,
)
