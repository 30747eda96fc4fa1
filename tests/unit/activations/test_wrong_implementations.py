"""Wrong implementations of xIELU, each wrong in one way, and right ones: what `check --against` says of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stamm.activations import catalog
from stamm.activations.conformance.exact import SAMPLED
from stamm.activations.conformance.implementations import Implementation, implementation
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.probes import probe
from stamm.base.errors import StammError

pytestmark = pytest.mark.slow

SPEC = catalog.XIELU
Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def formula(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    """xIELU in the dtype of x, with limits at the infinities."""
    below = x.clamp(max=0)
    # The series of expm1(x) - x near 0, where the difference loses its digits.
    near = below.clamp(min=-0.1)
    series = sum((near**n / math.factorial(n) for n in range(3, 13)), near * near / 2)
    tail = torch.where(below > -0.1, series, torch.expm1(below) - below)
    negative = torch.where(torch.isinf(x), alpha_n * x.abs(), alpha_n * tail + 0.5 * x)
    positive = x * (alpha_p * x + 0.5)
    return torch.where(x > 0, positive, negative)


def right(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    """Computed in float64: right in every dtype."""
    return formula(x.double(), alpha_p.double(), alpha_n.double()).to(x.dtype)


def nan_becomes_0(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    return right(
        torch.nan_to_num(x, nan=0.0, posinf=torch.inf, neginf=-torch.inf), alpha_p, alpha_n
    )


def infinity_becomes_nan(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    y = right(x, alpha_p, alpha_n)
    return torch.where(x == -torch.inf, y * 0, y)


def ignores_strides(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    if x.numel() and not x.is_contiguous() and 0 not in x.stride():
        flat = torch.as_strided(x, (x.numel(),), (1,), x.storage_offset())
        x = flat.reshape(x.shape)
    return right(x, alpha_p, alpha_n)


def drops_tails_of_rows(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    y = right(x, alpha_p, alpha_n)
    width = x.shape[-1] if x.dim() > 1 else 0
    if not width or width % 8 == 0:
        return y
    kept = torch.arange(width) < width - width % 8
    return torch.where(kept, y, torch.zeros_like(y))


def drops_the_tail_of_a_vector(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    y = right(x, alpha_p, alpha_n).reshape(-1)
    kept = torch.arange(y.numel()) < max(y.numel() - y.numel() % 16, 1)
    return torch.where(kept, y, torch.zeros_like(y)).reshape(x.shape)


def writes_its_input(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    y = right(x, alpha_p, alpha_n)
    if not x.requires_grad:
        with contextlib.suppress(RuntimeError):  # an expanded tensor
            x.copy_(y)
    return y


def off_in_a_short_interval(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    y = right(x, alpha_p, alpha_n)
    inside = (x > 1.234) & (x < 1.2355)
    return torch.where(inside, y * (1 + 8 * torch.finfo(x.dtype).eps), y)


def float32_arithmetic(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    wide = torch.float32 if x.dtype == torch.float64 else torch.float64
    return formula(x.to(wide), alpha_p.to(wide), alpha_n.to(wide)).to(x.dtype)


class _SumsInShort(torch.autograd.Function):
    """Right but for the gradients of the parameters, which are added up in bfloat16, row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
        ctx.save_for_backward(x, alpha_p, alpha_n)
        return right(x, alpha_p, alpha_n)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, ...]:
        x, alpha_p, alpha_n = ctx.saved_tensors
        given = [t.detach().clone().requires_grad_() for t in (x, alpha_p, alpha_n)]
        with torch.enable_grad():
            y = right(*given)
            (slope,) = torch.autograd.grad(y, given[0], weight, retain_graph=True)
        wide = x.double()
        terms = [
            torch.where(wide > 0, wide * wide, 0.0) * weight.double(),
            torch.where(wide > 0, 0.0, torch.expm1(wide.clamp(max=0)) - wide) * weight.double(),
        ]
        short = torch.bfloat16 if x.dtype == torch.bfloat16 and x.numel() > 1 else torch.float64
        sums = []
        for term in terms:
            total = torch.zeros((), dtype=short)
            for row in term.reshape(-1, term.shape[-1] if term.dim() else 1):
                total = total + row.sum().to(short)
            sums.append(total.to(alpha_p.dtype).reshape(alpha_p.shape))
        return slope, *sums


