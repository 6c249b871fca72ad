"""Every metric of a training record, defined once: unit, meaning, healthy range, what to do outside of it, where shown.

The live view, the warnings of a run and its report read their limits and advice from here: a new metric is one row.
`python -m jaxppo.metrics` prints the table as a page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jaxppo.run import trends
from jaxppo.run.trends import Trend

Band = tuple[float | None, float | None]
"""Lowest and highest healthy value; None: no limit on that side."""


class Watch(NamedTuple):
    """A pattern in the values of a metric that is not healthy, and what to do about it."""

    trend: Trend
    advice: str


class Headline(NamedTuple):
    """A metric's place among the five numbers of the live view: of those with one place, the lowest rank is shown."""

    label: str
    place: int  # 1 to 5
    rank: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of `metrics.jsonl`.

    Args:
        name: as logged, in TRL 1.x's spelling where TRL has it; `<...>` stands for one path segment.
        unit: what the number counts.
        meaning: one or two sentences, with the formula where it is short, and over what the mean is taken.
        healthy: the range of a healthy run, or what to look for.
        band: lowest and highest value of `healthy` where it is one range for all runs; None: no limit on that side.
        too_low: what to do below the band; None: the limit is for the eye alone.
        too_high: what to do above the band.
        alarm: warn as soon as one update leaves the band, the first time or always.
        watch: what else to look for in the values so far.
        headline: where the live view shows it.
        chart: the report shows its curve unfolded: 1 with what counts, 2 the policy, 3 the updates, 4 the optimizer.
        old_name: TRL 0.11's name where it differs.
    """

    name: str
    unit: str
    meaning: str
    healthy: str
    band: Band | None = None
    too_low: str | None = None
    too_high: str | None = None
    alarm: Literal["once", "always"] | None = None
    watch: Watch | None = None
    headline: Headline | None = None
    chart: int | None = None
    old_name: str | None = None

    def advice(self, side: str) -> str | None:
        """Return what to do about a value `outside` its band."""
        return {"below": self.too_low, "above": self.too_high}.get(side.partition(" ")[0])


def outside(value: float, band: Band | None) -> str:
    """Return "below 0.5" or "above 0.95"; nothing for a value within the band."""
    low, high = band or (None, None)
    if low is not None and value < low:
        return f"below {low:g}"
    return f"above {high:g}" if high is not None and value > high else ""


def plain(advice: str) -> str:
    """Return a text without the backticks of Markdown, for the terminal."""
    return advice.replace("`", "")


_PROGRESS = (
    Metric(
        name="step",
        unit="updates",
        meaning="Updates done, this one included; an update is one rollout batch and all its optimizer steps.",
        healthy="Rises by 1 from record to record, also across a resume.",
    ),
    Metric(
        name="episode",
        unit="completions",
        meaning="Completions sampled so far, all rows of all devices and several completions of one prompt included.",
        healthy="Rises by the batch size from record to record.",
    ),
    Metric(
        name="epoch",
        unit="passes over the training split",
        meaning="`episode / (rows of the training split * completions per prompt)`.",
        healthy="Up to 1 no prompt was seen twice. Beyond a few passes, see that `eval/<split>/validity` still rises "
        "with `objective/scores`: otherwise the policy memorises its prompts.",
    ),
    Metric(
        name="lr",
        unit="1",
        meaning="Learning rate of the policy in this update; constant within an update.",
        healthy="Follows the schedule. To be lowered where `policy/approxkl_avg` or `policy/clipfrac_avg` are too "
        "large.",
        headline=Headline("lr", 3, 3),
        chart=4,
        old_name="ppo/learning_rate",
    ),
    Metric(
        name="lr_value",
        unit="1",
        meaning="Learning rate of the value model in this update; constant within an update.",
        healthy="Follows the schedule. A few times `lr` is usual, since values start from nothing; to be lowered "
        "where `loss/value_avg` rises.",
    ),
    Metric(
        name="grad_norm",
        unit="gradient norm",
        meaning="Global norm of the gradient of all trained parameters before clipping, mean over optimizer steps.",
        healthy="Steady within a factor of about 3. Spikes of 10 times, or steady growth, precede divergence; always "
        "far above `max_grad_norm`, every step is clipped.",
        watch=Watch(trends.spiking, "lower `learning_rate` or `max_grad_norm`"),
        headline=Headline("grad norm", 4, 3),
        chart=4,
    ),
)

_OBJECTIVE = (
    Metric(
        name="objective/kl",
        unit="nats per completion",
        meaning="KL divergence of the sampling policy from the reference as the penalty takes it (`kl_estimator`), "
        "summed over the tokens of a completion, mean over completions.",
        healthy="0 (in fp32 below 0.001 either way) in the first update of a policy that starts as the reference, "
        "then a slow rise that levels off, for short completions between 1 and 30; TRL 0.11's adaptive controller "
        "aims at 6. A steep rise while `eval/<split>/validity` stands still or falls is reward hacking: raise "
        "`kl_coef` or lower the learning rate.",
        band=(0.0, 30.0),
        too_high="raise `kl_coef` or lower `learning_rate`, and look at samples for what the reward overlooks",
        watch=Watch(trends.below(-1.0), "sampler and learner disagree, see the warning"),
        headline=Headline("kl", 3),
        chart=2,
    ),
    Metric(
        name="objective/kl_k1",
        unit="nats per completion",
        meaning="KL divergence from the reference by the estimator k1, `logp - ref_logp`, summed over tokens, mean "
        "over completions; unbiased and signed. Logged whichever estimator is in force.",
        healthy="Agrees with `objective/kl_k3` up to sampling noise. May fall a little below 0 by chance while the "
        "divergence is small; below -1, or negative in many updates, the sampler's log-probabilities are not those of "
        "the scored policy.",
        band=(-1.0, None),
        too_low="chance does not explain that. Likely causes: completions were not sampled from the policy's own "
        "distribution (`top_k`, `top_p`, `min_p`, another temperature), their log-probabilities were computed with "
        "other numbers (low precision, another matmul precision), or the reference is not the model that the policy "
        "started from; leave out the truncation, or try `--logprobs recompute` and `--dtype float32`",
        alarm="once",
    ),
    Metric(
        name="objective/kl_k3",
        unit="nats per completion",
        meaning="KL divergence from the reference by the estimator k3, `exp(r) - 1 - r` with `r = ref_logp - logp`, "
        "summed over tokens, mean over completions; unbiased and never negative. Logged whichever estimator is in "
        "force.",
        healthy="Close to `objective/kl_k1`. Many times larger: single tokens that the reference finds far more "
        "likely than the policy dominate the mean, and neither estimate is reliable in this batch.",
    ),
    Metric(
        name="objective/kl_coef",
        unit="score per nat",
        meaning="Coefficient of the KL penalty in force in this update.",
        healthy="Constant, unless it is adapted to a target: then it should settle with `objective/kl` near the "
        "target, and neither run towards 0 nor grow without end.",
    ),
    Metric(
        name="objective/entropy",
        unit="nats per completion",
        meaning="Sum over tokens of `-logp` of the sampled tokens under the sampling policy, mean over completions.",
        healthy="Falls slowly as the policy grows sure. A drop towards 0 within a few updates ends exploration (mode "
        "collapse): lower the learning rate or raise `kl_coef`. A rise far above the start means that the policy "
        "falls apart, or that completions grow: compare `completions/mean_length`.",
    ),
    Metric(
        name="objective/non_score_reward",
        unit="score per completion",
        meaning="`-kl_coef * kl`: what the KL penalty takes off the score, mean over completions (TRL 0.11 "
        "logs a mean over tokens instead).",
        healthy="0 in the first update, then negative and small beside what `objective/scores` has gained. As large "
        "as the gain, the penalty dominates: lower `kl_coef`.",
    ),
    Metric(
        name="objective/rlhf_reward",
        unit="score per completion",
        meaning="`objective/scores + objective/non_score_reward`: what the update maximises, mean over completions.",
        healthy="Rises over tens of updates, with noise of about `objective/scores_std / sqrt(completions)`. Falling "
        "while `objective/scores` rises: the policy buys score with divergence.",
    ),
    Metric(
        name="objective/scores",
        unit="score per completion",
        meaning="Mean over completions of the score in the update: the reward after scaling, clipping and "
        "missing-EOS penalty, as far as they are on.",
        healthy="Rises, and `eval/<split>/validity` with it. A rise in training alone is overfitting to the prompts "
        "or to a weakness of the reward.",
        watch=Watch(trends.falling, "lower `learning_rate` or raise `kl_coef`"),
        headline=Headline("reward", 1),
        chart=1,
        old_name="ppo/mean_scores",
    ),
    Metric(
        name="objective/scores_std",
        unit="score per completion",
        meaning="Standard deviation of the same scores over the completions of the batch.",
        healthy="Clearly above 0. Near 0 all completions score the same, and whitening turns noise into advantages: "
        "prompts too easy or too hard, or a collapsed policy.",
        watch=Watch(
            trends.near_zero,
            "all completions score the same: choose prompts that are solved sometimes, or raise `temperature`",
        ),
        headline=Headline("reward std", 2, 3),
        old_name="ppo/std_scores",
    ),
)

_POLICY = (
    Metric(
        name="policy/approxkl_avg",
        unit="nats per token",
        meaning="`0.5 * (logp_new - logp_old)^2`, mean over tokens, then over optimizer steps: how far the update "
        "moves the policy from the one that sampled.",
        healthy="0.0001 to 0.02. Above 0.05 the updates are too large: lower the learning rate, `num_ppo_epochs` or "
        "`num_mini_batches`. Far below 0.0001 hardly anything is learned.",
        band=(0.0001, 0.02),
        too_low="raise `learning_rate`: the policy hardly moves",
        too_high="lower `learning_rate`, `num_ppo_epochs` or `num_mini_batches`: the updates are too large",
        chart=3,
        old_name="ppo/policy/approxkl",
    ),
    Metric(
        name="policy/approxkl_avg_first",
        unit="nats per token",
        meaning="The same in the first mini-batch of the first epoch, where the policy is still the one that sampled.",
        healthy="0 up to rounding: below 1e-6 in fp32, below 1e-3 in bf16. Anything else is an error: sampler and "
        "learner disagree about the log-probabilities.",
    ),
    Metric(
        name="policy/policykl_avg",
        unit="nats per token",
        meaning="`logp_old - logp_new`, mean over tokens, then over optimizer steps: the signed estimate of the same "
        "distance.",
        healthy="As `policy/approxkl_avg`, 0 to 0.02; slightly negative by chance.",
        band=(0.0, 0.02),
        old_name="ppo/policy/policykl",
    ),
    Metric(
        name="policy/clipfrac_avg",
        unit="fraction",
        meaning="Fraction of tokens (RLOO: of completions) whose clipped loss term is the larger, so that they no "
        "longer move the policy; mean over optimizer steps.",
        healthy="0.01 to 0.2; 0 with a single optimizer step per update. Above 0.3 much of the batch is wasted on "
        "steps that are too large: lower the learning rate or `num_ppo_epochs`.",
        band=(0.0, 0.2),
        too_high="lower `learning_rate` or `num_ppo_epochs`: much of each batch is clipped away",
        chart=3,
        old_name="ppo/policy/clipfrac",
    ),
    Metric(
        name="policy/entropy_avg",
        unit="nats per token",
        meaning="Entropy of the policy's distribution over the vocabulary at the sampling temperature, mean over "
        "tokens, then over optimizer steps.",
        healthy="Between 0 and `ln(vocabulary size)`; falls slowly. Down to a tenth of its first value within a few "
        "updates, exploration has ended; a steady rise means that the policy falls apart.",
        watch=Watch(
            trends.collapsing, "exploration has ended: lower `learning_rate`, or raise `kl_coef` or `entropy_coef`"
        ),
        chart=2,
        old_name="ppo/policy/entropy",
    ),
    Metric(
        name="policy/advantages_mean",
        unit="score",
        meaning="Mean over tokens (RLOO: over completions) of the advantages before whitening; TRL 0.11 took it after "
        "whitening, where it is 0.",
        healthy="0 in RLOO, by construction. In PPO small beside `objective/scores_std`. Far from 0 in many updates, "
        "the values lag behind the returns: normal at the start, later a sign that the value model learns too slowly.",
    ),
    Metric(
        name="policy/grad_norm",
        unit="gradient norm",
        meaning="Norm of the gradient of the policy's parameters before clipping, mean over optimizer steps. With a "
        "shared trunk it contains what the value loss sends there.",
        healthy="Steady within a factor of about 3. Spikes of 10 times precede divergence; 0 means that nothing can "
        "be learned from the batch.",
    ),
    Metric(
        name="policy/skipped_steps",
        unit="optimizer steps",
        meaning="Optimizer steps of this update that were left out, by the guard on the ratio or by early stopping on "
        "the KL divergence.",
        healthy="0 in most updates. If most updates lose steps, the steps are too large: lower the learning rate or "
        "`num_ppo_epochs`.",
    ),
    Metric(
        name="policy/nonfinite_steps",
        unit="optimizer steps",
        meaning="Optimizer steps of this update that were left out because the loss or the gradient was NaN or "
        "infinite.",
        healthy="Must be 0. Otherwise look for infinite log-probabilities, overflow in low precision or a learning "
        "rate that is far too large.",
        band=(0.0, 0.0),
        too_high="lower `learning_rate` or `max_grad_norm`; the batches are in `bad_batches/` of the run folder",
        alarm="always",
    ),
)

_LOSS = (
    Metric(
        name="policy/bad_updates",
        unit="updates",
        meaning="Updates in a row, up to this one, with an optimizer step whose loss or gradient was not finite.",
        healthy="0. At `max_bad_updates` the run stops.",
        band=(0.0, 0.0),
    ),
    Metric(
        name="loss/policy_avg",
        unit="1",
        meaning="Clipped policy loss, mean over tokens (RLOO: over completions), then over optimizer steps.",
        healthy="Near 0 with either sign, within 0.1 where advantages are whitened. No measure of progress: it is "
        "taken against a policy that moves along.",
        band=(-0.1, 0.1),
        old_name="ppo/loss/policy",
    ),
    Metric(
        name="loss/value_avg",
        unit="score squared",
        meaning="Clipped value loss, half the larger of the squared errors with and without clipping, mean over "
        "tokens, then over optimizer steps.",
        healthy="Falls in the first tens of updates to clearly below half of `value/returns_var`. Rising later: the "
        "value model cannot follow, or its learning rate is too large.",
        old_name="ppo/loss/value",
    ),
    Metric(
        name="loss/total_avg",
        unit="1",
        meaning="What the optimizer minimises, `loss/policy_avg + vf_coef * loss/value_avg - entropy_coef * "
        "policy/entropy_avg`; mean over optimizer steps.",
        healthy="Finite, and not dominated by the value loss where policy and value model share a trunk: lower "
        "`vf_coef` then.",
        old_name="ppo/loss/total",
    ),
)

_VAL = (
    Metric(
        name="val/ratio",
        unit="1",
        meaning="Ratio of new to old probability of the sampled tokens, mean over tokens, then over optimizer steps. "
        "RLOO: of whole completions, the product over their tokens, mean over completions.",
        healthy="0.98 to 1.02 (RLOO: 0.9 to 1.1): its expectation is 1 whatever the policy. Further away, the steps "
        "are too large or the log-probabilities disagree; see `val/ratio_first`.",
        old_name="ppo/policy/ratio",
    ),
    Metric(
        name="val/ratio_first",
        unit="1",
        meaning="The same in the first mini-batch of the first epoch, where the policy is still the one that sampled.",
        healthy="Must be 1 up to rounding: within 1e-4 in fp32, within 0.02 in bf16, for whole completions ten times "
        "that. Anything else is an error: sampler and learner disagree.",
    ),
    Metric(
        name="val/ratio_var",
        unit="1",
        meaning="Variance over the optimizer steps of the mean ratio of each step.",
        healthy="Below 0.001. Growth means that single steps throw the policy far away.",
        band=(0.0, 0.001),
    ),
    Metric(
        name="val/clipfrac_avg",
        unit="fraction of tokens",
        meaning="Fraction of tokens where the clipped squared error of the value is the larger; mean over optimizer "
        "steps.",
        healthy="0 to 0.2. Above 0.5 `cliprange_value` is too small for the scale of the returns and holds the value "
        "model back.",
        band=(0.0, 0.2),
        too_high="raise `cliprange_value`: it is too small for the scale of the returns",
        old_name="ppo/val/clipfrac",
    ),
    Metric(
        name="val/num_eos_tokens",
        unit="completions",
        meaning="Completions of the batch that ended with the stop token in force.",
        healthy="Close to the batch size. Falling: completions run into `response_length`; see "
        "`completions/clipped_ratio`.",
    ),
)

_VALUE = (
    Metric(
        name="value/mean",
        unit="score",
        meaning="Mean over tokens of the values before the update. Here and below, the state behind the last token "
        "counts as a token where the score is paid there (`score_position`).",
        healthy="Follows `value/returns_mean` at a distance of a few updates.",
        old_name="ppo/val/mean",
    ),
    Metric(
        name="value/var",
        unit="score squared",
        meaning="Variance over tokens of the values before the update.",
        healthy="Below `value/returns_var` and growing towards it. Near 0 the value model says the same everywhere; "
        "above it, it is wild.",
        old_name="ppo/val/var",
    ),
    Metric(
        name="value/prediction",
        unit="score",
        meaning="Mean over tokens of the new values during the update, then over optimizer steps.",
        healthy="Between `value/mean` and `value/returns_mean`: the update moves the values towards the returns.",
        old_name="ppo/val/vpred",
    ),
    Metric(
        name="value/error",
        unit="score squared",
        meaning="`(new value - return)^2` without clipping, mean over tokens, then over optimizer steps.",
        healthy="Below `value/returns_var` after the first updates; above it, a constant would predict better.",
        old_name="ppo/val/error",
    ),
    Metric(
        name="value/explained_variance",
        unit="fraction",
        meaning="`1 - var(R - V) / var(R)` over tokens, with the values V before the update and the returns R (TRL "
        "0.11 took `1 - error / var(R)` with the new values).",
        healthy="At most 1. Starts near or below 0, passes 0.3 within tens of updates and stays between 0.5 and 0.95. "
        "Below 0 for long, values only add noise to the advantages: raise `value_learning_rate` or give the value "
        "model its own trunk.",
        band=(0.5, 0.95),
        watch=Watch(
            trends.long_below(0.0),
            "values explain less than a constant would: raise `value_learning_rate`, or train a "
            "separate value model (`value_model: separate`)",
        ),
        headline=Headline("value fit", 4),
        chart=3,
        old_name="ppo/val/var_explained",
    ),
    Metric(
        name="value/returns_mean",
        unit="score",
        meaning="Mean over tokens of the returns, the targets of the values.",
        healthy="Moves with `objective/rlhf_reward`.",
        old_name="ppo/returns/mean",
    ),
    Metric(
        name="value/returns_var",
        unit="score squared",
        meaning="Variance over tokens of the returns.",
        healthy="Above 0 and of the order of `objective/scores_std` squared. Sudden growth: single completions have "
        "extreme scores or an extreme KL penalty.",
        old_name="ppo/returns/var",
    ),
    Metric(
        name="value/grad_norm",
        unit="gradient norm",
        meaning="Norm of the gradient of the value model's parameters before clipping, mean over optimizer steps; "
        "with a shared trunk, of the value head alone.",
        healthy="Large at first, falling as the values fit, then steady. Many times `policy/grad_norm` for long: "
        "clipping by the global norm then shrinks the policy's share.",
    ),
)

_RLOO = (
    Metric(
        name="rloo/reward_zero_std",
        unit="fraction of groups",
        meaning="Fraction of groups (the completions of one prompt) whose scores are all equal: apart from the KL "
        "penalty they teach nothing. TRL's `frac_reward_zero_std` is taken with the KL penalty in the scores, and so "
        "hardly ever above 0.",
        healthy="Below 0.5. Towards 1 the prompts are all solved or all hopeless: choose others, sample more "
        "completions per prompt or raise `temperature`.",
        band=(0.0, 0.5),
        too_high="most groups teach nothing: choose other prompts, or raise `num_generations` or `temperature`",
        headline=Headline("equal groups", 4, 2),
        chart=3,
    ),
    Metric(
        name="rloo/advantages_std",
        unit="score",
        meaning="Standard deviation over the completions of the leave-one-out advantages, KL penalty included, before "
        "any normalisation.",
        healthy="Of the order of `objective/scores_std`, smaller where prompts differ in difficulty more than "
        "completions do. Near 0 there is nothing to learn from.",
    ),
)

_TEXT = (
    Metric(
        name="completions/mean_length",
        unit="tokens",
        meaning="Real tokens of a completion, end of sequence included, mean over completions.",
        healthy="Steady, or moving towards what the task needs. Steady growth up to `response_length`, or a collapse "
        "to a few tokens, without better plans: the policy exploits the reward.",
        headline=Headline("length", 3, 2),
        chart=2,
        old_name="tokens/responses_len_mean",
    ),
    Metric(
        name="completions/length_std",
        unit="tokens",
        meaning="Standard deviation of that length over the completions of the batch.",
        healthy="Above 0. At 0 all completions are equally long: mostly a policy that never ends, or that collapsed.",
        old_name="tokens/responses_len_std",
    ),
    Metric(
        name="completions/min_length",
        unit="tokens",
        meaning="Length of the shortest completion of the batch.",
        healthy="At least the shortest sensible answer. At 1 there are empty completions.",
    ),
    Metric(
        name="completions/max_length",
        unit="tokens",
        meaning="Length of the longest completion of the batch.",
        healthy="At most `response_length`; below it, no completion was cut (unless `output_min_length` draws other "
        "limits).",
    ),
    Metric(
        name="completions/clipped_ratio",
        unit="fraction of completions",
        meaning="Fraction of completions that were cut, at `response_length` or at the length drawn for them, because "
        "they did not end.",
        healthy="Below 0.05. Above 0.2 raise `response_length`, or set `missing_eos_penalty`.",
        band=(0.0, 0.05),
        too_high="raise `response_length`, or set `missing_eos_penalty`: completions are cut",
        chart=2,
    ),
    Metric(
        name="tokens/queries_len_mean",
        unit="tokens",
        meaning="Real tokens of a prompt, mean over the rows of the batch.",
        healthy="Constant up to sampling of the prompts: it describes the data, not the policy.",
    ),
    Metric(
        name="tokens/queries_len_std",
        unit="tokens",
        meaning="Standard deviation of that length over the rows of the batch.",
        healthy="Constant up to sampling of the prompts. Large beside the mean, much of each batch is padding.",
    ),
)

_REWARD = (
    Metric(
        name="reward/mean",
        unit="score per completion",
        meaning="Mean over completions of the plan reward before weights, penalty, scaling and clipping: 1 for a valid "
        "plan, else what `partial` gives.",
        old_name="env/reward_mean",
        healthy="0 to 1, rising; equal to `objective/scores` where nothing is added to the reward.",
    ),
    Metric(
        name="reward/plan_valid",
        unit="fraction of completions",
        meaning="Fraction of completions that the validator accepts as plans.",
        healthy="Rises. If `reward/mean` rises without it, only the partial reward is being collected.",
        watch=Watch(trends.long_zero, "no valid plan: start from a better model, or easier problems"),
        headline=Headline("valid", 2),
        chart=1,
    ),
    Metric(
        name="reward/plan_executable",
        unit="fraction of completions",
        meaning="Fraction of completions whose actions can all be carried out, goal reached or not.",
        healthy="At least `reward/plan_valid`. A growing gap between them: harmless actions that lead nowhere.",
    ),
    Metric(
        name="reward/lccs",
        unit="fraction",
        meaning="Longest contiguous run of actions shared with the reference plan, divided by a plan length "
        "(`normalise_by`), mean over completions.",
        healthy="Rises at first. May stand still while `reward/plan_valid` rises: valid plans need not look like the "
        "reference.",
    ),
    Metric(
        name="reward/validator_failed",
        unit="fraction of completions",
        meaning="Fraction of completions on which the validator crashed or ran out of time; they count as not valid.",
        healthy="0. Otherwise look at the verdicts in `samples.jsonl`, and raise `val_timeout_s` if they are timeouts.",
        band=(0.0, 0.0),
        too_high="VAL crashed or took too long; such plans count as not valid: raise `val_timeout_s`, or `--validator "
        "builtin`",
        alarm="once",
    ),
    Metric(
        name="reward/partial",
        unit="fraction",
        meaning="What `partial` measures (lccs, lcs, prefix or goal), before `partial_scale`, mean over completions, "
        "valid ones included.",
        healthy="Rises. For `lccs` it is `reward/lccs`.",
    ),
    Metric(
        name="reward/plan_unreadable",
        unit="fraction of completions",
        meaning="Fraction of completions that are not a list of actions in the prompt style; they earn nothing.",
        healthy="Falls to 0 early. Where it stays, the model was not taught the style, or completions are cut: raise "
        "`response_length`.",
    ),
    Metric(
        name="reward/invalid_with_reference",
        unit="fraction of completions",
        meaning="Fraction of completions that hold all steps of a reference plan in their order and are not valid.",
        healthy="Near 0. A rise is an alarm: the overlap is collected with junk in between; a run warns above 0.25.",
        band=(0.0, 0.25),
        too_high="many plans hold the steps of their reference and are not valid, so the partial reward may be gamed: "
        "lower `partial_scale`, or normalise by max",
        alarm="once",
    ),
    Metric(
        name="reward/overlong",
        unit="fraction of completions",
        meaning="Fraction of completions with more than 3 times as many steps as the reference plan.",
        healthy="Near 0. A rise is an alarm: enumeration or loops; a run warns above 0.25.",
        band=(0.0, 0.25),
        too_high="many plans are far longer than their reference, so the partial reward may be gamed: normalise by "
        "max, or set `missing_eos_penalty`",
        alarm="once",
    ),
    Metric(
        name="reward/val_audited",
        unit="completions",
        meaning="Plans judged in this process that VAL judged again (`audit_rate`); equal plans count once.",
        healthy="About `audit_rate` times the batch.",
    ),
    Metric(
        name="reward/val_disagreements",
        unit="completions",
        meaning="Plans of these on which VAL says otherwise; they are saved in `val_disagreements/`.",
        healthy="0. Anything else is a defect of one of the validators, and a run warns of each.",
        band=(0.0, 0.0),
        too_high="so many plans are valid for only one of VAL and the in-process validator; please report the cases in "
        "`val_disagreements/` of the run folder; `--validator val` has VAL judge all plans",
        alarm="always",
    ),
    Metric(
        name="reward/val_failed",
        unit="completions",
        meaning="Plans of these on which VAL crashed or ran out of time.",
        healthy="0.",
        band=(0.0, 0.0),
        too_high="VAL crashed or took too long on plans that it was to check again: raise `val_timeout_s`",
        alarm="once",
    ),
    Metric(
        name="reward/errors",
        unit="completions",
        meaning="Completions for which a reward function raised or gave no number, summed over functions; `on_error` "
        "decides what becomes of them.",
        healthy="0. The reasons are in `samples.jsonl`.",
        band=(0.0, 0.0),
        too_high="the reward function failed on completions; `samples.jsonl` has the reasons, `--on_error` decides "
        "what they earn",
        alarm="once",
    ),
    Metric(
        name="reward/timeouts",
        unit="completions",
        meaning="Completions that a reward function took longer than `reward_timeout_s` for; `on_timeout` decides.",
        healthy="0, or a few hard cases. Many of them: raise the limit or `reward_workers`.",
        band=(0.0, 0.0),
        too_high="the reward function took too long; `samples.jsonl` has the completions: raise `reward_timeout_s`",
        alarm="once",
    ),
    Metric(
        name="reward/not_scorable",
        unit="completions",
        meaning="Completions that no reward function could score (None); they are left out of the update.",
        healthy="0, or as many as the reward is meant to leave out.",
    ),
    Metric(
        name="reward/<part>",
        unit="as reported",
        meaning="A part that a reward function reports by `log_metric`, taken over as it is.",
        healthy="Parts should rise together. One that rises while the others fall is what the policy exploits.",
    ),
)

_REWARDS = (
    Metric(
        name="rewards/<function>/mean",
        unit="score per completion",
        meaning="Mean of what one reward function gives, before its weight, over the completions that it can score.",
        healthy="All rise together, or are weighed against each other on purpose.",
    ),
    Metric(
        name="rewards/<function>/std",
        unit="score per completion",
        meaning="Standard deviation of the same.",
        healthy="Above 0: a reward that is the same for all completions teaches nothing.",
    ),
)

_CACHE = (
    Metric(
        name="cache/reward_hits",
        unit="completions",
        meaning="Completions whose reward was known from an equal completion, summed over functions.",
        healthy="Rises as the policy becomes sure of itself. Near the batch size it has stopped exploring.",
    ),
    Metric(
        name="cache/hits",
        unit="programs",
        meaning="Programs that this update read from JAX's persistent cache of compiled programs.",
        healthy="0 from the third update on, but for those that are the first with longer or shorter sequences.",
    ),
)

_MEMORY = (
    Metric(
        name="memory/peak_mib",
        unit="MiB",
        meaning="Most memory in use at once so far on the fullest device, evaluations included; on CPU, whose devices "
        "do not say, most that the whole process had in memory (its largest resident set), and absent on Windows.",
        healthy="Steady after the first updates, with steps where sequences are longer than before, and below what the "
        "device has. A resumed run begins anew.",
    ),
)

_COMPILE = (
    Metric(
        name="compile/count",
        unit="programs",
        meaning="Programs that XLA compiled during this update; those read from its persistent cache are `cache/hits`.",
        healthy="0 from the third update on, but for those that are the first with longer or shorter sequences; the "
        "run says which. Never 0: something changes its shape in every update.",
    ),
    Metric(
        name="compile/s",
        unit="seconds",
        meaning="Time of XLA for these programs, reading from the cache included, tracing in Python not; it is within "
        "`time/rollout_s`, `time/reward_s` and `time/update_s`.",
        healthy="0 from the third update on, as `compile/count`.",
    ),
)

_EVAL = (
    Metric(
        name="eval/<split>/validity",
        unit="fraction of problems",
        meaning="Fraction of the held-out problems of a split that the policy after this update solves with a valid "
        "plan; only in records of updates with an evaluation. With `eval_rows`: of that many problems, always the "
        "same ones.",
        healthy="Rises; differences below `1 / sqrt(problems)` may be noise. Falling while `objective/scores` rises: "
        "stop, and take an earlier checkpoint.",
        chart=1,
    ),
    Metric(
        name="eval/<split>/<domain>/validity",
        unit="fraction of problems",
        meaning="The same for each domain of a split that has several.",
        healthy="Rise together; one that falls while the others rise is being forgotten.",
    ),
    Metric(
        name="eval/<split>/mean_reward",
        unit="score per completion",
        meaning="Mean reward on the held-out prompts of a split, decoded as evaluations are.",
        healthy="Rises with `objective/scores`. Where it stands still the policy learns its training prompts.",
        chart=1,
    ),
)

_TIME = (
    Metric(
        name="time/rollout_s",
        unit="seconds",
        meaning="Wall time of sampling the completions, from the choice of prompts to packed sequences.",
        healthy="Steady after the first update, which compiles. Grows with `completions/max_length`.",
    ),
    Metric(
        name="time/reward_s",
        unit="seconds",
        meaning="Wall time of the reward on the host, decoding included; the device scores meanwhile.",
        healthy="Below the time of a rollout; only what exceeds the scoring costs time, see `time/reward_wait_s`.",
    ),
    Metric(
        name="time/reward_wait_s",
        unit="seconds",
        meaning="Wall time for which the rewards held the devices up: from the end of scoring to the last reward; 0 "
        "where the rewards were there first. A reward model runs after scoring, and counts in full.",
        healthy="Near 0. Otherwise make the reward faster: a cache, an `async def`, a faster server; for a function "
        "with a time limit more `reward_workers`.",
    ),
    Metric(
        name="time/update_s",
        unit="seconds",
        meaning="Wall time from the rewards to the end of the last optimizer step: the rest of scoring, advantages, "
        "and all epochs and mini-batches.",
        healthy="Steady, up to the updates that compile for a new sequence length; usually the largest of the three.",
        old_name="time/ppo/optimize_step",
    ),
    Metric(
        name="throughput/samples_per_s",
        unit="completions per second",
        meaning="Completions of this update divided by its wall time (TRL's `eps` is the average since the start).",
        healthy="Steady to about 20 % after the first update.",
        headline=Headline("samples/s", 5),
    ),
    Metric(
        name="throughput/tflops",
        unit="TFLOP/s (`10^12` operations per second)",
        meaning="Floating-point operations of the matrix products in sampling, scoring and learning, divided by the "
        "wall time of the update; all devices together. They are counted from shapes: padding counts, what is computed "
        "again to save memory, reward models and the optimizer do not, and an early stop is not noticed.",
        healthy="Steady after the first update. Falls where the host holds up the devices, and with short completions.",
    ),
    Metric(
        name="throughput/mfu",
        unit="fraction of the peak",
        meaning="Model FLOPs utilisation: `throughput/tflops` divided by what all devices could do at most in this "
        "dtype, as their maker says or as `peak_tflops` says; absent where neither does.",
        healthy="0.1 to 0.5 on GPUs in bfloat16: sampling reads all weights for one token of each row. Larger batches "
        "raise it. Below 0.05 look at `time/rollout_s` and `time/reward_s`.",
        band=(0.1, 0.5),
    ),
)

SUPERVISED = (
    Metric(
        name="loss",
        unit="nats per token, or per pair",
        meaning="What `sft` and `reward_model` minimise.",
        healthy="Falls.",
        watch=Watch(trends.rising, "lower `learning_rate`"),
        headline=Headline("loss", 1),
    ),
    Metric(
        name="accuracy",
        unit="fraction of pairs",
        meaning="Fraction of the pairs whose chosen text the reward model scores higher.",
        healthy="Rises from 0.5.",
        headline=Headline("accuracy", 2, 2),
    ),
    Metric(
        name="entropy",
        unit="nats per token",
        meaning="Entropy of the model's distribution over the vocabulary, mean over the target tokens.",
        healthy="Falls with the loss.",
        headline=Headline("entropy", 2, 4),
    ),
    Metric(
        name="time/step_s",
        unit="seconds",
        meaning="Wall time of a step.",
        healthy="Steady after the first step, which compiles.",
        headline=Headline("s/step", 5, 2),
    ),
)
"""Headline numbers that only `sft` and `reward_model` log; the page explains those of `train`."""

METRICS: tuple[Metric, ...] = (
    *_PROGRESS,
    *_OBJECTIVE,
    *_POLICY,
    *_LOSS,
    *_VAL,
    *_VALUE,
    *_RLOO,
    *_TEXT,
    *_REWARD,
    *_REWARDS,
    *_CACHE,
    *_EVAL,
    *_TIME,
    *_MEMORY,
    *_COMPILE,
)

GROUPS = {
    "": "Progress, learning rates, gradient",
    "objective": "Objective",
    "policy": "The policy in the update",
    "loss": "Losses",
    "val": "Ratio and clipping",
    "value": "Values and returns; PPO only",
    "rloo": "Groups of completions; RLOO only",
    "completions": "Completions",
    "tokens": "Prompts",
    "reward": "Parts of the reward",
    "rewards": "Each reward function",
    "cache": "Caches",
    "eval": "Evaluation during training",
    "time": "Time",
    "throughput": "Throughput",
    "memory": "Memory",
    "compile": "Compilation",
}
"""Title of each prefix of the names, in the order of the documentation."""

_BY_NAME = {metric.name: metric for metric in METRICS}


def headlines() -> list[list[Metric]]:
    """Return for each place of the live view the metrics that may stand there, the first choice first."""
    places: dict[int, list[tuple[int, Metric]]] = {}
    for metric in (*METRICS, *SUPERVISED):
        if metric.headline is not None:
            places.setdefault(metric.headline.place, []).append((metric.headline.rank, metric))
    return [[metric for _, metric in sorted(places[place], key=lambda pair: pair[0])] for place in sorted(places)]


def find(name: str) -> Metric | None:
    """Return the definition of a logged name: the metric of that very name, else the family that covers it."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((metric for metric in METRICS if _covers(metric.name, name)), None)


def with_old_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record, plus every metric of it again under TRL 0.11's name where that differs."""
    renamed = [metric for metric in METRICS if metric.old_name and metric.name in record]
    return {**record, **{str(metric.old_name): record[metric.name] for metric in renamed}}


def prefix_of(name: str) -> str:
    """Return the part before the first slash; nothing where there is none."""
    return name.partition("/")[0] if "/" in name else ""


def _covers(family: str, name: str) -> bool:
    """Return whether a name with `<...>` segments stands for this name."""
    segments, given = family.split("/"), name.split("/")
    return len(segments) == len(given) and all(
        actual == segment or (segment.startswith("<") and actual != "")
        for segment, actual in zip(segments, given, strict=True)
    )
