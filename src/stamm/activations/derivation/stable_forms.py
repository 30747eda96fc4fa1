"""Chooses the numerically stable form of a formula.

One function has many forms: a_n*exp(x) + x*(b - a_n) - a_n loses every digit near 0, the equal
a_n*phi2(x) + b*x loses none. Candidate forms are made by rewriting rules and judged by a
forward error analysis at sample points: the bound on the rounding error, in units of the last
place, that evaluating the form step by step would give. The form with the fewest lost bits wins.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import mpmath
import sympy
from sympy import Expr, Integer, Rational, Symbol

from stamm.activations.derivation.formulas import Branch, applied, bounds, number
from stamm.activations.derivation.integrate import complement_free, reduce_density
from stamm.activations.derivation.primitives import (
    X,
    cauchy_cdf,
    cauchy_odd,
    cauchy_pdf,
    cauchy_slope,
    expm1,
    gompertz,
    gompertz_pdf,
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
    logistic_moment,
    softplus_integral,
)

WINDOWED = (expm1, phi2)
_WRITTEN_OUT = 4  # powers up to this one are products
_FAR = 1e3  # exponentials overflow a double here
FARTHEST = 1.4e154  # and here squares do; mpmath can still evaluate erfc
_CANCELLED = 12.0  # bits that a stated gradient may lose in a tail without being rewritten
_TAILS = [mpmath.mpf("0.1037") * 2**k for k in range(14)]  # for scales of the input from 1/32 to 32
_FAR_TAILS = [mpmath.mpf("1.037") * 2**k for k in (20, 40, 60)]
_TAIL_DIGITS, _SMALLEST = 120, 1e-37
LAST = 1.7e308  # and here a product with a parameter does
_LAST_BITS = 2.0  # penalty of a form that gives a NaN there, where another may not
_LOST = 60.0  # penalty of a form without a correct digit
_BITS_PER_OPERATION = 0.04
_POWER_SERIES = 8  # a polynomial of a higher degree without parameters is one
_HALF = Rational(1, 2)
_Known = dict[Expr, tuple[Any, Any]]
_MAGNITUDES = [mpmath.mpf(10) ** (k // 2) * mpmath.mpf("1.137") for k in range(-14, 9, 2)]


def stable_branches(
    branches: Sequence[Branch],
    samples: Sequence[Mapping[str, float]],
    reach: float = FARTHEST,
) -> tuple[Branch, ...]:
    """The branches with every formula in its most accurate form, split where forms change.

    samples   parameter values at which forms are compared
    reach     the largest input at which a form must not give a NaN; a form that also works where
              squares overflow is preferred in any case
    Edge      an exponential is split at the end of the window |u| <= 1 in which exp(u) - 1 - u
              cancels; neighbours whose form is the same are joined again.
    Checked   tests/unit/activations/test_derivation.py::test_no_form_loses_digits
    """
    chosen: list[Branch] = []
    for branch in branches:
        whole = best_form(branch, samples, reach, windowed=True)
        cuts = _cuts(branch, whole)
        if not cuts:
            chosen.append(Branch(**{**vars(branch), "formula": whole}))
            continue
        for part in split(branch, cuts):
            best = best_form(part, samples, reach, windowed=_inside(part, samples, whole))
            chosen.append(Branch(**{**vars(part), "formula": best}))
    return tuple(_joined(chosen))


def lost_bits(
    forms: Sequence[Expr], points: Sequence[Any], samples: Sequence[Mapping[str, float]]
) -> list[list[float]]:
    """For each form, the bits of its result that rounding may spoil, at each point and sample.

    bits = log2(1 + bound on the relative error in ulp of a step-by-step evaluation)
    """
    lost: list[list[float]] = [[] for _ in forms]
    for values in samples:
        for point in points:
            known: _Known = {}  # forms share most of their parts
            at = {**values, X.name: point}
            for form, bits in zip(forms, lost, strict=True):
                _, error = _error(form, at, known)
                finite = bool(mpmath.isfinite(error))
                bits.append(min(float(mpmath.log(1 + error, 2)), _LOST) if finite else _LOST)
    return lost


def breaks_at(
    form: Expr, branch: Branch, values: Mapping[str, float], reach: float = FARTHEST
) -> float | None:
    """A point far out on the branch where machine arithmetic spoils a form, or None.

    Where exponentials overflow, the form must still give the value: x + log(1 + exp(-x)) does not
    on the left. At `reach`, where powers overflow too, it must not give a NaN.
    """
    low, high = bounds(branch, values)
    for x in (-_FAR, _FAR):
        if low <= x <= high:
            computed = machine_value(form, {**values, X.name: x})
            true = number(branch.formula, {**values, X.name: mpmath.mpf(x)})
            representable = abs(true) < sys.float_info.max
            if math.isnan(computed) or (
                representable and abs(computed - true) > abs(true) / 1e3 + 1e-30
            ):
                return x
    for x in (-reach, reach):
        if low <= x <= high and math.isnan(machine_value(form, {**values, X.name: x})):
            return x
    return None


def with_tails(branch: Branch, samples: Sequence[Mapping[str, float]]) -> Branch:
    """The stated gradient, without a difference that loses a tail: 2 logistic(2*x) for 1 + tanh(x).

    Functions with two limits are written as one limit plus the difference from it, and the first
    form that keeps its digits is taken. Everything else is derived from it.

    Edge     a gradient that loses nothing, or that no form helps, stays as it is stated.
    Checked  tests/unit/activations/test_reachable.py
    """
    formula = _complements(branch.formula)  # 1 - logistic(x) is logistic(-x)
    branch = Branch(**{**vars(branch), "formula": formula})
    if not formula.has(*_LIMITS, sympy.exp, gompertz):
        return branch
    points = _tail_points(branch, samples)

    def lost(form: Expr) -> float:
        return max((_tail_bits(form, x, values) for x, values in points), default=0.0)

    before = lost(formula)
    if before <= _CANCELLED:
        return branch
    forms = [_squares_by_logistics(formula), sympy.expand(formula)]
    forms += [formula.replace(gompertz, lambda u: 1 + expm1(-sympy.exp(-u)))]
    for side in (-1, 1):
        raised = formula.replace(
            lambda part: part.func in _LIMITS, lambda part, by=side: _LIMITS[part.func](part, by)
        )
        forms += [raised, sympy.expand(raised), _complements(sympy.factor(sympy.expand(raised)))]
    best = min(forms, key=lambda form: (lost(form), int(sympy.count_ops(form))))
    return Branch(**{**vars(branch), "formula": best}) if lost(best) <= before / 4 else branch


def rooted_branches(
    branches: Sequence[Branch], samples: Sequence[Mapping[str, float]]
) -> tuple[Branch, ...]:
    """The branches, cut where a root R = sqrt(k*x**2 + c) cancels against x or against sqrt(c).

    With u = sqrt(k)*|x|, R - u is c/(R + u), and R - sqrt(c) is u**2/(R + sqrt(c)).

    Edge     a branch stays as it is where it loses nothing, holds several such roots, or no form helps.
    Checked  tests/unit/activations/test_rooted.py
    """
    return tuple(part for branch in branches for part in _without_root(branch, samples) or [branch])


def _without_root(
    branch: Branch, samples: Sequence[Mapping[str, float]]
) -> Sequence[Branch] | None:
    squares = {p.base for p in branch.formula.atoms(sympy.Pow) if _is_root_of_square(p)}
    if len(squares) != 1 or not {branch.low, branch.high} <= {-sympy.oo, sympy.S.Zero, sympy.oo}:
        return None
    (square,) = squares

    def lost(form: Expr, part: Branch) -> float:
        if any(breaks_at(form, part, values) is not None for values in samples):
            return _LOST
        return max(
            max(lost_bits([form], sample_points(*bounds(part, values)), [values])[0])
            for values in samples
        )

    before = lost(branch.formula, branch)
    if before <= _CANCELLED:
        return None
    k, c = (sympy.expand(square).coeff(X, power) for power in (2, 0))
    edge = sympy.sqrt(c / k)
    parts = []
    for part in split(
        branch, [cut for cut in (-edge, sympy.S.Zero, edge) if branch.low < cut < branch.high]
    ):
        forms = list(_by_conjugates(branch.formula, square, 1 if part.low >= 0 else -1))
        losses = [lost(form, part) for form in forms]
        best = min(range(len(forms)), key=lambda i: (losses[i], int(sympy.count_ops(forms[i]))))
        if losses[best] > max(before / 4, _CANCELLED / 2):
            return None
        parts.append(Branch(**{**vars(part), "formula": forms[best]}))
    return list(_joined(parts))


def _is_root_of_square(power: Expr) -> bool:
    """Whether it is an odd power of sqrt(k*x**2 + c), k and c positive."""
    if not (power.is_Pow and power.base.is_Add and (2 * power.exp).is_odd):
        return False
    square = sympy.expand(power.base)
    if not square.is_polynomial(X) or sympy.degree(square, X) != 2:
        return False
    return bool(
        square.coeff(X, 1) == 0
        and square.coeff(X, 2).is_positive
        and square.coeff(X, 0).is_positive
    )


def _by_conjugates(formula: Expr, square: Expr, side: int) -> Iterator[Expr]:
    """The formula, and without differences of the root and x (on a side), or of the root and sqrt(c)."""
    root, total, rise = (Symbol(f"_{name}", positive=True) for name in ("root", "total", "rise"))
    k, c = (sympy.expand(square).coeff(X, power) for power in (2, 0))
    whole, inner = sympy.sqrt(square), sympy.sqrt(k) * side * X
    functions = {f: Symbol(f"_function{i}") for i, f in enumerate(formula.atoms(sympy.Function))}
    placed = formula.xreplace(functions).replace(
        lambda part: part.is_Pow and part.base == square, lambda part: root ** (2 * part.exp)
    )
    meant = {
        **{symbol: function for function, symbol in functions.items()},
        total: whole + inner,
        rise: inner**2 / (whole + sympy.sqrt(c)),
        root: whole,
    }
    above, below = sympy.fraction(sympy.together(placed))
    above = sympy.expand(above).replace(
        lambda part: part.is_Pow and part.base == X and part.exp.is_Integer and part.exp > 1,
        lambda part: ((root**2 - c) / k) ** (part.exp // 2) * X ** (part.exp % 2),
    )
    yield formula
    if placed.is_polynomial(root):  # both by R + u alone: no quotient of the two overflows
        half = (total - c / total) / 2
        both = {X: side * half / sympy.sqrt(k), root: half + c / total}
        yield sympy.expand(placed.xreplace(both)).xreplace(meant)
    for form in (
        sympy.expand(placed.subs(X, side * (root - c / total) / sympy.sqrt(k))),
        sympy.expand(sympy.expand(above).subs(root, sympy.sqrt(c) + rise)) / below,
    ):
        for written in (form, sympy.factor_terms(form)):
            yield written.xreplace(meant)


def _from_limits(
    function: Any, scale: Expr, height: Expr, low: Expr
) -> Callable[[Expr, int], Expr]:
    """A function as low + height*one(scale*u), or by the upper limit."""

    def form(part: Expr, side: int) -> Expr:
        u = scale * part.args[0]
        return low + height * function(u) if side < 0 else low + height - height * function(-u)

    return form


_LIMITS: Mapping[Any, Callable[[Expr, int], Expr]] = {
    sympy.tanh: _from_limits(logistic, Integer(2), Integer(2), -Integer(1)),
    sympy.erf: _from_limits(normal_cdf, sympy.sqrt(2), Integer(2), -Integer(1)),
    sympy.atan: _from_limits(cauchy_cdf, Integer(1), sympy.pi, -sympy.pi / 2),
    **{
        f: _from_limits(f, Integer(1), Integer(1), Integer(0))
        for f in (logistic, normal_cdf, cauchy_cdf)
    },
}


def _squares_by_logistics(formula: Expr) -> Expr:
    """tanh(u)**2 as 1 - 4 logistic(2 u) logistic(-2 u): the difference from 1 keeps its digits."""
    return formula.replace(
        lambda part: part.is_Pow and part.base.func is sympy.tanh and part.exp == 2,
        lambda square: (
            1 - 4 * logistic(2 * square.base.args[0]) * logistic(-2 * square.base.args[0])
        ),
    )


def _complements(factored: Expr) -> Expr:
    """Factors like 1 - logistic(u) as logistic(-u)."""

    def is_rest(part: Expr) -> bool:
        return bool(
            part.is_Add and len(part.args) == 2 and abs(part.args[0]) == 1
            and isinstance(-part.args[0] * part.args[1], (logistic, normal_cdf, cauchy_cdf))
        )  # fmt: skip

    return factored.replace(
        is_rest,
        lambda part: part.args[0] * _mirrored(-part.args[0] * part.args[1]),
    )


def _mirrored(gate: Expr) -> Expr:
    return gate.func(-gate.args[0])


def _tail_points(
    branch: Branch, samples: Sequence[Mapping[str, float]]
) -> list[tuple[Any, Mapping[str, float]]]:
    points = []
    # An algebraic tail is in no format's last digits before these.
    sizes = _TAILS + (_FAR_TAILS if branch.formula.has(sympy.atan, cauchy_cdf, cauchy_odd) else [])
    for values in samples:
        low, high = bounds(branch, values)
        points += [(x, values) for m in sizes for x in (-m, m) if low < x < high]
    return points


def _tail_bits(form: Expr, x: Any, values: Mapping[str, float]) -> float:
    """Bits lost where a format of 32 bits still holds the value; 0 elsewhere."""
    at = {**values, X.name: x}
    with mpmath.workdps(_TAIL_DIGITS):
        if abs(number(form, at)) < _SMALLEST:
            return 0.0
        return lost_bits([form], [x], [values])[0][0]


def _fails_last(form: Expr, branch: Branch, values: Mapping[str, float]) -> bool:
    low, high = bounds(branch, values)
    return any(
        low <= x <= high and math.isnan(machine_value(form, {**values, X.name: x}))
        for x in (-LAST, LAST)
    )


@lru_cache(maxsize=4096)
def ordered_terms(formula: Expr) -> tuple[list[Expr], list[Expr]]:
    """The terms of a sum as (polynomial ones, added first; the others), each in a fixed order.

    Small polynomial parts such as -1 - x are exact or nearly so when they are added up first.
    """
    terms = sorted(sympy.Add.make_args(formula), key=sympy.default_sort_key)
    plain = [t for t in terms if not t.atoms(sympy.Function)]
    return plain, [t for t in terms if t.atoms(sympy.Function)]


@lru_cache(maxsize=4096)
def ordered_factors(formula: Expr) -> list[Expr]:
    """The factors of a product in the order they are multiplied, small powers written out.

    Functions come first: a density that is 0 makes the product 0, where the powers of x alone
    would overflow first and give infinity times zero.
    """
    factors: list[Expr] = []
    for factor in sorted(sympy.Mul.make_args(formula), key=_factor_order):
        whole = factor.is_Pow and factor.exp.is_Integer and 0 < factor.exp <= _WRITTEN_OUT
        factors += [factor.base] * int(factor.exp) if whole else [factor]
    return factors


def sample_points(low: Any, high: Any) -> list[Any]:
    """Points of an interval, log-uniform in magnitude on each side of 0."""
    both = sorted([-m for m in _MAGNITUDES] + _MAGNITUDES)
    inside = [m for m in both if low < m < high]
    if len(inside) < 6 and mpmath.isfinite(low) and mpmath.isfinite(high):
        inside += [low + (high - low) * i / 11 for i in range(1, 11)]
    return inside


def best_form(
    branch: Branch,
    samples: Sequence[Mapping[str, float]],
    reach: float,
    *,
    windowed: bool = False,
) -> Expr:
    """The form of the branch's formula that loses the fewest digits and operations.

    windowed   whether exponentials may be written with exp(u) - 1 and exp(u) - 1 - u
    """
    power_series = branch.formula.free_symbols == {X} and branch.formula.is_polynomial(X)
    if power_series and sympy.degree(branch.formula, X) > _POWER_SERIES:
        # A common divisor of its coefficients has so many digits that small products vanish.
        return sympy.horner(branch.formula)
    points = sample_points(*bounds(branch, samples[0]))
    forms = list(_forms(branch.formula, windowed))
    best, least = branch.formula, float("inf")
    losses = lost_bits(forms, points, samples)
    for values in samples[1:]:
        if _holds_zero(branch, values) != _holds_zero(branch, samples[0]):
            more = lost_bits(forms, sample_points(*bounds(branch, values)), [values])
            losses = [[*lost, *added] for lost, added in zip(losses, more, strict=True)]
    for form, lost in zip(forms, losses, strict=True):
        operations = int(sympy.count_ops(form)) + 4 * len(form.atoms(sympy.Function))
        cost = sum(lost) / max(len(lost), 1) + _BITS_PER_OPERATION * operations
        if cost >= least - 1e-9:
            continue  # it can only grow
        for far in {reach, FARTHEST}:
            broken = (breaks_at(form, branch, values, far) is not None for values in samples)
            cost += _LOST * any(broken)
        cost += _LAST_BITS * any(_fails_last(form, branch, values) for values in samples)
        if cost < least - 1e-9:
            best, least = form, cost
    return best


def _holds_zero(branch: Branch, values: Mapping[str, float]) -> bool:
    low, high = bounds(branch, values)
    return bool(low <= 0 <= high)


def _forms(formula: Expr, windowed: bool) -> Iterator[Expr]:
    """Equal forms of a formula, each once, in a fixed order."""
    seen = set()
    for base in _bases(formula, windowed):
        expanded = sympy.expand(base)
        functions = sorted(expanded.atoms(sympy.Function), key=sympy.default_sort_key)
        for form in (
            base,
            expanded,
            sympy.collect(expanded, X),
            sympy.collect(expanded, functions),
            sympy.collect(expanded, functions, sympy.factor),
            factored := sympy.factor(expanded),
            sympy.factor_terms(expanded),
            _joined_powers(expanded),
            _complements(factored) if _is_shifted(expanded) else expanded,
        ):
            if form not in seen and not form.has(sympy.I):
                seen.add(form)
                yield form


def _is_shifted(formula: Expr) -> bool:
    """Whether a parameter may move a gate's input far into either tail where x is small."""
    inner = (gate.args[0] for gate in formula.atoms(logistic, softplus))
    return any(u.is_polynomial(X) and u.subs(X, 0).free_symbols for u in inner)


