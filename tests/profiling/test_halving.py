"""Stages that lack memory are repeated with fewer rows."""

import pytest

from jaxppo.profiling.halving import Halving
from jaxppo.run import activity

NO_MEMORY = RuntimeError("RESOURCE_EXHAUSTED: 26 GB")


def test_a_stage_is_repeated_with_half_the_rows_until_they_fit_and_stays_there(monkeypatch):
    warnings, tried, halving = [], [], Halving("scoring")
    monkeypatch.setattr(activity, "warn", warnings.append)

    def attempt(planned, fitting, error=NO_MEMORY, is_repeatable=True):
        def compute():
            tried.append(halving.rows(planned))
            if tried[-1] > fitting:
                raise error

        halving.repeated(compute, lambda: halving.rows(planned), lambda: is_repeatable)

    attempt(12, fitting=3)
    attempt(12, fitting=3)
    assert tried == [12, 6, 3, 3]
    (warning,) = warnings
    assert "scoring" in warning and "12" in warning and "3" in warning
    for error, planned, is_repeatable in ((MemoryError, 1, True), (MemoryError, 8, False), (ValueError, 8, True)):
        with pytest.raises(error):
            attempt(planned, 0, error, is_repeatable)
    assert halving.divisor == 4
