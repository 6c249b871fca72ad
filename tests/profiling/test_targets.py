"""What is published of accelerators is said once, and names mean what they say."""

import pytest

from jaxppo.errors import ConfigError
from jaxppo.profiling import targets, throughput


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
    ("chip", "kind"),
    [
        ("v5e", "TPU v5 lite"),
        ("v5p", "TPU v5"),
        ("v6e", "TPU v6 lite"),
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("h200", "NVIDIA H200 141GB HBM3e"),
        ("b200", "NVIDIA B200"),
    ],
)
def test_peaks_are_those_of_throughput(chip, kind):
    found = targets.CHIPS[chip]
    assert found.bfloat16 == throughput.peak_tflops(kind, "bfloat16", "highest") * 1e12
    assert found.float32 == throughput.peak_tflops(kind, "float32", "highest") * 1e12
    assert kind in found.config or found.platform == "tpu"
