"""Checkpoints come back bit by bit, only whole ones are used, and whatever goes wrong leaves the earlier ones alone."""

import json
import os
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

from jaxppo.errors import DataError
from jaxppo.parallel import stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.run import checksums, cli
from jaxppo.run.checkpoints import ITEMS, Checkpoints
from jaxppo.types import TrainState
from tests.commands import run_code
from tests.run.states import META, assert_equal_bits, make_state, no_warning, restored, saved


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def files_of(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in files_of(folder)}


@pytest.fixture(scope="module")
def two_saved(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("two") / "checkpoints", 3, 5)


@pytest.fixture
def folder(two_saved, tmp_path):
    """A copy of a folder with checkpoints 3 and 5."""
    return shutil.copytree(two_saved, tmp_path / "checkpoints")


def test_restore_gives_back_every_bit_and_resume_frees_what_it_replaces(folder, tmp_path):
    state = restored(folder)
    assert isinstance(state, TrainState) and int(state.step) == int(state.controls.bad_updates) == 5
    assert_equal_bits(state, make_state(5, 5))
    before = make_state(99)
    assert_equal_bits(Checkpoints(folder, 2).resume(before, no_warning)[0], state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((before.params, before.opt_state)))
    # That of supervised training has no controls.
    plain = make_state(3)._replace(controls=None)
    with Checkpoints(tmp_path / "plain", 2) as checkpoints:
        checkpoints.save(3, plain, {})
    assert_equal_bits(restored(tmp_path / "plain", like=make_state(99)._replace(controls=None)), plain)


PLACES = {
    "two": lambda: DataParallel(devices=jax.local_devices()[:2]),
    "pmap": lambda: DataParallel("pmap"),
    "fsdp": lambda: DataParallel("fsdp"),
    "tensor": lambda: DataParallel("fsdp", mesh="fsdp=2,tensor=2"),
}


def with_layers(parallel, in_stacks, numbers=1.0):
    """A state on the devices whose policy has three layers, stacked or not; as checkpoints have it, they are not."""
    kernels = numbers * jnp.arange(3 * 128, dtype=jnp.float32).reshape(3, 16, 8)
    layers = {str(i): {"attention": {"query_key_value": {"kernel": kernels[i]}}} for i in range(3)}
    head = {"kernel": numbers * jnp.arange(128, dtype=jnp.float32).reshape(16, 8)}
    params = {"policy": {"trunk": {"layers": layers}, "lm_head": head, "norm": {"scale": jnp.ones(16)}}}
    params = stacks.stack(params) if in_stacks else params
    return parallel.put(make_state(1, 1)._replace(params=params, opt_state={"mu": params}))


@pytest.mark.parametrize("saved_by", PLACES)
def test_checkpoints_move_between_modes_and_meshes_and_hold_each_layer_for_itself(tmp_path, saved_by):
    with Checkpoints(tmp_path, 2) as checkpoints:
        checkpoints.save(1, with_layers(PLACES[saved_by](), in_stacks=True), {})
    params, _, _ = Checkpoints(tmp_path, 2).restore_params(1, no_warning)
    assert list(params["policy"]["trunk"]["layers"]) == ["0", "1", "2"]
    for number, (name, place) in enumerate(PLACES.items()):
        # Each place restores with stacked and with single layers, of checkpoints that different places have saved.
        in_stacks = (number + list(PLACES).index(saved_by)) % 2 == 0
        expected = with_layers(place(), in_stacks)
        found = restored(tmp_path, like=with_layers(place(), in_stacks, numbers=0.0))
        assert_equal_bits(found, expected)
        assert jax.tree.map(lambda x: x.sharding, found) == jax.tree.map(lambda x: x.sharding, expected)
        shard = found.opt_state["mu"]["policy"]["lm_head"]["kernel"].addressable_shards[0].data.shape
        assert shard == {"fsdp": (4, 8), "tensor": (8, 4)}.get(name, (16, 8))


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


