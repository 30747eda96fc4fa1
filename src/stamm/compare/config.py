"""Configuration of the plan and of the looks of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stamm.base.files import sha256_value
from stamm.compare.records import PlannedArm
from stamm.runs.run import without_free_keys

PLAN, PLAN_SHA256, LOOK = "plan.json", "plan.sha256", "look.json"


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Content of a plan, apart from the rates that tuning chooses: see `PlanFile`."""

    config_sha256: str
    evaluated: str
    baseline: str
    matched: str
    confidence: float
    seeds: tuple[int, ...]
    looks: tuple[int, ...]
    arms: tuple[PlannedArm, ...]
    difference: float | None
    pilot: str


@dataclass(frozen=True, kw_only=True)
class LookConfig:
    """Configuration of a look.

    seeds        how many are finished
    difference   smallest difference of interest, in bits per byte; None: not stated
    """

    seeds: int
    difference: float | None


def config_hash(plain: Any) -> str:
    """SHA-256 of a recipe's configuration in plain form, without keys that results do not depend on."""
    return sha256_value(without_free_keys(plain))
