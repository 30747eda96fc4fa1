"""The Triton kernel of the loss, on a GPU or in Triton's interpreter: run by test_softmax_rows.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stamm.losses import linear_cross_entropy as module
from stamm.losses import softmax_rows
from stamm.losses.linear_cross_entropy import _rows, _rows_in_place, linear_cross_entropy

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def _case(columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets (first and last column among them), and scales."""
    draw = torch.Generator().manual_seed(columns)
    logits = (4 * torch.randn(9, columns, generator=draw)).to(dtype)
    target = torch.randint(0, columns, (9, 1), generator=draw)
    target[0], target[1] = 0, columns - 1
    scale = torch.rand(9, 1, generator=draw) + 0.1
    return logits.to(DEVICE), target.to(DEVICE), scale.to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 129, 1000])
@pytest.mark.parametrize("wanted", [False, True])
def test_rows_are_those_of_torch(
    columns: int, dtype: torch.dtype, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several blocks to a row; the gradient rounded once to the dtype of the logits."""
    monkeypatch.setattr(softmax_rows, "_BLOCK", 128)
    logits, target, scale = _case(columns, dtype)
    before = logits.clone()
    nats, log_z, gradient = _rows_in_place(logits, target, scale, 0.01, wanted)
    exact = _rows(before.double(), target, scale.double(), 0.01, wanted)
    torch.testing.assert_close(nats.double(), exact[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(log_z.double(), exact[1], rtol=1e-6, atol=1e-6)
    if wanted:
        assert gradient.data_ptr() == logits.data_ptr()
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(gradient.double(), exact[2], rtol=rounding + 1e-5, atol=1e-7)
    else:
        assert torch.equal(logits, before)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_hidden(number: float) -> None:
    logits, target, scale = _case(1000, torch.float32)
    logits[3, 500] = number
    nats, _, gradient = _rows_in_place(logits, target, scale, 0.0, True)
    assert nats[3].isnan().all()
    assert gradient[3].isnan().any()
    others = [row for row in range(9) if row != 3]
    assert nats[others].isfinite().all()
    assert gradient[others].isfinite().all()


def test_far_logits_do_not_overflow() -> None:
    logits = torch.tensor([[3e38, -3e38, 0.0], [-3e38, -3e38, -3e38]], device=DEVICE)
    target = torch.tensor([[0], [1]], device=DEVICE)
    nats, _, _ = _rows_in_place(logits, target, torch.ones(2, 1, device=DEVICE), 0.0, True)
    torch.testing.assert_close(nats[:, 0].cpu(), torch.tensor([1.0, 3.0]).log())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_loss_uses_it(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and both gradients, against the form without the kernel."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 16, generator=draw).to(DEVICE, dtype)
    weight = torch.randn(300, 16, generator=draw).to(DEVICE, dtype)
    target = torch.randint(0, 300, (20,), generator=draw).to(DEVICE)
    target[::6] = -100
    found = []
    for kernel in (True, False):
        monkeypatch.setattr(module, "_has_kernel", lambda _, kernel=kernel: kernel)
        if DEVICE.type == "cpu":  # whose products have no wider dtype for their sum
            monkeypatch.setattr(module, "_add_product", _added)
        factors = [t.clone().requires_grad_() for t in (hidden, weight)]
        loss = linear_cross_entropy(*factors, target, z_loss=0.01).loss
        found.append([loss.detach(), *torch.autograd.grad(loss, factors)])
    for ours, torchs in zip(*found, strict=True):
        error = (ours.double() - torchs.double()).norm() / torchs.double().norm()
        assert error <= (1e-2 if dtype == torch.bfloat16 else 1e-5)


def _added(total: Tensor, left: Tensor, right: Tensor) -> None:
    total.addmm_(left.to(total.dtype), right.to(total.dtype))
