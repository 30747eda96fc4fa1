"""Parser of the formula language of gradients; nothing is evaluated as Python.

A formula is text such as "alpha_n*(exp(x) - 1) + beta": numbers, `pi`, names, + - * / **,
unary minus and the functions listed in FUNCTIONS. The parser accepts nothing else, so an
untrusted formula can be read safely. Needs neither SymPy nor torch.
"""

from __future__ import annotations

import ast
import copy
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stamm.activations.spec.parameters import is_finite, logistic, softplus
from stamm.base.config import closest, nearest
from stamm.base.errors import ConfigError, visible

VARIABLE = "x"
CONSTANTS: Mapping[str, float] = {"pi": math.pi}
MAX_CHARACTERS = 2000
MAX_DEPTH = 60
MAX_TERMS = 100  # of one flat sum or product
MAX_EXPONENT = 64
_STEP = 1e-7  # from a point to its one-sided limits, relative


def normal_cdf(x: float) -> float:
    """The normal distribution function, erfc(-x/sqrt 2)/2."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def normal_pdf(x: float) -> float:
    """The normal density, exp(-x**2/2)/sqrt(2 pi)."""
    return math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def cauchy_cdf(x: float) -> float:
    """The Cauchy distribution function, atan(x)/pi + 1/2, exact in the lower tail."""
    return math.atan2(1.0, -x) / math.pi


def cauchy_pdf(x: float) -> float:
    """The Cauchy density, 1/(pi (1 + x**2))."""
    return 1.0 / (math.pi * (1.0 + x * x))


def gompertz(x: float) -> float:
    """The Gumbel distribution function, exp(-exp(-x)): 0 where exp(-x) overflows."""
    return math.exp(-math.exp(-x)) if x > -700.0 else 0.0


def gompertz_pdf(x: float) -> float:
    """The Gumbel density, exp(-x - exp(-x)): without a product of 0 and infinity."""
    return math.exp(-x - math.exp(-x)) if x > -700.0 else 0.0


def sign(x: float) -> float:
    """-1, 0 or 1."""
    return float((x > 0) - (x < 0))


FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "abs": abs,
    "sign": sign,
    "sin": math.sin,
    "cos": math.cos,
    "asin": math.asin,
    "atan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "asinh": math.asinh,
    "erf": math.erf,
    "erfc": math.erfc,
    "softplus": softplus,
    "gompertz": gompertz,
    "gompertz_pdf": gompertz_pdf,
    "logistic": logistic,
    "normal_cdf": normal_cdf,
    "normal_pdf": normal_pdf,
    "cauchy_cdf": cauchy_cdf,
    "cauchy_pdf": cauchy_pdf,
}
# Words that a spec's pieces may use, and how many arguments each takes; `spec.choices` replaces them.
WORDS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("sigmoid", "silu", "swish", "gelu", "relu", "relu6", "ln", "tan"), (1,)),
    **dict.fromkeys(("max", "min"), tuple(range(2, 10))),
    **dict.fromkeys(("maximum", "minimum"), (2,)),
    **dict.fromkeys(("clamp", "clip", "where"), (3,)),
}
_BESIDE = re.compile(r"[\w)]\s+[\w(]|\)\w|\)\(|\b\d+[A-Za-z(]")  # factors without a sign between
_PIECES = "Write two pieces, as in 'x > 0: x' and 'x <= 0: 0'"
_ELSEWHERE: Mapping[str, str] = {  # names of other libraries, and what to write here
    "sigmoid": "Write logistic(x)",
    "silu": "Write x*logistic(x)",
    "swish": "Write x*logistic(x)",
    "gelu": "Write x*normal_cdf(x)",
    "ln": "Write log(x)",
    "tan": "Write sin(x)/cos(x), on pieces without a pole",
    **dict.fromkeys(("relu", "max", "min", "maximum", "minimum", "where"), _PIECES),
}
_WRITTEN: Mapping[str, str] = {  # characters of texts and keyboards, and what to write here
    **dict.fromkeys("\u2212\u2013\u2014", "-"),
    **dict.fromkeys("\u00b7\u00d7\u22c5\u2217", "*"),
    **dict.fromkeys("\u00f7\u2215", "/"),
    "\u00b2": "**2",
    "\u00b3": "**3",
    "\u221a": "sqrt(x)",
    "\u03c0": "pi",
    "\u00bd": "1/2",
    "\u2264": "<=",
    "\u2265": ">=",
    **dict.fromkeys("\u00a0\u202f\u2009", "a plain blank"),
}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True, kw_only=True)
class PieceInterval:
    """The interval of a piece: from `low` to `high`, each a formula in parameters, or None."""

    low: str | None
    low_closed: bool
    high: str | None
    high_closed: bool


@lru_cache(maxsize=1024)
def parse(
    text: str, *, where: str = "", extra: tuple[str, ...] = (), words: bool = False
) -> ast.expr:
    """The syntax tree of a formula, checked node by node.

    extra    names of functions allowed beside FUNCTIONS (an evaluation order may use `min`)
    words    accept WORDS and `^` too, with comparisons in `where`
    Raises   ConfigError that quotes the part that is not in the language.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"the formula has {len(text)} characters, more than {MAX_CHARACTERS}", where=where
        )
    _check_characters(text, where)
    text = text.replace("^", "**") if words else text
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or type(error).__name__
        beside = reason.startswith("invalid decimal literal") or _BESIDE.search(text)
        fix = "Write products as 2*x" if beside else ""
        if "lambda" in text:
            fix = "lambda is a keyword of Python: call the parameter lam"
        raise ConfigError(f"{text!r} is not a formula: {reason}", where=where, fix=fix) from None
    _check(tree, text, where, (*extra, *WORDS) if words else extra, 0, 2)
    _check_numbers(tree, text, where)
    return tree


