"""Problems drawn for the splits of a data set, and which of them become rows.

Every pair of a domain and a split has its own endless stream of draws, and takes from it in the order of the
stream: so what a split holds depends on the draws and their plans, and never on how many were solved at a time.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxppo.planning.datasets.rows import SPLIT_PARTITIONS, partition_of_form
from jaxppo.planning.domains import PlanningDomain
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.planning.solve.planners import PlanResult
from jaxppo.planning.transform.canonical import canonical_form

PROBLEM_NAME = "task"
"""What every problem calls itself: its own name would be one more word in a prompt, and give the split away."""
_MAX_DRAWS = 5_000
"""A stream is given up after this many draws in a row that may not enter the split."""
_MAX_PLANS = 400
"""It is given up after this many plans in a row that do not fit."""
_WINDOW = 500
_LEAST_NEW = 3
"""It is given up if fewer than `_LEAST_NEW` of the last `_WINDOW` problems that may enter the split are new."""
_CHUNK = range(8, 100)
"""Problems solved at a time for one split: at least, at most."""
_ROUND = 2_000
"""Draws after which they may be fewer."""


class Supply:
    """Whether draws still bring new problems, judged by the last ones of those that are of the right kind."""

    def __init__(self) -> None:
        self._last: deque[bool] = deque(maxlen=_WINDOW)

    def record(self, is_new: bool) -> None:
        """Record whether a draw was new."""
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
        form: its canonical form.
        n_objects: the number of its objects.
    """

    number: int
    size: int
    problem_pddl: str
    form: str
    n_objects: int


class Attempt(NamedTuple):
    """A candidate with its plan, or with the reason why no planner found one."""

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
        excluded_forms: canonical forms of the rows that earlier splits of the same partition have.
    """

    domain: PlanningDomain
    split: str
    n_rows: int
    sizes: Sequence[int]
    lengths: Sequence[range]
    n_objects: range
    seed: int
    excluded_forms: frozenset[str] = frozenset()


@dataclass(slots=True)
class SplitBuilder:
    """A split of one domain while its rows are collected.

    Attributes:
        spec: what is wanted.
        accepted: what fits, in the order of the stream.
        failed: what no planner solved.
        n_planned: number of candidates whose plans were looked at.
        is_open: whether more is wanted and may come.
    """

    spec: SplitSpec
    accepted: list[Attempt] = field(default_factory=list)
    failed: list[Attempt] = field(default_factory=list)
    n_planned: int = 0
    is_open: bool = True
    _n_drawn: int = 0
    _forms: set[str] = field(default_factory=set)
    _supply: Supply = field(default_factory=Supply)
    _is_dry: bool = False
    # Plans in a row that did not fit.
    _n_misses: int = 0

    @property
    def n_missing(self) -> int:
        """Rows that are still wanted."""
        return self.spec.n_rows - len(self.accepted)

    @property
    def why_closed(self) -> str:
        """Say why a split that is not open has rows missing."""
        if self._supply.is_exhausted:
            return "hardly any problem of these sizes is new any more"
        if self._n_misses >= _MAX_PLANS:
            return f"{self._n_misses} plans in a row have other lengths"
        return f"{_MAX_DRAWS} draws in a row may not enter it"

    def draw(self) -> list[Candidate]:
        """Draw the next candidates: about as many as the missing rows need, judged by those so far."""
        # The share of candidates that become rows, as if
        # three of four had done so before the first one.
        share = (len(self.accepted) + 3) / (self.n_planned + 4)
        n_wanted = min(max(math.ceil(1.1 * self.n_missing / share), _CHUNK[0]), _CHUNK[-1])
        candidates: list[Candidate] = []
        last_draw = self._n_drawn + _ROUND
        while len(candidates) < n_wanted and not self._is_dry:
            if candidates and self._n_drawn > last_draw:
                break
            candidate = self._next_candidate()
            if candidate is None:
                self._is_dry = True
            else:
                candidates.append(candidate)
        # A stream that ends may still bring the last candidates; only then is the split given up.
        if not candidates:
            self.is_open = False
        return candidates

    def take(self, attempt: Attempt) -> bool:
        """Take the next candidate if its plan fits, in the order of the stream; returns whether it became a row."""
        # Plans that were found after the last row are not
        # looked at: the report would depend on the chunks.
        if not self.is_open:
            return False
        self.n_planned += 1
        plan = attempt.result.plan
        fits = plan is not None and any(len(plan) in band for band in self.spec.lengths)
        if plan is None:
            self.failed.append(attempt)
        if fits:
            self.accepted.append(attempt)
        self._n_misses = 0 if fits else self._n_misses + 1
        self.is_open = self.n_missing > 0 and self._n_misses < _MAX_PLANS
        return fits

    def _next_candidate(self) -> Candidate | None:
        """Draw until a problem may enter the split if its plan fits; None where that is hopeless."""
        spec = self.spec
        for _ in range(_MAX_DRAWS):
            if self._supply.is_exhausted:
                return None
            number = self._n_drawn
            self._n_drawn += 1
            size = spec.sizes[number % len(spec.sizes)]
            # A generator for each draw: a problem depends on
            # its number alone, not on how often others drew.
            rng = random.Random(f"{spec.domain.name}/{spec.split}/{spec.seed}/{number}")
            text = spec.domain.generate_problem(size, rng, PROBLEM_NAME)
            problem = parse_problem(text, parse_domain(spec.domain.pddl))
            n_objects = len(problem.objects)
            if n_objects not in spec.n_objects:
                continue
            form = canonical_form(problem)
            if partition_of_form(form) != SPLIT_PARTITIONS[spec.split]:
                continue
            is_new = form not in self._forms and form not in spec.excluded_forms
            self._supply.record(is_new)
            if not is_new:
                continue
            self._forms.add(form)
            return Candidate(number, size, text, form, n_objects)
        return None
