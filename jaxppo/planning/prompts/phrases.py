"""Domains in English: phrases of our own domains, and general ones made of the names of any domain."""

from collections.abc import Hashable, Mapping, Sequence
from functools import cache, lru_cache

from jaxppo.planning.domains import DOMAINS, Phrases
from jaxppo.planning.language.parse import parse_domain
from jaxppo.planning.language.scope import ROOT_TYPE
from jaxppo.planning.language.task import Domain


@lru_cache(maxsize=256)
def phrases_of(domain: Domain) -> Phrases:
    """Find the phrases of a domain: ours where names, types and arguments are those of one of ours, else general."""
    return _known().get(_signature(domain)) or general_phrases(domain)


def general_phrases(domain: Domain) -> Phrases:
    """Make phrases of names: `use drive on t1, a and b`; what is true of which objects is left open."""
    kinds = {name: (f"of kind {name}", f"of kind {name}") for name in domain.ancestors}
    return Phrases(
        about="This is a planning problem.",
        kinds=kinds | ({} if domain.typed else {ROOT_TYPE: ("an object", "objects")}),
        predicates={name: f"{name} holds{_arguments(' for', len(types))}" for name, types in domain.predicates.items()},
        actions={
            name: f"use {name}{_arguments(' on', len(schema.parameters))}" for name, schema in domain.actions.items()
        },
    )


def listed(words: Sequence[str]) -> str:
    """Write `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _arguments(word: str, count: int) -> str:
    return f"{word} {listed([f'{{{place}}}' for place in range(count)])}" if count else ""


@cache
def _known() -> Mapping[Hashable, Phrases]:
    return {_signature(parse_domain(domain.pddl)): domain.phrases for domain in DOMAINS.values()}


def _signature(domain: Domain) -> Hashable:
    """Collect all names and types of arguments; names of variables and of the domain do not count."""
    actions = {name: tuple(types for _, types in schema.parameters) for name, schema in domain.actions.items()}
    parts = (domain.types, domain.constants, domain.predicates, actions)
    return (domain.typed, *(frozenset(part.items()) for part in parts))
