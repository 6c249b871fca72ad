"""Checkpoints come back bit by bit, only whole ones are used, and whatever goes wrong leaves the earlier ones alone."""

import json
import os
import random
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

from jaxppo.config import OptimizerConfig, RLConfig
from jaxppo.errors import DataError
from jaxppo.parallel import stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import optimizer, trajectories, update
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.types import ScoreMoments, TrainState
from tests import ROOT, quick_first

META = {"config": {"seed": 1, "eval_splits": ("test", "dev"), "output_dir": None}, "episode": 64}


def make_state(seed, step=0, width=2):
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
def _after_a_step(params, grads, controls, step):
    config = OptimizerConfig(learning_rate=0.1)
    adam = optimizer.make_optimizer(config)
    state = update.init_state(params, adam, controls)._replace(step=step)
    return optimizer.apply_gradients(state, grads, adam, optimizer.make_learning_rates(config, 10))


def assert_equal_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def saved(folder, *steps, keep=2):
    """Checkpoints of states that are different at each step."""
    with Checkpoints(folder, keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, make_state(step, step), META)


def no_warning(text):
    pytest.fail(f"warned: {text}")


def restored(folder, warn=no_warning, like=None):
    return Checkpoints(folder, 2).restore(make_state(99) if like is None else like, warn)


def test_resume_frees_what_it_replaces(tmp_path):
    saved(tmp_path, 3)
    before = make_state(99)
    assert_equal_bits(Checkpoints(tmp_path, 2).resume(before, no_warning), make_state(3, 3))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((before.params, before.opt_state)))


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def files_of(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in files_of(folder)}


def test_restore_gives_back_every_bit_in_another_process_like_object(tmp_path):
    saved(tmp_path / "checkpoints", 5)
    state = restored(tmp_path / "checkpoints")
    assert isinstance(state, TrainState) and int(state.step) == 5
    assert_equal_bits(state, make_state(5, 5))
    assert int(state.controls.bad_updates) == 5


def test_restore_gives_back_a_state_without_controls(tmp_path):
    """That of supervised training."""
    plain = make_state(3)._replace(controls=None)
    with Checkpoints(tmp_path, 2) as checkpoints:
        checkpoints.save(3, plain, {})
    assert_equal_bits(restored(tmp_path, like=make_state(99)._replace(controls=None)), plain)


@pytest.mark.parametrize("mode", ["shard_map", "pmap"])
def test_restore_places_arrays_as_those_of_the_template(tmp_path, mode):
    with Checkpoints(tmp_path, 2) as checkpoints:
        checkpoints.save(1, DataParallel(mode).put(make_state(1, 1)), {})
    for num_devices in (1, 2, 4):
        parallel = DataParallel(mode, devices=jax.local_devices()[:num_devices])
        state = restored(tmp_path, like=parallel.put(make_state(99)))
        assert {len(array.devices()) for array in jax.tree.leaves(state)} == {num_devices}
        assert_equal_bits(state, make_state(1, 1))


PLACES = {
    "one": lambda: DataParallel(devices=jax.local_devices()[:1]),
    "pmap": lambda: DataParallel("pmap"),
    "fsdp": lambda: DataParallel("fsdp"),
    "tensor": lambda: DataParallel("fsdp", mesh="fsdp=2,tensor=2"),
}


@pytest.mark.parametrize("saved_by", PLACES)
def test_checkpoints_move_between_modes_and_meshes(tmp_path, saved_by):
    kernel = jnp.arange(128, dtype=jnp.float32).reshape(16, 8)
    params = {"policy": {"lm_head": {"kernel": kernel}, "norm": {"scale": jnp.ones(16)}}}
    state = make_state(1, 1)._replace(params=params, opt_state={"mu": params})
    with Checkpoints(tmp_path, 2) as checkpoints:
        checkpoints.save(1, PLACES[saved_by]().put(state), {})
    for name, place in PLACES.items():
        like = place().put(jax.tree.map(jnp.zeros_like, state))
        found = restored(tmp_path, like=like)
        assert_equal_bits(found, state)
        shard = found.opt_state["mu"]["policy"]["lm_head"]["kernel"].addressable_shards[0].data.shape
        assert shard == {"one": (16, 8), "pmap": (16, 8), "fsdp": (4, 8), "tensor": (8, 4)}[name]


