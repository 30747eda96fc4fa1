"""Quantization noise and outliers against closed forms and numbers by hand. Models: test_outside.py."""

from __future__ import annotations

import math

import pytest
import torch

from stamm.observe.outliers import InputStatistics, MassiveActivations


def observed(v: torch.Tensor) -> dict[str, float | None]:
    statistics = InputStatistics()
    for part in v.split(100):
        statistics.add_maxima(part)
    for part in v.split(100):
        statistics.add_errors(part)
    return statistics.result("in")


def test_int8_of_a_uniform_variable() -> None:
    """Signal a^2 / 3, noise (a / 127)^2 / 12: 20 log10(254) dB."""
    found = observed(torch.linspace(-3.0, 3.0, 400_000, dtype=torch.float64).reshape(-1, 100))
    assert found["in_int8_tensor_db"] == pytest.approx(20 * math.log10(254), abs=0.01)


def test_an_outlier_channel_ruins_one_scale_and_a_large_token_only_its_own() -> None:
    drawn = torch.Generator().manual_seed(1)
    normal = torch.randn(1000, 64, generator=drawn, dtype=torch.float64)
    plain = observed(normal)
    assert plain["in_channel_ratio"] == pytest.approx(1.1, abs=0.3)
    channel = normal.clone()
    channel[:, 5] *= 100.0
    found = observed(channel)
    largest = channel.abs().amax(0).sort().values
    assert found["in_channel_ratio"] == pytest.approx(float(largest[-1] / largest[31]))
    token = normal.clone()
    token[7] *= 1000.0
    small = token[torch.arange(1000) != 7]
    rounded = observed(token)
    # One scale of 127 steps to about 3000: everything but the token is rounded to 0.
    noise = float(small.square().sum())
    assert rounded["in_int8_tensor_db"] is not None
    assert rounded["in_int8_tensor_db"] < 10 * math.log10(float(token.square().sum()) / noise) + 0.1
    assert rounded["in_int8_token_db"] is not None
    assert rounded["in_int8_token_db"] > 35.0


def test_fp8_rounds_to_three_bits_after_the_point() -> None:
    # The largest is 448: the scale is 1. 17 lies between 16 and 18 and is rounded to even.
    found = observed(torch.tensor([[448.0, 17.0, 16.0, 0.0]], dtype=torch.float64))
    signal = 448.0**2 + 17.0**2 + 16.0**2
    assert found["in_fp8_tensor_db"] == pytest.approx(10 * math.log10(signal / 1.0))


def test_inputs_without_signal_or_error_have_no_decibels() -> None:
    assert set(observed(torch.zeros(3, 4)).values()) == {None}
    exact = observed(torch.tensor([[127.0, 64.0, 2.0]], dtype=torch.float64))
    assert exact["in_int8_tensor_db"] is None
    assert exact["in_channel_ratio"] == 127.0 / 64.0


def test_massive_activations_with_their_tokens() -> None:
    """Both bounds count: 100, and 1000 times the median of the token."""
    massive = MassiveActivations()
    residual = torch.full((4, 5), 0.1)
    residual[0, 2] = -300.0
    residual[1, 2] = 101.0
    residual[2, 1] = 99.0  # not above 100
    residual[3] = 1.0
    residual[3, 1] = 900.0  # not above 1000 times the median
    massive.add(torch.tensor([7, 9, 9, 9]), residual)
    massive.add(torch.tensor([7]), torch.tensor([[0.1, 0.1, 500.0, 0.1, 0.1]]))
    found = massive.result(lambda ids: f"<{ids[0]}>")
    assert massive.count == 3
    assert [(p.token_id, p.token, p.dimension, p.count, p.value) for p in found] == [
        (7, "<7>", 2, 2, 500.0),
        (9, "<9>", 2, 1, 101.0),
    ]
