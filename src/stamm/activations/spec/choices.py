"""Words beyond the formula language: other names of functions, `^`, and choices such as max and where.

A spec holds plain formulas only. Other names are replaced, and a piece with a choice is split where
the choice changes: `min(exp(x), 1)` becomes `x <= 0: exp(x)` and `x > 0: 1`. The content hash is that of
the plain pieces, whichever way they were written.
"""

from __future__ import annotations

import ast
import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

from stamm.activations.spec.expressions import (
    VARIABLE,
    WORDS,
    PieceInterval,
    evaluate,
    parse,
    parse_interval,
    symbols,
)
from stamm.activations.spec.unchecked import Piece
from stamm.base.errors import ConfigError

Values = Mapping[str, float]
Pieces = TypeVar("Pieces", bound=Sequence[Piece])
_USED = re.compile(rf"\^|\b({'|'.join(WORDS)})\s*\(")
_MOST_PIECES = 40
_NAMES: Mapping[str, str] = {  # the formula of each word, at u (and at v and w)
    "sigmoid": "logistic(u)",
    "silu": "u*logistic(u)",
    "swish": "u*logistic(u)",
    "gelu": "u*normal_cdf(u)",
    "ln": "log(u)",
    "tan": "sin(u)/cos(u)",
    "relu": "max(u, 0)",
    "maximum": "max(u, v)",
    "minimum": "min(u, v)",
    "relu6": "min(max(u, 0), 6)",
    "clamp": "min(max(u, v), w)",
    "clip": "min(max(u, v), w)",
}
# Of each rising function: the inverse at v, and the range.
_INVERSES: Mapping[str, tuple[str, float, float]] = {
    "exp": ("log(v)", 0.0, math.inf),
    "expm1": ("log1p(v)", -1.0, math.inf),
    "log": ("exp(v)", -math.inf, math.inf),
    "softplus": ("log(expm1(v))", 0.0, math.inf),
    "logistic": ("log(v/(1 - v))", 0.0, 1.0),
    "tanh": ("log((1 + v)/(1 - v))/2", -1.0, 1.0),
    "sqrt": ("v**2", 0.0, math.inf),
}


_EXACT = {  # inverses that are numbers
    ("exp", Fraction(1)): ast.Constant(0),
    ("logistic", Fraction(1, 2)): ast.Constant(0),
    ("log", Fraction(0)): ast.Constant(1),
    **{(name, Fraction(0)): ast.Constant(0) for name in ("expm1", "tanh")},
}


def plain_text(text: str, where: str) -> str:
    """A formula without a choice in the formula language; unchanged where it uses no word."""
    if not _USED.search(text):
        return text
    tree = _named(parse(text, where=where, words=True))
    if _choice(tree) is not None:
        raise ConfigError(
            f"{text!r} holds a choice, which is allowed in the gradient of a piece only",
            where=where,
            fix="Write one piece for each case",
        )
    return ast.unparse(tree)


def plain_pieces(
    pieces: Pieces, settings: Callable[[], Sequence[Values]], where: str
) -> Pieces | tuple[Piece, ...]:
    """The pieces in the formula language, split at the knots of their choices.

    settings   parameter values, the initial ones first: the order of knots must be the same at all
    Edge       the same object where no piece uses a word.
    Raises     ConfigError that quotes the choice whose knots are not known, or change their order.
    Checked    tests/unit/activations/test_choices.py
    """
    if not any(_USED.search(t) for p in pieces for t in (p.where, p.formula, p.integral)):
        return pieces
    split: list[Piece] = []
    for piece in pieces:
        named = replace(
            piece,
            where=piece.where.replace("^", "**"),
            integral=plain_text(piece.integral, where),
        )
        if not _USED.search(piece.formula):
            split.append(named)
            continue
        at = f"{where}, {piece.where}"
        tree = _named(parse(piece.formula, where=at, words=True))
        if _choice(tree) is None:
            split.append(replace(named, formula=ast.unparse(tree)))
            continue
        values = settings()
        parts = _split(_Part(parse_interval(named.where, where=at), tree), values, at)
        if len(parts) > _MOST_PIECES:
            raise ConfigError(
                f"{piece.formula!r} has {len(parts)} pieces, more than {_MOST_PIECES}", where=at
            )
        split += [
            replace(named, where=interval_text(p.ends), formula=ast.unparse(p.tree)) for p in parts
        ]
    return tuple(split)


