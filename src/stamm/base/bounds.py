"""Bounds of settings, stated in the type of a field: `batch_tokens: AtLeastOne = 8192`.

`base.config.validate` checks them, beside the relations between fields. A bound of a tuple's elements is that of
each: `tuple[Natural, ...]`. None satisfies any bound.
"""

from __future__ import annotations

import functools
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from stamm.base.decoder import shown


@dataclass(frozen=True)
class FieldBound:
    """The condition of a value, and the message that completes "field = value ..."."""

    holds: Callable[[Any], bool]
    message: str


def at_least(least: int, note: str = "") -> FieldBound:
    """Whole numbers from `least` on.

    note   ends the message: its unit, " bytes", or the reason, ": one has no variance"
    """
    return FieldBound(lambda value: value >= least, f"must be at least {least}{note}")


def within(interval: str, note: str = "") -> FieldBound:
    """The numbers of an interval: "[0, 2^63)" holds 0, and 2^63 not. note: as of `at_least`."""
    low, high = (_number(end) for end in interval[1:-1].split(","))
    above = operator.ge if interval[0] == "[" else operator.gt
    below = operator.le if interval[-1] == "]" else operator.lt
    return FieldBound(
        lambda value: above(value, low) and below(value, high), f"must lie in {interval}{note}"
    )


def not_empty(fix: str = "") -> FieldBound:
    """Texts that are not blank, and tuples with an element. fix: ends the message, "name a file"."""
    return FieldBound(
        lambda value: bool(value.strip() if isinstance(value, str) else value),
        f"is empty: {fix}" if fix else "is empty",
    )


def distinct(message: str) -> FieldBound:
    """Tuples of different elements. message: as in "names a file twice"."""
    return FieldBound(lambda values: len(set(values)) == len(values), message)


def _number(text: str) -> float:
    """The value of "-1", "0.5", "1e9", "inf" or "2^63", a power exactly."""
    base, is_power, exponent = text.partition("^")
    return int(base) ** int(exponent) if is_power else float(text)


AtLeastOne = Annotated[int, at_least(1)]
Threads = Annotated[int, within("[1, 1024]")]
Natural = Annotated[int, FieldBound(lambda value: value >= 0, "must not be negative")]
Seed = Annotated[int, within("[0, 2^63)")]
Share = Annotated[float, within("[0, 1]")]
PositiveShare = Annotated[float, within("(0, 1]")]
Finite = Annotated[float, FieldBound(math.isfinite, "must be finite")]
Positive = Annotated[
    float, FieldBound(lambda value: 0 < value < math.inf, "must be positive and finite")
]
NotNegative = Annotated[
    float, FieldBound(lambda value: 0 <= value < math.inf, "must be finite and not negative")
]
Text = Annotated[str, not_empty()]


def exceeded_bounds(kind: type, value_of: Callable[[str], Any]) -> list[str]:
    """Problems of values that the types of a class's fields refuse: "Limits.threads = 0 must be at least 1".

    value_of   the value of a field by its name
    """
    problems = []
    for name, is_of_elements, bound in stated_bounds(kind):
        values = {name: value_of(name)}
        if is_of_elements:
            values = {f"{name}.{index}": item for index, item in enumerate(values[name] or ())}
        problems += [
            f"{kind.__name__}.{path} = {shown(value)} {bound.message}"
            for path, value in values.items()
            if value is not None and not bound.holds(value)
        ]
    return problems


@functools.cache
def stated_bounds(kind: type) -> list[tuple[str, bool, FieldBound]]:
    """The bounds of a class: field, whether of the elements of its tuple, bound."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [(name, *stated) for name, hint in hints.items() for stated in _bounds_of(hint)]


def _bounds_of(hint: Any, is_of_elements: bool = False) -> Iterator[tuple[bool, FieldBound]]:
    if hasattr(hint, "__metadata__"):
        for bound in hint.__metadata__:
            if isinstance(bound, FieldBound):
                yield is_of_elements, bound
        hint = hint.__origin__
    origin = typing.get_origin(hint)
    if origin is tuple:
        yield from _bounds_of(typing.get_args(hint)[0], True)
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _bounds_of(member, is_of_elements)
