"""Bounds in the types of settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from stamm.base.bounds import AtLeastOne, Bounded, NotNegative, Positive, Text, bounds, within
from stamm.base.config import from_plain, override, to_plain, validate
from stamm.base.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Limits(Bounded):
    """Settings with a bound of each kind."""

    threads: AtLeastOne = 1
    patience: AtLeastOne | None = None
    share: Annotated[float, within(0, 0.5)] = 0.0
    name: Text = "a"
    rate: Positive = 1.0
    weight: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class Narrow(Limits):
    """Settings with a check of their own."""

    other: str = ""

    def __post_init__(self) -> None:
        validate(self, *bounds(self), ("other", self.other != self.name, "is the name"))


def test_bounds_are_checked_and_named() -> None:
    assert Limits(share=0.5, patience=3) == Limits(patience=3, share=0.5)
    wrong = {
        "threads = 0 must be at least 1": {"threads": 0},
        "patience = -1 must be at least 1": {"patience": -1},
        r"share = 0.51 must lie in \[0, 0.5\]": {"share": 0.51},
        "name = '' is empty": {"name": ""},
        "rate = 0.0 must be positive and finite": {"rate": 0.0},
        "weight = inf must be finite and not negative": {"weight": float("inf")},
        "rate = nan must be positive": {"rate": float("nan")},
    }
    for message, values in wrong.items():
        with pytest.raises(ConfigError, match=f"Limits.{message}"):
            Limits(**values)  # type: ignore[arg-type]


def test_a_class_with_checks_of_its_own_reports_all_together() -> None:
    with pytest.raises(
        ConfigError, match=r"Narrow\.threads = 0 .*; Narrow\.other = 'a' is the name"
    ):
        Narrow(threads=0, other="a")


def test_a_bounded_configuration_is_stored_and_set_like_any_other() -> None:
    changed = override(Limits(), ["threads=4", "patience=2"])
    assert from_plain(Limits, to_plain(changed)) == changed
    with pytest.raises(ConfigError, match="threads"):
        override(Limits(), ["threads=0"])
