"""docs/evidence/coverage.json: simulated error of the intervals over arms and looks, re-computed in part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stamm.statistics.intervals import differences
from stamm.statistics.sequential import shares_of
from tools.coverage import BASELINES, NOISE, SYMMETRIC, cell, differences_of, errors, power
from tools.evidence_studies import bits_by_seed

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "evidence/coverage.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize(
    ("kind", "arms", "baseline", "looks"),
    [
        ("normal", 5, "unequal", (8, 16)),
        ("t3", 2, "equal", (4, 8)),
        ("mixture", 3, "none", (8, 16)),
        ("lognormal", 2, "unequal", (4, 8)),
        ("bad_seeds", 2, "none", (8, 16)),
    ],
)
def test_cells_of_the_table_are_what_the_simulation_gives(
    table: dict[str, Any], kind: str, arms: int, baseline: str, looks: tuple[int, ...]
) -> None:
    assert cell(kind, arms, baseline, looks) in table["cells"]


def test_error_and_coverage_hold_for_symmetric_noise_and_not_for_skewed(
    table: dict[str, Any],
) -> None:
    by_kind = {
        kind: [one["error_t"] for one in table["cells"] if one["noise"] == kind] for kind in NOISE
    }
    assert {len(found) for found in by_kind.values()} == {2 * len(BASELINES) * 4}
    # Simultaneous coverage is 1 - error.
    assert max(max(by_kind[kind]) for kind in SYMMETRIC) <= 0.055
    assert max(by_kind["lognormal"]) > 0.1
    assert max(by_kind["bad_seeds"]) > 0.15
    text = (DOCS / "comparisons.md").read_text("utf-8")
    for kinds in (SYMMETRIC, ("lognormal",), ("bad_seeds",)):
        found = [error for kind in kinds for error in by_kind[kind]]
        assert f"{min(found):.3f} to {max(found):.3f}" in text
    cut = [
        1 - one["error_skewness"] / one["error_t"]
        for one in table["cells"]
        if one["noise"] not in SYMMETRIC and one["error_t"] > 0.055
    ]
    assert f"by {100 * min(cut):.0f} to {100 * max(cut):.0f} %" in text
    assert power(8) in table["power"]
    assert (
        f"{table['power'][1]['power_t']:.2f} to {table['power'][1]['power_skewness']:.2f}" in text
    )


def test_the_committed_differences_with_many_seeds_are_not_skewed() -> None:
    found = []
    for name in ("activations_36", "equal_time"):
        bits = bits_by_seed(json.loads((DOCS / f"evidence/{name}.json").read_text("utf-8")))
        for arm in ("relu2", "xielu"):
            apart = np.array([bits[arm][seed] - bits["swiglu"][seed] for seed in bits[arm]])
            found.append(float(((apart - apart.mean()) ** 3).mean() / apart.std() ** 3))
    text = (DOCS / "comparisons.md").read_text("utf-8").replace("\n", " ")
    assert f"between −{-min(found):.2f} and −{-max(found):.2f}" in text


@pytest.mark.parametrize("kind", NOISE)
def test_the_simulation_has_the_rule_of_the_comparisons(kind: str) -> None:
    looks, drawn = (4, 8), differences_of(kind, 3, "equal", 8, 100)
    fast = errors(drawn, looks)["t"].tolist()
    slow, covered = [], []
    for experiment in drawn.tolist():
        shown = held = False
        for look, count in enumerate(looks):
            arms = {str(i): dict(enumerate(line[:count])) for i, line in enumerate(experiment)}
            base = {"base": dict.fromkeys(range(count), 0.0)}
            found = differences(base | arms, "base", 0.95, shares_of(looks), look)
            shown |= any(one.shown for one in found)
            held |= any(
                not (one.interval.low or 0) <= 0 <= (one.interval.high or 0) for one in found
            )
        slow.append(shown)
        covered.append(held)
    assert slow == fast
    assert covered == fast
