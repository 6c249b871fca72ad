"""Reward functions for runs of tests, by the names `tests.rewards_for_runs:...`; some of them fail."""

from collections.abc import Callable
from typing import Any


def unlucky(completions: list[str]) -> list[float]:
    raise ValueError("bad luck")


def on_topic(completions: list[str], topic: list[str]) -> list[float]:
    """Ask for a column of the data."""
    return [1.0 for _ in completions]


def words(
    completions: list[str], prompt_ids: list[list[int]], log_metric: Callable[[str, float], None], **columns: Any
) -> list[float | None]:
    """Count the words of completions; an empty one has no score."""
    assert all(len(ids) > 0 for ids in prompt_ids) and "reference_plan" not in columns
    log_metric("reward/words", sum(len(text.split()) for text in completions) / len(completions))
    return [None if not text else min(1.0, len(text.split()) / 20) for text in completions]
