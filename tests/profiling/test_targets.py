"""What is published of accelerators is said once, and names mean what they say."""

import pytest

from jaxppo.errors import ConfigError
from jaxppo.profiling import targets


@pytest.mark.parametrize("name", targets.NAMES)
def test_a_name_says_how_many_devices_there_are(name):
    target = targets.find(name)
    number = int(name.rpartition("x" if target.platform == "gpu" else "-")[2])
    assert target.devices == (number // 2 if "v5p" in name else number)
    assert target.name == name and name.startswith(target.platform)


def test_a_topology_of_ones_own():
    assert targets.find("tpu:v5e:4x8")[2:5] == ("v5e:4x8", 32, 4)
    assert targets.find("tpu:v5p:2x2x2")[2:4] == ("v5p:2x2x2", 8)
    assert targets.find("gpu:h100:2x8")[2:5] == ("1x2x8", 16, 8)
    assert targets.find("tpu:v6e:1x1") == targets.find("tpu-v5e-1")._replace(
        name="tpu:v6e:1x1", chip=targets.CHIPS["v6e"], topology="v6e:1x1"
    )


@pytest.mark.parametrize(
    "name", ["", "h100", "tpu-v5e-3", "gpu:v5e:1x1", "gpu:h100:8", "gpu:h100:1x2x4", "tpu:v5e:0x2"]
)
def test_what_is_no_target_is_refused(name):
    with pytest.raises(ConfigError, match="target: expected"):
        targets.find(name)


@pytest.mark.parametrize(
    ("device_kind", "bfloat16", "float32"),
    [
        ("NVIDIA H100 PCIe", 756.5, 51.0),
        ("NVIDIA H200", 989.5, 67.0),
        ("NVIDIA A100 80GB PCIe", 312.0, 19.5),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6),
        ("Tesla V100-SXM2-16GB", 15.7, 15.7),
        ("TPU v5 lite", 197.0, 197.0 / 6),
        ("TPU v5", 459.0, 459.0 / 6),
        ("NVIDIA L40S", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
    ],
)
def test_peak_tflops_knows_the_device_by_its_name(device_kind, bfloat16, float32):
    assert targets.peak_tflops(device_kind, "bfloat16") == bfloat16
    assert targets.peak_tflops(device_kind, "float32") == float32
    for chip in targets.CHIPS.values():
        assert 0 < chip.peak_flops("float32") < chip.peak_flops("bfloat16") < 1e16
