"""PFO's feature distances: values by hand, gradients, and exactly 0 for equal features."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from stamm.losses.feature_regularization import feature_distances
from stamm.losses.preference_types import FeatureDistance

DISTANCES: tuple[FeatureDistance, ...] = get_args(FeatureDistance)
BY_HAND = {
    # Rows: (3, 4) against (0, 4), (1, 0) against (0, 2), twice the same vector.
    "squared": [4.5, 2.5, 0.0],
    "relative": [9 / 16, 5 / 4, 0.0],
    "cosine": [1 - 4 / 5, 1.0, 0.0],
}
NEW = [[3.0, 4.0], [1.0, 0.0], [5.0, -6.0]]
OLD = [[0.0, 4.0], [0.0, 2.0], [5.0, -6.0]]


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_are_those_calculated_by_hand(distance: FeatureDistance, dtype: torch.dtype) -> None:
    found = feature_distances(
        torch.tensor(NEW, dtype=dtype), torch.tensor(OLD, dtype=dtype), distance
    )
    assert found.tolist() == pytest.approx(BY_HAND[distance], abs=1e-6)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("distance", DISTANCES)
def test_gradients_are_those_of_finite_differences(distance: FeatureDistance) -> None:
    generator = torch.Generator().manual_seed(3)
    new, old = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)
    new.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: feature_distances(x, old, distance), (new,))


@pytest.mark.parametrize("distance", DISTANCES)
def test_value_and_gradient_are_exactly_zero_for_equal_features(distance: FeatureDistance) -> None:
    old = torch.randn(50, 33, generator=torch.Generator().manual_seed(4))
    old[7] = 0.0
    new = old.clone().requires_grad_()
    found = feature_distances(new, old, distance)
    found.sum().backward()
    assert torch.equal(found, torch.zeros(50))
    assert torch.equal(new.grad, torch.zeros(50, 33))


def test_the_features_of_the_start_model_have_no_gradient() -> None:
    old = torch.randn(3, 2, generator=torch.Generator().manual_seed(5), requires_grad=True)
    new = torch.zeros(3, 2, requires_grad=True)
    feature_distances(new, old, "squared").sum().backward()
    assert old.grad is None and new.grad is not None
