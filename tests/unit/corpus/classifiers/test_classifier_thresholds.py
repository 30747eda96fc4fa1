"""Score thresholds: never more than the share above, ties together, whatever the order."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stamm.base.errors import DataError
from stamm.corpus.classifiers.evaluate import quantile_threshold

SCORES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=40)


@given(SCORES, st.integers(0, 100), st.randoms())
def test_the_smallest_score_with_at_most_the_share_above(scores, percent, random) -> None:  # type: ignore[no-untyped-def]
    share = float(Decimal(percent) / 100)
    allowed = percent * len(scores) // 100
    cut = quantile_threshold(scores, share)
    assert sum(score > cut for score in scores) <= allowed
    smaller = [score for score in scores if score < cut]
    assert all(sum(other > score for other in scores) > allowed for score in smaller)
    random.shuffle(scores)
    assert quantile_threshold(scores, share) == cut


def test_a_share_counts_as_the_decimal_that_it_is_written_as() -> None:
    # 0.29 * 100 is 28.999… in floating point.
    assert quantile_threshold(range(100), 0.29) == 70
    assert quantile_threshold(range(100), 0.0) == 99
    assert quantile_threshold(range(100), 1.0) == -math.inf


@pytest.mark.parametrize("scores", [[], [0.5, math.nan]])
def test_no_threshold_from_nothing(scores: list[float]) -> None:
    with pytest.raises(DataError):
        quantile_threshold(scores, 0.05)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(DataError, match="share"):
        quantile_threshold([0.5], share)
