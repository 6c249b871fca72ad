"""The soft overlong punishment: a reward term that falls as a completion nears the most tokens it may have."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxppo.config import require


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int) -> Callable[..., list[float]]:
    """Make the punishment as a reward function, under TRL's names.

    With l tokens (the end of sequence among them), L = max_completion_len and C = soft_punish_cache it is

        0                     where l <= L - C
        ((L - C) - l) / C     where L - C < l <= L
        -1                    where l > L

    Args:
        max_completion_len: L, in tokens, at least 1.
        soft_punish_cache: C, tokens before L over which it falls, from 1 to L.

    Raises:
        ConfigError: C is out of that range.

    Source: "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (arXiv 2503.14476), equation 13.
    """
    expected = f"1 to the most tokens of a completion ({max_completion_len})"
    require(1 <= soft_punish_cache <= max_completion_len, "soft_punish_cache", expected, soft_punish_cache)
    free = max_completion_len - soft_punish_cache

    def soft_overlong_punishment(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
        return [min(0.0, max(-1.0, (free - len(ids)) / soft_punish_cache)) for ids in completion_ids]

    return soft_overlong_punishment
