"""Antiderivatives of gradient pieces: a closed form, a table, or an error that names the obstacle.

Methods, in order: the given antiderivative; undetermined coefficients; term by term, the table of
known ones; SymPy's integrator, with a limit of CPU time; a numerical table of the rest. Every result is
differentiated again and compared with the gradient to 30 digits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mpmath
import sympy
from sympy import Expr

from stamm.activations.derivation.ansatz import (
    by_coefficients,
    complement_free,
    reduce_density,
)
from stamm.activations.derivation.formulas import end_value
from stamm.activations.derivation.integral_table import (
    LAST_ROWS,
    ROWS,
    known_antiderivative,
    respelled,
)
from stamm.activations.derivation.parametric import parametric_integral
from stamm.activations.derivation.primitives import X, signum
from stamm.activations.derivation.search import SearchStoppedError, searched
from stamm.activations.derivation.sign_discontinuities import jump_at_sign_change
from stamm.activations.derivation.symbolic import number
from stamm.activations.derivation.tables import NumericalIntegral, table_of
from stamm.base.errors import ConfigError

__all__ = ["antiderivative", "complement_free", "reduce_density"]

_DIGITS = 30
_SECONDS = 15.0  # of CPU time for one search of SymPy's; a piece takes two at most


def antiderivative(
    gradient: Expr,
    points: Sequence[Mapping[str, float]],
    *,
    piece: str,
    where: str,
    known: Expr | None = None,
    ends: tuple[Expr, Expr] = (-sympy.oo, sympy.oo),
    fixed: Mapping[str, float] | None = None,
) -> Expr:
    """A function whose derivative in x is `gradient`.

    points   where the result is checked: values by symbol name, all inside the piece
    known    an antiderivative that was given; it is checked like a found one
    ends     of the piece: a table covers no more than lies between them
    fixed    values of the parameters that never change: a table may depend on them
    Raises   ConfigError that names the piece, when no method finds one.
    Checked  tests/unit/activations/test_integrate.py
    """
    if known is not None:
        defect = _defect(known, gradient, points, ends)
        if defect:
            raise ConfigError(
                f"the antiderivative found for piece {piece!r} is wrong: {defect}",
                where=where,
                fix="Write the gradient in another form",
            )
        return known
    stopped: list[Expr] = []
    for found in _closed_forms(gradient, stopped):
        if not _defect(found, gradient, points, ends):
            return found
    done, rest = _by_terms(respelled(gradient))
    try:
        return done + _tabulated(rest, ends, fixed or {})
    except ConfigError as error:
        if isinstance(error, _ShapeError) and all(end.is_number for end in ends):
            limits = [_end(end) for end in ends]
            return parametric_integral(_with_numbers(gradient, fixed or {}), *limits)
        why, fix = f"{gradient} has no known closed form", error.fix
        if stopped:
            why = (
                f"SymPy was stopped after {_SECONDS:g} s of CPU time in search of the integral of"
                f" {', '.join(map(str, stopped))}"
            )
            fix = "State the integral with the piece: WHERE: GRADIENT | INTEGRAL"
        raise ConfigError(
            f"no antiderivative of piece {piece!r} could be found: {why}, and no table can be used:"
            f" {error.what}",
            where=where,
            fix=fix or "State a gradient whose integral is elementary",
        ) from None


def _closed_forms(gradient: Expr, stopped: list[Expr]) -> Iterator[Expr]:
    """Candidates without a table, from the cheapest on; what a search had no time for is `stopped`."""
    spelled = respelled(gradient)
    found = by_coefficients(spelled)
    if found is not None:
        yield found
    done, rest = _by_terms(spelled)
    if rest == 0:
        yield done
        return
    found = _searched(rest, stopped)
    if found is not None:
        yield done + found
    if done != 0:  # two terms may have an integral only together
        found = _searched(gradient, stopped)
        if found is not None:
            yield found
    done, rest = _by_terms(spelled, (*ROWS, *LAST_ROWS))
    if rest == 0:
        yield done


def _searched(gradient: Expr, stopped: list[Expr]) -> Expr | None:
    try:
        return searched(gradient, _SECONDS)
    except SearchStoppedError:
        stopped.append(gradient)
        return None


def _by_terms(gradient: Expr, rows: tuple[tuple[Expr, Expr], ...] = ROWS) -> tuple[Expr, Expr]:
    """The integral of the terms for which one is known, and the sum of the others."""
    done, rest = sympy.S.Zero, sympy.S.Zero
    for term in sympy.Add.make_args(sympy.expand_mul(gradient)):
        found = known_antiderivative(term, rows)
        if found is None:
            found = by_coefficients(term)
        if found is None:
            rest += term
        else:
            done += found
    return done, rest


def _tabulated(rest: Expr, ends: tuple[Expr, Expr], fixed: Mapping[str, float]) -> Expr:
    """The integral by tables: one for each factor and each scale of x that parameters make."""
    groups: dict[tuple[Expr, Expr], Expr] = {}
    for term in sympy.Add.make_args(sympy.expand_mul(_with_numbers(rest, fixed))):
        factor, core = term.as_independent(X, as_Add=False)
        for inner, argument, shape in _free_of_parameters(core):
            total = factor * inner / sympy.diff(argument, X)
            share, scale = total.as_independent(*total.free_symbols, as_Add=False)
            if not total.free_symbols:
                share, scale = total, sympy.S.One
            key = scale, argument
            groups[key] = groups.get(key, sympy.S.Zero) + share * shape
    result = sympy.S.Zero
    for (scale, argument), shape in groups.items():
        content, gradient = shape.as_coeff_Mul()
        limits = [_end(end) if argument == X else None for end in ends]
        result += scale * content * table_of(gradient, *limits)(argument)
    return result


def _with_numbers(formula: Expr, fixed: Mapping[str, float]) -> Expr:
    """The formula with the values of the parameters that never change."""
    known = {s: sympy.Rational(fixed[s.name]) for s in formula.free_symbols if s.name in fixed}
    return formula.xreplace(known)


class _ShapeError(ConfigError):
    """A parameter changes the shape of a gradient, so that no table made once serves all its values."""


def _free_of_parameters(core: Expr) -> list[tuple[Expr, Expr, Expr]]:
    """(factor, argument, shape) with core = sum of factor * shape at x = argument.

    Raises   ConfigError when parameters enter in another way than as the scale of the input.
    """
    if core.free_symbols <= {X}:
        return [(sympy.S.One, X, core)]
    for function in sorted(core.atoms(sympy.Function), key=sympy.default_sort_key):
        argument = function.args[0]
        if not argument.is_polynomial(X) or sympy.degree(argument, X) != 1:
            continue
        back = (X - argument.subs(X, 0)) / sympy.diff(argument, X)
        parts = []
        for term in sympy.Add.make_args(sympy.expand(core.xreplace({X: back}))):
            factor, shape = term.as_independent(X, as_Add=False)
            parts.append((factor, argument, shape))
        if all(shape.free_symbols <= {X} for _, _, shape in parts):
            return parts
    names = ", ".join(sorted(s.name for s in core.free_symbols - {X}))
    raise _ShapeError(
        f"{core} depends on {names} in a way that no table can, since its numbers are computed once: a"
        " trainable parameter may only be a factor of a term, or scale and shift the input of all its"
        " functions",
        fix="Make the parameter fixed, state the integral with the piece, or use knots that are numbers",
    )


def _end(end: Expr) -> float | None:
    """A finite end without parameters, as a number."""
    return float(end) if end.is_number and end.is_finite else None


def _defect(
    function: Expr,
    gradient: Expr,
    points: Sequence[Mapping[str, float]],
    ends: tuple[Expr, Expr],
) -> str:
    """The defect of an antiderivative, as text; "" when it is right."""
    slope = sympy.diff(function, X)
    with mpmath.workdps(2 * _DIGITS):
        for values in points:
            found, stated = _number(slope, values), number(gradient, values)
            if not abs(found - stated) <= mpmath.mpf(10) ** -_DIGITS * (1 + abs(stated)):
                return (
                    f"its slope at x = {float(values[X.name]):g} is {mpmath.nstr(found, 12)}, stated is"
                    f" {mpmath.nstr(stated, 12)}"
                )
            if not isinstance(_number(function, values), mpmath.mpf):
                return f"it is not real at x = {float(values[X.name]):g}"
    for values in points if function.has(signum) else ():
        low, high = (end_value(end, values) for end in ends)
        jump = jump_at_sign_change(function, values, low, high)
        if jump:
            return jump
    return _leap(function, gradient, points)


def _leap(function: Expr, gradient: Expr, points: Sequence[Mapping[str, float]]) -> str:
    """A jump of the function between two points, as text, which its slope alone does not show."""
    if function.has(NumericalIntegral) or not function.has(
        sympy.atan, sympy.tan, sympy.log, sympy.Pow
    ):
        return ""
    with mpmath.workdps(15):
        for a, b in itertools.pairwise(points):
            same = {**a, X.name: 0} == {**b, X.name: 0}
            if same and max(abs(a[X.name]), abs(b[X.name])) < _DIGITS:
                low, high = a[X.name], b[X.name]
                risen = number(function, b) - number(function, a)
                true = mpmath.quad(
                    lambda x, at=a: number(gradient, {**at, X.name: x}),
                    [low, 0, high] if low < 0 < high else [low, high],
                )
                if abs(risen - true) > 1e-6 * (1 + abs(true)):
                    return f"it leaps between x = {float(low):g} and x = {float(high):g}"
    return ""


def _number(formula: Expr, values: Mapping[str, Any]) -> Any:
    try:
        return number(formula, values)
    except (ArithmeticError, ValueError):
        return mpmath.nan
