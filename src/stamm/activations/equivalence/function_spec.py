"""The spec of a function that is stated by its formula: its gradient is derived."""

from __future__ import annotations

import ast
import copy
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import sympy
from sympy import Expr, Symbol

from stamm.activations.derivation.formulas import to_sympy
from stamm.activations.derivation.primitives import PRIMITIVES, X
from stamm.activations.equivalence.curves import POINTS, evaluate_array, values_of
from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.spec.choices import plain_pieces
from stamm.activations.spec.command_line import (
    CONTINUITIES,
    SOURCE,
    check_declared,
    parse_parameter,
    parse_piece,
)
from stamm.activations.spec.expressions import (
    FUNCTIONS,
    VARIABLE,
    evaluate,
    one_sided,
    parse,
    parse_interval,
    signs,
)
from stamm.activations.spec.unchecked import UncheckedSpec
from stamm.base.errors import ConfigError, visible

NAME = "f"
_ANCHORS = ("0", "1", "-1", "1/2", "-1/2", "2", "-2")
_SPELLED = {"absolute": "abs", "signum": "sign"}  # their names in the formula language
_NEAR = 1e-12  # a jump is larger, relative to the values
_DIFFERENT = 1e-3  # of a curve and its integrated gradient, relative,
_ROUGHLY = 0.05  # and where the gradient has jumps or poles inside cells of the quadrature
_KINKS = frozenset({"abs", "sign"})
_SEARCHED = np.linspace(-50.0, 50.0, 20_001) + 1e-5 * math.pi


@dataclass(frozen=True)
class _Part:
    """A formula and the interval where it is the function, at the initial parameter values."""

    where: str
    tree: ast.expr
    low: float
    high: float


def spec_of_function(pieces: Sequence[str], parameters: Sequence[str] = ()) -> Spec:
    """The spec whose function the formulas state.

    pieces       "WHERE: FORMULA"; without a colon it holds for all x
    parameters   "NAME=INITIAL:HOW", as for a gradient
    Edge         jumps between pieces are found; a jump inside a piece is refused
    Raises       ConfigError that quotes what is not a function with a gradient
    Checked      tests/unit/activations/test_like.py
    """
    where = "the function"
    stated = tuple(parse_piece(word) for word in pieces)
    for piece in stated:
        if piece.integral:
            raise ConfigError(
                f"{piece.integral!r} is given as an integral of a function", fix="Omit the | and it"
            )
    declared = tuple(parse_parameter(word) for word in parameters)
    check_declared(stated, ("0", "0"), declared)
    unchecked = UncheckedSpec(
        name=NAME, title="", pieces=stated, parameters=declared, source=SOURCE
    )
    values = unchecked.initial_values()
    plain = _plain(stated, unchecked, where)
    parts = sorted((_part(piece, values) for piece in plain), key=lambda part: part.low)
    shown = visible("; ".join(f"{p.where}: {p.formula}" for p in stated), 200)
    _check_signs(parts, values, shown)
    curve = _curve(parts, values)
    if not np.isfinite(curve).any():
        raise ConfigError(f"{shown!r} has no finite value for |x| < 5.6", where=where)
    spec = _gradient(
        replace(
            unchecked,
            anchor=_anchor(parts, values, shown),
            jumps=_jumps(parts, unchecked.sample_values()),
        ),
        parts,
        shown,
    )
    bent = spec.continuity == "singular" or any(_KINKS & _called(part.tree) for part in parts)
    differences = np.abs(values_of(spec, POINTS, values) - curve)
    wrong = ~(differences <= (_ROUGHLY if bent else _DIFFERENT) * (1 + np.abs(curve)))
    if wrong.any():
        point = POINTS[wrong][np.abs(POINTS[wrong]).argmin()]
        raise ConfigError(
            f"{shown!r} is not the integral of its derivative at x = {point:.4g}: it jumps, has a pole or no"
            " value inside a piece, or grows too fast",
            where=where,
            fix="Write pieces that end there, as in 'x > 0: 1' 'x <= 0: -1'",
        )
    return spec


