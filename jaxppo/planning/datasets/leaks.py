"""What splits share: counted from the rows themselves, not from how they were made."""

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Any

from jaxppo.errors import DataError
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.transform.canonical import canonical_form
from jaxppo.planning.transform.renaming import inverse, rename_words

_Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Split to its rows."""
Mappings = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Domain to style of obfuscation to old word to new word."""

# The two splits that hold the same problems on purpose, in other words.
_PAIRED = {"test", "test_obfuscated"}


def find_leaks(rows_by_split: _Rows, mappings: Mappings) -> dict[str, Any]:
    """Count what splits have in common.

    Two problems are the same where a renaming of objects and another order of atoms turn one into the other (see
    `canonical_form`); obfuscated rows (those with a style in the column `obfuscation`) are turned back first.

    Args:
        rows_by_split: split to its rows.
        mappings: the words of every obfuscation.

    Returns:
        `leaks`: shared problems and shared prompts of all pairs of splits but test and test_obfuscated, plus the number
        of `touching_bands` and `seen_domains`; a data set should have 0. `pairs`: the shared problems and prompts pair
        by pair. `touching_bands`: splits whose lengths of reference plans reach those of test_longer. `seen_domains`:
        domains of test_unseen that train or rl has.

    Raises:
        DataError: the words of an obfuscated row are missing.
    """
    forms: dict[str, set[str]] = {}
    prompts: dict[str, set[str]] = {}
    for split, rows in rows_by_split.items():
        forms[split] = {_plain_form(row, mappings) for row in rows}
        prompts[split] = {row["prompt"] for row in rows}
    pairs = {}
    n_shared = 0
    for split, later_split in combinations(rows_by_split, 2):
        if {split, later_split} != _PAIRED:
            # Each problem counts once, however many rows of a split have it.
            n_problems = len(forms[split] & forms[later_split])
            n_prompts = len(prompts[split] & prompts[later_split])
            pairs[f"{split} / {later_split}"] = {"problems": n_problems, "prompts": n_prompts}
            n_shared += n_problems + n_prompts
    touching = _touching_bands(rows_by_split)
    seen_domains = _seen_domains(rows_by_split)
    return {
        "leaks": n_shared + len(touching) + len(seen_domains),
        "pairs": pairs,
        "touching_bands": touching,
        "seen_domains": seen_domains,
    }


def _plain_form(row: Mapping[str, Any], mappings: Mappings) -> str:
    """Return the canonical form of a row's problem in its original words."""
    domain_pddl = row["domain_pddl"]
    problem_pddl = row["problem_pddl"]
    style = row.get("obfuscation")
    if style:
        mapping = mappings.get(row["domain"], {}).get(style)
        if mapping is None:
            raise DataError(
                f"row {row['id']}: expected the words of the obfuscation '{style}', got none"
            )
        plain_words = inverse(mapping)
        domain_pddl = rename_words(domain_pddl, plain_words)
        problem_pddl = rename_words(problem_pddl, plain_words)
    return canonical_form(parse_problem(problem_pddl, parse_domain(domain_pddl)))


def _touching_bands(rows_by_split: _Rows) -> list[str]:
    """Find splits of short plans with one as long as, or only a step shorter than, the shortest in test_longer."""
    shortest = min(
        (row["plan_length"] for row in rows_by_split.get("test_longer", ())), default=None
    )
    touching = []
    for split in ("train", "rl", "test"):
        longest = max((row["plan_length"] for row in rows_by_split.get(split, ())), default=None)
        if shortest is not None and longest is not None and longest + 1 >= shortest:
            touching.append(split)
    return touching


def _seen_domains(rows_by_split: _Rows) -> list[str]:
    # Domains that a model is trained on, in sft or in reinforcement learning.
    learned = {
        row["domain"] for row in chain(rows_by_split.get("train", ()), rows_by_split.get("rl", ()))
    }
    return sorted({row["domain"] for row in rows_by_split.get("test_unseen", ())} & learned)
