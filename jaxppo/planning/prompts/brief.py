"""Style `brief`: what `atoms` says in fewer words, and what it leaves to the names of objects.

- In front stand the objects whose type the facts leave open: `<objects> truck o4 ; package o2 o9`. So names may be
  drawn from one pool for objects of all kinds.
- A fact that gives an object a kind is left out where another one tells it: in Gripper, what is `at` a place is a ball.
- A fixed relation that puts its objects in a line is written once: `above f1 f2 f3` for its three pairs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.parse import Domain, Problem, parse_domain, parse_problem
from jaxppo.planning.language.scope import Atom
from jaxppo.planning.prompts import atoms
from jaxppo.planning.validate.grounding import changing

_OBJECTS = "<objects>"


def render_prompt(domain_pddl: str, problem_pddl: str) -> str:
    """Write `<objects> truck o4 ; package o2 o9 <init> at o4 o1 ; ... <goal> at o2 o1 <plan>`.

    Raises:
        UnsupportedPddlError: as for `atoms`.
    """
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    parts = [atoms.render_problem(problem, _facts(problem))]
    if kinds := _open_kinds(problem):
        parts.insert(0, f"{_OBJECTS} " + " ; ".join(" ".join((kind, *names)) for kind, names in kinds.items()))
    return " ".join(parts)


def _mentions(problem: Problem) -> Iterator[tuple[str, str, int]]:
    """Yield object, predicate and place for every place of the facts and goals."""
    for atom in (*problem.init_order, *(literal.atom for literal in problem.goal)):
        for place, name in enumerate(atom[1:]):
            yield name, atom[0], place


def _open_kinds(problem: Problem) -> dict[str, list[str]]:
    """Return type to objects, for those that could be of another type by where they stand."""
    domain = problem.domain
    possible = {name: {*domain.ancestors} for name in problem.objects if name not in domain.constants}
    for name, predicate, place in _mentions(problem):
        if name in possible:
            wanted = domain.predicates[predicate][place]
            possible[name] = {kind for kind in possible[name] if domain.is_of_type((kind,), wanted)}
    kinds: dict[str, list[str]] = {}
    for name, others in possible.items():
        if domain.typed and not others <= {*problem.objects[name]}:
            kinds.setdefault(problem.objects[name][0], []).append(name)
    return kinds


def _facts(problem: Problem) -> list[Atom]:
    told = _told_kinds(problem.domain)
    known = {(kind, name) for name, predicate, place in _mentions(problem) for kind in told.get((predicate, place), ())}
    facts = dict.fromkeys(atom for atom in problem.init_order if atom not in known)
    for predicate in _fixed(problem.domain, arity=2):
        pairs = [atom for atom in facts if atom[0] == predicate]
        if line := _line([(before, after) for _, before, after in pairs]):
            facts = dict.fromkeys((predicate, *line) if atom in pairs else atom for atom in facts)
    return list(facts)


def _line(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the objects of a relation in order, if it puts each two of them in one."""
    behind = dict.fromkeys((name for pair in pairs for name in pair), 0)
    for before, _ in pairs:
        behind[before] += 1
    line = sorted(behind, key=behind.__getitem__, reverse=True)
    return line if [behind[name] for name in line] == list(range(len(line)))[::-1] else []


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
    return {_OBJECTS, *types} | atoms.vocabulary(domains, names)


BRIEF = atoms.ATOMS._replace(name="brief", render_prompt=render_prompt, vocabulary=vocabulary)
