"""Models that are small or bad enough for evaluations to have something to say."""

import jax
import numpy as np

from jaxppo import hf
from jaxppo.nn.gpt_neox import GPTNeoXConfig

MODEL = GPTNeoXConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=1.0,
    rotary_pct=1.0,
)


def write_spoiled(folder, noise):
    """Write the shipped model with noise on its weights: it plans, but worse."""
    policy = hf.load_policy("blocksworld-sft")
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: x + noise * rng.standard_normal(x.shape, np.float32), policy.params)
    hf.save_pretrained(folder, policy.config, params, policy.tokenizer)
    return folder
