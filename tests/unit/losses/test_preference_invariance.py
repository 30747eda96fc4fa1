"""Invariances of preference losses: data order, batching, references, length; signs of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stamm.losses.preference import (
    dpo_loss,
    ipo_loss,
    kto_loss,
    qrpo_loss,
    rebel_loss,
    simpo_loss,
)
from stamm.losses.quantile import (
    Transform,
    beta_log_partition,
    empirical_beta_log_partition,
    quantile_rewards,
)
from stamm.losses.sequence import sequence_log_probs

ONE = torch.ones(1, dtype=torch.float64)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_and_gradient(
    log_ratio: Tensor, reward: Tensor, references: Tensor, transform: Transform = "identity"
) -> tuple[Tensor, Tensor]:
    leaf = log_ratio.clone().requires_grad_()
    quantile = quantile_rewards(reward, references)
    found = qrpo_loss(
        leaf, quantile, beta=0.07, references=references.shape[1], transform=transform
    )
    (gradient,) = torch.autograd.grad(found.loss_B.sum(), leaf)
    return found.loss_B.detach(), gradient


@pytest.mark.parametrize("transform", ["identity", "log", "square", "sqrt", "probit"])
def test_a_monotone_map_of_each_prompt_changes_no_bit_of_loss_and_gradient(
    transform: Transform,
) -> None:
    log_ratio, reward, references = drawn(12), drawn(12, seed=1), drawn(12, 7, seed=2)
    wanted = loss_and_gradient(log_ratio, reward, references, transform)
    slope = drawn(12, seed=3).abs() + 0.1
    maps: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda r, _: r.exp(),
        lambda r, _: r**3,
        lambda r, a: a * r - 5 * a,
    ]
    for one in maps:
        found = loss_and_gradient(
            log_ratio, one(reward, slope), one(references, slope[:, None]), transform
        )
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])


def test_the_order_and_the_company_of_rows_and_references_change_no_bit() -> None:
    """Pairs are two rows; references may be permuted, or given twice."""
    log_ratio, reward, references = drawn(12), drawn(12, seed=1), drawn(12, 7, seed=2)
    loss, gradient = loss_and_gradient(log_ratio, reward, references)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    again = loss_and_gradient(log_ratio[order], reward[order], references[order])
    assert torch.equal(again[0], loss[order]) and torch.equal(again[1], gradient[order])
    for n in range(12):
        alone = loss_and_gradient(*(x[n : n + 1] for x in (log_ratio, reward, references)))
        assert torch.equal(alone[0], loss[n : n + 1])
    doubled = loss_and_gradient(log_ratio, reward, torch.cat([references.flip(1), references], 1))
    assert torch.equal(doubled[0], loss) and torch.equal(doubled[1], gradient)


def test_one_reference_is_enough_for_the_identity() -> None:
    """Over all references of a prompt, the mean target of n = 1 is that of all of them."""
    reward, references = drawn(1), drawn(9, seed=2)
    whole = qrpo_loss(ONE, quantile_rewards(reward, references[None]), beta=0.3, references=9)
    single = [
        qrpo_loss(ONE, quantile_rewards(reward, one.reshape(1, 1)), beta=0.3, references=1)
        for one in references
    ]
    mean = torch.stack([one.target_B for one in single]).mean(dim=0)
    assert torch.allclose(mean, whole.target_B, rtol=1e-14)


PAIR_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dpo": lambda a, b: dpo_loss(a, b, beta=0.3),
    "dpo of lengths": lambda a, b: dpo_loss(
        a, b, beta=0.3, chosen_length_B=3 * ONE, rejected_length_B=2 * ONE
    ),
    "ipo": lambda a, b: ipo_loss(a, b, 3 * ONE, 2 * ONE, beta=0.3),
    "simpo": lambda a, b: simpo_loss(a, b, 3 * ONE, 2 * ONE, beta=2.0, gamma=0.5),
    "rebel": lambda a, b: rebel_loss(a, b, ONE, -ONE, beta=0.3),
}


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_pair_losses_push_the_chosen_answer_up_and_the_rejected_one_down(name: str) -> None:
    chosen, rejected = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    loss = PAIR_LOSSES[name](chosen, rejected)
    up, down = torch.autograd.grad(loss.sum(), (chosen, rejected))
    assert up < 0 < down
    ratio = 2 / 3 if name in ("dpo of lengths", "ipo", "simpo") else 1.0
    assert -float(up / down) == pytest.approx(ratio, rel=1e-12)


def test_kto_pushes_by_its_label_and_most_at_the_reference_point() -> None:
    log_ratio = torch.tensor([0.5, 0.5, 4.0], dtype=torch.float64, requires_grad=True)
    label = torch.tensor([True, False, True])
    kl = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    loss = kto_loss(log_ratio, label, kl, beta=0.8)
    (gradient,) = torch.autograd.grad(loss.sum(), log_ratio)
    assert gradient[:2].tolist() == pytest.approx([-0.2, 0.2])
    assert -0.2 < gradient[2] < 0
    assert not kto_loss(log_ratio.detach(), label, kl, beta=0.8).requires_grad


def test_a_constant_added_to_both_rewards_or_ratios_changes_no_pair_loss() -> None:
    chosen, rejected = drawn(5), drawn(5, seed=1)
    for shift in (1.0, -3.0):
        assert torch.allclose(
            dpo_loss(chosen + shift, rejected + shift, beta=0.3),
            dpo_loss(chosen, rejected, beta=0.3),
            rtol=1e-13,
        )
        rewards = drawn(5, seed=2), drawn(5, seed=3)
        assert torch.allclose(
            rebel_loss(chosen, rejected, rewards[0] + shift, rewards[1] + shift, beta=0.3),
            rebel_loss(chosen + shift, rejected + shift, *rewards, beta=0.3),
            rtol=1e-12,
        )


BATCH, LONGEST, WIDTH, VOCABULARY = 6, 11, 8, 23


def batch(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Padded hidden states (B, T, D), output weights, targets and completion lengths."""
    lengths = torch.tensor([3, 11, 1, 7, 11, 5])
    target = torch.randint(VOCABULARY, (BATCH, LONGEST), generator=torch.Generator().manual_seed(8))
    return (
        drawn(BATCH, LONGEST, WIDTH, seed=6).to(dtype),
        drawn(VOCABULARY, WIDTH, seed=7).to(dtype),
        target,
        lengths,
    )


