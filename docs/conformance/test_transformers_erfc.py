"""LaplaceActivation and the Python form of GELU in transformers.activations: their tails."""

import math

import torch
from transformers.activations import ACT2FN


def check(name, x, true, slope):
    leaf = x.clone().requires_grad_()
    value = ACT2FN[name](leaf)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    # An error of the rounded argument of the exponential is multiplied by its square, up to 81.
    torch.testing.assert_close(value.detach().double(), true, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient.double(), slope, rtol=1e-5, atol=0)


def test_laplace():
    x = torch.linspace(-2.5, 2, 400)
    z = (x.double() - 0.707107) / (0.282095 * math.sqrt(2))
    slope = torch.exp(-z * z) / (0.282095 * math.sqrt(2 * math.pi))
    check("laplace", x, 0.5 * torch.erfc(-z), slope)


def test_gelu():
    x = torch.cat([torch.linspace(-9, -1, 400), torch.linspace(-0.5, 9, 400)])
    wide = x.double()
    cdf = 0.5 * torch.erfc(-wide / math.sqrt(2))
    slope = cdf + wide * torch.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)
    check("gelu_python", x, wide * cdf, slope)