def _joined_powers(formula: Expr) -> Expr:
    """Powers of x, and of -x, with a symbol for exponent, as one: x**p/x**2 has no value at 0."""
    if not any(power.exp.free_symbols for power in formula.atoms(sympy.Pow)):
        return formula
    size = Symbol("_size", positive=True)
    for sign in (1, -1):
        factored = sympy.factor(formula).subs(X, sign * size)
        formula = sympy.powsimp(factored).subs(size, sign * X)
    return formula


def _bases(formula: Expr, windowed: bool) -> Iterator[Expr]:
    yield formula
    if formula.has(sympy.exp) and windowed:
        yield formula.replace(sympy.exp, lambda u: 1 + expm1(u))
        yield formula.replace(sympy.exp, lambda u: 1 + u + phi2(u))
    inner = [-f.args[0] for f in formula.atoms(sympy.exp) if isinstance(-f.args[0], sympy.exp)]
    for u in (part.args[0] for part in sorted(inner, key=sympy.default_sort_key)):
        density = sympy.exp(u) * sympy.exp(-sympy.exp(u))  # infinity times zero
        yield formula.subs(density, gompertz_pdf(-u))
    if formula.has(logistic):
        single = complement_free(formula)
        yield single
        yield single.replace(logistic, lambda u: _HALF + logistic_odd(u))
        yield _centred_outside_products(formula)
        shared = _arguments(formula, logistic) & _arguments(formula, softplus)
        if shared:  # softplus(u) - logistic(u) cancels where both are small
            yield formula.subs({logistic(u): softplus(u) - phi2(-softplus(u)) for u in shared})
    if _is_shifted(formula):  # x + softplus(a*(k - x))/a - softplus(a*k)/a where a*k is large
        mirrored = formula.replace(softplus, lambda u: u + softplus(-u))
        yield mirrored.replace(logistic, lambda u: 1 - logistic(-u))
    shared = _arguments(formula, softplus) & _arguments(formula, softplus_integral)
    if shared:  # u*softplus(u) - softplus_integral(u) is inf - inf
        yield formula.subs(
            {softplus_integral(u): u * softplus(u) - logistic_moment(u) for u in shared}
        )
    if formula.has(gompertz_integral):
        yield formula.replace(
            gompertz_integral, lambda u: u - sympy.EulerGamma + gompertz_upper_integral(u)
        )
    if any(
        f.args[0].is_polynomial(X) and f.args[0].subs(X, 0).free_symbols
        for f in formula.atoms(sympy.tanh)
    ):
        yield formula.replace(sympy.tanh, lambda u: 2 * logistic(2 * u) - 1)  # 1 - tanh(x + b)**2
    if formula.has(normal_cdf):
        yield formula.replace(normal_cdf, lambda u: _HALF + normal_odd(u))
    if formula.has(cauchy_cdf):
        yield formula.replace(cauchy_cdf, lambda u: _HALF + cauchy_odd(u))
    if formula.has(cauchy_pdf):
        yield reduce_density(formula)
        yield reduce_density(
            formula.replace(cauchy_cdf, lambda u: cauchy_slope(u) - u * cauchy_pdf(u))
        )


