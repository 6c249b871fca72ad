"""Stages that lack memory are repeated with fewer rows."""

import pytest

from jaxppo.profiling.halving import Halving
from jaxppo.run import activity

NO_MEMORY = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 26 GB")


def test_a_stage_is_repeated_with_half_the_rows_until_they_fit_and_stays_there(monkeypatch):
    warnings, tried = [], []
    monkeypatch.setattr(activity, "warn", warnings.append)
    halving = Halving("scoring")
    rows = lambda: halving.rows(12)  # noqa: E731

    def compute():
        tried.append(rows())
        if rows() > 3:
            raise NO_MEMORY if rows() > 6 else MemoryError
        return "scores"

    assert [halving.repeated(compute, rows) for _ in range(2)] == ["scores"] * 2
    assert tried == [12, 6, 3, 3]
    (warning,) = warnings
    assert "scoring" in warning and "12" in warning and "3" in warning


@pytest.mark.parametrize(
    ("error", "rows", "is_repeatable"),
    [(NO_MEMORY, 1, True), (NO_MEMORY, 8, False), (ValueError("another"), 8, True)],
    ids=["a single row", "what it needs is lost", "another error"],
)
def test_other_failures_are_raised_at_once(error, rows, is_repeatable):
    tried, halving = [], Halving("learning")

    def compute():
        tried.append(halving.rows(rows))
        raise error

    with pytest.raises(type(error), match=str(error)):
        halving.repeated(compute, lambda: halving.rows(rows), lambda: is_repeatable)
    assert tried == [rows]
