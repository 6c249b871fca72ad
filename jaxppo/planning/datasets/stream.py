"""An endless stream of problems with shortest plans: every row is a pure function of the stream and the row's number.

A stream draws from the partition of its split alone, so that it shares no problem with a split of another partition,
whatever its seed and sizes. Where the number of its problems is limited, they come again and again, numbered ones in
another order each time.
"""

import random
from collections.abc import Iterator, Sequence
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
from jaxppo.planning.prompts import PROMPT_STYLES
from jaxppo.planning.solve.planners import planner_version
from jaxppo.planning.solve.search import SearchLimitError, solve
from jaxppo.planning.transform.restart import problem_after

# A problem whose shortest plan takes a longer search than this is drawn again: a second or two.
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
        problems: how many of each domain there are, which then come again; None: endless.
        augment: what is drawn once more for each row, beside what the generator draws: `states` (with which state on
            its plan every other problem begins), and for those not numbered `names` and `order`.
        begun_lengths: band of lengths of the plans that are begun with `states`, whose rests are of `lengths`; default:
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
        domains = [DOMAINS[name] for name in self.domains]
        if self.numbered:
            return [*NUMBERED, *(name for domain in domains for name in domain.constants)]
        return [name for domain in domains for name in domain.names]

    def check(self) -> None:
        """Raise a `ConfigError` for unknown domains and styles, or sizes that a generator does not offer."""
        if self.prompt_style not in PROMPT_STYLES:
            raise ConfigError(f"prompt_style: expected one of {', '.join(PROMPT_STYLES)}, got {self.prompt_style!r}")
        for name in self.domains:
            if name not in DOMAINS:
                raise ConfigError(f"dataset: expected stream: and some of {', '.join(DOMAINS)}, got {name!r}")
        if len({*self.domains}) < len(self.domains):
            raise ConfigError(f"dataset: expected each domain once, got {', '.join(self.domains)}")
        lengths = parse_lengths(self.lengths, "stream_lengths")
        if self.begun_lengths is not None and parse_lengths(self.begun_lengths, "stream_lengths")[0] < lengths[0]:
            expected = f"lengths of at least {lengths[0]}, the first of stream_lengths, with augment states"
            raise ConfigError(f"stream_lengths: expected rl with {expected}, got {self.begun_lengths}")
        for name, sizes in parse_domain_sizes(self.sizes, "sizes").items():
            if name not in self.domains or not {*sizes} <= {*DOMAINS[name].sizes}:
                expected = "a domain of the stream, and sizes that docs/datasets.md lists"
                raise ConfigError(f"sizes: expected {expected}, got {name}:{sizes[0]}-{sizes[-1]}")


