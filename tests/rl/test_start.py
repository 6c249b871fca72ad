"""What a run starts from: models that fit each other."""

import dataclasses

import jax
import pytest

from jaxppo import hf, models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ModelError
from jaxppo.nn import ModelSource
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import start
from jaxppo.run.console import Console
from tests.hf.families import SMALL


def test_a_value_model_needs_the_tokens_of_the_policy_and_not_its_padding(tmp_path):
    model = dataclasses.replace(SMALL["llama"].config, vocab_size=59)
    hf.save_pretrained(tmp_path / "value", model, models.init_params(model, jax.random.key(0), "score"))
    config = replace(TrainConfig(), value_model_path=str(tmp_path / "value"))
    for num_tokens, fits in ((59, True), (60, False), (None, False)):
        policy = dataclasses.replace(SMALL["qwen3"].config, source=ModelSource(num_tokens=num_tokens))
        load = lambda policy=policy: start._value_model(config, policy, DataParallel(), Console(), False)  # noqa: E731
        if fits:
            assert load()[0].vocab_size == 59
        else:
            with pytest.raises(ModelError, match="value_model_path"):
                load()
