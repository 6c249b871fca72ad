import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling.flops import Models, Products, Shapes, of_update
from jaxppo.profiling.throughput import Throughput

MODELS = Models(Products(trunk=1000, last=400, adapter=0, head=500, attention=16, layers=2), None)
SHAPES = Shapes(8, 16, 8, 16, 12, 32)


def test_an_unknown_device_has_a_utilisation_where_the_peak_of_one_is_given():
    config = TrainConfig()
    found = Throughput(config, MODELS, DataParallel()).metrics(SHAPES, seconds=2.0)
    tflops = of_update(config, MODELS, SHAPES) / 2.0 / 1e12
    assert found == {"throughput/samples_per_s": 4.0, "throughput/tflops": pytest.approx(tflops)}
    config = replace(TrainConfig(), peak_tflops=0.5)
    found = Throughput(config, MODELS, DataParallel()).metrics(SHAPES, seconds=2.0)
    assert DataParallel().num_devices == 4
    assert found["throughput/mfu"] == pytest.approx(found["throughput/tflops"] / 2.0)
