"""Antiderivatives of gradient pieces: a closed form, a table, or an error that names the obstacle.

Methods, in order: the given antiderivative; undetermined coefficients; term by term, the table of
known ones; SymPy's integrator, with a limit of CPU time; a numerical table of the rest. Every result is
differentiated again and compared with the gradient to 30 digits.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import mpmath
import sympy
from sympy import Expr, Rational, Symbol, Wild

from stamm.activations.derivation.ansatz import (
    by_coefficients,
    complement_free,
    jump_at_sign_change,
    reduce_density,
)
from stamm.activations.derivation.formulas import Branch, elementary, end_value, number
from stamm.activations.derivation.parametric import parametric_integral
from stamm.activations.derivation.primitives import (
    Primitive,
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
from stamm.activations.derivation.tables import NumericalIntegral, table_of
from stamm.base.errors import ConfigError

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
        .replace(_is_shifted_erf, lambda f: 2 * normal_cdf(sympy.sqrt(2) * f.args[0]) - 1)
        .replace(_is_logarithm_beside_one, lambda f: log1p(f.args[0] - 1))
        .replace(log1p(sympy.exp(part)), lambda part: softplus(part))
        .replace(_is_inverse_of_one_and_exponential, _as_logistic)
        .replace(expm1, lambda u: sympy.exp(u) - 1)
        .replace(_is_double_exponential, lambda part: gompertz(-(-part.args[0]).args[0]))
    )


def without_overflow(branch: Branch) -> Branch:
    """1/(exp(x) - 1) as exp(-x)/(1 - exp(-x)) on a branch where x > 0, and its like."""
    side = 1 if branch.low.is_positive else -1 if branch.high.is_negative else 0

    def overflows(part: Expr) -> bool:
        if not (side and part.is_Pow and part.exp.is_Integer and part.exp < 0 and part.base.is_Add):
            return False
        powers = part.base.atoms(sympy.exp)
        rate = sympy.diff(next(iter(powers)).args[0], X) * side if len(powers) == 1 else None
        rest = part.base - next(iter(powers)) if powers else X
        return rate is not None and bool(rate.is_positive) and not rest.has(X)

    def written(part: Expr) -> Expr:
        (power,) = part.base.atoms(sympy.exp)
        small = sympy.exp(-power.args[0])
        return small**-part.exp * (1 + (part.base - power) * small) ** part.exp

    return Branch(**{**vars(branch), "formula": branch.formula.replace(overflows, written)})


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
    arguments = {part.args[0] for part in rest.atoms(sympy.Function)}
    arguments |= {part for inner in arguments for part in _affine_parts(inner)}
    arguments |= {part for power in rest.atoms(sympy.Pow) for part in _affine_parts(power.base - 1)}
    for argument in sorted(arguments - {X}, key=sympy.default_sort_key):
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


def _is_shifted_erf(part: Expr) -> bool:
    """erf(a*x + b): exp(-u**2) of its integral, multiplied out, is infinity times zero far out."""
    if not isinstance(part, sympy.erf):
        return False
    return bool(_is_affine(part.args[0]) and part.args[0].subs(X, 0).free_symbols)


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


__all__ = ["antiderivative", "complement_free", "reduce_density"]

_DIGITS = 30
_SECONDS = 15.0  # of CPU time for one search of SymPy's; a piece takes two at most


def antiderivative(
    gradient: Expr,
    points: Sequence[Mapping[str, float]],
    *,
    piece: str,
    where: str,
    known: Expr | None = None,
    ends: tuple[Expr, Expr] = (-sympy.oo, sympy.oo),
    fixed: Mapping[str, float] | None = None,
) -> Expr:
    """A function whose derivative in x is `gradient`.

    points   where the result is checked: values by symbol name, all inside the piece
    known    an antiderivative that was given; it is checked like a found one
    ends     of the piece: a table covers no more than lies between them
    fixed    values of the parameters that never change: a table may depend on them
    Raises   ConfigError that names the piece, when no method finds one.
    Checked  tests/unit/activations/test_integrate.py
    """
    if known is not None:
        defect = _defect(known, gradient, points, ends)
        if defect:
            raise ConfigError(
                f"the antiderivative found for piece {piece!r} is wrong: {defect}",
                where=where,
                fix="Write the gradient in another form",
            )
        return known
    stopped: list[Expr] = []
    for candidate in _closed_forms(gradient, stopped):
        if not _defect(candidate, gradient, points, ends):
            return candidate
    try:
        return _partly_tabulated(gradient, ends, fixed or {})
    except ConfigError as error:
        if isinstance(error, _ShapeError) and all(end.is_number for end in ends):
            limits = [_end(end) for end in ends]
            return parametric_integral(_with_numbers(gradient, fixed or {}), *limits)
        why, fix = f"{gradient} has no known closed form", error.fix
        if stopped:
            why = (
                f"SymPy was stopped after {_SECONDS:g} s of CPU time in search of the integral of"
                f" {', '.join(map(str, stopped))}"
            )
            fix = "State the integral with the piece: WHERE: GRADIENT | INTEGRAL"
        raise ConfigError(
            f"no antiderivative of piece {piece!r} could be found: {why}, and no table can be used:"
            f" {error.what}",
            where=where,
            fix=fix or "State a gradient whose integral is elementary",
        ) from None


def _closed_forms(gradient: Expr, stopped: list[Expr]) -> Iterator[Expr]:
    """Candidates without a table, the cheapest first; gradients that time out go to `stopped`."""
    spelled = respelled(gradient)
    closed_form = by_coefficients(spelled)
    if closed_form is not None:
        yield closed_form
    done, rest = _by_terms(spelled)
    if rest == 0:
        yield done
        return
    closed_form = _searched(rest, stopped)
    if closed_form is not None:
        yield done + closed_form
    if done != 0:  # two terms may have an integral only together
        closed_form = _searched(gradient, stopped)
        if closed_form is not None:
            yield closed_form
    done, rest = _by_terms(spelled, (*ROWS, *LAST_ROWS))
    if rest == 0:
        yield done


def _searched(gradient: Expr, stopped: list[Expr]) -> Expr | None:
    try:
        return searched(gradient, _SECONDS)
    except SearchStoppedError:
        stopped.append(gradient)
        return None


def _by_terms(gradient: Expr, rows: tuple[tuple[Expr, Expr], ...] = ROWS) -> tuple[Expr, Expr]:
    """The integral of the terms for which one is known, and the sum of the others."""
    done, rest = sympy.S.Zero, sympy.S.Zero
    for term in sympy.Add.make_args(sympy.expand_mul(gradient)):
        integral = known_antiderivative(term, rows)
        if integral is None:
            integral = by_coefficients(term)
        if integral is None:
            rest += term
        else:
            done += integral
    return done, rest


def _partly_tabulated(gradient: Expr, ends: tuple[Expr, Expr], fixed: Mapping[str, float]) -> Expr:
    """The known integrals of terms, and a table of the rest.

    tanh(x)/x is written as 1/x - 2 logistic(-2 x)/x on a piece where x > 0: a table of the second
    term ends where it has vanished, and the first one is a logarithm.
    """
    low, high = (end_value(end, {}) if end.is_number else None for end in ends)
    side = 1 if low is not None and low > 0 else -1 if high is not None and high < 0 else 0
    forms = [gradient] if side == 0 else [gradient, _by_limits(gradient, side)]
    refusals = []
    for form in dict.fromkeys(forms):
        done, rest = _by_terms(respelled(form))
        if side:  # the integral of 1/x
            done = done.xreplace(dict.fromkeys((sympy.log(X), log1p(X - 1)), sympy.log(side * X)))
        try:
            return done + _tabulated(rest, ends, fixed)
        except ConfigError as error:
            refusals.append(error)
    raise refusals[0]


def _by_limits(gradient: Expr, side: int) -> Expr:
    """The gradient with each gate as its limit on a side minus the difference from it."""

    def is_far(part: Expr) -> bool:
        rate = sympy.diff(part.args[0], X) * side if part.func in _LIMITS else None
        return rate is not None and bool(rate.is_positive or rate.is_negative)

    def written(part: Expr) -> Expr:
        u = part.args[0]
        rising = bool((sympy.diff(u, X) * side).is_positive)
        return _LIMITS[part.func](u) if rising else -_LIMITS[part.func](-u)

    return sympy.expand(gradient.replace(is_far, written))


_LIMITS: Mapping[
    Any, Callable[[Expr], Expr]
] = {  # odd functions, where their argument goes to infinity
    sympy.tanh: lambda u: 1 - 2 * logistic(-2 * u),
    sympy.erf: lambda u: 1 - sympy.erfc(u),
}


def _tabulated(rest: Expr, ends: tuple[Expr, Expr], fixed: Mapping[str, float]) -> Expr:
    """The integral by tables: one for each factor and each scale of x that parameters make."""
    groups: dict[tuple[Expr, Expr], Expr] = {}
    for term in sympy.Add.make_args(sympy.expand_mul(_with_numbers(rest, fixed))):
        factor, core = term.as_independent(X, as_Add=False)
        for inner, argument, shape in _free_of_parameters(core):
            total = factor * inner / sympy.diff(argument, X)
            share, scale = total.as_independent(*total.free_symbols, as_Add=False)
            if not total.free_symbols:
                share, scale = total, sympy.S.One
            key = scale, argument
            groups[key] = groups.get(key, sympy.S.Zero) + share * shape
    result = sympy.S.Zero
    for (scale, argument), shape in groups.items():
        content, gradient = shape.as_coeff_Mul()
        limits = [_end(end) if argument == X else None for end in ends]
        result += scale * content * table_of(gradient, *limits)(argument)
    return result


def _with_numbers(formula: Expr, fixed: Mapping[str, float]) -> Expr:
    """The formula with the values of the parameters that never change."""
    known = {s: sympy.Rational(fixed[s.name]) for s in formula.free_symbols if s.name in fixed}
    return formula.xreplace(known)


class _ShapeError(ConfigError):
    """A parameter changes the shape of a gradient, so that no table made once serves all its values."""


def _free_of_parameters(core: Expr) -> list[tuple[Expr, Expr, Expr]]:
    """(factor, argument, shape) with core = sum of factor * shape at x = argument.

    Raises   ConfigError when parameters enter in another way than as the scale of the input.
    """
    if core.free_symbols <= {X}:
        return [(sympy.S.One, X, core)]
    for function in sorted(core.atoms(sympy.Function), key=sympy.default_sort_key):
        argument = function.args[0]
        if not argument.is_polynomial(X) or sympy.degree(argument, X) != 1:
            continue
        back = (X - argument.subs(X, 0)) / sympy.diff(argument, X)
        parts = []
        for term in sympy.Add.make_args(sympy.expand(core.xreplace({X: back}))):
            factor, shape = term.as_independent(X, as_Add=False)
            parts.append((factor, argument, shape))
        if all(shape.free_symbols <= {X} for _, _, shape in parts):
            return parts
    names = ", ".join(sorted(s.name for s in core.free_symbols - {X}))
    raise _ShapeError(
        f"{core} depends on {names} in a way that no table can, since its numbers are computed once: a"
        " trainable parameter may only be a factor of a term, or scale and shift the input of all its"
        " functions",
        fix="Make the parameter fixed, state the integral with the piece, or use knots that are numbers",
    )


def _end(end: Expr) -> float | None:
    """A finite end without parameters, as a number."""
    return float(end) if end.is_number and end.is_finite else None


def _defect(
    function: Expr,
    gradient: Expr,
    points: Sequence[Mapping[str, float]],
    ends: tuple[Expr, Expr],
) -> str:
    """The defect of an antiderivative, as text; "" when it is right."""
    slope = sympy.diff(function, X)
    with mpmath.workdps(2 * _DIGITS):
        for values in points:
            actual, stated = _number(slope, values), number(gradient, values)
            if not abs(actual - stated) <= mpmath.mpf(10) ** -_DIGITS * (1 + abs(stated)):
                return (
                    f"its slope at x = {float(values[X.name]):g} is {mpmath.nstr(actual, 12)}, stated is"
                    f" {mpmath.nstr(stated, 12)}"
                )
            if not isinstance(_number(function, values), mpmath.mpf):
                return f"it is not real at x = {float(values[X.name]):g}"
    for values in points if function.has(signum) else ():
        low, high = (end_value(end, values) for end in ends)
        jump = jump_at_sign_change(function, values, low, high)
        if jump:
            return jump
    return _leap(function, gradient, points)


def _leap(function: Expr, gradient: Expr, points: Sequence[Mapping[str, float]]) -> str:
    """A jump of the function between two points, as text, which its slope alone does not show."""
    if function.has(NumericalIntegral) or not function.has(
        sympy.atan, sympy.tan, sympy.log, sympy.Pow
    ):
        return ""
    with mpmath.workdps(15):
        for a, b in itertools.pairwise(points):
            same = {**a, X.name: 0} == {**b, X.name: 0}
            if same and max(abs(a[X.name]), abs(b[X.name])) < _DIGITS:
                low, high = a[X.name], b[X.name]
                risen = number(function, b) - number(function, a)
                true = mpmath.quad(
                    lambda x, at=a: number(gradient, {**at, X.name: x}),
                    [low, 0, high] if low < 0 < high else [low, high],
                )
                if abs(risen - true) > 1e-6 * (1 + abs(true)):
                    return f"it leaps between x = {float(low):g} and x = {float(high):g}"
    return ""


def _number(formula: Expr, values: Mapping[str, Any]) -> Any:
    try:
        return number(formula, values)
    except (ArithmeticError, ValueError):
        return mpmath.nan


# Functions that a formula may contain, to be evaluated and emitted.
_UNDERSTOOD = (
    sympy.exp,
    sympy.log,
    sympy.sin,
    sympy.cos,
    sympy.tan,
    sympy.asin,
    sympy.atan,
    sympy.sinh,
    sympy.cosh,
    sympy.tanh,
    sympy.asinh,
    sympy.acosh,
    sympy.erf,
    sympy.erfc,
    Primitive,
)
# Wall time per second of CPU time: a process that waits, or that a busy machine rarely runs, ends too.
_PATIENCE = 20.0
# Input and output are text: the srepr of a parsed formula, and nothing else. SIGPROF ends a process.
_PROGRAM = """
import signal
import sys
import sympy
signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
found = sympy.integrate(sympy.sympify(sys.stdin.read()), sympy.Symbol("x", real=True))
sys.stdout.write(sympy.srepr(found))
"""


class SearchStoppedError(Exception):
    """A search was stopped after its CPU time: whether there is an integral is not known."""


def searched(gradient: Expr, seconds: float) -> Expr | None:
    """The antiderivative that SymPy finds in time, if it is real and made of known functions.

    seconds  of CPU time
    Edge     None when there is none that fits, and where Python has no executable.
    Raises   SearchStoppedError when the time is up.
    Checked  tests/unit/activations/test_integrate.py
    """
    integral, stopped = _outcome(gradient, seconds)
    if stopped:
        raise SearchStoppedError(f"no integral of {gradient} after {seconds:g} s of CPU time")
    return integral


@lru_cache(maxsize=256)
def _outcome(gradient: Expr, seconds: float) -> tuple[Expr | None, bool]:
    """The antiderivative found, and whether the search was stopped before its end."""
    if not sys.executable:
        return None, False
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM, str(seconds)],
            input=sympy.srepr(elementary(gradient)),
            capture_output=True,
            text=True,
            timeout=_PATIENCE * (seconds + 3.0),  # SymPy alone takes a second to import
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, True
    if ended.returncode != 0:
        return None, ended.returncode == -signal.SIGPROF
    return _usable(sympy.sympify(ended.stdout), gradient), False


def _usable(integral: Expr, gradient: Expr) -> Expr | None:
    strange = integral.has(sympy.I, sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    if strange or integral.atoms(sympy.Integral, sympy.RootSum, sympy.Piecewise):
        return None
    if not integral.free_symbols <= gradient.free_symbols | {X}:
        return None
    known = all(isinstance(f, _UNDERSTOOD) for f in integral.atoms(sympy.Function))
    return integral if known else None