def with_layers(parallel, in_stacks, numbers=1.0):
    """A state on the devices whose policy has three layers, stacked or not; as checkpoints have it, they are not."""
    kernels = numbers * jnp.arange(3 * 128, dtype=jnp.float32).reshape(3, 16, 8)
    layers = {str(i): {"attention": {"query_key_value": {"kernel": kernels[i]}}} for i in range(3)}
    params = {"policy": {"trunk": {"layers": layers}, "norm": {"scale": jnp.ones(16)}}}
    params = stacks.stacked(params) if in_stacks else params
    return parallel.put(make_state(1, 1)._replace(params=params, opt_state={"mu": params}))


@pytest.mark.parametrize("saved_by", PLACES)
def test_stacked_layers_are_saved_each_for_itself_and_restored_as_the_template_has_them(tmp_path, saved_by):
    with Checkpoints(tmp_path, 2) as checkpoints:
        checkpoints.save(1, with_layers(PLACES[saved_by](), in_stacks=True), {})
    params, _, _ = Checkpoints(tmp_path, 2).restore_params(1, no_warning)
    assert list(params["policy"]["trunk"]["layers"]) == ["0", "1", "2"]
    for place in PLACES.values():
        for in_stacks in (True, False):
            expected = with_layers(place(), in_stacks)
            found = restored(tmp_path, like=with_layers(place(), in_stacks, numbers=0.0))
            assert_equal_bits(found, expected)
            assert jax.tree.map(lambda x: x.sharding, found) == jax.tree.map(lambda x: x.sharding, expected)


def test_saving_stacked_layers_is_not_disturbed_by_an_update_that_takes_over_their_memory(tmp_path):
    parallel = PLACES["one"]()
    overwrite = parallel.map(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), (None,), None, donate=(0,))
    large = {"layers": {"all": {"kernel": jnp.arange(3 << 18, dtype=jnp.float32).reshape(3, 1 << 18)}}}
    state = make_state(0)._replace(params=large, opt_state={"mu": jnp.zeros(1)}, controls=None)
    expected = stacks.unstacked(jax.device_get(large))
    overwrite(parallel.put(jax.tree.map(jnp.array, large)))
    with Checkpoints(tmp_path, 2) as checkpoints:
        now = parallel.put(jax.tree.map(lambda x: jnp.array(x, copy=True), state))
        checkpoints.save(1, now, {})
        assert float(overwrite(now.params)["layers"]["all"]["kernel"][0, 0]) == -1
        assert_equal_bits(checkpoints.restore_params(1, no_warning)[0], expected)


@pytest.mark.parametrize("saved_rows", [True, False])
@pytest.mark.parametrize("wanted_rows", [True, False])
def test_restore_takes_another_sharding_than_that_of_the_save(tmp_path, saved_rows, wanted_rows):
    """Rows split over four devices, or copies on two."""
    whole = {"kernel": jnp.arange(32, dtype=jnp.float32).reshape(8, 4)}
    state = make_state(1, 1)._replace(params=whole)
    four, two = DataParallel(), DataParallel(devices=jax.local_devices()[:2])
    placed = {True: four.put(whole, 0), False: two.put(whole)}
    with Checkpoints(tmp_path, 2) as checkpoints:
        checkpoints.save(1, state._replace(params=placed[saved_rows]), {})
    params = restored(tmp_path, like=state._replace(params=placed[wanted_rows])).params
    assert params["kernel"].sharding == placed[wanted_rows]["kernel"].sharding
    assert_equal_bits(params, whole)


def test_devices_share_the_writing_of_large_arrays_alone(tmp_path):
    """A part of each of hundreds of small arrays from each device takes more time than all of them from one."""
    state = make_state(0)
    state.params["policy"] |= {"small": jnp.zeros((8, 4)), "large": jnp.zeros((2048, 1024))}
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(1, DataParallel().put(state), META)
    base = {"driver": "file", "path": f"{tmp_path}/1/params/"}
    chunks = {}
    for name in ("small", "large"):
        place = {"driver": "ocdbt", "base": base, "path": f"policy.{name}/"}
        array = tensorstore.open({"driver": "zarr", "kvstore": place}).result()
        chunks[name] = array.chunk_layout.write_chunk.shape
    assert chunks == {"small": (8, 4), "large": (512, 1024)}


