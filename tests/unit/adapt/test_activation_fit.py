"""The fit of one activation to another on a weighted sample."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from stamm.activations.catalog.registry import spec_of
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fit import fit_activation
from stamm.base.errors import ConfigError

X = torch.linspace(-4, 4, 801, dtype=torch.float64)
WEIGHT = torch.exp(-X * X / 2)


def _values(name: str, x: torch.Tensor, **values: float) -> torch.Tensor:
    spec = spec_of(name)
    return kernel_of(spec).value(x, tuple({**spec.initial_values(), **values}.values()))


@pytest.mark.parametrize(("scale", "behind"), [(0.7, 1.3), (1.0, 1.0), (1.8, -0.4)])
def test_scales_of_the_same_function_are_found(scale: float, behind: float) -> None:
    f = behind * _values("gelu", scale * X)
    fit = fit_activation(spec_of("gelu"), X, f, WEIGHT)
    assert fit.error < 1e-9
    assert (fit.input_scale, fit.output_scale) == pytest.approx((scale, behind), rel=1e-4)


def test_shape_parameters_are_found() -> None:
    """SiLU is Swish with beta = 1: s beta = 1 and c = s."""
    fit = fit_activation(spec_of("swish_beta"), X, _values("silu", X), WEIGHT)
    beta = spec_of("swish_beta").effective_values(fit.raw)["beta"]
    assert fit.error < 1e-9
    assert fit.input_scale * beta == pytest.approx(1, rel=1e-4)
    assert fit.output_scale * fit.input_scale == pytest.approx(1, rel=1e-4)


def test_a_gate_and_a_function_of_up_are_fitted_jointly() -> None:
    """Scales of both inputs are found where the function is one of known scales; clamps tell them apart."""
    gate, up = torch.randn(2, 4000, generator=torch.Generator().manual_seed(1)).double() * 4

    def clamped(scale: float, by: float) -> torch.Tensor:
        x = torch.clamp(scale * gate, max=7)
        return x * torch.sigmoid(1.702 * x) * (torch.clamp(by * up, -7, 7) + 1)

    f = 0.8 * clamped(1.5, 2.0)
    fit = fit_activation(spec_of("swiglu_oai"), gate, f, torch.ones_like(f), up_N=up)
    assert fit.error < 1e-6
    found = (fit.input_scale, fit.up_scale, fit.output_scale)
    assert found == pytest.approx((1.5, 2.0, 0.8), rel=1e-2)
    whole = float(f.square().sum())
    initial = float((f - clamped(1.0, 1.0)).square().sum()) / whole
    assert fit.initial_error == pytest.approx(initial)


def test_the_output_scale_of_a_homogeneous_function_is_the_regression_coefficient() -> None:
    f, relu = _values("silu", X), torch.relu(X)
    fit = fit_activation(spec_of("relu"), X, f, WEIGHT)
    slope = float((WEIGHT * f * relu).sum() / (WEIGHT * relu * relu).sum())
    assert fit.output_scale * fit.input_scale == pytest.approx(slope, rel=1e-9)
    # Of s c = slope both are nearest 1 where they are equal.
    assert fit.input_scale == pytest.approx(slope**0.5, rel=1e-3)
    whole = float((WEIGHT * f * f).sum())
    assert fit.error == pytest.approx(float((WEIGHT * (f - slope * relu) ** 2).sum()) / whole)
    assert fit.initial_error == pytest.approx(float((WEIGHT * (f - relu) ** 2).sum()) / whole)


def test_scales_of_a_square_stay_moderate() -> None:
    """c s^2 is one number: without a preference s drifts to where further training diverges."""
    fit = fit_activation(spec_of("relu2"), X, _values("xielu", X), WEIGHT)
    assert 0.5 < fit.input_scale < 2
    assert 0.5 < fit.output_scale < 2


def test_no_point_of_a_grid_is_better() -> None:
    f = _values("silu", X)
    fit = fit_activation(spec_of("xielu"), X, f, WEIGHT)
    whole = float((WEIGHT * f * f).sum())
    grid = itertools.product((0.25, 0.5, 1.0, 1.5), (0.05, 0.2, 0.8), (0.51, 0.8, 2.0))
    for scale, alpha_p, alpha_n in grid:
        g = _values("xielu", scale * X, alpha_p=alpha_p, alpha_n=alpha_n)
        behind = float((WEIGHT * f * g).sum() / (WEIGHT * g * g).sum())
        assert fit.error <= float((WEIGHT * (f - behind * g) ** 2).sum()) / whole
    assert fit.error < fit.initial_error / 4


def test_what_cannot_be_fitted_is_refused() -> None:
    wide = torch.tensor([-1.0, 1e200], dtype=torch.float64)
    with pytest.raises(ConfigError, match="relu2 is not finite on the model's pre-activations"):
        fit_activation(spec_of("relu2"), wide, wide, torch.ones(2, dtype=torch.float64))
    with pytest.raises(ConfigError, match="is 0 on the whole sample"):
        fit_activation(spec_of("relu"), X, torch.zeros_like(X), WEIGHT)


def test_an_initial_shape_that_overflows_has_an_infinite_error() -> None:
    x = torch.tensor([0.0, 1.0, 1e160], dtype=torch.float64)
    f = torch.relu(x)
    fit = fit_activation(spec_of("relu"), x, f, torch.ones(3, dtype=torch.float64) * 1e-300)
    assert math.isfinite(fit.error)
