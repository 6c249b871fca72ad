"""The command: python -m jaxppo.toys [NAME --output_dir DIR]; without a name it lists all toys."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxppo import toys
from jaxppo.errors import ConfigError
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.run import cli
from jaxppo.toys import texts

_SEED = 0
_REVIEWS = {"sft": 6000, "sft_test": 64, "train": 8192, "test": 256}
_SUMMARIES = {"sft": 8192, "train": 8192, "test": 256}
_PREFERENCES = {"preferences": 8192, "preferences_test": 512}

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role + ' ' + message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def byte_level_bpe(lines: Sequence[str], pad_token: str | None) -> Any:
    """A tokenizer of GPT-2's kind, small enough to have one token for every frequent word of some texts.

    Args:
        lines: the texts.
        pad_token: None: it has none, as GPT-2's.
    """
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    from transformers import PreTrainedTokenizerFast

    end = "<|endoftext|>"
    special_tokens = [end] if pad_token is None else [end, pad_token]
    tokenizer: Any = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        lines, vocab_size=1000, min_frequency=0, show_progress=False, special_tokens=special_tokens
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.to_str()),
        bos_token=end,
        eos_token=end,
        pad_token=pad_token,
        padding_side="left",
    )


def make_reviews(folder: Path) -> None:
    """The data set `toy-reviews`, with its tokenizer."""
    splits = {split: texts.review_rows(split, count, _SEED) for split, count in _REVIEWS.items()}
    tokenizer = byte_level_bpe([row["prompt"] for row in splits["train"]], pad_token=None)
    _write(folder, splits, tokenizer)


def make_tldr(folder: Path) -> None:
    """The data set `toy-tldr`, with its tokenizer."""
    splits = {split: texts.summary_rows(split, count, _SEED) for split, count in _SUMMARIES.items()}
    lines = [row["prompt"] + row["completion"] for row in splits["sft"]]
    pairs = {
        split: texts.preference_rows(split, count, _SEED) for split, count in _PREFERENCES.items()
    }
    _write(folder, splits | pairs, byte_level_bpe(lines, pad_token="[PAD]"))


def make_reviews_classifier(folder: Path) -> None:
    """The model `toy-reviews-classifier`."""
    from jaxppo.toys.classifier import train_classifier

    rows = texts.review_rows("classifier", 4096, _SEED)
    prompts = [row["prompt"] for row in rows]
    tokenizer = byte_level_bpe(prompts, pad_token="[PAD]")
    tokenizer.padding_side = "right"
    train_classifier(prompts, [row["label"] for row in rows], tokenizer, folder)


def make_chat_words(folder: Path) -> None:
    """The tokenizer `toy-chat-words`."""
    from jaxppo import data, hf
    from jaxppo.config import DataConfig

    words = data.words_of_dataset(DataConfig())
    tokenizer = data.word_tokenizer([*words, "user", "assistant", "system"])
    tokenizer.add_special_tokens(
        {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    hf.save_tokenizer(tokenizer, folder)


MAKERS = {
    "toy-reviews": make_reviews,
    "toy-reviews-classifier": make_reviews_classifier,
    "toy-tldr": make_tldr,
    "toy-chat-words": make_chat_words,
}
"""Toys that no other command makes."""


def run(arguments: Sequence[str] | None = None) -> None:
    """List the toys, or make one.

    Raises:
        ConfigError: there is none of that name, or another command makes it.
    """
    parser = argparse.ArgumentParser(prog="python -m jaxppo.toys", description=__doc__)
    parser.add_argument("name", nargs="?", help="toy to make; without one, all are listed")
    parser.add_argument("--output_dir", help="folder to write")
    options = parser.parse_args(arguments)
    if options.name is None:
        for name, toy in toys.TOYS.items():
            print(f"{name:<24} {toy.about}")
        return
    if options.name not in MAKERS:
        raise ConfigError(f"name: expected one of {', '.join(MAKERS)}, got {options.name!r}")
    if options.output_dir is None:
        raise ConfigError(f"output_dir: expected a folder for {options.name}, got None")
    MAKERS[options.name](Path(options.output_dir).expanduser())


def _write(folder: Path, splits: dict[str, list[texts.Row]], tokenizer: Any) -> None:
    from jaxppo import hf  # slow to import, and the list of toys needs no JAX

    for split, rows in splits.items():
        write_jsonl(rows, folder / f"{split}.jsonl")
    hf.save_tokenizer(tokenizer, folder)


if __name__ == "__main__":
    cli.main(run, uses_jax=False)
