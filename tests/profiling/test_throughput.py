import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import flops
from jaxppo.profiling.flops import Models, Products, Shapes, of_update
from jaxppo.profiling.throughput import Throughput, peak_tflops

MODELS = Models(Products(trunk=1000, last=400, adapter=0, head=500, attention=16, layers=2), None)
SHAPES = Shapes(8, 16, 8, 16, 12, 32)


@pytest.mark.parametrize(
    ("device_kind", "bfloat16", "full", "fast"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5, 67.0, 494.5),
        ("NVIDIA H100 PCIe", 756.5, 51.0, 378.0),
        ("NVIDIA H100 NVL", 835.5, 60.0, 417.5),
        ("NVIDIA H200", 989.5, 67.0, 494.5),
        ("NVIDIA A100-SXM4-80GB", 312.0, 19.5, 156.0),
        ("NVIDIA A100 80GB PCIe", 312.0, 19.5, 156.0),
        ("NVIDIA L4", 121.0, 30.3, 60.0),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6),
        ("Tesla V100-SXM2-16GB", 15.7, 15.7, 15.7),
        ("Tesla V100-PCIE-16GB", 14.0, 14.0, 14.0),
        ("Tesla T4", 8.1, 8.1, 8.1),
        ("TPU v4", 275.0, 275.0 / 6, 275.0),
        ("TPU v5 lite", 197.0, 197.0 / 6, 197.0),
        ("TPU v5p", 459.0, 459.0 / 6, 459.0),
        ("TPU v5", 459.0, 459.0 / 6, 459.0),
        ("TPU v6 lite", 918.0, 918.0 / 6, 918.0),
        ("cpu", None, None, None),
        ("NVIDIA L40S", None, None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None, None),
    ],
)
def test_peak_tflops_knows_the_device_by_its_name(device_kind, bfloat16, full, fast):
    assert peak_tflops(device_kind, "bfloat16", "highest") == bfloat16
    assert peak_tflops(device_kind, "float32", "highest") == full
    assert peak_tflops(device_kind, "float32", None) == fast


def test_metrics_of_an_unknown_device_have_no_utilisation():
    config = TrainConfig()
    found = Throughput(config, MODELS, DataParallel()).metrics(SHAPES, seconds=2.0)
    tflops = of_update(config, MODELS, SHAPES) / 2.0 / 1e12
    assert found == {"throughput/samples_per_s": 4.0, "throughput/tflops": pytest.approx(tflops)}


def test_batches_sampled_in_the_place_of_others_count():
    config = TrainConfig()
    once, scoring = of_update(config, MODELS, SHAPES), flops.scoring(config, MODELS, SHAPES)
    more = of_update(config, MODELS, SHAPES, extra_batches=3)
    assert more - once == 3 * flops.sampling(MODELS.policy, SHAPES) + scoring > scoring > 0


def test_the_peak_that_a_user_gives_is_that_of_one_device():
    config = replace(TrainConfig(), peak_tflops=0.5)
    found = Throughput(config, MODELS, DataParallel()).metrics(SHAPES, seconds=2.0)
    assert DataParallel().num_devices == 4
    assert found["throughput/mfu"] == pytest.approx(found["throughput/tflops"] / 2.0)
