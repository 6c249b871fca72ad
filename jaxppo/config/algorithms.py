"""The table of algorithms: what settings, memory and update must know of each before anything is computed."""

from typing import Literal, NamedTuple

Level = Literal["token", "sequence", "completion"]
"""Where new over old probability is taken and clipped: at each token, as the geometric mean over a completion's tokens,
or as their product."""

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo"]
"""TRL's names of the means that losses of tokens are added up to; cispo is also a surrogate of its own."""


class Algorithm(NamedTuple):
    """A row of `ALGORITHMS`; the formulas of the algorithm are `rl/algorithms/<name>.py`.

    Attributes:
        needs_values: whether it learns a value function.
        ratio: level of the ratio; None: `importance_sampling_level` says.
        loss_type: the mean over tokens, where the settings do not say; at level "completion" it is over completions.
        kl: where the KL penalty is: in the reward, or a term of the loss.
        num_generations: completions per prompt, where the settings do not say.
        min_generations: fewest completions per prompt.
        unused: settings of `RLConfig` in which another value than their default is an error: it would not be read. The
            numbers of a critic's loss (`lam`, `vf_coef` and so on) may stay where an algorithm has none.
    """

    needs_values: bool
    ratio: Level | None
    loss_type: LossType = "bnpo"
    kl: Literal["reward", "loss"] = "reward"
    num_generations: int = 1
    min_generations: int = 1
    unused: tuple[str, ...] = ()


# Settings that only an algorithm with a value function, or only GRPO, reads.
_CRITIC = ("whiten_rewards", "score_position")
_GRPO = ("scale_rewards", "importance_sampling_level", "use_bias_correction_kl")

ALGORITHMS: dict[str, Algorithm] = {
    # PPO always whitens its advantages: nothing is left to normalise.
    "ppo": Algorithm(needs_values=True, ratio="token", unused=("normalize_advantages", *_GRPO)),
    "rloo": Algorithm(
        needs_values=False,
        ratio="completion",
        num_generations=4,
        min_generations=2,  # the baseline is the mean of the others
        unused=(*_CRITIC, *_GRPO, "loss_type", "top_entropy_quantile"),
    ),
    "grpo": Algorithm(
        needs_values=False,
        ratio=None,
        loss_type="dapo",
        kl="loss",
        num_generations=8,
        min_generations=2,
        unused=(*_CRITIC, "normalize_advantages", "kl_target", "kl_estimator"),  # its loss has k3
    ),
}
"""`algorithm` -> its row."""
