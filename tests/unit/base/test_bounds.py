"""Bounds in the types of settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from stamm.base.bounds import (
    AtLeastOne,
    Finite,
    Natural,
    NotNegative,
    Positive,
    PositiveShare,
    Seed,
    Text,
    at_least,
    distinct,
    not_empty,
    within,
)
from stamm.base.config import Bounded, from_plain, override, to_plain, validate
from stamm.base.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Limits(Bounded):
    """Settings with a bound of each kind."""

    threads: AtLeastOne = 1
    patience: AtLeastOne | None = None
    share: Annotated[float, within("[0, 0.5)")] = 0.0
    part: PositiveShare = 1.0
    name: Text = "a"
    rate: Positive = 1.0
    weight: NotNegative = 0.0
    shift: Finite = 0.0
    seed: Seed = 0
    seeds: Annotated[int, at_least(2, ": one has no variance")] = 2
    files: Annotated[tuple[str, ...], not_empty("name a file"), distinct("names a file twice")] = (
        "a",
    )
    repeats: tuple[Natural, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Narrow(Limits):
    """Settings with a check of their own, and a wider bound of an inherited field."""

    other: str = ""
    rate: NotNegative = 0.0

    def __post_init__(self) -> None:
        validate(self, ("other", self.other != self.name, "is the name"))


@dataclass(frozen=True, kw_only=True)
class Nested(Bounded):
    """Settings that hold others."""

    width: AtLeastOne = 1
    limits: Limits = field(default_factory=Limits)
    several: tuple[Limits, ...] = (Limits(),)


def test_bounds_are_checked_and_named() -> None:
    Limits(patience=3, share=0.49, part=1, shift=-1e300, seed=2**63 - 1, repeats=(0, 2**70))
    wrong = {
        "threads = 0 must be at least 1": {"threads": 0},
        "patience = -1 must be at least 1": {"patience": -1},
        r"share = 0.5 must lie in \[0, 0.5\)": {"share": 0.5},
        r"share = -1e-09 must lie in \[0, 0.5\)": {"share": -1e-9},
        r"share = nan must lie in \[0, 0.5\)": {"share": math.nan},
        r"part = 0.0 must lie in \(0, 1\]": {"part": 0.0},
        "name = '' is empty": {"name": ""},
        r"name = ' \\t' is empty": {"name": " \t"},
        "rate = 0.0 must be positive and finite": {"rate": 0.0},
        "rate = nan must be positive and finite": {"rate": math.nan},
        "weight = inf must be finite and not negative": {"weight": math.inf},
        "shift = -inf must be finite": {"shift": -math.inf},
        r"seed = 9223372036854775808 must lie in \[0, 2\^63\)": {"seed": 2**63},
        "seeds = 1 must be at least 2: one has no variance": {"seeds": 1},
        r"files = \(\) is empty: name a file": {"files": ()},
        r"files = \('b', 'b'\) names a file twice": {"files": ("b", "b")},
        r"repeats\.1 = -1 must not be negative": {"repeats": (3, -1)},
    }
    for message, values in wrong.items():
        with pytest.raises(ConfigError, match=rf"^Limits\.{message}\.$"):
            Limits(**values)  # type: ignore[arg-type]


def test_a_class_with_checks_of_its_own_reports_all_together() -> None:
    with pytest.raises(
        ConfigError, match=r"Narrow\.threads = 0 .*; Narrow\.other = 'a' is the name"
    ):
        Narrow(threads=0, other="a")
    assert Narrow().rate == 0.0  # the bound of the class itself, not of the one it inherits from


def test_a_value_is_shown_in_at_most_80_characters() -> None:
    with pytest.raises(ConfigError) as caught:
        Limits(files=("x" * 5000,) * 2)
    assert len(caught.value.line()) < 130


def test_a_bounded_configuration_is_stored_and_set_like_any_other() -> None:
    changed = override(Limits(), ["threads=4", "patience=2", "repeats=1,2"])
    assert from_plain(Limits, to_plain(changed)) == changed
    with pytest.raises(ConfigError, match=r"Limits.repeats.1 = -2 .*\(repeats set on"):
        override(Limits(), ["repeats=1,-2"])


def test_overrides_of_several_classes_are_refused_together_each_with_its_own_assignment() -> None:
    values = ["limits.threads=0", "limits.rate=-1", "several.0.seed=-1", "width=0"]
    with pytest.raises(ConfigError) as caught:
        override(Nested(), values[:3])
    first, second = caught.value.line().split("(2)")
    assert "threads = 0" in first and "rate = -1.0" in first and "seed" not in first
    assert "(limits.threads, limits.rate set on the command line)" in first
    assert "seed = -1" in second and "(several.0.seed set on the command line)" in second
    with pytest.raises(ConfigError, match=r"^3 problems: .*width = 0 must be at least 1"):
        override(Nested(), values)
