"""Predicted losses: coverage on simulated comparisons, and the command on run folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import stamm
from stamm.base.errors import ConfigError, RunError
from stamm.cli.main import main
from stamm.compare.prediction import LossPoint, loss_points, point_of, predict_losses
from tests.unit.compare.test_comparison import LOSSES, change, write_comparison

SIZES, LENGTHS = (0.3e6, 0.65e6, 1.3e6), (1.0, 5.0, 20.0)


def true_loss(arm: str, n: float, d: float) -> float:
    """xielu loses less by length, and has a lower floor."""
    floor, power = (1.40, 0.30) if arm == "swiglu" else (1.38, 0.31)
    return floor + 60 / n**0.35 + 90 / d**power


def simulated(draw: np.random.Generator, seeds: int) -> list[LossPoint]:
    """A seed does the same to both arms, and a little more to each."""
    points = []
    for n in SIZES:
        for ratio in LENGTHS:
            common = draw.normal(0, 0.01, seeds)
            points.append(
                LossPoint(
                    comparison=f"{n} {ratio}",
                    parameters=dict.fromkeys(("swiglu", "xielu"), n),
                    tokens=dict.fromkeys(("swiglu", "xielu"), n * ratio),
                    bits={
                        arm: dict(enumerate(true_loss(arm, n, n * ratio) + common + draw.normal(0, 0.003, seeds)))
                        for arm in ("swiglu", "xielu")
                    },
                )
            )  # fmt: skip
    return points


def test_intervals_cover_what_is_measured_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stamm.compare.prediction.DRAWS", 50)
    draw, repeats = np.random.default_rng(1), 20
    n, d = 2.6e6, 5.2e7
    held = {"loss": 0, "difference": 0}
    widths = []
    for _ in range(repeats):
        swiglu, xielu = predict_losses(simulated(draw, 4), "swiglu", n, d).arms
        true = true_loss("xielu", n, d)
        held["loss"] += xielu.loss.low <= true <= xielu.loss.high
        assert swiglu.difference is None and xielu.difference is not None
        apart = true - true_loss("swiglu", n, d)
        held["difference"] += xielu.difference.low <= apart <= xielu.difference.high
        widths.append(
            xielu.difference.high - xielu.difference.low < xielu.loss.high - xielu.loss.low
        )
    # The chance of fewer than 16 of 20 at 95 % is 3 in 1,000.
    assert min(held.values()) >= 16, held
    assert sum(widths) >= 18  # what a seed does to both arms cancels


def test_the_command_predicts_from_run_folders_and_writes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stamm.compare.prediction.DRAWS", 50)
    folders = []
    for index, (n, d) in enumerate([(1e6, 1e6), (1e6, 4e6), (4e6, 1e6), (4e6, 4e6), (2e6, 8e6), (8e6, 2e6)]):  # fmt: skip
        lower = {name: tuple(2 * true_loss("swiglu", n, d) / 6 + b for b in bits) for name, bits in LOSSES.items()}  # fmt: skip
        root = write_comparison(tmp_path / f"c{index}", lower)
        for path in root.glob("final/*/*/summary.json"):
            change(path, parameters=round(n), trained_tokens=round(d))
        folders.append(root)
    out = tmp_path / "prediction.json"
    code = main(["compare", *map(str, folders), "predict=1.6e7x1.6e7", "--out", str(out)])
    printed = capsys.readouterr().out
    assert code == 0 and hashlib.sha256(out.read_bytes()).hexdigest() in printed.replace("\n", "")
    written = json.loads(out.read_text())
    assert [arm["arm"] for arm in written["arms"]] == list(LOSSES)
    # Every comparison has the same differences, seed by seed: those are predicted.
    apart = np.mean(LOSSES["xielu"]) - np.mean(LOSSES["swiglu"])
    assert written["arms"][2]["difference"]["mean"] == pytest.approx(apart, abs=0.02)
    baseline, points = loss_points(folders[:4])
    with pytest.raises(RunError, match="4 comparisons: a scaling law needs 5 points"):
        predict_losses(points, baseline, 1e7, 1e7)
    # Another held-out text: bits per byte of the two have no law in common.
    for path in folders[1].glob("final/*/*/evaluate/held_out.json"):
        overall = json.loads(path.read_text())["overall"]
        change(path, overall={**overall, "bytes": overall["bytes"] + 1})
    with pytest.raises(RunError, match=r"c0 and .*c1 differ: .* held-out documents"):
        stamm.compare(*map(str, folders)).predict(1e7, 1e7)
    assert main(["compare", *map(str, folders), "predict=1e7x1e7", "--jobs", "2"]) == 2
    assert "--jobs is not read here" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["2.6e6", "2.6e6*1e7", "0x1e7", "1e99x1e7", "1.2.3x4", "nanx1"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="PARAMETERSxTOKENS"):
        point_of(text)
