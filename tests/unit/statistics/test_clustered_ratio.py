"""Ratios of sums and their standard errors, with and without clusters."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from stamm.statistics.clustered_ratio import ClusteredRatio


def ratio(values: list[tuple[float, float, str]]) -> ClusteredRatio:
    found = ClusteredRatio()
    for y, x, cluster in values:
        found.add(y, x, cluster)
    return found


def test_without_clusters_it_is_the_mean_with_its_usual_error() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    found = ratio([(value, 1.0, "") for value in values])
    assert found.value == statistics.fmean(values)
    assert found.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(6))
    assert found.clusters == found.count == 6
    # t of 5 degrees of freedom
    assert found.half_width == pytest.approx(2.5706 * (found.standard_error or 0), rel=1e-4)


def test_items_of_a_cluster_count_as_one() -> None:
    once = [(1.0, 1.0, ""), (0.0, 1.0, ""), (1.0, 1.0, "")]
    twice = [(y, x, f"c{i}") for i, (y, x, _) in enumerate(once) for _ in range(10)]
    assert ratio(twice).standard_error == pytest.approx(ratio(once).standard_error)
    assert ratio(twice).clusters == 3


def test_the_interval_covers_the_truth_where_clusters_differ() -> None:
    draw = random.Random(3)
    covered = 0
    for _ in range(400):
        found = ClusteredRatio()
        for cluster in range(30):
            p = draw.uniform(0.2, 0.8)
            for _ in range(10):
                found.add(float(draw.random() < p), 1.0, str(cluster))
        covered += abs(found.value - 0.5) <= (found.half_width or 0)
    assert 0.92 <= covered / 400 <= 0.975


def test_weights_and_edges() -> None:
    found = ratio([(4.0, 2.0, ""), (3.0, 3.0, "")])
    assert found.value == 7 / 5
    assert found.standard_error == pytest.approx(math.sqrt(2 * (1.2**2 + 1.2**2)) / 5)
    assert ratio([(1.0, 1.0, "a"), (0.0, 1.0, "a")]).standard_error is None
    assert math.isnan(ClusteredRatio().value)
