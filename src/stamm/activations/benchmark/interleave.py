"""Calls that take turns, so that whatever disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stamm.activations.benchmark.clock import Clock, Timed

_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Of the seconds that a call took: a fifth took less than p20, half less than p50."""

    p20: float
    p50: float
    p80: float


def in_turns(
    clock: Clock, works: Mapping[_Name, Timed], rounds: int, *, warm_up: int = 0
) -> dict[_Name, list[float]]:
    """Seconds of each call in every round, by its name.

    Each round calls everything once, and the order is rotated by one from round to round.

    warm_up   rounds before, which are not counted
    Checked   tests/unit/cli/test_bench.py::test_the_order_rotates_from_round_to_round
    """
    names = list(works)
    times: dict[_Name, list[float]] = {name: [] for name in names}
    for turn in range(-warm_up, rounds):
        first = turn % len(names)
        order = names[first:] + names[:first]
        found = clock.seconds([works[name] for name in order])
        for name, seconds in zip(order, found, strict=True):
            if turn >= 0:
                times[name].append(seconds)
    return times


def quantiles(numbers: Sequence[float]) -> Quantiles:
    """p20, p50 and p80 of at least two numbers."""
    cuts = statistics.quantiles(numbers, n=10, method="inclusive")
    return Quantiles(p20=cuts[1], p50=statistics.median(numbers), p80=cuts[7])
