"""TRL 0.11's formulas: jaxppo against the loops of `old_trl.py`, batch after batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn.head_logprobs import Block, token_kl
from jaxppo.rl import losses, ops, trajectories
from jaxppo.types import Rollout, Scored, Sequences

from . import old_trl

ROWS, LENGTH, VOCAB = 6, 7, 11
KL_ESTIMATORS = {"kl": "k1", "abs": "abs", "mse": "mse", "full": "full"}
"""TRL 0.11's kl_penalty and our kl_estimator."""


def make_batch(seed: int, lengths=(7, 1, 3, 7, 5, 2)) -> dict[str, np.ndarray]:
    """What models and rewards said about a batch; log-distributions and the tokens drawn from them."""
    rng = np.random.default_rng(seed)
    log_softmax = lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True))  # noqa: E731
    log_p, log_q = (log_softmax(rng.normal(size=(ROWS, LENGTH, VOCAB))) for _ in range(2))
    ids = rng.integers(0, VOCAB, (ROWS, LENGTH, 1))
    mask = np.arange(LENGTH) < np.array(lengths)[:, None]
    return {
        "log_p": log_p,
        "log_q": log_q,
        "logprobs": np.take_along_axis(log_p, ids, -1)[..., 0] * mask,
        "ref_logprobs": np.take_along_axis(log_q, ids, -1)[..., 0] * mask,
        "values": rng.normal(size=(ROWS, LENGTH)),
        "scores": rng.normal(size=ROWS),
        "mask": mask,
    }


def make_config(**changes) -> TrainConfig:
    old = {"batch_size": ROWS, "response_length": LENGTH, "kl_coef": 0.2, "gamma": 0.97, "lam": 0.9}
    return replace(TrainConfig(), **(old | changes))


def our_trajectories(controls, batch, config):
    """`make_trajectories` on what the models said."""
    full = (batch["log_p"], batch["log_q"], jnp.eye(VOCAB)) if config.rl.kl_estimator == "full" else None
    full_kl = None if full is None else token_kl(full[0], full[2], full[1], full[2]) * batch["mask"]
    ids = jnp.zeros((ROWS, LENGTH), jnp.int32)
    scored = Scored(
        jnp.float32(batch["logprobs"]), jnp.float32(batch["ref_logprobs"]), jnp.float32(batch["values"]), full_kl
    )
    rollout = Rollout(ids, jnp.asarray(batch["mask"]), None, jnp.ones(ROWS, bool))
    sequences = Sequences(ids, jnp.full(ROWS, 2), ids, jnp.asarray(batch["mask"]))
    scores = jnp.float32(batch["scores"])
    return trajectories.make_trajectories(controls, jnp.int32(0), scored, rollout, sequences, scores, config=config)


@pytest.mark.parametrize("kl_penalty", KL_ESTIMATORS)
def test_rewards_advantages_and_returns(kl_penalty):
    batch, config = make_batch(0), make_config(kl_estimator=KL_ESTIMATORS[kl_penalty])
    _, ours, stats = our_trajectories(trajectories.initial_controls(config.rl), batch, config)
    rewards, _, kls = old_trl.compute_rewards(
        batch["scores"],
        batch["logprobs"],
        batch["ref_logprobs"],
        batch["mask"],
        0.2,
        kl_penalty,
        (batch["log_p"], batch["log_q"]),
    )
    advantages, returns = old_trl.compute_advantages(batch["values"], rewards, batch["mask"], 0.97, 0.9, False)
    mask = batch["mask"]
    np.testing.assert_allclose(ours.rewards, rewards * mask, atol=1e-5)
    np.testing.assert_allclose(ours.advantages, advantages * mask, atol=1e-5)
    np.testing.assert_allclose(ours.returns, returns * mask, atol=1e-5)
    np.testing.assert_allclose(stats["objective/kl"], (kls * mask).sum(1).mean(), atol=1e-5)


