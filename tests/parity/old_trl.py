"""The formulas of `PPOTrainer` in TRL 0.11, written out once more in Python loops and float64.

They follow that version to the letter, padding included: what it leaves outside the mask is left here too.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

KLPenalty = Literal["kl", "abs", "mse", "full"]

WHITEN_EPS = 1e-8
SCORE_EPS = float(np.finfo(np.float32).eps)


def token_kl(logprob: float, ref_logprob: float, kl_penalty: KLPenalty) -> float:
    """KL estimate of one token: d = logprob - ref_logprob, |d|, or 0.5 d^2."""
    difference = logprob - ref_logprob
    return {"kl": difference, "abs": abs(difference), "mse": 0.5 * difference**2}[kl_penalty]


def full_token_kl(logprobs: np.ndarray, ref_logprobs: np.ndarray) -> float:
    """KL(p || q) of one position from log p and log q over the vocabulary: sum over v of p[v] (log p[v] - log q[v])."""
    return sum(math.exp(p) * (p - q) for p, q in zip(logprobs.tolist(), ref_logprobs.tolist(), strict=True))


def compute_rewards(
    scores: np.ndarray,
    logprobs: np.ndarray,
    ref_logprobs: np.ndarray,
    masks: np.ndarray,
    kl_coef: float,
    kl_penalty: KLPenalty,
    full_kl: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards of every token: r[t] = -kl_coef kl[t], plus the score at the last t with mask[t] = 1.

    Args:
        scores: [B].
        logprobs: [B, T], log probability of each token under the policy.
        ref_logprobs: [B, T], the same under the reference.
        masks: [B, T], 1 on real tokens; every row has one.
        kl_coef: weight of the penalty.
        kl_penalty: "kl", "abs", "mse" or "full".
        full_kl: for "full", the log distributions of policy and reference, [B, T, V] each.

    Returns:
        Rewards, rewards without the score, and kl, all [B, T]. Padding keeps its -kl_coef kl[t].
    """
    kls = np.zeros(np.shape(logprobs))
    for b, t in np.ndindex(kls.shape):
        if kl_penalty == "full":
            kls[b, t] = full_token_kl(full_kl[0][b, t], full_kl[1][b, t])
        else:
            kls[b, t] = token_kl(float(logprobs[b, t]), float(ref_logprobs[b, t]), kl_penalty)
    non_score_rewards = -kl_coef * kls
    rewards = non_score_rewards.copy()
    for b, mask in enumerate(masks):
        rewards[b, max(t for t, real in enumerate(mask) if real)] += float(scores[b])
    return rewards, non_score_rewards, kls


def real_values(values: np.ndarray, mask: np.ndarray) -> Iterator[float]:
    """The values at mask 1, row by row."""
    for b, t in np.ndindex(np.shape(values)):
        if mask[b, t]:
            yield float(values[b, t])


def masked_mean(values: np.ndarray, mask: np.ndarray) -> float:
    """Mean over the mask: sum(values mask) / sum(mask)."""
    real = list(real_values(values, mask))
    return math.fsum(real) / len(real)


def masked_var(values: np.ndarray, mask: np.ndarray) -> float:
    """Unbiased variance over the mask: sum((x - mean)^2) / (n - 1), with n > 1."""
    real, mean = list(real_values(values, mask)), masked_mean(values, mask)
    return math.fsum((x - mean) ** 2 for x in real) / (len(real) - 1)


def masked_whiten(values: np.ndarray, mask: np.ndarray, shift_mean: bool = True) -> np.ndarray:
    """(x - mean) / sqrt(var + 1e-8), plus the mean again without `shift_mean`; applied to padding too."""
    mean, scale = masked_mean(values, mask), 1 / math.sqrt(masked_var(values, mask) + WHITEN_EPS)
    whitened = np.zeros(np.shape(values))
    for index in np.ndindex(whitened.shape):
        whitened[index] = (float(values[index]) - mean) * scale + (0.0 if shift_mean else mean)
    return whitened


