"""Antiderivatives of gradient pieces: exactly, or an error that says it could not be done.

First by undetermined coefficients: the primitives that occur, their partners under integration
and powers of x span a space that differentiation maps into itself; the antiderivative is sought
there by linear algebra over the field of the parameters. It is fast, and its result is already in
primitives. What lies outside that space goes to SymPy's own integrator. Either way the
result is differentiated again and compared with the gradient to 30 digits.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import mpmath
import sympy
from sympy import Expr, Poly, Symbol

from stamm.activations.primitives import (
    PRIMITIVES,
    X,
    cauchy_cdf,
    cauchy_pdf,
    elementary,
    logistic,
    normal_cdf,
    normal_pdf,
    number,
    softplus,
)
from stamm.base.errors import ConfigError

_PARTNERS = {normal_pdf: normal_cdf, cauchy_pdf: cauchy_cdf, logistic: softplus}
_MAX_MONOMIALS = 400
_DIGITS = 30


def antiderivative(
    gradient: Expr, points: Sequence[Mapping[str, float]], *, piece: str, where: str
) -> Expr:
    """A function whose derivative in x is `gradient`.

    points   where the result is checked: values by symbol name, all inside the piece
    Raises   ConfigError when neither way finds one, naming the piece.
    Checked  tests/unit/activations/test_derivation.py
    """
    found = _by_coefficients(gradient)
    if found is None:
        found = sympy.integrate(elementary(gradient), X)
        unknown = found.atoms(sympy.Integral, sympy.RootSum, sympy.Piecewise)
        if unknown or found.has(sympy.I, sympy.oo, sympy.nan):
            raise ConfigError(
                f"no antiderivative of piece {piece!r} could be found: {gradient}",
                where=where,
                fix="State a gradient whose integral is elementary",
            )
    _verify(found, gradient, points, piece, where)
    return found


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
        if powers.get(X, 0) >= 2 and powers.get(density, 0) >= 1:
            shorter = sympy.expand(term / (X**2 * density) * (1 / sympy.pi - density))
            terms.extend(sympy.Add.make_args(shorter))
        else:
            done.append(term)
    return sympy.Add(*done)


def _by_coefficients(gradient: Expr) -> Expr | None:
    gradient = reduce_density(complement_free(gradient))
    atoms = _atoms(gradient)
    if atoms is None:
        return None
    places = [Symbol(f"place{i}") for i in range(len(atoms))]
    target = _in_places(gradient, atoms, places)
    if target is None:
        return None
    if target.is_zero:
        return sympy.S.Zero
    degree_x = target.degree(X) + 1
    degree = [max(target.degree(place), 1) for place in places]
    ranges = [range(degree_x + 1), *(range(d + 1) for d in degree)]
    monomials = list(itertools.product(*ranges))
    if len(monomials) > _MAX_MONOMIALS:
        return None
    unknowns = [Symbol(f"coefficient{i}") for i in range(len(monomials))]
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


def _atoms(gradient: Expr) -> list[Expr] | None:
    """The functions that span the ansatz, or None when one of them has no place in it."""
    found: set[Expr] = set(gradient.atoms(sympy.Function))
    atoms = set(found)
    for atom in found:
        known = type(atom) in (sympy.exp, *PRIMITIVES)
        if not known or not atom.args[0].is_polynomial(X) or sympy.degree(atom.args[0], X) != 1:
            return None
        partner = _PARTNERS.get(type(atom))
        if partner is not None:
            atoms.add(partner(atom.args[0]))
    return sorted(atoms, key=sympy.default_sort_key)


def _in_places(expression: Expr, atoms: Sequence[Expr], places: Sequence[Symbol]) -> Poly | None:
    placed = sympy.expand(expression).subs(dict(zip(atoms, places, strict=True)))
    if placed.atoms(sympy.Function) or not placed.is_polynomial(X, *places):
        return None
    return Poly(placed, X, *places)


def _verify(
    function: Expr,
    gradient: Expr,
    points: Sequence[Mapping[str, float]],
    piece: str,
    where: str,
) -> None:
    slope = sympy.diff(function, X)
    with mpmath.workdps(2 * _DIGITS):
        for values in points:
            found, stated = number(slope, values), number(gradient, values)
            if abs(found - stated) > mpmath.mpf(10) ** -_DIGITS * (1 + abs(stated)):
                raise ConfigError(
                    f"the antiderivative found for piece {piece!r} is wrong: its slope at"
                    f" x = {values[X.name]:g} is {mpmath.nstr(found, 12)}, stated is"
                    f" {mpmath.nstr(stated, 12)}",
                    where=where,
                    fix="Write the gradient in another form",
                )
