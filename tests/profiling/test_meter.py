"""What an update achieved, as its metrics say."""

import jax
import numpy as np
import pytest

from jaxppo import models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import flops, targets
from jaxppo.profiling.meter import UpdateMeter

MODEL = GPTNeoXConfig(vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)


def test_a_device_whose_peak_is_known_has_a_utilisation(monkeypatch):
    config = replace(TrainConfig(), total_episodes=64)
    params = {"policy": jax.eval_shape(lambda: models.init_params(MODEL, jax.random.key(0)))}
    batch = np.zeros((8, 16), np.int32), np.ones((8, 16), bool), np.zeros((8, 32), np.int32)

    def metrics():
        return UpdateMeter(config, MODEL, MODEL, params, DataParallel()).throughput(*batch, seconds=2.0)

    expected = flops.of_update(config, flops.of_models(MODEL, MODEL, params), flops.shapes_of(*batch)) / 2.0 / 1e12
    assert metrics() == {"throughput/samples_per_s": 4.0, "throughput/tflops": pytest.approx(expected)}
    monkeypatch.setattr(targets, "peak_tflops", lambda device_kind, dtype: 0.5)
    assert DataParallel().num_devices == 4
    assert metrics()["throughput/mfu"] == pytest.approx(expected / 2.0)
