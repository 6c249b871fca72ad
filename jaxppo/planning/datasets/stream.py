"""An endless stream of problems with shortest plans: every row is a pure function of the stream and the row's number.

A stream draws from the partition of its split alone: with any seed and sizes, it shares no problem with a split of
another partition. Where the number of its problems is limited, they come again and again, numbered ones in another
order each time.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jaxppo.errors import ConfigError, DataError
from jaxppo.planning.datasets.candidates import PROBLEM_NAME, Supply
from jaxppo.planning.datasets.config import parse_domain_sizes, parse_lengths
from jaxppo.planning.datasets.renamed_rows import NUMBERED, numbered_row, renamed_row
from jaxppo.planning.datasets.rows import (
    SPLIT_PARTITIONS,
    Row,
    TooFewProblemsError,
    form_of,
    make_row,
    partition,
)
from jaxppo.planning.domains import DOMAINS, PlanningDomain
from jaxppo.planning.language.parse import Problem, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.prompts import find_style
from jaxppo.planning.solve.planners import planner_version
from jaxppo.planning.solve.search import SearchLimitError, solve
from jaxppo.planning.transform.restart import problem_after

# A problem whose shortest plan takes a longer search than this, a second or two, is drawn again.
_MAX_STATES = 3_000
# Draws for one row. Where one in a hundred fits, a row is given up by mistake once in 10^8 times.
_MAX_DRAWS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What decides the rows.

    Attributes:
        split: the split whose partition it draws from.
        domains: names of domains, which take turns.
        sizes: `DOMAIN:LOW-HIGH` where the sizes are not the smaller half of the generator's training sizes.
        lengths: band of lengths of shortest plans, such as `1-10`.
        prompt_style: how a problem is written as a prompt.
        seed: of the draws.
        numbered: whether objects are `o1`, `o2`, ... as the prompt mentions them, see `numbered_row`, or have the names
            of the generator: `car3`, `shore1`.
        problems: number of problems of each domain, which come again and again; None: endless.
        augment: what is drawn once more for each row, beside what the generator draws: `states` (every other problem
            begins in a state on its plan), and for objects that are not numbered `names` and `order`.
        begun_lengths: with `states`, band of lengths of the whole plans, the ends of which are of `lengths`; default:
            `lengths`.
    """

    split: str
    domains: Sequence[str]
    sizes: Sequence[str]
    lengths: str
    prompt_style: str
    seed: int
    numbered: bool = True
    problems: int | None = None
    augment: Sequence[str] = ()
    begun_lengths: str | None = None

    @property
    def object_names(self) -> list[str]:
        """All names that objects may have."""
        names = list(NUMBERED) if self.numbered else []
        for domain in self.domains:
            names += DOMAINS[domain].constants if self.numbered else DOMAINS[domain].names
        return names

    def check(self) -> None:
        """Raise a `ConfigError` for unknown domains and styles, or sizes that a generator does not offer."""
        find_style(self.prompt_style)
        for name in self.domains:
            if name not in DOMAINS:
                raise ConfigError(
                    f"dataset: expected stream: and some of {', '.join(DOMAINS)}, got {name!r}"
                )
        if len(set(self.domains)) < len(self.domains):
            raise ConfigError(f"dataset: expected each domain once, got {', '.join(self.domains)}")
        lengths = parse_lengths(self.lengths, "stream_lengths")
        # A shorter plan would have no end of these lengths.
        if (
            self.begun_lengths is not None
            and parse_lengths(self.begun_lengths, "stream_lengths")[0] < lengths[0]
        ):
            raise ConfigError(
                f"stream_lengths: expected rl with lengths of at least {lengths[0]}, the first of stream_lengths, "
                f"with augment states, got {self.begun_lengths}"
            )
        for name, sizes in parse_domain_sizes(self.sizes, "sizes").items():
            if name not in self.domains or not set(sizes) <= set(DOMAINS[name].sizes):
                raise ConfigError(
                    "sizes: expected a domain of the stream, and sizes that docs/datasets.md lists, "
                    f"got {name}:{sizes[0]}-{sizes[-1]}"
                )


