"""What the folder of a model says of it beside its architecture."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxppo.errors import ModelError
from jaxppo.nn.checks import check_token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model came from: its tokenizer's tokens, and the file that it was read from.

    Attributes:
        num_tokens: how many tokens the tokenizer has, where the vocabulary is padded to more: logits and
            log-probabilities are over these alone. None: all of the vocabulary.
        end_ids: tokens that end a text by the files of the folder, `generation_config.json` included.
        config_json: content of its `config.json`, which is written back; not compared.
    """

    num_tokens: int | None = None
    end_ids: tuple[int, ...] = ()
    # Not compared: files that are written in different ways
    # may mean the same model, and programs are cached by it.
    config_json: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def check(self, vocab_size: int) -> None:
        """Raise a `ModelError` unless all tokens are of this vocabulary."""
        check_token_ids("end_ids", self.end_ids or None, vocab_size)
        # Padded entries of the vocabulary are no tokens: nothing may predict them.
        if self.num_tokens is not None and not 0 < self.num_tokens <= vocab_size:
            raise ModelError(
                f"num_tokens: expected 1 to vocab_size={vocab_size}, got {self.num_tokens}"
            )

    def eos_ids(self, end_id: int) -> tuple[int, ...]:
        """Return every token that ends a text, each once: the tokenizer's or the chat template's, then `end_ids`."""
        # A dict, unlike a set, has an order.
        return tuple(dict.fromkeys((end_id, *self.end_ids)))
