"""Style `brief`: what `atoms` says in fewer words, in an order that puts together what belongs together.

- Every goal stands before the facts about its first object, so that where that is and where it is to go are side by
  side. A goal that holds already is said once, as `<kept>`.
- The other facts come first, each followed by those that share an object with it.
- The type of an object stands before its first mention where the facts leave it open: `<init> at truck o4 o1`.
- A fact that gives an object a kind is left out where another one implies it: in Gripper, what is `at` a place is a
  ball.
- A fixed relation that puts its objects in a line is written once: `above f1 f2 f3` for its three pairs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.parse import Domain, Problem, parse_domain, parse_problem
from jaxppo.planning.language.scope import Atom, UnsupportedPddlError
from jaxppo.planning.prompts import atoms
from jaxppo.planning.validate.grounding import changing

_INIT = "<init>"
_GOAL = "<goal>"
_KEPT = "<kept>"
_OBJECTS = "<objects>"


def render_prompt(domain_pddl: str, problem_pddl: str) -> str:
    """Write `<init> at truck o1 o2 <goal> at package o3 o4 <init> at o3 o2 <kept> at package o5 o4 ... <plan>`.

    Raises:
        UnsupportedPddlError: as for `atoms`; or an object lacks a kind that its place in another fact implies.
    """
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    atoms.require_facts_alone(problem)
    types_to_write = _open_types(problem)
    words: list[str] = []
    for mark, (predicate, *names) in _parts(problem):
        words += [mark, predicate]
        for name in names:
            if name in types_to_write:
                words.append(types_to_write.pop(name))
            words.append(name)
    # Objects that no fact and no goal mentions come first, by their types.
    unmentioned: dict[str, list[str]] = {}
    for name, type_name in types_to_write.items():
        unmentioned.setdefault(type_name, []).append(name)
    objects: list[str] = []
    for type_name, names in unmentioned.items():
        objects += [_OBJECTS, type_name, *names]
    return " ".join([*objects, *words, "<plan>"])


def _parts(problem: Problem) -> Iterator[tuple[str, Atom]]:
    """Yield the facts and goals in the order of the prompt, each after its mark.

    A fact goes to one of three places: chains first, then facts about objects without a goal, and the facts about the
    first object of a goal right after that goal. A fact that is also a goal is written as the goal alone.
    """
    reached_goals = {
        literal.atom
        for literal in problem.goal
        if literal.positive and literal.atom in problem.init
    }
    facts_about: dict[str, list[Atom]] = {}
    for literal in problem.goal:
        for name in literal.atom[1:2]:
            facts_about[name] = []
    chains: list[Atom] = []
    facts_without_goal: list[Atom] = []
    for fact in _facts(problem):
        predicate, *arguments = fact
        # More arguments than its predicate has: several facts as one.
        if len(arguments) > len(problem.domain.predicates[predicate]):
            chains.append(fact)
        elif fact not in reached_goals:
            facts_about.get(_subject(fact), facts_without_goal).append(fact)
    for fact in (*chains, *_connected(facts_without_goal)):
        yield _INIT, fact
    for literal in problem.goal:
        is_reached = (literal.atom in problem.init) == literal.positive
        mark = _KEPT if is_reached else _GOAL
        if not literal.positive:
            mark += " not"
        yield mark, literal.atom
        for name in literal.atom[1:2]:
            # Only after its first goal: an object may have several.
            for fact in facts_about.pop(name, ()):
                yield _INIT, fact


def _subject(atom: Atom) -> str:
    return atom[1] if len(atom) > 1 else ""


def _connected(facts: Iterable[Atom]) -> Iterator[Atom]:
    """Put facts with the same first object together, and after them the facts of objects that share one with them.

    The facts are a graph, with an edge between two first objects where a fact of one mentions the other, or both
    mention a third. It is walked depth first. What decides between equals are the predicates and the order of the
    problem's text, never a name, so that a problem with other names is written in the same order.
    """
    facts_of: dict[str, list[Atom]] = {}
    for fact in facts:
        facts_of.setdefault(_subject(fact), []).append(fact)
    predicates_of: dict[str, list[str]] = {}
    for subject, subject_facts in facts_of.items():
        # By the predicate alone: Python's sort keeps the order of the text between equals.
        subject_facts.sort(key=lambda fact: fact[0])
        predicates_of[subject] = [fact[0] for fact in subject_facts]
    subjects = sorted(facts_of, key=predicates_of.__getitem__)
    mentioned_by: dict[str, list[str]] = {}
    for subject in subjects:
        for name in dict.fromkeys(_mentioned(facts_of[subject])):
            mentioned_by.setdefault(name, []).append(subject)
    # The last of the stack is next, so everything is put on it in reverse.
    stack = subjects[::-1]
    while stack:
        subject_facts = facts_of.pop(stack.pop(), [])
        yield from subject_facts
        neighbours: list[str] = []
        for name in _mentioned(subject_facts):
            for neighbour in (name, *mentioned_by[name]):
                # What was written already is no longer in `facts_of`.
                if neighbour in facts_of:
                    neighbours.append(neighbour)
        stack += neighbours[::-1]


def _mentioned(facts: Iterable[Atom]) -> list[str]:
    names: list[str] = []
    for fact in facts:
        names += fact[1:]
    return names


def _mentions(problem: Problem) -> Iterator[tuple[str, str, int]]:
    """Yield object, predicate and place for every place of the facts and goals."""
    goal_atoms = [literal.atom for literal in problem.goal]
    for predicate, *names in (*problem.init_order, *goal_atoms):
        for place, name in enumerate(names):
            yield name, predicate, place


def _open_types(problem: Problem) -> dict[str, str]:
    """Return the types of the objects that could be of another type by where they stand."""
    domain = problem.domain
    if not domain.typed:
        return {}
    # Each mention leaves the types that are allowed at its place.
    possible_types: dict[str, set[str]] = {}
    for name in problem.objects:
        if name not in domain.constants:
            possible_types[name] = set(domain.ancestors)
    for name, predicate, place in _mentions(problem):
        if name in possible_types:
            allowed = domain.predicates[predicate][place]
            possible_types[name] = {
                type_name
                for type_name in possible_types[name]
                if domain.is_of_type((type_name,), allowed)
            }
    open_types: dict[str, str] = {}
    for name, types in possible_types.items():
        declared_types = problem.objects[name]
        if not types <= set(declared_types):
            open_types[name] = declared_types[0] if declared_types else "object"
    return open_types


def _facts(problem: Problem) -> list[Atom]:
    """Return the facts to write: without kinds that others imply, and a fixed order of objects as one chain.

    Raises:
        UnsupportedPddlError: a kind that a fact implies does not hold, so that leaving kinds out would say too much.
    """
    kinds_by_place = _implied_kinds(problem.domain)
    implied: set[Atom] = set()
    for name, predicate, place in _mentions(problem):
        for kind in kinds_by_place.get((predicate, place), ()):
            implied.add((kind, name))
    untrue = sorted(implied - problem.init)
    if untrue:
        missing = " ".join(untrue[0])
        message = (
            f"expected the fact ({missing}), which this style takes other facts to imply, got none"
        )
        raise UnsupportedPddlError(f"problem {problem.name}", 1, message)
    # As the keys of a dictionary: without repetitions, in order.
    facts = dict.fromkeys(atom for atom in problem.init_order if atom not in implied)
    for predicate in _fixed_predicates(problem.domain, arity=2):
        pairs = [(atom[1], atom[2]) for atom in facts if atom[0] == predicate]
        chain = _chain(pairs)
        if not chain:
            continue
        # The chain takes the place of each of its pairs, and so stands where the first of them stood.
        facts_with_chain: dict[Atom, None] = {}
        for atom in facts:
            fact = (predicate, *chain) if atom[0] == predicate else atom
            facts_with_chain[fact] = None
        facts = facts_with_chain
    return list(facts)


def _chain(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the objects of a relation in order, if it puts each two of them in one; else nothing."""
    # In an order, the first object stands before all
    # others, the second before all but one, and so on.
    n_followers = Counter(first for first, _ in pairs)
    names: set[str] = set().union(*pairs)
    chain = sorted(names, key=n_followers.__getitem__, reverse=True)
    # Only if each object is followed by all after it: in another
    # relation the counts would give an order, too, and a wrong one.
    is_order = set(pairs) == set(combinations(chain, 2))
    return chain if is_order else []


