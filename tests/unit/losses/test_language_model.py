"""The chunked loss against the plain one, in float64 where it matters."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stamm.losses import linear_cross_entropy
from stamm.losses.language_model import masked_cross_entropy, nll_of_tokens, nll_per_kept_token


def _case(n: int = 37, d: int = 12, v: int = 29) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, d, generator=generator, requires_grad=True)
    weight = torch.randn(v, d, generator=generator, requires_grad=True)
    target = torch.randint(0, v, (n,), generator=generator)
    keep = torch.rand(n, generator=generator) > 0.3
    return hidden, weight, target, keep


@pytest.mark.parametrize("chunk_tokens", [1, 5, 37, 1000])
def test_loss_and_gradients_equal_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch, chunk_tokens: int
) -> None:
    hidden, weight, target, keep = _case()
    monkeypatch.setattr(linear_cross_entropy, "chunk_tokens", lambda *_: chunk_tokens)
    loss = nll_per_kept_token(hidden, weight, target, keep)
    loss.backward()
    wide_hidden = hidden.detach().double().requires_grad_()
    wide_weight = weight.detach().double().requires_grad_()
    plain = F.cross_entropy((wide_hidden @ wide_weight.T)[keep], target[keep])
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
    torch.testing.assert_close(hidden.grad, wide_hidden.grad.float(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(weight.grad, wide_weight.grad.float(), rtol=1e-5, atol=1e-7)


def test_dropped_tokens_have_zero_gradient_and_any_target() -> None:
    hidden, weight, target, keep = _case()
    target[~keep] = -100
    nll_per_kept_token(hidden, weight, target, keep).backward()
    assert hidden.grad is not None
    assert (hidden.grad[~keep] == 0).all()
    assert (hidden.grad[keep] != 0).any(dim=1).all()


def test_nothing_kept_gives_zero_and_not_a_number_nowhere() -> None:
    hidden, weight, target, keep = _case()
    loss = nll_per_kept_token(hidden, weight, target, torch.zeros_like(keep))
    loss.backward()
    assert loss.item() == 0.0
    assert hidden.grad is not None
    assert (hidden.grad == 0).all()


def test_micro_batches_add_up_to_the_step() -> None:
    hidden, weight, target, keep = _case()
    whole = nll_per_kept_token(hidden, weight, target, keep)
    parts = [
        nll_per_kept_token(hidden[s], weight, target[s], keep[s], kept=float(keep.sum()))
        for s in (slice(0, 10), slice(10, 37))
    ]
    assert sum(part.item() for part in parts) == pytest.approx(whole.item(), rel=1e-6)


def test_huge_logits_do_not_overflow() -> None:
    hidden, weight, target, keep = _case()
    loss = nll_per_kept_token(hidden.detach() * 1e4, weight.detach(), target, keep)
    assert torch.isfinite(loss)


def test_bfloat16_keeps_its_sums_in_float32() -> None:
    hidden, weight, target, keep = _case(n=64, d=32, v=101)
    low = nll_per_kept_token(hidden.bfloat16(), weight.bfloat16(), target, keep)
    assert low.dtype == torch.float32
    exact = nll_per_kept_token(hidden.bfloat16().float(), weight.bfloat16().float(), target, keep)
    assert low.item() == pytest.approx(exact.item(), rel=5e-3)


def test_per_token_values_equal_cross_entropy() -> None:
    hidden, weight, target, _ = _case()
    values = nll_of_tokens(hidden, weight, target)
    plain = F.cross_entropy(hidden @ weight.T, target, reduction="none")
    torch.testing.assert_close(values, plain, rtol=1e-5, atol=1e-6)
    assert nll_of_tokens(hidden[:0], weight, target[:0]).shape == (0,)


Z = 0.03  # large enough that its gradient shows in every digit that is compared


def _plain_losses(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, keep: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """nll, z and the gradients of their sum, by autograd of the formula in float64."""
    hidden = hidden.detach().double().requires_grad_()
    weight = weight.detach().double().requires_grad_()
    logits = (hidden @ weight.T)[keep]
    nll = -logits.log_softmax(dim=1).gather(1, target[keep, None]).mean()
    z = Z * logits.exp().sum(dim=1).log().square().mean()
    return nll.detach(), z.detach(), *torch.autograd.grad(nll + z, (hidden, weight))


@pytest.mark.parametrize("chunk_tokens", [1, 5, 1000])
def test_z_loss_equals_autograd_of_its_formula(
    monkeypatch: pytest.MonkeyPatch, chunk_tokens: int
) -> None:
    """Under a keep mask, whose dropped tokens have targets that are no tokens and huge logits."""
    hidden, weight, target, keep = _case()
    monkeypatch.setattr(linear_cross_entropy, "chunk_tokens", lambda *_: chunk_tokens)
    nll, z, d_hidden, d_weight = _plain_losses(hidden, weight, target, keep)
    target[~keep] = -100
    with torch.no_grad():
        hidden[~keep] *= 1e30
    found = masked_cross_entropy(hidden, weight, target, keep, z_loss=Z)
    found.loss.backward()
    assert found.nll.item() == pytest.approx(nll.item(), rel=1e-6)
    assert found.z.item() == pytest.approx(z.item(), rel=1e-6)
    assert found.loss.item() == pytest.approx(nll.item() + z.item(), rel=1e-6)
    assert not found.nll.requires_grad and not found.z.requires_grad
    torch.testing.assert_close(hidden.grad, d_hidden.float(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(weight.grad, d_weight.float(), rtol=1e-5, atol=1e-7)


def test_the_metric_of_two_arms_is_one_quantity_with_and_without_z_loss() -> None:
    hidden, weight, target, keep = _case()
    without = masked_cross_entropy(hidden, weight, target, keep)
    with_z = masked_cross_entropy(hidden, weight, target, keep, z_loss=Z)
    assert with_z.nll.item() == pytest.approx(without.nll.item(), rel=1e-6)
    assert with_z.loss.item() > without.loss.item() + 0.01
    # Without it, the bits of the loss that was differentiated, and of the function without parts.
    assert torch.equal(without.nll, without.loss) and without.z.item() == 0.0
    assert torch.equal(without.loss, nll_per_kept_token(hidden, weight, target, keep))


def test_both_parts_of_micro_batches_add_up_to_the_step() -> None:
    hidden, weight, target, keep = _case()
    whole = masked_cross_entropy(hidden, weight, target, keep, z_loss=Z)
    kept = float(keep.sum())
    parts = [
        masked_cross_entropy(hidden[s], weight, target[s], keep[s], kept, Z)
        for s in (slice(0, 10), slice(10, 11), slice(11, 37))
    ]
    for name in ("loss", "nll", "z"):
        added = sum(getattr(part, name).item() for part in parts)
        assert added == pytest.approx(getattr(whole, name).item(), rel=1e-6), name


def test_z_loss_of_nothing_is_nothing() -> None:
    hidden, weight, target, keep = _case()
    found = masked_cross_entropy(hidden, weight, target, torch.zeros_like(keep), z_loss=Z)
    found.loss.backward()
    assert [part.item() for part in found[:3]] == [0.0, 0.0, 0.0]
    assert found.density is None
    assert hidden.grad is not None and not hidden.grad.any()


def test_z_loss_of_bfloat16_is_taken_of_float32_sums() -> None:
    hidden, weight, target, keep = _case(n=64, d=32, v=101)
    low = masked_cross_entropy(hidden.bfloat16(), weight.bfloat16(), target, keep, z_loss=Z)
    exact = masked_cross_entropy(
        hidden.bfloat16().double(), weight.bfloat16().double(), target, keep, z_loss=Z
    )
    assert low.z.dtype == torch.float32 and exact.z.dtype == torch.float64
    # Logits have 8 bits: each is off by up to 2^-9, their log Z by no more.
    assert low.z.item() == pytest.approx(exact.z.item(), rel=4e-3)
