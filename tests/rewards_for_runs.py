"""Reward functions for runs of tests, by the names `tests.rewards_for_runs:...`; some of them fail."""

import os
import re
import time
from collections.abc import Callable
from typing import Any


def fate(text: str) -> int:
    """A pure function of the completion, so that a test can say what must have happened."""
    return sum(map(ord, text)) % 6


def troubled(completions: list[str]) -> list[float | None]:
    """Raise, end the process, hang, give no score or 1, by the fate of a completion."""
    (text,) = completions
    if fate(text) == 1:
        raise ValueError("bad luck")
    if fate(text) == 2:
        os._exit(3)
    if fate(text) == 3:
        time.sleep(600)
    if fate(text) == 4:
        return [None]
    return [1.0]


def unlucky(completions: list[str]) -> list[float]:
    raise ValueError("bad luck")


def on_topic(completions: list[str], topic: list[str]) -> list[float]:
    """Ask for a column of the data."""
    return [1.0 for _ in completions]


def by_words(completions: list[str]) -> list[list[tuple[int, int, float]]]:
    """Give the length of each word, where it stands; and something for the whole."""
    found = [list(re.finditer(r"\S+", text)) for text in completions]
    return [[(word.start(), word.end(), len(word[0]) / 100) for word in row] + [(0, 0, 0.5)] for row in found]


def words(
    completions: list[str], prompt_ids: list[list[int]], log_metric: Callable[[str, float], None], **columns: Any
) -> list[float | None]:
    """Count the words of completions; an empty one has no score."""
    assert all(len(ids) > 0 for ids in prompt_ids) and "reference_plan" not in columns
    log_metric("reward/words", sum(len(text.split()) for text in completions) / len(completions))
    return [None if not text else min(1.0, len(text.split()) / 20) for text in completions]
