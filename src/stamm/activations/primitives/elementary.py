"""Elementary functions of kernels, computed with torch.

Inputs are float32 or float64, and results have the same dtype. No function here relies on
torch.expm1, which compilers may replace by exp(u) - 1. Each is a few statements on whole tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.activations.primitives import coefficients
from stamm.activations.primitives.polynomials import polynomial

Number = Tensor | float
Parameters = tuple[Number, ...]


def phi2_negative(u: Tensor) -> Tensor:
    """exp(u) - 1 - u for -1 <= u <= 0."""
    half = 0.5 * u * u
    return half + half * (u * polynomial(u, coefficients.EXPONENTIAL_NEGATIVE))


def phi2_positive(u: Tensor) -> Tensor:
    """exp(u) - 1 - u for 0 <= u <= 1."""
    half = 0.5 * u * u
    return half + half * (u * polynomial(u, coefficients.EXPONENTIAL_POSITIVE))


def phi2_over_negative(u: Tensor) -> Tensor:
    """(exp(u) - 1 - u)/u for -1 <= u <= 0, and 0 at 0."""
    half = 0.5 * u
    return half + half * (u * polynomial(u, coefficients.EXPONENTIAL_NEGATIVE))


def phi2_over_positive(u: Tensor) -> Tensor:
    """(exp(u) - 1 - u)/u for 0 <= u <= 1, and 0 at 0."""
    half = 0.5 * u
    return half + half * (u * polynomial(u, coefficients.EXPONENTIAL_POSITIVE))


def phi2(u: Tensor) -> Tensor:
    """exp(u) - 1 - u for every u."""
    below = torch.clamp(u, min=-1.0, max=0.0)
    above = torch.clamp(u, min=0.0, max=1.0)
    near = torch.where(u > 0.0, phi2_positive(above), phi2_negative(below))
    return torch.where(torch.abs(u) > 1.0, torch.exp(u) - (u + 1.0), near)


def expm1(u: Tensor) -> Tensor:
    """exp(u) - 1 for every u; -0 at -0."""
    near = torch.clamp(u, min=-1.0, max=1.0)
    below, above = torch.clamp(near, max=0.0), torch.clamp(near, min=0.0)
    over = torch.where(u > 0.0, phi2_over_positive(above), phi2_over_negative(below))
    return torch.where(torch.abs(u) > 1.0, torch.exp(u) - 1.0, near * (1.0 + over))


def at_least(x: Tensor, low: Number) -> Tensor:
    """The larger of x and a knot that may move with a parameter."""
    return torch.maximum(x, low) if isinstance(low, Tensor) else torch.clamp(x, min=low)


def at_most(x: Tensor, high: Number) -> Tensor:
    """The smaller of x and a knot that may move with a parameter."""
    return torch.minimum(x, high) if isinstance(high, Tensor) else torch.clamp(x, max=high)


def lifted(value: Number, x: Tensor) -> Tensor:
    """A number that depends on parameters only, as a tensor with the dtype and device of x."""
    return value if isinstance(value, Tensor) else torch.full_like(x, value)


def log(u: Tensor) -> Tensor:
    """log(u), finite at 0, so that u**p log(u) is 0 there; NaN where u is negative or NaN."""
    floored = torch.log(torch.clamp(u, min=torch.finfo(u.dtype).tiny))
    return torch.where(u >= 0.0, floored, torch.full_like(u, float("nan")))


def log1p(u: Tensor) -> Tensor:
    """log(1 + u)."""
    return torch.log1p(u)


def absolute(u: Tensor) -> Tensor:
    """|u|."""
    return torch.abs(u)


def signum(u: Tensor) -> Tensor:
    """-1, 0 or 1; NaN for NaN."""
    return torch.where(torch.isnan(u), u, torch.sign(u))


def gompertz(u: Tensor) -> Tensor:
    """exp(-exp(-u))."""
    return torch.exp(-torch.exp(-u))


def gompertz_pdf(u: Tensor) -> Tensor:
    """exp(-u - exp(-u)); far left, where exp(-u) overflows before -u counts, it is 0."""
    near = torch.clamp(u, min=-80.0)
    return torch.exp(-near - torch.exp(-near))


def gompertz_pdf_rise(u: Tensor) -> Tensor:
    """exp(-2 u - exp(-u)), 0 far left as `gompertz_pdf`."""
    near = torch.clamp(u, min=-80.0)
    return torch.exp(-2.0 * near - torch.exp(-near))


def logistic_pair(u: Tensor) -> tuple[Tensor, Tensor]:
    """1/(1 + exp(-u)) and 1/(1 + exp(u)), each with all its digits, from one exponential."""
    small = torch.exp(-torch.abs(u))
    large = 1.0 / (1.0 + small)
    rest = small * large
    return torch.where(u < 0.0, rest, large), torch.where(u < 0.0, large, rest)


def softplus(u: Tensor) -> Tensor:
    """log(1 + exp(u))."""
    return torch.clamp(u, min=0.0) + torch.log1p(torch.exp(-torch.abs(u)))


def logistic_odd(u: Tensor) -> Tensor:
    """1/(1 + exp(-u)) - 1/2."""
    return 0.5 * torch.tanh(0.5 * u)


def normal_pdf(u: Tensor) -> Tensor:
    """exp(-u**2/2)/sqrt(2 pi)."""
    return 0.3989422804014327 * torch.exp(-0.5 * u * u)


def normal_cdf(u: Tensor) -> Tensor:
    """erfc(-u/sqrt 2)/2."""
    return 0.5 * torch.erfc(-0.7071067811865476 * u)


def normal_odd(u: Tensor) -> Tensor:
    """erf(u/sqrt 2)/2."""
    return 0.5 * torch.erf(0.7071067811865476 * u)


def cauchy_pdf(u: Tensor) -> Tensor:
    """1/(pi (1 + u**2))."""
    return 0.3183098861837907 / (1.0 + u * u)


def cauchy_cdf(u: Tensor) -> Tensor:
    """atan2(1, -u)/pi: the angle keeps its digits where atan(u) + pi/2 cancels."""
    return 0.3183098861837907 * torch.atan2(torch.ones_like(u), -u)


def cauchy_odd(u: Tensor) -> Tensor:
    """atan(u)/pi."""
    return 0.3183098861837907 * torch.atan(u)


def cauchy_slope(u: Tensor) -> Tensor:
    """cauchy_cdf(u) + u cauchy_pdf(u); below -1 as a series in t = -1/u, where the terms cancel."""
    near = torch.clamp(u, min=-1.0)
    t = -1.0 / torch.clamp(u, max=-1.0)
    tail = 0.3183098861837907 * (t * t * t * polynomial(t * t, coefficients.ARCTAN))
    return torch.where(u < -1.0, tail, cauchy_cdf(near) + near * cauchy_pdf(near))
