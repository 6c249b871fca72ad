"""Style `brief`: what `atoms` says in fewer words, in an order that puts together what belongs together.

- Every goal stands in front of the facts about its first object, so that where that is and where it is to go are side
  by side. A goal that holds already is said once, as `<kept>`.
- The other facts come first, each followed by those that share an object with it.
- The type of an object stands before its first mention where the facts leave it open: `<init> at truck o4 o1`.
- A fact that gives an object a kind is left out where another one tells it: in Gripper, what is `at` a place is a ball.
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

_INIT, _GOAL, _KEPT, _OBJECTS = "<init>", "<goal>", "<kept>", "<objects>"


def render_prompt(domain_pddl: str, problem_pddl: str) -> str:
    """Write `<init> at truck o1 o2 <goal> at package o3 o4 <init> at o3 o2 <kept> at package o5 o4 ... <plan>`.

    Raises:
        UnsupportedPddlError: as for `atoms`; or an object lacks a kind that its place in another fact tells.
    """
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    atoms.require_facts_alone(problem)
    kinds = _open_kinds(problem)
    words: list[str] = []
    for mark, (predicate, *names) in _parts(problem):
        words += mark, predicate
        for name in names:
            words += [kinds.pop(name), name] if name in kinds else [name]
    unmentioned: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        unmentioned.setdefault(kind, []).append(name)
    first = [word for kind, names in unmentioned.items() for word in (_OBJECTS, kind, *names)]
    return " ".join([*first, *words, "<plan>"])


def _parts(problem: Problem) -> Iterator[tuple[str, Atom]]:
    """Yield the facts and goals in the order of the prompt, each behind its mark."""
    kept = {literal.atom for literal in problem.goal if literal.positive and literal.atom in problem.init}
    about: dict[str, list[Atom]] = {name: [] for literal in problem.goal for name in literal.atom[1:2]}
    lines: list[Atom] = []
    others: list[Atom] = []
    for fact in _facts(problem):
        if len(fact) - 1 > len(problem.domain.predicates[fact[0]]):
            lines.append(fact)
        elif fact not in kept:
            about.get(_subject(fact), others).append(fact)
    for fact in (*lines, *_connected(others)):
        yield _INIT, fact
    for literal in problem.goal:
        mark = _KEPT if (literal.atom in problem.init) == literal.positive else _GOAL
        yield mark if literal.positive else f"{mark} not", literal.atom
        for name in literal.atom[1:2]:
            for fact in about.pop(name, ()):
                yield _INIT, fact


def _subject(atom: Atom) -> str:
    return atom[1] if len(atom) > 1 else ""


def _connected(facts: Iterable[Atom]) -> Iterator[Atom]:
    """Put facts with the same first object together, and behind them the facts of objects that share one with them."""
    records: dict[str, list[Atom]] = {}
    for fact in facts:
        records.setdefault(_subject(fact), []).append(fact)
    for record in records.values():
        record.sort(key=lambda fact: fact[0])
    order = sorted(records, key=lambda name: [fact[0] for fact in records[name]])
    mentioned_by: dict[str, list[str]] = {}
    for name in order:
        for word in dict.fromkeys(word for fact in records[name] for word in fact[1:]):
            mentioned_by.setdefault(word, []).append(name)
    stack = order[::-1]
    while stack:
        record = records.pop(stack.pop(), [])
        yield from record
        words = [word for fact in record for word in fact[1:]]
        stack += [name for word in words for name in (word, *mentioned_by[word]) if name in records][::-1]


def _mentions(problem: Problem) -> Iterator[tuple[str, str, int]]:
    """Yield object, predicate and place for every place of the facts and goals."""
    for atom in (*problem.init_order, *(literal.atom for literal in problem.goal)):
        for place, name in enumerate(atom[1:]):
            yield name, atom[0], place


def _open_kinds(problem: Problem) -> dict[str, str]:
    """Return the types of the objects that could be of another type by where they stand."""
    domain = problem.domain
    possible = {name: {*domain.ancestors} for name in problem.objects if name not in domain.constants}
    for name, predicate, place in _mentions(problem):
        if name in possible:
            wanted = domain.predicates[predicate][place]
            possible[name] = {kind for kind in possible[name] if domain.is_of_type((kind,), wanted)}
    return {
        name: (problem.objects[name] or ("object",))[0]
        for name, others in possible.items()
        if domain.typed and not others <= {*problem.objects[name]}
    }


def _facts(problem: Problem) -> list[Atom]:
    told = _told_kinds(problem.domain)
    known = {(kind, name) for name, predicate, place in _mentions(problem) for kind in told.get((predicate, place), ())}
    if untrue := sorted(known - problem.init):
        message = f"expected the fact ({' '.join(untrue[0])}), which this style takes other facts to imply, got none"
        raise UnsupportedPddlError(f"problem {problem.name}", 1, message)
    facts = dict.fromkeys(atom for atom in problem.init_order if atom not in known)
    for predicate in _fixed(problem.domain, arity=2):
        pairs = [atom for atom in facts if atom[0] == predicate]
        if line := _line([(before, after) for _, before, after in pairs]):
            facts = dict.fromkeys((predicate, *line) if atom in pairs else atom for atom in facts)
    return list(facts)


def _line(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the objects of a relation in order, if it puts each two of them in one."""
    behind = Counter(before for before, _ in pairs)
    line = sorted({name for pair in pairs for name in pair}, key=behind.__getitem__, reverse=True)
    return line if {*pairs} == {*combinations(line, 2)} else []


def _fixed(domain: Domain, arity: int) -> list[str]:
    """List the predicates of so many arguments that no action changes."""
    fixed = domain.predicates.keys() - changing(domain) - domain.rules.keys()
    return [name for name, places in domain.predicates.items() if name in fixed and len(places) == arity]


@lru_cache(maxsize=256)
def _told_kinds(domain: Domain) -> Mapping[tuple[str, int], frozenset[str]]:
    """Return which kinds the places of predicates tell: what all actions with one ask of the object there."""
    kinds = {*_fixed(domain, arity=1)}
    told: dict[tuple[str, int], frozenset[str]] = {}
    for schema in domain.actions.values():
        asked = [part.atom for part in schema.precondition if isinstance(part, Literal) and part.positive]
        own = {(atom[0], atom[1]) for atom in asked if atom[0] in kinds}
        changes = (atom for effect in (schema, *schema.effects) for atom in (*effect.add, *effect.delete))
        for atom in (*asked, *changes):
            for place, name in enumerate(atom[1:]):
                here = frozenset(kind for kind, who in own if who == name and kind != atom[0])
                told[atom[0], place] = told.get((atom[0], place), here) & here
    return told


def vocabulary(domain_pddls: Iterable[str], names: Iterable[str]) -> set[str]:
    """Collect the words of `atoms`, and types."""
    domains = [*domain_pddls]
    types = {name for domain in map(parse_domain, domains) for name in domain.ancestors}
    return {_OBJECTS, _KEPT, *types} | atoms.vocabulary(domains, names)


BRIEF = atoms.ATOMS._replace(name="brief", render_prompt=render_prompt, vocabulary=vocabulary)
