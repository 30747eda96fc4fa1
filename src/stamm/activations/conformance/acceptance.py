"""Whether a derived activation may be written: within its budgets, and equal to the integral by quadrature."""

from __future__ import annotations

import ast
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mpmath

from stamm.activations.cache import record_judged
from stamm.activations.conformance.exact import SAMPLED
from stamm.activations.conformance.golden import value_sets
from stamm.activations.conformance.implementations import StammImplementation
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.reference import settled, truth_errors
from stamm.activations.conformance.ulp import budget
from stamm.activations.conformance.verdict import ConformanceVerdict
from stamm.activations.derivation.derive import exact_formulas
from stamm.activations.derivation.formulas import refused_in_one_line
from stamm.activations.spec import Spec
from stamm.activations.spec.expressions import VARIABLE, interpret, parse
from stamm.activations.spec.parameters import FARTHEST, Exp, Identity, Parameter, Softplus
from stamm.base.errors import ConfigError, DataError

_POINTS = 200
_FEW_POINTS, _FEW_EXPONENTS, _FEW_INPUTS = 48, 12, 2000  # at the other settings of the parameters
_SHOWN = 240  # characters of a problem


def check_formulas(spec: Spec) -> None:
    """Compare the float64 kernel with the integral at many digits, at every exponent of float32.

    f, f' and every slope in a parameter are compared, at the initial values of the parameters and
    at moved ones; at fewer inputs at the ends of every parameter's range, where it moves a kink, and at
    random. The integral itself is compared with quadrature of the stated pieces.

    Raises   DataError that names the quantity, its error and the input.
    Checked  tests/unit/activations/test_acceptance.py
    """
    sets = [{**spec.initial_values(), **override} for override in value_sets(spec).values()]
    settings = [(values, _POINTS, 1, False) for values in sets]
    settings += [(values, _FEW_POINTS, _FEW_EXPONENTS, True) for values in reachable_values(spec)]
    for values, points, every, ends in settings:
        try:
            with refused_in_one_line(spec, _text(values)):
                wrong = quadrature_problem(spec, values)
                errors = truth_errors(spec, values, points=points, every=every, ends=ends)
        except DataError as error:
            raise _refusal(spec, [error.what], values) from None
        problems = [wrong] if wrong else []
        problems += [e.line() for e in errors if not e.good]
        if problems:
            raise _refusal(spec, problems, values)


def accepted(spec: Spec, *, count: int = SAMPLED) -> ConformanceVerdict:
    """The verdict over stamm's own module at the initial values.

    Where squares overflow the float32 in which bfloat16 is computed, and nothing else is wrong,
    inputs beyond 2**62 are left out of that dtype, and the verdict's budget reports it.

    count    inputs of float32
    Raises   DataError when a budget does not hold, at the initial values or at moved ones.
    Checked  tests/unit/activations/test_acceptance.py
    """
    sets = [
        ({**spec.initial_values(), **override}, count, False)
        for override in value_sets(spec).values()
    ]
    sets += [(values, min(count, _FEW_INPUTS), True) for values in reachable_values(spec)]
    made = StammImplementation()

    def verdicts(*, squares: bool = False) -> Iterator[ConformanceVerdict]:
        for full, inputs, ends in sets:
            with refused_in_one_line(spec, _text(full)):
                verdict = judge(spec, made, full, count=inputs, squares=squares, ends=ends)
            if not verdict.passed:
                raise _refusal(spec, verdict.problems, full)
            yield verdict

    try:
        verdict, *_ = verdicts()
    except DataError:
        verdict, *_ = verdicts(squares=True)
    record_judged(spec.content_hash)
    return verdict


def accuracy_texts(verdict: ConformanceVerdict) -> dict[str, str]:
    """The largest error of each dtype, and which inputs are excluded."""
    texts = {}
    for dtype in verdict.dtypes:
        worst = [(m.quantity, m.worst.largest) for m in dtype.quantities if m.worst is not None]
        errors = ", ".join(
            f"{quantity.replace('slope_in_', 'slope in ')} {error:.3g} ulp"
            for quantity, error in worst
        )
        reason = (
            [dtype.budget_reason] if dtype.budget_reason != budget("", dtype.dtype).reason else []
        )
        texts[dtype.dtype] = "; ".join([f"at most {errors}", *reason])
    return texts


def _text(values: Mapping[str, float]) -> str:
    at = ", ".join(f"{name} = {value:.6g}" for name, value in values.items())
    return "compared with the integral" + (f" at {at}" if at else "")


def _refusal(spec: Spec, problems: Sequence[str], values: Mapping[str, float]) -> DataError:
    more = f" ({len(problems) - 1} more such problems)" if len(problems) > 1 else ""
    free = [p.name for p in spec.trainable if isinstance(p.bijection, Identity)]
    held = f"; or hold {free[0]} positive, as in {free[0]}=1:softplus" if free else ""
    return DataError(
        f"{spec.name} does not hold its accuracy budget, and nothing is written:"
        f" {problems[0][:_SHOWN]}{more}",
        where=_text(values),
        fix="State the gradient in another form, on two pieces, or with its known integral" + held,
    )


