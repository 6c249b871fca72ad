"""Domains in English: phrases of our own domains, and general ones made of the names of any domain."""

from collections.abc import Hashable, Mapping, Sequence
from functools import cache, lru_cache

from jaxppo.planning.domains import DOMAINS, Phrases
from jaxppo.planning.language.parse import parse_domain
from jaxppo.planning.language.scope import ROOT_TYPE, Types
from jaxppo.planning.language.task import Domain


@lru_cache(maxsize=256)
def phrases_of(domain: Domain) -> Phrases:
    """Find the phrases of a domain: ours where names, types and arguments are those of one of ours, else general."""
    # By its content, not its name: another `blocksworld` may have other actions.
    return _own_phrases().get(_signature(domain)) or general_phrases(domain)


def general_phrases(domain: Domain) -> Phrases:
    """Make phrases of names: `use drive on t1, a and b`; what is true of which objects is left open."""
    # The same for one object and for several, as nobody knows the plural of a name.
    kinds = {name: (f"of kind {name}", f"of kind {name}") for name in domain.ancestors}
    if not domain.typed:
        kinds[ROOT_TYPE] = ("an object", "objects")
    predicates: dict[str, str] = {}
    for name, types in domain.predicates.items():
        predicates[name] = f"{name} holds{_arguments(' for', len(types))}"
    actions: dict[str, str] = {}
    for name, schema in domain.actions.items():
        actions[name] = f"use {name}{_arguments(' on', len(schema.parameters))}"
    return Phrases(
        about="This is a planning problem.", kinds=kinds, predicates=predicates, actions=actions
    )


def listed(words: Sequence[str]) -> str:
    """Write `a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _arguments(word: str, count: int) -> str:
    """Write ` on {0}, {1} and {2}`, a phrase's places for its arguments."""
    if not count:
        return ""
    places = [f"{{{place}}}" for place in range(count)]
    return f"{word} {listed(places)}"


@cache
def _own_phrases() -> Mapping[Hashable, Phrases]:
    phrases_by_signature: dict[Hashable, Phrases] = {}
    for domain in DOMAINS.values():
        signature = _signature(parse_domain(domain.pddl))
        phrases_by_signature[signature] = domain.phrases
    return phrases_by_signature


def _signature(domain: Domain) -> Hashable:
    """Collect all names and types of arguments; names of variables and of the domain do not count."""
    actions: dict[str, tuple[Types, ...]] = {}
    for name, schema in domain.actions.items():
        actions[name] = tuple(types for _, types in schema.parameters)
    # As sets: the order of a domain's text does not count either.
    parts = (domain.types, domain.constants, domain.predicates, actions)
    return (domain.typed, *(frozenset(part.items()) for part in parts))
