"""(n, p)-discoverable extraction: the probability that n samples contain a passage, without sampling.

Source   Hayes et al. 2024, Measuring memorization through probabilistic discoverable extraction
         (arXiv 2410.19482), section 3
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stamm.audit.config import GridConfig
from stamm.models.decoder import Decoder

_LARGEST = 2.0**53
_ROWS = 512  # positions whose logits are held at once


@dataclass(frozen=True)
class TokenStatistics:
    """Of each token given all before it, float64 (N,), in nats.

    log_prob     log-probability at temperature 1
    mean         expected log-probability of a token drawn there
    deviation    standard deviation of the same
    drawn        log-probability under temperature, top_k and top_p; -inf for a token left out
    """

    log_prob: Tensor
    mean: Tensor
    deviation: Tensor
    drawn: Tensor


@torch.no_grad()
def token_statistics(
    decoder: Decoder, hidden_ND: Tensor, token_N: Tensor, config: GridConfig
) -> TokenStatistics:
    """Statistics of the tokens that follow the positions of `hidden_ND`, (N, D).

    Memory   the logits of 512 positions
    """
    parts = [
        _statistics(decoder.lm_head(hidden), tokens, config)
        for hidden, tokens in zip(
            torch.split(hidden_ND, _ROWS), torch.split(token_N, _ROWS), strict=True
        )
    ]
    return TokenStatistics(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _statistics(logits_NV: Tensor, token_N: Tensor, config: GridConfig) -> tuple[Tensor, ...]:
    log_NV = logits_NV.float().log_softmax(-1)
    probability_NV = log_NV.exp()
    mean_N = (probability_NV * log_NV).sum(-1, dtype=torch.float64)
    centred_NV = log_NV - mean_N[:, None].float()
    variance_N = (probability_NV * centred_NV**2).sum(-1, dtype=torch.float64)
    log_prob_N = log_NV.gather(1, token_N[:, None])[:, 0].double()
    drawn_N = drawn_log_prob(
        logits_NV.float(), token_N, config.temperature, config.top_k, config.top_p
    )
    return log_prob_N, mean_N, variance_N.sqrt(), drawn_N


def drawn_log_prob(
    logits_NV: Tensor, token_N: Tensor, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """Log-probability in nats that `models.sampling.draw` draws `token_N`, float64 (N,).

    Edge     -inf for a token that top_k or top_p leave out
    Checked  tests/unit/audit/test_extraction.py::test_equals_the_frequency_of_real_samples
    """
    vocabulary = logits_NV.shape[1]
    if 0 < top_k < vocabulary:
        logits_NV, index_NV = logits_NV.topk(top_k, dim=-1)
    elif top_p < 1.0:
        logits_NV, index_NV = logits_NV.sort(dim=-1, descending=True, stable=True)
    else:
        index_NV = torch.arange(vocabulary).expand_as(logits_NV)
    scaled_NV = (logits_NV - logits_NV.amax(-1, keepdim=True)) / temperature
    weight_NV = scaled_NV.double().exp()
    if top_p < 1.0:
        cumulative_NV = weight_NV.cumsum(-1)
        dropped_NV = cumulative_NV - weight_NV >= top_p * cumulative_NV[:, -1:]
        dropped_NV[:, 0] = False
        weight_NV = weight_NV.masked_fill(dropped_NV, 0.0)
    chosen_N = (weight_NV * (index_NV == token_N[:, None])).sum(-1)
    return chosen_N.log() - weight_NV.sum(-1).log()


def chance_within(log_p: float, n: int) -> float:
    """Probability that at least one of n independent samples is the passage: 1 - (1 - p)^n.

    log_p   log-probability of the passage in one sample, nats
    """
    p = math.exp(min(log_p, 0.0))
    return 1.0 if p == 1.0 else -math.expm1(n * math.log1p(-p))


def samples_needed(log_p: float, chance: float) -> int | None:
    """The smallest n with `chance_within(log_p, n) >= chance`; None above 2^53, and for p = 0."""
    p = math.exp(min(log_p, 0.0))
    if p == 1.0:
        return 1
    n = math.log1p(-chance) / math.log1p(-p) if p > 0 else math.inf
    if n > _LARGEST:
        return None
    # Rounding can put the quotient next to a whole number.
    near = max(round(n), 1)
    tried = (m for m in (near - 1, near) if m > 0 and chance_within(log_p, m) >= chance)
    return next(tried, near + 1)
