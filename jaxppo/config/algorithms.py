"""The table of algorithms: what settings, memory and update must know of each before anything is computed."""

from typing import Literal, NamedTuple


class Algorithm(NamedTuple):
    """A row of `ALGORITHMS`; the formulas of the algorithm are `rl/algorithms/<name>.py`.

    Attributes:
        needs_values: whether it learns a value function.
        ratio: where new over old probability is taken and clipped: at each token, or for each completion (the product
            over its tokens).
        num_generations: completions per prompt, where the settings do not say.
        min_generations: fewest completions per prompt.
        unused: settings of `RLConfig` that it does not read; another value than their default is an error.
    """

    needs_values: bool
    ratio: Literal["token", "completion"]
    num_generations: int = 1
    min_generations: int = 1
    unused: tuple[str, ...] = ()


ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm(needs_values=True, ratio="token", unused=("normalize_advantages",)),  # it always whitens
    "rloo": Algorithm(
        needs_values=False,
        ratio="completion",
        num_generations=4,
        min_generations=2,  # the baseline is the mean of the others
        unused=("whiten_rewards", "score_position"),
    ),
}
"""`algorithm` -> its row."""
