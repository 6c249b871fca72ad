"""Checks of settings: each raises a `ConfigError` that names the field, what was expected and what came."""

import math
from collections.abc import Collection

from tyro.constructors import PrimitiveConstructorSpec

from jaxppo.errors import ConfigError


def require(condition: bool, name: str, expected: str, value: object) -> None:
    """Raise a `ConfigError` that names the field unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{name}: expected {expected}, got {value!r}")


def require_positive(config: object, *names: str) -> None:
    """Raise a `ConfigError` unless every named field is above 0."""
    for name in names:
        require(getattr(config, name) > 0, name, "a number above 0", getattr(config, name))


def require_finite(config: object, *names: str) -> None:
    """Raise a `ConfigError` unless every named field is finite and at least 0."""
    for name in names:
        value = getattr(config, name)
        require(0.0 <= value < math.inf, name, "a finite number of at least 0", value)


def require_fraction(config: object, *names: str) -> None:
    """Raise a `ConfigError` unless every named field is in [0, 1]."""
    for name in names:
        require(0.0 <= getattr(config, name) <= 1.0, name, "a number in [0, 1]", getattr(config, name))


def require_divisible(name: str, value: int, by_name: str, by: int) -> None:
    """Raise a `ConfigError` unless `value` is a multiple of `by`; both go by their names."""
    if value % by:
        raise ConfigError(f"{name}: expected a multiple of {by_name} ({by}), got {value}")


def choices(names: Collection[str]) -> PrimitiveConstructorSpec[str]:
    """Annotate a setting whose values are the names of a table, so that `--help` shows them; see `require_choice`."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(names)}}}",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [value],
    )


def require_choice(config: object, name: str, names: Collection[str]) -> None:
    """Raise a `ConfigError` unless the named field is one of the names of a table."""
    require(getattr(config, name) in names, name, f"one of {', '.join(names)}", getattr(config, name))