def _check_characters(text: str, where: str) -> None:
    """Refuse what is not ASCII: Python reads many such letters as others, and \u00b7 as part of a name."""
    for character in text:
        if not character.isascii():
            written = _WRITTEN.get(character)
            raise ConfigError(
                f"{visible(text, 200)!r} is not a formula: invalid character"
                f" {character!r} (U+{ord(character):04X})",
                where=where,
                fix=f"Write {written}" if written else "Write it in ASCII",
            )


def _check_numbers(tree: ast.AST, text: str, where: str) -> None:
    """Refuse numbers that double precision holds as 0 though they are written as another."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == 0:
            written = text.strip()[node.col_offset : node.end_col_offset]
            if any(digit in "123456789" for digit in written.lower().partition("e")[0]):
                raise ConfigError(
                    f"{visible(written, 60)} is 0 in double precision",
                    where=where,
                    fix="Use numbers above 1e-308, or 0",
                )


def symbols(tree: ast.expr) -> frozenset[str]:
    """The names in a formula that are neither functions nor constants."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called)
    return frozenset(n.id for n in names if n.id not in CONSTANTS)


def interpret(
    tree: ast.expr,
    leaf: Callable[[ast.Constant | ast.Name], Any],
    call: Callable[[str, Any], Any],
    *,
    divide: Callable[[Any, Any], Any] = operator.truediv,
    power: Callable[[Any, Any], Any] = operator.pow,
) -> Any:
    """The value of a formula in any arithmetic: numbers, arrays or SymPy expressions.

    leaf   the value of a number or a name
    call   the value of a function, by its name and the value of its argument

    Raises   ValueError for a tree that `parse` does not accept without `extra`
    """

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant() | ast.Name():
                return leaf(node)
            case ast.UnaryOp(op=sign, operand=operand):
                inner = value(operand)
                return -inner if isinstance(sign, ast.USub) else inner
            case ast.BinOp(left=left, op=sign, right=right):
                a, b = value(left), value(right)
                match sign:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.Div():
                        return divide(a, b)
                return power(a, b)
            case ast.Call(func=ast.Name(id=name), args=[argument]):
                return call(name, value(argument))
        raise ValueError(f"{ast.unparse(node)!r} has no plain value")

    return value(tree)


def leaf_value(node: ast.Constant | ast.Name, values: Mapping[str, Any]) -> Any:
    """A number in double precision, a constant of the language, or the value of a name."""
    if isinstance(node, ast.Constant):
        return float(str(node.value))
    return CONSTANTS[node.id] if node.id in CONSTANTS else values[node.id]


def evaluate(tree: ast.expr, values: Mapping[str, float]) -> float:
    """The formula's value in double precision.

    Raises   ArithmeticError or ValueError where it has none (1/0, log of a negative, overflow).
    """
    value: float = interpret(
        tree,
        lambda node: leaf_value(node, values),
        lambda name, argument: FUNCTIONS[name](argument),
        power=_real_power,
    )
    return value


