"""Further rows for a problem: the same one with other names for its objects and another order of its atoms."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxppo.errors import DataError
from jaxppo.planning.datasets.rows import Row, make_row, reference_plans
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.language.parse import Problem, parse_domain, parse_problem
from jaxppo.planning.language.plans import format_action, parse_action
from jaxppo.planning.prompts import render_prompt, split_words
from jaxppo.planning.transform.renaming import permute_atoms, rename_objects, rename_plan, with_objects_renamed


def renamed_rows(row: Row, pools: Mapping[str, Sequence[str]], count: int, seed: int) -> Iterator[Row]:
    """Yield rows whose `paired_id` is that of the given one, with its plans renamed.

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
    row: Row, pools: Mapping[str, Sequence[str]], rng: random.Random, *, names: bool = True, order: bool = True
) -> Row:
    """Return a row with its problem, prompt and plans under other names, or its atoms in another order.

    Args:
        row: a row with all columns; further ones are left out.
        pools: names for the objects, see `rename_objects`.
        rng: the only source of randomness.
        names: whether objects get other names.
        order: whether atoms get another order.

    Raises:
        ConfigError: as for `rename_objects`.
        DataError: the prompt is a conversation, whose plans would keep their names.
    """
    _require_no_conversation(row)
    problem_pddl, mapping = row["problem_pddl"], {}
    if names:
        problem_pddl, mapping = rename_objects(problem_pddl, parse_domain(row["domain_pddl"]), rng, pools)
    return _rewritten(row, permute_atoms(problem_pddl, rng) if order else problem_pddl, mapping)


NUMBERED = tuple(f"o{number}" for number in range(1, 49))
"""Names of objects that say in which order a prompt mentions them, and nothing of their kind."""


def numbered_row(row: Row, rng: random.Random) -> Row:
    """Return a row with its atoms in another order, and its objects named `o1`, `o2`, ... as its prompt mentions them.

    What stands where in a prompt is then called alike in all problems: in style `brief`, the shore that the ferry is
    at is `o1`, whatever its name was.

    Args:
        row: a row with all columns; further ones are left out.
        rng: decides the order.

    Raises:
        DataError: as for `numbered_problem` and `renamed_row`.
    """
    _require_no_conversation(row)
    return _rewritten(row, *numbered_problem(row, rng))


def numbered_problem(row: Row, rng: random.Random) -> tuple[str, dict[str, str]]:
    """Do to a row's problem what `numbered_row` does; returns its new text, and old name to new name.

    Raises:
        DataError: more objects than `NUMBERED` has names for.
    """
    shuffled = permute_atoms(row["problem_pddl"], rng)
    objects, numbers = _as_mentioned(row | {"problem_pddl": shuffled})
    if len(objects) > len(numbers):
        raise DataError(f"row {row['id']}: expected at most {len(numbers)} objects to be numbered, got {len(objects)}")
    mapping = dict(zip(objects, numbers, strict=False))
    return with_objects_renamed(shuffled, mapping), mapping


def is_numbered(row: Row) -> bool:
    """Return whether the objects of a row are numbered as its prompt mentions them."""
    objects, numbers = _as_mentioned(row)
    return objects == numbers[: len(objects)]


def _as_mentioned(row: Row) -> tuple[list[str], list[str]]:
    """List a row's objects as the prompt of its problem mentions them, and the names of `NUMBERED` for them."""
    problem = parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))
    kept = problem.domain.constants.keys() | problem.domain.late_constants
    objects = problem.objects.keys() - kept
    marks = {name: f"object--{number:03}" for number, name in enumerate(sorted(objects))}  # no words of a sentence
    marked = with_objects_renamed(row["problem_pddl"], marks)
    names = {mark: name for name, mark in marks.items()}
    words = split_words(render_prompt(row["domain_pddl"], marked, row["prompt_style"]))
    mentioned = [names[word] for word in words if word in names]
    return list(dict.fromkeys([*mentioned, *sorted(objects)])), [name for name in NUMBERED if name not in kept]


def _require_no_conversation(row: Row) -> None:
    if row.get("failures"):
        raise DataError(f"row {row['id']}: expected a prompt to write anew, got a conversation (repair rows)")


def _rewritten(row: Row, problem_pddl: str, mapping: Mapping[str, str]) -> Row:
    """Return a row with this text of its problem, whose objects have other names."""
    plans = [rename_plan(map(parse_action, plan), mapping) for plan in reference_plans(row["reference_plan"])]
    same = make_row(
        id=row["id"],
        domain=row["domain"],
        split=row["split"],
        domain_pddl=row["domain_pddl"],
        problem_pddl=problem_pddl,
        plan=plans[0],
        prompt_style=row["prompt_style"],
        planner=row["planner"],
    )
    if len(plans) > 1:
        same["reference_plan"] = [list(map(format_action, plan)) for plan in plans]
    return same


def pools_of_rows(rows: Iterable[Row]) -> dict[str, Mapping[str, Sequence[str]]]:
    """Return per domain the names that its objects may get: the generator's, or those that they have in the rows."""
    problems: dict[str, list[Problem]] = {}
    for row in rows:
        problem = parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))
        problems.setdefault(row["domain"], []).append(problem)
    return {name: _generators_pools(name, own) or pools_of(own) for name, own in problems.items()}


def _generators_pools(name: str, problems: Iterable[Problem]) -> Mapping[str, Sequence[str]] | None:
    """Return the pools of our domain of this name, if the problems have no objects but those that it may name."""
    if name not in DOMAINS:
        return None
    known = {*DOMAINS[name].names}
    return DOMAINS[name].pools if all(known.issuperset(problem.objects) for problem in problems) else None


def pools_of(problems: Iterable[Problem]) -> dict[str, list[str]]:
    """Collect the names that objects have in some problems, by type; types that share a name share all of theirs.

    So the objects of each of the problems can be given names from these pools, each another one.
    """
    pools: dict[str, set[str]] = {}
    for problem in problems:
        constants = problem.domain.constants.keys() | problem.domain.late_constants
        for name, types in problem.objects.items():
            if name not in constants and types:
                pools.setdefault(types[0], set()).add(name)
    groups: list[tuple[set[str], set[str]]] = []  # types, and the names that they share; no name is in two
    for kind, own in pools.items():
        kinds, names = {kind}, own
        for group in [group for group in groups if group[1] & own]:
            groups.remove(group)
            kinds, names = kinds | group[0], names | group[1]
        groups.append((kinds, names))
    return {kind: sorted(names) for kinds, names in groups for kind in kinds}
