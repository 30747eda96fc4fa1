"""A ratio of sums with a standard error over clusters, one item at a time."""

from __future__ import annotations

import math

from stamm.statistics.student_t import t_quantile

CONFIDENCE = 0.95


class ClusteredRatio:
    """sum(y) / sum(x) over items; with x = 1 the mean of y. Items of one cluster depend on each other.

    standard_error = sqrt(g / (g - 1) sum_c (y_c - r x_c)^2) / sum(x), with g clusters, y_c and x_c the
    sums of cluster c, and r the ratio

    Source   Cochran 1977, Sampling Techniques, section 6.4 and 9.3 (ratio estimate, cluster sampling)
    Checked  tests/unit/statistics/test_clustered_ratio.py
    """

    def __init__(self) -> None:
        self.count = 0
        self._alone = 0
        self._sums = [0.0] * 5  # of y, x, y^2, x y, x^2, where an item is a cluster
        self._clusters: dict[str, list[float]] = {}

    def add(self, y: float, x: float = 1.0, cluster: str = "") -> None:
        """Add an item; without a cluster it is one of its own, which takes no memory."""
        self.count += 1
        if cluster:
            sums = self._clusters.setdefault(cluster, [0.0, 0.0])
            sums[0] += y
            sums[1] += x
            return
        self._alone += 1
        for index, value in enumerate((y, x, y * y, x * y, x * x)):
            self._sums[index] += value

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return self._alone + len(self._clusters)

    @property
    def value(self) -> float:
        """The ratio; NaN without items."""
        y, x = self._totals()
        return y / x if x else math.nan

    @property
    def standard_error(self) -> float | None:
        """The standard error; None from fewer than two clusters."""
        if self.clusters < 2:
            return None
        r, (_, x) = self.value, self._totals()
        squares = self._sums[2] - 2 * r * self._sums[3] + r * r * self._sums[4]
        squares += math.fsum((y_sum - r * size) ** 2 for y_sum, size in self._clusters.values())
        return math.sqrt(self.clusters / (self.clusters - 1) * max(squares, 0.0)) / x

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval: Student's t with one degree of freedom less than clusters."""
        error = self.standard_error
        return None if error is None else t_quantile(CONFIDENCE, self.clusters - 1) * error

    def _totals(self) -> tuple[float, float]:
        sums = self._clusters.values()
        return (
            self._sums[0] + math.fsum(cluster[0] for cluster in sums),
            self._sums[1] + math.fsum(cluster[1] for cluster in sums),
        )
