"""Statistics of a layer against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from stamm.activations.module import build_activation, xielu
from stamm.observe import statistics
from stamm.observe.records import LayerObservation
from stamm.observe.statistics import LayerStatistics


def normal(count: int) -> torch.Tensor:
    """Quantiles of the standard normal: its distribution without sampling noise, shape (count,)."""
    middle = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return math.sqrt(2) * torch.erfinv(2 * middle - 1)


def observed(name: str, x: torch.Tensor, gradient: torch.Tensor | None = None) -> LayerObservation:
    """The statistics of an activation at x (N, C), in two batches."""
    module = build_activation(name, dtype=torch.float64)
    layer = LayerStatistics(0, module, x.shape[1])
    given = torch.ones_like(x) if gradient is None else gradient
    for part, into in zip(x.split(len(x) // 2), given.split(len(x) // 2), strict=True):
        layer.add_features(part, module(part).detach())
        layer.add_gradients(part, into)
        layer.add_residual(part)
    return layer.result()


def test_relu_of_a_standard_normal() -> None:
    found = observed("relu", normal(20_000).reshape(-1, 2))
    # E f^2 = 1/2, E f = 1/sqrt(2 pi), E x f = 1/2
    variance = 0.5 - 1 / (2 * math.pi)
    assert found.nonlinearity == pytest.approx(1 - 0.25 / variance, abs=1e-3)
    assert found.negative_share == pytest.approx(0.5)
    assert found.mean_abs_slope == pytest.approx(0.5)
    assert found.negative_gradient_share == pytest.approx(0.5)
    assert found.negative_slope_share == 0.0
    assert found.zero_share == pytest.approx(0.5)
    assert found.observed == "pre-activation"


def test_a_square_is_all_nonlinear_and_a_line_not_at_all() -> None:
    x = normal(10_000)[:, None]
    assert observed("square", x).nonlinearity == pytest.approx(1.0, abs=1e-6)
    # Of a mean m and variance 1: Cov(x, x^2) = 2 m, Var x^2 = 4 m^2 + 2
    assert observed("square", x + 5).nonlinearity == pytest.approx(2 / 102, rel=1e-2)
    line = observed("identity", x + 100)
    assert (line.nonlinearity, line.unit_nonlinearity) == (0.0, 0.0)
    # Where a ReLU has one side alone it is a line; over both units together it is not.
    sides = observed("relu", torch.stack([normal(1000).abs(), -normal(1000).abs()], dim=1))
    assert sides.unit_nonlinearity == pytest.approx(0.0, abs=1e-12)
    assert sides.nonlinearity is not None
    assert sides.nonlinearity > 0.2
    assert observed("relu", -x.abs()).nonlinearity is None


def test_shares_of_a_layer_made_by_hand() -> None:
    x = torch.tensor([[-3.0, 1.0, -1.0, 2.0], [-1.0, -2.0, -0.5, 2.0]], dtype=torch.float64)
    gradient = torch.tensor([[1.0, 2.0, -3.0, 4.0], [0.0, 5.0, 1.0, -4.0]], dtype=torch.float64)
    found = observed("relu", x, gradient)
    assert found.negative_share == 5 / 8
    assert found.negative_gradient_share == 10 / 20
    assert found.dead_share == 0.5
    assert found.mean_abs_slope == 3 / 8
    # Residual stream: mean squares 5, 2.5, 0.625 and 4 of its dimensions.
    squares = [5.0, 2.5, 0.625, 4.0]
    mean = sum(squares) / 4
    assert found.kurtosis == pytest.approx(sum(s * s for s in squares) / 4 / mean**2)
    assert found.max_median == pytest.approx((3 / 1 + 2 / 1) / 2)


def test_the_slope_of_xielu_is_negative_left_of_its_minimum() -> None:
    # f' = alpha_n (exp(x) - 1) + beta < 0 for x < ln(1 - 0.5 / 0.8) = -0.98
    x = torch.tensor([[-2.0], [-0.97], [-0.99], [1.0]], dtype=torch.float64)
    found = observed("xielu", x, torch.tensor([[4.0], [2.0], [1.0], [3.0]], dtype=torch.float64))
    slopes = [abs(0.8 * math.expm1(v) + 0.5) for v in (-2.0, -0.97, -0.99)]
    assert found.mean_abs_slope == pytest.approx((sum(slopes) + 2.1) / 4, rel=1e-6)
    assert found.negative_slope_share == pytest.approx(5 / 10)
    assert found.negative_gradient_share == pytest.approx(7 / 10)


def test_effective_rank_of_features() -> None:
    # The same tokens 4 times: singular values are twice those of once.
    eye = torch.eye(6, dtype=torch.float64).repeat(4, 1)
    assert observed("identity", eye).effective_rank == pytest.approx(6.0)
    assert observed("identity", eye[:23]).effective_rank is None
    one = torch.arange(1.0, 9.0, dtype=torch.float64)
    assert observed("identity", torch.outer(one, one[:2])).effective_rank == pytest.approx(
        1.0, abs=1e-3
    )
    # singular values 3 and 1
    two = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)).repeat(4, 1)
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert observed("identity", two).effective_rank == pytest.approx(math.exp(entropy))


def test_the_rank_of_a_wide_block_is_that_of_evenly_spaced_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "RANK_UNITS", 3)
    found = observed("identity", torch.eye(6, dtype=torch.float64).repeat(2, 1))
    assert (found.rank_units, found.effective_rank) == (3, pytest.approx(3.0))


def test_blocks_do_not_change_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(600).reshape(-1, 6)
    whole = observed("gelu", x)
    monkeypatch.setattr(statistics, "_BLOCK", 20)
    for name in ("nonlinearity", "effective_rank", "mean_abs_slope", "dead_share"):
        assert getattr(observed("gelu", x), name) == pytest.approx(getattr(whole, name))


def test_learned_shapes_are_effective_values_of_each_neuron() -> None:
    module = xielu(neurons=2)
    module.load_values({"alpha_p": [0.5, 1.5]}, raw=False)
    layer = LayerStatistics(3, module, 2)
    x = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    layer.add_features(x, module(x).detach())
    layer.add_residual(x)
    found = layer.result()
    shape = found.parameters["alpha_p"]
    assert (shape.mean, shape.low, shape.high, shape.count) == (
        pytest.approx(1.0), pytest.approx(0.5), pytest.approx(1.5), 2,
    )  # fmt: skip
    assert "beta" not in found.parameters
    # f' = 2 alpha_p x + 0.5
    assert found.mean_abs_slope == pytest.approx((1.5 + 2.5 + 3.5 + 6.5) / 4)
    assert found.negative_gradient_share is None


def test_of_a_gated_block_the_gate_is_observed() -> None:
    module = build_activation("swiglu", dtype=torch.float64)
    gate, up = torch.tensor([[-1.0], [2.0]]).double(), torch.tensor([[0.0], [0.0]]).double()
    layer = LayerStatistics(0, module, 1)
    layer.add_features(gate, module(gate, up).detach())
    layer.add_residual(gate)
    found = layer.result()
    assert (found.observed, found.negative_share) == ("gate pre-activation", 0.5)
    # The products are 0, f of the gate is not.
    assert found.dead_share == 1.0
    assert found.nonlinearity == pytest.approx(0.0, abs=1e-12)  # a line through two points
