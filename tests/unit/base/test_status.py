"""The line that a run in training shows."""

from __future__ import annotations

import math

import pytest

from stamm.base.status import TrainingStatus


def test_the_line_says_loss_speed_share_rate_and_checkpoint() -> None:
    status = TrainingStatus()
    assert status.text() == ""
    status.add(loss=4.0, items=1000, seconds=0.5, mfu=0.25, rate=3e-4)
    assert status.text() == "loss 4.000, 2,000 tokens/s, 25% MFU, learning rate 3.0e-04"
    status.saved(50)
    status.add(loss=3.0, items=1000, seconds=1.5, mfu=0.05, rate=2e-4)
    # By hand: (0.95 * 0.05 * 4 + 0.05 * 3) / (0.95 * 0.05 + 0.05); 2000 tokens in 2 s;
    # (0.5 * 0.25 + 1.5 * 0.05) / 2 of the peak.
    assert status.text() == (
        "loss 3.487, 1,000 tokens/s, 10% MFU, learning rate 2.0e-04, saved at 50"
    )


def test_the_loss_follows_and_one_that_is_no_number_is_left_out() -> None:
    status = TrainingStatus()
    for step in range(400):
        loss = math.nan if step == 399 else 9.0 if step < 200 else 2.0
        status.add(loss, items=10, seconds=1.0 if step < 300 else 0.1, mfu=0.0, rate=0.0)
    loss_text, speed, *_ = status.text().split(", ")
    assert float(loss_text.split()[1]) == pytest.approx(2.0 + 7.0 * 0.95**199, abs=1e-3)
    assert speed == "100 tokens/s"  # of the last 32 steps alone
