"""The algorithm and its coefficients."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxppo.config.algorithms import ALGORITHMS, Algorithm, Level, LossType
from jaxppo.config.checks import (
    require,
    require_default,
    require_finite,
    require_fraction,
    require_positive,
    without_flag,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RLConfig:
    """The algorithm and its coefficients; names as in TRL, defaults as in its PPO."""

    algorithm: str = "ppo"
    """ppo: value model, GAE, ratio per token. rloo: several completions per prompt, each against the mean of the
    others, ratio per completion, no value model. grpo: each against the mean of its group over its deviation, ratio
    per token, KL in the loss."""
    num_generations: int | None = None
    """Completions per prompt (RLOO's k). Default: 1 for ppo, 4 for rloo, 8 for grpo."""
    num_ppo_epochs: int = 4
    """Passes over each rollout batch (alias --num_iterations)."""
    num_mini_batches: int = 1
    """Optimizer steps per pass."""
    async_rollouts: int = 0
    """1: sample the next batch while the host computes the rewards of this one, with the policy before its update: one
    step off-policy. 0: every batch comes from the newest policy."""
    gradient_accumulation_steps: int | None = None
    """Micro-batches that a mini-batch is cut into to save memory; the optimizer step is the same. Default: on
    accelerators as few as leave a fifth of a device free, on a CPU as many as keep a layer's activations in its
    cache."""
    local_rollout_forward_batch_size: int | None = None
    """Completions per device scored at once, to save memory. Default: on accelerators as many as leave a fifth of it
    free, on a CPU as many as its cache takes."""
    cliprange: float = 0.2
    """Policy ratio is clipped to 1 +- this (alias --epsilon)."""
    cliprange_high: float | None = None
    """Upper clip range (1 + this), where it is not the lower one (alias --epsilon_high); loss_type cispo: the most that
    a ratio may be."""
    delta: float | None = None
    """The most that a ratio may be where the advantage is negative, which the clip leaves open (two-sided or dual
    clip); default: no limit."""
    loss_type: LossType | None = None
    """What losses of tokens are added up to: grpo: mean over each completion's tokens, then over completions; bnpo:
    mean over the tokens of the mini-batch; dapo: the same, by the tokens of a mini-batch on average; dr_grpo: sum over
    the completions' number times response_length; cispo: as dapo, of ratios that are weights, capped and without a
    gradient. Default: bnpo for ppo, dapo for grpo; rloo takes completions as a whole."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """grpo: ratio of each token, or of a completion by its tokens' geometric mean (GSPO)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """grpo: what advantages are divided by: the deviation of the scores of their prompt, of the batch, or nothing."""
    use_bias_correction_kl: bool = True
    """grpo: multiply the KL in the loss by the ratio, so that its gradient is that of the KL itself (DeepSeek-V3.2)."""
    cliprange_value: float = 0.2
    """New values are clipped to the old ones +- this."""
    vf_coef: float = 0.1
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; 0 for none."""
    gamma: float = 1.0
    """Discount per token."""
    lam: float = 0.95
    """GAE's lambda."""
    positive_nll: float = 0.0
    """Weight of the negative log-likelihood of completions whose score is 1 or more (VAPO), mean over their tokens."""
    top_entropy_quantile: float = 1.0
    """ppo, grpo: share of tokens, those of the highest entropy, that the policy learns from; TRL and the paper: 0.2."""
    score_position: Literal["last", "after"] = without_flag("last")
    """Where the score is added: to the last token (TRL 0.11), or to the state after it where response_length leaves
    room, which then has a value of its own (TRL's later PPOTrainer)."""
    whiten_rewards: bool = False
    """ppo: divide token rewards by their standard deviation over the whole batch (mean kept)."""
    normalize_advantages: bool = False
    """rloo: advantages to zero mean and unit variance over the whole batch (ppo always does)."""
    mask_truncated_completions: bool = False
    """Learn nothing from completions that did not end."""
    kl_coef: float = 0.05
    """Weight of the KL penalty to the reference policy in the reward, at the start; grpo: of k3 in the loss; 0 needs no
    reference (alias --beta)."""
    kl_estimator: Literal["k1", "k2", "k3", "abs", "mse", "full"] = "k1"
    """Per-token KL: k1 = logp - ref, k2 = mse = k1^2 / 2, k3 = exp(-k1) - 1 + k1 (Schulman 2020), abs = |k1|, or full:
    exact over the vocabulary."""
    kl_target: float | None = None
    """KL per completion, in nats, that kl_coef is adapted to (Ziegler et al. 2019; TRL 0.11: adap_kl_ctrl with a target
    of 6); default: kl_coef stays."""
    kl_horizon: int = without_flag(10000)
    """Completions over which kl_coef adapts."""
    missing_eos_penalty: float | None = None
    """Subtracted from the score of a completion without the stop token in force."""
    score_scaling: Literal["none", "scale", "norm"] = "none"
    """scale: divide scores by their running standard deviation; norm: subtract their running mean before."""
    reward_clip_range: tuple[float, float] | None = None
    """Clip scores to this range, after scaling and before the missing-EOS penalty."""
    target_kl: float | None = None
    """Leave out the rest of an update once the policy has moved by more than 1.5 times so many nats per token."""
    ratio_threshold: float | None = without_flag(10.0)
    """ppo: leave out an optimizer step whose mean ratio is above this; `None` for never."""
    logprobs: Literal["sampler", "recompute"] | None = without_flag(None)
    """Old log-probabilities: those kept by the sampler (default with dtype float32), or recomputed by the scoring
    program (default with bfloat16, where one pass over a completion and its steps round differently)."""

    def __post_init__(self) -> None:
        names = ", ".join(ALGORITHMS)
        require(self.algorithm in ALGORITHMS, "algorithm", f"one of {names}", self.algorithm)
        require_positive(self, "num_ppo_epochs", "num_mini_batches", "target_kl")
        require_positive(self, "cliprange", "cliprange_value", "kl_horizon")
        require(self.async_rollouts in (0, 1), "async_rollouts", "0 or 1", self.async_rollouts)
        require_fraction(self, "gamma", "lam")
        require_finite(self, "kl_coef", "vf_coef", "entropy_coef", "positive_nll")
        share = self.top_entropy_quantile
        require(0.0 < share <= 1.0, "top_entropy_quantile", "a share above 0, at most 1", share)
        # The mean ratio of the first mini-batch is 1: with less as the threshold no step would be taken.
        if self.ratio_threshold is not None:
            require(
                self.ratio_threshold > 1,
                "ratio_threshold",
                "a number above 1",
                self.ratio_threshold,
            )
        require_positive(self, "cliprange_high", "delta", "kl_target")
        require_positive(self, "gradient_accumulation_steps", "local_rollout_forward_batch_size")
        require_finite(self, "missing_eos_penalty")
        self._check_scores()
        # kl_coef is adapted by factors, so that 0 would stay 0.
        if self.kl_target is not None:
            require(self.kl_coef > 0, "kl_coef", "a number above 0 with kl_target", self.kl_coef)
        self._check_algorithm()

    def _check_scores(self) -> None:
        if self.reward_clip_range is not None:
            low, high = self.reward_clip_range
            increasing = -math.inf < low < high < math.inf
            require(
                increasing,
                "reward_clip_range",
                "two finite numbers, the lower one first",
                self.reward_clip_range,
            )

    def _check_algorithm(self) -> None:
        # A setting that the algorithm does not read is
        # refused: it would look as if it had an effect.
        with_algorithm = f"with algorithm {self.algorithm}"
        min_generations = self.spec.min_generations
        requirement = f"at least {min_generations}" + (
            f" {with_algorithm}" if min_generations > 1 else ""
        )
        require(
            self.group_size >= min_generations, "num_generations", requirement, self.num_generations
        )
        for name in self.spec.unused:
            require_default(self, name, with_algorithm)
        # CISPO caps the ratio, which is a weight without a
        # gradient: the cap has no default, and there is no clip.
        if self.mean_of_losses == "cispo":
            requirement = "the most that a ratio may be, with loss_type cispo"
            require(
                self.cliprange_high is not None, "cliprange_high", requirement, self.cliprange_high
            )
            require_default(self, "delta", "with loss_type cispo")
        if self.delta is not None:
            high = 1 + (self.cliprange_high or self.cliprange)
            require(
                self.delta > high, "delta", f"more than {high:g}, where the clip ends", self.delta
            )

    @property
    def spec(self) -> Algorithm:
        """The specification of the algorithm."""
        return ALGORITHMS[self.algorithm]

    @property
    def has_reference(self) -> bool:
        """Whether the policy is compared with the one at the start; without, no KL is measured."""
        return self.kl_coef > 0

    @property
    def has_full_kl(self) -> bool:
        """Whether the KL is the exact one over the vocabulary, for which models are compared at every token."""
        return self.kl_estimator == "full"

    @property
    def ratio_level(self) -> Level:
        """Where the ratio is taken."""
        return self.spec.ratio or self.importance_sampling_level

    @property
    def mean_of_losses(self) -> LossType:
        """What losses of tokens are added up to."""
        return self.loss_type or self.spec.loss_type

    @property
    def group_size(self) -> int:
        """Completions per prompt."""
        return self.spec.num_generations if self.num_generations is None else self.num_generations
