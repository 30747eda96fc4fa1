"""Statistics of one feed-forward layer, added up batch by batch in float64.

Letters: N tokens, C units (width of the feed-forward block), D width of the residual stream, R units of
the effective rank.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.module import Activation, GatedActivation
from stamm.activations.spec.gradient_checks import StatedGradient
from stamm.observe.records import LayerObservation, LearnedParameter

RANK_UNITS = 1024
RANK_TOKENS = 4
"""Tokens for each unit of the effective rank, at least: with as many, the rank of a sample is 3 to 4 %
below that of all tokens; with one, a fifth; with fewer, the number of tokens bounds it."""
DEAD = 1e-6
GRADIENT_DEAD = 0.01
_BLOCK = 2**20  # numbers of one float64 block
_SMALLEST = 1e-30


class LayerStatistics:
    """Statistics over all tokens of: x (pre-activations), f(x), features (outputs of the activation),
    gradients of the loss in x, and the residual stream behind the layer.

    Of a gated block x is the gate's pre-activation and f is applied to it alone, before the product with
    the other half; features are the products.

    negative_share            share of x below 0
    negative_gradient_share   sum of |dL/dx| over x < 0, as a share of that over all x
    negative_slope_share      the same over x with f'(x) < 0
    mean_abs_slope            mean of |f'(x)|, of the derivative that the backward pass uses
    gradient_dead_share       share of units whose mean |f'(x)| is below GRADIENT_DEAD
    one_sided_share           share of units whose x all lie between two neighbouring knots of f, so that
                              the layer never sees their other pieces. None where f has one piece
    nonlinearity              min over a, b of E[(f(x) - a x - b)^2] / Var f(x), all units together: the
                              share of the variance of f that the best line does not explain; 0 for a
                              linear f, 0.2665 for ReLU of a standard normal. None if f is constant
    unit_nonlinearity         the same with a line for each unit: sum of their residuals / sum of variances
    dead_share                share of units whose features never exceed DEAD times the layer's root mean
                              square
    zero_share                share of features that are exactly 0, which a sparse product skips
    effective_rank            exp(-sum p log p), p the singular values of the features (N, R), not centred,
                              divided by their sum; of at most RANK_UNITS units, evenly spaced. None with
                              fewer than RANK_TOKENS tokens for each of them
    kurtosis                  mean_j m_j^2 / (mean_j m_j)^2, m_j the mean square of residual dimension j:
                              1 if all are alike, D if one has everything
    max_median                mean over tokens of max_j |r_j| / median_j |r_j|, r the residual stream

    Memory   O(C + R^2), whatever the text
    Source   effective rank and dead units: Roy and Vetterli 2007, as in arXiv 2405.00662; kurtosis and
             max/median: He et al. 2024, arXiv 2405.19279
    Checked  tests/unit/observe/test_layer_statistics.py, against closed forms
    """

    def __init__(self, layer: int, module: Activation | GatedActivation, units: int) -> None:
        self.layer, self.units = layer, units
        self._module, self._kernel = module, kernel_of(module.spec)
        self._tokens, self._negative, self._zeros = 0, 0, 0
        # sums over tokens: x, x^2, f, f^2, x f
        self._moments = torch.zeros(5, units, dtype=torch.float64)
        self._squares = torch.zeros(units, dtype=torch.float64)
        self._largest = torch.zeros(units, dtype=torch.float64)
        kept = min(units, RANK_UNITS)
        self._columns = torch.arange(kept) * units // kept
        self._gram = torch.zeros(kept, kept, dtype=torch.float64)
        self._slope = torch.zeros(units, dtype=torch.float64)
        self._low = torch.full((units,), math.inf, dtype=torch.float64)
        self._high = -self._low
        self._flow = torch.zeros(3, dtype=torch.float64)
        self._residual = torch.zeros(0, dtype=torch.float64)
        self._ratio = 0.0

    def add_features(self, x_NC: Tensor, y_NC: Tensor) -> None:
        """Add pre-activations and outputs of the activation."""
        parameters = self._parameters()
        self._tokens += len(x_NC)
        for x, y in zip(self._blocks(x_NC), self._blocks(y_NC), strict=True):
            f = self._kernel.value(x, parameters)
            slope = self._kernel.slopes(x, parameters)[0]
            for row, values in enumerate((x, x * x, f, f * f, x * f)):
                self._moments[row] += values.sum(0)
            self._negative += int((x < 0).sum())
            self._zeros += int((y == 0).sum())
            self._slope += slope.expand_as(x).abs().sum(0)
            self._low = torch.minimum(self._low, x.amin(0))
            self._high = torch.maximum(self._high, x.amax(0))
            self._squares += (y * y).sum(0)
            self._largest = torch.maximum(self._largest, y.abs().amax(0))
            kept = y[:, self._columns]
            self._gram += kept.T @ kept

    def add_gradients(self, x_NC: Tensor, gradient_NC: Tensor) -> None:
        """Add the gradients of the loss, a sum over tokens, in the pre-activations."""
        parameters = self._parameters()
        for x, gradient in zip(self._blocks(x_NC), self._blocks(gradient_NC), strict=True):
            size, slope = gradient.abs(), self._kernel.slopes(x, parameters)[0]
            self._flow += torch.stack([size.sum(), size[x < 0].sum(), size[slope < 0].sum()])

    def add_residual(self, residual_ND: Tensor) -> None:
        """Add the residual stream behind the layer."""
        size = residual_ND.double().abs()
        squares = (size * size).sum(0)
        self._residual = squares + (self._residual if self._residual.numel() else 0.0)
        middle = size.median(dim=1).values.clamp(min=_SMALLEST)
        self._ratio += float((size.amax(1) / middle).sum())

    def result(self) -> LayerObservation:
        """The numbers of the tokens added so far, at least one."""
        spec, tokens = self._module.spec, self._tokens
        count = tokens * self.units
        whole, negative, falling = self._flow.tolist()
        square = self._residual / tokens
        ranked = tokens >= RANK_TOKENS * len(self._columns)
        mean_square = float(self._squares.sum()) / count
        return LayerObservation(
            layer=self.layer,
            activation=spec.name,
            observed="gate pre-activation"
            if isinstance(self._module, GatedActivation)
            else "pre-activation",
            units=self.units,
            parameters=self._learned(),
            negative_share=self._negative / count,
            negative_gradient_share=negative / whole if whole > 0 else None,
            negative_slope_share=falling / whole if whole > 0 else None,
            mean_abs_slope=float(self._slope.sum()) / count,
            gradient_dead_share=float((self._slope / tokens < GRADIENT_DEAD).double().mean()),
            one_sided_share=self._one_sided(),
            nonlinearity=_unexplained(self._moments.sum(1, keepdim=True), count),
            unit_nonlinearity=_unexplained(self._moments, tokens),
            dead_share=float((self._largest <= DEAD * mean_square**0.5).double().mean()),
            zero_share=self._zeros / count,
            effective_rank=effective_rank(torch.linalg.eigvalsh(self._gram)) if ranked else None,
            rank_units=len(self._columns),
            kurtosis=float((square**2).mean() / square.mean().clamp(min=_SMALLEST) ** 2),
            max_median=self._ratio / tokens,
        )

    def _one_sided(self) -> float | None:
        spec, parameters = self._module.spec, self._parameters()
        names = [parameter.name for parameter in spec.parameters]
        values = [torch.as_tensor(p).expand(self.units).tolist() for p in parameters]
        shapes = list(zip(*values, strict=True)) or [()] * self.units
        knots = {
            shape: StatedGradient(spec, dict(zip(names, shape, strict=True))).knots
            for shape in set(shapes)
        }
        if not any(knots.values()):
            return None
        ranges = zip(self._low.tolist(), self._high.tolist(), strict=True)
        crossed = sum(
            any(low < knot < high for knot in knots[shape])
            for (low, high), shape in zip(ranges, shapes, strict=True)
        )
        return 1.0 - crossed / self.units

    def _parameters(self) -> tuple[Tensor | float, ...]:
        """Effective values of the spec's parameters: shape () or (C,)."""
        with torch.no_grad():
            tensors = (t.detach().double() for t in self._module.effective_tensors())
            trained = iter([t.reshape(()) if t.numel() == 1 else t for t in tensors])
        return tuple(
            next(trained) if p.trainable else p.initial for p in self._module.spec.parameters
        )

    def _learned(self) -> dict[str, LearnedParameter]:
        names = {parameter.name for parameter in self._module.spec.trainable}
        learned = {}
        for name, value in self._module.values(raw=False).items():
            if name in names:
                values = value if isinstance(value, list) else [value]
                learned[name] = LearnedParameter(
                    mean=sum(values) / len(values),
                    low=min(values),
                    high=max(values),
                    count=len(values),
                )
        return learned

    def _blocks(self, values_NC: Tensor) -> list[Tensor]:
        rows = max(_BLOCK // self.units, 1)
        return [block.double() for block in torch.split(values_NC.detach(), rows)]


def _unexplained(moments: Tensor, count: int) -> float | None:
    """Sum of the residual variances of f after a line in x for each column, over the sum of variances."""
    x, xx, f, ff, xf = moments / count
    # Below the floor E[f^2] - E[f]^2 holds rounding errors alone.
    floor = 1e-14 * torch.stack([xx, ff])
    var_x, var_f = torch.stack([xx - x * x, ff - f * f])
    var_x, var_f = (
        torch.where(v > low, v, 0.0) for v, low in zip((var_x, var_f), floor, strict=True)
    )
    explained = torch.where(var_x > 0, (xf - x * f) ** 2 / var_x.clamp(min=_SMALLEST), 0.0)
    whole = float(var_f.sum())
    return float((var_f - explained).clamp(min=0.0).sum()) / whole if whole > 0 else None


def effective_rank(square_R: Tensor) -> float:
    """exp(-sum p log p), p the singular values divided by their sum, from their squares in any order."""
    singular = square_R.clamp(min=0.0).sqrt()
    share = singular / singular.sum().clamp(min=_SMALLEST)
    return float(torch.special.entr(share).sum().exp())


def pca_rank(square_R: Tensor, share: float = 0.99) -> int:
    """Smallest number of singular values whose squares are `share` of the sum of all `square_R`."""
    sums = square_R.clamp(min=0.0).sort(descending=True).values.cumsum(0)
    return int((sums < share * sums[-1]).sum()) + 1