def stream_row(stream: Stream, number: int) -> Row:
    """Return a row of a stream.

    Args:
        stream: a checked one.
        number: of the row, from 0.

    Raises:
        DataError: hardly any problem of these sizes has a plan of these lengths.
    """
    turn, place = divmod(number, len(stream.domains))
    domain = DOMAINS[stream.domains[place]]
    turn = turn if stream.problems is None else turn % stream.problems
    begun = "states" in stream.augment and turn % 2 == 1
    usual = domain.train_sizes[: (len(domain.train_sizes) + 1) // 2]
    sizes = tuple(parse_domain_sizes(stream.sizes).get(domain.name, usual))
    draw = _draw if stream.problems is None else _draw_once  # what an endless stream has drawn never comes again
    lengths = (stream.begun_lengths if begun else None) or stream.lengths
    text, plan = draw(domain.name, stream.split, sizes, lengths, stream.seed, turn * len(stream.domains) + place)
    again = random.Random(f"{stream.seed}/0/{number}")
    if begun:
        text, plan = _from_later(domain, stream, text, plan, again)
    row = make_row(
        id=f"{domain.name}-{stream.split}-{number}",
        domain=domain.name,
        split=stream.split,
        domain_pddl=domain.pddl,
        problem_pddl=text,
        plan=plan,
        prompt_style=stream.prompt_style,
        planner=domain.planner if domain.solve is not None else planner_version("builtin-optimal"),
    )
    if stream.numbered:
        return numbered_row(row, again)
    if not stream.augment:
        return row
    return renamed_row(row, domain.pools, again, names="names" in stream.augment, order="order" in stream.augment)


def _draw(
    name: str, split: str, sizes: Sequence[int], lengths: str, seed: int, number: int
) -> tuple[str, tuple[Action, ...]]:
    """Draw until a problem is of the split's partition and has a plan that is short and long enough."""
    domain, band = DOMAINS[name], parse_lengths(lengths)
    rng = random.Random(f"{name}/{split}/{seed}/{number}")
    for _ in range(_MAX_DRAWS):
        text = domain.generate_problem(rng.choice(sizes), rng, PROBLEM_NAME)
        problem = parse_problem(text, parse_domain(domain.pddl))
        if partition(problem) != SPLIT_PARTITIONS[split]:
            continue
        plan = _shortest_plan(domain, problem, band[-1])
        if plan is not None and len(plan) in band:
            return text, plan
    raise DataError(
        f"stream of {name}, split {split}: expected plans of {lengths} steps from sizes {sizes[0]}-{sizes[-1]}, got "
        f"none in {_MAX_DRAWS} draws; --sizes takes others"
    )


_draw_once = cache(_draw)  # some 2 KB a problem


def _from_later(
    domain: PlanningDomain, stream: Stream, text: str, plan: tuple[Action, ...], rng: random.Random
) -> tuple[str, tuple[Action, ...]]:
    """Let a problem begin with a state on its shortest plan, of which the rest is then a shortest one.

    Generators begin with an empty hand and unloaded trucks; states on the way may have something in them. A problem
    stays as it is where no later one is of its partition.
    """
    rests = [rest for rest in parse_lengths(stream.lengths) if rest <= len(plan)]
    for rest in rng.sample(rests, len(rests)):
        done = len(plan) - rest
        later = problem_after(text, domain.pddl, plan[:done])
        if partition(parse_problem(later, parse_domain(domain.pddl))) == SPLIT_PARTITIONS[stream.split]:
            return later, plan[done:]
    return text, plan


def _shortest_plan(domain: PlanningDomain, problem: Problem, longest: int) -> tuple[Action, ...] | None:
    """Find a shortest plan; None where it is longer, or would take too long to find."""
    if domain.solve is not None:
        return domain.solve(problem)
    try:
        return solve(problem, optimal=True, max_states=_MAX_STATES, longest=longest)
    except SearchLimitError:
        return None


def distinct_rows(stream: Stream, n_rows: int) -> list[Row]:
    """Return rows of a stream, no two of which are the same problem: as many of each domain, domain by domain.

    Raises:
        TooFewProblemsError: there are hardly any more; all such domains are named.
    """
    rows, shortages = [], []
    for position, name in enumerate(stream.domains):
        numbers = range(position, 1 << 60, len(stream.domains))
        try:
            rows += _distinct(stream, numbers, n_rows, f"{stream.split} of {name}")
        except TooFewProblemsError as error:
            shortages.append(str(error))
    if shortages:
        raise TooFewProblemsError("; ".join(shortages))
    return rows


def _distinct(stream: Stream, numbers: Sequence[int], n_rows: int, what: str) -> Iterator[Row]:
    forms: set[str] = set()
    supply = Supply()
    for number in numbers:
        if len(forms) == n_rows:
            return
        if supply.is_exhausted:
            raise TooFewProblemsError(
                f"{what}: expected {n_rows} different problems, got hardly any new one after {len(forms)}; "
                "ask for fewer, or for other sizes or lengths"
            )
        row = stream_row(stream, number)
        form = form_of(row)
        supply.record(form not in forms)
        if form not in forms:
            forms.add(form)
            yield row
