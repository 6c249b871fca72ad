"""The tests: a folder for each room of the package, and helpers they share."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
"""The checkout."""


def quick_first(count: int, params: Iterable[Any]) -> list[Any]:
    """Parameters of which the first `count` are in the quick half, the others in the full tests.

    Args:
        count: how many.
        params: values, tuples of values for several arguments, or what `pytest.param` returns.
    """
    made = type(pytest.param())
    sets = [
        each if isinstance(each, made) else pytest.param(*(each if isinstance(each, tuple) else (each,)))
        for each in params
    ]
    full = [each._replace(marks=[*each.marks, pytest.mark.full]) for each in sets[count:]]
    return [*sets[:count], *full]
