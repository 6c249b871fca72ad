"""Settings of `python -m jaxppo.planning build|import|inspect`: frozen dataclasses, checked when made."""

import re
from dataclasses import dataclass

from jaxppo.config import require

SHORT_LENGTHS, LONG_LENGTHS = "3-16", "20-40"


def parse_lengths(text: str, name: str = "lengths") -> range:
    """Read `"3-16"` as the plan lengths from 3 to 16.

    Raises:
        ConfigError: the text is not two whole numbers with a hyphen, the lower one first.
    """
    match = re.fullmatch(r"(\d+)-(\d+)", text.strip())
    well_formed = match is not None and int(match[1]) <= int(match[2])
    require(well_formed, name, "a band of plan lengths such as '3-16'", text)
    return range(int(match[1]), int(match[2]) + 1)  # type: ignore[index]


def _check_bands(short: str, long: str) -> None:
    lower, upper = parse_lengths(short, "short_lengths"), parse_lengths(long, "long_lengths")
    expected = f"plan lengths that begin at least 2 above the end of short_lengths ({short})"
    require(upper[0] > lower[-1] + 1, "long_lengths", expected, long)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """Where reference plans come from."""

    planner: str = "builtin"
    """Planner for reference plans; docs/planners.md lists them."""
    planner_timeout_s: float = 30.0
    """Seconds for one problem."""
    optimal_planner: str | None = None
    """A second planner whose costs go into the column optimal_cost where it finds a plan in time; default: none."""
    workers: int | None = None
    """Planner processes; default: the number of processors."""
    plans: str | None = None
    """File of plans found so far, read and continued; default: plans.jsonl in output_dir."""

    def __post_init__(self) -> None:
        require(self.planner_timeout_s > 0, "planner_timeout_s", "a number above 0", self.planner_timeout_s)
        if self.workers is not None:
            require(self.workers > 0, "workers", "a number above 0", self.workers)
