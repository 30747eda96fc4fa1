"""Derives a Spec's function, derivatives and parameter gradients.

Each piece of the gradient is integrated, the constants are fixed by the anchor and by continuity,
and all derivatives are taken symbolically. Because the constants carry their dependence on the
parameters, differentiating a piece gives Leibniz' rule with moving knots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain

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
    Integrand,
    bounds,
    elementary,
    number,
    refused_in_one_line,
    to_sympy,
)
from stamm.activations.derivation.integrate import antiderivative, respelled, without_overflow
from stamm.activations.derivation.large_argument_forms import outward_branches
from stamm.activations.derivation.near_zero import branches_near_zero
from stamm.activations.derivation.parametric import ParametricIntegral, parametric_in, sides_of
from stamm.activations.derivation.primitives import Primitive, X, absolute, signum
from stamm.activations.derivation.stable_forms import (
    FARTHEST,
    machine_value,
    rooted_branches,
    sample_points,
    split,
    stable_branches,
    with_tails,
)
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
    with refused_in_one_line(spec, "derived"), mpmath.workdps(_WORKING_DIGITS):
        symbols, samples = _symbols(spec), spec.sample_values()
        exact = exact_formulas(spec)
        stable = _stable(exact, spec)
        return Derived(
            spec=spec,
            exact=exact,
            stable=stable,
            integrands=_integrands(stable, spec),
            surrogate=_surrogate(spec, symbols, samples),
            up=_up(spec, symbols, samples),
        )


@lru_cache(maxsize=64)
def exact_formulas(spec: Spec) -> Formulas:
    """The formulas as integrated, without a search for forms that keep their digits.

    Raises   ConfigError as `derive`.
    """
    with refused_in_one_line(spec, "integrated"), mpmath.workdps(_WORKING_DIGITS):
        symbols = _symbols(spec)
        pieces, gradient = _stated(spec, spec.pieces, spec.intervals, symbols)
        function = _integrated(spec, pieces, gradient, symbols, _hints(spec, symbols))
        trainable = [symbols[p.name] for p in spec.trainable]
        _check_real(spec, function)
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


def _check_real(spec: Spec, function: Branches) -> None:
    """Check that roots and logarithms of parameters, in constants of integration, are real.

    Raises   ConfigError that names the root and the parameter values.
    """
    roots = {
        part
        for branch in function
        for part in branch.formula.atoms(sympy.Pow, sympy.log)
        if part.free_symbols and not part.has(X)
        if not (part.is_Pow and part.exp.is_integer)
    }
    for part in sorted(roots, key=sympy.default_sort_key):
        for values in (*spec.sample_values(), *spec.stress_values()):
            if mpmath.im(number(part, values)):
                names = sorted(symbol.name for symbol in part.free_symbols)
                where = ", ".join(f"{name} = {values[name]:.6g}" for name in names)
                raise ConfigError(
                    f"the constant of integration of {spec.name!r} has {part}, "
                    f"which is not a real number at {where}",
                    where=spec.where,
                    fix="Anchor the function at a knot that moves, as in --anchor k=0, "
                    "or restrict the parameter, as in k=1:softplus",
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


def _integrands(stable: Formulas, spec: Spec) -> tuple[Integrand, ...]:
    """The gradients of the tables that each call makes, and their cells."""
    judged = parametric_in(stable.function, *stable.parameter_slopes)
    others = parametric_in(*chain(*stable.parameter_curvatures))
    ends = [values for p in spec.trainable for values in spec.ends_of(p.name)]
    settings = [*spec.sample_values(), *ends]
    integrands = []
    for kind in dict.fromkeys([*judged, *others]):
        low, high = (
            sympy.Rational(end) if end is not None else side * sympy.oo
            for end, side in ((kind.low, -1), (kind.high, 1))
        )
        whole = Branch(low=low, low_closed=True, high=high, high_closed=True, formula=kind.gradient)
        stated = with_tails(whole, settings)
        forms = [[whole], [stated], stable_branches([stated], spec.sample_values())]
        branches = min(forms, key=lambda form: _machine_error(kind, form, settings))
        left, right = (vars(side) for side in sides_of(kind, settings, strict=kind in judged))
        integrands.append(Integrand(kind=kind, branches=tuple(branches), left=left, right=right))
    return tuple(integrands)


def _machine_error(
    kind: type[ParametricIntegral], branches: Sequence[Branch], settings: Sequence[dict[str, float]]
) -> float:
    """The largest error of a gradient in double precision, against its largest value nearby."""
    worst = 0.0
    low = -math.inf if kind.low is None else kind.low
    high = math.inf if kind.high is None else kind.high
    for values in settings:
        for side in (-1.0, 1.0):
            points = [kind.origin + side * 1.137 * 2.0 ** (k / 2) for k in range(-16, 41)]
            points = [x for x in points if low <= x <= high]
            exact = [number(kind.gradient, {**values, X.name: x}) for x in points]
            peak = max(map(abs, exact), default=0.0) / 1000
            for x, true in zip(points, exact, strict=True):
                form = next(b.formula for b in branches if x <= bounds(b, values)[1])
                error = abs(machine_value(form, {**values, X.name: x}) - true) / (abs(true) + peak)
                worst = max(worst, float(error) if error == error else math.inf)
    return worst


def _stable(exact: Formulas, spec: Spec) -> Formulas:
    reached, fixed = spec.stress_values(), _fixed(spec)
    shifted = _shifted(exact.slope, spec)
    samples = [*spec.sample_values(), *shifted]

    def best(branches: Branches, reach: float = FARTHEST) -> Branches:
        if parametric_in(branches):
            return branches
        return outward_branches(stable_branches(branches, samples, reach), samples, reach)

    def first(
        branches: Branches,
    ) -> Branches:  # first derivatives, which training uses, keep their digits everywhere
        if parametric_in(branches):
            return branches
        rooted = rooted_branches(stable_branches(branches, samples), samples)
        near = anchored_branches(rooted, samples, fixed)
        far = outward_branches(near, samples, digits=True)
        return branches_near_zero(far, spec.sample_values(), shifted, reached)

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
        slope=first(exact.slope),
        curvature=best(exact.curvature),
        parameter_slopes=tuple(map(first, exact.parameter_slopes)),
        mixed=tuple(map(best, exact.mixed)),
        parameter_curvatures=rows,
    )


def _shifted(branches: Branches, spec: Spec) -> list[dict[str, float]]:
    """Settings at which parameters shift the input of a function far to either side.

    logistic(u) may be written as 1/2 + logistic_odd(u) near u = 0, and not in its tail.
    """
    inner = {f.args[0] for b in branches for f in b.formula.atoms(sympy.Function) if f.has(X)}
    shifts = {s.name for u in inner if u.is_polynomial(X) for s in u.subs(X, 0).free_symbols}
    trainable = [p.name for p in spec.trainable if p.name in shifts]
    return [values for name in trainable for values in spec.ends_of(name)]


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
        with_tails(
            without_overflow(
                Branch(
                    low=end(interval.low, -sympy.oo),
                    low_closed=interval.low_closed,
                    high=end(interval.high, sympy.oo),
                    high_closed=interval.high_closed,
                    formula=respelled(to_sympy(parse(piece.formula), symbols)),
                )
            ),
            spec.sample_values(),
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
    names, gradient = _apart_at_kinks([piece.where for piece in pieces], gradient, spec)
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
    steps = [sympy.S.Zero]  # by how much the constant of a piece exceeds that of the one before
    for i, knot in enumerate((branch.low for branch in gradient[1:]), 1):
        step = _limit(raw[i - 1], knot, names[i - 1], spec) + _jump(spec, knot, symbols)
        steps.append(step - _limit(raw[i], knot, names[i], spec))
    free = [i for i, b in enumerate(gradient) if i and _may_cross(b.low - start, spec)]
    constants = [sympy.S.Zero] * len(raw)
    # Products with what is exactly 0 while the knot is on one side of the anchor.
    beyond = [sympy.S.Zero] * len(raw)
    if free:
        low, high = min(free) - 1, max(free)
        at_start = {i: _limit(raw[i], start, names[i], spec) for i in range(low, high + 1)}
        over = {
            i: sympy.factor(at_start[i] - at_start[i - 1] + steps[i])
            for i in range(low + 1, high + 1)
        }
        for i in range(low, high + 1):
            constants[i] = height - at_start[i]
            for k, by in over.items():
                side = signum(sympy.expand(gradient[k].low - start))
                beyond[i] += (1 + side) * by / 2 if k <= i else -(1 - side) * by / 2
    else:
        low = high = home
        constants[home] = height - _limit(raw[home], start, names[home], spec)
    for i in range(high + 1, len(raw)):
        constants[i], beyond[i] = constants[i - 1] + steps[i], beyond[i - 1]
    for i in range(low - 1, -1, -1):
        constants[i], beyond[i] = constants[i + 1] - steps[i + 1], beyond[i + 1]
    whole = [f + sympy.expand(constant) for f, constant in zip(raw, constants, strict=True)]
    if free:
        whole = [sympy.expand(f) + more for f, more in zip(whole, beyond, strict=True)]
    return tuple(
        Branch(**{**vars(branch), "formula": formula})
        for branch, formula in zip(gradient, whole, strict=True)
    )


def _may_cross(distance: Expr, spec: Spec) -> bool:
    """Whether training can move a knot from one side of the anchor to the other.

    Then a term of the constants, with the sign of the distance, is 0 on one side.
    """
    symbols = _symbols(spec)
    known = {symbols[name]: sympy.Rational(value) for name, value in _fixed(spec).items()}
    for p in spec.trainable:
        if isinstance(p.bijection, (Softplus, Exp)):
            bound = symbols[p.above_name] if p.above_name else sympy.Rational(p.above or 0)
            known[symbols[p.name]] = bound + Symbol(f"_rise_of_{p.name}", positive=True)
    distance = sympy.expand(distance.xreplace(known).xreplace(known))
    return not (distance.is_nonnegative or distance.is_nonpositive)


def _apart_at_kinks(names: list[str], gradient: Branches, spec: Spec) -> tuple[list[str], Branches]:
    """One piece with abs(x - k), where k moves, or with a root of abs(x), as the two beside the kink.

    The integral of the first cancels near 0, and that of the second is found on each side alone.
    """
    if len(gradient) > 1:
        return names, gradient
    (whole,) = gradient
    kinked = [f for f in whole.formula.atoms(absolute, signum) if f.has(X)]
    roots, sides = set(), {}
    for part in kinked:
        slope = sympy.diff(part.args[0], X)
        if slope.has(X) or not (slope.is_positive or slope.is_negative):
            return names, gradient
        roots.add(sympy.expand(-part.args[0].subs(X, 0) / slope))
        sides[part] = 1 if slope.is_positive else -1
    trainable = {p.name for p in spec.trainable}
    if len(roots) != 1:
        return names, gradient
    (root,) = roots
    rooted = any(
        isinstance(power.base, absolute) and not power.exp.is_Integer
        for power in whole.formula.atoms(sympy.Pow)
    )
    if not rooted and not {s.name for s in root.free_symbols} & trainable:
        return names, gradient
    parts = []
    for part, side in zip(split(whole, [root]), (-1, 1), strict=True):
        on_side = {
            f: side * way * (f.args[0] if isinstance(f, absolute) else 1)
            for f, way in sides.items()
        }
        formula = sympy.expand(whole.formula.xreplace(on_side))
        parts.append(Branch(**{**vars(part), "formula": formula}))
    return [names[0]] * 2, tuple(parts)


def _holds(branch: Branch, point: Expr, values: Mapping[str, float]) -> bool:
    """Whether a point lies in a branch or to its left."""
    position, high = number(point, values), bounds(branch, values)[1]
    return bool(position < high or (position == high and branch.high_closed))


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