@dataclass(frozen=True)
class _Part:
    """A formula that may still hold choices, and the interval on which it is the gradient."""

    ends: PieceInterval
    tree: ast.expr


@dataclass(frozen=True)
class _Truth:
    """Where a condition holds: its knots from left to right, and its truth between them."""

    knots: tuple[ast.expr, ...]
    holds: tuple[bool, ...]

    def negated(self) -> _Truth:
        return _Truth(self.knots, tuple(not holds for holds in self.holds))


def _split(part: _Part, settings: Sequence[Values], where: str) -> list[_Part]:
    choice = _choice(part.tree)
    if choice is None:
        return [part]
    test, chosen, otherwise, closed = _condition(choice)
    test = _without_x(test)
    if VARIABLE not in symbols(test):
        tree = _of_parameters(choice, test, chosen, otherwise, closed, settings, where)
        return _split(_Part(part.ends, _replaced(part.tree, choice, tree)), settings, where)
    truth = _solved(test, settings, ast.unparse(choice), where)
    places = [_side(knot, part.ends, settings, choice, where) for knot in truth.knots]
    inside = [k for k, position in enumerate(places) if position == 0]
    first = places.count(-1)
    parts, ends = [], part.ends
    for k in inside:
        belongs_left = truth.holds[k] == closed
        text = ast.unparse(truth.knots[k])
        below = replace(ends, high=text, high_closed=belongs_left)
        parts.append((below, truth.holds[k]))
        ends = replace(ends, low=text, low_closed=not belongs_left)
    parts.append((ends, truth.holds[first + len(inside)]))
    split: list[_Part] = []
    for interval, holds in parts:
        _check_domain(test, interval, settings, choice, where)
        tree = _replaced(part.tree, choice, chosen if holds else otherwise)
        split += _split(_Part(interval, tree), settings, where)
    return split


def _condition(choice: ast.Call) -> tuple[ast.expr, ast.expr, ast.expr, bool]:
    """(u, chosen, otherwise, closed): `chosen` where u > 0, or where u >= 0 if `closed`."""
    assert isinstance(choice.func, ast.Name)
    if choice.func.id != "where":
        first, second = choice.args
        by = _minus(first, second)
        return (by, first, second, False) if choice.func.id == "max" else (by, second, first, False)
    test, chosen, otherwise = choice.args
    assert isinstance(test, ast.Compare)
    if len(test.ops) > 1:  # a < x < b: where a < x, x < b decides
        middle, *ends = test.comparators
        rest = ast.Compare(middle, test.ops[1:], ends)
        chosen = ast.Call(choice.func, [rest, chosen, otherwise], [])
    left, right = test.left, test.comparators[0]
    upward = isinstance(test.ops[0], ast.Lt | ast.LtE)
    closed = isinstance(test.ops[0], ast.LtE | ast.GtE)
    return _minus(right, left) if upward else _minus(left, right), chosen, otherwise, closed


def _of_parameters(
    choice: ast.Call,
    test: ast.expr,
    chosen: ast.expr,
    otherwise: ast.expr,
    closed: bool,
    settings: Sequence[Values],
    where: str,
) -> ast.expr:
    """The value of a choice between parameters: one of the two at every setting, or a formula in abs."""
    signs = {_sign(test, values) for values in settings}
    if not signs <= {-1.0, 0.0, 1.0}:
        raise ConfigError(
            f"{ast.unparse(choice)!r} compares parameters where {ast.unparse(test)} has no value",
            where=where,
            fix="Bound the parameters so that both sides have values",
        )
    truths = {sign > 0 or (closed and sign == 0) for sign in signs}
    if len(truths) == 1:
        return chosen if truths == {True} else otherwise
    if choice.func.id == "where":  # type: ignore[attr-defined]
        raise ConfigError(
            f"{ast.unparse(choice)!r} compares parameters that training moves",
            where=where,
            fix="Compare with x, or write max or min",
        )
    half = "(u + v + abs(u - v))/2" if choice.func.id == "max" else "(u + v - abs(u - v))/2"  # type: ignore[attr-defined]
    return _filled(half, u=chosen, v=otherwise)


