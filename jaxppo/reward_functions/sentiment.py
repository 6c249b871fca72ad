"""Rewards from a text classifier, such as one for sentiment: the score of one label.

The classifier is a Hugging Face model run by transformers and torch on the host.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxppo import toys
from jaxppo.errors import ConfigError, ModelError, hub_fix

UNLIMITED = 10**9
"""Tokenizers without a longest length say 10^30."""

BATCH_SIZE = 16
"""Texts classified at a time."""


def make_sentiment_reward(
    model_path: str, label: str = "POSITIVE"
) -> Callable[..., list[float | None]]:
    """Make a reward function: the logit of a label, as in TRL's example, by a text-classification pipeline.

    Prompt and completion are classified as one text; one with more tokens than the model takes is cut at its end. The
    pipeline runs on the CPU, which leaves accelerators to JAX.

    Args:
        model_path: toy, folder or hub id (user/name or user/name@revision) of a sequence classification model with its
            tokenizer and weights in safetensors; code in it is not run.
        label: name of the label, in any case, whatever its index.

    Returns:
        The function. It gives None for a text without any token, which only tokenizers without special tokens make.

    Raises:
        ConfigError: a bad option, or no such label (the message lists those there are).
        ModelError: torch is missing, the folder cannot be read, or it holds no trained classifier.
    """
    model, tokenizer = _load(model_path)
    name = find_label(model.config.id2label, label)
    # transformers takes seconds to import, and torch need not be installed.
    from transformers import pipeline

    classify: Any = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    max_tokens = longest_text(model, tokenizer)
    truncation = {} if max_tokens is None else {"truncation": True, "max_length": max_tokens}
    options = {"top_k": None, "function_to_apply": "none", **truncation}
    # Without a padding token, texts cannot be batched.
    options["batch_size"] = BATCH_SIZE if tokenizer.pad_token_id is not None else 1

    def sentiment(
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        texts = [
            prompt + completion for prompt, completion in zip(prompts, completions, strict=True)
        ]
        if not texts:
            return []
        rewards: list[float | None] = [None] * len(texts)
        # The pipeline fails on a text without any token.
        token_ids = tokenizer(texts, **truncation)["input_ids"]
        scorable = [row for row, ids in enumerate(token_ids) if ids]
        outputs = classify([texts[row] for row in scorable], **options) if scorable else []
        for row, scores in zip(scorable, outputs, strict=True):
            rewards[row] = next(entry["score"] for entry in scores if entry["label"] == name)
        return rewards

    return sentiment


def find_label(id2label: Mapping[int, str], label: str) -> str:
    """Return the model's spelling of a label.

    Raises:
        ConfigError: there is none, or several that differ in case only.
    """
    names = list(id2label.values())
    matches = [name for name in names if name.lower() == label.lower()]
    if len(matches) != 1:
        raise ConfigError(f"label: expected one of {', '.join(names)}, got {label!r}")
    return matches[0]


def longest_text(model: Any, tokenizer: Any) -> int | None:
    """Return the most tokens that tokenizer and model can take; None where neither has a limit."""
    limits = []
    if tokenizer.model_max_length < UNLIMITED:
        limits.append(tokenizer.model_max_length)
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None:
        # RoBERTa and its relatives begin to count after the padding token's index.
        embeddings = getattr(model.base_model, "embeddings", None)
        limits.append(positions - (getattr(embeddings, "padding_idx", -1) + 1))
    return min(limits, default=None)


def _load(model_path: str) -> tuple[Any, Any]:
    """Load model and tokenizer, from safetensors only, and only with a trained head."""
    # transformers would say it at length.
    if find_spec("torch") is None:
        raise ModelError(
            "sentiment: expected torch to be installed: pip install 'jaxppo[sentiment]'"
        )
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    name = str(toys.find(model_path) or model_path)
    revision = None
    if not Path(name).exists() and "@" in name:
        name, _, revision = name.partition("@")
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model, info = AutoModelForSequenceClassification.from_pretrained(
            name, use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"sentiment: expected a text classifier in safetensors at {model_path}, got: {reason}; {hub_fix()}"
        ) from None
    # transformers warns of a head that it has filled with random numbers, and goes on.
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise ModelError(
            f"sentiment: expected a trained classifier at {model_path}, got no weights for {missing}"
        )
    return model.eval(), tokenizer
