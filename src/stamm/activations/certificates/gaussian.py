"""Statistics of f at a standard normal input: moments, signal propagation, Hermite spectrum."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from stamm.activations.certificates.quadrature import Sampler, nodes, panels
from stamm.activations.certificates.rounding import measured, shown

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
        return {"claim": "moments under N(0, 1)", "status": "not proved", "reason": reason}
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
        return {"claim": "even and odd energy", "status": "not proved", "reason": "see moments"}
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
        return {"claim": "Hermite spectrum", "status": "not proved", "reason": "see moments"}
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
        return {"claim": "edge of chaos", "status": "not proved", "reason": reason}
    reached = [shown(row["q"]) for row in rows if row["sigma_b"] is not None]
    claim = "no edge of chaos at the variances tried"
    if reached:
        claim = f"an edge of chaos exists at q = {', '.join(reached)}"
    return {"claim": claim, "status": "measured", "points": rows}


def harmonics(sampler: Sampler, amplitude: float = 1.0) -> dict[str, Any]:
    """The mean of f(A sin t) and the amplitudes of its first five harmonics, with their signs.

    Odd harmonics are sines and even ones cosines, since A sin t is symmetric about pi/2.
    """
    inner = [math.asin(b / amplitude) for b in sampler.breaks if abs(b) < amplitude]
    ends = [-math.pi / 2, *inner, math.pi / 2]
    points = [(t, w, sampler(amplitude * math.sin(t))[0]) for t, w in nodes(panels(ends, 0.1))]
    mean = math.fsum(w * f for _, w, f in points) / math.pi
    found = [
        2.0
        / math.pi
        * math.fsum(w * f * (math.sin(k * t) if k % 2 else math.cos(k * t)) for t, w, f in points)
        for k in range(1, HARMONICS + 1)
    ]
    overtones = math.sqrt(math.fsum(h * h for h in found[1:]))
    share = overtones / abs(found[0]) if abs(found[0]) > _VANISHED else math.inf
    return {
        "claim": f"f(sin t) has mean {shown(measured(mean), 4)} and"
        f" {shown(share, 3)} of its first harmonic in overtones",
        "status": "measured",
        "input_amplitude": amplitude,
        "mean": measured(mean),
        "amplitudes": [measured(h) for h in found],
    }


def _power_of_ten(error: float) -> str:
    """The agreement of two refinements, coarse enough to be the same on every machine."""
    return f"better than {10.0 ** max(-10, math.ceil(math.log10(max(error, 1e-300)))):.0e}"


def _short(value: float) -> str:
    return "unknown" if math.isnan(value) else shown(value, 4)