@pytest.mark.parametrize("num_devices", [1, 4])
def test_save_is_not_disturbed_by_an_update_that_takes_over_the_memory(tmp_path, num_devices):
    """On CPU a copy on the host may be the very memory of the device."""
    parallel = DataParallel(devices=jax.local_devices()[:num_devices])
    overwrite = parallel.map(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), (None,), None, donate=(0,))
    params = {
        "layers": {"all": {"kernel": jnp.arange(3 << 18, dtype=jnp.float32).reshape(3, 1 << 18)}},
        "embedding": jnp.arange(1 << 20, dtype=jnp.float32),
        "bias": jnp.arange(7, dtype=jnp.float32),
    }
    expected = stacks.unstack(jax.device_get(params))
    state = make_state(0)._replace(params=params, opt_state={"mu": jnp.zeros(1)}, controls=None)
    overwrite(parallel.put(jax.tree.map(jnp.array, params)))  # compile it: the real one should come at once
    with Checkpoints(tmp_path, 2) as checkpoints:
        for step in (1, 2):
            now = parallel.put(jax.tree.map(lambda x: jnp.array(x, copy=True), state))
            checkpoints.save(step, now, {})
            now = overwrite(now.params)
            assert float(now["layers"]["all"]["kernel"][0, 0]) == float(now["embedding"][0]) == -1
            assert_equal_bits(checkpoints.restore_params(step, no_warning)[0], expected)


def test_latest_is_the_newest_of_those_kept_and_no_step_is_saved_twice(tmp_path):
    assert Checkpoints(tmp_path / "none", 2).latest is None
    assert not (tmp_path / "none").exists()
    saved(tmp_path, 2, 4, 10)  # 10 after 4: numbers, not names
    checkpoints = Checkpoints(tmp_path, 2)
    assert (checkpoints.latest, checkpoints.steps, checkpoints.best_step) == (10, [4, 10], None)
    assert names(tmp_path) == ["10", "4"]
    with pytest.raises(ValueError, match="10"):
        saved(tmp_path, 10)
    assert_equal_bits(restored(tmp_path), make_state(10, 10))


def values_saved(folder, values, **settings):
    """Checkpoints 1, 2, ... with these values of the metric `eval/x`; None: a record without it."""
    with Checkpoints(folder, 1, "eval/x", **settings) as checkpoints:
        for step, value in enumerate(values, start=max(checkpoints.steps, default=0) + 1):
            metrics = {} if value is None else {"eval/x": value}
            checkpoints.save(step, make_state(step, step), {"metrics": metrics | {"loss": step}})
    return Checkpoints(folder, 1, "eval/x", **settings)


@pytest.mark.parametrize(
    ("values", "settings", "kept", "best"),
    [
        ([0.1, 0.7, 0.3], {"greater_is_better": False}, [1, 3], 1),
        ([0.5, None, 0.5, None], {}, [1, 4], 1),
        ([None, None], {}, [2], None),
        ([np.array(0.5), float("nan"), float("inf")], {}, [1, 3], 1),
    ],
    ids=["lowest", "first of equals", "never", "no number"],
)
def test_save_keeps_the_best_beside_the_latest(tmp_path, values, settings, kept, best):
    checkpoints = values_saved(tmp_path, values, **settings)
    assert (checkpoints.steps, checkpoints.best_step) == (kept, best)


def test_the_best_one_is_remembered_by_a_resumed_run_unless_it_is_damaged(tmp_path):
    assert values_saved(tmp_path, [0.1, 0.7, 0.3]).steps == [2, 3]
    assert values_saved(tmp_path, [0.2, 0.6]).steps == [2, 5]
    checkpoints = values_saved(tmp_path, [0.8, 0.1])
    assert (checkpoints.steps, checkpoints.best_step) == ([6, 7], 6)
    (tmp_path / "6" / "meta" / "metadata").write_text('{"metrics": {"eval/x": 9}}')
    assert Checkpoints(tmp_path, 1, "eval/x").best_step == 7


def test_restore_params_reads_neither_template_nor_optimizer(tmp_path):
    with Checkpoints(tmp_path, 2) as checkpoints:
        for step in (2, 4):
            state = DataParallel().put(make_state(step, step))
            checkpoints.save(step, state, META | {"metrics": {"loss": np.float32(0.5), "bad": float("nan")}})
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


def test_restore_params_passes_over_a_damaged_checkpoint_unless_it_is_asked_for(folder):
    with pytest.raises(DataError, match=r"^step: .*\[3, 5\].* 4$"):
        Checkpoints(folder, 2).restore_params(4, no_warning)
    (folder / "5" / "params" / "_METADATA").unlink()
    warnings = []
    params, _, step = Checkpoints(folder, 2).restore_params(None, warnings.append)
    assert step == 3 and len(warnings) == 1
    assert_equal_bits(params, make_state(3, 3).params)
    with pytest.raises(DataError, match=r"^step: .* 5: params/_METADATA"):
        Checkpoints(folder, 2).restore_params(5, no_warning)


