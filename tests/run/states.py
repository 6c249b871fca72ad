"""States of training that are small, and different at each step, for the tests of checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxppo.config import OptimizerConfig, RLConfig
from jaxppo.rl import optimizer, trajectories, update
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.types import ScoreMoments, TrainState

META = {"config": {"seed": 1, "eval_splits": ("test", "dev"), "output_dir": None}, "episode": 64}


def make_state(seed: int, step: int = 0, width: int = 2) -> TrainState:
    """A state with moments that are not 0, of several dtypes and with odd values."""
    rng = np.random.default_rng(seed)
    params = {
        "policy": {"layers": {"0": {"kernel": jnp.asarray(rng.normal(size=(3, width)), jnp.float32)}}},
        "value": {"score": {"bias": jnp.array([np.float32(1e-40), -0.0, np.inf])}},
    }
    controls = trajectories.initial_controls(RLConfig())._replace(
        kl_coef=jnp.float32(rng.normal()),
        moments=ScoreMoments(*(jnp.float32(x) for x in rng.normal(size=3))),
        bad_updates=jnp.int32(seed),
    )
    grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), params)
    return _after_a_step(params, grads, controls, jnp.int32(step))


@jax.jit  # as one program, which is faster compiled than each of its operations
def _after_a_step(params: Any, grads: Any, controls: Any, step: Any) -> TrainState:
    config = OptimizerConfig(learning_rate=0.1)
    adam = optimizer.make_optimizer(config)
    rates = optimizer.make_learning_rates(config, 10)
    state = update.init_state(params, adam, controls)._replace(step=step)
    return optimizer.apply_gradients(state, grads, adam, rates, optax.tree.norm(grads), True)


def assert_equal_bits(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def saved(folder: Path, *steps: int, keep: int = 2) -> Path:
    """Checkpoints of states that are different at each step."""
    with Checkpoints(folder, keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, make_state(step, step), META)
    return folder


def no_warning(text: str) -> None:
    pytest.fail(f"warned: {text}")


def restored(folder: Path, warn: Callable[[str], None] = no_warning, like: TrainState | None = None) -> TrainState:
    return Checkpoints(folder, 2).restore(make_state(99) if like is None else like, warn)[0]
