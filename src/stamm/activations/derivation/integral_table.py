"""Table of known antiderivatives, and rewriting of gradients into the forms it lists.

In each row the integral of the first formula in u is the second. A term of a gradient matches
a row when it is a factor free of x times the first formula at u = a x + b; the integral is then
the second formula at that u, times the factor, over a.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy
from sympy import Expr, Rational, Symbol, Wild

from stamm.activations.derivation.primitives import (
    X,
    absolute,
    cauchy_cdf,
    expm1,
    gompertz,
    log1p,
    logistic,
    normal_cdf,
    normal_pdf,
    signum,
    softplus,
)
from stamm.activations.derivation.special import (
    gompertz_integral,
    log_cosh,
    logistic_moment,
    mish_gate_integral,
    softplus_integral,
)

U = Symbol("u", real=True)
_HALF = Rational(1, 2)
_ROOT = sympy.sqrt(1 + U**2)

ROWS: tuple[tuple[Expr, Expr], ...] = (
    # Gates and their like
    (softplus(U), softplus_integral(U)),
    (U * logistic(U), logistic_moment(U)),
    (gompertz(U), gompertz_integral(U)),
    (normal_cdf(U), U * normal_cdf(U) + normal_pdf(U)),
    (sympy.erf(U), U * sympy.erf(U) + sympy.exp(-(U**2)) / sympy.sqrt(sympy.pi)),
    (sympy.erfc(U), U * sympy.erfc(U) - sympy.exp(-(U**2)) / sympy.sqrt(sympy.pi)),
    (sympy.tanh(U), log_cosh(U)),
    (sympy.tanh(softplus(U)), mish_gate_integral(U)),
    (cauchy_cdf(U), U * cauchy_cdf(U) - log1p(U**2) / (2 * sympy.pi)),
    (sympy.atan(U), U * sympy.atan(U) - log1p(U**2) / 2),
    (sympy.asinh(U), U * sympy.asinh(U) - _ROOT),
    (sympy.exp(-(U**2)), sympy.sqrt(sympy.pi) / 2 * sympy.erf(U)),
    (sympy.cosh(U) ** -2, sympy.tanh(U)),
    # Logarithms and roots
    (log1p(U), (1 + U) * log1p(U) - U),
    (sympy.log(U), U * sympy.log(U) - U),
    (log1p(U**2), U * log1p(U**2) - 2 * U + 2 * sympy.atan(U)),
    (_ROOT, (U * _ROOT + sympy.asinh(U)) / 2),
    (1 / _ROOT, sympy.asinh(U)),
    (U / _ROOT, _ROOT),
    (_ROOT**-3, U / _ROOT),
    # Quotients
    (1 / (1 + U**2), sympy.atan(U)),
    (U / (1 + U**2), log1p(U**2) / 2),
    (1 / (1 + U), log1p(U)),
    (U / (1 + U), U - log1p(U)),
    ((1 + U) ** -2, U / (1 + U)),
    # Absolute values
    (absolute(U), U * absolute(U) / 2),
    (signum(U), absolute(U)),
    (U * absolute(U), U**2 * absolute(U) / 3),
    (1 / (1 + absolute(U)), signum(U) * log1p(absolute(U))),
    (U / (1 + absolute(U)), absolute(U) - log1p(absolute(U))),
    ((1 + absolute(U)) ** -2, U / (1 + absolute(U))),
)

# Integrals that are not elementary, of terms that may have an elementary one together with others.
LAST_ROWS: tuple[tuple[Expr, Expr], ...] = (
    (U * sympy.tanh(U), logistic_moment(2 * U) / 2 - U**2 / 2),
)


def known_antiderivative(term: Expr, rows: tuple[tuple[Expr, Expr], ...] = ROWS) -> Expr | None:
    """The integral of one term by the library, or None.

    Checked  tests/unit/activations/test_integrate.py
    """
    factor, rest = term.as_independent(X, as_Add=False)
    for argument in _arguments(rest):
        scale = sympy.diff(argument, X)
        placed = rest.xreplace({argument: U}) if argument != X else rest.xreplace({X: U})
        # What is left of x beside the argument is a power of it: x**k = ((u - b)/a)**k.
        if placed.has(X):
            placed = sympy.expand(placed.xreplace({X: (U - argument.subs(X, 0)) / scale}))
            if placed.is_Add:
                continue
        extra, core = placed.as_independent(U, as_Add=False)
        for formula, integral in rows:
            if core == formula:
                return factor * extra * integral.xreplace({U: argument}) / scale
    if rest.is_Pow and not rest.exp.has(X) and _is_affine(rest.base):
        return factor * _power(rest.base, rest.exp)
    return None


def respelled(gradient: Expr) -> Expr:
    """The gradient with 1/(1 + exp(u)), log(1 + exp(u)), log(1 + u) and exp(-exp(-u)) by their names."""
    part = Wild("part")
    return (
        gradient.replace(_is_logarithm_of_quotient, lambda f: sympy.expand_log(f, force=True))
        .replace(_is_half_beside_angle, _as_cauchy_cdf)
        .replace(_is_logarithm_beside_one, lambda f: log1p(f.args[0] - 1))
        .replace(log1p(sympy.exp(part)), lambda part: softplus(part))
        .replace(_is_inverse_of_one_and_exponential, _as_logistic)
        .replace(expm1, lambda u: sympy.exp(u) - 1)
        .replace(_is_double_exponential, lambda part: gompertz(-(-part.args[0]).args[0]))
    )


def _power(base: Expr, exponent: Expr) -> Expr:
    scale = sympy.diff(base, X)
    if exponent == -1:
        return sympy.log(base) / scale
    return base ** (exponent + 1) / (exponent + 1) / scale


def _is_affine(expression: Expr) -> bool:
    return bool(expression.is_polynomial(X)) and sympy.degree(expression, X) == 1


def _arguments(rest: Expr) -> Iterator[Expr]:
    """Candidates for u: x, the affine arguments of functions, and the roots of squares."""
    yield X
    found = {part.args[0] for part in rest.atoms(sympy.Function)}
    found |= {part for inner in found for part in _affine_parts(inner)}
    found |= {part for power in rest.atoms(sympy.Pow) for part in _affine_parts(power.base - 1)}
    for argument in sorted(found - {X}, key=sympy.default_sort_key):
        if _is_affine(argument):
            yield argument


def _affine_parts(inner: Expr) -> Iterator[Expr]:
    """u from u, and from u**2 and -u**2 written as a multiple of x**2."""
    yield inner
    square = sympy.Abs(inner.coeff(X, 2)) if inner.is_polynomial(X) else sympy.S.Zero
    if square.is_positive and square != 1:
        yield sympy.sqrt(square) * X


def _is_logarithm_of_quotient(part: Expr) -> bool:
    """log of a product or quotient of sums of exponentials, each of them positive."""
    if not (isinstance(part, sympy.log) and part.args[0].is_Mul):
        return False
    bases = [factor.as_base_exp()[0] for factor in part.args[0].args]
    return all(base.is_positive for base in bases) and any(b.is_Add for b in bases)


def _is_half_beside_angle(part: Expr) -> bool:
    if not (part.is_Add and len(part.args) == 2 and part.args[0] == _HALF):
        return False
    return isinstance(part.args[1] * sympy.pi, sympy.atan)


def _as_cauchy_cdf(part: Expr) -> Expr:
    return cauchy_cdf((part.args[1] * sympy.pi).args[0])


def _is_logarithm_beside_one(part: Expr) -> bool:
    return isinstance(part, sympy.log) and part.args[0].is_Add and 1 in part.args[0].args


def _is_inverse_of_one_and_exponential(part: Expr) -> bool:
    if not (part.is_Pow and part.exp.is_Integer and part.exp < 0 and part.base.is_Add):
        return False
    rest = part.base - 1
    return isinstance(rest, sympy.exp)


def _is_double_exponential(part: Expr) -> bool:
    return isinstance(part, sympy.exp) and isinstance(-part.args[0], sympy.exp)


def _as_logistic(part: Expr) -> Expr:
    return logistic(-(part.base - 1).args[0]) ** (-part.exp)
