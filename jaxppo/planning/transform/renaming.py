"""The same problem in other words or another order, with the same valid plans.

Everything here maps words one to one, or changes an order that means nothing; so every plan of the old problem,
renamed, gets the same verdict on the new one, step by step.

Source of the two obfuscations: Valmeekam et al., PlanBench, NeurIPS 2023 (Mystery Blocksworld); the words are our own.
"""

import random
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count

from jaxppo.errors import ConfigError, PddlError
from jaxppo.planning.language.parse import Domain, Problem, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import BEYOND, RESERVED, ROOT_TYPE, TOTAL_COST, TOTAL_TIME
from jaxppo.planning.language.sexpr import Node, read_form, show, write_node
from jaxppo.planning.transform.deceptive_words import NOUNS, STATES, VERBS

OBFUSCATION_STYLES = ("random", "deceptive")
# Words that have a meaning in PDDL wherever they stand: they are never renamed.
_FIXED = RESERVED | {ROOT_TYPE, TOTAL_COST, TOTAL_TIME}
# Nothing gets these names: those of BEYOND have a meaning in some places.
_UNUSABLE = _FIXED | BEYOND
# Where the objects of a problem are named.
_SECTIONS_OF_OBJECTS = (":objects", ":init", ":goal", ":metric")
# 26^8 words: a clash is drawn again, which hardly ever happens.
_RANDOM_LETTERS = 8


def rename_objects(
    problem_pddl: str,
    domain: Domain,
    rng: random.Random,
    pools: Mapping[str, Sequence[str]],
) -> tuple[str, dict[str, str]]:
    """Give the objects of a problem other names; constants of the domain keep theirs.

    Args:
        problem_pddl: problem text.
        domain: its domain.
        rng: the only source of randomness.
        pools: type to the names that its objects may get (`POOLS` of a domain's module). Where neither the type of an
            object nor a type above it has a pool, its new name is from the pool that holds the present one: so kinds
            stay apart in untyped domains.

    Returns:
        The new problem text, and old name to new name.

    Raises:
        ConfigError: no pool for an object, or too few names in it that are free.
        PddlError: the problem cannot be read.
    """
    problem = parse_problem(problem_pddl, domain)
    constants = domain.constants.keys() | domain.late_constants
    names = [name for name in problem.objects if name not in constants]
    excluded = _UNUSABLE | constants | _declared_words(domain)
    mapping = _names_from_pools(problem, names, pools, excluded, rng)
    return with_objects_renamed(problem_pddl, mapping), mapping


def with_objects_renamed(problem_pddl: str, mapping: Mapping[str, str]) -> str:
    """Rename the objects of a problem, but not predicates, functions and types that are spelt like one.

    Args:
        problem_pddl: problem text.
        mapping: old name to new name; different new names, none of which another object keeps.

    Raises:
        PddlError: the problem cannot be read.
    """
    form = read_form(problem_pddl, "<problem>")
    for number, section in enumerate(form):
        if isinstance(section, list) and section[0] in _SECTIONS_OF_OBJECTS:
            form[number] = _rename_terms(section, mapping)
    return write_definition(form)


def permute_atoms(problem_pddl: str, rng: random.Random) -> str:
    """Put objects, initial facts and the conditions that the goal's `and` joins into a random order.

    Args:
        problem_pddl: problem text.
        rng: the only source of randomness.

    Raises:
        PddlError: the text does not begin with `(define ...)`.
    """
    form = read_form(problem_pddl, "<problem>")
    if len(form) < 2 or form[0] != "define":
        raise PddlError(
            "<problem>", 1, f"expected '(define (problem NAME) ...)', got '{show(form)}'"
        )
    for number, section in enumerate(form):
        match section:
            case [":objects", *items]:
                form[number] = [":objects", *_shuffled_objects(items, rng)]
            case [":init", *facts]:
                form[number] = [":init", *_shuffled(_last_values(facts), rng)]
            case [":goal", ["and", *conditions]]:
                form[number] = [":goal", ["and", *_shuffled(conditions, rng)]]
    return write_definition(form)