def _plain(stated: Sequence[Piece], unchecked: UncheckedSpec, where: str) -> Sequence[Piece]:
    """The pieces in the formula language, split where the argument of an `abs` or a `sign` changes its sign.

    Edge   where that is not solved for, as of abs(sin(x)), the words stay
    """
    split = [replace(p, formula=ast.unparse(_Chosen().visit(_tree(p)))) for p in stated]
    try:
        return plain_pieces(tuple(split), unchecked.sample_values, where)
    except ConfigError:
        return plain_pieces(tuple(stated), unchecked.sample_values, where)


def split_at_signs(spec: Spec) -> Spec:
    """The spec with pieces that end where the argument of an `abs` or a `sign` of a gradient changes its sign.

    Edge   as it is where that is not solved for, and for formulas without them
    """
    if not any(_KINKS & _called(tree) for tree in spec.trees):
        return spec
    return replace(spec, pieces=tuple(_plain(spec.pieces, spec, spec.where)))


def _tree(piece: Piece) -> ast.expr:
    return copy.deepcopy(parse(piece.formula, words=True))


class _Chosen(ast.NodeTransformer):
    """Writes abs(u) and sign(u) as choices."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name, inner = ast.unparse(node.func), [ast.unparse(argument) for argument in node.args]
        words = {"abs": "max({0}, -({0}))", "sign": "where({0} > 0, 1, -1)"}
        return parse(words[name].format(*inner), words=True) if name in words else node


def _part(piece: Piece, values: Mapping[str, float]) -> _Part:
    ends = parse_interval(piece.where)
    low = -math.inf if ends.low is None else evaluate(parse(ends.low), values)
    high = math.inf if ends.high is None else evaluate(parse(ends.high), values)
    return _Part(piece.where, parse(piece.formula), low, high)


def _called(tree: ast.expr) -> set[str]:
    return {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call)}  # type: ignore[attr-defined]


def _check_signs(parts: Sequence[_Part], values: Mapping[str, float], shown: str) -> None:
    """Check that the function does not jump where the argument of a `sign` passes through 0."""
    for part in parts:
        inside = _SEARCHED[(part.low < _SEARCHED) & (part.high > _SEARCHED)]
        for argument in signs(part.tree):
            with np.errstate(all="ignore"):
                heights = evaluate_array(argument, {**values, VARIABLE: inside}) + 0.0 * inside
            passed = np.flatnonzero(np.diff(np.sign(heights)) != 0)
            for index in sorted(passed, key=lambda k: abs(inside[k])):
                point = _root(argument, values, *inside[index : index + 2].tolist())
                at = {**values, VARIABLE: point}
                left, right = (one_sided(part.tree, at, side) for side in (-1.0, 1.0))
                if abs(right - left) > 1e-6 * (1 + abs(left) + abs(right)):
                    raise ConfigError(
                        f"{shown!r} jumps at x = {point:.6g}, inside the piece {part.where!r}",
                        where="the function",
                        fix="Write pieces that end there, as in 'x > 0: 1' 'x <= 0: -1'",
                    )


def _root(argument: ast.expr, values: Mapping[str, float], low: float, high: float) -> float:
    """Where the argument changes its sign between two places, by halving."""

    def positive(x: float) -> bool:
        return _value(argument, {**values, VARIABLE: x}) > 0

    first = positive(low)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if positive(middle) == first else (low, middle)
    return round(high, 12)


def _curve(
    parts: Sequence[_Part], values: Mapping[str, float]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The function at POINTS as stated; NaN where no piece holds."""
    curve = np.full_like(POINTS, math.nan)
    with np.errstate(all="ignore"):
        for part in parts:
            inside = (part.low < POINTS) & (part.high > POINTS)
            try:
                curve[inside] = evaluate_array(part.tree, {**values, VARIABLE: POINTS[inside]})
            except (ArithmeticError, ValueError):
                continue
    return curve


