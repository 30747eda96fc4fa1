"""xIELU of transformers.activations, with its initial alphas: value and slope in bfloat16 and float32."""

import torch
from transformers.activations import XIELUActivation


def exact(x, module):
    """Value and slope in float64, from the parameters that the module holds."""
    alpha_p = torch.nn.functional.softplus(module.alpha_p.detach().double())
    alpha_n = 0.5 + torch.nn.functional.softplus(module.alpha_n.detach().double())
    x = x.double()
    negative = x.clamp(max=0)
    tail = torch.expm1(negative) - negative
    near = negative**2 * (1 / 2 + negative / 6 + negative**2 / 24)  # of exp(x) - 1 - x near 0
    tail = torch.where(negative > -1e-3, near, tail)
    value = torch.where(x > 0, alpha_p * x * x, alpha_n * tail) + 0.5 * x
    slope = torch.where(x > 0, 2 * alpha_p * x, alpha_n * torch.expm1(negative)) + 0.5
    return value, slope


def computed(x, dtype):
    module = XIELUActivation(dtype=dtype)
    leaf = x.to(dtype).requires_grad_()
    value = module(leaf)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    return module, leaf.detach(), value.detach(), slope


def ulps(result, true):
    tiny = torch.finfo(result.dtype).tiny
    unit = (
        2.0 ** torch.floor(torch.log2(true.abs().clamp(min=tiny))) * torch.finfo(result.dtype).eps
    )
    return ((result.double() - true).abs() / unit).max().item()


def test_the_slope_just_below_zero_has_its_sign():
    for dtype in (torch.float32, torch.bfloat16):
        module, x, _, slope = computed(-torch.logspace(-12, -5.1, 200), dtype)
        assert (slope > 0).all()
        assert torch.allclose(slope.double(), exact(x, module)[1], rtol=0.01)


def test_the_slope_at_zero_is_beta():
    for zero in (0.0, -0.0):
        assert computed(torch.tensor([zero]), torch.float32)[3].item() == 0.5


def test_bfloat16_results_are_correctly_rounded():
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[(every.abs() < 50) & (every.abs() > 1e-30)]
    module, x, value, slope = computed(every, torch.bfloat16)
    true_value, true_slope = exact(x, module)
    away = (true_value.abs() > 0.05 * x.double().abs()) & (true_slope.abs() > 0.05)  # from zeros
    assert ulps(value[away], true_value[away]) < 0.51
    assert ulps(slope[away], true_slope[away]) < 0.51


def test_float64_is_not_rounded_to_float32():
    assert (
        computed(torch.tensor([0.3], dtype=torch.float64), torch.float64)[2].dtype == torch.float64
    )
    module, x, value, _ = computed(torch.tensor([0.3], dtype=torch.float64), torch.float64)
    assert abs(value.item() - exact(x, module)[0].item()) < 1e-15