def test_restore_passes_over_what_is_no_checkpoint(folder):
    partial = folder / "6.orbax-checkpoint-tmp"  # what a kill in the middle of a save leaves
    shutil.copytree(folder / "3", partial)
    shutil.rmtree(partial / "params")
    (partial / "params.orbax-checkpoint-tmp").mkdir()
    (folder / "7").write_text("not a checkpoint")
    (folder / "notes").mkdir()
    with Checkpoints(folder, 2) as checkpoints:
        assert (checkpoints.latest, checkpoints.steps) == (5, [3, 5])
        assert_equal_bits(checkpoints.restore(make_state(99), no_warning)[0], make_state(5, 5))
        checkpoints.save(7, make_state(7, 7), {})  # and it does not stop the run from going on
    assert not list(folder.glob("*tmp*"))
    assert_equal_bits(restored(folder), make_state(7, 7))


def flipped(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def gone(path, rng):
    path.unlink()


@pytest.mark.parametrize("harm", [flipped, cut, gone])
def test_damage_is_found_whichever_file_it_is(folder, harm):
    checkpoint, rng = folder / "5", random.Random(harm.__name__)
    # Orbax writes two more files, which are not read; they may be damaged without harm.
    paths = [path for path in files_of(checkpoint) if path.parent != checkpoint or path.name == "checksums.json"]
    parts = {path.relative_to(checkpoint).parts[0] for path in paths}
    assert parts == {"params", "opt_state", "rest", "meta", "checksums.json"}
    for path in paths:
        whole = path.read_bytes()
        harm(path, rng)
        found = checksums.damage(checkpoint, ITEMS)
        path.write_bytes(whole)
        assert found is not None, path
        if path.name != "checksums.json":  # damaged itself, it may blame another file
            assert path.relative_to(checkpoint).as_posix() in found
    assert checksums.damage(checkpoint, ITEMS) is None
    path = checkpoint / "checksums.json"
    whole = path.read_bytes()
    for at in range(0, len(whole), 13) if harm is flipped else ():  # a bit of the checksums, wherever it is
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        assert "checksums.json" in checksums.damage(checkpoint, ()), at


@pytest.mark.parametrize("item", ["params", "opt_state", "rest", "meta", "checksums.json"])
def test_restore_uses_the_one_before_a_damaged_checkpoint(folder, item, capfd):
    path = folder / "5" / item
    path = max(files_of(path), key=lambda file: file.stat().st_size) if path.is_dir() else path
    flipped(path, random.Random(item))
    warnings = []
    assert_equal_bits(restored(folder, warnings.append), make_state(3, 3))
    (line,) = warnings
    assert "\n" not in line and str(folder) in line and " 5 (" in line and line.endswith(" 3")
    assert item in line or item == "checksums.json"
    assert capfd.readouterr() == ("", "")


def without_optimizer(checkpoint):
    shutil.rmtree(checkpoint / "opt_state")


def replaced(checkpoint):
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    (checkpoint / "notes.txt").write_text("not a checkpoint")


@pytest.mark.parametrize(
    ("harm", "of_this_process", "restore_first"),
    [(without_optimizer, False, True), (without_optimizer, True, True), (replaced, False, False)],
)
def test_a_damaged_checkpoint_does_not_block_its_step(folder, harm, of_this_process, restore_first):
    with Checkpoints(folder, 2) as checkpoints:
        if of_this_process:
            shutil.rmtree(folder / "5")
            checkpoints.save(5, make_state(5, 5), {})
            checkpoints.wait()
        harm(folder / "5")
        if restore_first:
            assert_equal_bits(checkpoints.restore(make_state(99), lambda _: None)[0], make_state(3, 3))
            assert checkpoints.steps == [3, 5]  # only `save` changes the folder
        checkpoints.save(5, make_state(6, 5), {})
        checkpoints.wait()
        assert checkpoints.steps == [3, 5]
        checkpoints.save(7, make_state(7, 7), {})
    assert names(folder) == ["5", "5.damaged", "7"]
    shutil.rmtree(folder / "7")
    assert_equal_bits(restored(folder), make_state(6, 5))


def test_damaged_checkpoints_do_not_push_out_good_ones(tmp_path):
    saved(tmp_path, 3, 5, 7, keep=3)
    for step in (5, 7):
        without_optimizer(tmp_path / str(step))
    with Checkpoints(tmp_path, 2) as checkpoints:
        warnings = []
        assert int(checkpoints.restore(make_state(99), warnings.append)[0].step) == 3
        (line,) = warnings
        assert " 7 (" in line and ", 5 (" in line and line.endswith(" 3")
        checkpoints.save(4, make_state(4, 4), {})
    assert names(tmp_path) == ["3", "4", "5.damaged", "7.damaged"]


def test_without_an_undamaged_checkpoint_the_folder_and_the_damage_are_named(folder, tmp_path):
    with pytest.raises(DataError, match=f"{tmp_path / 'none'}, "):
        restored(tmp_path / "none")
    with pytest.raises(DataError, match=f"{tmp_path / 'none'}, "):
        Checkpoints(tmp_path / "none", 2).restore_params(None, no_warning)
    for step in (3, 5):
        without_optimizer(folder / str(step))
    with pytest.raises(DataError, match=rf"{folder}, .*5 \(opt_state/.*\), 3 \(opt_state/.*\)"):
        restored(folder)


def test_a_checkpoint_of_another_model_is_not_damage(two_saved):
    before, state = contents(two_saved), make_state(1)
    halved = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.params)
    for like, message in (
        (make_state(1, width=4), r"^params\.policy\.layers\.0\.kernel: .*\[3, 4\].*\[3, 2\] in checkpoint 5 "),
        (state._replace(params={"policy": state.params["policy"]}), r"^params\.value\.score\.bias: .*\[3\]"),
        (state._replace(controls=None), r"^rest\.controls\.\w+: "),
        (state._replace(params=halved), r"^params\.policy\.layers\.0\.kernel: .*bfloat16.*float32"),
    ):
        with pytest.raises(DataError, match=message):
            restored(two_saved, like=like)
    assert contents(two_saved) == before


