"""The named functions that derived formulas are made of, as SymPy functions, and their truth.

Each knows its definition by elementary functions, its derivative by other primitives, and its
value to any precision. `emit` knows how each is computed without cancellation.
"""

# ruff: noqa: N801  (SymPy functions are classes that carry the function's name)

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import mpmath
import sympy
from sympy import Expr, Function, Rational, Symbol

from stamm.activations.expressions import VARIABLE

X = Symbol(VARIABLE, real=True)


class Primitive(Function):  # type: ignore[misc]  # SymPy carries no types
    """A real function of one argument with a definition by elementary functions."""

    nargs = 1

    @staticmethod
    def definition(u: Expr) -> Expr:
        """The function by elementary functions."""
        raise NotImplementedError

    @staticmethod
    def value(u: Any) -> Any:
        """The function at an mpmath number, to the working precision, without cancellation."""
        raise NotImplementedError

    def _eval_is_extended_real(self) -> bool:
        return True


class expm1(Primitive):
    """exp(u) - 1."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """exp(u)."""
        return sympy.exp(self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """exp(u) - 1."""
        return sympy.exp(u) - 1

    @staticmethod
    def value(u: Any) -> Any:
        """exp(u) - 1."""
        return mpmath.expm1(u)


class phi2(Primitive):
    """exp(u) - 1 - u: what an exponential branch adds to its tangent. Never negative."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """expm1(u)."""
        return expm1(self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """exp(u) - 1 - u."""
        return sympy.exp(u) - 1 - u

    @staticmethod
    def value(u: Any) -> Any:
        """exp(u) - 1 - u, the digits that cancel added to the working precision."""
        lost = max(0, -int(mpmath.mag(u))) if u else 0
        with mpmath.workprec(mpmath.mp.prec + 2 * lost + 10):
            result = mpmath.expm1(u) - u
        return +result


class logistic(Primitive):
    """1/(1 + exp(-u))."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """logistic(u) logistic(-u)."""
        return logistic(self.args[0]) * logistic(-self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """1/(1 + exp(-u))."""
        return 1 / (1 + sympy.exp(-u))

    @staticmethod
    def value(u: Any) -> Any:
        """1/(1 + exp(-u))."""
        return 1 / (1 + mpmath.exp(-u))


class normal_pdf(Primitive):
    """exp(-u**2/2)/sqrt(2 pi)."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """-u normal_pdf(u)."""
        return -self.args[0] * normal_pdf(self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """exp(-u**2/2)/sqrt(2 pi)."""
        return sympy.exp(-(u**2) / 2) / sympy.sqrt(2 * sympy.pi)

    @staticmethod
    def value(u: Any) -> Any:
        """exp(-u**2/2)/sqrt(2 pi)."""
        return mpmath.npdf(u)


class normal_cdf(Primitive):
    """(1 + erf(u/sqrt 2))/2."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """normal_pdf(u)."""
        return normal_pdf(self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """(1 + erf(u/sqrt 2))/2."""
        return (1 + sympy.erf(u / sympy.sqrt(2))) / 2

    @staticmethod
    def value(u: Any) -> Any:
        """erfc(-u/sqrt 2)/2, which keeps its digits in the lower tail."""
        return mpmath.erfc(-u / mpmath.sqrt(2)) / 2


class cauchy_pdf(Primitive):
    """1/(pi (1 + u**2))."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """-2 pi u cauchy_pdf(u)**2."""
        return -2 * sympy.pi * self.args[0] * cauchy_pdf(self.args[0]) ** 2

    @staticmethod
    def definition(u: Expr) -> Expr:
        """1/(pi (1 + u**2))."""
        return 1 / (sympy.pi * (1 + u**2))

    @staticmethod
    def value(u: Any) -> Any:
        """1/(pi (1 + u**2))."""
        return 1 / (mpmath.pi * (1 + u * u))


class cauchy_cdf(Primitive):
    """atan(u)/pi + 1/2."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """cauchy_pdf(u)."""
        return cauchy_pdf(self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """atan(u)/pi + 1/2."""
        return sympy.atan(u) / sympy.pi + Rational(1, 2)

    @staticmethod
    def value(u: Any) -> Any:
        """atan2(1, -u)/pi, which keeps its digits in the lower tail."""
        return mpmath.atan2(1, -u) / mpmath.pi


class cauchy_slope(Primitive):
    """cauchy_cdf(u) + u cauchy_pdf(u): the slope of u cauchy_cdf(u), whose two terms cancel."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """2 pi cauchy_pdf(u)**2."""
        return 2 * sympy.pi * cauchy_pdf(self.args[0]) ** 2

    @staticmethod
    def definition(u: Expr) -> Expr:
        """atan(u)/pi + 1/2 + u/(pi (1 + u**2))."""
        return cauchy_cdf.definition(u) + u * cauchy_pdf.definition(u)

    @staticmethod
    def value(u: Any) -> Any:
        """The sum, the digits that cancel added to the working precision."""
        lost = max(0, 2 * int(mpmath.mag(u))) if u < 0 else 0
        with mpmath.workprec(mpmath.mp.prec + lost + 10):
            result = cauchy_cdf.value(u) + u * cauchy_pdf.value(u)
        return +result


class softplus(Primitive):
    """log(1 + exp(u))."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """logistic(u)."""
        return logistic(self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """log(1 + exp(u))."""
        return sympy.log(1 + sympy.exp(u))

    @staticmethod
    def value(u: Any) -> Any:
        """max(u, 0) + log(1 + exp(-|u|))."""
        return max(u, 0) + mpmath.log1p(mpmath.exp(-abs(u)))


class logistic_odd(Primitive):
    """logistic(u) - 1/2 = tanh(u/2)/2."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """logistic(u) logistic(-u)."""
        return logistic(self.args[0]) * logistic(-self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """tanh(u/2)/2."""
        return sympy.tanh(u / 2) / 2

    @staticmethod
    def value(u: Any) -> Any:
        """tanh(u/2)/2."""
        return mpmath.tanh(u / 2) / 2


class normal_odd(Primitive):
    """normal_cdf(u) - 1/2 = erf(u/sqrt 2)/2."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """normal_pdf(u)."""
        return normal_pdf(self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """erf(u/sqrt 2)/2."""
        return sympy.erf(u / sympy.sqrt(2)) / 2

    @staticmethod
    def value(u: Any) -> Any:
        """erf(u/sqrt 2)/2."""
        return mpmath.erf(u / mpmath.sqrt(2)) / 2


class cauchy_odd(Primitive):
    """cauchy_cdf(u) - 1/2 = atan(u)/pi."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """cauchy_pdf(u)."""
        return cauchy_pdf(self.args[0])

    @staticmethod
    def definition(u: Expr) -> Expr:
        """atan(u)/pi."""
        return sympy.atan(u) / sympy.pi

    @staticmethod
    def value(u: Any) -> Any:
        """atan(u)/pi."""
        return mpmath.atan(u) / mpmath.pi


PRIMITIVES: tuple[type[Primitive], ...] = (
    expm1,
    phi2,
    logistic,
    normal_pdf,
    normal_cdf,
    cauchy_pdf,
    cauchy_cdf,
    cauchy_slope,
    softplus,
    logistic_odd,
    normal_odd,
    cauchy_odd,
)
_NAMED: Mapping[str, Any] = {
    **{primitive.__name__: primitive for primitive in PRIMITIVES},
    "exp": sympy.exp,
    "log": sympy.log,
    "sqrt": sympy.sqrt,
    "tanh": sympy.tanh,
    "atan": sympy.atan,
    "erf": sympy.erf,
}


def to_sympy(tree: ast.expr, parameters: Mapping[str, Symbol]) -> Expr:
    """The SymPy expression of a formula that `expressions.parse` has accepted.

    Decimal numbers are exact: 0.1 is one tenth.
    """
    match tree:
        case ast.Constant(value=number):
            return Rational(str(number))
        case ast.Name(id=name):
            return X if name == VARIABLE else sympy.pi if name == "pi" else parameters[name]
        case ast.UnaryOp(op=operator, operand=operand):
            inner = to_sympy(operand, parameters)
            return -inner if isinstance(operator, ast.USub) else inner
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = to_sympy(left, parameters), to_sympy(right, parameters)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a / b
            return a**b
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            return _NAMED[name](to_sympy(argument, parameters))
    raise TypeError(f"{ast.dump(tree)} is not part of a parsed formula")


def elementary(expression: Expr) -> Expr:
    """The expression with every primitive replaced by its definition."""
    for primitive in PRIMITIVES:
        expression = expression.replace(primitive, primitive.definition)
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
        return expression.value(parts[0])
    return _MPMATH[type(expression)](*parts)


_MPMATH: Mapping[Any, Any] = {
    sympy.exp: mpmath.exp,
    sympy.log: mpmath.log,
    sympy.tanh: mpmath.tanh,
    sympy.atan: mpmath.atan,
    sympy.erf: mpmath.erf,
    sympy.erfc: mpmath.erfc,
    sympy.Abs: abs,
    sympy.sinh: mpmath.sinh,
    sympy.cosh: mpmath.cosh,
    sympy.asinh: mpmath.asinh,
    sympy.acosh: mpmath.acosh,
}
