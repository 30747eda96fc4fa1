"""Fit an activation to another one on a sample of pre-activations.

    min over s > 0, c and the shape parameters p of   sum_i w_i (f(x_i) - c g(s x_i; p))^2

s is multiplied into the matrix before the activation, c into the one after it. c has a closed form;
the rest is found by the Levenberg-Marquardt method from several s, in float64. A small penalty
(log s)^2 + (log |c|)^2 is added: of scales that fit equally well, as all do for a homogeneous g, it
prefers those that leave the matrices as large as they were, which further training needs.

Letters: N numbers of the sample, U unknowns (log s, then the stored values of p).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.spec import Spec
from stamm.base.errors import ConfigError

_STARTS = (1.0, 0.5, 2.0)
_STEPS, _DIFFERENCE, _SMALLEST_GAIN = 60, 1e-4, 1e-9
_SMALL_SCALES = 3e-4  # weight of log s and log |c| among the residuals
_SMALLEST_SCALE = 1e-12
_WIDEST = 20.0  # largest |log s| and stored value: beyond it the shape is close to its limit


@dataclass(frozen=True, kw_only=True)
class ActivationFit:
    """The best g and how far it is from f.

    raw             stored value of each trainable parameter of g
    input_scale     s
    output_scale    c
    error           share of the weighted mean square of f that c g(s x) misses
    initial_error   the same of g(x) with its initial parameters
    """

    raw: dict[str, float]
    input_scale: float
    output_scale: float
    error: float
    initial_error: float


def fit_activation(
    spec: Spec, x_N: Tensor, f_N: Tensor, weight_N: Tensor, *, scales: bool = True
) -> ActivationFit:
    """Fit the activation `spec` to the values f_N at x_N with weights, all float64.

    scales   False keeps s = c = 1, where no matrix takes them up: the shape parameters alone are fitted

    Raises   ConfigError when g cannot be computed on the sample, or f is 0 on all of it
    Checked  tests/unit/adapt/test_activation_fit.py
    """
    fitting = _Fitting(spec, x_N, f_N, weight_N, scales)
    begin = list(spec.raw_values({p.name: p.initial for p in spec.trainable}).values())
    initial = fitting.initial_error(begin)
    starts = _STARTS if scales else (1.0,)
    ends = [_minimum(fitting, [math.log(scale), *begin]) for scale in starts]
    point, least = min(ends, key=lambda end: end[1])
    if not math.isfinite(least):
        raise ConfigError(
            f"{spec.name} is not finite on the model's pre-activations, from {float(x_N.min()):.4g} "
            f"to {float(x_N.max()):.4g}",
            fix="Choose an activation that is defined and grows slowly there",
        )
    return ActivationFit(
        raw=dict(zip((p.name for p in spec.trainable), point[1:], strict=True)),
        input_scale=math.exp(point[0]),
        output_scale=fitting.output_scale(point),
        error=fitting.error(point),
        initial_error=initial,
    )


class _Fitting:
    """Residuals of one layer, divided by the root of the weighted sum of squares of f."""

    def __init__(
        self, spec: Spec, x_N: Tensor, f_N: Tensor, weight_N: Tensor, scales: bool
    ) -> None:
        self._spec, self._kernel, self._x_N = spec, kernel_of(spec), x_N
        self._scales = scales
        whole = float((weight_N * f_N * f_N).sum())
        if not whole > 0:
            raise ConfigError(
                "the model's activation is 0 on the whole sample", fix="Use more text"
            )
        self._root_N = (weight_N / whole).sqrt()
        self._f_N = self._root_N * f_N

    def residual(self, point: Sequence[float]) -> Tensor | None:
        """Weighted f - c g with the best c, then small ones for the scales; None where g is not finite."""
        g_N = self._weighted(math.exp(point[0]) if self._scales else 1.0, point[1:])
        if g_N is None:
            return None
        scale = self._scale(g_N)
        sizes = [point[0], math.log(max(abs(scale), _SMALLEST_SCALE))]
        return torch.cat([self._f_N - scale * g_N, _SMALL_SCALES * torch.tensor(sizes).double()])

    def error(self, point: Sequence[float]) -> float:
        """Share of the weighted mean square of f that the fit does not explain."""
        residual = self.residual(point)
        return math.inf if residual is None else float(residual[:-2].square().sum())

    def output_scale(self, point: Sequence[float]) -> float:
        """The best c."""
        g_N = self._weighted(math.exp(point[0]), point[1:])
        return 0.0 if g_N is None else self._scale(g_N)

    def initial_error(self, raw: Sequence[float]) -> float:
        """The error with s = c = 1; infinite where g is not finite."""
        g_N = self._weighted(1.0, raw)
        return math.inf if g_N is None else float((self._f_N - g_N).square().sum())

    def _scale(self, g_N: Tensor) -> float:
        if not self._scales:
            return 1.0
        square = float(g_N @ g_N)
        return float(self._f_N @ g_N) / square if square > 0 else 0.0

    def _weighted(self, scale: float, raw: Sequence[float]) -> Tensor | None:
        names = (p.name for p in self._spec.trainable)
        try:
            values = self._spec.effective_values(dict(zip(names, raw, strict=True)))
        except (ConfigError, OverflowError):
            return None
        if not all(map(math.isfinite, values.values())):
            return None
        g_N = self._root_N * self._kernel.value(scale * self._x_N, tuple(values.values()))
        return g_N if bool(torch.isfinite(g_N).all()) else None


def _minimum(fitting: _Fitting, point: list[float]) -> tuple[list[float], float]:
    """A local minimum from `point`, and the sum of squares there; infinite where g is not finite."""
    residual = fitting.residual(point)
    if residual is None:
        return point, math.inf
    error, damping = float(residual @ residual), 1e-3
    for _ in range(_STEPS):
        jacobian_NU = _jacobian(fitting, point)
        if jacobian_NU is None:
            break
        square_UU = jacobian_NU.T @ jacobian_NU
        slope_U = jacobian_NU.T @ residual
        gain = 0.0
        while damping < 1e12:
            damped_UU = square_UU + damping * torch.diag(square_UU.diagonal() + 1e-12)
            change_U = torch.linalg.solve(damped_UU, slope_U)
            there = [at - d for at, d in zip(point, change_U.tolist(), strict=True)]
            moved_residual = fitting.residual(there) if max(map(abs, there)) < _WIDEST else None
            new = math.inf if moved_residual is None else float(moved_residual @ moved_residual)
            if moved_residual is not None and new < error:
                gain, point, residual, error = error - new, there, moved_residual, new
                damping = max(damping / 10, 1e-12)
                break
            damping *= 10
        if gain <= _SMALLEST_GAIN * error:
            break
    return point, error


def _jacobian(fitting: _Fitting, point: Sequence[float]) -> Tensor | None:
    """Derivatives of the residual by central differences, (N, U); None next to a pole."""
    columns = []
    for index in range(len(point)):
        ends = []
        for sign in (1, -1):
            moved = list(point)
            moved[index] += sign * _DIFFERENCE
            ends.append(fitting.residual(moved))
        up, down = ends
        if up is None or down is None:
            return None
        columns.append((up - down) / (2 * _DIFFERENCE))
    return torch.stack(columns, dim=1)