def _centred_outside_products(formula: Expr) -> Expr:
    """logistic(u) logistic(-u) kept as a product, every other logistic written as 1/2 + odd."""
    rising = {-u if u.could_extract_minus_sign() else u for u in _arguments(formula, logistic)}
    kept: dict[Symbol, Expr] = {}
    for i, u in enumerate(sorted(rising, key=sympy.default_sort_key)):
        product = Symbol(f"_product{i}", positive=True)
        rise, fall = logistic(u), logistic(-u)
        terms = []
        for term in sympy.Add.make_args(sympy.expand(formula)):
            powers = term.as_powers_dict()
            both = min(powers.get(rise, 0), powers.get(fall, 0))
            terms.append(term * (product / (rise * fall)) ** both)
        formula, kept[product] = sympy.Add(*terms), rise * fall
    single = complement_free(formula)
    centred = sympy.expand(single.replace(logistic, lambda u: _HALF + logistic_odd(u)))
    return centred.subs(kept)


def _arguments(formula: Expr, function: Any) -> set[Expr]:
    return {part.args[0] for part in formula.atoms(function)}


def _cuts(branch: Branch, formula: Expr) -> list[Expr]:
    """Where, inside the branch, arguments of windowed primitives are -1, 0 or 1.

    Knots that move with parameters cannot be ordered against these: such a branch stays whole.
    """
    if branch.low.free_symbols or branch.high.free_symbols:
        return []
    cuts = set()
    for primitive in formula.atoms(*WINDOWED):
        scale = primitive.args[0] / X
        if scale.is_Rational:
            cuts |= {sign / scale for sign in (-1, 0, 1)}
    return sorted(cut for cut in cuts if branch.low < cut < branch.high)


