"""A spec times a constant or times a learned scalar, and its moments on Gaussian inputs.

Both are what a comparison needs in which all arms begin, or may grow, alike. No torch here.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from stamm.activations.spec.expressions import parse
from stamm.activations.spec.gradient_checks import StatedGradient, value_of
from stamm.activations.spec.parameters import Identity, Parameter
from stamm.activations.spec.spec import Spec
from stamm.activations.spec.unchecked import Gated, Jump, Piece, Plain, UncheckedSpec
from stamm.base.errors import ConfigError

SCALE = Parameter(name="output_scale", initial=1.0, bijection=Identity())
# Gauss-Legendre nodes and weights on [-1, 1]: exact for polynomials of degree five
_NODES = ((-math.sqrt(0.6), 5 / 9), (0.0, 8 / 9), (math.sqrt(0.6), 5 / 9))
_FARTHEST = 10.0  # standard deviations; the density beyond is below 1e-22
_CELLS_PER_DEVIATION = 16
_FAR = 256  # cells from an anchor outside of the density to its edge


def times(spec: Spec, factor: float) -> Spec:
    """factor * f: the same function with another scale, NAME_scaled_FACTOR; `spec` itself for a factor of 1.

    Raises   ConfigError when `factor` is not finite and positive
    Checked  tests/unit/activations/test_scaled.py
    """
    if not 0 < factor < math.inf:
        raise ConfigError(f"the factor {factor!r} of {spec.name} must be positive and finite")
    if factor == 1.0:
        return spec
    digits = repr(factor).translate({ord("."): "_", ord("-"): "m", ord("+"): None})
    return _multiplied(spec, repr(factor), f"scaled_{digits}", f"times {factor:.4g}")


def with_learned_scale(spec: Spec) -> Spec:
    """s * f with a trained scalar s that starts at 1, NAME_with_scale.

    s is one of the spec's parameters (`output_scale`), unconstrained: an optimizer may give it a rate
    of its own, and whatever holds the activation holds it.

    Raises   ConfigError when `spec` has such a parameter, or a surrogate, which must not depend on one
    Checked  tests/unit/activations/test_scaled.py
    """
    if any(parameter.name == SCALE.name for parameter in spec.parameters):
        raise ConfigError(f"{spec.name} has a parameter {SCALE.name} already", where=spec.where)
    if spec.surrogate:
        raise ConfigError(
            f"{spec.name} has a surrogate gradient, which cannot depend on a learned scale",
            where=spec.where,
            fix="Compare it with matched.scale of another kind",
        )
    return _multiplied(spec, SCALE.name, "with_scale", "times a learned scale", (SCALE,))


@dataclass(frozen=True, kw_only=True)
class SecondMoments:
    """Second moments of an activation on independent Gaussian inputs of mean 0.

    value   E[y^2], where y = f(x), or f(gate) h(up)
    slope   E[(dy/dx)^2]; of a gated unit the mean of those with respect to its two inputs
    """

    value: float
    slope: float


@cache
def gaussian_moments(spec: UncheckedSpec, deviation: float) -> SecondMoments:
    """The second moments on inputs of standard deviation `deviation`, at the initial parameters.

    From the stated gradient by quadrature, to about 1e-6 of the value: for the configuration of a model,
    which loads without SymPy. Those of a certificate (`certificates.gaussian`) use the derived function.

    Checked  tests/unit/activations/test_scaled.py, against closed forms and samples
    """
    gate = _moments(spec, deviation)
    if not isinstance(spec.arity, Gated):
        return gate
    up = SecondMoments(value=deviation**2, slope=1.0)
    if spec.arity.up is not None:
        factor = replace(
            spec, pieces=spec.arity.up.pieces, anchor=spec.arity.up.anchor, jumps=(), arity=Plain()
        )
        up = _moments(factor, deviation)
    return SecondMoments(
        value=gate.value * up.value, slope=(gate.slope * up.value + gate.value * up.slope) / 2
    )


def _moments(spec: UncheckedSpec, deviation: float) -> SecondMoments:
    """Of one input: f runs along the cells of a grid, by Simpson's rule for f^2 and Gauss's for f'."""
    values = spec.initial_values()
    slope = StatedGradient(spec, values)
    start, height = (value_of(text, values) for text in spec.anchor)
    jumps = [(value_of(jump.at, values), value_of(jump.by, values)) for jump in spec.jumps]
    end = _FARTHEST * deviation
    squares = slopes = 0.0
    for side in (1.0, -1.0):
        borders = _borders(start, side, end, deviation, [*slope.knots, *(at for at, _ in jumps)])
        total = height
        for left, right in itertools.pairwise(borders):
            total += sum(by * side for at, by in jumps if at == left and _crossed(at, start, side))
            middle = (left + right) / 2
            at_middle = total + _integral(slope, left, middle)
            at_right = at_middle + _integral(slope, middle, right)
            width = abs(right - left)
            heights = ((total, left, 1), (at_middle, middle, 4), (at_right, right, 1))
            squares += width / 6 * sum(n * y * y * _density(x, deviation) for y, x, n in heights)
            slopes += sum(
                width / 2 * weight * slope(x) ** 2 * _density(x, deviation)
                for x, weight in _gauss(left, right)
            )
            total = at_right
    return SecondMoments(value=squares, slope=slopes)


