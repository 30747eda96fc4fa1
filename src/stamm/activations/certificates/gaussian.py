"""Statistics of f at a standard normal input: moments, signal propagation, Hermite spectrum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import mpmath
import sympy

from stamm.activations.certificates.curve import CertifiedCurve
from stamm.activations.certificates.rounding import measured, not_proved, shown
from stamm.activations.derivation.primitives import Primitive, X
from stamm.activations.derivation.tables import TabulatedIntegral
from stamm.activations.spec.expressions import FUNCTIONS

HERMITE = 8
VARIANCES = (0.25, 0.5, 1.0, 2.0, 4.0)
HARMONICS = 5
_REACH = 13.0  # the normal density beyond is below 1e-37
_AGREE = 1e-11
_TRUSTED = 1e-7
_HALVINGS = 5
_VANISHED = 1e-13


@dataclass(frozen=True)
class Moments:
    """Integrals over z ~ N(0, q), x = sqrt(q) z, and how far the last two refinements differ.

    hermite   E[f He_k(z)]/sqrt(k!), k = 0..8
    even      E of the squared even part of f; `odd` likewise
    error     the largest relative difference between the last two refinements, of integrals of f;
              slope_error of f'^2, which may be infinite where f' is
    """

    f: float
    f2: float
    slope: float
    slope2: float
    growth: float
    even: float
    odd: float
    hermite: tuple[float, ...]
    error: float = math.inf
    slope_error: float = math.inf

    @property
    def settled(self) -> bool:
        """Whether integrals of f can be trusted, and f is not zero."""
        return self.error < _TRUSTED and self.f2 > 0.0

    @property
    def slope_settled(self) -> bool:
        """Whether E f'^2 can be trusted, and f' is not zero."""
        return self.slope_error < _TRUSTED and self.slope2 > 0.0


def moments(sampler: Sampler, variance: float = 1.0) -> Moments:
    """The moments of f and f' under N(0, variance), refined until two results agree.

    Raises   OverflowError when f exceeds a double within 13 standard deviations.
    Checked  tests/unit/activations/test_certificate_gaussian.py
    """
    width = 1.0
    last = _moments(sampler, variance, width)
    for _ in range(_HALVINGS):
        width /= 2.0
        new = _moments(sampler, variance, width)
        error = max(_difference(new, last, name) for name in ("f", "f2", "growth"))
        slope_error = _difference(new, last, "slope2")
        last = replace(new, error=error, slope_error=slope_error)
        if max(error, slope_error) < _AGREE:
            break
    return last


def _difference(new: Moments, last: Moments, name: str) -> float:
    value: float = getattr(new, name)
    return abs(value - float(getattr(last, name))) / (abs(value) + 1e-3)


def _moments(sampler: Sampler, variance: float, width: float) -> Moments:
    scale = math.sqrt(variance)
    reach, step = _REACH * scale, width * scale
    points = nodes(panels(sampler.ends(-reach, reach, step), step))
    norm = 1.0 / math.sqrt(2.0 * math.pi * variance)
    rows = []
    for x, weight in points:
        z = x / scale
        density = weight * norm * math.exp(-0.5 * z * z)
        f, slope = sampler(x)
        mirrored = sampler(-x)[0]
        rows.append((density, z, f, slope, 0.5 * (f + mirrored), 0.5 * (f - mirrored)))
    hermite = []
    before, polynomial = [0.0] * len(rows), [1.0] * len(rows)
    for k in range(HERMITE + 1):
        total = math.fsum(r[0] * r[2] * p for r, p in zip(rows, polynomial, strict=True))
        hermite.append(total)
        following = [
            (r[1] * p - math.sqrt(k) * b) / math.sqrt(k + 1)
            for r, p, b in zip(rows, polynomial, before, strict=True)
        ]
        before, polynomial = polynomial, following
    return Moments(
        f=hermite[0],
        f2=math.fsum(d * f * f for d, _, f, *_ in rows),
        slope=math.fsum(d * s for d, _, _, s, *_ in rows),
        slope2=math.fsum(d * s * s for d, _, _, s, *_ in rows),
        growth=math.fsum(d * f * f * 0.5 * (z * z - 1.0) for d, z, f, *_ in rows),
        even=math.fsum(r[0] * r[4] * r[4] for r in rows),
        odd=math.fsum(r[0] * r[5] * r[5] for r in rows),
        hermite=tuple(hermite),
    )


def propagation(m: Moments) -> dict[str, Any]:
    """Moments under N(0, 1) and what follows from them for a deep network.

    gain                1/sqrt(E f^2): the weight scale that keeps the second moment
    chi                 gain^2 E f'^2: how much a small difference grows per layer
    q_slope             the slope of q -> gain^2 E f(sqrt(q) z)^2 at its fixed point q = 1
    nonlinearity_index  the share of the variance of f that no line in z explains
    """
    if not m.settled:
        reason = "the integrals do not settle" if m.f2 > 0.0 else "f is zero"
        return not_proved("moments under N(0, 1)", reason)
    gain = 1.0 / math.sqrt(m.f2)
    variance = m.f2 - m.f * m.f
    index = 1.0 - m.hermite[1] ** 2 / variance if variance > _VANISHED else 0.0
    numbers = {
        "mean": m.f,
        "second_moment": m.f2,
        "mean_slope": m.slope,
        "slope_second_moment": m.slope2 if m.slope_settled else math.nan,
        "gain": gain,
        "chi": gain * gain * m.slope2 if m.slope_settled else math.nan,
        "q_slope": gain * gain * m.growth,
        "nonlinearity_index": max(index, 0.0),
    }
    return {
        "claim": f"under N(0, 1): gain {shown(gain, 4)}, chi {_short(numbers['chi'])},"
        f" slope of the variance map {shown(numbers['q_slope'], 4)},"
        f" nonlinearity index {shown(numbers['nonlinearity_index'], 3)}",
        "status": "measured",
        **{n: None if math.isnan(value) else measured(value) for n, value in numbers.items()},
        "agreement": _power_of_ten(m.error),
    }


def parts(m: Moments) -> dict[str, Any]:
    """The shares of E f^2 that the even and the odd part of f hold under N(0, 1)."""
    if not m.settled:
        return not_proved("even and odd energy", "see moments")
    even, odd = m.even / m.f2, m.odd / m.f2
    return {
        "claim": f"{even:.1%} of the energy is even, {odd:.1%} is odd",
        "status": "measured",
        "even": measured(even),
        "odd": measured(odd),
    }


def spectrum(m: Moments) -> dict[str, Any]:
    """Coefficients of f in normalised Hermite polynomials, and the share of E f^2 each holds."""
    if not m.settled:
        return not_proved("Hermite spectrum", "see moments")
    shares = [c * c / m.f2 for c in m.hermite]
    return {
        "claim": f"degrees 0 to {HERMITE} hold {sum(shares):.2%} of the energy, degree 1"
        f" {shares[1]:.2%}",
        "status": "measured",
        "coefficients": [measured(c) for c in m.hermite],
        "shares": [measured(s) for s in shares],
    }


def edge_of_chaos(sampler: Sampler) -> dict[str, Any]:
    """Weight and bias scales at which a small difference neither grows nor fades.

    For each variance q: sigma_w^2 E f'(sqrt(q) z)^2 = 1 and q = sigma_w^2 E f(sqrt(q) z)^2 +
    sigma_b^2. A row without sigma_b has no such point: it would need a negative square.
    """
    rows = []
    for q in VARIANCES:
        m = moments(sampler, q)
        row: dict[str, Any] = {"q": q, "sigma_w": None, "sigma_b": None}
        if m.settled and m.slope_settled:
            square = q - m.f2 / m.slope2
            row["sigma_w"] = measured(1.0 / math.sqrt(m.slope2))
            if square > -_VANISHED:
                row["sigma_b"] = measured(math.sqrt(max(square, 0.0)))
        rows.append(row)
    if all(row["sigma_w"] is None for row in rows):
        reason = "E f'^2 is infinite, zero or does not settle"
        return not_proved("edge of chaos", reason)
    reached = [shown(row["q"]) for row in rows if row["sigma_b"] is not None]
    claim = "no edge of chaos at the variances tried"
    if reached:
        claim = f"an edge of chaos exists at q = {', '.join(reached)}"
    return {"claim": claim, "status": "measured", "points": rows}


def harmonics(sampler: Sampler) -> dict[str, Any]:
    """The mean of f(sin t) and the amplitudes of its first five harmonics, with their signs.

    Odd harmonics are sines and even ones cosines, since sin t is symmetric about pi/2.
    """
    inner = [math.asin(b) for b in sampler.breaks if abs(b) < 1]
    ends = [-math.pi / 2, *inner, math.pi / 2]
    points = [(t, w, sampler(math.sin(t))[0]) for t, w in nodes(panels(ends, 0.1))]
    mean = math.fsum(w * f for _, w, f in points) / math.pi
    amplitudes = [
        2.0
        / math.pi
        * math.fsum(w * f * (math.sin(k * t) if k % 2 else math.cos(k * t)) for t, w, f in points)
        for k in range(1, HARMONICS + 1)
    ]
    overtones = math.sqrt(math.fsum(h * h for h in amplitudes[1:]))
    share = overtones / abs(amplitudes[0]) if abs(amplitudes[0]) > _VANISHED else math.inf
    return {
        "claim": f"f(sin t) has mean {shown(measured(mean), 4)} and"
        f" {shown(share, 3)} of its first harmonic in overtones",
        "status": "measured",
        "input_amplitude": 1.0,
        "mean": measured(mean),
        "amplitudes": [measured(h) for h in amplitudes],
    }


def _power_of_ten(error: float) -> str:
    """The agreement of two refinements, coarse enough to be the same on every machine."""
    return f"better than {10.0 ** max(-10, math.ceil(math.log10(max(error, 1e-300)))):.0e}"


def _short(value: float) -> str:
    return "unknown" if math.isnan(value) else shown(value, 4)


NODES = 20
_GRADED = 24  # panels that halve toward a knot where a formula need not be smooth


def _phi2(u: float) -> float:
    """exp(u) - 1 - u, by its series where the difference cancels."""
    if abs(u) > 0.5:
        return math.expm1(u) - u
    total, term = 0.0, 0.5 * u * u
    for k in range(3, 20):
        total += term
        term *= u / k
    return total


_FLOATS: Mapping[str, Callable[[float], float]] = {
    **FUNCTIONS,
    "phi2": _phi2,
    "logistic_odd": lambda u: 0.5 * math.tanh(0.5 * u),
    "normal_odd": lambda u: 0.5 * math.erf(u / math.sqrt(2.0)),
    "cauchy_odd": lambda u: math.atan(u) / math.pi,
    "cauchy_slope": lambda u: FUNCTIONS["cauchy_cdf"](u) + u * FUNCTIONS["cauchy_pdf"](u),
    "absolute": abs,
    "signum": FUNCTIONS["sign"],
    "Abs": abs,
}


@lru_cache(maxsize=4)
def legendre(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1], by Newton's method."""
    rule = []
    for i in range(count):
        x = math.cos(math.pi * (i + 0.75) / (count + 0.5))
        slope = 1.0
        for _ in range(8):
            before, value = 1.0, x
            for k in range(2, count + 1):
                before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
            slope = count * (x * value - before) / (x * x - 1.0)
            x -= value / slope
        rule.append((x, 2.0 / ((1.0 - x * x) * slope * slope)))
    return tuple(rule)