def split(branch: Branch, cuts: Sequence[Expr]) -> Iterator[Branch]:
    """The branch cut at points inside it, which belong to the part on their left."""
    low, low_closed = branch.low, branch.low_closed
    for cut in cuts:
        yield Branch(
            low=low, low_closed=low_closed, high=cut, high_closed=True, formula=branch.formula
        )
        low, low_closed = cut, False
    yield Branch(
        low=low,
        low_closed=low_closed,
        high=branch.high,
        high_closed=branch.high_closed,
        formula=branch.formula,
    )


def _inside(part: Branch, samples: Sequence[Mapping[str, float]], whole: Expr) -> bool:
    """Whether every windowed argument stays within |u| <= 1 on the part."""
    ends = bounds(part, samples[0])
    scales = [p.args[0] / X for p in whole.atoms(*WINDOWED)]
    return all(
        abs(end) * abs(float(scale)) <= 1 for scale in scales for end in ends if scale.is_Rational
    )


def _joined(branches: Sequence[Branch]) -> Iterator[Branch]:
    pending: Branch | None = None
    for branch in branches:
        if pending is not None:
            if pending.formula == branch.formula and not pending.formula.has(*WINDOWED):
                pending = Branch(
                    low=pending.low,
                    low_closed=pending.low_closed,
                    high=branch.high,
                    high_closed=branch.high_closed,
                    formula=pending.formula,
                )
                continue
            yield pending
        pending = branch
    if pending is not None:
        yield pending