def _borders(
    start: float, side: float, end: float, deviation: float, knots: list[float]
) -> list[float]:
    """Cell borders from `start` to the end of the density on one side, at `end` from 0, each knot among them.

    Edge     one border, and so no cell, where the density lies on the other side
    """
    if side * start >= end:
        return [start]
    last, first = side * end, start if abs(start) <= end else -side * end
    count = math.ceil(abs(last - first) / deviation * _CELLS_PER_DEVIATION)
    grid = {first + (last - first) * number / count for number in range(count + 1)}
    grid |= {start + (first - start) * number / _FAR for number in range(_FAR)}
    inside = {knot for knot in knots if 0 < side * (knot - start) < side * (last - start)}
    return sorted(grid | inside | {start}, reverse=side < 0)


def _crossed(at: float, start: float, side: float) -> bool:
    """Whether f runs across the jump; one at the anchor is on its right, as f(anchor) is f(anchor-)."""
    return at != start or side > 0


def _gauss(left: float, right: float) -> Iterator[tuple[float, float]]:
    middle, half = (left + right) / 2, (right - left) / 2
    return ((middle + half * node, weight) for node, weight in _NODES)


def _integral(slope: StatedGradient, left: float, right: float) -> float:
    return (right - left) / 2 * sum(weight * slope(x) for x, weight in _gauss(left, right))


def _density(x: float, deviation: float) -> float:
    return math.exp(-((x / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))


def _multiplied(
    spec: Spec, factor: str, ending: str, said: str, added: tuple[Parameter, ...] = ()
) -> Spec:
    def scaled(text: str) -> str:
        return "0" if text in ("0", "") else ast.unparse(parse(f"{factor}*({text})"))

    def pieces(stated: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return tuple(
            replace(
                piece,
                formula=scaled(piece.formula),
                integral=scaled(piece.integral) if piece.integral else "",
            )
            for piece in stated
        )

    start, height = spec.anchor
    return replace(
        spec,
        name=f"{spec.name[: 63 - len(ending)]}_{ending}",
        title=f"{spec.title}, {said}",
        pieces=pieces(spec.pieces),
        parameters=(*spec.parameters, *added),
        anchor=(start, scaled(height)),
        jumps=tuple(Jump(at=jump.at, by=scaled(jump.by)) for jump in spec.jumps),
        surrogate=pieces(spec.surrogate),
        compat=None,
        aliases=(),
        peers=(),
    )
