"""Rows of problems with prompts and reference plans; splits that cannot share a problem.

Which split a problem may enter is a pure function of its canonical form (init and goal up to renaming), so splits
that were built apart, with any seeds and sizes, are disjoint.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxppo.errors import ConfigError, DataError, MissingColumnError
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.parse import Problem, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action, format_action
from jaxppo.planning.prompts import render_completion, render_prompt
from jaxppo.planning.solve.blocksworld import solve
from jaxppo.planning.transform.canonical import canonical_form

Row = dict[str, Any]

GENERATOR_VERSION = 1
"""To be raised where the same settings give other rows than before, so that cached splits of earlier versions go."""

COLUMNS: Mapping[str, type] = {
    "id": str,
    "domain": str,
    "split": str,
    "prompt": str,
    "completion": str,
    "reference_plan": list,
    "domain_pddl": str,
    "problem_pddl": str,
    "plan_length": int,
    "n_objects": int,
    "prompt_style": str,
    "planner": str,
}
"""The columns that every row has, and their types."""

SPLIT_PARTITIONS = {
    "train": "train",
    "rl": "rl",
    "test": "test",
    "test_longer": "test",
    "test_larger": "test",
    "test_unseen": "test",
    "test_obfuscated": "test",
}
"""Split to the partition that it draws from."""
BUILT_IN_SPLITS = ("train", "rl", "test", "test_longer")
"""What `build_split` makes; `test` and `test_longer` share no problem where they share no size."""

# Of every ten problems six may enter `train`, two `rl` and two `test`.
_TENTHS = ("train",) * 6 + ("rl",) * 2 + ("test",) * 2
# n draws in a row miss what has the probability p with (1 - p)^n: a partition is called exhausted
# only where the problems that are left have less than about 1/1000 of the probability.
_MAX_DRAWS_WITHOUT_NEW = 10_000


class TooFewProblemsError(DataError):
    """A split is asked for more different problems than exist."""


def build_split(
    split: str,
    *,
    sizes: Mapping[int, int],
    seed: int,
    prompt_style: str = "atoms",
    unique: bool,
) -> list[Row]:
    """Draw the rows of a split of Blocksworld problems; the same arguments give the same rows, byte for byte.

    Args:
        split: one of `BUILT_IN_SPLITS`.
        sizes: number of objects to number of rows; the draws of one size do not depend on the others.
        seed: decides the draws.
        prompt_style: one of `prompts.PROMPT_STYLES`.
        unique: no two rows are the same problem up to renaming; otherwise only no two prompts are equal.

    Raises:
        ConfigError: an unknown split or style, or a size that the generator does not offer.
        TooFewProblemsError: the partition holds fewer problems than asked for; all such sizes are named.
    """
    if split not in BUILT_IN_SPLITS:
        raise ConfigError(f"split: expected one of {', '.join(BUILT_IN_SPLITS)}, got '{split}'")
    rows = []
    shortages = []
    for size, n_rows in sizes.items():
        try:
            rows += _rows_of_size(split, size, n_rows, seed, prompt_style, unique)
        except TooFewProblemsError as error:
            # Raised after the last size, so that one error names all that are too small.
            shortages.append(str(error))
    if shortages:
        raise TooFewProblemsError("; ".join(shortages))
    return rows


def form_of(row: Row) -> str:
    """Return the canonical form of a row's problem."""
    return canonical_form(parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"])))


def partition(problem: Problem) -> str:
    """Return the partition of a problem, see `partition_of_form`."""
    return partition_of_form(canonical_form(problem))


def make_row(
    *,
    id: str,
    domain: str,
    split: str,
    domain_pddl: str,
    problem_pddl: str,
    plans: Sequence[Sequence[Action]],
    prompt_style: str,
    planner: str,
    **columns: Any,
) -> Row:
    """Make the row of a problem and plans for it, which are not checked here.

    Args:
        id: unique in its data set.
        domain: name of the domain.
        split: name of the split.
        domain_pddl: domain text.
        problem_pddl: problem text.
        plans: the reference plans; the first one is the completion.
        prompt_style: one of `prompts.PROMPT_STYLES`.
        planner: where the plan comes from, with its version.
        columns: further columns.

    Raises:
        PddlError: the domain or the problem cannot be read, or the style cannot write it.
    """
    problem = parse_problem(problem_pddl, parse_domain(domain_pddl))
    steps = [list(map(format_action, plan)) for plan in plans]
    return {
        "id": id,
        "domain": domain,
        "split": split,
        "prompt": render_prompt(domain_pddl, problem_pddl, prompt_style),
        "completion": render_completion(plans[0], prompt_style, domain_pddl),
        "reference_plan": steps if len(steps) > 1 else steps[0],
        "domain_pddl": domain_pddl,
        "problem_pddl": problem_pddl,
        "plan_length": len(plans[0]),
        "n_objects": len(problem.objects),
        "prompt_style": prompt_style,
        "planner": planner,
        **columns,
    }


def _rows_of_size(
    split: str, size: int, n_rows: int, seed: int, prompt_style: str, unique: bool
) -> Iterator[Row]:
    """Draw problems of one size until enough are of this split, no two alike, and solve them."""
    # A generator for each size, so that the rows of one do not depend on the others.
    rng = random.Random(f"{BLOCKSWORLD.name}/{split}/{size}/{seed}")
    # What the rows so far must not be equal in: canonical
    # forms, or prompts where forms may come again.
    keys: set[str] = set()
    for index in range(n_rows):
        # The problem is named like its row.
        name = f"{BLOCKSWORLD.name}-{split}-{size}-{index:05d}"
        for _ in range(_MAX_DRAWS_WITHOUT_NEW):
            text = BLOCKSWORLD.generate_problem(size, rng, name)
            problem = parse_problem(text, parse_domain(BLOCKSWORLD.pddl))
            form = canonical_form(problem)
            key = form if unique else render_prompt(BLOCKSWORLD.pddl, text, prompt_style)
            if partition_of_form(form) == SPLIT_PARTITIONS[split] and key not in keys:
                break
        else:
            raise TooFewProblemsError(
                f"split '{split}', {size} objects: expected {n_rows} different problems, "
                f"found only {len(keys)}; ask for fewer or for another size"
            )
        keys.add(key)
        yield make_row(
            id=name,
            domain=BLOCKSWORLD.name,
            split=split,
            domain_pddl=BLOCKSWORLD.pddl,
            problem_pddl=text,
            plans=[solve(problem)],
            prompt_style=prompt_style,
            planner=BLOCKSWORLD.planner,
        )


def partition_of_form(form: str) -> str:
    """Return the partition (`train` 60 %, `rl` 20 %, `test` 20 %) of the problems with a canonical form.

    A hash decides, so that every problem has one partition for all time, whoever draws it: splits that are made apart
    are disjoint without knowing of each other.
    """
    digest = hashlib.sha256(form.encode()).digest()
    return _TENTHS[int.from_bytes(digest[:8], "big") % len(_TENTHS)]


def checked_row(
    row: Any,
    location: str,
    columns: Mapping[str, type] = COLUMNS,
    source: Mapping[str, Any] | None = None,
) -> Row:
    """Return the row if it has every one of the columns in the right type; further columns are not looked at.

    Args:
        row: to be checked.
        location: names it in errors.
        columns: with their types.
        source: the row as it was read, whose columns an error lists; default: the row itself.

    Raises:
        DataError: a column is missing or of another type; the message starts with `location`.
    """
    for column, kind in columns.items():
        if column not in row:
            raise MissingColumnError(
                f"{location}: field '{column}': expected {kind.__name__}, got nothing",
                row if source is None else source,
            )
        # A bool is an int in Python, but no number of a data set.
        if not isinstance(row[column], kind) or isinstance(row[column], bool):
            raise DataError(
                f"{location}: field '{column}': expected {kind.__name__}, got {row[column]!r:.60}"
            )
    return row


def reference_plans(value: Sequence[Any]) -> tuple[tuple[str, ...], ...]:
    """Read a `reference_plan` column: one list of "(action args)" strings, or a list of such lists."""
    if any(not isinstance(entry, str) for entry in value):
        return tuple(tuple(plan) for plan in value)
    return (tuple(value),)
