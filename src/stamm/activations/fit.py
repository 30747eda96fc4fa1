"""Fit an activation to another one on a sample of pre-activations.

    min over s > 0, c and the shape parameters p of   sum_i w_i (f(x_i) - c g(s x_i; p))^2

s is multiplied into the matrix before the activation, c into the one after it. c has a closed form;
the rest is found by the Levenberg-Marquardt method from several s, in float64. A small penalty
(log s)^2 + (log |c|)^2 is added: of scales that fit equally well, as all do for a homogeneous g, it
prefers those that leave the matrices as large as they were, which further training needs.

Of a gate times a function h of up, c g(s x; p) h(t u) is fitted, jointly in s, t and p; t is multiplied into up's
matrix, and log t is one more unknown.

Letters: N numbers of the sample, U unknowns (log s, the stored values of p, log t).
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
    up_scale        t; 1 where up is not fitted
    error           share of the weighted mean square of f that c g(s x) misses
    initial_error   the same of g(x) with its initial parameters
    """

    raw: dict[str, float]
    input_scale: float
    output_scale: float
    error: float
    initial_error: float
    up_scale: float = 1.0


def up_factor(spec: Spec, u: Tensor) -> Tensor:
    """h(u), which the gate of a gated spec multiplies: u itself, or the stated function of it."""
    up = kernel_of(spec).up
    if up is None:
        return u
    return up.value(u, tuple(p.initial for p in spec.parameters if not p.trainable))


def fit_activation(
    spec: Spec,
    x_N: Tensor,
    f_N: Tensor,
    weight_N: Tensor,
    *,
    scales: bool = True,
    up_N: Tensor | None = None,
) -> ActivationFit:
    """Fit the activation `spec` to the values f_N at x_N with weights, all float64.

    scales   False keeps s = c = 1, where no matrix takes them up: the shape parameters alone are fitted
    up_N     u, where g(s x) h(t u) is fitted to f_N

    Raises   ConfigError when g cannot be computed on the sample, or f is 0 on all of it
    Checked  tests/unit/adapt/test_activation_fit.py
    """
    fitting = _Fitting(spec, x_N, f_N, weight_N, scales, up_N)
    begin = list(spec.raw_values({p.name: p.initial for p in spec.trainable}).values())
    if up_N is not None:
        begin.append(0.0)
    initial = fitting.initial_error([0.0, *begin])
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
        raw=dict(zip((p.name for p in spec.trainable), point[1:], strict=up_N is None)),
        input_scale=math.exp(point[0]),
        output_scale=fitting.output_scale(point),
        error=fitting.error(point),
        initial_error=initial,
        up_scale=1.0 if up_N is None else math.exp(point[-1]),
    )


class _Fitting:
    """Residuals of one layer, divided by the root of the weighted sum of squares of f."""

    def __init__(
        self,
        spec: Spec,
        x_N: Tensor,
        f_N: Tensor,
        weight_N: Tensor,
        scales: bool,
        up_N: Tensor | None,
    ) -> None:
        self._spec, self._kernel, self._x_N = spec, kernel_of(spec), x_N
        self._scales, self._up_N = scales, up_N
        whole = float((weight_N * f_N * f_N).sum())
        if not whole > 0:
            raise ConfigError(
                "the model's activation is 0 on the whole sample", fix="Use more text"
            )
        self._root_N = (weight_N / whole).sqrt()
        self._f_N = self._root_N * f_N

    def residual(self, point: Sequence[float]) -> Tensor | None:
        """Weighted f - c g with the best c, then small ones for the scales; None where g is not finite."""
        g_N = self._weighted(point)
        if g_N is None:
            return None
        scale = self._scale(g_N)
        sizes = [point[0], math.log(max(abs(scale), _SMALLEST_SCALE))]
        sizes += [] if self._up_N is None else [point[-1]]
        return torch.cat([self._f_N - scale * g_N, _SMALL_SCALES * torch.tensor(sizes).double()])

    def error(self, point: Sequence[float]) -> float:
        """Share of the weighted mean square of f that the fit does not explain."""
        residual = self.residual(point)
        return math.inf if residual is None else float(residual[: len(self._f_N)].square().sum())

    def output_scale(self, point: Sequence[float]) -> float:
        """The best c."""
        g_N = self._weighted(point)
        return 0.0 if g_N is None else self._scale(g_N)

    def initial_error(self, point: Sequence[float]) -> float:
        """The error with c = 1; infinite where g is not finite."""
        g_N = self._weighted(point)
        return math.inf if g_N is None else float((self._f_N - g_N).square().sum())

    def _scale(self, g_N: Tensor) -> float:
        if not self._scales:
            return 1.0
        square = float(g_N @ g_N)
        return float(self._f_N @ g_N) / square if square > 0 else 0.0

    def _weighted(self, point: Sequence[float]) -> Tensor | None:
        names = [p.name for p in self._spec.trainable]
        scale = math.exp(point[0]) if self._scales else 1.0
        raw = point[1 : 1 + len(names)]
        try:
            values = self._spec.effective_values(dict(zip(names, raw, strict=True)))
        except (ConfigError, OverflowError):
            return None
        if not all(map(math.isfinite, values.values())):
            return None
        g_N = self._root_N * self._kernel.value(scale * self._x_N, tuple(values.values()))
        if self._up_N is not None:
            g_N = g_N * up_factor(self._spec, math.exp(point[-1]) * self._up_N)
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
