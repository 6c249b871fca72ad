"""Further rows for a problem: the same one with other names for its objects and another order of its atoms."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxppo.planning.datasets.rows import Row, make_row, reference_plans
from jaxppo.planning.language.parse import Problem, parse_domain
from jaxppo.planning.language.plans import format_action, parse_action
from jaxppo.planning.transform.renaming import permute_atoms, rename_objects, rename_plan


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
    domain = parse_domain(row["domain_pddl"])
    plans = [tuple(map(parse_action, plan)) for plan in reference_plans(row["reference_plan"])]
    for number in range(1, count + 1):
        rng = random.Random(f"{row['id']}/{number}/{seed}")
        problem_pddl, mapping = rename_objects(row["problem_pddl"], domain, rng, pools)
        renamed = [rename_plan(plan, mapping) for plan in plans]
        same = make_row(
            id=f"{row['id']}-{number}",
            domain=row["domain"],
            split=row["split"],
            domain_pddl=row["domain_pddl"],
            problem_pddl=permute_atoms(problem_pddl, rng),
            plan=renamed[0],
            prompt_style=row["prompt_style"],
            planner=row["planner"],
            obfuscation=None,
            paired_id=row["id"],
        )
        if len(renamed) > 1:
            same["reference_plan"] = [list(map(format_action, plan)) for plan in renamed]
        yield same


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
