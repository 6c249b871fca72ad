"""How much of a reference plan is in another plan, as a number in [0, 1]."""

from collections.abc import Sequence
from typing import Any, Literal

from jaxppo.errors import ConfigError
from jaxppo.planning.language.plans import lccs_length, lcs_length

NormaliseBy = Literal["max", "reference", "prediction"]


def lccs(
    predicted: Sequence[Any], reference: Sequence[Any], normalise_by: NormaliseBy = "max"
) -> float:
    """Return the length of the longest contiguous common run of actions, divided by a plan length.

    LCCS = |longest run| / n with n = max(|predicted|, |reference|), |reference| or |predicted|. With `max` it is in
    [0, 1] and 1 only for the reference itself; with `reference`, other actions around the common run cost nothing.

    Args:
        predicted: actions, compared by equality: tuples or "(action args)" strings.
        reference: the same for the reference plan.
        normalise_by: which length divides.

    Returns:
        A number in [0, 1]; 0.0 where the divisor is 0.

    Source: "Chasing Progress, Not Perfection" (ICAPS 2025), whose code divides by the reference.
    """
    return per_action(lccs_length(predicted, reference), predicted, reference, normalise_by)


def lcs(
    predicted: Sequence[Any], reference: Sequence[Any], normalise_by: NormaliseBy = "max"
) -> float:
    """Return the length of the longest common subsequence of actions (gaps allowed), divided as in `lccs`."""
    return per_action(lcs_length(predicted, reference), predicted, reference, normalise_by)


def per_action(
    length: int, predicted: Sequence[Any], reference: Sequence[Any], normalise_by: NormaliseBy
) -> float:
    """Divide a number of actions by a plan length; 0.0 where that is 0."""
    divisors = {
        "max": max(len(predicted), len(reference)),
        "reference": len(reference),
        "prediction": len(predicted),
    }
    if normalise_by not in divisors:
        choices = "max, reference or prediction"
        raise ConfigError(f"normalise_by: expected {choices}, got {normalise_by!r}")
    divisor = divisors[normalise_by]
    if divisor == 0:
        return 0.0
    # More steps can be carried out than the reference has.
    return min(1.0, length / divisor)
