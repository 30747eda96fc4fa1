"""Bounds of settings, stated in the type of a field: `threads: AtLeastOne = 1`.

A configuration whose checks are all bounds is a `Bounded`; another gives `bounds(self)` to `validate`,
beside its own checks. None satisfies any bound.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Callable
from typing import Annotated, Any

from stamm.base.config import validate


@dataclasses.dataclass(frozen=True)
class FieldBound:
    """The condition of a value, and the message that completes "field = value ..."."""

    holds: Callable[[Any], bool]
    message: str


def within(low: float, high: float) -> FieldBound:
    """From `low` to `high`, both included."""
    return FieldBound(lambda value: low <= value <= high, f"must lie in [{low:g}, {high:g}]")


NOT_EMPTY = FieldBound(bool, "is empty")
NOT_NEGATIVE = FieldBound(lambda value: value >= 0, "must not be negative")
AtLeastOne = Annotated[int, FieldBound(lambda value: value >= 1, "must be at least 1")]
Natural = Annotated[int, NOT_NEGATIVE]
Share = Annotated[float, within(0, 1)]
Text = Annotated[str, NOT_EMPTY]
Positive = Annotated[
    float, FieldBound(lambda value: 0 < value < math.inf, "must be positive and finite")
]
NotNegative = Annotated[
    float, FieldBound(lambda value: 0 <= value < math.inf, "must be finite and not negative")
]


def bounds(config: Any) -> list[tuple[str, bool, str]]:
    """The checks of the bounds of a configuration's fields, as `validate` takes them."""
    kind: type = type(config)
    return [
        (name, (value := getattr(config, name)) is None or bound.holds(value), bound.message)
        for name, bound in _bounds(kind)
    ]


class Bounded:
    """A configuration that is checked by the bounds of its fields alone."""

    def __post_init__(self) -> None:
        validate(self, *bounds(self))


@functools.cache
def _bounds(kind: type) -> list[tuple[str, FieldBound]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        (name, bound)
        for name, hint in hints.items()
        for part in (hint, *typing.get_args(hint))
        for bound in getattr(part, "__metadata__", ())
        if isinstance(bound, FieldBound)
    ]