def gae(values: np.ndarray, rewards: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Advantages of one row, for t = T - 1 .. 0 with V[T] = A[T] = 0.

    delta[t] = r[t] + gamma V[t + 1] - V[t];  A[t] = delta[t] + gamma lam A[t + 1].
    """
    advantages, advantage, next_value = np.zeros(len(values)), 0.0, 0.0
    for t in reversed(range(len(values))):
        delta = float(rewards[t]) + gamma * next_value - float(values[t])
        advantage = delta + gamma * lam * advantage
        advantages[t], next_value = advantage, float(values[t])
    return advantages


def compute_advantages(
    values: np.ndarray, rewards: np.ndarray, mask: np.ndarray, gamma: float, lam: float, whiten_rewards: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Whitened advantages and returns, all [B, T]: R[t] = A[t] + V[t] with the advantages before whitening.

    Values and rewards are multiplied by the mask first. `whiten_rewards` then scales the rewards and keeps their
    mean, but does not mask again: in a padded batch it gives padding a reward, which reaches the real tokens.
    """
    values, rewards = np.asarray(values, float) * mask, np.asarray(rewards, float) * mask
    if whiten_rewards:
        rewards = masked_whiten(rewards, mask, shift_mean=False)
    advantages = np.stack([gae(*row, gamma, lam) for row in zip(values, rewards, strict=True)])
    return masked_whiten(advantages, mask), advantages + values


def entropy_from_logits(logits: np.ndarray) -> float:
    """Entropy of one position: log sum(exp(z)) - sum(softmax(z) z)."""
    z = [float(x) for x in logits]
    normaliser = math.fsum(math.exp(x - max(z)) for x in z)
    expected = math.fsum(math.exp(x - max(z)) / normaliser * x for x in z)
    return max(z) + math.log(normaliser) - expected


def policy_terms(old_logprob: float, logprob: float, advantage: float, cliprange: float) -> dict[str, float]:
    """One token: ratio r = exp(new - old), loss max(-A r, -A clip(r, 1 - c, 1 + c)), clipped where the second wins."""
    ratio = math.exp(logprob - old_logprob)
    plain, clipped = -advantage * ratio, -advantage * min(max(ratio, 1 - cliprange), 1 + cliprange)
    return {
        "loss/policy": max(plain, clipped),
        "policy/clipfrac": float(clipped > plain),
        "policy/ratio": ratio,
        "policy/approxkl": 0.5 * (logprob - old_logprob) ** 2,
        "policy/policykl": old_logprob - logprob,
    }


def value_terms(value: float, vpred: float, target: float, cliprange_value: float) -> dict[str, float]:
    """One token: loss 0.5 max((v - R)^2, (clip(v, old - c, old + c) - R)^2), clipped where the second wins."""
    plain = (vpred - target) ** 2
    clipped = (min(max(vpred, value - cliprange_value), value + cliprange_value) - target) ** 2
    return {"loss/value": 0.5 * max(plain, clipped), "val/clipfrac": float(clipped > plain), "val/error": plain}


def loss(
    old_logprobs: np.ndarray,
    values: np.ndarray,
    logits: np.ndarray | None,
    vpreds: np.ndarray,
    logprobs: np.ndarray,
    mask: np.ndarray,
    advantages: np.ndarray,
    returns: np.ndarray,
    cliprange: float,
    cliprange_value: float,
    vf_coef: float,
    ratio_threshold: float,
) -> dict[str, Any]:
    """Losses and statistics of a minibatch, means over the mask, under TRL's names.

    loss/total = loss/policy + vf_coef loss/value. Where policy/ratio, here the mean, exceeds `ratio_threshold` the
    batch is skipped: the three losses are 0 and the statistics stay.

    Args:
        old_logprobs: [B, T], from the rollout, like values.
        values: [B, T].
        logits: [B, T, V] of the updated policy, for policy/entropy; None leaves it out.
        vpreds: [B, T], values of the updated model.
        logprobs: [B, T], of the updated policy.
        mask: [B, T], 1 on real tokens.
        advantages: [B, T].
        returns: [B, T].
        cliprange: c of the ratio.
        cliprange_value: c of the values.
        vf_coef: weight of the value loss.
        ratio_threshold: bound of the mean ratio.
    """
    terms = [
        policy_terms(*(float(x[at]) for x in (old_logprobs, logprobs, advantages)), cliprange)
        | value_terms(*(float(x[at]) for x in (values, vpreds, returns)), cliprange_value)
        | ({} if logits is None else {"policy/entropy": entropy_from_logits(logits[at])})
        for at in np.ndindex(np.shape(mask))
        if mask[at]
    ]
    stats: dict[str, Any] = {name: math.fsum(term[name] for term in terms) / len(terms) for name in terms[0]}
    stats["loss/total"] = stats["loss/policy"] + vf_coef * stats["loss/value"]
    stats["skipped"] = stats["policy/ratio"] > ratio_threshold
    if stats["skipped"]:
        stats |= {"loss/policy": 0.0, "loss/value": 0.0, "loss/total": 0.0}
    return stats


class AdaptiveKL:
    """Coefficient of the KL penalty, driven to a target: value *= 1 + clip(kl / target - 1, -0.2, 0.2) n / horizon."""

    def __init__(self, init: float, target: float, horizon: float):
        self.value, self.target, self.horizon = init, target, horizon

    def update(self, kl: float, n: int) -> None:
        """Take in the mean KL of n completions, summed over their tokens."""
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * n / self.horizon


class RunningMoments:
    """Mean and unbiased standard deviation of a stream of batches; 0 and 1 before the first."""

    def __init__(self):
        self.mean, self.std, self.var, self.count = 0.0, 1.0, 1.0, 1e-24

    def update(self, xs: np.ndarray) -> tuple[float, float]:
        """Take in a batch of at least two values; its own mean and unbiased standard deviation.

        With batch mean m, biased variance v, size n and N = count + n, d = m - mean:
        mean += d n / N;  var = (var count + v n + d^2 count n / N) / N;  std = sqrt(var N / (N - 1)).
        """
        batch = [float(x) for x in np.ravel(xs)]
        n, total = len(batch), self.count + len(batch)
        batch_mean = math.fsum(batch) / n
        squares = math.fsum((x - batch_mean) ** 2 for x in batch)
        delta = batch_mean - self.mean
        self.var = (self.var * self.count + squares + delta**2 * self.count * n / total) / total
        self.mean += delta * n / total
        self.std = math.sqrt(self.var * total / (total - 1))
        self.count = total
        return batch_mean, math.sqrt(squares / (n - 1))


def scale_scores(
    scores: np.ndarray,
    moments: RunningMoments,
    use_score_scaling: bool,
    use_score_norm: bool,
    score_clip: float | None,
) -> np.ndarray:
    """Scores over the running deviation, which sees them first, then clipped to +-score_clip.

    score / (std + eps), or (score - mean) / (std + eps) with `use_score_norm`; eps is that of float32. Without
    `use_score_scaling` the moments stay as they are and scores are clipped only.
    """
    scaled = [float(score) for score in scores]
    if use_score_scaling:
        moments.update(np.array(scaled))
        shift = moments.mean if use_score_norm else 0.0
        scaled = [(score - shift) / (moments.std + SCORE_EPS) for score in scaled]
    if score_clip is not None:
        scaled = [min(max(score, -score_clip), score_clip) for score in scaled]
    return np.array(scaled)
