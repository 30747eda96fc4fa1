"""Primitives that are integrals of primitives, computed with torch."""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.activations.primitives import coefficients
from stamm.activations.primitives.elementary import softplus
from stamm.activations.primitives.polynomials import polynomial


def softplus_integral(u: Tensor) -> Tensor:
    """-Li2(-exp(u)): in powers of softplus(u), and beyond 1 by reflection at 0."""
    s = softplus(torch.clamp(u, max=1.0))
    near = s + s * s * (0.25 + s * polynomial(s * s, coefficients.DILOGARITHM))
    t = softplus(-torch.clamp(u, min=1.0))
    reflected = t + t * t * (0.25 + t * polynomial(t * t, coefficients.DILOGARITHM))
    above = 0.5 * u * u + (1.6449340668482264 - reflected)
    return torch.where(u > 1.0, above, near)


def logistic_moment(u: Tensor) -> Tensor:
    """u softplus(u) - softplus_integral(u), on the right without their common square."""
    near = torch.clamp(u, max=1.0)
    below = near * softplus(near) - softplus_integral(near)
    right = torch.clamp(u, min=1.0)
    t = softplus(-right)
    rest = t + t * t * (0.25 + t * polynomial(t * t, coefficients.DILOGARITHM))
    above = 0.5 * right * right + (right * t + (rest - 1.6449340668482264))
    return torch.where(u > 1.0, above, below)


def gompertz_integral(u: Tensor) -> Tensor:
    """E1(exp(-u)): one polynomial for each of exp(-u) <= 1/2, about 1, and >= 8."""
    right = torch.clamp(u, min=0.7)
    z = torch.exp(-right)
    rest = polynomial(z, coefficients.EXPONENTIAL_INTEGRAL_NEAR)
    near = (right - 0.5772156649015329) + z * rest
    centre = torch.clamp(u, min=-2.1, max=0.7)
    rest = polynomial(centre, coefficients.EXPONENTIAL_INTEGRAL_MIDDLE)
    middle = torch.exp(-torch.exp(-centre)) * rest
    left = torch.clamp(u, min=-80.0, max=-2.1)
    w = torch.exp(left)
    rest = polynomial(w, coefficients.EXPONENTIAL_INTEGRAL_FAR)
    far = torch.exp(-torch.exp(-left)) * (w * rest)
    return torch.where(u < -2.1, far, torch.where(u < 0.7, middle, near))


def gompertz_upper_integral(u: Tensor) -> Tensor:
    """The integral of 1 - exp(-exp(-u)) from u to infinity: E1(z) + log(z) + Euler's constant, z = exp(-u)."""
    below = torch.clamp(u, max=0.7)
    z = torch.exp(-torch.clamp(u, min=0.7))
    near = z * polynomial(z, coefficients.EXPONENTIAL_INTEGRAL_NEAR)
    return torch.where(u < 0.7, gompertz_integral(below) + (0.5772156649015329 - below), near)


def log_cosh(u: Tensor) -> Tensor:
    """log(cosh(u)): |u| - log(2) + log(1 + exp(-2|u|)), as a polynomial in u**2 up to |u| = 1."""
    near = torch.clamp(u, min=-1.0, max=1.0)
    size = torch.clamp(torch.abs(u), min=1.0)
    far = size + (torch.log1p(torch.exp(-2.0 * size)) - 0.6931471805599453)
    quotient = polynomial(near * near, coefficients.LOG_COSH)
    return torch.where(torch.abs(u) > 1.0, far, near * (near * quotient))


def mish_gate_integral(u: Tensor) -> Tensor:
    """log(1 + t + t**2/2)/2 + atan(t/(2 + t)), t = exp(u); with exp(-u) where u > 0."""
    t = torch.exp(-torch.abs(u))
    below = 0.5 * torch.log1p(t + 0.5 * t * t) + torch.atan(t / (2.0 + t))
    rest = 0.5 * torch.log1p(2.0 * t + 2.0 * t * t) - 0.34657359027997264
    above = u + (rest + torch.atan(1.0 / (1.0 + 2.0 * t)))
    return torch.where(u > 0.0, above, below)