def stream_row(stream: Stream, number: int) -> Row:
    """Return a row of a stream.

    Args:
        stream: a checked one.
        number: of the row, from 0.

    Raises:
        DataError: hardly any problem of these sizes has a plan of these lengths.
    """
    turn, position = divmod(number, len(stream.domains))
    domain = DOMAINS[stream.domains[position]]
    if stream.problems is not None:
        turn %= stream.problems
    # Every other turn, so that half of the problems keep the generator's initial state.
    begins_later = "states" in stream.augment and turn % 2 == 1
    # The smaller half of the training sizes, where the settings name no sizes.
    default_sizes = domain.train_sizes[: (len(domain.train_sizes) + 1) // 2]
    sizes = tuple(parse_domain_sizes(stream.sizes).get(domain.name, default_sizes))
    lengths = stream.lengths
    if begins_later and stream.begun_lengths:
        lengths = stream.begun_lengths
    # What an endless stream has drawn never comes again, so only a limited one remembers.
    draw = _draw if stream.problems is None else _draw_once
    draw_number = turn * len(stream.domains) + position
    problem_pddl, plan = draw(domain.name, stream.split, sizes, lengths, stream.seed, draw_number)
    # What differs when a problem comes again: seeded by the row's own number.
    rng = random.Random(f"{stream.seed}/0/{number}")
    if begins_later:
        problem_pddl, plan = _from_later_state(domain, stream, problem_pddl, plan, rng)
    row = make_row(
        id=f"{domain.name}-{stream.split}-{number}",
        domain=domain.name,
        split=stream.split,
        domain_pddl=domain.pddl,
        problem_pddl=problem_pddl,
        plans=[plan],
        prompt_style=stream.prompt_style,
        planner=domain.planner if domain.solve is not None else planner_version("builtin-optimal"),
    )
    if stream.numbered:
        return numbered_row(row, rng)
    if not stream.augment:
        return row
    return renamed_row(row, domain.pools, rng, stream.augment)


def _draw(
    name: str, split: str, sizes: Sequence[int], lengths: str, seed: int, number: int
) -> tuple[str, tuple[Action, ...]]:
    """Draw until a problem is of the split's partition and has a plan that is short and long enough."""
    domain = DOMAINS[name]
    band = parse_lengths(lengths)
    rng = random.Random(f"{name}/{split}/{seed}/{number}")
    for _ in range(_MAX_DRAWS):
        text = domain.generate_problem(rng.choice(sizes), rng, PROBLEM_NAME)
        problem = parse_problem(text, parse_domain(domain.pddl))
        # Before the search for a plan, which takes longer.
        if partition(problem) != SPLIT_PARTITIONS[split]:
            continue
        plan = _shortest_plan(domain, problem, band[-1])
        if plan is not None and len(plan) in band:
            return text, plan
    raise DataError(
        f"stream of {name}, split {split}: expected plans of {lengths} steps from sizes {sizes[0]}-{sizes[-1]}, got "
        f"none in {_MAX_DRAWS} draws; --sizes takes others"
    )


# Without a bound: a limited stream comes back to all of its problems, some 2 KB each.
_draw_once = cache(_draw)


def _from_later_state(
    domain: PlanningDomain,
    stream: Stream,
    problem_pddl: str,
    plan: tuple[Action, ...],
    rng: random.Random,
) -> tuple[str, tuple[Action, ...]]:
    """Let a problem begin in a state on its shortest plan, the end of which is then a shortest plan.

    Generators begin with an empty hand and unloaded trucks; states on the way may have something in them. A problem
    stays as it is where no later one is of its partition.
    """
    plan_lengths = [length for length in parse_lengths(stream.lengths) if length <= len(plan)]
    for length in rng.sample(plan_lengths, len(plan_lengths)):
        n_steps = len(plan) - length
        later = problem_after(problem_pddl, domain.pddl, plan[:n_steps])
        # Another state is another problem, which may be
        # of a partition that another split draws from.
        if (
            partition(parse_problem(later, parse_domain(domain.pddl)))
            == SPLIT_PARTITIONS[stream.split]
        ):
            return later, plan[n_steps:]
    return problem_pddl, plan


def _shortest_plan(
    domain: PlanningDomain, problem: Problem, max_length: int
) -> tuple[Action, ...] | None:
    """Find a shortest plan; None where it is longer, or would take too long to find."""
    # The solver of a domain is optimal, and needs no search through states.
    if domain.solve is not None:
        return domain.solve(problem)
    try:
        return solve(problem, optimal=True, max_states=_MAX_STATES, max_length=max_length)
    except SearchLimitError:
        return None


def distinct_rows(stream: Stream, n_rows: int) -> list[Row]:
    """Return rows of a stream, no two of which are the same problem: as many of each domain, domain by domain.

    Raises:
        TooFewProblemsError: draws hardly bring any new problem; all such domains are named.
    """
    rows = []
    shortages = []
    for position, name in enumerate(stream.domains):
        # Domains take turns, so these are the numbers of
        # the rows of this one; 2^60 stands for no end.
        numbers = range(position, 1 << 60, len(stream.domains))
        try:
            rows += _distinct_rows(stream, numbers, n_rows, f"{stream.split} of {name}")
        except TooFewProblemsError as error:
            shortages.append(str(error))
    if shortages:
        raise TooFewProblemsError("; ".join(shortages))
    return rows


def _distinct_rows(stream: Stream, numbers: Sequence[int], n_rows: int, source: str) -> list[Row]:
    rows: dict[str, Row] = {}
    supply = Supply()
    for number in numbers:
        if len(rows) == n_rows:
            break
        if supply.is_exhausted:
            raise TooFewProblemsError(
                f"{source}: expected {n_rows} different problems, got hardly any new one after {len(rows)}; "
                "ask for fewer, or for other sizes or lengths"
            )
        row = stream_row(stream, number)
        form = form_of(row)
        supply.record(form not in rows)
        rows.setdefault(form, row)
    return list(rows.values())
