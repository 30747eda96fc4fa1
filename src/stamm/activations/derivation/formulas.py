"""Data of a derivation: branches of a piecewise function, and everything derived from a Spec."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mpmath
import sympy
from sympy import Expr, Rational, Symbol

from stamm.activations.derivation.primitives import PRIMITIVES, Primitive, X, bounded_exp
from stamm.activations.spec import Spec
from stamm.activations.spec.expressions import VARIABLE, interpret
from stamm.base.errors import ConfigError, StammError, visible


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A formula for low < x <= high; `low_closed` and `high_closed` mark the ends that it owns.

    low and high are SymPy expressions in the parameters, or minus and plus infinity.
    """

    low: Expr
    low_closed: bool
    high: Expr
    high_closed: bool
    formula: Expr


Branches = tuple[Branch, ...]


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
class FactorFormulas:
    """A function of one variable without trainable parameters, and two derivatives."""

    function: Branches
    slope: Branches
    curvature: Branches


@dataclass(frozen=True, kw_only=True)
class Integrand:
    """A gradient whose integral is a table that each call makes.

    kind          its `ParametricIntegral`
    branches      the gradient in a form that keeps its digits
    left, right   the cells on either side of the origin, as keywords of `primitives.Side`
    """

    kind: Any
    branches: Branches
    left: dict[str, Any]
    right: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Derived:
    """Everything derived from a Spec.

    exact       formulas as integrated: right to any precision, but they may cancel
    stable      the same functions in forms that keep their digits in floating point
    surrogate   s that the backward pass uses instead of f', where the spec declares one: s, ds/dx,
                then ds/dp for each trainable parameter
    integrands  the gradients of integrals that are tables made in each call
    up          h(up) of a gated spec, where it is not the input itself; stable forms
    """

    spec: Spec
    exact: Formulas
    stable: Formulas
    surrogate: tuple[Branches, ...] | None = None
    up: FactorFormulas | None = None
    integrands: tuple[Integrand, ...] = ()


def bounds(branch: Branch, values: Mapping[str, float]) -> tuple[Any, Any]:
    """The ends of a branch as numbers, at the given parameter values."""
    return end_value(branch.low, values), end_value(branch.high, values)


def end_value(end: Expr, values: Mapping[str, float]) -> Any:
    """One end of a branch as a number, at the given parameter values."""
    if end in (sympy.oo, -sympy.oo):
        return mpmath.inf if end > 0 else -mpmath.inf
    return number(end, values)


@contextmanager
def refused_in_one_line(spec: Spec, step: str) -> Iterator[None]:
    """Turns an exception of SymPy, mpmath or stamm itself into one line that names the gradient.

    step     what was being done, as in "integrated" or "compared with the integral at a = 2"
    Raises   ConfigError, with the exception as its cause; a StammError or OSError passes as it is.
    """
    try:
        yield
    except (StammError, OSError):
        raise
    except Exception as error:
        stated = "; ".join(f"{piece.where}: {piece.formula}" for piece in spec.pieces)
        reason = visible(f"{type(error).__name__} {error}".strip(), 160)
        raise ConfigError(
            f"{visible(stated, 200)!r} cannot be {step}: {reason}",
            where=spec.where,
            fix="State the gradient in another form, on two pieces, or with its known integral",
        ) from error


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
