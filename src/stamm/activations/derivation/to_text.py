"""Converts SymPy expressions back to the formula language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy import Expr
from sympy.printing.str import StrPrinter

from stamm.activations.derivation.primitives import (
    PRIMITIVES,
    cauchy_cdf,
    cauchy_odd,
    cauchy_pdf,
    cauchy_slope,
    expm1,
    logistic_odd,
    normal_odd,
    phi2,
)
from stamm.activations.spec.expressions import CONSTANTS, FUNCTIONS, parse
from stamm.base.errors import ConfigError

# Functions of derived formulas that the language lacks, written with functions that it has.
_SPELLED: Mapping[Any, Callable[[Expr], Expr]] = {
    phi2: lambda u: expm1(u) - u,
    logistic_odd: lambda u: sympy.tanh(u / 2) / 2,
    normal_odd: lambda u: sympy.erf(u / sympy.sqrt(2)) / 2,
    cauchy_odd: lambda u: sympy.atan(u) / sympy.pi,
    cauchy_slope: lambda u: cauchy_cdf(u) + u * cauchy_pdf(u),
    sympy.tan: lambda u: sympy.sin(u) / sympy.cos(u),
    sympy.sech: lambda u: 1 / sympy.cosh(u),
    sympy.acosh: lambda u: sympy.log(u + sympy.sqrt(u**2 - 1)),
    sympy.acos: lambda u: sympy.pi / 2 - sympy.asin(u),
}
_RENAMED = {"Abs": "abs", "absolute": "abs", "signum": "sign"}


class _LanguagePrinter(StrPrinter):  # type: ignore[misc]  # SymPy carries no types
    """SymPy's own linear notation, with the names that the language has."""

    def _print_Exp1(self, expr: Expr) -> str:  # noqa: N802  # SymPy chooses the name
        return "exp(1)"

    def _print_Float(self, expr: Expr) -> str:  # noqa: N802
        return repr(float(expr))

    def _print_Function(self, expr: Expr) -> str:  # noqa: N802
        name = type(expr).__name__
        return f"{_RENAMED.get(name, name)}({self.stringify(expr.args, ', ')})"

    _print_Abs = _print_Function


def to_text(expression: Expr, *, where: str = "") -> str:
    """The expression as a formula of the language; `to_sympy` reads it back as an equal one.

    Raises   ConfigError that names what the language cannot express, such as an unsolved
             integral, or when the formula is longer than the language allows.
    Checked  tests/unit/activations/test_transforms.py::test_formulas_survive_being_written
    """
    for function, spelled in _SPELLED.items():
        expression = expression.replace(function, spelled)
    for made in PRIMITIVES:
        if _RENAMED.get(made.__name__, made.__name__) not in FUNCTIONS:
            expression = expression.replace(made, made.definition)
    for part in expression.atoms(sympy.Function):
        name = type(part).__name__
        if _RENAMED.get(name, name) not in FUNCTIONS:
            raise ConfigError(
                f"the formula language has no {name}, which occurs in {expression}",
                where=where,
                fix="State the gradient of the result by hand",
            )
    if expression.has(sympy.nan, sympy.oo, sympy.zoo, sympy.I):
        raise ConfigError(f"{expression} is not a real formula", where=where)
    for symbol in expression.free_symbols:
        if symbol.name in FUNCTIONS or symbol.name in CONSTANTS:
            raise ConfigError(f"{symbol.name!r} names a function, not a number", where=where)
    text: str = _LanguagePrinter().doprint(expression)
    parse(text, where=where)
    return text