def _solved(test: ast.expr, settings: Sequence[Values], shown: str, where: str) -> _Truth:
    """Where `test` is positive."""
    unknown = ConfigError(
        f"{shown!r} changes where {ast.unparse(test)} = 0, and that is solved only where x enters it"
        f" as a*x + b, in one of {', '.join(_INVERSES)}, abs or a square",
        where=where,
        fix="Write the pieces: 'x > 1: ...' 'x <= 1: ...'",
    )
    within = _innermost(test)
    if within is None:
        raise unknown
    linear = _linear(test, within)
    if linear is None:
        raise unknown
    constant, slope = linear
    signs = {_sign(slope, values) for values in settings}
    if signs not in ({1.0}, {-1.0}):
        raise ConfigError(
            f"{shown!r} changes sides where {ast.unparse(slope)} changes its sign",
            where=where,
            fix="Hold the parameter positive, as in a=1:softplus",
        )
    rising = signs == {1.0}
    level = _over(_negative(constant), slope)

    def turned(truth: _Truth) -> _Truth:
        return truth if rising else truth.negated()

    if isinstance(within, ast.Name):
        return turned(_Truth((level,), (False, True)))
    heights = [_at(level, s) for s in settings]
    if (
        isinstance(within, ast.Call)
        and isinstance(within.func, ast.Name)
        and within.func.id != "abs"
    ):
        inverse, low, high = _INVERSES[within.func.id]
        if all(height <= low for height in heights) or all(height >= high for height in heights):
            return turned(_Truth((), (heights[0] <= low,)))
        if not all(low < height < high for height in heights):
            raise unknown
        at = _number(level)
        known = None if at is None else _EXACT.get((within.func.id, at))
        inner = _minus(within.args[0], _filled(inverse, v=level) if known is None else known)
        return turned(_solved(inner, settings, shown, where))
    # abs(u) > v, or u**2 > v: where u > root or -u > root
    base = within.args[0] if isinstance(within, ast.Call) else within.left  # type: ignore[attr-defined]
    if all(height <= 0 for height in heights):
        return turned(_Truth((), (True,)))
    if not all(height > 0 for height in heights):
        raise unknown
    root = level if isinstance(within, ast.Call) else _root(level)
    above = _solved(_minus(base, root), settings, shown, where)
    below = _solved(_minus(_negative(base), root), settings, shown, where)
    either = _either(above, below, settings)
    if either is None:
        raise unknown
    return turned(either)


def _either(first: _Truth, second: _Truth, settings: Sequence[Values]) -> _Truth | None:
    """Where one of two conditions holds; None where parameters change the order of their knots."""
    knots = (*first.knots, *second.knots)
    heights = [[_at(knot, values) for knot in knots] for values in settings]
    orders = {tuple(sorted(range(len(knots)), key=row.__getitem__)) for row in heights}
    if len(orders) > 1:
        return None
    (order,) = orders
    passed, holds = [0, 0], [first.holds[0] or second.holds[0]]
    for k in order:
        passed[k >= len(first.knots)] += 1
        holds.append(first.holds[passed[0]] or second.holds[passed[1]])
    return _Truth(tuple(knots[k] for k in order), tuple(holds))


def _innermost(test: ast.expr) -> ast.expr | None:
    """The one part of a condition in which x enters: x itself, or a function that is solved for."""
    for node in ast.walk(test):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[argument]) if VARIABLE in symbols(argument):
                return node if name in _INVERSES or name == "abs" else None
            case ast.BinOp(op=ast.Pow(), left=base, right=ast.Constant(value=2)) if (
                VARIABLE in symbols(base)
            ):
                return node
            case ast.Name(id=name) if name == VARIABLE:
                return node
    return None