FULL_DISK = """
import os, resource, sys, time
from pathlib import Path
import jax
from jaxppo.errors import DataError
from jaxppo.run import cli
from jaxppo.run.checkpoints import Checkpoints
from tests.run.states import make_state

def fill_up(folder, limit, when):
    checkpoints = Checkpoints(folder, 2)
    for step in (1, 2):
        checkpoints.save(step, make_state(step, step), {})
    checkpoints.wait()
    state = make_state(3, 3, width=1000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    message = "no error"
    try:
        checkpoints.save(3, state, {})
        end = time.monotonic() + 60
        while when == "check" and time.monotonic() < end:
            checkpoints.check()
            time.sleep(0.1)
        checkpoints.wait()
    except DataError as error:
        message = str(error)
    checkpoints.close()
    return message

cli.quiet_orbax()
cli.set_up_jax()
jax.config.update("jax_enable_compilation_cache", False)  # its files would not fit either
folder, limit, when = Path(sys.argv[1]), *sys.argv[2:]
printed = "|".join([fill_up(folder, int(limit), when), *sorted(os.listdir(folder))])
# Only now: with room again, orbax's threads of the failed write could finish it.
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(printed, flush=True)
os._exit(0)  # these threads can keep the process for minutes
"""
"""Saves checkpoints 1 and 2, and 3 while no file may grow beyond a number of bytes; prints the error and the files."""


@pytest.mark.full
def test_a_full_disk_is_one_error_and_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv(cli.SHOW_ORBAX, "1")
    assert "Traceback" in run_code(FULL_DISK, tmp_path / "shown", 9000, "wait")[2]
    monkeypatch.delenv(cli.SHOW_ORBAX)
    for limit, when in ((0, "wait"), (700, "check"), (9000, "wait"), (1048576, "wait")):
        folder = tmp_path / str(limit)
        status, out, err = run_code(FULL_DISK, folder, limit, when)
        assert (status, err) == (0, "")
        error, *listing = out.strip().split("|")
        if limit == 1048576:  # the others are about the size of the files, not about the emulation
            assert (error, *listing) == ("no error", "2", "3")
            continue
        assert error.startswith("checkpoints: ") and str(folder) in error and error.endswith(" 2"), limit
        assert "File too large" in error
        assert listing[:2] == ["1", "2"] and "3" not in listing
        with Checkpoints(folder, 2) as checkpoints:  # once there is room again
            assert_equal_bits(checkpoints.restore(make_state(99), no_warning)[0], make_state(2, 2))
            checkpoints.save(3, make_state(3, 3), {})
        assert names(folder) == ["2", "3"]
        assert_equal_bits(restored(folder), make_state(3, 3))
