"""Losses with flipped bits and with noise."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch

from stamm.adapt import stress_job
from stamm.adapt.config import StressConfig
from stamm.adapt.records import StressFile
from stamm.adapt.section import stress_figure
from stamm.base.errors import ConfigError
from stamm.base.schema import read_record
from stamm.models.config import LowRank, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.serialization import load_decoder, save_decoder
from stamm.runs.job import Workspace
from tests.unit.untrained_run import untrained_run

WEIGHT = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))


def _flipped(weight: torch.Tensor, kind: str, bit: int, rate: float = 0.0) -> torch.Tensor:
    return stress_job.flipped(weight, kind, bit, rate, torch.Generator().manual_seed(1))


def test_int8_weights_are_those_of_a_q8_0_export() -> None:
    stored = gguf.quants.quantize(WEIGHT.numpy(), gguf.GGMLQuantizationType.Q8_0)
    read = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0)
    assert torch.equal(_flipped(WEIGHT, "int8", 3), torch.from_numpy(read))
    whole = stored.reshape(5, 2, 34)
    whole[:, :, 2:] ^= 1 << 7
    read = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0)
    assert torch.equal(_flipped(WEIGHT, "int8", 7, rate=1.1), torch.from_numpy(read))
    assert _flipped(WEIGHT[:, :40], "int8", 0).shape == (5, 40)


def test_a_bit_is_flipped_where_it_is_stored() -> None:
    """1.5 is 0 01111111 1000000 in bfloat16; with the top exponent bit it is 0 11111111 1000000, not a number."""
    one = torch.tensor([[1.5]])
    sign, top, lowest = (float(_flipped(one, "bfloat16", bit, 1.1)) for bit in (15, 14, 0))
    assert (sign, lowest) == (-1.5, 1.5078125) and math.isnan(top)
    many = torch.ones(200, 200)
    assert float((_flipped(many, "bfloat16", 15, 0.1) < 0).float().mean()) == pytest.approx(
        0.1, abs=0.01
    )


def test_the_intervals_are_those_of_order_statistics() -> None:
    """The binomial distribution gives their coverage; a loss that is not finite is larger than all others."""
    assert sum(math.comb(20, n) for n in range(6, 15)) / 2**20 > 0.95
    assert (sum(math.comb(20, n) for n in range(3, 18)) / 2**20) ** 28 > 0.95
    draws = [(float(n), float(n)) for n in range(20, 0, -1)]
    same = stress_job.point("int8", 7.0, draws)
    assert same.loss == same.clipped == (6.0, 10.5, 15.0) and same.clip == "not shown"
    broken = [(math.inf if n > 12 else loss, loss) for n, (loss, _) in enumerate(draws)]
    found = stress_job.point("int8", 7.0, broken)
    assert found.loss == (13.0, 17.5, None) and found.clip == "not shown"
    for worse, clip in ((1.0, "raises"), (-1.0, "lowers"), (-math.inf, "lowers")):
        moved = [(loss, loss + worse if n > 2 else loss) for n, (loss, _) in enumerate(draws)]
        assert stress_job.point("noise", 0.1, moved).clip == "not shown"
        moved[2] = (1.0, 1.0 + worse)
        assert stress_job.point("noise", 0.1, moved).clip == clip


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "made").mkdir()
    found = untrained_run(tmp_path / "made")
    return {"start": found["model"], "tokenizer": found["tokenizer"], "pack": found["pack"]}


def test_losses_of_an_untrained_model(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some bits of each format: the lowest has no effect; the top exponent bit breaks the model, a clip keeps it finite."""
    monkeypatch.setattr(stress_job, "BITS", {"bfloat16": (0, 14), "int8": (7,)})
    monkeypatch.setattr(stress_job, "NOISE", (3.0,))
    config = StressConfig(threads=1, tokens=32, rate=0.2)
    stress_job.run(config, Workspace(folder=tmp_path, inputs=made))
    record = read_record(StressFile, tmp_path / "stress.json")
    assert record.calibration.sha256 != record.measured.sha256
    points = {(point.kind, point.at): point for point in record.points}
    assert list(points) == [("noise", 3.0), ("bfloat16", 0.0), ("bfloat16", 14.0), ("int8", 7.0)]
    middle = [point.loss[1] for point in record.points]
    assert middle[1] == pytest.approx(record.loss, abs=0.05)
    assert middle[2] is None and points["bfloat16", 14.0].clip == "lowers"
    assert all(end is not None for end in points["bfloat16", 14.0].clipped)
    assert middle[0] is not None and abs(middle[0] - record.loss) > 1e-3
    for control in ("bfloat16", "int8"):
        assert record.controls[control] == pytest.approx(record.loss, abs=0.01)
    figure = stress_figure(record, "stamm run adapt.stress")
    assert figure.svg.count("<svg") == 3 and "train split" in figure.caption
    row = figure.data.rows[2]
    assert (*row[:3], row[4]) == ("bfloat16", "lowers", "14", "not finite")


def test_structured_matrices_are_refused(made: dict[str, Path], tmp_path: Path) -> None:
    config = load_decoder(made["start"]).config
    config = replace(config, ffn=PlainFFN(width=48, linear=LowRank(rank=8)))
    save_decoder(build_decoder(config, seed=2), made["start"])
    with pytest.raises(ConfigError, match="matrices are LowRank"):
        stress_job.run(StressConfig(threads=1), Workspace(folder=tmp_path, inputs=made))


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"must lie in \(0, 1\)"):
        StressConfig(rate=rate)
