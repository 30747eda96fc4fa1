"""Rectified powers, and those that are 0 up to 1."""

from __future__ import annotations

import pytest
import torch

from stamm.activations import catalog
from stamm.activations.module import build_activation
from stamm.activations.spec.cut import cut_at_one, rectified_power
from stamm.base.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "power"),
    [("relu", 1), ("relu2", 2), ("relu3", 3), ("reglu", 1), ("relu2_glu", 2), ("leaky_relu", None),
     ("swiglu", None), ("xielu", None), ("drelu", None), ("relu6", None), ("fatrelu_glu", None),
     ("shifted_relu", None), ("helu", None)],
)  # fmt: skip
def test_the_power_of_a_rectifier_is_found(name: str, power: int | None) -> None:
    assert rectified_power(catalog.get(name)) == power


@pytest.mark.parametrize("power", [1, 2])
def test_a_cut_activation_is_the_rectifier_above_one(power: int) -> None:
    module = build_activation(cut_at_one(catalog.get({1: "relu", 2: "relu2"}[power])))
    x = torch.tensor([-3.0, 0.0, 0.99, 1.0, 1.01, 2.0, 7.0], requires_grad=True)
    expected = torch.tensor([0, 0, 0, 0, 1.01**power, 2.0**power, 7.0**power])
    y = module(x)
    torch.testing.assert_close(y.detach(), expected)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope[4:], power * x.detach()[4:] ** (power - 1))
    assert not bool(slope[:4].any())


@pytest.mark.parametrize(
    ("name", "what"), [("drelu", "a gate times a function of up"), ("xielu", "not max")]
)
def test_what_no_matrix_takes_up_is_refused(name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        cut_at_one(catalog.get(name))