def test_whitened_rewards_without_padding():
    """With padding, TRL 0.11 whitens that too and lets it reach the real tokens; ours is masked."""
    batch = make_batch(1, lengths=(LENGTH,) * ROWS)
    config = make_config(whiten_rewards=True, batch_size=8)
    _, ours, _ = our_trajectories(trajectories.initial_controls(config.rl), batch, config)
    mask = batch["mask"]
    rewards, _, _ = old_trl.compute_rewards(batch["scores"], batch["logprobs"], batch["ref_logprobs"], mask, 0.2, "kl")
    advantages, returns = old_trl.compute_advantages(batch["values"], rewards, mask, 0.97, 0.9, True)
    np.testing.assert_allclose(ours.advantages, advantages, atol=1e-5)
    np.testing.assert_allclose(ours.returns, returns, atol=1e-5)


@pytest.mark.parametrize("norm", [False, True])
def test_adaptive_kl_and_score_scaling_over_batches(norm):
    config = make_config(
        adap_kl_ctrl=True,
        kl_target=0.5,
        kl_horizon=10,
        use_score_scaling=True,
        use_score_norm=norm,
        reward_clip_range=(-1.0, 1.0),
    )
    kl, moments = old_trl.AdaptiveKL(0.2, 0.5, 10), old_trl.RunningMoments()
    controls = trajectories.initial_controls(config.rl)
    for seed in range(4):
        batch = make_batch(seed)
        controls, _, stats = our_trajectories(controls, batch, config)
        np.testing.assert_allclose(stats["objective/kl_coef"], kl.value, rtol=1e-5)
        scores = old_trl.scale_scores(batch["scores"], moments, True, norm, 1.0)
        np.testing.assert_allclose(stats["objective/scores"], scores.mean(), atol=1e-5)
        kl.update(((batch["logprobs"] - batch["ref_logprobs"]) * batch["mask"]).sum(1).mean(), ROWS)
        np.testing.assert_allclose(controls.kl_coef, kl.value, rtol=1e-5)
    assert abs(kl.value - 0.2) > 0.001


@pytest.mark.parametrize("ratio_threshold", [10.0, 1.0])
def test_loss_and_its_statistics(ratio_threshold):
    rng, batch = np.random.default_rng(2), make_batch(2)
    mask, old = batch["mask"], batch["logprobs"]
    new = (old + rng.normal(scale=0.4, size=old.shape)) * mask
    vpreds, advantages, returns = (rng.normal(size=old.shape) for _ in range(3))
    expected = old_trl.loss(
        old, batch["values"], None, vpreds, new, mask, advantages, returns, 0.2, 0.3, 0.1, ratio_threshold
    )
    weights = ops.mean_weights(jnp.asarray(mask), (0, 1))
    as32 = lambda x: jnp.float32(x)  # noqa: E731
    policy = losses.policy_loss(as32(new - old), as32(advantages), weights, 0.2)
    value = losses.value_loss(as32(vpreds), as32(batch["values"]), as32(returns), weights, 0.3)
    ours = {
        "policy/ratio": policy.ratio,
        "policy/clipfrac": policy.clipfrac,
        "val/clipfrac": value.clipfrac,
        "val/error": value.error,
        "policy/approxkl": 0.5 * ops.weighted_sum(as32(new - old) ** 2, weights),
        "policy/policykl": ops.weighted_sum(as32(old - new), weights),
    }
    for name, number in ours.items():
        np.testing.assert_allclose(number, expected[name], atol=1e-5, err_msg=name)
    # A skipped mini-batch has loss 0 there; here its optimizer step is left out.
    assert expected["skipped"] == bool(policy.ratio > ratio_threshold)
    if not expected["skipped"]:
        np.testing.assert_allclose(policy.loss, expected["loss/policy"], atol=1e-5)
        np.testing.assert_allclose(policy.loss + 0.1 * value.loss, expected["loss/total"], atol=1e-5)


def test_exact_kl_of_one_distribution_and_another():
    batch = make_batch(3)
    expected = np.array(
        [
            [old_trl.full_token_kl(p, q) for p, q in zip(*rows, strict=True)]
            for rows in zip(batch["log_p"], batch["log_q"], strict=True)
        ]
    )
    eye = jnp.eye(VOCAB)
    for block in (None, Block(5, 3), Block(1000, 1000)):
        kl = jax.jit(token_kl, static_argnames="block")(batch["log_p"], eye, batch["log_q"], eye, block=block)
        np.testing.assert_allclose(kl, expected, atol=1e-5)
