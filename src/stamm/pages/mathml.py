"""Formulas set as mathematics: text of the formula language in, MathML out.

Browsers set MathML themselves, so a page needs no script and no font from elsewhere, and a
screen reader reads it. Other text is shown as code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

MAX_DEPTH = 120
_SUM, _PRODUCT, _POWER, _ATOM = range(4)
_Set = tuple[Markup, int]  # the markup, and how tightly its outermost operation binds

_APPLY = Markup("<mo>&#x2061;</mo>")
_TIMES = Markup("<mo>&#x2062;</mo>")
_DOT = Markup("<mo>·</mo>")
_MINUS = Markup("<mo>−</mo>")
_GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eps": "ε",
    "zeta": "ζ", "eta": "η", "theta": "θ", "kappa": "κ", "lam": "λ", "mu": "μ", "nu": "ν",
    "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "chi": "χ",
    "psi": "ψ", "omega": "ω",
}  # fmt: skip
_FUNCTIONS = {
    "logistic": "σ", "normal_cdf": "Φ", "normal_pdf": "φ", "asin": "arcsin", "acos": "arccos",
    "atan": "arctan", "asinh": "arsinh", "acosh": "arcosh", "sign": "sgn",
}  # fmt: skip
# Functions for numerical stability are shown by their definition.
_EXPANDED = {
    "expm1": "exp(u) - 1",
    "phi2": "exp(u) - 1 - u",
    "log1p": "log(1 + u)",
    "logistic_odd": "logistic(u) - 1/2",
    "normal_odd": "normal_cdf(u) - 1/2",
    "cauchy_odd": "atan(u)/pi",
    "cauchy_cdf": "atan(u)/pi + 1/2",
    "cauchy_pdf": "1/(pi*(1 + u**2))",
}
_RELATIONS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "≤", ast.Gt: ">", ast.GtE: "≥",
}  # fmt: skip


def piecewise(left: str, pieces: Sequence[Mapping[str, str]]) -> Markup:
    """`left` = the pieces, each {where, formula}, one below the other where there are several.

    left   a letter with up to two primes, as in "f''(x)", or "df/dNAME"
    """
    if len(pieces) == 1:
        body = inline(pieces[0]["formula"])
    else:
        rows = Markup("").join(
            Markup("<mtr><mtd>{}</mtd><mtd>{}</mtd></mtr>").format(
                inline(piece["formula"]), condition(piece["where"])
            )
            for piece in pieces
        )
        # A brace stretches only with a mathematical font: the style sheet draws it as a border.
        body = Markup('<mtable class="cases">{}</mtable>').format(rows)
    return Markup('<math display="block"><mrow>{}<mo>=</mo>{}</mrow></math>').format(
        _left_side(left), body
    )


def alone(text: str) -> Markup:
    """One formula, condition or equation in a line of text."""
    return Markup("<math>{}</math>").format(condition(text))


def inline(text: str) -> Markup:
    """A formula as the inside of a <math> element."""
    try:
        return _set(ast.parse(text.strip(), mode="eval").body, {}, 0)[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _plain(text)


def condition(text: str) -> Markup:
    """A condition such as "0 < x <= 1", or "NAME = formula", as the inside of a <math> element."""
    if text.strip() == "all x":
        return Markup("<mrow><mtext>all&#xa0;</mtext><mi>x</mi></mrow>")
    name, equals, formula = text.partition(" = ")
    if equals:
        return Markup("<mrow>{}<mo>=</mo>{}</mrow>").format(inline(name), inline(formula))
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Compare):
            return _set(node, {}, 0)[0]
        parts = [_set(node.left, {}, 0)[0]]
        for relation, side in zip(node.ops, node.comparators, strict=True):
            parts.append(Markup("<mo>{}</mo>").format(_RELATIONS[type(relation)]))
            parts.append(_set(side, {}, 0)[0])
    except (SyntaxError, ValueError, KeyError, RecursionError, MemoryError):
        return _plain(text)
    return Markup("<mrow>{}</mrow>").format(Markup("").join(parts))


def _plain(text: str) -> Markup:
    return Markup("<mtext>{}</mtext>").format(text)


def _left_side(text: str) -> Markup:
    partial = re.fullmatch(r"df/d(\w+)", text)
    if partial:
        return Markup("<mfrac><mrow><mo>∂</mo><mi>f</mi></mrow><mrow><mo>∂</mo>{}</mrow></mfrac>") \
            .format(_name(partial[1]))  # fmt: skip
    primes = text.count("'")
    prime = Markup('<mo lspace="0" rspace="0">{}</mo>').format({1: "′", 2: "″"}.get(primes, ""))
    f = Markup("<mrow><mi>{}</mi>{}</mrow>").format(text[:1], prime if primes else "")
    return Markup("<mrow>{}{}<mrow><mo>(</mo><mi>x</mi><mo>)</mo></mrow></mrow>").format(f, _APPLY)


def _set(node: ast.expr, bound: Mapping[str, _Set], depth: int) -> _Set:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep to be set")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return Markup("<mn>{}</mn>").format(_digits(value)), _ATOM
        case ast.Name(id=name):
            return bound[name] if name in bound else (_name(name), _ATOM)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _at_least(_set(operand, bound, depth + 1), _PRODUCT)
            return Markup("<mrow>{}{}</mrow>").format(_MINUS, inner), _SUM
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _set(operand, bound, depth + 1)
        case ast.BinOp(left=ast.UnaryOp(op=ast.USub(), operand=first), op=ast.Mult() | ast.Div()):
            # Python reads -a*b as (-a)*b; it is written as -(a*b), without brackets
            unsigned = ast.BinOp(left=first, op=node.op, right=node.right)
            return _set(ast.UnaryOp(op=ast.USub(), operand=unsigned), bound, depth + 1)
        case ast.BinOp(left=left, op=operator, right=right):
            return _binary(
                operator, _set(left, bound, depth + 1), _set(right, bound, depth + 1), right
            )
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return _call(name, _set(argument, bound, depth + 1), depth)
    raise ValueError(f"{type(node).__name__} is not part of a formula")


def _binary(operator: ast.operator, left: _Set, right: _Set, node: ast.expr) -> _Set:
    row = Markup("<mrow>{}{}{}</mrow>")
    match operator:
        case ast.Add():
            return row.format(left[0], Markup("<mo>+</mo>"), _at_least(right, _PRODUCT)), _SUM
        case ast.Sub():
            return row.format(left[0], _MINUS, _at_least(right, _PRODUCT)), _SUM
        case ast.Mult():
            sign = _DOT if _begins_with_digit(node) else _TIMES
            factors = _at_least(left, _PRODUCT), sign, _at_least(right, _PRODUCT)
            return row.format(*factors), _PRODUCT
        case ast.Div():
            return Markup("<mfrac>{}{}</mfrac>").format(left[0], right[0]), _PRODUCT
        case ast.Pow():
            base = _at_least(left, _ATOM)
            return Markup("<msup>{}{}</msup>").format(base, right[0]), _POWER
    raise ValueError(f"{type(operator).__name__} is not an operator of a formula")


def _call(name: str, argument: _Set, depth: int) -> _Set:
    if name == "exp":
        return Markup("<msup><mi>e</mi>{}</msup>").format(argument[0]), _POWER
    if name == "sqrt":
        return Markup("<msqrt>{}</msqrt>").format(argument[0]), _ATOM
    if name in ("abs", "Abs"):
        return Markup("<mrow><mo>|</mo>{}<mo>|</mo></mrow>").format(argument[0]), _ATOM
    if name in _EXPANDED:
        return _set(ast.parse(_EXPANDED[name], mode="eval").body, {"u": argument}, depth + 1)
    said = _FUNCTIONS.get(name, name)
    upright = Markup("<mi>{}</mi>" if len(said) == 1 else "<mi mathvariant='normal'>{}</mi>")
    bracket = _brackets(argument[0])
    return Markup("<mrow>{}{}{}</mrow>").format(upright.format(said), _APPLY, bracket), _ATOM


def _at_least(part: _Set, level: int) -> Markup:
    return part[0] if part[1] >= level else _brackets(part[0])


def _brackets(inner: Markup) -> Markup:
    return Markup("<mrow><mo>(</mo>{}<mo>)</mo></mrow>").format(inner)


def _name(name: str) -> Markup:
    stem, _, index = name.partition("_")
    if not index and (numbered := re.fullmatch(r"([A-Za-z]+)([0-9]+)", name)):
        stem, index = numbered.groups()
    said = Markup("<mi>{}</mi>").format(_GREEK.get(stem, stem))
    if not index:
        return said
    return Markup("<msub>{}<mi>{}</mi></msub>").format(said, index.replace("_", ","))


def _begins_with_digit(node: ast.expr) -> bool:
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow):
        node = node.left
    return isinstance(node, ast.Constant)


def _digits(value: float) -> str:
    text = repr(value)
    mantissa, exponent, power = text.partition("e")
    return str(escape(f"{mantissa}×10^{int(power)}")) if exponent else text
