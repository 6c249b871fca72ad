"""Options of the policy's loss and of its advantages, each against a plain loop in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError
from jaxppo.rl import losses
from jaxppo.types import Sequences, Trajectories

COUNTS = np.array([[3, 1, 4], [2, 0, 1]])  # two mini-batches of three completions, one of them without a token
REAL = np.arange(4) < COUNTS[..., None]
ONES = np.ones_like(REAL, np.float32)


def batch_of(mask, advantages, **rest):
    ids = np.zeros(mask.shape, np.int32)
    sequences = Sequences(ids, np.ones(mask.shape[:-1], np.int32), ids, jnp.asarray(mask))
    return Trajectories(sequences, jnp.zeros(mask.shape), jnp.zeros(mask.shape), jnp.asarray(advantages), **rest)


def loop_weights(loss_type, length):
    """The share of every token, from the definition of each mean."""
    expected = np.zeros(REAL.shape)
    steps, rows, _ = REAL.shape
    for step in range(steps):
        in_step, in_all = COUNTS[step].sum(), COUNTS.sum()
        for row in range(rows):
            for t in range(COUNTS[step, row]):
                expected[step, row, t] = {
                    "grpo": 1 / COUNTS[step, row] / rows,
                    "bnpo": 1 / in_step,
                    "dr_grpo": 1 / (rows * length),
                    "dapo": 1 / (in_all / steps),
                    "cispo": 1 / (in_all / steps),
                }[loss_type]
    return expected


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_loss_weights_equal_a_loop(loss_type, level):
    weights = losses.loss_weights(batch_of(REAL, ONES), level, loss_type, 7)
    np.testing.assert_allclose(weights.policy, loop_weights(loss_type, 7), rtol=1e-6)
    np.testing.assert_allclose(weights.tokens, loop_weights("bnpo", 7), rtol=1e-6)
    of_sequences = loop_weights("grpo", 7) * COUNTS.shape[1] / np.sum(COUNTS > 0, axis=1)[:, None, None]
    logged = loop_weights("bnpo", 7) if level == "token" else of_sequences
    np.testing.assert_allclose(weights.ratios, logged, rtol=1e-6)
    assert weights.values is weights.positive is None


@pytest.mark.parametrize("level", ["token", "sequence", "completion"])
def test_completions_and_mini_batches_without_tokens_count_as_nothing(level):
    """Of a mean; an empty mini-batch has no weight at all, but for its completions as wholes."""
    real = REAL.copy()
    real[0, 0] = real[1] = False
    states = np.arange(4) <= real.sum(-1, keepdims=True)
    map_in_chunks = level == "completion"
    batch = batch_of(real, ONES[..., 0] if map_in_chunks else ONES, value_mask=jnp.asarray(states))
    weights = losses.loss_weights(batch, level, "bnpo", 7)
    np.testing.assert_allclose(weights.tokens, real / np.array([5, 1])[:, None, None], rtol=1e-6)
    np.testing.assert_allclose(weights.values, states / states.sum((1, 2), keepdims=True), rtol=1e-6)
    if map_in_chunks:  # alike, also one without a token
        np.testing.assert_allclose(weights.policy, np.full((2, 3), 1 / 3), rtol=1e-6)
        np.testing.assert_array_equal(weights.ratios, weights.policy)
    else:
        np.testing.assert_array_equal(weights.policy, weights.tokens)
        np.testing.assert_allclose(np.sum(weights.ratios, axis=(1, 2)), [1.0, 0.0], rtol=1e-6)


def test_loss_weights_of_positive_completions_are_the_mean_over_their_tokens():
    positive = np.array([[True, False, True], [False, True, False]])
    weights = losses.loss_weights(batch_of(REAL, ONES, positive=jnp.asarray(positive)), "token", "dapo", 7)
    expected = np.zeros(REAL.shape)
    expected[0, 0, :3] = expected[0, 2, :4] = 1 / 7
    np.testing.assert_allclose(weights.positive, expected, rtol=1e-6)  # the second has no token of a positive one


RATIOS = np.array([0.3, 0.9, 1.1, 1.3, 2.0, 6.0, 0.3, 0.9, 1.1, 1.3, 2.0, 6.0])
ADVANTAGES = np.array([2.0] * 6 + [-2.0] * 6)
SHARES = jnp.full(12, 1 / 12)


def test_the_capped_loss_weighs_the_gradient_of_the_log_probabilities():
    logprobs, means = jnp.log(jnp.linspace(0.1, 0.9, 12)), jnp.asarray(np.arange(12) / 66, jnp.float32)

    def capped(ratio, logprobs):
        return losses.capped_policy_loss(ratio, logprobs, jnp.asarray(ADVANTAGES, jnp.float32), SHARES, 1.5, means)

    result = capped(jnp.log(RATIOS), logprobs)
    expected = -ADVANTAGES * np.minimum(RATIOS, 1.5) / 12
    np.testing.assert_allclose(result.loss, np.sum(expected * np.asarray(logprobs)), rtol=1e-5)
    both = jax.grad(lambda *x: capped(*x).loss, argnums=(0, 1))(jnp.log(RATIOS), logprobs)
    np.testing.assert_array_equal(both[0], np.zeros(12))
    np.testing.assert_allclose(both[1], expected, rtol=1e-5)
    over = [(r > 1.5 and a > 0) * n for n, (r, a) in enumerate(zip(RATIOS, ADVANTAGES, strict=True))]
    np.testing.assert_allclose(result.clipfrac, sum(over) / 66, rtol=1e-5)


GRPO = {"algorithm": "grpo"}
RLOO = {"algorithm": "rloo"}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (GRPO | {"loss_type": "cispo"}, "cliprange_high"),
        (GRPO | {"loss_type": "cispo", "cliprange_high": 5.0, "delta": 9.0}, "delta"),
        ({"delta": 1.2}, "delta"),
        (RLOO | {"loss_type": "dapo"}, "loss_type"),
        (RLOO | {"top_entropy_quantile": 0.2}, "top_entropy_quantile"),
        ({"scale_rewards": "none"}, "scale_rewards"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level"),
        (GRPO | {"kl_target": 1.0}, "kl_target"),
        (GRPO | {"num_generations": 1}, "num_generations"),
        (GRPO | {"importance_sampling_level": "sequence", "top_k": 5, "logprobs": "sampler"}, "logprobs"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(changes, name):
    with pytest.raises(ConfigError, match=f"^{name}: "):
        replace(TrainConfig(), **changes)
