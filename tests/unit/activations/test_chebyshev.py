"""Interpolants at Chebyshev points: their powers, and what they do not resolve."""

from __future__ import annotations

import mpmath
import pytest

from stamm.activations.derivation.tables import (
    NODES,
    NotResolvedError,
    interpolant,
    order_at_zero,
)


def test_powers_about_any_point_are_the_taylor_coefficients() -> None:
    with mpmath.workdps(40):
        found = interpolant(mpmath.exp, mpmath.mpf(1), mpmath.mpf(1.5), 1e-16)
        for about, close in ((1, 1e-19), (1.25, 1e-25), (2, 1e-12)):
            powers = found.powers(NODES, mpmath.mpf(about))
            for k in range(6):
                true = mpmath.exp(about) / mpmath.factorial(k)
                assert abs(powers[k] - true) < close


def test_tails_bound_what_is_cut_off() -> None:
    with mpmath.workdps(40):
        found = interpolant(mpmath.sin, mpmath.mpf(-1), mpmath.mpf(1), 1e-16)
        for count in (4, 9):
            powers = found.powers(count, mpmath.mpf(0))
            worst = max(
                abs(mpmath.polyval(powers[::-1], u) - mpmath.sin(u))
                for u in mpmath.linspace(-1, 1, 41)
            )
            assert worst <= found.tails[count] < 2 * worst + 1e-30


@pytest.mark.parametrize("function", [abs, lambda u: mpmath.tanh(200 * u), lambda u: 1 / u])
def test_what_28_points_do_not_resolve_is_an_error(function: object) -> None:
    with mpmath.workdps(40), pytest.raises((NotResolvedError, ZeroDivisionError)):
        interpolant(function, mpmath.mpf(-1), mpmath.mpf(1.5), 1e-16)  # type: ignore[arg-type]


def test_the_order_at_0() -> None:
    with mpmath.workdps(60):
        assert order_at_zero(mpmath.cos, 1) == 0
        assert order_at_zero(lambda u: mpmath.sin(u) ** 3, -1) == 3
        assert order_at_zero(lambda u: mpmath.exp(u) - 1 - u, 1) == 2
        with pytest.raises(NotResolvedError):
            order_at_zero(lambda u: mpmath.mpf(0), 1)
