"""The formulas of each algorithm, in a file of its name; `config.algorithms` has the table of their rows.

In: a scored rollout with its final scores. Out: advantages and value targets; `losses` has what is common.
"""

from importlib import import_module
from typing import NamedTuple, Protocol, cast

from jaxppo.config import TrainConfig
from jaxppo.types import Array, Axes, Scored, Sequences, Stats, Trajectories


class Rewarded(NamedTuple):
    """A scored rollout and what the host says of it."""

    scored: Scored
    sequences: Sequences  # their completion mask has no token of completions that nothing is learned from
    scores: Array  # [B] fp32, scaled, clipped and penalised; 0 where there is none
    counted: Array  # [B] bool, the completions that have a score
    kl: Array  # [B, C] fp32, per-token KL to the reference; 0 without one
    kl_coef: Array  # [] fp32, weight of the KL in the reward
    token_scores: Array | None = None  # [B, C] fp32, the scores in parts: rows of learned completions add up to them
    steps: Array | None = None  # [B, C] bool, tokens that have a part, be it 0


class Formulas(Protocol):
    """What the file of an algorithm defines."""

    def make_trajectories(self, rewarded: Rewarded, config: TrainConfig, axis_name: Axes) -> tuple[Trajectories, Stats]:
        """Estimate advantages against the algorithm's baseline: [B] where ratios are of completions, else [B, C]."""
        ...


def formulas_of(algorithm: str) -> Formulas:
    """Return the file of this folder that is named like the algorithm."""
    return cast(Formulas, import_module(f"{__name__}.{algorithm}"))
