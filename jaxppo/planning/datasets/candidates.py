"""Problems drawn for the splits of a data set, and which of them become rows.

Every pair of a domain and a split has its own endless stream of draws, and takes from it in the order of the
stream: so what a split holds depends on the draws and their plans, and never on how many were solved at a time.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxppo.planning.datasets.rows import SPLIT_PARTITIONS, partition_of_form
from jaxppo.planning.domains import PlanningDomain
from jaxppo.planning.language.parse import Problem, parse_domain, parse_problem
from jaxppo.planning.solve.planners import PlanResult
from jaxppo.planning.transform.canonical import canonical_form

PROBLEM_NAME = "task"
"""What every problem calls itself: its own name would be one more word in a prompt, and give the split away."""
# A stream is given up where this many draws in a row may not enter the split, or this many plans in a row do not fit.
_MAX_DRAWS, _MAX_PLANS = 5_000, 400
# And where of the last so many problems that may enter it, fewer than so many had not been drawn before.
_WINDOW, _LEAST_NEW = 500, 3
# Problems solved at a time for one split, at least and at most, and draws after which they may be fewer.
_CHUNK, _ROUND = range(8, 100), 2_000


class Supply:
    """Whether draws still bring new problems, judged by the last ones of those that are of the right kind."""

    def __init__(self) -> None:
        self._last: deque[bool] = deque(maxlen=_WINDOW)

    def saw(self, is_new: bool) -> None:
        """Take note of a draw."""
        self._last.append(is_new)

    @property
    def is_exhausted(self) -> bool:
        """Return whether hardly any of the last draws was new."""
        return len(self._last) == _WINDOW and sum(self._last) < _LEAST_NEW


class Candidate(NamedTuple):
    """A problem that a split may take if its plan fits.

    Attributes:
        number: its place in the stream.
        size: what the generator was asked for.
        problem_pddl: its text.
        skipped: what was drawn before it and may not enter the split, by reason.
    """

    number: int
    size: int
    problem_pddl: str
    skipped: Counter[str]


class Solved(NamedTuple):
    """A candidate and its plan, or the reason why there is none."""

    candidate: Candidate
    result: PlanResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSpec:
    """What a split wants of a domain.

    Attributes:
        domain: the domain.
        split: the split.
        n_rows: how many rows.
        sizes: what the generator is asked for, in turn.
        lengths: lengths of plans that fit.
        n_objects: numbers of objects that fit.
        seed: decides the draws.
        taken: canonical forms of the rows that earlier splits of the same partition took.
    """

    domain: PlanningDomain
    split: str
    n_rows: int
    sizes: Sequence[int]
    lengths: Sequence[range]
    n_objects: range
    seed: int
    taken: frozenset[str] = frozenset()


@dataclass(slots=True)
class SplitBuilder:
    """A split of one domain while its rows are collected.

    Attributes:
        spec: what is wanted.
        accepted: what fits, in the order of the stream.
        failed: what no planner solved.
        planned: candidates whose plans were looked at.
        is_open: whether more is wanted and may come.
        skipped: why draws did not become candidates, up to the last candidate looked at.
    """

    spec: SplitSpec
    accepted: list[Solved] = field(default_factory=list)
    failed: list[Solved] = field(default_factory=list)
    planned: int = 0
    is_open: bool = True
    skipped: Counter[str] = field(default_factory=Counter)
    _drawn: int = 0
    _skips: Counter[str] = field(default_factory=Counter)
    _forms: set[str] = field(default_factory=set)
    _supply: Supply = field(default_factory=Supply)
    _is_dry: bool = False
    _misses: int = 0

    @property
    def n_missing(self) -> int:
        """Rows that are still wanted."""
        return self.spec.n_rows - len(self.accepted)

    @property
    def why_closed(self) -> str:
        """Say why a split that is not open has rows missing."""
        if self._supply.is_exhausted:
            return "hardly any problem of these sizes is new any more"
        if self._misses >= _MAX_PLANS:
            return f"{self._misses} plans in a row have other lengths"
        return f"{_MAX_DRAWS} draws in a row may not enter it"

    def draw(self) -> list[Candidate]:
        """Draw the next candidates: about as many as the missing rows need, judged by those so far."""
        share = (len(self.accepted) + 3) / (self.planned + 4)
        wanted = min(max(math.ceil(1.1 * self.n_missing / share), _CHUNK[0]), _CHUNK[-1])
        candidates: list[Candidate] = []
        first = self._drawn
        while len(candidates) < wanted and not self._is_dry and not (candidates and self._drawn - first > _ROUND):
            candidate = self._next()
            if candidate is None:
                self._is_dry = True
            else:
                candidates.append(candidate)
        if not candidates:
            self.is_open, self.skipped = False, self._skips
        return candidates

    def take(self, solved: Solved) -> bool:
        """Look at the next candidate's plan; whether it became a row."""
        if not self.is_open:
            return False
        self.planned, self.skipped = self.planned + 1, solved.candidate.skipped
        plan = solved.result.plan
        fits = plan is not None and any(len(plan) in band for band in self.spec.lengths)
        if plan is None:
            self.failed.append(solved)
        if fits:
            self.accepted.append(solved)
        self._misses = 0 if fits else self._misses + 1
        self.is_open = self.n_missing > 0 and self._misses < _MAX_PLANS
        return fits

    def figures(self) -> dict[str, int]:
        """Count the draws, and what became of them."""
        rows, failed = len(self.accepted), len(self.failed)
        return {
            "draws": self.skipped.total() + self.planned,
            **{reason: self.skipped[reason] for reason in ("other objects", "other partition", "repeated")},
            "solved": self.planned - failed,
            "failed": failed,
            "other length": self.planned - failed - rows,
            "rows": rows,
        }

    def forms(self) -> set[str]:
        """Return the canonical forms of what was accepted."""
        return {canonical_form(self._parsed(solved.candidate.problem_pddl)) for solved in self.accepted}

    def object_counts(self) -> list[int]:
        """Return the number of objects of each accepted problem."""
        return [len(self._parsed(solved.candidate.problem_pddl).objects) for solved in self.accepted]

    def _next(self) -> Candidate | None:
        """Draw until a problem may enter the split; None where that is hopeless."""
        spec = self.spec
        for _ in range(_MAX_DRAWS):
            if self._supply.is_exhausted:
                return None
            index, size = self._drawn, spec.sizes[self._drawn % len(spec.sizes)]
            self._drawn += 1
            rng = random.Random(f"{spec.domain.name}/{spec.split}/{spec.seed}/{index}")
            text = spec.domain.generate_problem(size, rng, PROBLEM_NAME)
            obstacle = self._obstacle(self._parsed(text))
            if obstacle is None:
                return Candidate(index, size, text, self._skips.copy())
            self._skips[obstacle] += 1
        return None

    def _obstacle(self, problem: Problem) -> str | None:
        """Say why a problem may not enter the split, whatever its plan is; None where it may."""
        if len(problem.objects) not in self.spec.n_objects:
            return "other objects"
        form = canonical_form(problem)
        if partition_of_form(form) != SPLIT_PARTITIONS[self.spec.split]:
            return "other partition"
        is_new = form not in self._forms and form not in self.spec.taken
        self._supply.saw(is_new)
        if not is_new:
            return "repeated"
        self._forms.add(form)
        return None

    def _parsed(self, problem_pddl: str) -> Problem:
        return parse_problem(problem_pddl, parse_domain(self.spec.domain.pddl))
