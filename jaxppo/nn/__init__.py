"""The model families: one file each, with its configuration, its trunk and its names in transformers."""

from jaxppo.errors import ModelError
from jaxppo.nn.blocks import by_rows
from jaxppo.nn.config import Family, ModelConfig
from jaxppo.nn.gpt2 import GPT2
from jaxppo.nn.gpt_neox import GPT_NEOX

FAMILIES: dict[str, Family] = {"gpt_neox": GPT_NEOX, "gpt2": GPT2}
"""`model_type` -> family."""


def family_of(model_type: object) -> Family:
    """The family of a `model_type`.

    Raises:
        ModelError: there is none of this name.
    """
    if str(model_type) not in FAMILIES:
        raise ModelError(f"model_type: expected one of {', '.join(FAMILIES)}, got {model_type!r}")
    return FAMILIES[str(model_type)]


__all__ = ["FAMILIES", "Family", "ModelConfig", "by_rows", "family_of"]
