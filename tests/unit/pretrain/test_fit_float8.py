"""A run in 8 bits from its configuration on: refused on a CPU, and trained where torchao emulates it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stamm.base.errors import ConfigError
from stamm.engine import float8
from stamm.engine.config import EngineConfig, Parallel
from stamm.engine.distributed import DistributedContext, destroy_process_group, init_distributed
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.optim.schedules import BatchStage
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.train import train_decoder
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics

CONFIG = PretrainConfig(
    model=DecoderConfig(
        vocab_size=64, d_model=32, num_layers=2, num_kv_heads=2, max_context=32, ffn=PlainFFN(width=48)
    ),
    context=32,
    batch=(BatchStage(size=2),),
    sequences=4,
    goldfish=None,
    engine=EngineConfig(threads=1, compile="off", device="cpu", precision="float8"),
)  # fmt: skip


class Counting:
    """Tokens that are made up, two documents."""

    num_tokens, vocabulary, end_id, stages = 200, 64, None, ((0, 200),)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens that look mixed."""
        return np.arange(start, stop, dtype=np.int64) * 37 % 64

    def document_starts(self) -> NDArray[np.int64]:
        """Where each begins."""
        return np.array([0, 90], dtype=np.int64)


@pytest.fixture
def world() -> Iterator[DistributedContext]:
    """One process with the grid that casts of weights need."""
    yield init_distributed(Parallel(), torch.device("cpu"), collectives=True)
    destroy_process_group()


def _fit(folder: Path, world: DistributedContext) -> list[float]:
    train_decoder(
        CONFIG, Workspace(folder=folder), world, SequenceSampler(Counting(), 32, CONFIG.seed, None)
    )
    return [line["train/loss_nats"] for line in read_metrics(folder / "metrics.jsonl")]


def test_a_cpu_is_refused_before_a_step(tmp_path: Path, world: DistributedContext) -> None:
    with pytest.raises(ConfigError, match=r"'float8' needs a GPU .* this is a CPU"):
        _fit(tmp_path, world)
    assert not (tmp_path / "checkpoints").exists()


def test_a_run_multiplies_in_8_bits_and_learns(
    tmp_path: Path, world: DistributedContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float8, "refusals", lambda *_: ())
    monkeypatch.setattr(float8, "convert", partial(float8.convert, emulated=True))
    eight = _fit(tmp_path / "eight", world)
    monkeypatch.setattr(float8, "convert", lambda *_: None)
    short = _fit(tmp_path / "short", world)
    assert len(eight) == 2 and eight == pytest.approx(short, rel=1e-2)
    assert eight != short
