"""Stable forms for large inputs, where a parameter scales the input inside a function.

log_cosh(a*x) - a*x*tanh(a*x) tends to -log(2), but far out it is the difference of two numbers that
overflow; x**2/(1 + a*x**2) divides one infinity by another. Beyond |a*x| = 1 the same functions
are written as their limit plus a remainder that vanishes: tanh(u) = 1 - 2 logistic(-2u).
Beyond 1000 the exponentials have vanished in every format, and are left out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import mpmath
import sympy
from sympy import Expr, Integer, Symbol

from stamm.activations.derivation.formulas import Branch, bounds, number
from stamm.activations.derivation.primitives import (
    X,
    absolute,
    cauchy_slope,
    expm1,
    log1p,
    logistic,
    logistic_odd,
    normal_cdf,
    normal_odd,
    phi2,
    signum,
    softplus,
)
from stamm.activations.derivation.special import (
    gompertz_integral,
    gompertz_upper_integral,
    log_cosh,
    logistic_moment,
    mish_gate_integral,
    softplus_integral,
)
from stamm.activations.derivation.stable_forms import (
    FARTHEST,
    LAST,
    best_form,
    breaks_at,
    lost_bits,
    machine_value,
    split,
)
from stamm.base.errors import ConfigError

# Where to cut, in units of the scaled input; the first choice without a fault is used.
_NEAR, _FAR = Integer(1), Integer(1000)
_WAYS = ((_FAR,), (_NEAR,), (_NEAR, _FAR))
_LOST = 6.0  # bits that a formula may lose without being changed
_DIGITS = 700  # cubes of the farthest input may cancel down to 1
_STEADY_DIGITS = 120
_CONDITION = 8.0  # beyond it the rounding of a*x alone loses the bits that are allowed
# Where digits are counted, in units of the scaled input: below 1, and from 1 on.
_SMALL = [sympy.Rational(1137, 1000) * Integer(10) ** k for k in range(-7, 0)]
_SIZES = [sympy.Rational(1137, 1000) * Integer(10) ** k for k in range(31)]
_FINITE_ONLY = (cauchy_slope, logistic_moment, phi2)  # their kernels give NaN for an infinity
_SIZE = Symbol("_size", positive=True)

# Each function as its asymptote for u -> inf plus a remainder that tends to 0.
_RIGHT: Mapping[Any, Callable[[Expr], Expr]] = {
    sympy.tanh: lambda u: 1 - 2 * logistic(-2 * u),
    log_cosh: lambda u: u - sympy.log(2) + softplus(-2 * u),
    softplus: lambda u: u + softplus(-u),
    logistic: lambda u: 1 - logistic(-u),
    softplus_integral: lambda u: sympy.pi**2 / 6 + u**2 / 2 - softplus_integral(-u),
    gompertz_integral: lambda u: u - sympy.EulerGamma + gompertz_upper_integral(u),
    logistic_moment: lambda u: u**2 / 2 - sympy.pi**2 / 6 - logistic_moment(-u),
    mish_gate_integral: lambda u: (
        u
        + log1p(2 * sympy.exp(-u) + 2 * sympy.exp(-2 * u)) / 2
        - sympy.log(2) / 2
        + sympy.atan(1 / (1 + 2 * sympy.exp(-u)))
    ),
    normal_cdf: lambda u: 1 - normal_cdf(-u),
    logistic_odd: lambda u: sympy.S.Half - logistic(-u),
    normal_odd: lambda u: sympy.S.Half - normal_cdf(-u),
    sympy.erf: lambda u: 1 - sympy.erfc(u),
    sympy.atan: lambda u: sympy.pi / 2 - sympy.atan(1 / u),
    absolute: lambda u: u,
    signum: lambda u: sympy.S.One,
}
# Windowed differences, written out for use beyond the window |u| <= 1.
_APART: Mapping[Any, Callable[[Expr], Expr]] = {
    expm1: lambda u: sympy.exp(u) - 1,
    phi2: lambda u: sympy.exp(u) - 1 - u,
}
_ODD = (sympy.tanh, sympy.erf, sympy.atan, signum, logistic_odd, normal_odd)
_EVEN = (log_cosh, absolute)
# The parts of these that tend to 0 for u -> -inf.
_VANISHED: Mapping[Any, Callable[[Expr], Expr]] = {
    **dict.fromkeys(
        (softplus, logistic, softplus_integral, logistic_moment, normal_cdf, sympy.exp),
        lambda u: sympy.S.Zero,
    ),
}


def outward_branches(
    branches: Sequence[Branch],
    samples: Sequence[Mapping[str, float]],
    reach: float = FARTHEST,
    *,
    digits: bool = False,
) -> tuple[Branch, ...]:
    """The branches, cut where no single form is accurate both near 0 and for large inputs.

    samples   parameter values at which forms are compared
    reach     the largest input at which a form has to give the value
    digits    whether a form must keep its digits up to there
    Edge      only branches in which x has one positive scale are cut, and whose ends are
              0, infinite or multiples of its inverse: the order of such ends never changes.
    Raises    ConfigError when every form overflows where the function itself is finite.
    Checked   tests/unit/activations/test_outward.py
    """
    spread = [part for branch in branches for part in _spread(branch, samples, reach, digits)]
    outward: list[Branch] = []
    for branch in spread:
        point = breaks_at(branch.formula, branch, samples[0], reach)
        parts = [branch] if point is None else _far_by_inverse_powers(branch, samples, reach)
        if not parts:
            exponential = branch.formula.has(sympy.exp, sympy.sinh, sympy.cosh, *_APART)
            fix = (
                "State the gradient with logistic(x) or tanh(x) instead of exp(x), or on two pieces"
            )
            raise ConfigError(
                f"no form of {branch.formula} is known that survives x = {point:g} in floating point",
                fix=fix
                if exponential
                else "Write it in 1/x, on pieces for large |x| with fixed ends",
            )
        outward += parts
    return tuple(outward)


def outer_form(formula: Expr, side: int, *, vanished: bool) -> Expr:
    """The formula by its limits for large x (side 1) or -x (side -1).

    vanished   whether exponentials are 0 there: then it holds in every format, not exactly
    """
    formula = _by_limits(formula, side)
    if vanished:
        for function, remainder in _VANISHED.items():
            formula = formula.replace(
                function,
                lambda u, kept=function, by=remainder: by(u) if _sign(u, side) < 0 else kept(u),
            )
        formula = formula.replace(
            sympy.erfc, lambda u: {1: Integer(0), -1: Integer(2)}.get(_sign(u, side), sympy.erfc(u))
        )
    sized = formula.xreplace({X: side * _SIZE}).replace(_is_power_of_sum, _pulled_out)
    return sympy.expand(sized).xreplace({_SIZE: side * X})


def by_inverse_powers(formula: Expr, side: int) -> Expr:
    """The formula by its limits for large x (side 1) or -x (side -1), with quotients in 1/x.

    x/(1 + x**2) is 1/x/(1 + 1/x**2), whose powers do not overflow.

    Edge   a part that is not a quotient of polynomials stays as it is.
    """
    formula = _by_limits(formula.replace(sympy.log, _log_of_sum), side)
    functions = sorted(formula.atoms(sympy.Function), key=sympy.default_sort_key)
    places = [Symbol(f"_place{i}") for i in range(len(functions) + 1)]  # one, where there is none
    placed = sympy.expand_mul(formula).xreplace(dict(zip(functions, places, strict=False)))
    if not placed.is_polynomial(*places):
        return formula
    terms = sympy.Poly(placed, *places).terms()
    return sympy.Add(
        *(
            _in_inverse_powers(coefficient)
            * sympy.prod(f**k for f, k in zip(functions, powers, strict=False))
            for powers, coefficient in terms
        )
    )


def _in_inverse_powers(quotient: Expr) -> Expr:
    if not quotient.is_rational_function(X):
        return quotient
    numerator, denominator = sympy.fraction(sympy.cancel(quotient.subs(X, 1 / _SIZE)))
    lowest = [min(m[0] for m in sympy.Poly(p, _SIZE).monoms()) for p in (numerator, denominator)]
    above, below = (
        sympy.expand(part / _SIZE**power).xreplace({_SIZE: 1 / X})
        for part, power in zip((numerator, denominator), lowest, strict=True)
    )
    return X ** (lowest[1] - lowest[0]) * above / below


def _by_limits(formula: Expr, side: int) -> Expr:
    for function in _RIGHT:
        formula = formula.replace(function, lambda u, kept=function: _by_limit(kept, u, side))
    for function, apart in _APART.items():
        formula = formula.replace(function, lambda u, by=apart: by(u))
    return formula.replace(log1p, lambda u: _logarithm(u, side))


def scale_beside_x(formula: Expr) -> Expr | None:
    """The magnitude by which x is scaled inside functions and roots; None where no parameter is there.

    It is a for tanh(a*x) and tanh(2*a*x), and the root of a for exp(-a*x**2) and 1/(1 + a*x**2);
    |b| for a scale b of either sign. Of several scales it is the one below all of them whose
    inverse is the sum of their inverses.
    """
    inner = [f.args[0] for f in formula.atoms(sympy.Function)]
    inner += [p.base for p in formula.atoms(sympy.Pow) if p.base.is_Add]
    scales, moving = set(), False
    for part in inner:
        # A root beside x, as in R + sqrt(a)*x, is itself a part.
        part = part.replace(lambda p: p.is_Pow and p.base.is_Add, lambda p: sympy.S.Zero)
        if not part.has(X) or part.has(sympy.Function):
            continue
        if not (part.coeff(X, 1) or part.coeff(X, 2)):
            part = sympy.expand(part)  # a*(x - k)
        free = bool(part.free_symbols - {X})
        if (
            not part.is_polynomial(X)
            or sympy.degree(part, X) > 2
            or part.coeff(X, 1) * part.coeff(X, 2)
        ):
            if free:
                return None
            continue
        moving |= free
        whole = sympy.Abs(part.coeff(X, 1)) + sympy.sqrt(sympy.Abs(part.coeff(X, 2)))
        scales.add(whole.as_coeff_Mul()[1])
    if not moving:
        return None
    scale = 1 / sympy.Add(*(1 / scale for scale in scales))
    return scale if scale.is_nonnegative else None


def shift_beside_x(formula: Expr, scale: Expr) -> Expr:
    """The shift of the input of functions by parameters, in units of the scaled input: |b| for tanh(a*x + b)."""
    shifts = {
        sympy.Abs(part.coeff(X, 0) * scale / part.coeff(X, 1))
        for part in (sympy.expand(f.args[0]) for f in formula.atoms(sympy.Function))
        if part.is_polynomial(X) and part.coeff(X, 0).free_symbols and part.coeff(X, 1)
    }
    return sympy.Add(*(sympy.simplify(shift) for shift in shifts))


def _spread(
    branch: Branch, samples: Sequence[Mapping[str, float]], reach: float, digits: bool
) -> list[Branch]:
    scale = scale_beside_x(branch.formula)
    if scale is None or not all(_is_in_order(end, scale) for end in (branch.low, branch.high)):
        return [branch]
    inner = _conjugated(branch.formula, scale) if digits else branch.formula
    # What cancels near 0 has a window of its own already, except for roots.
    sizes = (_SIZES if inner == branch.formula else [*_SMALL, *_SIZES]) if digits else []
    exact = _Exact(branch.formula, samples, [size / scale for size in sizes])
    shift = shift_beside_x(branch.formula, scale)
    ways = (
        list(_parts(branch, near, scale, [cut + shift for cut in way], samples, reach))
        for near in dict.fromkeys((inner, branch.formula))
        for way in ((), *_WAYS)
    )
    places = [1e3, reach]
    farthest = [*places, LAST] if reach == FARTHEST else places
    tried = []
    for parts in chain([[branch]], ways):
        if not any(exact.is_missed(part, farthest) for part in parts):
            return parts
        tried.append(parts)
    # Where a*x itself overflows, not every function has a form that is right.
    right = (p for p in tried if not any(exact.is_missed(part, places) for part in p))
    return next(right, None) or min(
        tried, key=lambda parts: sum(exact.faults(part, places) for part in parts)
    )


def _far_by_inverse_powers(
    branch: Branch, samples: Sequence[Mapping[str, float]], reach: float
) -> list[Branch]:
    """The branch cut at |x| = 1000, with powers of 1/x beyond; empty where that fails, too."""
    if branch.low.free_symbols or branch.high.free_symbols:
        return []
    cuts = [cut for cut in (-_FAR, _FAR) if branch.low < cut < branch.high]
    parts = []
    for part in split(branch, cuts):
        side = 1 if part.low >= _FAR else -1 if part.high <= -_FAR else 0
        if side:
            formula = by_inverse_powers(part.formula, side)
            part = Branch(**{**vars(part), "formula": formula})
        parts.append(part)
    broken = (breaks_at(p.formula, p, values, reach) for p in parts for values in samples)
    return [] if any(point is not None for point in broken) else parts


def _is_in_order(end: Expr, scale: Expr) -> bool:
    return end in (-sympy.oo, sympy.oo) or bool((end * scale).is_Rational)


def _parts(
    branch: Branch,
    inner: Expr,
    scale: Expr,
    way: Sequence[Expr],
    samples: Sequence[Mapping[str, float]],
    reach: float,
) -> Iterator[Branch]:
    """The branch between the cuts from left to right, each part in its best form."""
    cuts = [*(-cut for cut in reversed(way)), *way]
    low, high = (end * scale if end.is_finite else end for end in (branch.low, branch.high))
    ends = [low, *(cut for cut in cuts if low < cut < high), high]
    for left, right in pairwise(ends):
        near = not way or bool(-way[0] <= left and right <= way[0])
        side = 1 if left >= 0 else -1
        part = Branch(
            low=_in_x(left, scale),
            low_closed=branch.low_closed and left == low,
            high=_in_x(right, scale),
            high_closed=branch.high_closed or right != high,
            formula=inner,
        )
        if not near:
            vanished = any(end.as_coeff_Add()[0] >= _FAR for end in (left, -right))
            outer = outer_form(branch.formula, side, vanished=vanished)
            part = Branch(**{**vars(part), "formula": outer})
            part = Branch(**{**vars(part), "formula": best_form(part, samples, reach)})
        yield part


def _in_x(end: Expr, scale: Expr) -> Expr:
    """An end from units of the scaled input, as a sum where several scales were added up."""
    if not end.is_finite:
        return end
    return sympy.expand(sympy.simplify(end / scale)) if (1 / scale).is_Add else end / scale


class _Exact:
    """The reference values that forms of a function are compared with."""

    def __init__(
        self, formula: Expr, samples: Sequence[Mapping[str, float]], places: Sequence[Expr]
    ) -> None:
        self._formula = formula
        self._samples = samples
        self._steady = [self._steady_points(values, places) for values in samples]

    def is_missed(self, branch: Branch, places: Sequence[float]) -> bool:
        """Whether a form is wrong at a large input, or loses digits of a well-conditioned value."""
        return any(True for _ in self._faults(branch, places))

    def faults(self, branch: Branch, places: Sequence[float]) -> int:
        """The number of points at which a form is wrong or loses digits."""
        return sum(1 for _ in self._faults(branch, places))

    def _faults(self, branch: Branch, places: Sequence[float]) -> Iterator[float]:
        for values in self._samples:
            low, high = bounds(branch, values)
            for x in (sign * position for position in places for sign in (-1, 1)):
                if low <= x <= high and not self._is_right(branch.formula, {**values, X.name: x}):
                    yield x
        for values, steady in zip(self._samples, self._steady, strict=True):
            low, high = bounds(branch, values)
            for x in (x for x in steady if low < x < high):
                # An exact 0 has no digits to lose, though exp(-x**2) is ill-conditioned.
                heard = branch.formula.replace(
                    lambda part, at={**values, X.name: x}: (
                        part.is_Function and number(part, at) == 0
                    ),
                    lambda part: sympy.S.Zero,
                )
                if lost_bits([heard], [x], [values])[0][0] > _LOST:
                    yield x

    def _is_right(self, form: Expr, at: Mapping[str, float]) -> bool:
        computed = machine_value(form, at)
        inner = (machine_value(f.args[0], at) for f in form.atoms(*_FINITE_ONLY))
        if math.isnan(computed) or any(map(math.isinf, inner)):
            return False
        with mpmath.workdps(_DIGITS):
            value = number(self._formula, {name: mpmath.mpf(v) for name, v in at.items()})
        if math.isinf(computed):  # a last step may overflow where the value nearly does
            return bool(abs(value) > sys.float_info.max / 1e3 and computed * value > 0)
        return bool(abs(computed - value) <= abs(value) / 1e3 + 1e-30)

    def _steady_points(self, values: Mapping[str, float], places: Sequence[Expr]) -> list[Any]:
        """Points where the function is well-conditioned, so that digits can be kept."""
        slope, points = sympy.diff(self._formula, X), []
        with mpmath.workdps(_STEADY_DIGITS):
            for x in (sign * number(position, values) for position in places for sign in (-1, 1)):
                at = {**values, X.name: x}
                change, value = abs(x * number(slope, at)), abs(number(self._formula, at))
                if change < _CONDITION * value:
                    points.append(x)
        return points


def _conjugated(formula: Expr, scale: Expr) -> Expr:
    """sqrt(1 + u**2) - 1 as u**2/(sqrt(1 + u**2) + 1), where u = scale*x and it is a factor."""
    square = sympy.expand(scale**2 * X**2)
    root = Symbol("_root", positive=True)
    in_roots = formula.replace(
        lambda part: part.is_Pow and sympy.expand(part.base - 1 - square) == 0,
        lambda part: root ** (2 * part.exp),
    )
    if in_roots == formula:
        return formula
    even = in_roots.replace(
        lambda part: part.is_Pow and part.base == X and part.exp.is_Integer,
        lambda part: ((root**2 - 1) / scale**2) ** (part.exp // 2) * X ** (part.exp % 2),
    )
    rest = (root + 1) / (scale**2 * X**2)  # 1/(root - 1)
    factored = sympy.factor(even).replace(lambda part: part == root - 1, lambda part: 1 / rest)
    return factored.xreplace({root: sympy.sqrt(1 + square)})


def _by_limit(function: Any, u: Expr, side: int) -> Expr:
    sign = _sign(u, side)
    if sign > 0:
        return _RIGHT[function](u)
    if sign < 0 and function in _ODD:
        return -_RIGHT[function](-u)
    if sign < 0 and function in _EVEN:
        return _RIGHT[function](-u)
    return function(u)


def _logarithm(u: Expr, side: int) -> Expr:
    """log(1 + c*x**k) for large |x| without the power, which overflows."""
    if not (
        u.is_polynomial(X) and u.has(X) and u.coeff(X, 0) == 0 and len(u.as_ordered_terms()) == 1
    ):
        return log1p(u)
    power = sympy.degree(u, X)
    factor = u.coeff(X, power) * side**power
    if not factor.is_positive:
        return log1p(u)
    return sympy.log(factor) + power * sympy.log(side * X) + log1p(1 / u)


def _log_of_sum(u: Expr) -> Expr:
    """log(c*x**2 + b*x + a) as log(x**2) + log(c + b/x + a/x**2); other logarithms stay."""
    if not (u.is_Add and u.is_polynomial(X) and sympy.degree(u, X) % 2 == 0):
        return sympy.log(u)
    degree, lead = sympy.degree(u, X), sympy.LC(u, X)
    if not lead.is_positive:
        return sympy.log(u)
    rest = sympy.expand((u - lead * X**degree) / (lead * X**degree))
    return sympy.log(lead) + degree * sympy.log(absolute(X)) + log1p(rest)


def _sign(u: Expr, side: int) -> int:
    """The sign of a polynomial far out on the side; 0 where it is not known."""
    if isinstance(u, softplus):
        return max(0, _sign(u.args[0], side))
    if not u.has(X) or not u.is_polynomial(X):
        return 0
    lead = sympy.LC(u, X) * side ** sympy.degree(u, X)
    return 1 if lead.is_positive else -1 if lead.is_negative else 0


def _is_power_of_sum(part: Expr) -> bool:
    return bool(
        part.is_Pow and part.base.is_Add and part.base.has(_SIZE)
        and (part.base.is_polynomial(_SIZE) or part.base.has(sympy.Pow(_SIZE, -2)))
        and not (part.exp.is_Integer and part.exp > 0)
    )  # fmt: skip


def _pulled_out(part: Expr) -> Expr:
    """(1 + a*s**2)**p as s**(2*p) * (a + s**-2)**p: the powers of s combine with those outside.

    So do those of a sum with a root from which they were pulled out before.
    """
    terms = sympy.Add.make_args(sympy.expand(part.base))
    degree = max(term.as_powers_dict()[_SIZE] for term in terms)
    if degree <= 0:
        return part
    rest = sympy.Add(*(term / _SIZE**degree for term in terms))
    return _SIZE ** (degree * part.exp) * rest**part.exp
