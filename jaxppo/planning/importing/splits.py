"""Which split an imported problem goes to, by the rules of `build`."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from jaxppo.planning.datasets.config import ImportConfig, parse_lengths
from jaxppo.planning.datasets.folder import Rejected
from jaxppo.planning.datasets.rows import partition_of_form
from jaxppo.planning.importing.source_problems import SourceProblem
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.language.sexpr import read_form
from jaxppo.planning.transform.canonical import canonical_form

AUTO = "auto"
KEEP = "keep"
_SHORT = ("train", "rl", "test")
"""The splits of short plans, besides test_larger and test_unseen."""


class _MeasuredProblem(NamedTuple):
    """What decides the split of a problem."""

    problem: SourceProblem
    form: str
    n_objects: int


def assign_splits(
    problems: Sequence[SourceProblem], config: ImportConfig, progress: Callable[[int], None]
) -> tuple[dict[str, list[SourceProblem]], list[Rejected]]:
    """Put each problem into its split, at most once.

    With `split: auto` a problem goes, by its canonical form, to train, rl or test where its plan is short; to
    test_longer where its plan is long, and to test_larger where it has more objects than the problems of its domain in
    train, rl and test, if its form belongs to test; to test_unseen where its domain is one of `unseen_domains` and its
    plan is short. A canonical form is in one split only, and in it once for each domain; with
    `split: keep` as often as in the source.

    Args:
        problems: with valid plans.
        config: the settings.
        progress: called with the number of problems that are measured.

    Returns:
        Split to its problems, in the order that they came in, and those that are left out, with reasons.
    """
    measured: list[_MeasuredProblem] = []
    for number, problem in enumerate(problems, 1):
        measured.append(_measure(problem))
        progress(number)
    # All problems are measured before the first is
    # placed: what counts as larger depends on all others.
    most_objects = _most_objects_by_domain(measured, config)
    splits: dict[str, list[SourceProblem]] = {}
    id_in_split: dict[tuple[str, str, str], str] = {}
    first_of_form: dict[str, tuple[str, str]] = {}
    rejected: list[Rejected] = []
    for measurement in measured:
        problem, form, n_objects = measurement
        limit = most_objects.get(problem.domain, config.max_train_objects)
        is_larger = limit is not None and n_objects > limit
        split, reason = _split_of(measurement, config, is_larger)
        # In a split the text of the domain counts, too; across
        # splits the form alone: train and test share none.
        key = (split, _plain_domain(problem.domain_pddl), form)
        first_split, first_id = first_of_form.get(form, (split, problem.id))
        if reason is None and key in id_in_split and config.split != KEEP:
            reason = f"duplicate of {id_in_split[key]}"
        if reason is None and first_split != split:
            reason = f"duplicate of {first_id}, which is in {first_split}"
        if reason is not None:
            rejected.append(problem._replace(split=split).rejected(reason))
            continue
        splits.setdefault(split, []).append(problem)
        id_in_split[key] = problem.id
        first_of_form.setdefault(form, (split, problem.id))
    return splits, rejected


@lru_cache(maxsize=256)
def _plain_domain(domain_pddl: str) -> str:
    """Return a domain's text without comments and layout: several domains may have one name."""
    return repr(read_form(domain_pddl, "<domain>"))


def _measure(source: SourceProblem) -> _MeasuredProblem:
    problem = parse_problem(source.problem_pddl, parse_domain(source.domain_pddl))
    return _MeasuredProblem(source, canonical_form(problem), len(problem.objects))


def _split_of(
    measurement: _MeasuredProblem, config: ImportConfig, is_larger: bool
) -> tuple[str, str | None]:
    """Return the split of a problem, or the one that it was meant for and why it cannot enter it."""
    problem = measurement.problem
    if config.split == KEEP:
        return problem.split, None
    if config.split != AUTO:
        return config.split, None
    # A canonical form of other words is another one: such a
    # row could be in train while its original is in test.
    if problem.columns.get("obfuscation"):
        return "", "obfuscated: expected split keep for a row in other words, got auto"
    length = len(problem.plans[0])
    is_short = length in parse_lengths(config.short_lengths)
    if problem.domain in config.unseen_domains:
        return "test_unseen", None if is_short else f"plan length {length} not in short_lengths"
    if not is_short and length not in parse_lengths(config.long_lengths):
        return "", f"plan length {length} in no band"
    partition = partition_of_form(measurement.form)
    if is_short and not is_larger:
        return partition, None
    # As in `build`, the harder splits are of test's partition,
    # so that none of their forms is ever trained on.
    split = "test_larger" if is_larger else "test_longer"
    if partition == "test":
        return split, None
    return split, f"other partition: {split} is of the partition test, not {partition}"


def _most_objects_by_domain(
    measured: Sequence[_MeasuredProblem], config: ImportConfig
) -> dict[str, int]:
    """Return the most objects that a problem of each domain in train, rl and test has."""
    # With a limit, larger problems are not in train, rl and test, so they do not raise it.
    limit = config.max_train_objects
    most_objects: dict[str, int] = {}
    for measurement in measured:
        split, _ = _split_of(measurement, config, is_larger=False)
        if split in _SHORT and (limit is None or measurement.n_objects <= limit):
            domain = measurement.problem.domain
            most_objects[domain] = max(most_objects.get(domain, 0), measurement.n_objects)
    return most_objects
