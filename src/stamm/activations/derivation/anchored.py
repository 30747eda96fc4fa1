"""Integrals that vanish at the anchor, as power series around it.

softplus_integral(x) - pi**2/12 is 0 at 0, and near 0 the subtraction leaves no correct digit, in
any form. In a window around 0 each such difference is therefore one function: a polynomial with the
factor x, from the Taylor coefficients of the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.derivation.approximate import DOUBLE, SINGLE
from stamm.activations.derivation.formulas import Branch, bounds, number
from stamm.activations.derivation.primitives import Primitive, X, with_digits
from stamm.activations.derivation.stable_forms import lost_bits
from stamm.activations.derivation.tables import NumericalIntegral
from stamm.base.files import sha256_value

_DIGITS = 60
_DEGREE = 24
_GUARD = 8  # powers beyond the degree that show whether the series converges
_LOST = 6.0  # bits that a formula may lose near 0 without being changed
_EDGE = 3.0  # bits that it may lose at the edge of the window
_WIDEST, _NARROWEST = sympy.Integer(1024), sympy.Rational(1, 1024)
_VANISHES = mpmath.mpf(10) ** -50
_NEAR = [mpmath.mpf("1.137") * mpmath.mpf(10) ** k for k in (-7, -5, -3, -2)]


class Anchored(Primitive):
    """A function that vanishes at 0 by cancellation, and the polynomial that it is near 0.

    difference     in x, free of parameters: its terms cancel at 0
    window         where the polynomial holds
    coefficients   of x, x**2, ... for float64; the first `single` of them serve float32
    """

    difference: Expr
    window: tuple[float, float]
    coefficients: tuple[float, ...]
    single: int


@dataclass(frozen=True)
class _Scaled:
    """A formula in u = scale * x as a sum of factor * difference(u), and the other terms."""

    scale: Expr
    cancelling: tuple[tuple[Expr, Expr], ...]
    others: Expr


def anchored_branches(
    branches: Sequence[Branch],
    samples: Sequence[Mapping[str, float]],
    fixed: Mapping[str, float],
) -> tuple[Branch, ...]:
    """The branches with a window around 0 wherever a formula loses its digits there.

    samples   parameter values at which forms are compared
    fixed     values of the parameters that never change
    Edge      a branch that ends at 0 gets half a window. A branch stays as it is where no window
              helps: 0 lies outside or the ends move, a term has no power series at 0, parameters
              enter otherwise than as factors and one scale of x, or a table is read.
    Checked   tests/unit/activations/test_anchored.py
    """
    anchored: list[Branch] = []
    for branch in branches:
        anchored += _windowed(branch, samples, fixed) or [branch]
    return tuple(anchored)


def anchored_in(branches: Sequence[Branch]) -> set[type[Anchored]]:
    """The functions of this kind that the formulas hold."""
    return {type(part) for branch in branches for part in branch.formula.atoms(Anchored)}


def _windowed(
    branch: Branch, samples: Sequence[Mapping[str, float]], fixed: Mapping[str, float]
) -> list[Branch] | None:
    if branch.low.free_symbols or branch.high.free_symbols or not branch.low <= 0 <= branch.high:
        return None
    if not branch.formula.has(sympy.Function):
        return None
    sides = [side for side, end in ((-1, branch.low), (1, branch.high)) if end != 0]
    if worst_loss(branch.formula, _near(branch, samples), samples) <= _LOST:
        return None
    scaled = _scaled(branch.formula, sides, fixed)
    if scaled is None or not scaled.cancelling:
        return None
    if scaled.scale != 1 and not {branch.low, branch.high} <= {-sympy.oo, sympy.S.Zero, sympy.oo}:
        return None
    width = _width([difference for _, difference in scaled.cancelling], sides)
    if width is None:
        return None
    low, high = (max(-width, branch.low), min(width, branch.high))
    formula = scaled.others.xreplace({X: scaled.scale * X})
    for factor, difference in scaled.cancelling:
        made = _anchored(difference, low, high)
        formula += factor * made(scaled.scale * X)
    if worst_loss(formula, _near(branch, samples), samples) > _LOST:
        return None
    return list(cut_window(branch, low / scaled.scale, high / scaled.scale, formula))


def cut_window(branch: Branch, low: Expr, high: Expr, formula: Expr) -> Iterator[Branch]:
    """The branch left of the window, in it, and right of it."""
    inner = {**vars(branch), "formula": formula}
    if low != branch.low:
        yield Branch(**{**vars(branch), "high": low, "high_closed": True})
        inner |= {"low": low, "low_closed": False}
    if high != branch.high:
        inner |= {"high": high, "high_closed": True}
    yield Branch(**inner)
    if high != branch.high:
        yield Branch(**{**vars(branch), "low": high, "low_closed": False})


def _near(branch: Branch, samples: Sequence[Mapping[str, float]]) -> list[Any]:
    low, high = bounds(branch, samples[0])
    return [x for m in _NEAR for x in (-m, m) if low < x < high]


def worst_loss(
    formula: Expr, points: Sequence[Any], samples: Sequence[Mapping[str, float]]
) -> float:
    """The most bits that a formula loses at any of the points."""
    return max(lost_bits([formula], points, samples)[0], default=0.0)


def _scaled(formula: Expr, sides: Sequence[int], fixed: Mapping[str, float]) -> _Scaled | None:
    """The formula by the parameters before its terms; None where x has no one positive scale."""
    known = {s: sympy.Rational(fixed[s.name]) for s in _inside(formula) if s.name in fixed}
    formula = formula.xreplace(known)
    innermost = {f for f in formula.atoms(sympy.Function) if not f.args[0].has(sympy.Function)}
    scales = {_scale(f.args[0]) for f in innermost if _inside(f)}
    scale = next(iter(scales), sympy.S.One)
    if len(scales) > 1 or scale.has(X) or not scale.is_positive:
        return None
    groups: dict[Expr, Expr] = {}
    others = sympy.S.Zero
    for term in sympy.Add.make_args(sympy.expand(formula.xreplace({X: X / scale}))):
        factor, shape = term.as_independent(X, as_Add=False)
        if not shape.free_symbols <= {X}:  # 1/(a*x**2 + a) hides its factor
            factor, shape = sympy.factor_terms(term).as_independent(X, as_Add=False)
        share = sympy.S.One
        if factor.free_symbols:
            share, factor = factor.as_independent(*factor.free_symbols, as_Add=False)
        else:
            share, factor = factor, share
        if shape.free_symbols <= {X}:
            groups[factor] = groups.get(factor, sympy.S.Zero) + share * shape
        else:
            others += term
    cancelling = []
    points = [side * m for side in sides for m in _NEAR]
    for factor, group in groups.items():
        if worst_loss(group, points, [{}]) > _LOST and _series(group, *sides) is not None:
            cancelling.append((factor, group))
        else:
            others += factor * group
    return _Scaled(scale, tuple(cancelling), others)


def _scale(argument: Expr) -> Expr:
    """a for a*x, and the root of a for a multiple a of x**2; a factor that contains x is not a scale."""
    ratio = argument / X**2
    return argument / X if ratio.has(X) else sympy.sqrt(sympy.Abs(ratio))


def _inside(formula: Expr) -> set[Expr]:
    """The parameters that occur with x inside a function."""
    return {s for f in formula.atoms(sympy.Function) if f.has(X) for s in f.free_symbols - {X}}


@lru_cache(maxsize=256)
def _series(difference: Expr, *sides: int) -> tuple[Any, ...] | None:
    """Coefficients of x, x**2, ... of a function that vanishes at 0; None where it has none."""
    if difference.has(NumericalIntegral) or not difference.has(sympy.Function):
        return None
    gradient = sympy.diff(difference, X)
    with mpmath.workdps(_DIGITS):
        try:
            if abs(number(difference, {X.name: mpmath.mpf(0)})) > _VANISHES:
                return None
            coefficients = mpmath.taylor(
                lambda x: number(gradient, {X.name: x}),
                0,
                _DEGREE + _GUARD,
                direction=sides[0] if len(sides) == 1 else 0,
            )
        except (ArithmeticError, ValueError, TypeError):
            return None
        if not all(isinstance(c, mpmath.mpf) and mpmath.isfinite(c) for c in coefficients):
            return None
        size = max(abs(c) for c in coefficients)
        exact = [c if abs(c) > _VANISHES * size else mpmath.mpf(0) for c in coefficients]
        return tuple(c / (k + 1) for k, c in enumerate(exact)) if size else None


def _terms(series: Sequence[Any], width: Expr, tolerance: float) -> int | None:
    """Number of coefficients needed on |x| <= width; None where there would be too many.

    tolerance   the truncation error allowed, relative to the lowest power
    """
    sizes = [abs(c) * mpmath.mpf(float(width)) ** k for k, c in enumerate(series)]
    lead = next(size for size in sizes if size)
    for count in range(1, _DEGREE + 1):
        if sizes[count - 1] and mpmath.fsum(sizes[count:]) <= tolerance * lead:
            return count
    return None


def _width(differences: Sequence[Expr], sides: Sequence[int]) -> Expr | None:
    """The window: wide enough for the digits, narrow enough for short polynomials."""

    def fits(width: Expr) -> bool:
        return all(_fits(difference, width, *sides) for difference in differences)

    def loses(width: Expr) -> bool:
        points = [side * mpmath.mpf(float(width)) for side in sides]
        return any(worst_loss(difference, points, [{}]) > _EDGE for difference in differences)

    width = sympy.S.Half
    while not fits(width):
        width /= 2
        if width < _NARROWEST:
            return None
    while loses(width) and width < _WIDEST and fits(2 * width):
        width *= 2
    return width


def _fits(difference: Expr, width: Expr, *sides: int) -> bool:
    """Whether the polynomial is short, and is the function at both ends and between."""
    series = _series(difference, *sides)
    if series is None:
        return False
    with mpmath.workdps(_DIGITS):
        count = _terms(series, width, DOUBLE)
        if count is None:
            return False
        lead = next(k for k, c in enumerate(series, 1) if c)
        for part in (1, mpmath.mpf(1) / 2, mpmath.mpf(1) / 7):
            for side in sides:
                x = side * part * mpmath.mpf(float(width))
                approximated = mpmath.polyval([*series[:count][::-1], 0], x)
                missed = abs(approximated - number(difference, {X.name: x}))
                if not missed <= 2 * DOUBLE * abs(series[lead - 1] * x**lead):
                    return False
    return True


@lru_cache(maxsize=256)
def _anchored(difference: Expr, low: Expr, high: Expr) -> type[Anchored]:
    """The function that replaces a difference on a window found by `_width`."""
    sides = [side for side, end in ((-1, low), (1, high)) if end != 0]
    width = max(-low, high)
    series = _series(difference, *sides) or ()
    with mpmath.workdps(_DIGITS):
        count, single = (_terms(series, width, limit) or len(series) for limit in (DOUBLE, SINGLE))
        lead = next(k for k, c in enumerate(series, 1) if c)
        gradient = sympy.diff(difference, X)

        def value(u: Any) -> Any:
            if u == 0:
                return mpmath.mpf(0)
            lost = 20 - lead * min(0, int(mpmath.mag(u)))
            return with_digits(lost, lambda: number(difference, {X.name: u}))

        members = {
            "__doc__": f"{difference}, by a polynomial of degree {count}",
            "slope": staticmethod(lambda u: gradient.xreplace({X: u})),
            "definition": staticmethod(lambda u: difference.xreplace({X: u})),
            "value": staticmethod(value),
            "difference": difference,
            "window": (float(low), float(high)),
            "coefficients": tuple(float(c) for c in series[:count]),
            "single": single,
        }
    name = f"anchored_{sha256_value([sympy.srepr(difference), str(low), str(high)])[:8]}"
    made: type[Anchored] = type(name, (Anchored,), members)
    return made