def choose_words(
    domain_pddl: str, names: Sequence[str], style: str, rng: random.Random
) -> dict[str, str]:
    """Choose another word for each that a domain names, and for further ones; `rename_words` puts them in their place.

    A word that is both a type and a predicate, say, stays one word; so the new texts say what the old ones say.

    Args:
        domain_pddl: domain text.
        names: what problems of the domain name: their objects, and themselves.
        style: `random` (strings of letters) or `deceptive` (ordinary words, verbs for actions, that do not say what
            they stand for).
        rng: the only source of randomness.

    Returns:
        Old word to new word, no two of which are the same; variables (`?x`) are among them.

    Raises:
        PddlError: the domain cannot be read.
    """
    domain = parse_domain(domain_pddl)
    # What may be renamed; every other word belongs to PDDL.
    nameable = _declared_words(domain).union(domain.constants, [domain.name], names) - _FIXED
    # In the order of the text, so that the same text and `rng` give the same words.
    words = list(dict.fromkeys([*_words(read_form(domain_pddl, "<domain>")), *names]))
    # No new word may be an old one: that one would have two meanings where it is not renamed.
    excluded = _UNUSABLE.union(words)
    # Variables become `?v1`, `?v2`, ..., which say nothing.
    variables = [word for word in words if word.startswith("?")]
    numbered = (f"?v{number}" for number in count(1))
    unused_variables = (variable for variable in numbered if variable not in excluded)
    mapping = dict(zip(variables, unused_variables, strict=False))
    old_names = [word for word in words if word in nameable]
    if style == "random":
        new_names = _random_words(rng, len(old_names), excluded)
        return mapping | dict(zip(old_names, new_names, strict=True))
    # Verbs for actions and adjectives for predicates: the new texts read like a domain, of other
    # things. A word that is both an action and a predicate is one word, a verb.
    verbs = []
    states = []
    nouns = []
    for name in old_names:
        if name in domain.actions:
            verbs.append(name)
        elif name in domain.predicates:
            states.append(name)
        else:
            nouns.append(name)
    for group, vocabulary in (
        (verbs, VERBS),
        (states, STATES),
        (nouns, NOUNS),
    ):
        order = rng.sample(vocabulary, len(vocabulary))
        unused_words = (word for word in order if word not in excluded)
        # The lists have several times the words that any of our domains needs; `next` fails at their end.
        for name in group:
            mapping[name] = next(unused_words)
    return mapping


def rename_words(pddl: str, mapping: Mapping[str, str]) -> str:
    """Rename every word of a domain or a problem that the mapping has, wherever it stands; comments go.

    Raises:
        PddlError: the text cannot be read.
    """
    return write_definition(_rename_words(read_form(pddl, "<pddl>"), mapping))


def rename_plan(plan: Iterable[Action], mapping: Mapping[str, str]) -> tuple[Action, ...]:
    """Rename the words of a plan; words that the mapping does not have stay."""
    renamed = []
    for action in plan:
        words = [mapping.get(word, word) for word in action]
        renamed.append(tuple(words))
    return tuple(renamed)


