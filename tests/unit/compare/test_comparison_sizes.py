"""Differences at several sizes: the fitted trend and its interval."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from stamm.base.errors import RunError
from stamm.compare.sizes import SizePoint, size_points, slope_of, trends
from tests.unit.compare.test_comparison import change, write_comparison


def point(parameters: int, values: np.ndarray, first: int | None = None) -> SizePoint:
    """Seeds from `first`; of their own for each size where None."""
    start = parameters if first is None else first
    return SizePoint(
        comparison="c", exploratory=False, arm="xielu", parameters=parameters, tokens=1e6,
        by_seed=dict(enumerate(values.tolist(), start)), tokens_ratio=None,
    )  # fmt: skip


@pytest.mark.parametrize("seeds", [(4, 4, 4), (3, 8, 5)])
def test_the_interval_of_the_slope_covers_the_truth(seeds: tuple[int, ...]) -> None:
    """Differences of -0.02 at 1 M parameters that shrink by 0.005 for ten times as many."""
    draw, held, repeats = np.random.default_rng(6), 0, 3000
    sizes, noise = (1_000_000, 4_000_000, 10_000_000), (0.02, 0.01, 0.005)
    places = [math.log10(size) for size in sizes]
    for _ in range(repeats):
        points = [
            point(size, draw.normal(-0.02 + 0.005 * (place - 6), deviation, count))
            for size, place, deviation, count in zip(sizes, places, noise, seeds, strict=True)
        ]
        slope, half = slope_of(places, points)
        held += abs(slope - 0.005) <= half
    assert 0.935 <= held / repeats <= 0.99


def test_a_slope_by_hand() -> None:
    """Two sizes, ten times apart: the difference of the means, and of standard errors the root of squares."""
    points = [point(10, np.array([1.0, 2.0, 3.0])), point(100, np.array([4.0, 5.0, 6.0]))]
    slope, half = slope_of([1.0, 2.0], points)
    assert slope == pytest.approx(3.0)
    assert half == pytest.approx(2.776 * math.sqrt(2 / 3), rel=1e-3)  # 4 degrees of freedom


@pytest.mark.parametrize("first", [(1, 1, 1), (1, 1, 20), (1, 4, 1)])
@pytest.mark.parametrize("shared", [-0.4, 0.9])
def test_the_interval_covers_the_truth_where_comparisons_share_seeds(
    first: tuple[int, ...], shared: float
) -> None:
    """What a seed does to one size it does to the next, too, or the opposite."""
    draw, held, repeats = np.random.default_rng(7), 0, 3000
    sizes = (1_000_000, 4_000_000, 10_000_000)
    places = [math.log10(size) for size in sizes]
    for _ in range(repeats):
        # Of one seed, the first two sizes are correlated.
        common, own = draw.normal(size=40), draw.normal(size=(3, 40))
        rest = math.sqrt(1 - abs(shared))
        signs = (1.0, math.copysign(1.0, shared), 1.0)
        noise = [
            s * math.sqrt(abs(shared)) * common + rest * o for s, o in zip(signs, own, strict=True)
        ]
        points = [
            point(size, one[start : start + 8], start)
            for size, one, start in zip(sizes, noise, first, strict=True)
        ]
        slope, half = slope_of(places, points)
        held += abs(slope) <= half
    assert 0.93 <= held / repeats <= 0.975


def test_the_same_seeds_give_the_interval_of_slopes_by_seed() -> None:
    first, second = np.array([1.0, 2.0, 4.0]), np.array([4.0, 5.0, 7.5])
    slope, half = slope_of([1.0, 2.0], [point(10, first, 1), point(100, second, 1)])
    slopes = second - first
    assert slope == pytest.approx(slopes.mean())
    # t of 0.95 and 2 degrees of freedom: 4.3027
    assert half == pytest.approx(4.3027 * slopes.std(ddof=1) / math.sqrt(3), rel=1e-4)


def test_folders_of_two_sizes_and_one_of_another_kind(tmp_path: Path) -> None:
    small, large = (write_comparison(tmp_path / name) for name in ("small", "large"))
    for path in large.glob("final/*/*/summary.json"):
        change(path, parameters=10_000_000)
    points = size_points([small, large])
    assert [(one.comparison, one.arm) for one in points] == [
        (run, arm) for run in ("small", "large") for arm in ("relu2", "xielu")
    ]
    assert points[1].mean == pytest.approx(-0.1) and points[1].seeds == 3
    assert points[1].cells()[0] == "small (exploratory)"
    said = trends(points)
    assert len(said) == 2 and said[1].startswith("xielu: 0.0000 ± ")
    assert "for ten times the parameters (95 %), fitted from 2 comparisons." in said[1]
    assert trends(size_points([small])) == []
    for path in large.glob("final/*/*/summary.json"):
        change(path, parameters=1_000_000, trained_tokens=2_457_600)
    for path in small.glob("final/*/*/summary.json"):
        change(path, parameters=1_000_000)
    assert "for ten times the tokens" in trends(size_points([small, large]))[0]
    with pytest.raises(RunError, match="holds no comparison"):
        size_points([tmp_path])
    for path in small.glob("final/*/[23]/summary.json"):
        path.unlink()
    stored = json.loads((large / "config.json").read_text())["config"]
    change(large / "config.json", config={**stored, "baseline": "relu2"})
    with pytest.raises(RunError, match=r"differ in the baseline: swiglu, relu2"):
        size_points([small, large])
    with pytest.raises(RunError, match=r"no arm of .*small has two finished seeds"):
        size_points([small])
