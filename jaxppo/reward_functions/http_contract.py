"""The messages of reward client and reward server: LLaMA-Factory's JSON with optional fields.

A request is `{"model": "model", "messages": [prompt + completion, ...]}`, an answer `{"scores": [number, ...]}`. Added
are "prompts", "completions", "completion_ids" and "columns" in the request and "metrics" and "extras" in the
answer: see `docs/reward_server.md`. Everything that comes from the other side is checked here before it is used.
"""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from jaxppo.errors import ConfigError, DataError
from jaxppo.rewards import RESERVED_NAMES, Completions, Score, Scores
from jaxppo.run.jsonl import to_plain_json

TOKEN_VARIABLE = "JAXPPO_REWARD_TOKEN"
"""Environment variable with the bearer token, the same for client and server; it has no flag and no config key."""


def environment_token() -> str | None:
    """Return the bearer token of this process; None where the variable is not set or empty.

    Raises:
        ConfigError: it holds characters that no bearer token has (the message does not show it).
    """
    token = os.environ.get(TOKEN_VARIABLE)
    # The characters of a bearer token in RFC 6750.
    if token and re.fullmatch(r"[\w.~+/=-]+", token, re.ASCII) is None:
        rule = "a token of letters, digits and -._~+/="
        raise ConfigError(f"{TOKEN_VARIABLE}: expected {rule}, got other characters")
    return token or None


# --- requests


def check_lengths(columns: Mapping[str, Any], count: int) -> None:
    """Raise a `DataError` unless every column is a list of `count` values."""
    for name, values in columns.items():
        is_list = hasattr(values, "__len__") and not isinstance(values, str | bytes | Mapping)
        length = len(values) if is_list else type(values).__name__
        if length != count:
            # A name from a request may hold anything.
            shown = ascii(name)[:80]
            raise DataError(f"column {shown}: expected a list of {count} values, got {length}")


def encode_request(content: Mapping[str, Any]) -> bytes:
    """Encode the body of a request.

    Raises:
        DataError: a column holds a value that JSON does not have, such as NaN or bytes.
    """
    try:
        return dumps(content)
    except (TypeError, ValueError, RecursionError):
        # Encoded one by one only now, to find the column to name.
        for name, values in content["columns"].items():
            try:
                dumps(values)
            except (TypeError, ValueError, RecursionError) as error:
                rule = "values that JSON can hold"
                raise DataError(f"column {name!r}: expected {rule}, got: {error}") from None
        raise


def dumps(content: Any) -> bytes:
    """Encode JSON in ASCII, numpy's numbers and arrays as Python's, dates and decimals as text.

    Raises:
        ValueError: a value is NaN.
        TypeError: JSON has no form for a value, such as bytes.
    """
    # Escapes in ASCII also hold lone surrogates, which UTF-8 has no form for.
    return json.dumps(content, allow_nan=False, default=_plain).encode("ascii")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    # Bytes may be an image: no text that a server could do anything with.
    if isinstance(value, bytes) or (text := to_plain_json(value)) is value:
        raise TypeError(f"a {type(value).__name__}")
    return text


def read_request(body: bytes | bytearray) -> Completions:
    """Read and check the body of a request; one of LLaMA-Factory's has empty prompts and no columns.

    Raises:
        ValueError: the body is no JSON.
        RecursionError: it is nested too deeply.
        DataError: it is JSON of another form; the message names the field.
    """
    content = json.loads(body)
    if not isinstance(content, dict):
        raise DataError(
            f"expected a JSON object with a list of texts as messages, got {kind(content)}"
        )
    texts = _texts(content, "messages")
    if "prompts" in content and "completions" in content:
        prompts = _texts(content, "prompts")
        completions = _texts(content, "completions")
    elif "prompts" in content or "completions" in content:
        raise DataError("expected prompts and completions, or neither, got one of them")
    else:
        # LLaMA-Factory's request: where a prompt ends cannot be told.
        prompts = [""] * len(texts)
        completions = texts
    completion_ids = content.get("completion_ids", [[]] * len(texts))
    columns = content.get("columns", {})
    if not isinstance(columns, dict):
        raise DataError(f"columns: expected an object of lists, got {kind(columns)}")
    # They would take the place of what a reward function is given.
    if reserved := columns.keys() & set(RESERVED_NAMES):
        raise DataError(f"columns: expected names of data columns, got {min(reserved)}")
    arguments = {
        "prompts": prompts,
        "completions": completions,
        "completion_ids": completion_ids,
    }
    check_lengths(arguments | columns, len(texts))
    return Completions(prompts, completions, completion_ids, columns)


def _texts(content: Mapping[str, Any], name: str) -> list[str]:
    values = content.get(name)
    if not isinstance(values, list):
        raise DataError(f"{name}: expected a list of texts, got {kind(values)}")
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise DataError(f"{name}: expected a text at {index}, got {kind(value)}")
    return values


# --- answers


def read_answer(body: bytes, count: int, quote: Callable[[str], str] = ascii) -> Scores:
    """Read and check the body of an answer.

    Args:
        body: JSON `{"scores": [...]}`, with "metrics" and "extras" where the server has them.
        count: how many scores there have to be.
        quote: how a piece of the answer is put into a message.

    Raises:
        DataError: it is no JSON object, there are more or fewer scores, or one is neither a finite number nor null.
    """
    text = body.decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"expected JSON, got {quote(text)}") from None
    scores = content.get("scores") if isinstance(content, dict) else None
    if not isinstance(scores, list):
        raise DataError(f'expected {{"scores": [...]}}, got {quote(text)}')
    if len(scores) != count:
        raise DataError(f"expected {count} scores, got {len(scores)}")
    # Python reads NaN, and numbers that are larger than any float.
    for index, score in enumerate(scores):
        if score is not None and not is_finite(score):
            raise DataError(
                f"expected a finite number or null as score {index}, got {quote(kind(score))}"
            )
    values: list[Score] = [None if score is None else float(score) for score in scores]
    metrics = _metrics(content.get("metrics"))
    extras = _extras(content.get("extras"), count, quote)
    return Scores(values, metrics, extras)


def is_finite(value: Any) -> bool:
    """Return whether JSON gave a number that is finite as a float; true and false are no numbers."""
    # Also false for NaN, and for an integer above the largest float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def kind(value: Any) -> str:
    """Describe a JSON value in a few characters, however large it is."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value)[:80]


def _metrics(content: Any) -> dict[str, float]:
    """Check the metrics of an answer; null stands for a number that JSON does not have."""
    if content is None:
        return {}
    # What came instead is not shown: a server may repeat a secret of its request.
    if not isinstance(content, dict) or not all(
        value is None or is_finite(value) for value in content.values()
    ):
        raise DataError("metrics: expected an object of numbers or null, got something else")
    return {name: math.nan if value is None else float(value) for name, value in content.items()}


def _extras(content: Any, count: int, quote: Callable[[str], str]) -> dict[str, list[Any]]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise DataError(f"extras: expected an object of lists, got {quote(kind(content))}")
    for name, values in content.items():
        if not isinstance(values, list) or len(values) != count:
            raise DataError(f"extras: expected a list of {count} values as {quote(name)}")
    return content
