"""Files of a comparison: plan.json, looks/N/look.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class PlannedArm:
    """An arm as planned. rate is the peak learning rate that tuning chose.

    shape_factor       the shapes' learning rate, as a multiple of it, that tuning chose; None: not tuned
    output_deviation   standard deviation of an output of its feed-forward blocks at the start
    """

    name: str
    activation: str
    width: int
    parameters: int
    sequences: int
    tokens: int
    rate: float
    shape_factor: float | None = None
    output_deviation: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """plan.json: what a comparison decided before its first counted run.

    config_sha256   of the recipe's configuration, without keys that results do not depend on
    primary         the measure of the verdict
    evaluated       weights that are measured
    looks           seeds after which the comparison may stop
    spending        how the looks share the error rate
    stopping        the rule that ends it
    spread          standard deviation of the paired difference in the pilot; None without a pilot
    detectable      difference shown with power 0.8, in standard deviations
    difference      the smallest difference of interest, in bits per byte; None: not stated
    """

    SCHEMA: ClassVar[int] = 1

    config_sha256: str
    primary: str
    evaluated: str
    baseline: str
    matched: str
    confidence: float
    seeds: tuple[int, ...]
    looks: tuple[int, ...]
    spending: str
    stopping: str
    arms: tuple[PlannedArm, ...]
    difference: float | None = None
    pilot: str = ""
    spread: float | None = None
    detectable: float


@dataclass(frozen=True, kw_only=True)
class LookFile:
    """looks/N/look.json: the decision after N seeds.

    stop       whether later seeds are left out
    decisions  by arm: "shown", "excluded" (no difference as large as the plan's), "diverged", "open"
    p_values   by arm, corrected for arms and looks; an arm that diverged has none
    """

    SCHEMA: ClassVar[int] = 1

    seeds: int
    stop: bool
    decisions: Mapping[str, str]
    p_values: Mapping[str, float] = field(default_factory=dict)
