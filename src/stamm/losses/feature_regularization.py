"""Proximal Feature Optimization (PFO): distances of features to those of an earlier policy.

Source   Moalla et al., "No Representation, No Trust", arXiv 2405.00662: an addition to the loss of PPO,
         "squared", on the pre-activations of the last hidden layer of the actor. For language
         models there is no published result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stamm.losses.preference_types import FeatureDistance

_SMALLEST = 1e-12


def feature_distances(
    feature_ND: Tensor, old_ND: Tensor, distance: FeatureDistance = "relative"
) -> Tensor:
    """Distance of each token's features to the old ones, shape (N,); PFO's term is its mean.

    squared    mean over D of (phi - phi_old)^2, as published
    relative   |phi - phi_old|^2 / |phi_old|^2
    cosine     1 - cos(phi, phi_old), computed as |phi / |phi| - phi_old / |phi_old||^2 / 2

    old_ND   of the earlier policy; no gradient

    Dtypes   float32, of float64 in float64
    Edge     value and gradient are exactly 0 where both are equal, as in the first update
    Checked  tests/unit/losses/test_feature_regularization.py
    """
    wide = torch.promote_types(feature_ND.dtype, torch.float32)
    new, old = feature_ND.to(wide), old_ND.detach().to(wide)
    if distance == "squared":
        return (new - old).square().mean(-1)
    if distance == "relative":
        return (new - old).square().sum(-1) / old.square().sum(-1).clamp(min=_SMALLEST)
    unit, old_unit = (x / x.norm(dim=-1, keepdim=True).clamp(min=_SMALLEST) for x in (new, old))
    half_squared_distance: Tensor = (unit - old_unit).square().sum(-1) / 2
    return half_squared_distance
