"""The same problem in other words or another order: validity of plans does not change.

Everything here maps words one to one, or changes an order that means nothing; so every plan of the old problem,
renamed, gets the same verdict on the new one, step by step.

Source of the two obfuscations: Valmeekam et al., PlanBench, NeurIPS 2023 (Mystery Blocksworld); the words are our own.
"""

import random
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice, permutations

from jaxppo.errors import ConfigError, PddlError
from jaxppo.planning.language.parse import Domain, Problem, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.scope import BEYOND, RESERVED, ROOT_TYPE, TOTAL_COST, TOTAL_TIME
from jaxppo.planning.language.sexpr import Node, read_fast, show
from jaxppo.planning.transform.deceptive_words import NOUNS, STATES, VERBS

OBFUSCATION_STYLES = ("random", "deceptive")
# Words with a meaning of their own wherever they stand: they are never renamed.
_FIXED = RESERVED | {ROOT_TYPE, TOTAL_COST, TOTAL_TIME}
# Nothing is renamed to these: the others have such a meaning in some places.
_UNUSABLE = _FIXED | BEYOND
# 26^8 words: a clash is drawn again, which hardly ever happens.
_RANDOM_LETTERS = 8


@dataclass(frozen=True, slots=True)
class Obfuscated:
    """A domain, a problem and a plan in other words.

    Attributes:
        domain_pddl: domain text.
        problem_pddl: problem text.
        plan: the plan's actions.
        mapping: old word to new word, for every word of the three; variables (`?x`) are among them.
    """

    domain_pddl: str
    problem_pddl: str
    plan: tuple[Action, ...]
    mapping: Mapping[str, str]


def rename_objects(
    problem_pddl: str, domain: Domain, rng: random.Random, pools: Mapping[str, Sequence[str]] | None = None
) -> tuple[str, dict[str, str]]:
    """Give the objects of a problem other names; constants of the domain keep theirs.

    Args:
        problem_pddl: problem text.
        domain: its domain.
        rng: the only source of randomness.
        pools: type to the names that its objects may get (`POOLS` of a domain's module). An object whose type has none,
            nor a type above it, gets a name from the pool with its present name, so kinds stay apart in untyped
            domains. None for random words.

    Returns:
        The new problem text, and old name to new name.

    Raises:
        ConfigError: no pool for an object, or too few names in it that are free.
        PddlError: the problem cannot be read.
    """
    problem = parse_problem(problem_pddl, domain)
    kept = domain.constants.keys() | domain.late_constants
    names = [name for name in problem.objects if name not in kept]
    taken = _UNUSABLE | kept | _declared_words(domain)
    if pools is None:
        mapping = dict(zip(names, _random_words(rng, len(names), taken | set(names)), strict=True))
    else:
        mapping = _from_pools(problem, names, pools, taken, rng)
    return with_objects_renamed(problem_pddl, mapping), mapping


def with_objects_renamed(problem_pddl: str, mapping: Mapping[str, str]) -> str:
    """Rename the objects of a problem, and leave the words alone that are spelt alike but are no objects.

    Args:
        problem_pddl: problem text.
        mapping: old name to new name; different new names, none of which another object keeps.

    Raises:
        PddlError: the problem cannot be read.
    """
    sections = (":objects", ":init", ":goal", ":metric")
    return write_definition(
        [
            _terms_renamed(section, mapping) if isinstance(section, list) and section[0] in sections else section
            for section in read_fast(problem_pddl, "<problem>")
        ]
    )


def permute_atoms(problem_pddl: str, rng: random.Random) -> str:
    """Put objects, initial facts and the conditions that the goal's `and` joins into a random order.

    Args:
        problem_pddl: problem text.
        rng: the only source of randomness.

    Raises:
        PddlError: the text is no `(define ...)`.
    """
    form = read_fast(problem_pddl, "<problem>")
    if len(form) < 2 or form[0] != "define":
        raise PddlError("<problem>", 1, f"expected '(define (problem NAME) ...)', got '{show(form)}'")
    for number, section in enumerate(form):
        match section:
            case [":objects", *items]:
                form[number] = [":objects", *_permuted_objects(items, rng)]
            case [":init", *facts]:
                form[number] = [":init", *_shuffled(_last_values(facts), rng)]
            case [":goal", ["and", *conditions]]:
                form[number] = [":goal", ["and", *_shuffled(conditions, rng)]]
    return write_definition(form)


