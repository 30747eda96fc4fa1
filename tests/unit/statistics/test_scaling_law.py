"""The fitted scaling law against laws that are known, and against SciPy's optimum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import least_squares

from stamm.statistics.scaling_law import fit_scaling_law

SIZES, LENGTHS = (0.3e6, 0.65e6, 1.3e6, 2.6e6), (1.0, 5.0, 20.0)
POINTS = [(n, r * n) for n, r in itertools.product(SIZES, LENGTHS)]
N, D = (np.array(values) for values in zip(*POINTS, strict=True))


def law(n, d, floor=1.4, a=60.0, alpha=0.35, b=90.0, beta=0.3):  # type: ignore[no-untyped-def]
    return floor + a / n**alpha + b / d**beta


def test_a_law_without_noise_is_recovered() -> None:
    fitted = fit_scaling_law(N, D, law(N, D), np.ones(len(N)))
    assert fitted.floor == pytest.approx(1.4, abs=2e-3)
    assert fitted.parameter_power == pytest.approx(0.35, rel=5e-3)
    assert fitted.token_power == pytest.approx(0.3, rel=5e-3)
    # Beyond the points: 2.6 M parameters by 20 tokens are the largest of them.
    assert fitted.loss(5.2e6, 1e8) == pytest.approx(law(5.2e6, 1e8), abs=2e-4)


def test_noise_is_fitted_as_well_as_by_an_optimizer_that_starts_at_the_truth() -> None:
    draw = np.random.default_rng(3)
    for _ in range(5):
        errors = draw.uniform(0.002, 0.01, len(N))
        losses = law(N, D) + draw.normal(size=len(N)) * errors
        fitted = fit_scaling_law(N, D, losses, errors)
        ours = sum(((fitted.loss(n, d) - y) / e) ** 2 for n, d, y, e in zip(N, D, losses, errors, strict=True))  # fmt: skip
        start = [1.4, np.log(60 / 1e6**0.35), 0.35, np.log(90 / 1e7**0.3), 0.3]

        def rest(p, y=losses, e=errors):  # type: ignore[no-untyped-def]
            return (p[0] + np.exp(p[1]) * (N / 1e6) ** -p[2] + np.exp(p[3]) * (D / 1e7) ** -p[4] - y) / e  # fmt: skip

        theirs = least_squares(rest, start, bounds=([0, -9, 0.02, -9, 0.02], [9, 9, 2, 9, 2]))
        assert ours <= 2 * theirs.cost * (1 + 1e-3) + 1e-6


def test_no_term_is_negative_where_losses_rise_with_length() -> None:
    fitted = fit_scaling_law(N, D, law(N, 1 / D * 1e13), np.ones(len(N)))
    assert min(fitted.floor, fitted.parameter_term, fitted.token_term) >= 0


@pytest.mark.parametrize("kept", [slice(0, 4), slice(0, 3), slice(0, 12, 3)])
def test_too_few_points_are_refused(kept: slice) -> None:
    with pytest.raises(ValueError, match="5 points with two sizes"):
        fit_scaling_law(N[kept], D[kept], law(N, D)[kept], np.ones(12)[kept])
