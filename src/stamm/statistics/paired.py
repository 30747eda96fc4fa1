"""Paired differences of two arms that were measured on the same documents or questions.

Both arms answered the same items, so what makes an item hard for both cancels in the difference;
separate intervals of the two arms would hide that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stamm.statistics.student_t import t_quantile

CONFIDENCE = 0.95
REFERENCE = "swiglu"  # the arm of a run that differences are taken against


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The second arm minus the first.

    standard_error   over items
    count            items that both were measured on
    """

    mean: float
    standard_error: float
    count: int

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval: t(0.95, count - 1) standard errors."""
        return t_quantile(CONFIDENCE, self.count - 1) * self.standard_error


def paired_difference(
    first: Mapping[str, tuple[int, float]], second: Mapping[str, tuple[int, float]]
) -> PairedDifference | None:
    """The difference of two means per unit over the same items, with its standard error.

    first, second   units of an item (tokens of a document) and their sum (its nats), by its name

    With d the difference of an item's sums and t its units, D = sum(d) / sum(t), and the standard
    error is sqrt(n / (n - 1) * sum_i (d_i - D t_i)^2) / sum(t).

    Edge     None without the same items, in the same units, at least two; None where it is not
             finite
    Source   Cochran 1977, Sampling Techniques, section 6.4 (ratio estimate)
    """
    names = sorted(first)
    if len(names) < 2 or names != sorted(second):
        return None
    pairs = [(first[name], second[name]) for name in names]
    if any(first_entry[0] != second_entry[0] for first_entry, second_entry in pairs):
        return None
    total = sum(first_entry[0] for first_entry, _ in pairs)
    differences = [second_entry[1] - first_entry[1] for first_entry, second_entry in pairs]
    if not all(map(math.isfinite, differences)):
        return None
    mean = math.fsum(differences) / total
    squares = math.fsum(
        (value - mean * first_entry[0]) ** 2
        for value, (first_entry, _) in zip(differences, pairs, strict=True)
    )
    error = math.sqrt(len(names) / (len(names) - 1) * squares) / total
    return PairedDifference(mean=mean, standard_error=error, count=len(names))
