"""From a Spec to everything that follows from it: function, derivatives, parameter gradients.

Each piece of the gradient is integrated, the constants are fixed by the anchor and by continuity,
and all derivatives are taken symbolically. Because the constants carry their dependence on the
parameters, differentiating a piece gives Leibniz' rule with moving knots by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import mpmath
import sympy
from sympy import Expr, Symbol

from stamm.activations.expressions import parse
from stamm.activations.integrate import antiderivative
from stamm.activations.primitives import X, number, to_sympy
from stamm.activations.spec import Spec
from stamm.activations.stabilise import Branch, bounds, sample_points, stable_branches
from stamm.base.errors import ConfigError

Branches = tuple[Branch, ...]
_WORKING_DIGITS = 40


@dataclass(frozen=True, kw_only=True)
class Formulas:
    """Piecewise formulas in x and the effective parameters, branches from left to right.

    function               f(x)
    slope                  f'(x), the stated gradient
    curvature              f''(x), away from the knots
    parameter_slopes       df/dp for each trainable parameter p, in order
    mixed                  d2f/dx dp for each trainable parameter
    parameter_curvatures   d2f/dp dq, row by row
    """

    function: Branches
    slope: Branches
    curvature: Branches
    parameter_slopes: tuple[Branches, ...]
    mixed: tuple[Branches, ...]
    parameter_curvatures: tuple[tuple[Branches, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Derived:
    """What follows from a Spec.

    exact    formulas as integrated: right to any precision, but they may cancel
    stable   the same functions in forms that keep their digits in floating point
    """

    spec: Spec
    exact: Formulas
    stable: Formulas


@lru_cache(maxsize=64)
def derive(spec: Spec) -> Derived:
    """The function, its derivatives and its parameter gradients, from the stated gradient.

    f = integral of the pieces, with f(anchor[0]) = anchor[1] and f continuous at every knot.

    Raises   ConfigError when a piece has no antiderivative that can be found, naming it.
    Checked  tests/unit/activations/test_derivation.py
    """
    with mpmath.workdps(_WORKING_DIGITS):
        symbols = {p.name: Symbol(p.name, real=True) for p in spec.parameters}
        samples = spec.sample_values()
        names, gradient = _stated(spec, symbols)
        function = _integrated(spec, names, gradient, symbols)
        trainable = [symbols[p.name] for p in spec.trainable]

        def branches(source: Branches, change: Callable[[Expr], Expr]) -> Branches:
            return tuple(Branch(**{**vars(b), "formula": change(b.formula)}) for b in source)

        def partial(source: Branches, symbol: Symbol) -> Branches:
            return branches(source, lambda formula: sympy.diff(formula, symbol))

        slopes = tuple(partial(function, p) for p in trainable)
        exact = Formulas(
            function=function,
            slope=gradient,
            curvature=partial(gradient, X),
            parameter_slopes=slopes,
            mixed=tuple(partial(gradient, p) for p in trainable),
            parameter_curvatures=tuple(
                tuple(partial(slope, p) for p in trainable) for slope in slopes
            ),
        )
        return Derived(spec=spec, exact=exact, stable=_stable(exact, samples))


def _stable(exact: Formulas, samples: list[dict[str, float]]) -> Formulas:
    def best(branches: Branches) -> Branches:
        return stable_branches(branches, samples)

    return Formulas(
        function=best(exact.function),
        slope=best(exact.slope),
        curvature=best(exact.curvature),
        parameter_slopes=tuple(map(best, exact.parameter_slopes)),
        mixed=tuple(map(best, exact.mixed)),
        parameter_curvatures=tuple(tuple(map(best, row)) for row in exact.parameter_curvatures),
    )


def _stated(spec: Spec, symbols: Mapping[str, Symbol]) -> tuple[list[str], Branches]:
    def end(text: str | None, otherwise: Expr) -> Expr:
        return otherwise if text is None else to_sympy(parse(text), symbols)

    branches = [
        Branch(
            low=end(interval.low, -sympy.oo),
            low_closed=interval.low_closed,
            high=end(interval.high, sympy.oo),
            high_closed=interval.high_closed,
            formula=to_sympy(parse(piece.formula), symbols),
        )
        for piece, interval in zip(spec.pieces, spec.intervals, strict=True)
    ]
    left_to_right = sorted(
        zip(spec.pieces, branches, strict=True),
        key=lambda pair: bounds(pair[1], spec.initial_values())[0],
    )
    return [p.where for p, _ in left_to_right], tuple(b for _, b in left_to_right)


def _integrated(
    spec: Spec, names: list[str], gradient: Branches, symbols: Mapping[str, Symbol]
) -> Branches:
    start, height = (to_sympy(parse(text), symbols) for text in spec.anchor)
    values = spec.initial_values()
    home = next(i for i, b in enumerate(gradient) if number(start, values) <= bounds(b, values)[1])
    raw = [
        antiderivative(
            branch.formula,
            [
                {**sample, X.name: point}
                for sample in spec.sample_values()
                for point in sample_points(*bounds(branch, sample))[::9]
                if abs(point) < 50
            ],
            piece=name,
            where=spec.where,
        )
        for branch, name in zip(gradient, names, strict=True)
    ]
    constants = [sympy.S.Zero] * len(raw)
    constants[home] = height - _limit(raw[home], start, names[home], spec)
    for i in range(home + 1, len(raw)):
        knot = gradient[i].low
        before = _limit(raw[i - 1], knot, names[i - 1], spec) + constants[i - 1]
        constants[i] = before - _limit(raw[i], knot, names[i], spec)
    for i in range(home - 1, -1, -1):
        knot = gradient[i].high
        after = _limit(raw[i + 1], knot, names[i + 1], spec) + constants[i + 1]
        constants[i] = after - _limit(raw[i], knot, names[i], spec)
    return tuple(
        Branch(**{**vars(branch), "formula": formula + sympy.expand(constant)})
        for branch, formula, constant in zip(gradient, raw, constants, strict=True)
    )


def _limit(formula: Expr, point: Expr, piece: str, spec: Spec) -> Expr:
    value = formula.subs(X, point)
    if value.has(sympy.nan, sympy.oo, sympy.zoo):
        value = sympy.limit(formula, X, point)
    if value.has(sympy.nan, sympy.oo, sympy.zoo):
        raise ConfigError(
            f"the integral of piece {piece!r} has no finite value at x = {point}", where=spec.where
        )
    return _evaluated(value)


def _evaluated(value: Expr) -> Expr:
    """Primitives at 0 as the numbers they are: logistic(0) = 1/2."""
    return value.replace(
        lambda part: bool(part.is_Function) and bool(part.args) and part.args[0] == 0,
        lambda part: (
            sympy.simplify(part.definition(part.args[0])) if hasattr(part, "definition") else part
        ),
    )
