"""Derives a Spec's function, derivatives and parameter gradients.

Each piece of the gradient is integrated, the constants are fixed by the anchor and by continuity,
and all derivatives are taken symbolically. Because the constants carry their dependence on the
parameters, differentiating a piece gives Leibniz' rule with moving knots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import mpmath
import sympy
from sympy import Expr, Symbol
from sympy.core.cache import clear_cache

from stamm.activations.derivation.anchored import anchored_branches
from stamm.activations.derivation.formulas import (
    Branch,
    Branches,
    Derived,
    FactorFormulas,
    Formulas,
    bounds,
)
from stamm.activations.derivation.integral_table import respelled
from stamm.activations.derivation.integrate import antiderivative
from stamm.activations.derivation.large_argument_forms import outward_branches
from stamm.activations.derivation.near_zero import branches_near_zero
from stamm.activations.derivation.primitives import Primitive, X, absolute, signum
from stamm.activations.derivation.stable_forms import (
    FARTHEST,
    by_logistics,
    cancels_far_out,
    sample_points,
    stable_branches,
)
from stamm.activations.derivation.symbolic import elementary, number, to_sympy
from stamm.activations.spec import Gated, Piece, Spec
from stamm.activations.spec.expressions import PieceInterval, parse, parse_interval
from stamm.activations.spec.parameters import Between, Exp, Fixed, Softplus
from stamm.base.errors import ConfigError

_WORKING_DIGITS = 40
# Each derivative in a scale of x brings a power of x, and in d2f/dp dq such powers cancel or divide
# each other, as in x**2/(1 + x**2): no rule finds forms that survive their overflow. They are tested
# where cubes are still finite, far beyond inputs in training; farther out they may be NaN.
_REACH_IN_PAIRS = 1e100
_MOST_POLISHED = 4  # with more parameters, second derivatives in pairs of them stay as derived


@lru_cache(maxsize=64)
def derive(spec: Spec) -> Derived:
    """The function, its derivatives and its parameter gradients, from the stated gradient.

    f = integral of the pieces, with f(anchor[0]) = anchor[1] and f continuous at every knot.

    Raises   ConfigError when a piece has no antiderivative that can be found, naming it.
    Checked  tests/unit/activations/test_derivation.py
    """
    # Which of two equal forms SymPy returns may depend on what it has cached from earlier work.
    clear_cache()
    with mpmath.workdps(_WORKING_DIGITS):
        symbols, samples = _symbols(spec), spec.sample_values()
        exact = exact_formulas(spec)
        return Derived(
            spec=spec,
            exact=exact,
            stable=_stable(exact, samples, _fixed(spec)),
            surrogate=_surrogate(spec, symbols, samples),
            up=_up(spec, symbols, samples),
        )


@lru_cache(maxsize=64)
def exact_formulas(spec: Spec) -> Formulas:
    """The formulas as integrated, without a search for forms that keep their digits.

    Raises   ConfigError as `derive`.
    """
    with mpmath.workdps(_WORKING_DIGITS):
        symbols = _symbols(spec)
        pieces, gradient = _stated(spec, spec.pieces, spec.intervals, symbols)
        function = _integrated(spec, pieces, gradient, symbols, _hints(spec, symbols))
        trainable = [symbols[p.name] for p in spec.trainable]
        slopes = tuple(_partial(function, p) for p in trainable)
        return Formulas(
            function=function,
            slope=gradient,
            curvature=_partial(gradient, X),
            parameter_slopes=slopes,
            mixed=tuple(_partial(gradient, p) for p in trainable),
            parameter_curvatures=tuple(
                tuple(_partial(slope, p) for p in trainable) for slope in slopes
            ),
        )


def _symbols(spec: Spec) -> dict[str, Symbol]:
    """One symbol for each parameter, positive where its constraint implies it: then 0**p is 0."""
    positive: dict[str, bool] = {}
    for parameter in sorted(spec.parameters, key=lambda p: p.above_name is not None):
        match parameter.bijection:
            case Softplus() | Exp():
                name = parameter.above_name
                bound = float(parameter.above or 0) if name is None else 0.0
                positive[parameter.name] = bound >= 0 if name is None else positive[name]
            case Between(low=low):
                positive[parameter.name] = low >= 0
            case Fixed():
                positive[parameter.name] = parameter.initial > 0
            case _:
                positive[parameter.name] = False
    return {
        p.name: Symbol(p.name, positive=True) if positive[p.name] else Symbol(p.name, real=True)
        for p in spec.parameters
    }


def _partial(source: Branches, symbol: Symbol) -> Branches:
    return tuple(Branch(**{**vars(b), "formula": sympy.diff(b.formula, symbol)}) for b in source)


def _fixed(spec: Spec) -> dict[str, float]:
    return {p.name: p.initial for p in spec.parameters if not p.trainable}


def _stable(
    exact: Formulas, samples: list[dict[str, float]], fixed: Mapping[str, float]
) -> Formulas:
    def best(branches: Branches, reach: float = FARTHEST) -> Branches:
        return outward_branches(stable_branches(branches, samples, reach), samples, reach)

    def first(
        branches: Branches,
    ) -> Branches:  # first derivatives, which training uses, keep their digits everywhere
        near = anchored_branches(stable_branches(branches, samples), samples, fixed)
        return branches_near_zero(outward_branches(near, samples, digits=True), samples)

    rows = exact.parameter_curvatures
    if len(rows) <= _MOST_POLISHED:
        half = {
            (i, j): best(rows[i][j], _REACH_IN_PAIRS)
            for i in range(len(rows))
            for j in range(i + 1)
        }
        order = range(len(rows))
        rows = tuple(tuple(half[max(i, j), min(i, j)] for j in order) for i in order)
    return Formulas(
        function=first(exact.function),
        slope=_slope(exact.slope, first, samples),
        curvature=best(exact.curvature),
        parameter_slopes=tuple(map(first, exact.parameter_slopes)),
        mixed=tuple(map(best, exact.mixed)),
        parameter_curvatures=rows,
    )


def _slope(
    stated: Branches, first: Callable[[Branches], Branches], samples: list[dict[str, float]]
) -> Branches:
    """The gradient as stated; in terms of the logistic where expanding 1 - tanh(u)**2 would cancel."""
    found = first(stated)
    again = tuple(Branch(**{**vars(b), "formula": by_logistics(b.formula)}) for b in stated)
    if again == stated:
        return found
    return first(again) if any(cancels_far_out(b, samples[0]) for b in found) else found


def _surrogate(
    spec: Spec, symbols: Mapping[str, Symbol], samples: list[dict[str, float]]
) -> tuple[Branches, ...] | None:
    if not spec.surrogate:
        return None
    intervals = [parse_interval(piece.where) for piece in spec.surrogate]
    _, stated = _stated(spec, spec.surrogate, intervals, symbols)
    along = (X, *(symbols[p.name] for p in spec.trainable))
    rows = (stated, *(_partial(stated, variable) for variable in along))
    return tuple(outward_branches(stable_branches(row, samples), samples) for row in rows)


def _up(
    spec: Spec, symbols: Mapping[str, Symbol], samples: list[dict[str, float]]
) -> FactorFormulas | None:
    if not isinstance(spec.arity, Gated) or spec.arity.up is None:
        return None
    factor = Spec(
        name="up",
        title="",
        pieces=spec.arity.up.pieces,
        parameters=tuple(p for p in spec.parameters if not p.trainable),
        anchor=spec.arity.up.anchor,
        continuity="jump",
        source=spec.source,
    )
    stable = derive(factor).stable
    return FactorFormulas(function=stable.function, slope=stable.slope, curvature=stable.curvature)


def _stated(
    spec: Spec,
    pieces: Sequence[Piece],
    intervals: Sequence[PieceInterval],
    symbols: Mapping[str, Symbol],
) -> tuple[list[Piece], Branches]:
    """The pieces from left to right, and as branches."""

    def end(text: str | None, otherwise: Expr) -> Expr:
        return otherwise if text is None else to_sympy(parse(text), symbols)

    branches = [
        Branch(
            low=end(interval.low, -sympy.oo),
            low_closed=interval.low_closed,
            high=end(interval.high, sympy.oo),
            high_closed=interval.high_closed,
            formula=respelled(to_sympy(parse(piece.formula), symbols)),
        )
        for piece, interval in zip(pieces, intervals, strict=True)
    ]
    left_to_right = sorted(
        zip(pieces, branches, strict=True),
        key=lambda pair: bounds(pair[1], spec.initial_values())[0],
    )
    return [piece for piece, _ in left_to_right], tuple(b for _, b in left_to_right)


def _hints(spec: Spec, symbols: Mapping[str, Symbol]) -> dict[str, Expr]:
    """Known antiderivatives, by where their piece holds."""
    return {p.where: to_sympy(parse(p.integral), symbols) for p in spec.pieces if p.integral}


def _jump(spec: Spec, knot: Expr, symbols: Mapping[str, Symbol]) -> Expr:
    """The size of the jump of f at a knot."""
    values = spec.initial_values()
    return sum(
        (
            to_sympy(parse(jump.by), symbols)
            for jump in spec.jumps
            if number(to_sympy(parse(jump.at), symbols), values) == number(knot, values)
        ),
        sympy.S.Zero,
    )


def _integrated(
    spec: Spec,
    pieces: list[Piece],
    gradient: Branches,
    symbols: Mapping[str, Symbol],
    hints: Mapping[str, Expr],
) -> Branches:
    names = [piece.where for piece in pieces]
    start, height = (to_sympy(parse(text), symbols) for text in spec.anchor)
    values = spec.initial_values()
    home = next(i for i, branch in enumerate(gradient) if _holds(branch, start, values))
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
            known=hints.get(name),
            ends=(branch.low, branch.high),
            fixed=_fixed(spec),
        )
        for branch, name in zip(gradient, names, strict=True)
    ]
    constants = [sympy.S.Zero] * len(raw)
    constants[home] = height - _limit(raw[home], start, names[home], spec)
    for i in range(home + 1, len(raw)):
        knot = gradient[i].low
        before = _limit(raw[i - 1], knot, names[i - 1], spec) + constants[i - 1]
        before += _jump(spec, knot, symbols)
        constants[i] = before - _limit(raw[i], knot, names[i], spec)
    for i in range(home - 1, -1, -1):
        knot = gradient[i].high
        after = _limit(raw[i + 1], knot, names[i + 1], spec) + constants[i + 1]
        after -= _jump(spec, knot, symbols)
        constants[i] = after - _limit(raw[i], knot, names[i], spec)
    return tuple(
        Branch(**{**vars(branch), "formula": formula + sympy.expand(constant)})
        for branch, formula, constant in zip(gradient, raw, constants, strict=True)
    )


def _holds(branch: Branch, point: Expr, values: Mapping[str, float]) -> bool:
    """Whether a point lies in a branch or to its left."""
    place, high = number(point, values), bounds(branch, values)[1]
    return bool(place < high or (place == high and branch.high_closed))


def _limit(formula: Expr, point: Expr, piece: str, spec: Spec) -> Expr:
    value = formula.subs(X, point)
    if not _is_finite(value):
        value = sympy.limit(formula, X, point)
    if not _is_finite(value):
        raise ConfigError(
            f"the integral of piece {piece!r} has no finite value at x = {point}",
            where=spec.where,
            fix="State a gradient whose integral is finite there, or end the pieces elsewhere",
        )
    return _evaluated(value)


def _is_finite(value: Expr) -> bool:
    """Whether no part is infinite or undefined: log1p(-1) is, by its definition."""
    numbers = value.replace(
        lambda part: isinstance(part, Primitive) and not part.free_symbols, elementary
    )
    return not numbers.has(sympy.nan, sympy.oo, -sympy.oo, sympy.zoo)


def _evaluated(value: Expr) -> Expr:
    """Primitives at 0 as the numbers they are, logistic(0) = 1/2, and |u| and sign(u) of any number."""

    def is_number(part: Expr) -> bool:
        if not (part.is_Function and part.args):
            return False
        folded = isinstance(part, (absolute, signum)) and part.args[0].is_Rational
        return bool(folded or part.args[0] == 0)

    return value.replace(
        is_number,
        lambda part: (
            sympy.simplify(part.definition(part.args[0])) if hasattr(part, "definition") else part
        ),
    )