_RANDOM = 2
_INSIDE = (0.45, 0.012)  # where kinks are moved to, of both signs: inside windows around 0
_PLACES = (-6.1, -1.37, -0.45, -0.071, -0.003, 0.003, 0.071, 0.45, 1.37, 6.1)
_DIGITS = 20
_AGREED = 1e-9  # relative to the sum of magnitudes that the quadrature from the anchor adds up
_CALLS: Mapping[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "sqrt": mpmath.sqrt,
    "abs": abs,
    "sign": mpmath.sign,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "asin": mpmath.asin,
    "atan": mpmath.atan,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "asinh": mpmath.asinh,
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
    "softplus": lambda u: max(u, 0) + mpmath.log1p(mpmath.exp(-abs(u))),
    "gompertz": lambda u: mpmath.exp(-mpmath.exp(-u)),
    "gompertz_pdf": lambda u: mpmath.exp(-u - mpmath.exp(-u)),
    "logistic": lambda u: 1 / (1 + mpmath.exp(-u)),
    "normal_cdf": mpmath.ncdf,
    "normal_pdf": mpmath.npdf,
    "cauchy_cdf": lambda u: mpmath.atan(u) / mpmath.pi + mpmath.mpf(1) / 2,
    "cauchy_pdf": lambda u: 1 / (mpmath.pi * (1 + u * u)),
}

Values = Mapping[str, float]


def reachable_values(spec: Spec) -> list[dict[str, float]]:
    """Effective values at which a derivation is judged, beside the initial and the moved ones.

    Each parameter alone at the ends of its range, and one without a constraint at -1, 0 and 1; all
    at random; and each where it moves a kink to a place near 0.

    Edge     settings that break a constraint between two parameters are left out.
    Checked  tests/unit/activations/test_reachable.py
    """
    start = spec.initial_values()
    moves = [{p.name: end[p.name]} for p in spec.trainable for end in spec.ends_of(p.name)]
    free = [p.name for p in spec.trainable if isinstance(p.bijection, Identity)]
    moves += [{name: value} for name in free for value in (-1.0, 0.0, 1.0)]
    chance = random.Random(spec.content_hash)  # the same settings for the same spec
    moves += [{p.name: _drawn(spec, p, chance) for p in spec.trainable} for _ in range(_RANDOM)]
    moves += _kinks_near_zero(spec, start)
    distinct: dict[tuple[float, ...], dict[str, float]] = {}
    for move in moves:
        try:
            spec.raw_values({**{p.name: start[p.name] for p in spec.trainable}, **move})
        except ConfigError:
            continue
        values = {**start, **move}
        distinct[tuple(values.values())] = values
    distinct.pop(tuple(start.values()), None)
    return list(distinct.values())


def quadrature_problem(spec: Spec, values: Values) -> str:
    """Where the derived function is not the integral of the stated pieces, as text; else "".

    Edge     inputs for which the quadrature itself does not converge are not judged.
    Checked  tests/unit/activations/test_reachable.py
    """
    with mpmath.workdps(_DIGITS):
        integrals = integrals_by_quadrature(spec, values)
        places = [x for x, _, _ in integrals]
        derived = settled(exact_formulas(spec).function, places, values)
        for (x, true, size), value in zip(integrals, derived, strict=True):
            if not abs(value - true) <= _AGREED * size:
                return (
                    f"function is {mpmath.nstr(value, 9)} at x = {float(x):.9g}, and the integral of"
                    f" the gradient from the anchor is {mpmath.nstr(true, 9)}"
                )
    return ""


def integrals_by_quadrature(spec: Spec, values: Values) -> list[tuple[Any, Any, Any]]:
    """(x, f(x), the size of what is added up) on both sides of the anchor, from the pieces alone.

    Edge     inputs beyond one for which the quadrature does not converge are left out.
    """
    start, height = (_value(parse(text), values) for text in spec.anchor)
    bounds = [
        (
            -mpmath.inf if i.low is None else _value(parse(i.low), values),
            mpmath.inf if i.high is None else _value(parse(i.high), values),
            tree,
        )
        for i, tree in zip(spec.intervals, spec.trees, strict=True)
    ]
    jumps = [tuple(_value(parse(t), values) for t in (j.at, j.by)) for j in spec.jumps]
    kinks = sorted(mpmath.mpf(k) for k in _kinks(spec, values))
    beside = [k + s * mpmath.mpf("0.21") for k in kinks if abs(k) < FARTHEST for s in (-1, 1)]
    integrals: list[tuple[Any, Any, Any]] = []
    if any(at == start for at, _ in jumps):
        return integrals
    for side in (-1, 1):
        reached, total, size = start, height, abs(height)
        places = [mpmath.mpf(p) for p in (*_PLACES, *beside) if (p - start) * side > 0]
        for x in sorted(places, key=lambda p: abs(p - start)):
            low, high = sorted((reached, x))
            stops = [low, *(k for k in kinks if low < k < high), high]
            rises = [_rise(bounds, values, a, b) for a, b in itertools.pairwise(stops)]
            if any(rise is None for rise in rises):
                break
            total += side * mpmath.fsum(rises)
            size += mpmath.fsum(map(abs, rises))
            # A value at a knot at which f jumps belongs to one side: neither is compared there.
            total += side * mpmath.fsum(by for at, by in jumps if low < at < high)
            reached = x
            if all(x != at for at, _ in jumps):
                integrals.append((x, total, size + abs(x) * mpmath.mpf(10) ** -12))
    return integrals