@pytest.mark.full
@pytest.mark.parametrize("num_devices", [1, 4])
def test_save_is_not_disturbed_by_an_update_that_takes_over_the_memory(tmp_path, num_devices):
    """On CPU a copy on the host may be the very memory of the device."""
    parallel = DataParallel(devices=jax.local_devices()[:num_devices])
    overwrite = parallel.map(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), (None,), None, donate=(0,))
    rng = np.random.default_rng(0)
    shapes = [(512, 512), (513, 3), (1 << 20,), (7,), ()] * 3
    params = {str(i): jnp.asarray(rng.normal(size=shape), jnp.float32) for i, shape in enumerate(shapes)}
    expected = jax.tree.map(lambda x: np.array(x, copy=True), params)
    overwrite(parallel.put(jax.tree.map(jnp.array, params)))  # compile it: the real one should come at once
    state = make_state(0)._replace(params=params, controls=None)
    with Checkpoints(tmp_path, 2) as checkpoints:
        for step in (1, 2, 3):
            now = parallel.put(jax.tree.map(lambda x: jnp.array(x, copy=True), state))
            checkpoints.save(step, now, {})
            for _ in range(3):
                now = overwrite(now)
            jax.block_until_ready(now)
            assert float(now.params["3"][0]) == -1
            assert_equal_bits(checkpoints.restore(state, no_warning).params, expected)


def test_latest_is_the_newest_of_those_kept(tmp_path):
    assert Checkpoints(tmp_path / "none", 2).latest is None
    assert not (tmp_path / "none").exists()
    saved(tmp_path, 2, 4, 10)  # 10 after 4: numbers, not names
    checkpoints = Checkpoints(tmp_path, 2)
    assert (checkpoints.latest, checkpoints.steps, checkpoints.best_step) == (10, [4, 10], None)
    assert names(tmp_path) == ["10", "4"]
    assert_equal_bits(restored(tmp_path), make_state(10, 10))


@pytest.mark.parametrize("keep", [1, pytest.param(3, marks=pytest.mark.full)])
def test_save_keeps_as_many_as_asked_for(tmp_path, keep):
    saved(tmp_path, 1, 2, 3, 4, keep=keep)
    assert names(tmp_path) == ["1", "2", "3", "4"][-keep:]


def test_save_takes_no_step_twice(tmp_path):
    saved(tmp_path, 3)
    with pytest.raises(ValueError, match="3 already exists"):
        saved(tmp_path, 3)
    assert_equal_bits(restored(tmp_path), make_state(3, 3))


# ------------------------------------------------------------------------------------------------------ the best one


def values_saved(folder, values, **settings):
    """Checkpoints 1, 2, ... with these values of the metric `eval/x`; None: a record without it."""
    with Checkpoints(folder, 1, "eval/x", **settings) as checkpoints:
        for step, value in enumerate(values, start=(len(checkpoints.steps) and max(checkpoints.steps) + 1) or 1):
            metrics = {} if value is None else {"eval/x": value}
            checkpoints.save(step, make_state(step, step), {}, metrics | {"loss": step})
    return Checkpoints(folder, 1, "eval/x", **settings)


@pytest.mark.parametrize(
    ("values", "settings", "kept", "best"),
    [
        ([0.1, 0.7, 0.3, 0.2], {}, [2, 4], 2),
        ([0.1, 0.7, 0.3, 0.2], {"greater_is_better": False}, [1, 4], 1),
        ([None, 0.2, None, None], {}, [2, 4], 2),
        ([0.5, None, 0.5, None], {}, [1, 4], 1),
        ([0.1, 0.2], {}, [2], 2),
        ([None, None, None], {}, [3], None),
        ([np.float32(0.5), float("nan"), float("inf"), np.array(0.25)], {}, [1, 4], 1),
    ],
    ids=["highest", "lowest", "not in every record", "first of equals", "latest", "never", "no number"],
)
def test_save_keeps_the_best_beside_the_latest(tmp_path, values, settings, kept, best):
    checkpoints = values_saved(tmp_path, values, **settings)
    assert (checkpoints.steps, checkpoints.best_step) == (kept, best)