def _at(part: _Part, point: str) -> str:
    """The formula of a part at a point, as text."""

    class Placed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return parse(point) if node.id == VARIABLE else node

    return ast.unparse(Placed().visit(copy.deepcopy(part.tree)))


def _value(formula: str | ast.expr, values: Mapping[str, float]) -> float:
    tree = parse(formula) if isinstance(formula, str) else formula
    try:
        return evaluate(tree, values)
    except (ArithmeticError, ValueError):
        return math.nan


def _anchor(parts: Sequence[_Part], values: Mapping[str, float], shown: str) -> tuple[str, str]:
    for point in _ANCHORS:
        x = _value(point, values)
        for part in parts:
            height = _at(part, point)
            if part.low < x < part.high and math.isfinite(_value(height, values)):
                return point, height
    for part in parts:  # every one of these places is a knot
        inner = [x for x in POINTS.tolist() if part.low < x < part.high]
        for x in inner[:: max(1, len(inner) // 4)]:
            height = _at(part, repr(x))
            if math.isfinite(_value(height, values)):
                return repr(x), height
    raise ConfigError(f"{shown!r} has no finite value for |x| < 5.6", where="the function")


def _jumps(parts: Sequence[_Part], samples: Sequence[Mapping[str, float]]) -> tuple[Jump, ...]:
    """The jumps between neighbours, also those that are 0 at the initial values of the parameters."""
    jumps = []
    for before, after in itertools.pairwise(parts):
        knot = parse_interval(before.where).high
        if knot is None:
            continue
        sides = [_at(part, knot) for part in (before, after)]
        heights = [[_value(side, values) for side in sides] for values in samples]
        if any(abs(b - a) > _NEAR * (1 + abs(a) + abs(b)) for a, b in heights):
            jumps.append(Jump(at=knot, by=f"({sides[1]}) - ({sides[0]})"))
    return tuple(jumps)


def _gradient(unchecked: UncheckedSpec, parts: Sequence[_Part], shown: str) -> Spec:
    symbols = {p.name: Symbol(p.name, real=True) for p in unchecked.parameters}
    slopes = [sympy.diff(to_sympy(part.tree, symbols), X) for part in parts]
    reasons = []
    # As one fraction the zeros of a quotient 0/0 are seen, as in (x*cos(x) - sin(x))/x**2.
    for form in (lambda slope: slope, sympy.together):
        texts = [_text(form(slope)) for slope in slopes]
        for continuity in CONTINUITIES:
            try:
                return Spec(
                    name=NAME,
                    title=NAME,
                    pieces=tuple(
                        Piece(where=part.where, formula=text)
                        for part, text in zip(parts, texts, strict=True)
                    ),
                    parameters=unchecked.parameters,
                    anchor=unchecked.anchor,
                    jumps=unchecked.jumps,
                    continuity=continuity,
                    source=SOURCE,
                )
            except ConfigError as error:
                reasons.append(error.what)
    raise ConfigError(
        f"the derivative of {shown!r} is not a gradient: {visible(reasons[-1], 300)}",
        where="the function",
        fix="State pieces without a pole, or the gradient itself with --gradient",
    )


def _text(slope: Expr) -> str:
    """The derivative in the formula language."""
    for made in PRIMITIVES:
        if _SPELLED.get(made.__name__, made.__name__) not in FUNCTIONS:
            slope = slope.replace(made, made.definition)
    slope = slope.replace(sympy.Abs, lambda u: sympy.Function("abs")(u))
    text = str(slope.replace(sympy.DiracDelta, lambda *_: sympy.Integer(0)))
    for name, spelled in _SPELLED.items():
        text = text.replace(f"{name}(", f"{spelled}(")
    return re.sub(r"\bE\b", "exp(1)", text)  # SymPy's name of the number
