"""The comparison of two models: sums, NaN, and a refusal that carries the numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stamm.base.errors import ExportError
from stamm.export.parity import difference, random_tokens, report, require
from stamm.export.records import LogitDifference

BASE = torch.tensor([[4.0, 1.0, 0.0], [0.0, -8.0, 2.0]])


def constant(logits_TV: Tensor) -> object:
    return lambda tokens_BT: logits_TV[None, : tokens_BT.shape[1]]


def compared(other: Tensor) -> LogitDifference:
    tokens = [torch.tensor([0, 1]), torch.tensor([2])]
    return difference("a text", constant(BASE), constant(other), tokens)  # type: ignore[arg-type]


def test_difference_of_a_worked_example() -> None:
    other = BASE + torch.tensor([[-0.5, 0.0, 0.0], [2.5, 0.0, 0.0]])
    found = compared(other)
    assert (found.sequences, found.positions) == (2, 3)
    assert found.max_absolute == 2.5
    assert found.max_relative == 2.5 / 8
    assert found.argmax_agreement == pytest.approx(2 / 3)  # 2.5 > 2.0 in the one second row
    assert found.within(0.32)
    assert not found.within(0.31)


def test_equal_models_differ_by_nothing() -> None:
    found = compared(BASE)
    assert (found.max_absolute, found.argmax_agreement) == (0.0, 1.0)
    require([found], 1e-9)


@pytest.mark.parametrize("place", [(0, 0), (1, 2)])
def test_nan_never_passes(place: tuple[int, int]) -> None:
    other = BASE.clone()
    other[place] = math.nan
    found = compared(other)
    assert not found.within(1e9)
    with pytest.raises(ExportError, match="does not agree"):
        require([found], 1e9)


def test_refusal_says_how_far_and_what_to_do() -> None:
    with pytest.raises(
        ExportError,
        match=r"on a text: logits differ by 1, 0\.125 of the largest.*100\.0% .*tolerance is "
        r"0\.0001 \(export\.tolerance\)\. The export folder was not written",
    ):
        require([compared(BASE), compared(BASE + 1.0)], 1e-4)


def test_shapes_must_agree() -> None:
    with pytest.raises(ExportError, match=r"logits of shape \(2, 2\), the original \(2, 3\)"):
        compared(BASE[:, :2])


def test_random_tokens_follow_the_seed() -> None:
    first = torch.stack(random_tokens(50, 4, 30, seed=1))
    assert first.shape == (4, 30)
    assert torch.equal(first, torch.stack(random_tokens(50, 4, 30, seed=1)))
    assert not torch.equal(first, torch.stack(random_tokens(50, 4, 30, seed=2)))
    assert int(first.min()) >= 0 and int(first.max()) < 50


def test_report_says_whether_it_passed() -> None:
    good, bad = compared(BASE), compared(BASE + 1.0)
    assert report([good], 1e-4, "transformers", "")["passed"] is True
    found = report([good, bad], 1e-4, "transformers 5.0 X", "ab12")
    assert found["passed"] is False
    assert found["candidate"] == "transformers 5.0 X, float32"
    assert [one["max_absolute"] for one in found["comparisons"]] == [0.0, 1.0]