def test_the_best_one_is_remembered_by_a_resumed_run(tmp_path):
    values_saved(tmp_path, [0.1, 0.7, 0.3])
    assert values_saved(tmp_path, [0.2, 0.6]).steps == [2, 5]
    checkpoints = values_saved(tmp_path, [0.8, 0.1])
    assert (checkpoints.steps, checkpoints.best_step) == ([6, 7], 6)


def test_a_damaged_checkpoint_is_not_the_best_one(tmp_path):
    values_saved(tmp_path, [0.7, 0.1])
    (tmp_path / "1" / "meta" / "metadata").write_text('{"metrics": {"eval/x": 9}}')
    assert Checkpoints(tmp_path, 1, "eval/x").best_step == 2


# ---------------------------------------------------------------------------------------------------- parameters only


def test_restore_params_reads_neither_template_nor_optimizer(tmp_path):
    with Checkpoints(tmp_path, 2) as checkpoints:
        for step in (2, 4):
            state = DataParallel().put(make_state(step, step))
            checkpoints.save(step, state, META, {"loss": np.float32(0.5), "bad": float("nan")})
    for item in ("opt_state", "rest"):
        shutil.rmtree(tmp_path / "2" / item)
        shutil.rmtree(tmp_path / "4" / item)
    for wanted, step in ((None, 4), (2, 2), (4, 4)):
        params, meta, found = Checkpoints(tmp_path, 2).restore_params(wanted, no_warning)
        assert found == step
        assert_equal_bits(params, make_state(step, step).params)
        assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(params))
        expected = json.loads(json.dumps(META)) | {"metrics": {"loss": 0.5, "bad": None}}
        assert meta == expected


def test_restore_params_names_the_steps_there_are(tmp_path):
    saved(tmp_path, 2, 4)
    with pytest.raises(DataError, match=r"step: expected one of \[2, 4\] in .*, got 3"):
        Checkpoints(tmp_path, 2).restore_params(3, no_warning)
    with pytest.raises(DataError, match=r"checkpoints: expected at least one undamaged in .*none, got none"):
        Checkpoints(tmp_path / "none", 2).restore_params(None, no_warning)


def test_restore_params_passes_over_a_damaged_checkpoint_unless_it_is_asked_for(tmp_path):
    saved(tmp_path, 2, 4)
    (tmp_path / "4" / "params" / "_METADATA").unlink()
    said = []
    params, _, step = Checkpoints(tmp_path, 2).restore_params(None, said.append)
    assert step == 2 and len(said) == 1
    assert_equal_bits(params, make_state(2, 2).params)
    with pytest.raises(DataError, match=r"step: expected an undamaged checkpoint in .*, got 4: params/_METADATA"):
        Checkpoints(tmp_path, 2).restore_params(4, no_warning)


# --------------------------------------------------------------------------------------------------------- bad folders


def test_restore_without_a_checkpoint_names_the_folder(tmp_path):
    with pytest.raises(DataError, match=r"checkpoints: expected at least one undamaged in .*, got none"):
        restored(tmp_path)


def half_written(folder):
    """What a kill in the middle of a save leaves behind."""
    partial = folder / "6.orbax-checkpoint-tmp"
    shutil.copytree(folder / "3", partial)
    shutil.rmtree(partial / "params")
    (partial / "params.orbax-checkpoint-tmp").mkdir()


def stray_files(folder):
    (folder / "7").write_text("not a checkpoint")
    (folder / "notes").mkdir()


@pytest.mark.parametrize("leave", [half_written, stray_files])
def test_restore_passes_over_what_is_no_checkpoint(tmp_path, leave):
    saved(tmp_path, 3)
    leave(tmp_path)
    with Checkpoints(tmp_path, 2) as checkpoints:
        assert (checkpoints.latest, checkpoints.steps) == (3, [3])
        assert_equal_bits(checkpoints.restore(make_state(99), no_warning), make_state(3, 3))
        checkpoints.save(7, make_state(7, 7), {})  # and it does not stop the run from going on
    assert not list(tmp_path.glob("*tmp*"))
    assert_equal_bits(restored(tmp_path), make_state(7, 7))


