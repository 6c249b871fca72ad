"""Hugging Face folders in and out.

In: a folder or hub id. Out: configuration, parameters and tokenizer; and the way back.
"""

from jaxppo.hf import card, files, peft
from jaxppo.hf.files import GENERATION_FILE
from jaxppo.hf.folders import (
    ASSETS,
    MAX_SHARD_SIZE,
    LoadedModel,
    Placement,
    find_model,
    load_model,
    load_policy,
    load_pretrained,
    load_value_head,
    read_config,
    save_pretrained,
    save_value_head,
)
from jaxppo.hf.names import REWARD_BIAS, config_from_hf, config_to_hf, reward_bias
from jaxppo.hf.tokenizer import (
    check_tokenizer,
    load_padding_tokenizer,
    load_tokenizer,
    save_tokenizer,
)

__all__ = [
    "ASSETS",
    "GENERATION_FILE",
    "MAX_SHARD_SIZE",
    "REWARD_BIAS",
    "LoadedModel",
    "Placement",
    "card",
    "check_tokenizer",
    "config_from_hf",
    "config_to_hf",
    "export",
    "files",
    "find_model",
    "hub",
    "load_model",
    "load_padding_tokenizer",
    "load_policy",
    "load_pretrained",
    "load_tokenizer",
    "load_value_head",
    "peft",
    "read_config",
    "reward_bias",
    "save_pretrained",
    "save_tokenizer",
    "save_value_head",
]
