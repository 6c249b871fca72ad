"""Small models on disk, and batches with every kind of row, for jaxppo and TRL alike."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

from jaxppo import hf, models
from jaxppo.nn import ModelConfig
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig

EOS, PAD, VOCAB, LENGTH = 0, 1, 24, 10
MODEL = GPTNeoXConfig(
    vocab_size=VOCAB,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=0.2,
    eos_token_id=EOS,
    pad_token_id=PAD,
)


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.2,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
LLAMAS = {
    "llama": LlamaConfig(model_type="llama", head_dim=4, tie_word_embeddings=True, **SIZES),
    "qwen3": LlamaConfig(model_type="qwen3", head_dim=8, **SIZES),
}


class Models(NamedTuple):
    """A model's configuration, folders of three of them in Hugging Face form, and their tokenizer."""

    config: ModelConfig
    policy: Path
    reference: Path
    value: Path
    tokenizer: PreTrainedTokenizerFast


def make_models(folder: Path, config: ModelConfig) -> Models:
    """Write a random policy, reference and value model."""
    words = {"<eos>": EOS, "<pad>": PAD} | {f"w{i}": i for i in range(2, VOCAB)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(tokenizer_models.WordLevel(words, unk_token="w2")),
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
    )
    policy, reference, trunk = (models.init_params(config, jax.random.key(seed)) for seed in range(3))
    head = models.init_score_head(config, jax.random.key(3), scale=0.3, use_bias=False)
    hf.save_pretrained(folder / "policy", config, policy, tokenizer)
    hf.save_pretrained(folder / "reference", config, reference, tokenizer)
    hf.save_pretrained(folder / "value", config, {"trunk": trunk["trunk"], "score": head}, tokenizer)
    return Models(config, folder / "policy", folder / "reference", folder / "value", tokenizer)


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("parity"), MODEL)


@pytest.fixture(scope="session")
def saved_by_name(saved, tmp_path_factory) -> dict[str, Models]:
    """Of GPT-NeoX and of `LLAMAS`."""
    return {"gpt_neox": saved} | {
        name: make_models(tmp_path_factory.mktemp(name), config) for name, config in LLAMAS.items()
    }


def make_rows(num_rows: int, copies: int = 1) -> tuple[list[list[int]], list[list[int]]]:
    """Ragged prompts, each `copies` times, and completions: ending early, in the last place or not at all."""
    rng = np.random.default_rng(0)
    tokens = lambda n: rng.integers(2, VOCAB, n).tolist()  # noqa: E731
    prompts = [prompt for _ in range(num_rows // copies) for prompt in [tokens(rng.integers(2, 8))] * copies]
    kinds = [[EOS], tokens(LENGTH), [*tokens(LENGTH - 1), EOS], [*tokens(LENGTH - 2), EOS], tokens(LENGTH)]
    rest = [[*tokens(rng.integers(1, LENGTH - 1)), EOS] for _ in range(num_rows - len(kinds))]
    return prompts, kinds + rest
