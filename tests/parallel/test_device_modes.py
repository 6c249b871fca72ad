"""Results do not depend on devices, processes or modes: eight devices, and two processes of four, against one."""

import os
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

from tests import ROOT
from tests.commands import free_port, outputs_of, started
from tests.device_modes import TOKENS

SCRIPT = ROOT / "tests" / "device_modes.py"
MESHES = ["pmap", "shard_map", "fsdp", "fsdp:fsdp=4,tensor=2", "fsdp:data=2,fsdp=2,tensor=2"]
SPLIT = MESHES[-1]
COPIED = "rloo:fsdp:fsdp=2,tensor=4"
"""More devices along `tensor` than the model has heads of keys and values."""
EIGHT = [f"ppo:{MESHES[-2]}", COPIED, f"lora:{SPLIT}"]
TWO_BY_FOUR = [f"rloo:{SPLIT}", "rloo:pmap"]
if os.environ.get("JAXPPO_ALL_MODES"):  # a quarter of an hour
    EIGHT = TWO_BY_FOUR = [f"{algorithm}:{mesh}" for algorithm in ("ppo", "rloo", "lora") for mesh in MESHES]


def run_script(out: Path, cases: list[str], num_devices: int, processes: int = 1) -> dict:
    address = f"127.0.0.1:{free_port()}"
    extra = [["--process", f"{i}/{processes}", address] if processes > 1 else [] for i in range(processes)]
    with started([[SCRIPT, out, *cases, *args] for args in extra], num_devices) as running:
        outputs = outputs_of(running)
    assert [process.returncode for process in running] == [0] * processes, "\n".join(outputs)[-5000:]
    return pickle.loads(out.read_bytes())


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """One device, and all eight of the same process."""
    cases = ["ppo:one", "rloo:one", "lora:one"]
    return run_script(tmp_path_factory.mktemp("one") / "out", [*cases, *EIGHT], num_devices=8)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return run_script(tmp_path_factory.mktemp("two") / "out", TWO_BY_FOUR, num_devices=4, processes=2)


def check(found: dict, expected: dict) -> None:
    assert found["stats"].keys() == expected["stats"].keys()
    for name, value in expected["stats"].items():
        np.testing.assert_allclose(found["stats"][name], value, rtol=0, atol=1e-5, err_msg=name)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5), found["params"], expected["params"])
    np.testing.assert_array_equal(found["completions"][0], expected["completions"][0])
    for after, stats in zip(found["whole"], expected["whole"], strict=True):
        for name, value in stats.items():
            np.testing.assert_allclose(after[name], value, rtol=0, atol=1e-3, err_msg=name)


@pytest.mark.full
@pytest.mark.parametrize("case", EIGHT)
def test_eight_devices_compute_what_one_does(one_device, case):
    expected = one_device[f"{case.split(':')[0]}:one"]
    assert np.ptp([stats["objective/kl"] for stats in expected["whole"]]) > 0.01  # updates that do nothing would pass
    check(one_device[case], expected)


@pytest.mark.full
def test_no_token_of_a_padded_vocabulary_is_sampled(one_device):
    assert np.max(one_device["rloo:one"]["completions"]) < TOKENS


@pytest.mark.full
@pytest.mark.parametrize("case", TWO_BY_FOUR)
def test_two_processes_compute_what_one_device_does(one_device, two_processes, case):
    check(two_processes[case], one_device[f"{case.split(':')[0]}:one"])


@pytest.mark.full
def test_devices_hold_their_share_of_parameters_and_optimizer(one_device, two_processes):
    assert two_processes["rloo:pmap"]["device_bytes"] == one_device["rloo:one"]["device_bytes"]
    whole = one_device["ppo:one"]["device_bytes"]
    # Norms, biases and scalars are everywhere: in a model of this size they count.
    assert one_device[f"ppo:{MESHES[-2]}"]["device_bytes"] < 0.3 * whole
