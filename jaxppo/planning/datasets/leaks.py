"""What splits share: counted from the rows themselves, not from how they were made."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from jaxppo.errors import DataError
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.transform.canonical import canonical_form
from jaxppo.planning.transform.renaming import inverse, obfuscate

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Split to its rows."""
Mappings = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Domain to style of obfuscation to old word to new word."""

PAIRED = frozenset({"test", "test_obfuscated"})
"""The two splits that hold the same problems on purpose, in other words."""
LONGER, UNSEEN = "test_longer", "test_unseen"


def find_leaks(rows_by_split: Rows, mappings: Mappings) -> dict[str, Any]:
    """Count what splits have in common.

    Two problems are the same where a renaming of objects and another order of atoms turn one into the other (see
    `canonical_form`); obfuscated rows (those with a style in the column `obfuscation`) are turned back first.

    Args:
        rows_by_split: split to its rows.
        mappings: the words of every obfuscation.

    Returns:
        `leaks`: shared problems and shared prompts of all pairs of splits but test and test_obfuscated, plus bands that
        touch and domains of test_unseen that are in train: 0 is what a data set should have. `pairs`: the same counts
        pair by pair. `paired`: problems that test and test_obfuscated share on purpose. `repeated`: split to the number
        of its rows whose problem is also that of an earlier row of the split. `touching_bands`: splits whose lengths
        of reference plans reach those of test_longer. `seen_domains`: domains of test_unseen that train has.

    Raises:
        DataError: the words of an obfuscated row are not there.
    """
    forms = {split: [_plain_form(row, mappings) for row in own] for split, own in rows_by_split.items()}
    prompts = {split: {row["prompt"] for row in own} for split, own in rows_by_split.items()}
    pairs = {
        f"{one} / {other}": {
            "problems": len({*forms[one]} & {*forms[other]}),
            "prompts": len(prompts[one] & prompts[other]),
        }
        for one, other in combinations(rows_by_split, 2)
        if {one, other} != PAIRED
    }
    touching, seen = _touching_bands(rows_by_split), _seen_domains(rows_by_split)
    return {
        "leaks": sum(pair["problems"] + pair["prompts"] for pair in pairs.values()) + len(touching) + len(seen),
        "pairs": pairs,
        "paired": len(set.intersection(*({*forms.get(split, ())} for split in PAIRED))),
        "repeated": {split: len(own) - len({*own}) for split, own in forms.items()},
        "touching_bands": touching,
        "seen_domains": seen,
    }


def _plain_form(row: Mapping[str, Any], mappings: Mappings) -> str:
    """Return the canonical form of a row's problem in its original words."""
    domain_pddl, problem_pddl = row["domain_pddl"], row["problem_pddl"]
    style = row.get("obfuscation")
    if style:
        mapping = mappings.get(row["domain"], {}).get(style)
        if mapping is None:
            raise DataError(f"row {row['id']}: expected the words of the obfuscation '{style}', got none")
        plain = obfuscate(domain_pddl, problem_pddl, (), style, rng=random.Random(0), mapping=inverse(mapping))
        domain_pddl, problem_pddl = plain.domain_pddl, plain.problem_pddl
    return canonical_form(parse_problem(problem_pddl, parse_domain(domain_pddl)))


def _touching_bands(rows_by_split: Rows) -> list[str]:
    """Find splits of short plans with one as long as, or only a step shorter than, the shortest in test_longer."""
    lengths = {split: [row["plan_length"] for row in own] for split, own in rows_by_split.items() if own}
    if LONGER not in lengths:
        return []
    short = (split for split in ("train", "rl", "test") if split in lengths)
    return [split for split in short if max(lengths[split]) + 1 >= min(lengths[LONGER])]


def _seen_domains(rows_by_split: Rows) -> list[str]:
    domains = {split: {row["domain"] for row in own} for split, own in rows_by_split.items()}
    return sorted(domains.get(UNSEEN, set()) & (domains.get("train", set()) | domains.get("rl", set())))