def flipped(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def gone(path, rng):
    path.unlink()


def in_use(checkpoint):
    """Orbax writes two more files, which are not read; they may be damaged without harm."""
    return [path for path in files_of(checkpoint) if path.parent != checkpoint or path.name == "checksums.json"]


@pytest.mark.parametrize("damage", quick_first(1, [flipped, cut, gone]))
def test_restore_uses_the_one_before_a_damaged_checkpoint_whichever_file_it_is(tmp_path, damage, capfd):
    saved(tmp_path, 3, 5)
    rng, expected = random.Random(damage.__name__), make_state(3, 3)
    paths = in_use(tmp_path / "5")
    assert {path.relative_to(tmp_path / "5").parts[0] for path in paths} == {
        *("params", "opt_state", "rest", "meta", "checksums.json")
    }
    for path in paths:
        whole, said = path.read_bytes(), []
        damage(path, rng)
        assert_equal_bits(restored(tmp_path, said.append), expected)
        path.write_bytes(whole)
        (line,) = said
        assert "\n" not in line
        assert line.startswith(f"{tmp_path} holds damaged checkpoints: 5 (") and line.endswith("; using 3")
        if path.name != "checksums.json":  # damaged itself, it may blame another file
            assert path.relative_to(tmp_path / "5").as_posix() in line
    assert_equal_bits(restored(tmp_path), make_state(5, 5))
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
def test_every_byte_of_the_checksums_is_checked(tmp_path):
    saved(tmp_path, 3)
    path = tmp_path / "3" / "checksums.json"
    whole, checkpoints = path.read_bytes(), Checkpoints(tmp_path, 2)
    state = make_state(3, 3)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(DataError, match=r"got 3 \(checksums\.json is"):
            checkpoints.restore(state, no_warning)
    path.write_bytes(whole)
    checkpoints.restore(state, no_warning)


def emptied(folder):
    for path in files_of(folder):
        path.unlink()


def replaced(folder):
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes.txt").write_text("not a checkpoint")


def without_checksums(folder):
    (folder / "checksums.json").write_text("{}")


def without_optimizer(folder):
    shutil.rmtree(folder / "opt_state")


@pytest.mark.parametrize("damage", [emptied, replaced, without_checksums, without_optimizer])
@pytest.mark.parametrize("restore_first", [True, False])
def test_a_damaged_checkpoint_does_not_block_its_step(tmp_path, damage, restore_first):
    saved(tmp_path, 3, 5)
    damage(tmp_path / "5")
    said = []
    with Checkpoints(tmp_path, 2) as checkpoints:
        if restore_first:
            assert_equal_bits(checkpoints.restore(make_state(99), said.append), make_state(3, 3))
            assert len(said) == 1
            assert checkpoints.steps == [3, 5]  # only `save` changes the folder
        checkpoints.save(5, make_state(6, 5), {})
        checkpoints.wait()
        assert checkpoints.steps == [3, 5]
        checkpoints.save(7, make_state(7, 7), {})
    assert names(tmp_path) == ["5", "5.damaged", "7"]
    shutil.rmtree(tmp_path / "7")
    assert_equal_bits(restored(tmp_path), make_state(6, 5))


def test_a_checkpoint_damaged_after_it_was_written_does_not_block_its_step(tmp_path):
    with Checkpoints(tmp_path, 2) as checkpoints:
        for step in (3, 5):
            checkpoints.save(step, make_state(step, step), {})
        checkpoints.wait()
        without_optimizer(tmp_path / "5")
        assert int(checkpoints.restore(make_state(99), lambda _: None).step) == 3
        checkpoints.save(5, make_state(6, 5), {})
    assert names(tmp_path) == ["3", "5", "5.damaged"]
    assert_equal_bits(restored(tmp_path), make_state(6, 5))


def test_damaged_checkpoints_do_not_push_out_good_ones(tmp_path):
    saved(tmp_path, 3, 5, 7, keep=3)
    for step in (5, 7):
        without_optimizer(tmp_path / str(step))
    with Checkpoints(tmp_path, 2) as checkpoints:
        said = []
        assert int(checkpoints.restore(make_state(99), said.append).step) == 3
        (line,) = said
        assert "damaged checkpoints: 7 (" in line and ", 5 (" in line and line.endswith("; using 3")
        checkpoints.save(4, make_state(4, 4), {})
    assert names(tmp_path) == ["3", "4", "5.damaged", "7.damaged"]


def test_restore_says_so_where_all_checkpoints_are_damaged(tmp_path):
    saved(tmp_path, 3, 5)
    for step in (3, 5):
        without_optimizer(tmp_path / str(step))
    with pytest.raises(DataError, match=r"expected at least one undamaged in .*, got 5 \(.*\), 3 \(opt_state/.*\)"):
        restored(tmp_path)


WIDER = make_state(1, 1, width=4)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (
            WIDER,
            r"params\.policy\.layers\.0\.kernel: expected float32 \[3, 4\] as in this run, "
            r"got float32 \[3, 2\] in checkpoint 5 of ",
        ),
        (
            make_state(1)._replace(params={"policy": make_state(1).params["policy"]}),
            r"params\.value\.score\.bias: expected no such array as in this run, got float32 \[3\]",
        ),
        (make_state(1)._replace(controls=None), r"rest\.controls\.\w+: expected no such array .*, got \w+ \[\]"),
        (
            make_state(1)._replace(params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), make_state(1).params)),
            r"params\.policy\.layers\.0\.kernel: expected bfloat16 \[3, 2\] .*, got float32 \[3, 2\]",
        ),
    ],
    ids=["wider", "no value model", "supervised", "another dtype"],
)
def test_a_checkpoint_of_another_model_is_not_damage(tmp_path, like, message):
    saved(tmp_path, 3, 5)
    before = contents(tmp_path)
    with pytest.raises(DataError, match=message):
        restored(tmp_path, like=like)
    assert contents(tmp_path) == before


