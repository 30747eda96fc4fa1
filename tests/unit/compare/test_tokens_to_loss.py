"""Tokens to equal loss, on training losses whose ratio is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stamm.compare.verdict import log_token_ratio


def curve(share: float, seed: int = 1, own: float = 0.0) -> dict[int, float]:
    """Loss 6 - 0.4 ln(step / share): the same loss at `share` of the steps; noise of text is shared."""
    text = np.random.default_rng(7).normal(0, 0.05, 1001)
    mine = np.random.default_rng(seed).normal(0, own, 1001)
    return {n: 6 - 0.4 * math.log(n / share) + text[n] + mine[n] for n in range(1, 1001)}


@pytest.mark.parametrize("share", [0.6, 0.88, 1.0, 1.2, 1.7])
def test_the_ratio_is_found_under_the_noise_of_texts(share: float) -> None:
    found = log_token_ratio(curve(share), curve(1.0), 800)
    assert found is not None
    # the noise of the text tilts both fits alike
    assert math.exp(found) == pytest.approx(share, rel=0.1 * abs(math.log(share)) + 1e-9)


def test_arms_swapped_give_the_inverse() -> None:
    one, other = curve(0.8, 2, 0.01), curve(1.0, 3, 0.01)
    found, back = log_token_ratio(one, other, 800), log_token_ratio(other, one, 800)
    assert found is not None and back is not None
    assert found == -back < 0


def test_what_cannot_be_told_is_none() -> None:
    assert log_token_ratio(curve(0.4), curve(1.0), 800) is None  # before the fitted steps
    assert log_token_ratio(curve(1.0), curve(1.0), 12) is None
    rising = {n: 0.001 * n for n in range(1, 1001)}
    assert log_token_ratio(rising, curve(1.0), 800) is None
    gone = dict.fromkeys(range(1, 1001), math.inf)
    assert log_token_ratio(gone, curve(1.0), 800) is None