def sums_in_bfloat16(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    return _SumsInShort.apply(x, alpha_p, alpha_n)  # type: ignore[no-any-return, no-untyped-call]


def slope_of_another(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    """The right values, with the slope of the positive piece on both sides."""
    y = right(x, alpha_p, alpha_n)
    smooth = x * (alpha_p * x + 0.5)
    return y.detach() + (smooth - smooth.detach())


def half_slope_at_0(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    y = right(x, alpha_p, alpha_n)
    return torch.where(x == 0, y / 2, y)


def depends_on_threads(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    y = right(x, alpha_p, alpha_n)
    if torch.get_num_threads() > 2 and x.numel() > 1000:
        y = torch.where(torch.arange(x.numel()).reshape(x.shape) == x.numel() - 1, y * 0, y)
    return y


WRONG: Mapping[str, Function] = {
    "NaN in, NaN out": nan_becomes_0,
    "limits at infinity": infinity_becomes_nan,
    "shapes, strides and odd lengths (strides)": ignores_strides,
    "shapes, strides and odd lengths (rows)": drops_tails_of_rows,
    "shapes, strides and odd lengths (vectors)": drops_the_tail_of_a_vector,
    "inputs are not written": writes_its_input,
    "sums of parameter gradients": sums_in_bfloat16,
    "float64 is computed in float64": float32_arithmetic,
    "gradients in float64": slope_of_another,
    "slope at the knots": half_slope_at_0,
    "same results for every thread count": depends_on_threads,
}


class OwnModule(nn.Module):
    """A module of the user's, computed in float32 at least, as careful ones are."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.tensor(0.2032))
        self.alpha_n = nn.Parameter(torch.tensor(-1.0502))

    def forward(self, x: Tensor) -> Tensor:
        alpha_p = nn.functional.softplus(self.alpha_p.double())
        alpha_n = 0.5 + nn.functional.softplus(self.alpha_n.double())
        return formula(x.double(), alpha_p, alpha_n).to(x.dtype)


def failures(judged: Implementation) -> list[str]:
    """What fails: probes by name, then problems of the judge."""
    failed = [line.name for line in probe(SPEC, judged) if not line.passed]
    try:
        verdict = judge(SPEC, judged, count=SAMPLED)
    except StammError as error:
        return [*failed, error.line()]
    return [*failed, *verdict.problems]


@pytest.mark.parametrize("thing", [right, OwnModule], ids=["function", "module"])
def test_right_implementations_pass(thing: Any) -> None:
    assert failures(implementation(thing, "right")) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_implementation_fails_where_it_is_wrong(name: str) -> None:
    results = probe(SPEC, implementation(WRONG[name], "wrong"))
    failed = {line.name.removeprefix("wrong: ") for line in results if not line.passed}
    assert name.partition(" (")[0] in failed


def test_an_error_in_a_short_interval_is_seen() -> None:
    verdict = judge(SPEC, implementation(off_in_a_short_interval, "wrong"), count=SAMPLED)
    assert any("ulp off at x = 1.23" in problem for problem in verdict.problems)
    assert not verdict.passed


def test_an_implementation_that_cannot_be_differentiated_twice_says_so() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, weight: Tensor) -> Tensor:
            return weight * (ctx.saved_tensors[0] > 0)

    def relu(x: Tensor) -> Tensor:
        return Once.apply(x)  # type: ignore[no-any-return, no-untyped-call]

    results = {line.name: line for line in probe(catalog.RELU, implementation(relu, "r"))}
    assert results["r: double backward"].passed
    assert results["r: double backward"].numbers.startswith("not offered")
    assert all(line.passed for line in results.values()), [
        line.line() for line in results.values() if not line.passed
    ]