# ---------------------------------------------------------------------------------------------------------- full disk

FULL_DISK = """
import os, resource, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import jax
from tests.run import test_checkpoints as here
from jaxppo.run import cli
cli.set_up_jax()
folder, limit, when = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
checkpoints = here.Checkpoints(folder, 2)
checkpoints.save(1, here.make_state(1, 1), {})
checkpoints.save(2, here.make_state(2, 2), {})
checkpoints.wait()
state = here.make_state(3, 3, width=1000)
jax.config.update("jax_enable_compilation_cache", False)  # its files would not fit either
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    checkpoints.save(3, state, {})
    if when == "save":
        checkpoints.save(4, state, {})
    elif when == "check":
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            checkpoints.check()
            time.sleep(0.1)
    else:
        getattr(checkpoints, when)()
except here.DataError as error:
    print(error)
else:
    print("no error")
checkpoints.close()
print(*sorted(os.listdir(folder)), flush=True)
os._exit(0)  # orbax's threads of the failed write can keep the process for minutes
"""


def run_full_disk(folder, limit, when):
    """Save checkpoints 1 and 2, and 3 while no file may grow beyond `limit` bytes; returns the lines it printed."""

    command = [sys.executable, "-c", FULL_DISK, str(ROOT), folder, str(limit), when]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.full
@pytest.mark.parametrize(("limit", "when"), [(0, "wait"), (700, "save"), (700, "check"), (9000, "close")])
def test_a_full_disk_is_one_error_and_leaves_the_earlier_checkpoints(tmp_path, limit, when):
    error, listing = run_full_disk(tmp_path, limit, when)
    assert error == (
        f"checkpoints: expected to write checkpoint 3 into {tmp_path}, got: File too large; "
        "earlier checkpoints are as they were, the latest is 2"
    )
    assert listing.split()[:2] == ["1", "2"] and "3" not in listing.split()
    with Checkpoints(tmp_path, 2) as checkpoints:  # once there is room again
        assert_equal_bits(checkpoints.restore(make_state(99), no_warning), make_state(2, 2))
        checkpoints.save(3, make_state(3, 3), {})
    assert names(tmp_path) == ["2", "3"]
    assert_equal_bits(restored(tmp_path), make_state(3, 3))


@pytest.mark.full
def test_the_emulated_full_disk_has_room_for_small_files(tmp_path):
    """The test above is about the size of the files, not about the emulation."""
    assert run_full_disk(tmp_path, 1 << 20, "wait") == ["no error", "2 3"]
