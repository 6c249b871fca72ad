"""Which split an imported problem goes to, by the rules of `build`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from jaxppo.planning.datasets.config import ImportConfig, parse_lengths
from jaxppo.planning.datasets.folder import Rejected
from jaxppo.planning.datasets.rows import partition_of_form
from jaxppo.planning.importing.source_problems import SourceProblem
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.sexpr import read_fast
from jaxppo.planning.transform.canonical import canonical_form

AUTO, KEEP = "auto", "keep"
_SHORT = ("train", "rl", "test")


class Solved(NamedTuple):
    """A problem and the plans that a validator accepted, the reference first.

    Attributes:
        problem: the problem.
        plans: its plans.
        planner: where they come from, with the version.
    """

    problem: SourceProblem
    plans: tuple[tuple[Action, ...], ...]
    planner: str


class _Measured(NamedTuple):
    """What decides the split of a problem."""

    solved: Solved
    form: str
    n_objects: int


def assign_splits(
    solved: Sequence[Solved], config: ImportConfig, step: Callable[[int], None] = lambda done: None
) -> tuple[dict[str, list[Solved]], list[Rejected]]:
    """Put each problem into its split, at most once.

    With `split: auto` a problem goes, by its canonical form, to train, rl or test where its plan is short; to
    test_longer where its plan is long, and to test_larger where it has more objects than the problems of its domain in
    train, rl and test, if its form belongs to test; to test_unseen where its domain is one of `unseen_domains` and its
    plan is short. A canonical form is in one split only, and in it once for each domain; with
    `split: keep` as often as in the source.

    Args:
        solved: the problems.
        config: the settings.
        step: called with the number of problems looked at.

    Returns:
        Split to its problems, in the order that they came in, and those that are left out, with reasons.
    """
    register = _Register()
    rejected: list[Rejected] = []
    measured = []
    for number, one in enumerate(solved, 1):
        measured.append(_measure(one))
        step(number)
    larger = _larger(measured, config)
    for one in measured:
        split, reason = _split_of(one, config, id(one) in larger)
        reason = reason or register.objection(one, split, config.split == KEEP)
        if reason is None:
            register.add(one, split)
        else:
            rejected.append(one.solved.problem._replace(split=split).rejected(reason))
    return register.splits, rejected


@dataclass(slots=True)
class _Register:
    """What the splits hold so far, and the first id of every problem."""

    splits: dict[str, list[Solved]] = field(default_factory=dict)
    _own: dict[tuple[str, str, str], str] = field(default_factory=dict)
    _anywhere: dict[str, tuple[str, str]] = field(default_factory=dict)

    def objection(self, one: _Measured, split: str, may_repeat: bool) -> str | None:
        """Say why the problem may not enter the split; None where it may."""
        own = self._own.get(self._key(one, split))
        if own is not None and not may_repeat:
            return f"duplicate of {own}"
        other_split, other = self._anywhere.get(one.form, (split, ""))
        return None if other_split == split else f"duplicate of {other}, which is in {other_split}"

    def add(self, one: _Measured, split: str) -> None:
        """Put the problem into the split."""
        problem = one.solved.problem
        self.splits.setdefault(split, []).append(one.solved)
        self._own[self._key(one, split)] = problem.id
        self._anywhere.setdefault(one.form, (split, problem.id))

    def _key(self, one: _Measured, split: str) -> tuple[str, str, str]:
        return split, _plain_domain(one.solved.problem.domain_pddl), one.form


@lru_cache(maxsize=256)
def _plain_domain(domain_pddl: str) -> str:
    """Return a domain's text without comments and layout: several domains may have one name."""
    return repr(read_fast(domain_pddl, "<domain>"))


def _measure(solved: Solved) -> _Measured:
    problem = parse_problem(solved.problem.problem_pddl, parse_domain(solved.problem.domain_pddl))
    return _Measured(solved, canonical_form(problem), len(problem.objects))


def _split_of(one: _Measured, config: ImportConfig, is_larger: bool) -> tuple[str, str | None]:
    """Return the split of a problem, or the one that it was meant for and why it cannot enter it."""
    if config.split == KEEP:
        return one.solved.problem.split, None
    if config.split != AUTO:
        return config.split, None
    if one.solved.problem.columns.get("obfuscation"):
        return "", "obfuscated: expected split keep for a row in other words, got auto"
    length = len(one.solved.plans[0])
    is_short, is_long = (length in parse_lengths(band) for band in (config.short_lengths, config.long_lengths))
    if one.solved.problem.domain in config.unseen_domains:
        return "test_unseen", None if is_short else f"plan length {length} not in short_lengths"
    if not (is_short or is_long):
        return "", f"plan length {length} in no band"
    partition = partition_of_form(one.form)
    if is_short and not is_larger:
        return partition, None
    split = "test_larger" if is_larger else "test_longer"
    return split, None if partition == "test" else f"other partition: {split} is of the partition test, not {partition}"


def _larger(measured: Sequence[_Measured], config: ImportConfig) -> set[int]:
    """Return identities of the problems with more objects than those of their domain in train, rl and test."""
    limit = config.max_train_objects
    most: dict[str, int] = {}
    for one in measured:
        domain, is_short = one.solved.problem.domain, _split_of(one, config, False)[0] in _SHORT
        if is_short and (limit is None or one.n_objects <= limit):
            most[domain] = max(most.get(domain, 0), one.n_objects)
    return {
        id(one)
        for one in measured
        if one.n_objects > most.get(one.solved.problem.domain, one.n_objects if limit is None else limit)
    }
