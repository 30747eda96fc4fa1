"""Reward models on the page: held-out accuracy, told with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stamm.align.page.results import read_alignment
from stamm.align.page.tables import reward_sentence
from stamm.align.records import RewardAccuracyFile
from stamm.base.errors import DataError
from stamm.base.files import write_json
from stamm.base.schema import write_record
from stamm.runs.run_view import open_view

SHA = "1" * 64


def measured(share: float | None, low: float, high: float) -> dict[str, Any]:
    return {
        "pairs": 0 if share is None else 200,
        "accuracy": {"share": share, "low": low, "high": high},
        "longer": {"share": share and 0.45, "low": 0.38, "high": 0.52},
        "ties": 0,
        "mean_margin": share,
        "loss_nats": share,
        "data_sha256": "0" * 64,
        "model_sha256": SHA,
        "head_sha256": "2" * 64,
    }


def arm(root: Path, share: float | None, low: float, high: float) -> Path:
    folder = root / "arms" / "reward"
    (folder / "accuracy").mkdir(parents=True)
    write_record(
        folder / "accuracy" / "accuracy.json", RewardAccuracyFile, measured(share, low, high)
    )
    return folder


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ((0.75, 0.69, 0.8), "in 75.0 % (69.0 to 80.0) of 200 held-out pairs"),
        ((0.52, 0.45, 0.59), "it is not shown to order pairs better than chance"),
        ((0.3, 0.24, 0.37), "It orders pairs worse than chance"),
        ((None, 0.0, 1.0), "was not tested: no pairs were held out"),
    ],
)
def test_the_page_tells_the_accuracy(
    tmp_path: Path, found: tuple[float | None, float, float], told: str
) -> None:
    arm(tmp_path, *found)
    (model,) = read_alignment(open_view(tmp_path)).reward_models
    sentence = reward_sentence(*model)
    assert told in sentence
    assert ("not shown" in sentence) == (found[0] == 0.52)


def test_accuracy_of_other_weights_is_refused(tmp_path: Path) -> None:
    folder = arm(tmp_path, 0.75, 0.69, 0.8)
    (folder / "model").mkdir()
    write_json(folder / "model" / "decoder.json", {"weights_sha256": "3" * 64})
    with pytest.raises(DataError, match="was made from weights with SHA-256 111111111111"):
        read_alignment(open_view(tmp_path))
