"""Checks of the fields of a model's configuration."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from jaxppo.errors import ModelError


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise a `ModelError` unless the value is one of the names."""
    if not isinstance(value, str) or value not in choices:
        raise ModelError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def check_positive_int(name: str, value: Any) -> None:
    """Raise a `ModelError` unless the value is an integer above 0."""
    # Not `isinstance`, for which True is an integer.
    if type(value) is not int or value < 1:
        raise ModelError(f"{name}: expected an integer >= 1, got {value!r}")


MAX_LAYERS = 256
"""Programs that sample are as long as models are deep; published ones have at most 126 layers."""


def check_num_layers(value: Any) -> None:
    """Raise a `ModelError` unless a model may have so many layers."""
    check_positive_int("num_hidden_layers", value)
    if value > MAX_LAYERS:
        raise ModelError(f"num_hidden_layers: expected {MAX_LAYERS} or fewer, got {value}")


def check_heads_divide(num_heads: int, hidden_size: int) -> None:
    """Raise a `ModelError` unless heads of one size make up the hidden size."""
    if hidden_size % num_heads:
        raise ModelError(
            f"num_attention_heads: expected a divisor of hidden_size={hidden_size}, got {num_heads}"
        )


def check_bool(name: str, value: Any) -> None:
    """Raise a `ModelError` unless the value is true or false."""
    if type(value) is not bool:
        raise ModelError(f"{name}: expected true or false, got {value!r}")


def check_at_least(minimum: float, name: str, value: Any) -> None:
    """Raise a `ModelError` unless the value is a finite number of at least `minimum`."""
    # NaN fails both comparisons.
    if type(value) not in (int, float) or not minimum <= value < float("inf"):
        raise ModelError(f"{name}: expected a finite number >= {minimum}, got {value!r}")


def check_present(raw: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise a `ModelError` unless a `config.json` has these sizes."""
    missing = [name for name in names if name not in raw]
    if missing:
        raise ModelError(f"{missing[0]}: expected an integer, but the key is missing")


def _is_token_id(value: Any, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size


def check_token_id(name: str, value: Any, vocab_size: int) -> None:
    """Raise a `ModelError` unless the value is None or a token of the vocabulary."""
    if value is not None and not _is_token_id(value, vocab_size):
        raise ModelError(
            f"{name}: expected null or one integer in [0, vocab_size={vocab_size}), got {value!r}"
        )


def check_token_ids(name: str, value: Any, vocab_size: int) -> None:
    """Raise a `ModelError` unless the value is None, a token of the vocabulary or a tuple of them."""
    if value is None:
        return
    # transformers writes one id as a number, several as a list.
    ids = value if isinstance(value, tuple) else (value,)
    if not ids or not all(_is_token_id(token_id, vocab_size) for token_id in ids):
        shown = list(value) if isinstance(value, tuple) else value
        allowed = f"null, one integer or several in [0, vocab_size={vocab_size})"
        raise ModelError(f"{name}: expected {allowed}, got {shown!r}")
