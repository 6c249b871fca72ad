"""Architectures of language models, a family in one file; their blocks, LoRA, and log-probabilities of heads.

In: a configuration and arrays. Out: modules that `models.py` applies, and everything of a family that others ask for:
its names in transformers, its fresh sizes, how its parameters are split over devices. `FAMILIES` is the only registry.
"""

from flax import nnx

from jaxppo.errors import ModelError
from jaxppo.nn.blocks import map_in_chunks
from jaxppo.nn.computation import Computation
from jaxppo.nn.config import Family, ModelConfig
from jaxppo.nn.gpt2 import GPT2
from jaxppo.nn.gpt_neox import GPT_NEOX
from jaxppo.nn.layers import Keys
from jaxppo.nn.llama import LLAMA
from jaxppo.nn.source import ModelSource
from jaxppo.types import Params

FAMILIES: dict[str, Family] = {"gpt_neox": GPT_NEOX, "gpt2": GPT2, **LLAMA}
"""`model_type` -> family."""


def family_of(model_type: object) -> Family:
    """Return the family of a `model_type`.

    Raises:
        ModelError: there is none of this name.
    """
    name = str(model_type)
    if name not in FAMILIES:
        raise ModelError(f"model_type: expected one of {', '.join(FAMILIES)}, got {model_type!r}")
    return FAMILIES[name]


def trunk_shapes(config: ModelConfig) -> Params:
    """Return the nested dict of a trunk's parameters as shapes; nothing is allocated."""
    trunk = nnx.eval_shape(lambda: family_of(config.model_type).trunk(config, Keys(0)))
    return nnx.to_pure_dict(nnx.split(trunk)[1])


__all__ = [
    "FAMILIES",
    "Computation",
    "Family",
    "ModelConfig",
    "ModelSource",
    "attention",
    "depth",
    "family_of",
    "head_logprobs",
    "kernels",
    "layers",
    "lora",
    "map_in_chunks",
    "trunk_shapes",
]
