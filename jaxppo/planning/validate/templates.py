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

PickAtom = Callable[[tuple[str, ...]], Any]
"""From the words of an action, followed by the constants of its template, to an atom."""


class Template(NamedTuple):
    """A STRIPS operator, each of its atoms as the indices of its words.

    Every atom is a tuple of words, and each word is either an argument of the action or written in the operator. So
    `(*action, *constants)` holds all of them, and `itemgetter` picks an atom from it without looking up any variable.

    Attributes:
        constants: the predicates and objects that the operator itself names.
        true: literals that must hold.
        false: atoms that must not.
        delete: atoms that it removes.
        add: atoms that it adds.
        equalities: `(= a b)`, each with whether it must hold.
    """

    constants: tuple[str, ...]
    true: tuple[PickAtom, ...]
    false: tuple[PickAtom, ...]
    delete: tuple[PickAtom, ...]
    add: tuple[PickAtom, ...]
    equalities: tuple[tuple[PickAtom, bool], ...]

    def fill(
        self, action: Action
    ) -> tuple[frozenset[Atom], frozenset[Atom], frozenset[Atom], frozenset[Atom]]:
        """Fill in the atoms that must hold, those that must not, those deleted and those added."""
        words = (*action, *self.constants)
        true = frozenset([pick(words) for pick in self.true])
        for pick, positive in self.equalities:
            _, first, second = pick(words)
            if (first == second) is not positive:
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
    return {
        name: _template(schema)
        for name, schema in domain.actions.items()
        if _is_plain(schema, domain)
    }


def _is_plain(schema: ActionSchema, domain: Domain) -> bool:
    # Conditions of effects, numbers and derived atoms need a state to be evaluated in, so a
    # formula.
    if schema.effects or schema.updates:
        return False
    return all(
        isinstance(part, Literal) and part.atom[0] not in domain.rules
        for part in schema.precondition
    )


def _template(schema: ActionSchema) -> Template:
    # Word 0 is the name of the operator. Of parameters with the same name the object of the last
    # one counts.
    parameter_indices = {
        parameter.name: index for index, parameter in enumerate(schema.parameters, 1)
    }
    first_constant = 1 + len(schema.parameters)
    constants: dict[str, int] = {}

    def constant_index(word: str) -> int:
        return constants.setdefault(word, first_constant + len(constants))

    def pick_atom(atom: Atom) -> PickAtom:
        predicate, *terms = atom
        indices = [constant_index(predicate)]
        for term in terms:
            indices.append(
                parameter_indices[term] if term in parameter_indices else constant_index(term)
            )
        if len(indices) == 1:
            # With one index `itemgetter` gives the word itself; a slice gives the tuple that an
            # atom is.
            return itemgetter(slice(indices[0], indices[0] + 1))
        return itemgetter(*indices)

    true: list[PickAtom] = []
    false: list[PickAtom] = []
    equalities: list[tuple[PickAtom, bool]] = []
    for condition in schema.precondition:
        if not isinstance(condition, Literal):
            continue
        pick = pick_atom(condition.atom)
        if condition.atom[0] == "=":
            equalities.append((pick, condition.positive))
        elif condition.positive:
            true.append(pick)
        else:
            false.append(pick)
    delete = tuple(map(pick_atom, schema.delete))
    add = tuple(map(pick_atom, schema.add))
    return Template(tuple(constants), tuple(true), tuple(false), delete, add, tuple(equalities))


class FactIndex:
    """Facts found by some of their arguments; an index is built when it is first used."""

    def __init__(self, facts: Iterable[Atom]):
        self._facts = facts
        self._by_predicate: dict[str, list[Atom]] | None = None
        # For a predicate, the places of fixed arguments and the place of the variable: objects by
        # the fixed arguments.
        self._indices: dict[
            tuple[str, tuple[int, ...], int], dict[tuple[str, ...], dict[str, None]]
        ] = {}

    def matches(self, pattern: Atom, variable: str) -> Mapping[str, None]:
        """Find the objects of the variable in facts that agree with the pattern; its other variables match anything."""
        target = pattern.index(variable)
        places = tuple(place for place, term in enumerate(pattern) if place and term[0] != "?")
        key = (pattern[0], places, target)
        if key not in self._indices:
            self._indices[key] = self._index_facts(*key)
        return self._indices[key].get(tuple(pattern[place] for place in places), {})

    def _index_facts(
        self, predicate: str, places: tuple[int, ...], target: int
    ) -> dict[tuple[str, ...], dict[str, None]]:
        # Dictionaries stand for sets that keep their order, so that a run does not depend on the
        # seed of hashes.
        index: dict[tuple[str, ...], dict[str, None]] = {}
        for atom in self._facts_of(predicate):
            index.setdefault(tuple(atom[place] for place in places), {})[atom[target]] = None
        return index

    def _facts_of(self, predicate: str) -> list[Atom]:
        if self._by_predicate is None:
            self._by_predicate = {}
            for atom in self._facts:
                self._by_predicate.setdefault(atom[0], []).append(atom)
        return self._by_predicate.get(predicate, [])
