"""Activations times a constant or a learned scalar, and their moments on normal inputs."""

from __future__ import annotations

import math

import pytest
import torch

import stamm
from stamm.activations import catalog
from stamm.activations.spec.scaled import gaussian_moments, times, with_learned_scale
from stamm.base.errors import ConfigError

# A fixed value elsewhere than 0, a jump at the anchor, two inputs, a factor of up of its own.
SCALED = ("xielu", "sigmoid", "fatrelu_glu", "swiglu", "situ_glu")


def inputs(gated: bool) -> list[torch.Tensor]:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    return [x, x.flip(0) + 0.3] if gated else [x]


@pytest.mark.parametrize("name", SCALED)
def test_a_scaled_activation_is_the_constant_times_the_activation(name: str) -> None:
    spec = catalog.get(name)
    module, scaled = stamm.activation(spec), stamm.activation(times(spec, 2.5))
    given = inputs(name in ("fatrelu_glu", "swiglu", "situ_glu"))
    torch.testing.assert_close(scaled(*given), 2.5 * module(*given), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["relu2", "swiglu"])
def test_a_learned_scale_starts_at_1_and_has_the_function_as_its_gradient(name: str) -> None:
    spec = catalog.get(name)
    module, scaled = stamm.activation(spec), stamm.activation(with_learned_scale(spec))
    given = inputs(name == "swiglu")
    y = scaled(*given)
    torch.testing.assert_close(y, module(*given), rtol=1e-12, atol=0)
    y.sum().backward()
    (gradient,) = [p.grad for n, p in scaled.named_parameters() if n == "output_scale"]
    assert float(gradient) == pytest.approx(float(module(*given).sum()), rel=1e-6)


def test_moments_are_those_of_closed_forms() -> None:
    for deviation in (0.1, 1.0, 3.0):
        # E[relu^2] = s^2 / 2, E[relu2^2] = E[x^4] / 2 = 3 s^4 / 2, with slopes 1/2 and 4 s^2 / 2
        assert gaussian_moments(catalog.get("relu"), deviation).value == pytest.approx(
            deviation**2 / 2, rel=1e-6
        )
        squared = gaussian_moments(catalog.get("relu2"), deviation)
        assert squared.value == pytest.approx(1.5 * deviation**4, rel=1e-6)
        assert squared.slope == pytest.approx(2 * deviation**2, rel=1e-6)
    # E[(gate relu)^2 up^2] = s^2 / 2 s^2, with slopes 1/2 s^2 and s^2 / 2 in the mean
    gated = gaussian_moments(catalog.get("reglu"), 2.0)
    assert gated.value == pytest.approx(8.0, rel=1e-6)
    assert gated.slope == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("name", ["fatrelu_glu", "situ_glu", "drelu", "sigmoid", "xielu"])
def test_moments_are_those_of_samples(name: str) -> None:
    module = stamm.activation(name)
    generator = torch.Generator().manual_seed(3)
    sampled = [
        (1.3 * torch.randn(400_000, generator=generator, dtype=torch.float64))
        for _ in inputs(name in ("fatrelu_glu", "situ_glu", "drelu"))
    ]
    for x in sampled:
        x.requires_grad_()
    y = module(*sampled)
    slopes = torch.autograd.grad(y.sum(), sampled)
    moments = gaussian_moments(catalog.get(name), 1.3)
    assert moments.value == pytest.approx(float((y.detach() ** 2).mean()), rel=0.03)
    assert moments.slope == pytest.approx(
        sum(float((slope**2).mean()) for slope in slopes) / len(slopes), rel=0.03
    )


def test_an_anchor_outside_of_the_density_costs_no_more() -> None:
    """smelu states its value at 1; its inputs reach 1e-5, where it is (x + 1)^2 / 4."""
    assert gaussian_moments(catalog.get("smelu"), 1e-6).value == pytest.approx(1 / 16, rel=1e-5)


def test_refusals() -> None:
    spec = catalog.get("relu2")
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="must be positive and finite"):
            times(spec, factor)
    with pytest.raises(ConfigError, match="has a parameter output_scale already"):
        with_learned_scale(with_learned_scale(spec))
    surrogate = next(catalog.get(n) for n in catalog.names() if catalog.get(n).surrogate)
    with pytest.raises(ConfigError, match="surrogate gradient"):
        with_learned_scale(surrogate)
