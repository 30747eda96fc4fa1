"""Undetermined coefficients: an antiderivative as a polynomial in x and in functions of x.

The functions that occur, their partners under integration and powers of x span a space that
differentiation maps into itself; the antiderivative is sought there by linear algebra over the
field of the parameters. It is fast, and its result is already in primitives.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import mpmath
import sympy
from sympy import Expr, Poly, Symbol

from stamm.activations.derivation.formulas import number
from stamm.activations.derivation.primitives import (
    PRIMITIVES,
    X,
    absolute,
    cauchy_cdf,
    cauchy_pdf,
    gompertz,
    gompertz_pdf,
    logistic,
    normal_cdf,
    normal_pdf,
    signum,
    softplus,
)
from stamm.activations.derivation.special import (
    gompertz_integral,
    log_cosh,
    logistic_moment,
    mish_gate_integral,
    softplus_integral,
)

_PARTNERS = {
    normal_pdf: normal_cdf,
    cauchy_pdf: cauchy_cdf,
    gompertz_pdf: gompertz,
    logistic: softplus,
}
# Tried in turn when the partners alone do not suffice: the shorter result is used.
_HIGHER = {
    softplus: softplus_integral,
    gompertz: gompertz_integral,
    sympy.tanh: lambda u: mish_gate_integral(u.args[0]) if u.func is softplus else log_cosh(u),
}
_MOMENT = {softplus: logistic_moment}
_ENTIRE = (
    sympy.exp,
    sympy.sin,
    sympy.cos,
    sympy.sinh,
    sympy.cosh,
    sympy.tanh,
    sympy.erf,
    sympy.erfc,
)
# Integrals of integrals: none of their products with a function has a derivative in the ansatz.
_ALONE = (softplus_integral, logistic_moment, gompertz_integral, mish_gate_integral, log_cosh)
_MAX_ATOMS = 6
_MAX_MONOMIALS = 400


def by_coefficients(gradient: Expr) -> Expr | None:
    """The antiderivative among polynomials in x, the functions of the gradient and their partners.

    Edge     it is continuous where a sign(u) changes; None where that is not possible.
    Checked  tests/unit/activations/test_integrate.py
    """
    gradient = reduce_density(complement_free(gradient))
    tried: list[list[Expr]] = []
    for ways in ((_PARTNERS,), ({**_PARTNERS, **_HIGHER}, {**_PARTNERS, **_MOMENT})):
        results = []
        for partners in ways:
            atoms = _closed(gradient, partners)
            if atoms is not None and atoms not in tried:
                tried.append(atoms)
                results.append(_solved(gradient, atoms))
        solved = [result for result in results if result is not None]
        continuous = [whole for part in solved if (whole := without_sign_jumps(part)) is not None]
        if continuous:
            return min(continuous, key=sympy.count_ops)
    return None


def _solved(gradient: Expr, atoms: Sequence[Expr]) -> Expr | None:
    """The combination of monomials in x and the atoms whose derivative is the gradient."""
    places = [Symbol(f"_place{i}") for i in range(len(atoms))]
    target = _in_places(gradient, atoms, places)
    if target is None:
        return None
    if target.is_zero:
        return sympy.S.Zero
    degree_x = target.degree(X) + 1
    degree = [max(target.degree(generator), 1) for generator in places]
    ranges = [range(degree_x + 1), *(range(d + 1) for d in degree)]
    alone = {i for i, atom in enumerate(atoms) if isinstance(atom, _ALONE)}
    monomials = [
        (n, *powers)
        for n, *powers in itertools.product(*ranges)
        if sum(powers) <= 1 or not any(powers[i] for i in alone)
    ]
    if len(monomials) > _MAX_MONOMIALS:
        return None
    unknowns = [Symbol(f"_coefficient{i}") for i in range(len(monomials))]
    residue = -target.as_expr()
    for unknown, (n, *powers) in zip(unknowns, monomials, strict=True):
        monomial = X**n * sympy.prod(a**k for a, k in zip(atoms, powers, strict=True))
        slope = reduce_density(complement_free(sympy.diff(monomial, X)))
        placed = _in_places(slope, atoms, places)
        if placed is None:
            return None
        residue += unknown * placed.as_expr()
    equations = Poly(sympy.expand(residue), X, *places).coeffs()
    solutions = sympy.linsolve(equations, unknowns)
    if not solutions:
        return None
    solution = [s.subs(dict.fromkeys(unknowns, 0)) for s in next(iter(solutions))]
    return sum(
        (
            value * X**n * sympy.prod(a**k for a, k in zip(atoms, powers, strict=True))
            for value, (n, *powers) in zip(solution, monomials, strict=True)
        ),
        sympy.S.Zero,
    )


def complement_free(expression: Expr) -> Expr:
    """The expression with every logistic(-u) written as 1 - logistic(u), one spelling per value."""
    arguments = {f.args[0] for f in expression.atoms(logistic)}
    for argument in sorted(arguments, key=sympy.default_sort_key):
        if argument.could_extract_minus_sign():
            expression = expression.subs(logistic(argument), 1 - logistic(-argument))
    return expression


def reduce_density(expression: Expr) -> Expr:
    """The expanded expression with x**2 cauchy_pdf(x) written as 1/pi - cauchy_pdf(x)."""
    density = cauchy_pdf(X)
    terms = list(sympy.Add.make_args(sympy.expand(expression)))
    done = []
    while terms:
        term = terms.pop()
        powers = term.as_powers_dict()
        if _count(powers, X) >= 2 and _count(powers, density) >= 1:
            shorter = sympy.expand(term / (X**2 * density) * (1 / sympy.pi - density))
            terms.extend(sympy.Add.make_args(shorter))
        else:
            done.append(term)
    return sympy.Add(*done)


def _count(powers: Mapping[Expr, Expr], base: Expr) -> int:
    """The whole power in which a factor occurs; 0 for one that is a parameter."""
    power = sympy.sympify(powers.get(base, 0))
    return int(power) if power.is_Integer else 0


def _closed(gradient: Expr, partners: Mapping[Any, Any]) -> list[Expr] | None:
    """The functions in the gradient, their partners, and all that differentiating them leads to.

    None when one of them has no polynomial derivative, or when the set does not close.
    """
    pending = sorted(gradient.atoms(sympy.Function), key=sympy.default_sort_key)
    atoms: set[Expr] = set()
    while pending:
        atom = pending.pop()
        if atom in atoms:
            continue
        if type(atom) not in (*_ENTIRE, *PRIMITIVES) or len(atoms) == _MAX_ATOMS:
            return None
        atoms.add(atom)
        partner = partners.get(type(atom))
        if partner is not None:
            pending.append(partner(atom.args[0]))
        slope = reduce_density(complement_free(sympy.diff(atom, X)))
        pending += sorted(slope.atoms(sympy.Function) - atoms, key=sympy.default_sort_key)
    return sorted(atoms, key=sympy.default_sort_key)


def _in_places(expression: Expr, atoms: Sequence[Expr], places: Sequence[Symbol]) -> Poly | None:
    placed = sympy.expand(expression).subs(dict(zip(atoms, places, strict=True)))
    if placed.atoms(sympy.Function) or not placed.is_polynomial(X, *places):
        return None
    return Poly(placed, X, *places)


_DIGITS = 140
_BESIDE = mpmath.mpf(10) ** -60  # how far from a sign change a formula is evaluated on both sides
_SAME = mpmath.mpf(10) ** -12  # largest difference of the values there, relative to 1 + |f|


def without_sign_jumps(integral: Expr) -> Expr | None:
    """An antiderivative of a bounded gradient without its jumps where a linear u changes its sign.

    Half of each jump, times sign(u), is subtracted. A power of sign(u) is 1 or sign(u) first.

    Edge     None where a u is not linear, or two of them have the same root: those jumps stay.
    Checked  tests/unit/activations/test_sign_discontinuities.py
    """
    integral = integral.replace(_is_power_of_sign, lambda p: p.base if p.exp % 2 else sympy.S.One)
    roots: set[Expr] = set()
    for part in sorted(integral.atoms(signum), key=sympy.default_sort_key):
        slope = sympy.diff(part.args[0], X)
        if slope == 0:
            continue
        if slope.has(X):
            return None
        root = sympy.cancel(-part.args[0].subs(X, 0) / slope)
        if root in roots:
            return None
        roots.add(root)
        above, below = (integral.xreplace({part: side}) for side in (sympy.S.One, -sympy.S.One))
        half = _value((above - below) / 2, root)
        integral = sympy.expand(integral - half * part)
    return integral


def jump_at_sign_change(
    function: Expr, values: Mapping[str, float], low: float, high: float
) -> str:
    """A jump of a formula where a linear u in sign(u) changes its sign, as text; "" without one.

    low, high   the ends of the piece: values there count, values beyond do not
    Edge        text for a u that is not linear as well: where it changes its sign is not known.
    Checked     tests/unit/activations/test_sign_discontinuities.py
    """
    for part in sorted(function.atoms(signum), key=sympy.default_sort_key):
        argument = part.args[0]
        slope = sympy.diff(argument, X)
        if slope == 0:
            continue
        if slope.has(X):
            return f"it may jump where sign({argument}) changes, which is not linear in x"
        with mpmath.workdps(_DIGITS):
            rise = number(slope, values)
            if rise == 0:
                continue
            root = -number(argument, {**values, X.name: mpmath.mpf(0)}) / rise
            around = _around(function, part, values, root, (low, high))
            if any(not abs(f - around[0]) <= _SAME * (1 + abs(around[0])) for f in around[1:]):
                shown = ", ".join(mpmath.nstr(f, 6) for f in around)
                return f"it jumps at x = {mpmath.nstr(root, 6)}, where its values are {shown}"
    return ""


def _around(
    function: Expr,
    part: Expr,
    values: Mapping[str, float],
    root: mpmath.mpf,
    ends: tuple[float, float],
) -> list[mpmath.mpf]:
    """The values just below a root, at it and just above it, as far as they are in the piece."""
    at_root = function.xreplace({part: sympy.S.Zero})
    places = [(function, root - _BESIDE), (at_root, root), (function, root + _BESIDE)]
    numbers = []
    for formula, x in places:
        if ends[0] <= x <= ends[1]:
            try:
                numbers.append(number(formula, {**values, X.name: x}))
            except (ArithmeticError, ValueError):
                numbers.append(mpmath.nan)
    return numbers


def _value(formula: Expr, point: Expr) -> Expr:
    """The formula at a point, with sign(u) and |u| of numbers evaluated."""

    def evaluated(part: Expr) -> Expr:
        expanded = part.definition(sympy.cancel(part.args[0]))
        return part if expanded.has(sympy.sign, sympy.Abs) else expanded

    return formula.subs(X, point).replace(
        lambda part: isinstance(part, (signum, absolute)), evaluated
    )


def _is_power_of_sign(part: Expr) -> bool:
    return bool(part.is_Pow) and isinstance(part.base, signum) and bool(part.exp.is_Integer)