def panels(ends: Sequence[float], width: float) -> list[tuple[float, float]]:
    """The parts between sorted ends, divided into equal panels no wider than `width`."""
    result = []
    for low, high in itertools.pairwise(ends):
        count = max(1, math.ceil((high - low) / width))
        step = (high - low) / count
        result += [(low + i * step, low + (i + 1) * step) for i in range(count)]
    return result


def nodes(parts: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points and weights of an integral over the panels."""
    rule = legendre(NODES)
    return [
        (0.5 * (low + high) + 0.5 * (high - low) * x, 0.5 * (high - low) * weight)
        for low, high in parts
        for x, weight in rule
    ]


class Sampler:
    """f and f' as fast functions of a double, and where integrals of them must be divided.

    graded   whether panels get smaller towards knots, where a formula need not be smooth
    """

    def __init__(self, curve: CertifiedCurve, *, graded: bool) -> None:
        self._ends = [cell.high for cell in curve.cells[:-1]]
        self._functions = [
            tuple(_compiled(cell.formulas[order]) for order in (0, 1)) for cell in curve.cells
        ]
        self.breaks = sorted(set(self._ends))
        self._graded = graded

    def __call__(self, x: float) -> tuple[float, float]:
        """(f(x), f'(x)); at a knot, as on its left."""
        for end, (function, slope) in zip(self._ends, self._functions, strict=False):
            if x <= end:
                return function(x), slope(x)
        function, slope = self._functions[-1]
        return function(x), slope(x)

    def ends(self, low: float, high: float, width: float) -> list[float]:
        """low, high and every knot between; knots closed in on where f need not be smooth."""
        inner = {b for b in self.breaks if low < b < high}
        if self._graded:
            for knot in sorted(inner):
                for k in range(_GRADED):
                    inner |= {knot + sign * width * 0.5**k for sign in (-1, 1)}
        return [low, *sorted(b for b in inner if low < b < high), high]


def _compiled(formula: Any) -> Callable[[float], float]:
    if not formula.free_symbols:
        value = float(formula)
        return lambda _: value
    functions = dict(_FLOATS)
    for part in formula.atoms(Primitive):
        kind: Any = type(part)
        if kind.__name__ not in functions:
            functions[kind.__name__] = _from_value(kind)
    made: Callable[[float], float] = sympy.lambdify(X, formula, modules=[functions, "math"])
    return made


@lru_cache(maxsize=64)
def _from_value(kind: Any) -> Callable[[float], float]:
    """A primitive as a function of a double: of a table, its polynomials; else by mpmath."""
    if issubclass(kind, TabulatedIntegral):
        return _from_table(kind)

    @lru_cache(maxsize=65536)
    def valued(u: float) -> float:
        with mpmath.workprec(60):
            return float(kind.value(mpmath.mpf(u)))

    return valued


def _from_table(table: type[TabulatedIntegral]) -> Callable[[float], float]:
    """The integral a table holds, in double precision."""
    first = math.floor(table.low / table.step)

    def valued(u: float) -> float:
        row = (0.0, *table.left) if u < table.low else (0.0, *table.right)
        if len(row) == 1 or table.low <= u <= table.high:
            cell = min(max(math.floor(u / table.step) - first, 0), len(table.rows) - 1)
            row = table.rows[cell]
        total = 0.0
        for c in reversed(row[1:]):
            total = c + (u - row[0]) * total
        return total

    return valued