def divisors(tree: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each part of a formula that must not be zero where the exponent beside it is negative.

    Denominators are there with the exponent -1.
    """
    minus_one = ast.Constant(-1.0)
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(op=ast.Div(), right=right):
                yield from ((part, minus_one) for part in _factors(right))
            case ast.BinOp(left=left, op=ast.Pow(), right=right) if not isinstance(
                right, ast.Constant
            ):
                yield from ((part, right) for part in _factors(left))


def logarithms(tree: ast.expr) -> Iterator[ast.expr]:
    """Each part of a formula that must not be zero because of a `log` or `log1p`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="log"), args=[argument]):
                yield from _factors(argument)
            case ast.Call(func=ast.Name(id="log1p"), args=[argument]):
                yield ast.BinOp(argument, ast.Add(), ast.Constant(1))


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    """Parts of which one is zero where `node` is: factors, and arguments of abs, sqrt and powers.

    A zero of high or fractional order is found in the part itself, where its order is one.
    """
    match node:
        case ast.UnaryOp(operand=inner) | ast.BinOp(left=inner, op=ast.Div()):
            yield from _factors(inner)
        case ast.Call(func=ast.Name(id="abs" | "sqrt"), args=[inner]):
            yield from _factors(inner)
        case ast.BinOp(
            left=inner, op=ast.Pow(), right=ast.Constant(value=int() | float() as power)
        ):
            if power > 0:
                yield from _factors(inner)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            yield from _factors(left)
            yield from _factors(right)
        case _:
            yield node


def signs(tree: ast.expr) -> list[ast.expr]:
    """The arguments of all calls of `sign` in a formula."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [c.args[0] for c in calls if isinstance(c.func, ast.Name) and c.func.id == "sign"]


def one_sided(tree: ast.expr, values: Mapping[str, float], side: float) -> float:
    """The limit of a formula at `values` in x, from below or from above.

    Each sign(...) has its value a small step to that side; the rest is taken at the point.

    side   -1 from below, 1 from above
    Edge   NaN where the formula has no value.
    """
    point = values[VARIABLE]
    beside = {**values, VARIABLE: point + side * _STEP * max(1.0, abs(point))}
    try:
        return evaluate(_WithoutSigns(beside).visit(copy.deepcopy(tree)), values)
    except (ArithmeticError, ValueError):
        return math.nan


class _WithoutSigns(ast.NodeTransformer):
    """Replaces each sign(...) with its value."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self.values = values

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id == "sign":
            return ast.Constant(evaluate(node, self.values))
        self.generic_visit(node)
        return node


@lru_cache(maxsize=1024)
def parse_interval(text: str, *, where: str = "") -> PieceInterval:
    """The interval in "x > 0", "x <= a", "0 < x <= 1" or "all x".

    Raises   ConfigError when the text is not such a condition on x.
    """
    wrong = ConfigError(
        f"{text!r} does not state where the piece holds",
        where=where,
        fix="Write 'x <= 0', 'x > 0', '0 < x <= 1' or 'all x'",
    )
    if text.strip() == "all x":
        return PieceInterval(low=None, low_closed=False, high=None, high_closed=False)
    if len(text) > MAX_CHARACTERS:
        raise wrong
    _check_characters(text, where)
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise wrong from None
    if not isinstance(node, ast.Compare) or not all(isinstance(o, _COMPARISONS) for o in node.ops):
        raise wrong
    sides = [node.left, *node.comparators]
    at = [i for i, side in enumerate(sides) if isinstance(side, ast.Name) and side.id == VARIABLE]
    upward = [isinstance(o, (ast.Lt, ast.LtE)) for o in node.ops]
    if len(at) != 1 or len(set(upward)) != 1 or len(sides) > 3 or (len(sides) == 3 and at != [1]):
        raise wrong
    _check_numbers(node, text, where)
    bounds = [ast.unparse(side) for side in sides]
    closed = [isinstance(o, (ast.LtE, ast.GtE)) for o in node.ops]
    if not upward[0]:
        bounds.reverse()
        closed.reverse()
        at = [len(bounds) - 1 - at[0]]
    below = at[0] > 0
    above = at[0] < len(bounds) - 1
    return PieceInterval(
        low=bounds[0] if below else None,
        low_closed=closed[0] if below else False,
        high=bounds[-1] if above else None,
        high_closed=closed[-1] if above else False,
    )