def obfuscate(
    domain_pddl: str,
    problem_pddl: str,
    plan: Sequence[Action],
    style: str = "random",
    *,
    rng: random.Random,
    known: Mapping[str, str] | None = None,
) -> Obfuscated:
    """Rename everything that a domain, a problem and a plan name: one word becomes one other word, wherever it stands.

    Comments go. A word that is both a type and a predicate, say, stays one word; so the new texts say what the old ones
    say. Words of the plan that nothing declares are renamed like the others, and stay undeclared.

    Args:
        domain_pddl: domain text.
        problem_pddl: problem text.
        plan: actions, valid or not.
        style: `random` (strings of letters) or `deceptive` (ordinary words, verbs for actions, that do not say what
            they stand for).
        rng: the only source of randomness.
        known: a mapping to keep and to extend, such as that of another problem of the domain, or the `inverse` of an
            obfuscation, which undoes it.

    Raises:
        ConfigError: an unknown style, or two words that `known` makes one.
        PddlError: the domain or the problem cannot be read.
    """
    if style not in OBFUSCATION_STYLES:
        raise ConfigError(f"style: expected one of {', '.join(OBFUSCATION_STYLES)}, got '{style}'")
    mapping = dict(known or {})
    if len(set(mapping.values())) < len(mapping):
        raise ConfigError("known: expected different new words for different old ones")
    domain = parse_domain(domain_pddl)
    problem = parse_problem(problem_pddl, domain)
    forms = read_fast(domain_pddl, "<domain>"), read_fast(problem_pddl, "<problem>")
    nameable = _declared_words(domain) | domain.constants.keys() | problem.objects.keys() | {domain.name, problem.name}
    nameable |= {word for action in plan for word in action} | _stated_domain(forms[1])
    words = [*_words(forms[0]), *_words(forms[1]), *(word for action in plan for word in action)]
    named = [word for word in dict.fromkeys(words) if word in nameable - _FIXED or word.startswith("?")]
    new = [word for word in named if word not in mapping]
    mapping |= _new_words(new, domain, style, _UNUSABLE.union(words, mapping, mapping.values()), rng)
    domain_form, problem_form = (_renamed(form, mapping) for form in forms)
    return Obfuscated(
        write_definition(domain_form), write_definition(problem_form), rename_plan(plan, mapping), mapping
    )


def rename_plan(plan: Iterable[Action], mapping: Mapping[str, str]) -> tuple[Action, ...]:
    """Rename the words of a plan; words that the mapping does not have stay."""
    return tuple(tuple(mapping.get(word, word) for word in action) for action in plan)


def inverse(mapping: Mapping[str, str]) -> dict[str, str]:
    """Return the mapping that undoes another: new word to old word."""
    return {new: old for old, new in mapping.items()}


def _declared_words(domain: Domain) -> set[str]:
    """Collect what a domain's text declares, beside its constants and variables."""
    parents = {parent for parents in domain.types.values() for parent in parents}
    return {*domain.types, *parents, *domain.predicates, *domain.functions, *domain.actions}


def _stated_domain(problem: Iterable[Node]) -> set[str]:
    """Return the name under `:domain`, which need not be that of the domain."""
    return {str(section[1]) for section in problem if isinstance(section, list) and section[0] == ":domain"}


def _words(node: Node) -> Iterator[str]:
    """Yield the words of a form in the order of the text."""
    if isinstance(node, str):
        yield str(node)
    else:
        for item in node:
            yield from _words(item)


def _from_pools(
    problem: Problem,
    names: Iterable[str],
    pools: Mapping[str, Sequence[str]],
    taken: Collection[str],
    rng: random.Random,
) -> dict[str, str]:
    """Draw names from the pools, each at most once."""
    used = set(taken)
    mapping: dict[str, str] = {}
    for name in names:
        kind = _pool_of(name, problem, pools)
        free = [candidate for candidate in pools[kind] if candidate not in used]
        if not free:
            raise ConfigError(f"pools: expected more names that are free under '{kind}', got {len(pools[kind])} names")
        mapping[name] = rng.choice(free)
        used.add(mapping[name])
    return mapping


def _pool_of(name: str, problem: Problem, pools: Mapping[str, Sequence[str]]) -> str:
    """Choose the pool of an object's type, of a type above it, or with its name in it."""
    types = problem.objects[name]
    above = [kind for kind in pools if problem.domain.is_of_type(types, (kind,))]
    kinds = [
        *(kind for kind in above if kind in types),
        *above,
        *(kind for kind, pool in pools.items() if name in pool),
    ]
    if not kinds:
        raise ConfigError(f"pools: expected one for the object '{name}' ({' '.join(types)}), got {', '.join(pools)}")
    return kinds[0]


