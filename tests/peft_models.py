"""Bases with and without adapters, of every family: here and in PEFT."""

import dataclasses
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import hf
from jaxppo.nn import lora
from jaxppo.nn.llama_kinds import KINDS
from tests.torch_models import AUTO, CONFIGS, random_params, torch

LORA_CONFIGS = CONFIGS | {name: dataclasses.replace(CONFIGS["llama"], model_type=name) for name in KINDS}


@pytest.fixture(scope="session")
def bases(tmp_path_factory):
    """(family, head) -> (folder, params) of a base of which no number is at its first value; made when asked for."""

    class Bases(dict):
        def __missing__(self, key):
            family, head = key
            folder = tmp_path_factory.mktemp(f"{family}-{head}") / "base"
            params = random_params(LORA_CONFIGS[family], head)
            hf.save_pretrained(folder, LORA_CONFIGS[family], params)
            self[key] = folder, params
            return self[key]

    return Bases()


def random_tree(tree, seed=0, scale=0.1):
    """The same shapes, every number random: no bias, norm or factor is left at its first value."""
    leaves, structure = jax.tree.flatten(tree)
    generator = np.random.default_rng(seed)
    return structure.unflatten([leaf + scale * generator.normal(size=leaf.shape).astype(np.float32) for leaf in leaves])


@lru_cache
def _adapter_shapes(config, shape):
    return jax.eval_shape(lambda: lora.init_adapter(config, shape, jax.random.key(1)))


def random_adapter(config, shape, score=False):
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), _adapter_shapes(config, shape))
    adapter = random_tree(zeros, seed=1, scale=0.2)
    if score:
        adapter["score"] = {"kernel": random_params(config, "score", seed=2, scale=0.5)["score"]["kernel"]}
    return adapter


def torch_base(folder, head="lm"):
    return AUTO[head].from_pretrained(folder)


def peft_gradients(theirs, folder, config):
    """The gradients of PEFT's adapter, in the places of ours; they take the place of its numbers."""
    with torch.no_grad():  # through the folder the gradients reach the places of their factors
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.grad)
    theirs.save_pretrained(folder)
    return hf.peft.load_adapter(folder, config)[1]


def peft_adapted(folder, shape, family, head="lm"):
    """A base of transformers under a random adapter of PEFT's."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    targets = shape.target_modules
    config = peft.LoraConfig(
        r=shape.r,
        lora_alpha=shape.lora_alpha,
        target_modules="all-linear" if targets is None else targets if isinstance(targets, str) else list(targets),
        use_rslora=shape.use_rslora,
        fan_in_fan_out=family == "gpt2",
        init_lora_weights=False,
        task_type={"lm": "CAUSAL_LM", "score": "SEQ_CLS"}[head],
        modules_to_save=["score"] if head == "score" else None,
    )
    model = peft.get_peft_model(torch_base(folder, head), config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * (0.5 if "score" in name else 0.1))
    return model
