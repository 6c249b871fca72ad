"""The formulas of each algorithm, in a file of its name; `config.algorithms` has the table of their specifications.

In: completions with their final scores. Out: advantages and value targets; `losses` has what is common.

Each file defines `make_trajectories`, which estimates advantages against the algorithm's baseline: [B] where ratios are
of completions, else [B, C]. Its arguments:

    outputs     log-probabilities and values of the completions
    sequences   the completions; the mask has no token of those that nothing is learned from
    scores      [B] fp32, scaled, clipped and penalised; 0 where there is none
    has_score   [B] bool
    kl          [B, C] fp32, per-token KL to the reference; 0 without one
    kl_coef     [] fp32, weight of the KL in the reward
    config      coefficients
    axis_name   mapped device axis
"""

from importlib import import_module
from types import ModuleType


def formulas_of(algorithm: str) -> ModuleType:
    """Return the file of this folder that is named like the algorithm."""
    return import_module(f"{__name__}.{algorithm}")