def _random_words(rng: random.Random, n_words: int, taken: Collection[str]) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < n_words:
        word = "".join(rng.choices(string.ascii_lowercase, k=_RANDOM_LETTERS))
        if word not in taken:
            words[word] = None
    return list(words)


def _new_words(
    words: Sequence[str], domain: Domain, style: str, taken: Collection[str], rng: random.Random
) -> dict[str, str]:
    """Choose other words for these; variables become `?` and a word."""
    variables = [word for word in words if word.startswith("?")]
    names = [word for word in words if not word.startswith("?")]
    mapping = dict(zip(variables, _variable_names(len(variables), taken), strict=True))
    if style == "random":
        return mapping | dict(zip(names, _random_words(rng, len(names), taken), strict=True))
    verbs = [word for word in names if word in domain.actions]
    states = [word for word in names if word in domain.predicates and word not in domain.actions]
    others = [word for word in names if word not in verbs and word not in states]
    for group, ordinary in ((verbs, VERBS), (states, STATES), (others, NOUNS)):
        mapping |= dict(zip(group, _ordinary_words(ordinary, len(group), taken, rng), strict=True))
    return mapping


def _variable_names(n_names: int, taken: Collection[str]) -> list[str]:
    """List `?v1`, `?v2`, ...: they say nothing."""
    return list(islice((name for name in map("?v{}".format, count(1)) if name not in taken), n_names))


def _ordinary_words(ordinary: Sequence[str], n_words: int, taken: Collection[str], rng: random.Random) -> list[str]:
    """Draw words of a list in random order; pairs of them (`cloud-fox`) where it is too short."""
    order = rng.sample(ordinary, len(ordinary))
    pairs = (f"{first}-{second}" for first, second in permutations(order, 2))
    return list(islice((word for word in chain(order, pairs) if word not in taken), n_words))


def _renamed(node: Node, mapping: Mapping[str, str]) -> Node:
    """Rename every word that the mapping has, wherever it stands."""
    if isinstance(node, str):
        return mapping.get(node, node)
    return [_renamed(item, mapping) for item in node]


def _terms_renamed(form: Sequence[Node], mapping: Mapping[str, str]) -> list[Node]:
    """Rename what stands in the place of a term: not in front of a form (a predicate) nor behind `-` (a type)."""
    renamed = list(form[:1]) if form and isinstance(form[0], str) else []
    for number in range(len(renamed), len(form)):
        item, behind_dash = form[number], number > 1 and form[number - 1] == "-"
        if behind_dash:
            renamed.append(item)
        else:
            renamed.append(mapping.get(item, item) if isinstance(item, str) else _terms_renamed(item, mapping))
    return renamed


def _shuffled(items: Sequence[Node], rng: random.Random) -> list[Node]:
    return rng.sample(items, len(items))


def _permuted_objects(items: Sequence[Node], rng: random.Random) -> list[Node]:
    """Shuffle the names of each `a b - type`, and these lists; names without a type stay at the end."""
    groups: list[list[Node]] = []
    names: list[Node] = []
    for number, item in enumerate(items):
        if number and items[number - 1] == "-":
            groups.append([*_shuffled(names[:-1], rng), "-", item])
            names = []
        else:
            names.append(item)
    return [item for group in rng.sample(groups, len(groups)) for item in group] + _shuffled(names, rng)


def _last_values(facts: Iterable[Node]) -> list[Node]:
    """Drop all but the last value of each function: only that counts, and their order would matter."""
    kept: dict[str, Node] = {}
    for number, fact in enumerate(facts):
        match fact:
            case ["=", function, *_]:
                kept[_write(function)] = fact
            case _:
                kept[str(number)] = fact
    return list(kept.values())


def _write(node: Node) -> str:
    return node if isinstance(node, str) else f"({' '.join(map(_write, node))})"


def write_definition(form: Node) -> str:
    """Write one line for each section, and for each part of an action."""
    define, name, *sections = form
    return "\n  ".join([f"({_write(define)} {_write(name)}", *map(_write_section, sections)]) + ")\n"


def _write_section(section: Node) -> str:
    match section:
        case [":action", name, *parts]:
            lines = [f"{_write(key)} {_write(part)}" for key, part in zip(parts[::2], parts[1::2], strict=True)]
            return "\n    ".join([f"(:action {_write(name)}", *lines]) + ")"
    return _write(section)
