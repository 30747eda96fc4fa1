"""Log-probabilities of completions against all logits in float64, and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.losses.sequence import sequence_log_probs

N, D, V, B = 37, 8, 19, 4


def drawn(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(V, D, generator=generator, dtype=torch.float64).to(dtype)
    target = torch.randint(V, (N,), generator=generator)
    completion = torch.randint(-1, B - 1, (N,), generator=generator)  # the last one has no tokens
    return hidden.requires_grad_(), weight.requires_grad_(), target, completion


def plain(hidden: Tensor, weight: Tensor, target: Tensor, completion: Tensor) -> Tensor:
    every = torch.log_softmax(hidden.double() @ weight.double().T, dim=1)
    log_prob = every.gather(1, target[:, None])[:, 0]
    return torch.stack([log_prob[completion == b].sum() for b in range(B)])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 0.15)]
)
def test_sums_and_gradients_are_those_of_all_logits(dtype: torch.dtype, tolerance: float) -> None:
    hidden, weight, target, completion = drawn(dtype)
    slope = torch.tensor([0.3, -2.0, 1.5, 7.0], dtype=torch.float64)
    found = sequence_log_probs(hidden, weight, target, completion, B)
    assert found.dtype == torch.float64
    gradients = torch.autograd.grad((found * slope).sum(), (hidden, weight))
    true_hidden, true_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    truth = plain(true_hidden, true_weight, target, completion)
    true_gradients = torch.autograd.grad((truth * slope).sum(), (true_hidden, true_weight))
    assert torch.allclose(found, truth, atol=tolerance, rtol=tolerance)
    for one, true in zip(gradients, true_gradients, strict=True):
        assert one.dtype == dtype
        assert torch.allclose(one.double(), true, atol=tolerance, rtol=tolerance)


def test_tokens_of_no_completion_get_exactly_no_gradient_and_change_no_sum() -> None:
    hidden, weight, target, completion = drawn()
    found = sequence_log_probs(hidden, weight, target, completion, B)
    (gradient,) = torch.autograd.grad(found.sum(), hidden)
    assert found[-1] == 0
    assert not gradient[completion < 0].any() and gradient[completion >= 0].any(dim=1).all()
    poisoned = torch.where((completion < 0)[:, None], torch.nan, hidden.detach())
    again = sequence_log_probs(poisoned, weight.detach(), target, completion, B)
    assert torch.equal(again, found.detach())


def test_a_completion_does_not_depend_on_its_neighbours_or_order() -> None:
    hidden, weight, target, completion = drawn()
    found = sequence_log_probs(hidden, weight, target, completion, B)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    mixed = sequence_log_probs(hidden[order], weight, target[order], completion[order], B)
    assert torch.allclose(found, mixed, atol=1e-13)
    alone = completion == 1
    only = sequence_log_probs(hidden[alone], weight, target[alone], completion[alone] - 1, 1)
    assert torch.allclose(found[1], only[0], atol=1e-13)


def test_only_one_of_the_factors_may_need_a_gradient() -> None:
    hidden, weight, target, completion = drawn()
    (alone,) = torch.autograd.grad(
        sequence_log_probs(hidden.detach(), weight, target, completion, B).sum(), weight
    )
    (both, _) = torch.autograd.grad(
        sequence_log_probs(hidden, weight, target, completion, B).sum(), (weight, hidden)
    )
    assert torch.equal(alone, both)


def test_wrong_numbers_are_refused() -> None:
    hidden, weight, target, completion = drawn()
    with pytest.raises(ConfigError, match=r"reach from -1 to 2, and there are 2"):
        sequence_log_probs(hidden, weight, target, completion, 2)
    with pytest.raises(ConfigError, match="one int64 number per target"):
        sequence_log_probs(hidden, weight, target, completion[1:], B)
