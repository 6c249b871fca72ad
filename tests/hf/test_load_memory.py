"""How much memory a process takes to load a model: what its devices hold, and no second copy of the folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxppo import hf
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from tests.torch_models import random_params

# Prints, in bytes: the peak of resident memory while a folder is loaded, over that before; what the devices then hold.
LOAD = """
import json, os, re, sys
from pathlib import Path

folder, dtype, devices = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxppo import hf

def resident(key):
    return 1024 * int(re.search(rf"{key}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

mesh = Mesh(np.array(jax.devices()), ("parts",))

def split(path, shape):
    axes = [axis for axis, size in enumerate(shape) if size % devices == 0]
    return NamedSharding(mesh, PartitionSpec(*[None] * axes[0], "parts") if axes else PartitionSpec())

jax.block_until_ready(jax.numpy.ones(8) + 1)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
before = resident("VmRSS")
loaded = hf.load_model(folder, dtype=dtype, placement=None if devices == 1 else split)
jax.block_until_ready(loaded.params)
held = sum(shard.data.nbytes for leaf in jax.tree.leaves(loaded.params) for shard in leaf.addressable_shards)
print(json.dumps({"peak": resident("VmHWM") - before, "held": held}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """208 MB in three shards; the largest tensor has 64 MB."""
    config = GPTNeoXConfig(
        vocab_size=50304, hidden_size=640, num_hidden_layers=8, num_attention_heads=10, intermediate_size=2560
    )
    folder = tmp_path_factory.mktemp("memory") / "model"
    hf.save_pretrained(folder, config, random_params(config), dtype="bfloat16", max_shard_size="100MB")
    yield folder
    for file in folder.glob("*.safetensors"):
        file.unlink()


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize(("dtype", "devices"), [("float32", 1), ("auto", 8)])
def test_load_model_holds_no_second_copy_of_the_folder(folder, dtype, devices):
    shards = [file.stat().st_size for file in folder.glob("*.safetensors")]
    assert len(shards) == 3 and sum(shards) > 200e6
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), dtype, str(devices)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["held"] >= sum(shards) * (2 if dtype == "float32" else 1) * 0.99
    assert measured["peak"] - measured["held"] < 1.3 * max(shards)
