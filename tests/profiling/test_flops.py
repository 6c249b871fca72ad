"""Counted by hand, and beside XLA's own count."""

from functools import partial

import jax
import numpy as np
import pytest

from jaxppo import models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn import lora
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.profiling import flops
from jaxppo.profiling.flops import Models, Pass, Products, Shapes

SIZES = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
NEOX = GPTNeoXConfig(**SIZES)
LINEAR = 2 * (8 * 24 + 8 * 8 + 2 * 8 * 24)  # 2 layers: queries, keys and values; output; two of the MLP
LAST = 2 * 8 * 8 + 2 * 8 * 24  # queries, output, MLP
PLAIN = Products(trunk=LINEAR, last=LAST, adapter=0, head=8 * 50, attention=8, layers=2)
SHAPES = Shapes(
    prompts=3, prompt_length=5, completions=6, completion_length=7, longest_completion=4, sequence_length=11
)
# One of each, in operations: per token, per token not read, per token and token seen in a layer, and per prediction.
TOKEN, UNREAD, PAIR, HEAD = 2 * LINEAR, 2 * LAST, 4 * 8, 2 * 8 * 50
SEQUENCES = 66 * TOKEN - 24 * UNREAD + (66 + 42) * 11 * PAIR
PREDICTIONS = 42 * HEAD
SIZE = Pass(tokens=66, attended=11, read=42)


def shapes_of_params(config, head="lm"):
    return jax.eval_shape(lambda: models.init_params(config, jax.random.key(0), head))


def test_products_are_those_of_the_linear_layers_the_head_and_attention_and_adapters_apart():
    for config in (NEOX, GPT2Config(**SIZES)):
        assert flops.products(config, shapes_of_params(config)) == PLAIN
    adapter = lora.init_adapter(NEOX, lora.LoraConfig(r=3), jax.random.key(0))
    params = lora.attach(shapes_of_params(NEOX), adapter, 2.0)
    sums = 2 * 3 * ((8 + 24) + (8 + 8) + (8 + 24) + (24 + 8))
    assert flops.products(NEOX, params) == PLAIN._replace(adapter=sums)


def test_sampling_reads_prompts_once_and_then_one_token_of_each_row_up_to_the_longest_completion():
    mask = np.arange(7) < np.array([[2], [4], [1]])
    assert flops.shapes_of(np.zeros((3, 5)), mask, np.zeros((3, 9))) == Shapes(3, 5, 3, 7, 4, 9)
    prompts = 15 * TOKEN - 12 * UNREAD + (15 + 3) * 5 * PAIR + 3 * HEAD
    steps = 18 * TOKEN + 2 * 18 * 12 * PAIR + 18 * HEAD
    assert flops.sampling(PLAIN, SHAPES) == prompts + steps
    assert flops.sampling(PLAIN._replace(adapter=100), SHAPES) == prompts + steps


@pytest.mark.parametrize(
    ("settings", "passes", "heads"),
    [
        ({}, 2, 1),
        ({"kl_coef": 0.0}, 1, 0),
        ({"logprobs": "recompute"}, 3, 2),
        ({"top_entropy_quantile": 0.2}, 3, 2),  # entropies are the policy's
        ({"kl_estimator": "full"}, 4, 3),
        ({"value_model": "shared"}, 2, 1),
        ({"algorithm": "rloo", "num_generations": 2, "batch_size": 6}, 1, 1),
    ],
)
def test_scoring_counts_the_passes_that_the_settings_ask_for(settings, passes, heads):
    config = replace(TrainConfig(), **settings)
    separate = config.rl.algorithm == "ppo" and config.value_model == "separate"
    found = flops.scoring(config, Models(PLAIN, PLAIN if separate else None), SHAPES)
    assert found == passes * SEQUENCES + heads * PREDICTIONS


def test_learning_is_three_passes_of_each_model_and_epoch_and_frozen_weights_have_no_gradient():
    config = replace(TrainConfig(), num_ppo_epochs=2)
    assert flops.learning(config, Models(PLAIN, PLAIN), SHAPES) == 2 * 3 * (2 * SEQUENCES + PREDICTIONS)
    assert flops.learning(config, Models(PLAIN, None), SHAPES) == 2 * 3 * (SEQUENCES + PREDICTIONS)
    adapted = PLAIN._replace(adapter=10)
    forward = flops.forward(adapted, SIZE)
    assert forward == SEQUENCES + PREDICTIONS + 66 * 2 * 10
    assert flops.backward(adapted, SIZE) == 2 * forward - (66 * TOKEN - 24 * UNREAD) - PREDICTIONS


@pytest.mark.parametrize(
    "family", [GPTNeoXConfig, GPT2Config, partial(LlamaConfig, num_key_value_heads=2, head_dim=64)]
)
def test_forward_agrees_with_what_xla_counts(family):
    config = family(vocab_size=2048, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512)
    params, ids = shapes_of_params(config), jax.ShapeDtypeStruct((4, 64), np.int32)
    products = flops.products(config, params)
    for read in (None, jax.ShapeDtypeStruct((4, 16), np.int32)):
        program = jax.jit(lambda params, ids, read: models.apply(config, params, ids, read=read).logits)
        counted = program.lower(params, ids, read).cost_analysis()["flops"]
        size = Pass(4 * 64, 64, read=4 * 64 if read is None else 4 * 16)
        assert flops.forward(products, size) == pytest.approx(counted, rel=0.05)
