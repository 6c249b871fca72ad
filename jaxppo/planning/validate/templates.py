"""Fast look-ups for filling in objects: operators of plain STRIPS as index tuples, and facts by their arguments."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from jaxppo.planning.language.conditions import Literal
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import Atom
from jaxppo.planning.language.task import ActionSchema, Domain
from jaxppo.planning.validate.ground import NEVER

Fill = Callable[[tuple[str, ...]], Any]
"""Takes an action's words and the template's own, gives an atom."""


class Template(NamedTuple):
    """A STRIPS operator: how each of its atoms is picked from the words of a step and the operator's own words."""

    words: tuple[str, ...]
    true: tuple[Fill, ...]
    false: tuple[Fill, ...]
    delete: tuple[Fill, ...]
    add: tuple[Fill, ...]
    equalities: tuple[tuple[Fill, bool], ...]

    def fill(self, action: Action) -> tuple[frozenset[Atom], frozenset[Atom], frozenset[Atom], frozenset[Atom]]:
        """Fill in the atoms that must hold, those that must not, those deleted and those added."""
        words = (*action, *self.words)
        true = frozenset([pick(words) for pick in self.true])
        for pick, positive in self.equalities:
            _, left, right = pick(words)
            if (left == right) is not positive:
                true |= {NEVER}
        return (
            true,
            frozenset([pick(words) for pick in self.false]),
            frozenset([pick(words) for pick in self.delete]),
            frozenset([pick(words) for pick in self.add]),
        )


@lru_cache(maxsize=256)
def templates_of(domain: Domain) -> Mapping[str, Template]:
    """Find the plain STRIPS operators of a domain: literals of predicates that no rule defines, and no numbers."""
    return {name: _template(schema) for name, schema in domain.actions.items() if _is_plain(schema, domain)}


def _is_plain(schema: ActionSchema, domain: Domain) -> bool:
    if schema.effects or schema.updates:
        return False
    return all(isinstance(part, Literal) and part.atom[0] not in domain.rules for part in schema.precondition)


def _template(schema: ActionSchema) -> Template:
    # Of parameters with one name the last one's object counts.
    words = {parameter.name: number for number, parameter in enumerate(schema.parameters, 1)}
    n_names, n_given = len(words), 1 + len(schema.parameters)

    def fill(atom: Atom) -> Fill:
        places = [words.setdefault(atom[0] + "(", n_given + len(words) - n_names)]
        for term in atom[1:]:
            places.append(words.setdefault(term, n_given + len(words) - n_names))
        return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))

    literals = [part for part in schema.precondition if isinstance(part, Literal)]
    plain = [literal for literal in literals if literal.atom[0] != "="]
    return Template(
        true=tuple(fill(atom) for atom, positive in plain if positive),
        false=tuple(fill(atom) for atom, positive in plain if not positive),
        delete=tuple(map(fill, schema.delete)),
        add=tuple(map(fill, schema.add)),
        equalities=tuple((fill(atom), positive) for atom, positive in literals if atom[0] == "="),
        words=tuple(word.removesuffix("(") for word in list(words)[n_names:]),
    )


class FactIndex:
    """Facts found by some of their arguments; built as it is asked."""

    def __init__(self, facts: Iterable[Atom]):
        self._facts = facts
        self._of_predicate: dict[str, list[Atom]] | None = None
        self._found: dict[tuple[str, tuple[int, ...], int], dict[tuple[str, ...], dict[str, None]]] = {}

    def matches(self, pattern: Atom, variable: str) -> Mapping[str, None]:
        """Find the objects of the variable in facts that agree with the pattern; its other variables match anything."""
        target = pattern.index(variable)
        places = tuple(place for place, term in enumerate(pattern) if place and term[0] != "?")
        key = (pattern[0], places, target)
        if key not in self._found:
            self._found[key] = self._grouped(*key)
        return self._found[key].get(tuple(pattern[place] for place in places), {})

    def _grouped(self, predicate: str, places: tuple[int, ...], target: int) -> dict[tuple[str, ...], dict[str, None]]:
        groups: dict[tuple[str, ...], dict[str, None]] = {}
        for atom in self._facts_of(predicate):
            groups.setdefault(tuple(atom[place] for place in places), {})[atom[target]] = None
        return groups

    def _facts_of(self, predicate: str) -> list[Atom]:
        if self._of_predicate is None:
            self._of_predicate = {}
            for atom in self._facts:
                self._of_predicate.setdefault(atom[0], []).append(atom)
        return self._of_predicate.get(predicate, [])
