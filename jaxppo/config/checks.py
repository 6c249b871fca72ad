"""Checks of settings: each raises a `ConfigError` that names the field, what was expected and what came."""

import dataclasses
import json
import math
from collections.abc import Collection
from typing import Any, Literal

from jaxppo.errors import ConfigError

Validator = Literal["builtin", "val", "auto"]
"""Who judges plans: the in-process validator, the VAL binary, or builtin where it covers the domain."""

ComputeDtype = Literal["float32", "bfloat16"]
"""Numbers that a model computes in."""


def require(condition: bool, name: str, requirement: str, value: object) -> None:
    """Raise a `ConfigError` that names the field unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{name}: expected {requirement}, got {value!r}")


def require_default(config: Any, name: str, reason: str) -> None:
    """Raise a `ConfigError` unless the named field has its default; `reason` says in which case it must."""
    default = type(config).__dataclass_fields__[name].default
    value = getattr(config, name)
    # In the message as a command line would say it.
    expected = " ".join(default) if isinstance(default, tuple) else default
    expected = "none" if expected in (None, "") else expected
    found = " ".join(map(str, value)) if isinstance(value, tuple) else value
    require(value == default, name, f"{expected} {reason}", found)


def require_positive(config: object, *names: str) -> None:
    """Raise a `ConfigError` unless every named field is above 0, or None."""
    for name in names:
        value = getattr(config, name)
        require(value is None or value > 0, name, "a number above 0", value)


def require_finite(config: object, *names: str) -> None:
    """Raise a `ConfigError` unless every named field is finite and at least 0, or None."""
    for name in names:
        value = getattr(config, name)
        # A chain of comparisons, so that NaN is refused, too: each of its comparisons is false.
        fits = value is None or 0.0 <= value < math.inf
        require(fits, name, "a finite number of at least 0", value)


def require_fraction(config: object, *names: str) -> None:
    """Raise a `ConfigError` unless every named field is in [0, 1], or None."""
    for name in names:
        value = getattr(config, name)
        require(value is None or 0.0 <= value <= 1.0, name, "a number in [0, 1]", value)


def require_divisible(name: str, value: int, by_name: str, by: int) -> None:
    """Raise a `ConfigError` unless `value` is a multiple of `by`; both go by their names."""
    if value % by:
        raise ConfigError(f"{name}: expected a multiple of {by_name} ({by}), got {value}")


def is_repo_id(value: str) -> bool:
    """Return whether the Hugging Face hub allows a name for a repository, with its user or without."""
    # Slow to import, and seldom needed
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(value)
    except HFValidationError:
        return False
    return True


def require_repo_id(name: str, value: str) -> None:
    """Raise a `ConfigError` unless a value is `user/name` as the Hugging Face hub allows it."""
    well_formed = is_repo_id(value) and value.count("/") == 1
    require(well_formed, name, "user/name, as a repository of the Hugging Face hub", value)


def without_flag(default: Any) -> Any:
    """Return a field that no command has a flag for: it is set in a YAML file, or in Python."""
    return dataclasses.field(default=default, metadata={"without_flag": True})


def has_flag(spec: dataclasses.Field) -> bool:
    """Return whether commands may have a flag for a field."""
    return "without_flag" not in spec.metadata


JsonMapping = dict[str, Any] | None
"""A setting that is a mapping in YAML, and JSON text on the command line; see `require_mapping`."""


def require_mapping(config: object, name: str, refused: Collection[str] = ()) -> None:
    """Raise a `ConfigError` unless the named field is None, or a mapping that JSON can say.

    Args:
        config: has the field.
        name: of the field.
        refused: keys that it may not have.
    """
    value = getattr(config, name)
    if value is None:
        return
    # The mapping has to come back the same from config.yaml, and from the JSON of a command line.
    requirement = "a mapping, in JSON such as '{\"enable_thinking\": false}'"
    require(isinstance(value, dict), name, requirement, value)
    try:
        is_plain = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        is_plain = False
    require(is_plain, name, "texts as keys, and values that JSON can say", value)
    for key in value:
        require(key not in refused, name, "arguments for the text of the template", key)