def qrpo_of_hidden(
    hidden: Tensor, weight: Tensor, target: Tensor, completion: Tensor, answers: Tensor
) -> tuple[Tensor, Tensor]:
    """Summed loss of length-normalised QRPO for some of the answers, and the gradient of weights."""
    leaf = weight.clone().requires_grad_()
    log_prob = sequence_log_probs(hidden, leaf, target, completion, len(answers))
    found = qrpo_loss(
        log_prob + 30,
        torch.linspace(0, 1, BATCH, dtype=torch.float64)[answers],
        beta=0.5,
        references=5,
        length_B=torch.bincount(completion[completion >= 0], minlength=len(answers)),
        normalize="beta",
    )
    loss = found.loss_B.sum()
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_padded_packed_and_split_batches_have_one_loss_and_gradient(
    dtype: torch.dtype, rtol: float
) -> None:
    hidden, weight, target, lengths = batch(dtype)
    every = torch.arange(BATCH)
    inside = torch.arange(LONGEST) < lengths[:, None]
    number = torch.where(inside, every[:, None], -1)
    padded = qrpo_of_hidden(hidden.flatten(0, 1), weight, target.flatten(), number.flatten(), every)
    packed = qrpo_of_hidden(hidden[inside], weight, target[inside], number[inside], every)
    parts = []
    for answers in (every[:2], every[2:3], every[3:]):
        mask = inside[answers]
        local = torch.where(mask, torch.arange(len(answers))[:, None], -1)
        parts.append(
            qrpo_of_hidden(
                hidden[answers].flatten(0, 1),
                weight,
                target[answers].flatten(),
                local.flatten(),
                answers,
            )
        )
    split = tuple(sum(part[n] for part in parts) for n in (0, 1))
    scale = float(padded[1].abs().max())
    for loss, gradient in (packed, split):
        assert torch.allclose(loss, padded[0], rtol=rtol)
        assert torch.allclose(gradient, padded[1], rtol=0, atol=rtol * scale)


