"""Representation metrics during training on answers: features, their ranks, dormant units, policy ratios.

All are of the same answers throughout a run: some of those of the first step, with the tokens that
predict them. They are computed before the update of a step, as its loss is.

Letters: N tokens, D model, C units of the last feed-forward layer, B answers.
Source   ranks and ratios: arXiv 2405.00662; effective rank: Roy and Vetterli 2007; dormancy: Sokar et
         al., arXiv 2302.12902
Checked  tests/unit/align/test_representation.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stamm.engine.distributed import DistributedContext
from stamm.models.decoder import Decoder
from stamm.observe.statistics import effective_rank, pca_rank

MOST_TOKENS = 8192
"""Tokens of the answers with their prompts, unless one example has more."""
MOST_FEATURES = 1024
"""Answer tokens whose features are analysed: matrices are not larger than this."""
DORMANT = 0.025


class LastUnits:
    """While in use, keeps the newest outputs of the activation of the last feed-forward layer."""

    def __init__(self, decoder: Decoder) -> None:
        self._activation: nn.Module = decoder.model.layers[-1].get_submodule("mlp.act_fn")
        self.newest: Tensor | None = None

    def __enter__(self) -> LastUnits:
        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self.newest = output.detach()

        self._handle = self._activation.register_forward_hook(keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


def gathered(
    feature_ND: Tensor, units_NC: Tensor | None, world: DistributedContext
) -> tuple[Tensor, Tensor | None]:
    """The features of all processes that divide the same sequences, and one row of mean |h| over their tokens.

    One process's own where sequences are not divided. Of tensor parallelism the units are this
    process's, which has all tokens of them. All processes must call it.
    """
    if world.context * world.tensor == 1:
        return feature_ND, units_NC
    size_C = None if units_NC is None else units_NC.float().abs().sum(0, dtype=torch.float64).cpu()
    count = 0 if units_NC is None else len(units_NC)
    mine = (world.mesh_coordinates, feature_ND.detach().float().cpu(), size_C, count)
    parts = [part for part in world.all_gather_object(mine) if part[0][0] == mine[0][0]]
    whole_ND = torch.cat([part[1] for part in parts])
    sums = [part for part in parts if part[0][2] == mine[0][2] and part[2] is not None]
    tokens = sum(part[3] for part in sums)
    if not tokens:
        return whole_ND, None
    return whole_ND, (sum(part[2] for part in sums) / tokens)[None]


def feature_metrics(
    feature_ND: Tensor, hidden_ND: Tensor, units_NC: Tensor | None
) -> dict[str, float]:
    """Metrics of the last hidden states, and of the outputs of the last activation.

    feature_ND   phi, before the final norm: a model that collapses lets it grow, or loses directions
    hidden_ND    the same behind the final norm, which divides by the length and scales by its weights

    tokens           N', evenly spaced tokens, at most MOST_FEATURES: the others are of these
    feature_norm     mean of |phi|
    effective_rank   exp(-sum p log p), p the singular values of phi (N', D) divided by their sum
    pca_rank         smallest number of singular values whose squares are 99 % of the sum of all
    .._centred       the same of phi minus its mean over tokens: a mean that all tokens share, or a few
                     large dimensions, can make ranks small where nothing is wrong
    .._after_norm    the norm and the two uncentred ranks of the hidden states behind the final norm
    dormant_share    share of units with mean |h| at most DORMANT times the mean over units; of this
                     process's units. Not in the result where units_NC is None

    Edge     {} without a token
    Dtypes   float64: in float32 rounding errors of small singular values would add to the ranks
    """
    if not len(feature_ND):
        return {}
    count = min(len(feature_ND), MOST_FEATURES)
    places = torch.arange(count, device=feature_ND.device) * len(feature_ND) // count
    wide, after = (states.detach()[places].double() for states in (feature_ND, hidden_ND))
    metrics = {"tokens": float(count)}
    for name, x_ND in (("", wide), ("_centred", wide - wide.mean(0)), ("_after_norm", after)):
        gram = x_ND @ x_ND.T if len(x_ND) < x_ND.shape[1] else x_ND.T @ x_ND
        squares = torch.linalg.eigvalsh(gram)
        metrics[f"effective_rank{name}"] = effective_rank(squares)
        metrics[f"pca_rank{name}"] = float(pca_rank(squares))
        if name != "_centred":
            metrics[f"feature_norm{name}"] = float(x_ND.norm(dim=1).mean())
    if units_NC is not None:
        size = units_NC.float().abs().mean(0, dtype=torch.float64)
        metrics["dormant_share"] = float((size <= DORMANT * size.mean()).double().mean())
    return {f"representation/{name}": value for name, value in metrics.items()}


def ratio_metrics(log_ratio_B: Tensor, length_B: Tensor) -> dict[str, float]:
    """Means of the policy ratios above 1, and of those of at most 1; 1 where there is none.

    The ratio of an answer is exp(log-ratio / tokens), the geometric mean over its tokens.
    """
    ratio_B = (log_ratio_B.double() / length_B.clamp(min=1)).exp()
    sides = {"ratio_above": ratio_B[ratio_B > 1], "ratio_below": ratio_B[ratio_B <= 1]}
    return {
        f"representation/{name}": float(each.mean()) if len(each) else 1.0
        for name, each in sides.items()
    }