def _linear(node: ast.expr, variable: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """(c, s) with node = c + s*variable, or None."""
    zero, one = ast.Constant(0), ast.Constant(1)
    if ast.dump(node) == ast.dump(variable):
        return zero, one
    if VARIABLE not in symbols(node):
        return node, zero
    match node:
        case ast.UnaryOp(op=sign, operand=operand):
            inner = _linear(operand, variable)
            if inner is None or isinstance(sign, ast.UAdd):
                return inner
            return _negative(inner[0]), _negative(inner[1])
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            a, b = _linear(left, variable), _linear(right, variable)
            if a is None or b is None:
                return None
            join = _plus if isinstance(operator, ast.Add) else _minus
            return join(a[0], b[0]), join(a[1], b[1])
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            if VARIABLE in symbols(left):
                left, right = right, left
            inner = _linear(right, variable)
            if VARIABLE in symbols(left) or inner is None:
                return None
            return _times(left, inner[0]), _times(left, inner[1])
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            inner = _linear(left, variable)
            if VARIABLE in symbols(right) or inner is None:
                return None
            return _over(inner[0], right), _over(inner[1], right)
    return None


def _without_x(test: ast.expr) -> ast.expr:
    """A condition in which x cancels, as in x + 1 - x, without it."""
    within = _innermost(test)
    linear = _linear(test, within) if isinstance(within, ast.Name) else None
    return linear[0] if linear is not None and _number(linear[1]) == 0 else test


def _check_domain(
    test: ast.expr,
    ends: PieceInterval,
    settings: Sequence[Values],
    choice: ast.expr,
    where: str,
) -> None:
    """Refuse a condition such as sqrt(x) < 2 on an interval where it has no value."""
    for values in settings:
        low, high = _bounds(ends, values)
        low = min(high, 0.0) - 1e3 if low == -math.inf else low
        high = max(low, 0.0) + 1e3 if high == math.inf else high
        for share in (1 / 64, 1 / 2, 63 / 64):
            x = low + share * (high - low)
            try:
                evaluate(test, {**values, VARIABLE: x})
            except ValueError:
                raise ConfigError(
                    f"{ast.unparse(choice)!r} compares {ast.unparse(test)}, which has no value at"
                    f" x = {x:g}",
                    where=where,
                    fix="State it on a piece where it has one, as in 'x > 0: max(log(x), -1)'",
                ) from None
            except ArithmeticError:
                continue  # exp overflows: the knots were solved for


def _side(
    knot: ast.expr, ends: PieceInterval, settings: Sequence[Values], choice: ast.expr, where: str
) -> int:
    """-1, 0 or 1: a knot lies below, inside or above an interval, at every setting."""
    places = set()
    for values in settings:
        at, (low, high) = _at(knot, values), _bounds(ends, values)
        places.add(-1 if at <= low else 1 if at >= high else 0 if low < at < high else 2)
    if len(places) > 1 or places == {2}:
        raise ConfigError(
            f"the knot {ast.unparse(knot)} of {ast.unparse(choice)!r} may cross another one",
            where=where,
            fix="Bound the parameters so that the knots keep their order",
        )
    return places.pop()


def _bounds(ends: PieceInterval, values: Values) -> tuple[float, float]:
    low = -math.inf if ends.low is None else _at(parse(ends.low), values)
    return low, math.inf if ends.high is None else _at(parse(ends.high), values)


def _sign(tree: ast.expr, values: Values) -> float:
    """-1, 0 or 1; NaN where the tree has no value."""
    height = _at(tree, values)
    return height if math.isnan(height) else float((height > 0) - (height < 0))


def _at(tree: ast.expr, values: Values) -> float:
    try:
        return evaluate(tree, values)
    except (ArithmeticError, ValueError, KeyError):
        return math.nan


def interval_text(ends: PieceInterval) -> str:
    """An interval as the command line states it: "-1 < x <= 2"."""
    if ends.low is None and ends.high is None:
        return "all x"
    if ends.low is None:
        return f"x <{'=' * ends.high_closed} {ends.high}"
    if ends.high is None:
        return f"x >{'=' * ends.low_closed} {ends.low}"
    return f"{ends.low} <{'=' * ends.low_closed} x <{'=' * ends.high_closed} {ends.high}"


def _choice(tree: ast.expr) -> ast.Call | None:
    """The first choice of a tree that compares no other one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            compared = node.args[:1] if node.func.id == "where" else node.args
            if node.func.id in ("max", "min", "where"):
                inner = next((c for part in compared if (c := _choice(part)) is not None), None)
                return node if inner is None else inner
    return None


def _named(tree: ast.expr) -> ast.expr:
    """The tree with other names replaced, and max and min of two arguments each."""

    class Named(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            assert isinstance(node.func, ast.Name)
            if node.func.id in _NAMES:
                given = dict(zip("uvw", node.args, strict=False))
                return _named(_filled(_NAMES[node.func.id], **given))
            while node.func.id in ("max", "min") and len(node.args) > 2:
                first, second, *rest = node.args
                node.args = [ast.Call(node.func, [first, second], []), *rest]
            return node

    named: ast.expr = Named().visit(copy.deepcopy(tree))
    return named


def _filled(text: str, **trees: ast.expr) -> ast.expr:
    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return trees.get(node.id, node)

    filled: ast.expr = Filled().visit(ast.parse(text, mode="eval").body)
    return filled


def _replaced(tree: ast.expr, part: ast.expr, by: ast.expr) -> ast.expr:
    """The tree with every equal of `part` replaced."""
    same = ast.dump(part)

    class Replaced(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return by if ast.dump(node) == same else self.generic_visit(node)

    replaced: ast.expr = Replaced().visit(copy.deepcopy(tree))
    return replaced


def _number(tree: ast.expr) -> Fraction | None:
    match tree:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            below = _number(inner)
            return None if below is None else -below
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            a, b = _number(left), _number(right)
            return None if a is None or not b else a / b
    return None


def _joined(
    left: ast.expr,
    operator: ast.operator,
    right: ast.expr,
    exact: Callable[[Fraction, Fraction], Fraction],
) -> ast.expr:
    a, b = _number(left), _number(right)
    if a is None or b is None:
        return ast.BinOp(left, operator, right)
    number = exact(a, b)
    text = f"{number.numerator}/{number.denominator}" if number.denominator > 1 else f"{number}"
    return ast.parse(text, mode="eval").body


def _root(level: ast.expr) -> ast.expr:
    number = _number(level)
    if number is not None and number > 0:
        root = Fraction(math.isqrt(number.numerator), math.isqrt(number.denominator))
        if root * root == number:
            return _joined(
                ast.Constant(root.numerator),
                ast.Div(),
                ast.Constant(root.denominator),
                Fraction.__truediv__,
            )
    return _filled("sqrt(v)", v=level)


def _plus(left: ast.expr, right: ast.expr) -> ast.expr:
    if _number(left) == 0:
        return right
    return left if _number(right) == 0 else _joined(left, ast.Add(), right, Fraction.__add__)


def _minus(left: ast.expr, right: ast.expr) -> ast.expr:
    if _number(left) == 0:
        return _negative(right)
    return left if _number(right) == 0 else _joined(left, ast.Sub(), right, Fraction.__sub__)


def _negative(tree: ast.expr) -> ast.expr:
    match tree:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return inner
        case _ if _number(tree) is not None:
            return _joined(ast.Constant(0), ast.Sub(), tree, Fraction.__sub__)
    return ast.UnaryOp(ast.USub(), tree)


def _times(left: ast.expr, right: ast.expr) -> ast.expr:
    for factor, other_factor in ((left, right), (right, left)):
        if _number(factor) == 0:
            return factor
        if _number(factor) == 1:
            return other_factor
    return _joined(left, ast.Mult(), right, Fraction.__mul__)


def _over(left: ast.expr, right: ast.expr) -> ast.expr:
    if _number(right) == 0:  # has no value
        return ast.BinOp(left, ast.Div(), right)
    if _number(left) == 0 or _number(right) == 1:
        return left
    if _number(right) == -1:
        return _negative(left)
    return _joined(left, ast.Div(), right, Fraction.__truediv__)