def inverse(mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the mapping that undoes another: new word to old word."""
    return {new: old for old, new in mapping.items()}


def _declared_words(domain: Domain) -> set[str]:
    """Collect what a domain's text declares, beside its constants and variables."""
    words = set(domain.types)
    # A type may be declared by standing after a `-` alone.
    words.update(chain.from_iterable(domain.types.values()))
    words.update(domain.predicates)
    words.update(domain.functions)
    words.update(domain.actions)
    return words


def _words(node: Node) -> Iterator[str]:
    """Yield the words of a form in the order of the text."""
    if isinstance(node, str):
        yield node
    else:
        for item in node:
            yield from _words(item)


def _names_from_pools(
    problem: Problem,
    names: Iterable[str],
    pools: Mapping[str, Sequence[str]],
    excluded: Collection[str],
    rng: random.Random,
) -> dict[str, str]:
    """Draw names from the pools, each at most once."""
    used = set(excluded)
    mapping: dict[str, str] = {}
    for name in names:
        kind = _pool_of(name, problem, pools)
        # One random choice for each object, from what no earlier one has.
        free = [candidate for candidate in pools[kind] if candidate not in used]
        if not free:
            raise ConfigError(
                f"pools: expected more names that are free under '{kind}', got {len(pools[kind])} names"
            )
        mapping[name] = rng.choice(free)
        used.add(mapping[name])
    return mapping


def _pool_of(name: str, problem: Problem, pools: Mapping[str, Sequence[str]]) -> str:
    """Choose the pool of an object: that of its type, else of a type above it, else the one with its name."""
    types = problem.objects[name]
    kinds = [kind for kind in pools if kind in types]
    kinds += [kind for kind in pools if problem.domain.is_of_type(types, (kind,))]
    kinds += [kind for kind, pool in pools.items() if name in pool]
    if not kinds:
        raise ConfigError(
            f"pools: expected one for the object '{name}' ({' '.join(types)}), got {', '.join(pools)}"
        )
    return kinds[0]


def _random_words(rng: random.Random, n_words: int, excluded: Collection[str]) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < n_words:
        word = "".join(rng.choices(string.ascii_lowercase, k=_RANDOM_LETTERS))
        if word not in excluded:
            words[word] = None
    return list(words)


def _rename_words(node: Node, mapping: Mapping[str, str]) -> Node:
    """Rename every word that the mapping has, wherever it stands."""
    if isinstance(node, str):
        return mapping.get(node, node)
    return [_rename_words(item, mapping) for item in node]


def _rename_terms(form: Sequence[Node], mapping: Mapping[str, str]) -> list[Node]:
    """Rename the terms of a form: what is neither the first word (a predicate) nor after `-` (a type)."""
    renamed: list[Node] = []
    for number, item in enumerate(form):
        is_head = number == 0 and isinstance(item, str)
        is_type = number > 1 and form[number - 1] == "-"
        if is_head or is_type:
            renamed.append(item)
        elif isinstance(item, str):
            renamed.append(mapping.get(item, item))
        else:
            renamed.append(_rename_terms(item, mapping))
    return renamed


def _shuffled(items: Sequence[Node], rng: random.Random) -> list[Node]:
    return rng.sample(items, len(items))


def _shuffled_objects(items: Sequence[Node], rng: random.Random) -> list[Node]:
    """Shuffle the names of each `a b - type`, and these lists; names without a type stay at the end."""
    # At the end, since a name in front of a list would get the type of that list.
    typed_lists: list[list[Node]] = []
    names: list[Node] = []
    for number, item in enumerate(items):
        if number and items[number - 1] == "-":
            # The last of the names is the `-` itself.
            shuffled_names = _shuffled(names[:-1], rng)
            typed_lists.append([*shuffled_names, "-", item])
            names = []
        else:
            names.append(item)
    shuffled_lists = rng.sample(typed_lists, len(typed_lists))
    return [*chain.from_iterable(shuffled_lists), *_shuffled(names, rng)]


def _last_values(facts: Iterable[Node]) -> list[Node]:
    """Drop all but the last value of each function: only that counts, and their order would matter."""
    last_facts: dict[str, Node] = {}
    for number, fact in enumerate(facts):
        match fact:
            case ["=", function, *_]:
                last_facts[write_node(function)] = fact
            case _:
                last_facts[str(number)] = fact
    return list(last_facts.values())


def write_definition(form: Node) -> str:
    """Write one line for each section, and for each part of an action."""
    define, name, *sections = form
    lines = [f"({write_node(define)} {write_node(name)}", *map(_write_section, sections)]
    return "\n  ".join(lines) + ")\n"


def _write_section(section: Node) -> str:
    match section:
        case [":action", name, *parts]:
            lines = [f"(:action {write_node(name)}"]
            keys = parts[::2]
            values = parts[1::2]
            for key, value in zip(keys, values, strict=True):
                lines.append(f"{write_node(key)} {write_node(value)}")
            return "\n    ".join(lines) + ")"
    return write_node(section)
