"""Losses with flipped bits and with noise."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import pytest
import torch

from stamm.adapt import stress_job
from stamm.adapt.config import StressConfig
from stamm.adapt.records import StressFile
from stamm.base.errors import ConfigError
from stamm.base.schema import read_record
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


def test_the_interval_is_that_of_order_statistics() -> None:
    """Of 20 draws the 6th and the 15th hold the median in 95.9 % of samples, by the binomial distribution."""
    inside = sum(math.comb(20, n) for n in range(6, 15)) / 2**20
    assert 0.95 <= inside < 0.96
    draws = [float(n) for n in range(1, 21)]
    assert stress_job.median(draws[::-1]) == {"loss": 10.5, "low": 6.0, "high": 15.0}
    broken = stress_job.median([*draws[:12], *[math.nan] * 8])
    assert broken == {"loss": 10.5, "low": 6.0, "high": None}


def test_losses_of_an_untrained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bits of each format: no fault, no effect; the top exponent bit breaks the model, a clip keeps it finite."""
    monkeypatch.setattr(stress_job, "BITS", {"bfloat16": (0, 14), "int8": (7,)})
    monkeypatch.setattr(stress_job, "NOISE", (0.1,))
    (tmp_path / "made").mkdir()
    found = untrained_run(tmp_path / "made")
    inputs = {"start": found["model"], "tokenizer": found["tokenizer"], "pack": found["pack"]}
    config = StressConfig(threads=1, tokens=32, rate=0.2)
    stress_job.run(config, Workspace(folder=tmp_path, inputs=inputs))
    record = read_record(StressFile, tmp_path / "stress.json")
    assert record.calibration.sha256 != record.measured.sha256
    by = {(p.kind, p.at, p.clip): p for p in record.points}
    assert len(by) == len(record.points) == 2 * (1 + 2 + 1)
    lowest, top = by["bfloat16", 0.0, False], by["bfloat16", 14.0, False]
    assert lowest.loss == pytest.approx(record.loss, abs=0.05)
    assert top.loss is None or top.loss > record.loss + 0.1
    assert by["bfloat16", 14.0, True].loss is not None


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"must lie in \(0, 1\)"):
        StressConfig(rate=rate)