def _fixed_predicates(domain: Domain, arity: int) -> list[str]:
    """List the predicates of so many arguments that no action changes."""
    fixed = domain.predicates.keys() - changing(domain) - domain.rules.keys()
    names = []
    for name, places in domain.predicates.items():
        if name in fixed and len(places) == arity:
            names.append(name)
    return names


@lru_cache(maxsize=256)
def _implied_kinds(domain: Domain) -> Mapping[tuple[str, int], frozenset[str]]:
    """Return which kinds the places of predicates imply: what all actions with one ask of the object there.

    A kind is a predicate of one argument that no action changes, such as `(ball ?x)`. If every action that reads or
    changes `(at ?x ?y)` also asks for `(ball ?x)`, then in any problem that makes sense the first object of `at` is a
    ball, and `(ball b1)` beside `(at b1 room)` says nothing new.
    """
    kinds = set(_fixed_predicates(domain, arity=1))
    implied: dict[tuple[str, int], frozenset[str]] = {}
    for schema in domain.actions.values():
        required: list[Atom] = []
        for condition in schema.precondition:
            if isinstance(condition, Literal) and condition.positive:
                required.append(condition.atom)
        kinds_of_variable: dict[str, set[str]] = {}
        for predicate, *names in required:
            if predicate in kinds:
                (name,) = names
                kinds_of_variable.setdefault(name, set()).add(predicate)
        changed: list[Atom] = []
        for effect in schema.effects:
            changed += [*effect.add, *effect.delete]
        for predicate, *names in (*required, *changed):
            for place, name in enumerate(names):
                action_kinds = frozenset(kinds_of_variable.get(name, ()))
                # A kind does not imply itself: one of its facts is left.
                action_kinds -= {predicate}
                key = (predicate, place)
                implied[key] = implied.get(key, action_kinds) & action_kinds
    return implied


def vocabulary(domain_pddls: Iterable[str], names: Iterable[str]) -> set[str]:
    """Collect the words of `atoms`, and types."""
    domains = list(domain_pddls)
    # Chains and order need no words of their own.
    words = {_OBJECTS, _KEPT} | atoms.vocabulary(domains, names)
    for domain in map(parse_domain, domains):
        words.update(domain.ancestors)
    return words


BRIEF = atoms.ATOMS._replace(name="brief", render_prompt=render_prompt, vocabulary=vocabulary)
