"""Cancellation near 0: formulas that vanish there, as integrals of their derivatives by quadrature.

softplus(a*x + b) - softplus(b) leaves no correct digit near 0, and its power series there has
coefficients that depend on b. Its derivative has all its digits, and

  F(x) = x**r/(r - 1)! times the integral of (1 - t)**(r - 1) F^(r)(t x) over 0 <= t <= 1

where r is the order to which F vanishes. A few points of a Gauss-Legendre rule are enough on a
window around 0, whose width shrinks with the scale of the input. The error of the rule is that of an
analytic function on a disc, so a window is used only where no parameter can move a kink, a pole or a
branch point into it, or make a function change faster than the scale of the input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import mpmath
import sympy
from sympy import Expr, Rational

from stamm.activations.derivation.anchored import cut_window, worst_loss
from stamm.activations.derivation.approximate import DOUBLE
from stamm.activations.derivation.formulas import Branch, bounds, number
from stamm.activations.derivation.primitives import (
    X,
    absolute,
    cauchy_cdf,
    cauchy_odd,
    cauchy_pdf,
    cauchy_slope,
    expm1,
    gompertz,
    gompertz_pdf,
    gompertz_pdf_rise,
    log1p,
    logistic,
    logistic_odd,
    normal_cdf,
    normal_odd,
    normal_pdf,
    phi2,
    signum,
    softplus,
)
from stamm.activations.derivation.special import log_cosh, logistic_moment, softplus_integral
from stamm.activations.derivation.stable_forms import stable_branches
from stamm.activations.derivation.tables import NumericalIntegral, legendre

_DIGITS = 60
_LOST = 6.0  # bits that a formula may lose near 0 without being changed
_EDGE = 9.0  # and at the edge of the window: 15 of 24 bits are left, and half precision has 11
_HIGHEST_ORDER = 4
_ALLOWED = 8 * DOUBLE  # nodes and weights are rounded to doubles
_VANISHED = mpmath.mpf(10) ** -40
_WIDTHS = [Rational(1, 2**k) for k in range(-1, 7)]  # in units of the scaled input
_RULES = (3, 4, 5, 6, 8, 10)  # points of the quadrature: each is one evaluation of the derivative
# How far off the real line a function is singular, and where it is bounded by its values on the line.
_OFF_LINE = {
    **dict.fromkeys(
        (
            sympy.exp,
            expm1,
            phi2,
            sympy.sinh,
            sympy.cosh,
            sympy.sin,
            sympy.cos,
            sympy.erf,
            normal_odd,
        ),
        sympy.oo,
    ),
    **dict.fromkeys(
        (logistic, logistic_odd, softplus, softplus_integral, logistic_moment), sympy.pi
    ),
    **dict.fromkeys((sympy.tanh, log_cosh), sympy.pi / 2),
    **dict.fromkeys(
        (sympy.atan, sympy.asinh, cauchy_cdf, cauchy_odd, cauchy_pdf, cauchy_slope), sympy.S.One
    ),
}
_ENTIRE = (normal_cdf, normal_pdf, sympy.erfc, gompertz, gompertz_pdf, gompertz_pdf_rise)
_NEAR = [mpmath.mpf("1.137") * mpmath.mpf(10) ** -k for k in (12, 7, 5, 3, 2)]


def branches_near_zero(
    branches: Sequence[Branch],
    samples: Sequence[Mapping[str, float]],
    shifted: Sequence[Mapping[str, float]] = (),
    reached: Sequence[Mapping[str, float]] = (),
) -> tuple[Branch, ...]:
    """The branches with a window around 0 wherever a formula vanishes there and loses its digits.

    samples   parameter values at which forms are compared
    shifted   more values at which the form of the derivative keeps its digits
    reached   more values at which the formula must vanish at 0
    Edge      a branch that ends at 0 gets half a window. A branch stays as it is where no window
              helps: 0 lies outside or the ends move, its derivatives lose digits too, a table is
              read, or a parameter moves a singularity.
    Checked   tests/unit/activations/test_near_zero.py
    """
    windowed: list[Branch] = []
    for branch in branches:
        windowed += _windowed(branch, samples, shifted, reached) or [branch]
    return tuple(windowed)


def input_scale(formula: Expr) -> Expr:
    """Rate at which the arguments of functions and roots change with x: |a| + 1 for tanh(a*x) + exp(x).

    Arguments that are not polynomials of degree 2 or less are ignored. A power with a parameter p in
    its exponent changes |p| + 1 times as fast as its base.
    """
    inner = [part.args[0] for part in formula.atoms(sympy.Function)]
    powers = [power for power in formula.atoms(sympy.Pow) if power.base.is_Add]
    inner += [power.base for power in powers]
    growth = {
        sympy.Abs(p.exp - p.exp.subs(dict.fromkeys(p.exp.free_symbols, 0)))
        for p in powers
        if p.base.has(X)
    }
    scales = {
        sympy.Abs(part.coeff(X, 1)) + sympy.sqrt(sympy.Abs(part.coeff(X, 2)))
        for part in map(sympy.expand, inner)
        if part.has(X) and part.is_polynomial(X) and sympy.degree(part, X) <= 2
    }
    scale = sympy.Add(*scales) if scales else sympy.S.One
    return scale * (1 + sympy.Add(*growth))


def singularities_stay(formula: Expr, width: Expr) -> bool:
    """Whether the formula is analytic for |x| <= width/scale whatever its parameters are.

    Without a shift the place of a singularity, in units of the scaled input, is a number: what is
    compared at the ends of the window holds for every parameter. A shift b in f(a*x + b) moves along
    the whole line: the singularities of f must be off it, and f must not change by any factor, as a
    density does far out. Where inputs have several scales, each singularity must be beyond the window.

    Checked   tests/unit/activations/test_near_zero.py
    """
    scale = input_scale(formula)
    parts = [f for f in formula.atoms(sympy.Function) if f.has(X)]
    parts += [p for p in formula.atoms(sympy.Pow) if p.has(X) and not p.exp.is_Integer]
    parts += [
        p for p in formula.atoms(sympy.Pow) if p.has(X) and p.exp.is_negative and p.exp.is_Integer
    ]
    still = (sympy.simplify(part.xreplace({X: X / scale})).free_symbols <= {X} for part in parts)
    return all(still) or all(_stays_out(part, width) for part in parts)


def _stays_out(part: Expr, width: Expr) -> bool:
    function, argument = part.func, part.args[0]
    if argument.has(sympy.Function) or not argument.is_polynomial(X):
        return not part.free_symbols - {X}
    coefficients = sympy.Poly(argument, X).all_coeffs()[::-1]
    constant, moving = coefficients[0], [c for c in coefficients[1:] if c]
    if constant.free_symbols:
        return len(coefficients) == 2 and _OFF_LINE.get(function, -1) > width
    if len(coefficients) > 3 or len(moving) != 1:
        return not part.free_symbols - {X}
    if function in _OFF_LINE or function in _ENTIRE:
        return bool(_OFF_LINE.get(function, sympy.oo) > width)
    if function in (absolute, signum) and constant == 0:
        return True  # the quadrature begins at the kink
    singular = constant + 1 if function is log1p else constant
    return bool(abs(singular) > width ** (len(coefficients) - 1))


def _windowed(
    branch: Branch,
    samples: Sequence[Mapping[str, float]],
    shifted: Sequence[Mapping[str, float]],
    reached: Sequence[Mapping[str, float]],
) -> list[Branch] | None:
    scale = input_scale(branch.formula)
    ends = [
        sympy.expand(end * scale) if end.is_finite else end for end in (branch.low, branch.high)
    ]
    if not all(end.is_number for end in ends):
        ends = [_nearest(ends[0], -1), _nearest(ends[1], 1)]
    if None in ends or not ends[0] <= 0 <= ends[1]:
        return None
    low, high = bounds(branch, samples[0])
    near = [x for m in _NEAR for x in (-m, m) if low < x < high]
    if branch.formula.has(NumericalIntegral) or worst_loss(branch.formula, near, samples) <= _LOST:
        return None
    found_derivative = _clean_derivative(branch, near, samples, shifted, reached)
    if found_derivative is None:
        return None
    derivative, order = found_derivative
    windows: list[tuple[float, int, list[Branch]]] = []
    for width in _WIDTHS:
        low, high = max(-width, ends[0]) / scale, min(width, ends[1]) / scale
        places = [(values, number(end, values)) for values in samples for end in (low, high) if end]
        if any(worst_loss(branch.formula, [x], [values]) > _EDGE for values, x in places):
            break  # outside a narrower window more digits would be lost
        if not singularities_stay(derivative, width):
            continue
        far = [(values, number(end, values)) for values in shifted for end in (low, high) if end]
        lost = max((worst_loss(branch.formula, [x], [values]) for values, x in far), default=_EDGE)
        for points in _RULES:
            formula = _by_quadrature(derivative, order, points)
            if all(_is_right(branch.formula, formula, {**v, X.name: x}) for v, x in places):
                parts = list(cut_window(branch, low, high, formula))
                windows.append((max(lost, _EDGE), points, parts))
                break
    return min(windows, key=lambda window: window[:2], default=(0.0, 0, None))[2]


def _nearest(end: Expr, side: int) -> Expr | None:
    """The least distance from 0 of an end such as 1 + |b|; None where it may reach 0."""
    if end.is_number:
        return end
    number, rest = end.as_coeff_Add()
    return number if side * number > 0 and (side * rest).is_nonnegative else None


def _clean_derivative(
    branch: Branch,
    near: Sequence[Any],
    samples: Sequence[Mapping[str, float]],
    shifted: Sequence[Mapping[str, float]],
    reached: Sequence[Mapping[str, float]],
) -> tuple[Expr, int] | None:
    """The lowest derivative that does not vanish at 0, in a form that keeps its digits near 0."""
    formula = branch.formula
    with mpmath.workdps(_DIGITS):
        for order in range(_HIGHEST_ORDER + 1):
            try:
                at_zero = [
                    abs(number(formula, {**v, X.name: mpmath.mpf(0)})) for v in (*samples, *reached)
                ]
            except (ArithmeticError, ValueError, TypeError):
                return None
            if not all(map(mpmath.isfinite, at_zero)) or (order == 0 and max(at_zero) > _VANISHED):
                return None
            if max(at_zero) > _VANISHED:
                for compared in ([*samples, *shifted], samples):
                    forms = stable_branches(
                        [Branch(**{**vars(branch), "formula": formula})], compared
                    )
                    form = next(f.formula for f in forms if f.low <= 0 <= f.high)
                    if worst_loss(form, near, samples) <= _LOST:
                        return form, order
                return None
            formula = sympy.diff(formula, X)
    return None


def _by_quadrature(derivative: Expr, order: int, points: int) -> Expr:
    """x**r times a weighted sum of the derivative between 0 and x."""
    terms = []
    for node, weight in legendre(points, _DIGITS):
        t = Rational(float((1 + node) / 2))
        share = Rational(float(weight / 2 * (1 - mpmath.mpf(float(t))) ** (order - 1)))
        terms.append(share * derivative.xreplace({X: t * X}))
    return X**order / math.factorial(order - 1) * sympy.Add(*terms)


def _is_right(true: Expr, formula: Expr, at: Mapping[str, Any]) -> bool:
    with mpmath.workdps(_DIGITS):
        for part in (1, mpmath.mpf(1) / 2, mpmath.mpf(1) / 7):
            point = {**at, X.name: part * at[X.name]}
            value = number(true, point)
            if not abs(number(formula, point) - value) <= _ALLOWED * abs(value):
                return False
    return True