def test_before_the_first_step_every_log_ratio_is_exactly_zero() -> None:
    """Reference log-probabilities, with other neighbours and no gradients: equal to 1e-5 at least."""
    hidden, weight, target, lengths = batch(torch.float32)
    inside = torch.arange(LONGEST) < lengths[:, None]
    number = torch.where(inside, torch.arange(BATCH)[:, None], -1)[inside]
    now = sequence_log_probs(hidden[inside], weight.requires_grad_(), target[inside], number, BATCH)
    with torch.no_grad():
        before = sequence_log_probs(hidden[inside], weight, target[inside], number, BATCH)
    assert torch.equal(now - before, torch.zeros(BATCH, dtype=torch.float64))
    quantile = torch.linspace(0, 1, BATCH, dtype=torch.float64)
    found = qrpo_loss(now - before, quantile, beta=0.1, references=5)
    assert torch.equal(found.loss_B, (quantile - beta_log_partition(0.1)).square())
    for n in range(BATCH):
        alone = sequence_log_probs(
            hidden[n, : lengths[n]],
            weight.detach(),
            target[n, : lengths[n]],
            torch.zeros(int(lengths[n]), dtype=torch.int64),
            1,
        )
        assert abs(float(alone[0] - before[n])) < 1e-5


def test_length_normalised_targets_are_a_policy_only_if_quantiles_ignore_length() -> None:
    """sum over y of pi_ref(y) exp(q/beta_y) / Z(beta_y) is 1, or the regression keeps a residual."""
    answers = 4000
    quantile = (torch.arange(answers, dtype=torch.float64) + 0.5) / answers
    alternating = torch.tensor([10.0, 40.0]).double().repeat(answers // 2)
    rising = alternating.sort().values
    low, high = (math.expm1(x / 2) / math.expm1(x) for x in (5, 20))  # mass below the median
    masses = ((alternating, 1.0), (rising, low + 1 - high), (rising.flip(0), high + 1 - low))
    for length, mass in masses:
        ratio = torch.zeros(answers, dtype=torch.float64)
        found = qrpo_loss(
            ratio, quantile, beta=2.0, references=answers, length_B=length, normalize="beta"
        )
        total = float((found.target_B / found.beta_B).exp().mean())
        assert total == pytest.approx(mass, abs=2e-3)
    assert low > 0.05


@pytest.mark.parametrize("ties", ["le", "mid"])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_with_pass_or_fail_the_empirical_partition_makes_the_targets_a_policy(
    ties: str, rate: float
) -> None:
    """And the odds of passing rise by e^(p/beta) with <=, by e^(1/(2 beta)) with mid-ranks."""
    number, beta = 200, 0.1
    passed = torch.arange(number) < round(rate * number)
    reward = passed.double()
    references = reward.expand(number, number)
    quantile = quantile_rewards(reward, references, ties="le" if ties == "le" else "mid")
    assert quantile.unique().tolist() == pytest.approx(
        [1 - rate, 1.0] if ties == "le" else [(1 - rate) / 2, 1 - rate / 2]
    )
    log_z = empirical_beta_log_partition(beta, quantile[None])
    found = qrpo_loss(
        torch.zeros(number),
        quantile,
        beta=beta,
        references=number,
        beta_log_z_B=log_z.expand(number),
    )
    policy = (found.target_B / beta).exp() / number
    assert float(policy.sum()) == pytest.approx(1, rel=1e-12)
    share = float(policy[passed].sum())
    odds = share / (1 - share) / (rate / (1 - rate))
    wanted = rate / beta if ties == "le" else 1 / (2 * beta)
    assert math.log(odds) == pytest.approx(wanted, rel=1e-9)
