"""Converts the formula language to SymPy, and SymPy expressions to numbers of any precision."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import mpmath
import sympy
from sympy import Expr, Rational, Symbol

from stamm.activations.derivation.primitives import PRIMITIVES, Primitive, X, bounded_exp
from stamm.activations.spec.expressions import VARIABLE, interpret

_SPELLED = {"absolute": "abs", "signum": "sign"}  # their names in the formula language
_NAMED: Mapping[str, Any] = {
    **{_SPELLED.get(made.__name__, made.__name__): made for made in PRIMITIVES},
    "exp": sympy.exp,
    "log": sympy.log,
    "sqrt": sympy.sqrt,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "asin": sympy.asin,
    "atan": sympy.atan,
    "sinh": sympy.sinh,
    "cosh": sympy.cosh,
    "tanh": sympy.tanh,
    "asinh": sympy.asinh,
    "erf": sympy.erf,
    "erfc": sympy.erfc,
}
_MPMATH: Mapping[Any, Any] = {
    sympy.exp: bounded_exp,
    sympy.log: mpmath.log,
    sympy.sin: mpmath.sin,
    sympy.cos: mpmath.cos,
    sympy.tan: mpmath.tan,
    sympy.asin: mpmath.asin,
    sympy.atan: mpmath.atan,
    sympy.sinh: mpmath.sinh,
    sympy.cosh: mpmath.cosh,
    sympy.tanh: mpmath.tanh,
    sympy.asinh: mpmath.asinh,
    sympy.acosh: mpmath.acosh,
    sympy.erf: mpmath.erf,
    sympy.erfc: mpmath.erfc,
    sympy.Abs: abs,
    sympy.sign: mpmath.sign,
}


def to_sympy(tree: ast.expr, parameters: Mapping[str, Symbol]) -> Expr:
    """The SymPy expression of a formula that `expressions.parse` has accepted.

    Decimal numbers are exact: 0.1 is one tenth.
    """

    def leaf(node: ast.Constant | ast.Name) -> Expr:
        if isinstance(node, ast.Constant):
            return Rational(str(node.value))
        if node.id == VARIABLE:
            return X
        return sympy.pi if node.id == "pi" else parameters[node.id]

    return interpret(tree, leaf, lambda name, argument: _NAMED[name](argument))


def elementary(expression: Expr) -> Expr:
    """The expression with every primitive replaced by its definition."""
    for made in PRIMITIVES:
        expression = expression.replace(made, made.definition)
    return expression


def number(expression: Expr, values: Mapping[str, Any]) -> Any:
    """The expression's value as an mpmath number at the working precision.

    values   by symbol name, `x` among them
    """
    if expression.is_Symbol:
        return mpmath.mpf(values[expression.name])
    if expression.is_Rational:
        return mpmath.mpf(int(expression.p)) / int(expression.q)
    if not expression.args:
        return expression._to_mpmath(mpmath.mp.prec)
    parts = [number(part, values) for part in expression.args]
    if expression.is_Add:
        return mpmath.fsum(parts)
    if expression.is_Mul:
        return mpmath.fprod(parts)
    return applied(expression, parts)


def applied(expression: Expr, parts: Sequence[Any]) -> Any:
    """The value of a power or function from the values of its arguments, as mpmath numbers."""
    if expression.is_Pow:
        power = int(expression.exp) if expression.exp.is_Integer else parts[1]
        return parts[0] ** power
    if isinstance(expression, Primitive):
        return type(expression).value(*parts)
    return _MPMATH[type(expression)](*parts)
