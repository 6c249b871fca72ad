"""What the names of a domain are in English."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """What the names of a domain are in English; `{0}`, `{1}`, ... stand for the arguments.

    Attributes:
        about: what the domain is about, in whole sentences.
        kinds: type to what stands behind `x is` and behind `x and y are`: ("a truck", "trucks").
        predicates: name to a clause.
        actions: name to what stands behind `you can`; a word at least, each argument once, and no two phrases that
            could be the same words.
    """

    about: str
    kinds: Mapping[str, tuple[str, str]]
    predicates: Mapping[str, str]
    actions: Mapping[str, str]
