"""Checkpoints come back bit by bit, and only complete ones are taken for checkpoints."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import optimizer, trajectories, update
from jaxppo.checkpoint import Checkpoints
from jaxppo.config import OptimizerConfig, PPOConfig
from jaxppo.errors import DataError
from jaxppo.parallel import DataParallel
from jaxppo.types import ScoreMoments, TrainState


def make_state(seed, step=0):
    """A state with moments that are not 0, of several dtypes and with odd values."""
    rng = np.random.default_rng(seed)
    params = {
        "policy": {"layers": {"0": {"kernel": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)}}},
        "value": {"score": {"bias": jnp.array([np.float32(1e-40), -0.0, np.inf])}},
    }
    config = OptimizerConfig(learning_rate=0.1)
    adam = optimizer.make_optimizer(config)
    controls = trajectories.initial_controls(PPOConfig())._replace(
        kl_coef=jnp.float32(rng.normal()),
        moments=ScoreMoments(*(jnp.float32(x) for x in rng.normal(size=3))),
        bad_updates=jnp.int32(seed),
    )
    state = update.init_state(params, adam, controls)._replace(step=jnp.int32(step))
    grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), params)
    return optimizer.apply_gradients(state, grads, adam, optimizer.make_learning_rates(config, 10))


def assert_equal_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def saved(folder, *steps, keep=2):
    """Checkpoints of states that are different at each step."""
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(step, make_state(step, step), {"seed": 1, "eval_splits": ("test", "dev"), "output_dir": None})
    checkpoints.close()


def test_restore_gives_back_every_bit_in_another_process_like_object(tmp_path):
    saved(tmp_path / "checkpoints", 5)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 2)
    restored = checkpoints.restore(make_state(99))
    assert isinstance(restored, TrainState) and int(restored.step) == 5
    assert_equal_bits(restored, make_state(5, 5))
    assert int(restored.controls.bad_updates) == 5


def test_restore_gives_back_a_state_without_controls(tmp_path):
    """That of supervised training."""
    plain = make_state(3)._replace(controls=None)
    Checkpoints(tmp_path, 2).save(3, plain, {})
    assert_equal_bits(Checkpoints(tmp_path, 2).restore(make_state(99)._replace(controls=None)), plain)


def test_restore_places_arrays_as_those_of_the_template(tmp_path):
    saved(tmp_path, 1)
    for num_devices in (1, 4):
        parallel = DataParallel(devices=jax.local_devices()[:num_devices])
        restored = Checkpoints(tmp_path, 2).restore(parallel.put(make_state(99)))
        assert len(restored.params["policy"]["layers"]["0"]["kernel"].devices()) == num_devices
        assert_equal_bits(restored, make_state(1, 1))


def test_latest_is_the_newest_of_those_kept(tmp_path):
    assert Checkpoints(tmp_path, 2).latest is None
    saved(tmp_path, 2, 4, 10)  # 10 after 4: numbers, not names
    assert Checkpoints(tmp_path, 2).latest == 10
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["10", "4"]
    assert_equal_bits(Checkpoints(tmp_path, 2).restore(make_state(99)), make_state(10, 10))


@pytest.mark.parametrize("keep", [1, 3])
def test_save_keeps_as_many_as_asked_for(tmp_path, keep):
    saved(tmp_path, 1, 2, 3, 4, keep=keep)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "2", "3", "4"][-keep:]


def test_restore_without_a_checkpoint_names_the_folder(tmp_path):
    with pytest.raises(DataError, match=r"checkpoints: expected at least one in .*, got none"):
        Checkpoints(tmp_path, 2).restore(make_state(0))


def half_written(folder):
    """What a kill in the middle of a save leaves behind."""
    partial = folder / "7.orbax-checkpoint-tmp"
    shutil.copytree(folder / "3", partial)
    shutil.rmtree(partial / "state")
    (partial / "state.orbax-checkpoint-tmp").mkdir()


def garbage(folder):
    (folder / "7").mkdir()
    (folder / "7" / "notes.txt").write_text("not a checkpoint")


def stray_file(folder):
    (folder / "7").write_text("not a checkpoint")
    (folder / "notes").mkdir()


@pytest.mark.parametrize("leave", [half_written, garbage, stray_file])
def test_latest_passes_over_what_is_no_complete_checkpoint(tmp_path, leave):
    saved(tmp_path, 3)
    leave(tmp_path)
    checkpoints = Checkpoints(tmp_path, 2)
    assert checkpoints.latest == 3
    assert_equal_bits(checkpoints.restore(make_state(99)), make_state(3, 3))
    checkpoints.save(5, make_state(5, 5), {})  # and it does not stop the run from going on
    assert checkpoints.latest == 5
    assert_equal_bits(Checkpoints(tmp_path, 2).restore(make_state(99)), make_state(5, 5))
