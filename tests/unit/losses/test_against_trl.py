"""Preference losses against the code of TRL, on the same log-probabilities of the same tokens.

Skipped where trl is not installed: `pip install trl==1.16.0`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stamm.losses.preference import dpo_loss, ipo_loss, kto_loss, simpo_loss
from stamm.losses.sequence import sequence_log_probs

pytest.importorskip("trl", reason="trl is not installed")

from trl.experimental.cpo import CPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer

PAIRS, LONGEST, WIDTH, VOCABULARY = 5, 14, 8, 29
BETA = 0.3


class Completions:
    """Hidden states, weights and targets of 2 * PAIRS completions, chosen ones first."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        self.hidden = torch.randn(2 * PAIRS, LONGEST, WIDTH, generator=draw)
        self.weight = (0.5 * torch.randn(VOCABULARY, WIDTH, generator=draw)).requires_grad_()
        self.ids = torch.randint(VOCABULARY, (2 * PAIRS, LONGEST), generator=draw)
        prompt = torch.randint(1, 4, (2 * PAIRS, 1), generator=draw)
        end = torch.randint(6, LONGEST + 1, (2 * PAIRS, 1), generator=draw)
        place = torch.arange(LONGEST)
        self.mask = ((place >= prompt) & (place < end)).long()
        self.reference = torch.randn(2 * PAIRS, generator=draw) - 30

    def ours(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities and lengths by this package, from the hidden states."""
        number = torch.arange(2 * PAIRS)[:, None].where(self.mask.bool(), -1)[:, 1:].flatten()
        log_prob = sequence_log_probs(
            self.hidden[:, :-1].flatten(0, 1),
            self.weight,
            self.ids[:, 1:].flatten(),
            number,
            2 * PAIRS,
        )
        return log_prob, torch.bincount(number[number >= 0], minlength=2 * PAIRS)

    def logits(self) -> Tensor:
        return self.hidden @ self.weight.T

    def fused_outputs(self) -> SimpleNamespace:
        """What a model returns to TRL's trainers: log-probabilities of labels, 0 elsewhere."""
        log_prob = self.logits()[:, :-1].log_softmax(dim=-1)
        each = log_prob.gather(2, self.ids[:, 1:, None])[..., 0] * self.mask[:, 1:]
        zero = torch.zeros_like(each)
        return SimpleNamespace(
            log_probs=each, entropy=zero, mean_logits=zero, is_top1=zero.bool(), aux_loss=None
        )


@pytest.fixture
def completions() -> Completions:
    return Completions()


def trainer(**attributes: Any) -> Any:
    """The attributes of a trainer that its loss reads, in one process."""
    same = SimpleNamespace(
        device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x
    )
    return SimpleNamespace(
        accelerator=same,
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        beta=BETA,
        label_smoothing=0.0,
        precompute_ref_logps=True,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
        **attributes,
    )


def trl_dpo(data: Completions, loss_type: str) -> Tensor:
    chosen, rejected = data.reference.chunk(2)
    fake = trainer(
        ld_alpha=None,
        f_divergence_type="reverse_kl",
        loss_types=[loss_type],
        loss_weights=[1.0],
        use_weighting=False,
    )
    inputs = {
        "input_ids": data.ids,
        "attention_mask": torch.ones_like(data.ids),
        "completion_mask": data.mask,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    found: Tensor = DPOTrainer._compute_loss(fake, lambda **_: data.fused_outputs(), inputs, False)
    return found


def our_pair_loss(data: Completions, loss_type: str) -> Tensor:
    log_prob, length = data.ours()
    ratios = (log_prob - data.reference).chunk(2)
    lengths = length.chunk(2)
    if loss_type == "ipo":
        return ipo_loss(*ratios, *lengths, beta=BETA).mean()
    if loss_type == "sigmoid_norm":
        return dpo_loss(
            *ratios, beta=BETA, chosen_length_B=lengths[0], rejected_length_B=lengths[1]
        ).mean()
    return dpo_loss(*ratios, beta=BETA).mean()


def assert_equal(data: Completions, ours: Tensor, theirs: Tensor) -> None:
    """Losses and gradients of the output weights agree to float32."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=2e-5)
    (mine,) = torch.autograd.grad(ours, data.weight)
    (other,) = torch.autograd.grad(theirs, data.weight)
    scale = float(other.abs().max())
    assert scale > 1e-3
    assert torch.allclose(mine, other, rtol=0, atol=3e-5 * scale)


@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo", "sigmoid_norm"])
def test_dpo_and_ipo_are_those_of_trl(completions: Completions, loss_type: str) -> None:
    assert_equal(
        completions, our_pair_loss(completions, loss_type), trl_dpo(completions, loss_type)
    )


def test_log_probabilities_are_those_of_trl(completions: Completions) -> None:
    labels = completions.ids.masked_fill(completions.mask == 0, -100)
    log_prob, length = completions.ours()
    for average, wanted in ((False, log_prob), (True, log_prob / length)):
        theirs = CPOTrainer.get_batch_logps(completions.logits(), labels, average)
        assert torch.allclose(theirs.double(), wanted, rtol=1e-5)


def test_simpo_is_that_of_trl(completions: Completions) -> None:
    """Its gamma is the whole margin in both: TRL's `simpo_gamma`, not the paper's gamma / beta ratio."""
    labels = completions.ids.masked_fill(completions.mask == 0, -100)
    theirs = CPOTrainer.get_batch_logps(completions.logits(), labels, average_log_prob=True)
    fake = trainer(alpha=0.0, loss_type="simpo", simpo_gamma=0.7)
    losses, _, _ = CPOTrainer.cpo_loss(fake, *theirs.chunk(2))
    log_prob, length = completions.ours()
    ours = simpo_loss(*log_prob.chunk(2), *length.chunk(2), beta=BETA, gamma=0.7)
    assert_equal(completions, ours.mean(), losses.mean())


@pytest.mark.parametrize("kl", [-1.0, 0.6])
def test_kto_is_that_of_trl(completions: Completions, kl: float) -> None:
    """Both clamp the estimate of KL at 0, and let no gradient through it."""
    label = torch.tensor([True, False, True, True, False, False, True, False, True, True])
    mismatched = torch.randn(2 * PAIRS, generator=torch.Generator().manual_seed(4)) - 30
    policy_kl = mismatched + kl
    fake = trainer(
        calculate_KL=True,
        loss_type="kto",
        desirable_weight=1.3,
        undesirable_weight=0.8,
        _compute_kl_logps=lambda *_: policy_kl,
    )
    inputs = {
        "input_ids": completions.ids,
        "attention_mask": torch.ones_like(completions.ids),
        "completion_mask": completions.mask,
        "label": label,
        "ref_logps": completions.reference,
        "ref_KL_logps": mismatched,
    }
    model: Callable[..., SimpleNamespace] = lambda **_: completions.fused_outputs()  # noqa: E731
    theirs = KTOTrainer._compute_loss(fake, model, inputs, False)
    log_prob, _ = completions.ours()
    ours = kto_loss(
        log_prob - completions.reference,
        label,
        kl,
        beta=BETA,
        desirable_weight=1.3,
        undesirable_weight=0.8,
    )
    assert_equal(completions, ours.mean(), theirs)