def _error(formula: Expr, values: Mapping[str, Any], known: _Known) -> tuple[Any, Any]:
    """Value, and the bound on its relative rounding error in ulp, of a step-by-step evaluation."""
    if formula not in known:
        known[formula] = _new_error(formula, values, known)
    return known[formula]


def _new_error(formula: Expr, values: Mapping[str, Any], known: _Known) -> tuple[Any, Any]:
    if formula.is_Symbol or not formula.args:
        return number(formula, values), mpmath.mpf(0)
    if formula.is_Add:
        return _error_of_sum(formula, values, known)
    parts = [_error(part, values, known) for part in formula.args]
    if formula.is_Mul:
        steps = len([p for p in formula.args if p != -1]) - 1
        return mpmath.fprod(v for v, _ in parts), sum(e for _, e in parts) + _half(steps)
    if formula.is_Pow and formula.exp.is_Integer:
        power = int(formula.exp)
        rounds = abs(power) - 1 + (power < 0)
        return parts[0][0] ** power, abs(power) * parts[0][1] + _half(rounds)
    value, (argument, error) = number(formula, values), parts[0]
    if isinstance(formula, signum) and not formula.has(X):
        return value, mpmath.mpf(0)
    if error == 0:
        return value, mpmath.mpf(1)
    if formula.is_Pow:
        return value, abs(parts[1][0]) * error + 1
    growth = abs(argument * number(formula.fdiff(1), values) / value) if value else mpmath.inf
    return value, growth * error + 1