def _drawn(spec: Spec, parameter: Parameter, chance: random.Random) -> float:
    bound = spec.bound_of(parameter, spec.initial_values())
    low, high = parameter.range_ends(bound) or (parameter.initial, parameter.initial)
    match parameter.bijection:
        case Softplus() | Exp():
            return bound + math.exp(chance.uniform(math.log(low - bound), math.log(high - bound)))
        case Identity():
            return high * chance.uniform(-1.0, 1.0) ** 3
    return chance.uniform(low, high)


def _kinks_near_zero(spec: Spec, start: Values) -> Iterator[dict[str, float]]:
    """Moves of one parameter that bring a kink or a moving knot to a place near 0."""
    for parameter in spec.trainable:
        low, high = (end[parameter.name] for end in spec.ends_of(parameter.name))
        grid = [low + (high - low) * (i + 0.137) / 48 for i in range(48)]
        for target in (s * inside for inside in _INSIDE for s in (-1, 1)):

            def above(value: float, name: str = parameter.name, to: float = target) -> list[float]:
                return [kink - to for kink in _kinks(spec, {**start, name: value})]

            for first, second in itertools.pairwise(grid):
                for i, (a, b) in enumerate(zip(above(first), above(second), strict=False)):
                    if a * b < 0:
                        yield {parameter.name: _crossing(above, i, first, second)}


def _crossing(
    above: Callable[[float], Sequence[float]], i: int, first: float, second: float
) -> float:
    sign = above(first)[i] > 0
    for _ in range(60):
        middle = (first + second) / 2
        heights = above(middle)
        first, second = (middle, second) if (heights[i] > 0) == sign else (first, middle)
    return (first + second) / 2


def _kinks(spec: Spec, values: Values) -> list[float]:
    """Knots of the pieces, and the roots of linear arguments of abs, sign, sqrt, log and powers."""
    knots = sorted({t for i in spec.intervals for t in (i.low, i.high) if t is not None})
    kinks = [float(_value(parse(text), values)) for text in knots]
    for tree in spec.trees:
        for argument in _bent(tree):
            try:
                low, middle, high = (
                    float(_value(argument, {**values, VARIABLE: x})) for x in (0.0, 1.0, 2.0)
                )
            except (ArithmeticError, ValueError, TypeError):
                continue
            if middle != low and math.isclose(high - middle, middle - low, abs_tol=1e-9):
                kinks.append(-low / (middle - low))
    return kinks


def _bent(tree: ast.expr) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="abs" | "sign" | "sqrt" | "log"), args=[argument]):
                yield argument
            case ast.BinOp(left=base, op=ast.Pow()):
                yield base
            case ast.BinOp(op=ast.Div(), right=base):
                yield base


def _value(tree: ast.expr, values: Mapping[str, Any]) -> Any:
    def leaf(node: ast.Constant | ast.Name) -> Any:
        if isinstance(node, ast.Constant):
            return mpmath.mpf(str(node.value))
        return mpmath.mpf(values[node.id]) if node.id in values else mpmath.pi + 0

    return interpret(tree, leaf, lambda name, argument: _CALLS[name](argument))


def _rise(bounds: Sequence[tuple[Any, Any, ast.expr]], values: Values, low: Any, high: Any) -> Any:
    """The integral of the gradient between two points on one side of each kink, if it converges."""
    middle = (low + high) / 2
    tree = next((tree for a, b, tree in bounds if a <= middle <= b), None)
    if tree is None or low == high:
        return mpmath.mpf(0) if tree is not None else None

    def gradient(x: Any) -> Any:
        return _value(tree, {**values, VARIABLE: x})

    cuts = [low + (high - low) * i / 4 for i in range(5)]
    try:
        rise, error = mpmath.quad(gradient, cuts, error=True, maxdegree=6)
        if not isinstance(rise, mpmath.mpf) or not error <= _AGREED / 8 * abs(rise) + 1e-16:
            return None
    except (ArithmeticError, ValueError, TypeError):
        return None
    return rise
