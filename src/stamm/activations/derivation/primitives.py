"""Primitives: the named functions in derived formulas, as SymPy functions.

Each has its definition by elementary functions, its derivative by other primitives, and its value
to any precision without cancellation. `codegen` has the code that computes each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import sympy
from sympy import Expr, Function, Rational, Symbol

from stamm.activations.spec.expressions import VARIABLE

X = Symbol(VARIABLE, real=True)
GOMPERTZ_VANISHED = -1e3  # the exponent of exp(-exp(1000)) alone has 434 digits
_HALF = Rational(1, 2)
_FAR = 1e9  # mpmath evaluates erfc up to 1e154 only


class Primitive(Function):  # type: ignore[misc]  # SymPy carries no types
    """A real function of one argument, with a definition by elementary functions if it has one.

    slope        u -> the derivative, in primitives
    definition   u -> the function by elementary functions; itself, where there is no such form
    value        mpmath number -> the function, to the working precision
    """

    nargs = 1
    slope: Callable[[Expr], Expr]
    definition: Callable[[Expr], Expr]
    value: Callable[[Any], Any]

    def fdiff(self, argindex: int = 1) -> Expr:
        """The derivative at the argument."""
        return type(self).slope(self.args[0])

    def _eval_is_extended_real(self) -> bool:
        return True

    def _eval_mpmath(self) -> tuple[Callable[[Any], Any], tuple[Expr, ...]]:
        return lambda u: type(self).value(mpmath.mpmathify(u)), self.args


PRIMITIVES: list[type[Primitive]] = []


def primitive(
    name: str,
    formula: str,
    *,
    slope: Callable[[Expr], Expr],
    definition: Callable[[Expr], Expr],
    value: Callable[[Any], Any],
) -> type[Primitive]:
    """Define a primitive, document it with its `formula`, and list it."""
    members = {
        "__doc__": formula,
        "slope": staticmethod(slope),
        "definition": staticmethod(definition),
        "value": staticmethod(value),
    }
    made: type[Primitive] = type(name, (Primitive,), members)
    PRIMITIVES.append(made)
    return made


def bounded_exp(u: Any) -> Any:
    """exp(u), 0 or infinity where |u| is beyond 1e9: no format holds it, and mpmath never finishes."""
    if abs(u) > _FAR:
        return mpmath.mpf(0) if u < 0 else mpmath.inf
    return mpmath.exp(u)


def _bounded_expm1(u: Any) -> Any:
    return mpmath.expm1(u) if abs(u) <= _FAR else bounded_exp(u) - 1


def with_digits(lost: int, function: Callable[[], Any]) -> Any:
    """function() with `lost` more bits of working precision, rounded to the present one."""
    with mpmath.workprec(mpmath.mp.prec + max(0, lost) + 10):
        result = function()
    return +result


def _exponential_remainder(u: Any) -> Any:
    lost = -2 * int(mpmath.mag(u)) if u else 0
    return with_digits(lost, lambda: _bounded_expm1(u) - u)


def _gompertz(u: Any) -> Any:
    return mpmath.mpf(0) if u < GOMPERTZ_VANISHED else mpmath.exp(-mpmath.exp(-u))


def _gompertz_pdf(u: Any) -> Any:
    return mpmath.mpf(0) if u < GOMPERTZ_VANISHED else mpmath.exp(-u - mpmath.exp(-u))


def _cauchy_slope(u: Any) -> Any:
    lost = 2 * int(mpmath.mag(u)) if u < 0 else 0
    return with_digits(lost, lambda: cauchy_cdf.value(u) + u * cauchy_pdf.value(u))


def _far(u: Any) -> Any:
    """The normal distribution function where it is 0 or 1 beyond any precision."""
    return mpmath.mpf(1 if u > 0 else 0)


# Exponentials -------------------------------------------------------------------------------------
expm1: type[Primitive] = primitive(
    "expm1",
    "exp(u) - 1",
    slope=lambda u: sympy.exp(u),
    definition=lambda u: sympy.exp(u) - 1,
    value=_bounded_expm1,
)
phi2: type[Primitive] = primitive(
    "phi2",
    "exp(u) - 1 - u: what an exponential branch adds to its tangent. Never negative",
    slope=lambda u: expm1(u),
    definition=lambda u: sympy.exp(u) - 1 - u,
    value=_exponential_remainder,
)
log1p: type[Primitive] = primitive(
    "log1p",
    "log(1 + u)",
    slope=lambda u: 1 / (1 + u),
    definition=lambda u: sympy.log(1 + u),
    value=mpmath.log1p,
)
softplus: type[Primitive] = primitive(
    "softplus",
    "log(1 + exp(u))",
    slope=lambda u: logistic(u),
    definition=lambda u: sympy.log(1 + sympy.exp(u)),
    value=lambda u: max(u, 0) + mpmath.log1p(bounded_exp(-abs(u))),
)

# Gates, their densities, and their excess over 1/2 ----------------------------------------------
logistic: type[Primitive] = primitive(
    "logistic",
    "1/(1 + exp(-u))",
    slope=lambda u: logistic(u) * logistic(-u),
    definition=lambda u: 1 / (1 + sympy.exp(-u)),
    value=lambda u: 1 / (1 + bounded_exp(-u)),
)
logistic_odd: type[Primitive] = primitive(
    "logistic_odd",
    "logistic(u) - 1/2 = tanh(u/2)/2",
    slope=lambda u: logistic(u) * logistic(-u),
    definition=lambda u: sympy.tanh(u / 2) / 2,
    value=lambda u: mpmath.tanh(u / 2) / 2,
)
normal_pdf: type[Primitive] = primitive(
    "normal_pdf",
    "exp(-u**2/2)/sqrt(2 pi)",
    slope=lambda u: -u * normal_pdf(u),
    definition=lambda u: sympy.exp(-(u**2) / 2) / sympy.sqrt(2 * sympy.pi),
    value=mpmath.npdf,
)
normal_cdf: type[Primitive] = primitive(
    "normal_cdf",
    "(1 + erf(u/sqrt 2))/2, valued as erfc(-u/sqrt 2)/2, which keeps its digits in the lower tail",
    slope=lambda u: normal_pdf(u),
    definition=lambda u: (1 + sympy.erf(u / sympy.sqrt(2))) / 2,
    value=lambda u: _far(u) if abs(u) > _FAR else mpmath.erfc(-u / mpmath.sqrt(2)) / 2,
)
normal_odd: type[Primitive] = primitive(
    "normal_odd",
    "normal_cdf(u) - 1/2 = erf(u/sqrt 2)/2",
    slope=lambda u: normal_pdf(u),
    definition=lambda u: sympy.erf(u / sympy.sqrt(2)) / 2,
    value=lambda u: (
        _far(u) - mpmath.mpf(0.5) if abs(u) > _FAR else mpmath.erf(u / mpmath.sqrt(2)) / 2
    ),
)
cauchy_pdf: type[Primitive] = primitive(
    "cauchy_pdf",
    "1/(pi (1 + u**2))",
    slope=lambda u: -2 * sympy.pi * u * cauchy_pdf(u) ** 2,
    definition=lambda u: 1 / (sympy.pi * (1 + u**2)),
    value=lambda u: 1 / (mpmath.pi * (1 + u * u)),
)
cauchy_cdf: type[Primitive] = primitive(
    "cauchy_cdf",
    "atan(u)/pi + 1/2, valued as atan2(1, -u)/pi, which keeps its digits in the lower tail",
    slope=lambda u: cauchy_pdf(u),
    definition=lambda u: sympy.atan(u) / sympy.pi + _HALF,
    value=lambda u: mpmath.atan2(1, -u) / mpmath.pi,
)
cauchy_odd: type[Primitive] = primitive(
    "cauchy_odd",
    "cauchy_cdf(u) - 1/2 = atan(u)/pi",
    slope=lambda u: cauchy_pdf(u),
    definition=lambda u: sympy.atan(u) / sympy.pi,
    value=lambda u: mpmath.atan(u) / mpmath.pi,
)
cauchy_slope: type[Primitive] = primitive(
    "cauchy_slope",
    "cauchy_cdf(u) + u cauchy_pdf(u): the slope of u cauchy_cdf(u), whose two terms cancel",
    slope=lambda u: 2 * sympy.pi * cauchy_pdf(u) ** 2,
    definition=lambda u: cauchy_cdf.definition(u) + u * cauchy_pdf.definition(u),
    value=_cauchy_slope,
)
gompertz: type[Primitive] = primitive(
    "gompertz",
    "exp(-exp(-u)), the Gumbel distribution function",
    slope=lambda u: gompertz_pdf(u),
    definition=lambda u: sympy.exp(-sympy.exp(-u)),
    value=_gompertz,
)
gompertz_pdf: type[Primitive] = primitive(
    "gompertz_pdf",
    "exp(-u - exp(-u)), the Gumbel density: one exponential, which cannot meet its own overflow",
    slope=lambda u: gompertz_pdf_rise(u) - gompertz_pdf(u),
    definition=lambda u: sympy.exp(-u - sympy.exp(-u)),
    value=_gompertz_pdf,
)

gompertz_pdf_rise: type[Primitive] = primitive(
    "gompertz_pdf_rise",
    "exp(-2 u - exp(-u)): by how much the Gumbel density's slope exceeds minus the density",
    slope=lambda u: gompertz_pdf_rise(u) * (sympy.exp(-u) - 2),
    definition=lambda u: sympy.exp(-2 * u - sympy.exp(-u)),
    value=lambda u: bounded_exp(-2 * u - bounded_exp(-u)),
)

# Absolute value, with derivatives that are numbers everywhere -------------------------------------
absolute: type[Primitive] = primitive(
    "absolute",
    "|u|",
    slope=lambda u: signum(u),
    definition=lambda u: sympy.Abs(u),
    value=mpmath.fabs,
)
signum: type[Primitive] = primitive(
    "signum",
    "-1, 0 or 1; its derivative is taken to be 0 everywhere",
    slope=lambda u: sympy.S.Zero,
    definition=lambda u: sympy.sign(u),
    value=mpmath.sign,
)
