"""The formulas of each algorithm, in a file of its name; `config.algorithms` has the table of their specifications.

In: completions with their final scores. Out: advantages and value targets; `losses` has what is common.
"""

from importlib import import_module
from typing import Protocol, cast

from jaxppo.config import TrainConfig
from jaxppo.types import Array, Axes, ModelOutputs, Sequences, Stats, Trajectories


class Formulas(Protocol):
    """What the file of an algorithm defines."""

    def make_trajectories(
        self,
        outputs: ModelOutputs,
        sequences: Sequences,
        scores: Array,
        has_score: Array,
        *,
        kl: Array,
        kl_coef: Array,
        config: TrainConfig,
        axis_name: Axes,
    ) -> tuple[Trajectories, Stats]:
        """Estimate advantages against the algorithm's baseline: [B] where ratios are of completions, else [B, C].

        Args:
            outputs: log-probabilities and values of the completions.
            sequences: the completions; the mask has no token of those that nothing is learned from.
            scores: [B] fp32, scaled, clipped and penalised; 0 where there is none.
            has_score: [B] bool.
            kl: [B, C] fp32, per-token KL to the reference; 0 without one.
            kl_coef: [] fp32, weight of the KL in the reward.
            config: coefficients.
            axis_name: mapped device axis.
        """
        ...


def formulas_of(algorithm: str) -> Formulas:
    """Return the file of this folder that is named like the algorithm."""
    return cast(Formulas, import_module(f"{__name__}.{algorithm}"))
