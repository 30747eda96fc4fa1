"""Warnings about arms that were measured with different settings."""

from __future__ import annotations

from collections.abc import Sequence

from stamm.reports.run_data import ArmResults
from stamm.reports.text import one_line

BLIMP_PAIRS = 67_000


def unequal_evaluation(arms: Sequence[ArmResults]) -> str:
    """A sentence when held-out text was read in different windows; "" when losses compare."""
    return _unequal(
        "Held-out losses",
        [
            (arm, f"context {held_out.context:,}, overlap {held_out.overlap:,}")
            for arm in arms
            if (held_out := arm.measured.held_out)
        ],
    )


def unequal_pairs(arms: Sequence[ArmResults]) -> str:
    """A sentence when arms were asked different BLiMP pairs; "" when accuracies compare."""
    return _unequal(
        "BLiMP accuracies",
        [
            (arm, f"{blimp.pairs_per_paradigm:,} pairs per paradigm")
            for arm in arms
            if (blimp := arm.measured.blimp)
        ],
    )


def blimp_part(arms: Sequence[ArmResults]) -> str:
    """The part of BLiMP that was asked: "1,005 of the 67,000 pairs of BLiMP"; "" without any."""
    counts = sorted({arm.measured.blimp.pairs for arm in arms if arm.measured.blimp})
    if not counts:
        return ""
    asked = " or ".join(f"{count:,}" for count in counts)
    return f"{asked} of the {BLIMP_PAIRS:,} pairs of BLiMP"


def unequal_audit(arms: Sequence[ArmResults]) -> str:
    """A sentence when passages were shown or continued at other lengths; "" when they compare."""
    return _unequal(
        "Memorization audits",
        [
            (arm, f"{audit.prefix_tokens:,} prefix tokens, {audit.new_tokens:,} new tokens")
            for arm in arms
            if (audit := arm.measured.memorization)
        ],
    )


def _unequal(what: str, settings: Sequence[tuple[ArmResults, str]]) -> str:
    if len({setting for _, setting in settings}) < 2:
        return ""
    told = "; ".join(f"{one_line(arm.name, 60)}: {setting}" for arm, setting in settings)
    return f"{what} were measured with different settings and cannot be compared ({told})."