def _real_power(base: float, exponent: float) -> float:
    power = base**exponent
    if isinstance(power, complex):
        raise ValueError(f"{base!r} to the power {exponent!r} is not real")
    return float(power)


def _check(
    node: ast.AST, text: str, where: str, extra: tuple[str, ...], depth: int, terms: int
) -> None:
    """Check a node and its parts; `depth` and `terms` count the way to it from the whole formula."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"the formula is nested more than {MAX_DEPTH} deep", where=where)
    if terms > MAX_TERMS:
        raise ConfigError(
            f"the formula holds sums and products of more than {MAX_TERMS} terms",
            where=where,
            fix="Collect terms",
        )
    inner: list[ast.expr] = []
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            if not is_finite(number):
                raise ConfigError(
                    f"{visible(text, 60)!r} holds a number that is not finite in double precision",
                    where=where,
                    fix="Use numbers below 1e308",
                )
        case ast.Name():
            pass
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            inner = [operand]
        case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, _OPERATORS):
            _check_power(operator, right, text, where)
            inner = [left, right]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if name not in FUNCTIONS and name not in extra:
                raise ConfigError(
                    f"{text!r} calls the unknown function {name!r}",
                    where=where,
                    fix=_ELSEWHERE.get(name) or _unknown(node, [*FUNCTIONS, *extra]),
                )
            if name in FUNCTIONS and len(arguments) != 1:
                raise ConfigError(f"{text!r}: {name} takes one argument", where=where)
            words = WORDS.get(name) if name in extra else None
            if words is not None and len(arguments) not in words:
                raise ConfigError(
                    f"{text!r}: {name} takes {words[0]} argument{'s' * (words[0] > 1)}"
                    + " or more" * (len(words) > 1),
                    where=where,
                )
            inner = arguments
            if name == "where" and words is not None:
                test, *inner = arguments
                if not isinstance(test, ast.Compare) or not all(
                    isinstance(o, _COMPARISONS) for o in test.ops
                ):
                    raise ConfigError(
                        f"{text!r}: where chooses by {ast.unparse(test)!r}, which is not a comparison",
                        where=where,
                        fix="Write where(x > 0, x, 0)",
                    )
                inner += [test.left, *test.comparators]
        case ast.Call(func=ast.Constant() | ast.BinOp() | ast.UnaryOp() | ast.Call()):
            raise ConfigError(
                f"{text!r} holds {ast.unparse(node)!r}, which is not part of a formula",
                where=where,
                fix="Write products as 2*(x + 1)",
            )
        case ast.BinOp(op=ast.BitXor()):
            raise ConfigError(
                f"{text!r} holds ^, which is not part of a formula", where=where, fix="Write x**2"
            )
        case _:
            raise ConfigError(
                f"{text!r} holds {ast.unparse(node)!r}, which is not part of a formula",
                where=where,
                fix=f"Use numbers, pi, names, + - * / ** and {', '.join([*FUNCTIONS, *extra])}",
            )
    for part in inner:
        # A flat sum of many terms is a chain to its left, whose length is not a depth.
        chained = part is getattr(node, "left", None) and isinstance(part, ast.BinOp)
        _check(part, text, where, extra, depth + (not chained), terms + chained)


def _unknown(call: ast.Call, known: list[str]) -> str:
    """The fix of a call of an unknown function, which may be meant as a product."""
    name = ast.unparse(call.func)
    if closest(name, known) is None and len(call.args) == 1:
        return f"Write a product as {name}*({ast.unparse(call.args[0])}). {nearest(name, known)}"
    return nearest(name, known)


def _check_power(operator: ast.operator, right: ast.expr, text: str, where: str) -> None:
    # Nested constant powers would make exact arithmetic build numbers of unbounded length.
    if not isinstance(operator, ast.Pow) or symbols(right):
        return
    try:
        size = abs(evaluate(right, {}))
    except (ArithmeticError, ValueError, KeyError):
        size = math.inf
    if size > MAX_EXPONENT:
        raise ConfigError(
            f"{text!r} has the exponent {ast.unparse(right)!r}, beyond {MAX_EXPONENT}", where=where
        )
