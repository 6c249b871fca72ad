"""A small text classifier, trained on the toy reviews and saved as the hub keeps such models."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxppo.errors import ModelError

LABELS = {0: "NEGATIVE", 1: "POSITIVE"}
_STEPS = 200
_BATCH_SIZE = 64
_LEARNING_RATE = 2e-3


def train_classifier(
    texts: Sequence[str], labels: Sequence[int], tokenizer: Any, folder: Path
) -> None:
    """Train a DistilBERT of two layers, and write it with its tokenizer.

    Args:
        texts: of the training.
        labels: 0 for NEGATIVE, 1 for POSITIVE.
        tokenizer: with a token to pad with.
        folder: where to.

    Raises:
        ModelError: torch is not installed.
    """
    if find_spec("torch") is None:
        raise ModelError(
            "toy-reviews-classifier: expected torch to be installed: pip install 'jaxppo[sentiment]'"
        )
    import torch
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    torch.set_num_threads(1)  # a model of this size has no work for more
    torch.manual_seed(0)
    encoded = tokenizer(list(texts), padding=True, return_tensors="pt")
    ids = encoded["input_ids"]
    mask = encoded["attention_mask"]
    targets = torch.tensor(labels)
    config = DistilBertConfig(
        vocab_size=len(tokenizer),
        dim=64,
        hidden_dim=128,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        id2label=LABELS,
        label2id={name: number for number, name in LABELS.items()},
    )
    model = DistilBertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    for _ in range(_STEPS):
        rows = torch.randint(len(texts), (_BATCH_SIZE,))
        # As a reward the classifier also reads short
        # completions, so it learns from reviews cut at random.
        length = int(torch.randint(8, ids.shape[1] + 1, ()))
        output = model(
            input_ids=ids[rows, :length], attention_mask=mask[rows, :length], labels=targets[rows]
        )
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
