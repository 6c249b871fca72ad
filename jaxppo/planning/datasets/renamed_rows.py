"""Further rows for a problem: the same one with other names for its objects and another order of its atoms."""

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from jaxppo.errors import DataError
from jaxppo.planning.datasets.rows import Row, make_row, reference_plans
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.language.parse import Problem, parse_domain, parse_problem
from jaxppo.planning.language.plans import parse_action
from jaxppo.planning.prompts import render_prompt, split_words
from jaxppo.planning.transform.renaming import (
    permute_atoms,
    rename_objects,
    rename_plan,
    with_objects_renamed,
)


def renamed_rows(
    row: Row, pools: Mapping[str, Sequence[str]], count: int, seed: int
) -> Iterator[Row]:
    """Yield copies of a row in other names, whose `paired_id` is its id.

    Args:
        row: a row with all columns.
        pools: names for the objects, see `rename_objects`.
        count: number of rows.
        seed: decides the names and the order, together with the row's id.

    Raises:
        ConfigError: as for `rename_objects`.
    """
    for number in range(1, count + 1):
        rng = random.Random(f"{row['id']}/{number}/{seed}")
        yield renamed_row(row, pools, rng) | {
            "id": f"{row['id']}-{number}",
            "obfuscation": None,
            "paired_id": row["id"],
        }


def renamed_row(
    row: Row,
    pools: Mapping[str, Sequence[str]],
    rng: random.Random,
    augment: Collection[str] = ("names", "order"),
) -> Row:
    """Return a row with its problem, prompt and plans under other names, or its atoms in another order.

    Args:
        row: a row with all columns; further ones are left out.
        pools: names for the objects, see `rename_objects`.
        rng: the only source of randomness.
        augment: with `names`, objects get other names; with `order`, atoms get another order.

    Raises:
        ConfigError: as for `rename_objects`.
    """
    problem_pddl = row["problem_pddl"]
    mapping: dict[str, str] = {}
    if "names" in augment:
        problem_pddl, mapping = rename_objects(
            problem_pddl, parse_domain(row["domain_pddl"]), rng, pools
        )
    if "order" in augment:
        problem_pddl = permute_atoms(problem_pddl, rng)
    return _rewritten_row(row, problem_pddl, mapping)


NUMBERED = tuple(f"o{number}" for number in range(1, 49))
"""Names for objects that tell the order in which a prompt mentions them, and not what they are."""


def numbered_row(row: Row, rng: random.Random) -> Row:
    """Return a row with its atoms in another order, and its objects named `o1`, `o2`, ... as its prompt mentions them.

    The same place in a prompt then has the same name in all problems: in style `brief`, the shore that the ferry is at
    is `o1`, whatever its name was.

    Args:
        row: a row with all columns; further ones are left out.
        rng: decides the order.

    Raises:
        DataError: as for `numbered_problem`.
    """
    problem_pddl, mapping = numbered_problem(row, rng)
    return _rewritten_row(row, problem_pddl, mapping)


def numbered_problem(row: Row, rng: random.Random) -> tuple[str, dict[str, str]]:
    """Shuffle and number a row's problem as `numbered_row` does; returns its new text, and old name to new name.

    Raises:
        DataError: more objects than `NUMBERED` has names for.
    """
    shuffled = permute_atoms(row["problem_pddl"], rng)
    objects, numbers = _mentioned_objects(row | {"problem_pddl": shuffled})
    if len(objects) > len(numbers):
        raise DataError(
            f"row {row['id']}: expected at most {len(numbers)} objects to be numbered, got {len(objects)}"
        )
    mapping = dict(zip(objects, numbers, strict=False))
    return with_objects_renamed(shuffled, mapping), mapping


def is_numbered(row: Row) -> bool:
    """Return whether the objects of a row are numbered as its prompt mentions them."""
    objects, numbers = _mentioned_objects(row)
    return objects == numbers[: len(objects)]


def _mentioned_objects(row: Row) -> tuple[list[str], list[str]]:
    """List a row's objects in the order in which its prompt mentions them, and the names of `NUMBERED` for them."""
    problem = parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))
    constants = problem.domain.constants.keys() | problem.domain.late_constants
    objects = sorted(problem.objects.keys() - constants)
    # The prompt is written with marks for names: an object
    # may be called `is` or `a`, like a word of a sentence.
    marks = {name: f"object--{number:03}" for number, name in enumerate(objects)}
    names = {mark: name for name, mark in marks.items()}
    marked = with_objects_renamed(row["problem_pddl"], marks)
    words = split_words(render_prompt(row["domain_pddl"], marked, row["prompt_style"]))
    mentioned = [names[word] for word in words if word in names]
    # A prompt need not mention an object that is in no fact: such objects come last.
    return list(dict.fromkeys(mentioned + objects)), [
        name for name in NUMBERED if name not in constants
    ]


def _rewritten_row(row: Row, problem_pddl: str, mapping: Mapping[str, str]) -> Row:
    """Return a row with another text of its problem, and its plans in the new names."""
    plans = [
        rename_plan(map(parse_action, plan), mapping)
        for plan in reference_plans(row["reference_plan"])
    ]
    return make_row(
        id=row["id"],
        domain=row["domain"],
        split=row["split"],
        domain_pddl=row["domain_pddl"],
        problem_pddl=problem_pddl,
        plans=plans,
        prompt_style=row["prompt_style"],
        planner=row["planner"],
    )


def pools_of_rows(rows: Iterable[Row]) -> dict[str, Mapping[str, Sequence[str]]]:
    """Return per domain the names that its objects may get: the generator's, or those that they have in the rows."""
    pools: dict[str, Mapping[str, Sequence[str]]] = {}
    for domain, problems in problems_by_domain(rows).items():
        # A data set from elsewhere may have a domain of
        # the same name, with names that our pools lack.
        if domain in DOMAINS and all(
            set(DOMAINS[domain].names).issuperset(problem.objects) for problem in problems
        ):
            pools[domain] = DOMAINS[domain].pools
        else:
            pools[domain] = pools_of(problems)
    return pools


def problems_by_domain(rows: Iterable[Row]) -> dict[str, list[Problem]]:
    """Return the problems of rows, by the name of their domain."""
    problems: dict[str, list[Problem]] = {}
    for row in rows:
        problem = parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))
        problems.setdefault(row["domain"], []).append(problem)
    return problems


def pools_of(problems: Iterable[Problem]) -> dict[str, list[str]]:
    """Collect the names that objects have in some problems, by type; types that share a name share all of theirs.

    So the objects of each of the problems can be given names from these pools, each another one.
    """
    names_by_type: dict[str, set[str]] = {}
    for problem in problems:
        constants = problem.domain.constants.keys() | problem.domain.late_constants
        for name, types in problem.objects.items():
            if name not in constants and types:
                names_by_type.setdefault(types[0], set()).add(name)
    # Types and the names that they share; no name is in two
    # groups. A type joins all groups that have one of its names.
    groups: list[tuple[set[str], set[str]]] = []
    for kind, names in names_by_type.items():
        joined_types = {kind}
        joined_names = names
        separate = []
        for group_types, group_names in groups:
            if group_names & names:
                joined_types = joined_types | group_types
                joined_names = joined_names | group_names
            else:
                separate.append((group_types, group_names))
        groups = [*separate, (joined_types, joined_names)]
    pools: dict[str, list[str]] = {}
    for group_types, group_names in groups:
        for kind in sorted(group_types):
            pools[kind] = sorted(group_names)
    return pools