def machine_value(formula: Expr, values: Mapping[str, float]) -> float:
    """The value in double precision, in the order of operations that is emitted."""
    if formula.is_Symbol:
        return float(values[formula.name])
    if not formula.free_symbols:
        return float(formula) if formula.is_extended_real else math.nan
    if formula.is_Add:
        return sum(
            (machine_value(t, values) for group in ordered_terms(formula) for t in group), 0.0
        )
    if formula.is_Mul:
        return math.prod(machine_value(f, values) for f in ordered_factors(formula))
    parts = [machine_value(part, values) for part in formula.args]
    if any(map(math.isnan, parts)):
        return math.nan
    try:
        return _rounded(applied(formula, [mpmath.mpf(part) for part in parts]))
    except ZeroDivisionError:
        return math.inf
    except (OverflowError, ValueError):
        return parts[0]  # an infinity that mpmath has no value for is passed on: no NaN yet


def _rounded(value: Any) -> float:
    """The nearest double, zero below and infinity above the range of doubles; NaN if not real."""
    if mpmath.im(value):
        return math.nan
    value = mpmath.re(value)
    if abs(value) < sys.float_info.min:
        return 0.0
    if abs(value) > sys.float_info.max:
        return math.inf if value > 0 else -math.inf
    return float(value)


def _factor_order(factor: Expr) -> tuple[int, Any]:
    """Numbers, then parameters, then functions and their powers, then powers and sums in x."""
    if not factor.has(X):
        return 0, sympy.default_sort_key(factor)
    power = factor.is_Pow and factor.exp.is_positive and not factor.exp.has(X)
    base = factor.base if power else factor
    return 1 + (not base.is_Function), sympy.default_sort_key(factor)


def _half(steps: int) -> Any:
    return mpmath.mpf(steps) / 2


def _error_of_sum(formula: Expr, values: Mapping[str, Any], known: _Known) -> tuple[Any, Any]:
    total, error = mpmath.mpf(0), mpmath.mpf(0)
    for group in ordered_terms(formula):
        part, lost = mpmath.mpf(0), mpmath.mpf(0)
        for i, term in enumerate(group):
            value, ulps = _error(term, values, known)
            part += value
            lost += abs(value) * ulps + (abs(part) / 2 if i else 0)
        first = total == 0
        total += part
        error += lost + (0 if first or not group else abs(total) / 2)
    if total == 0:
        return total, mpmath.inf if error else mpmath.mpf(0)
    return total, error / abs(total)
