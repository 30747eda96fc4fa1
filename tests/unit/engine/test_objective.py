"""The training loop takes any objective: a regression, preference pairs, and metrics that do not fit."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, StoppedError
from stamm.engine.config import EngineConfig
from stamm.engine.distributed import DistributedContext
from stamm.engine.objective import MicroBatch, MicroBatches, Objective, StepLoss
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.engine.trainer import Trainer
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdamW
from stamm.runs.metrics import read_metrics

CPU = DistributedContext(torch.device("cpu"))
TINY = DecoderConfig(
    vocab_size=32, d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, max_context=16,
    ffn=PlainFFN(width=24),
)  # fmt: skip


class Regression(Objective):
    """Least squares on 32 points, in two micro-batches."""

    primary_metric = "train/squared_error"
    unit = "points"

    def __init__(self, model: nn.Module, preempted: int = 0) -> None:
        self._model, self._preempted = model, preempted
        self.num_steps = 8

    def micro_batches(self, step: int) -> MicroBatches:
        """Two, drawn from the step."""
        if step == self._preempted:
            os.kill(os.getpid(), signal.SIGTERM)
        x = torch.randn(32, 3, generator=torch.Generator().manual_seed(step))
        parts = [MicroBatch(partial(self._compute, part)) for part in x.chunk(2)]
        return MicroBatches(parts)

    def _compute(self, x: Tensor) -> StepLoss:
        error = (self._model(x)[:, 0] - x.sum(1)).square().sum() / 32
        return StepLoss(error, {self.primary_metric: error})

    def learning_rate(self, step: int) -> float:
        """Constant."""
        return 0.05

    def num_items(self, step: int) -> float:
        """Points of the step."""
        return 32


class Preference(Objective):
    """Direct preference optimisation (arXiv 2305.18290) on four fixed pairs of answers."""

    primary_metric = "train/dpo_loss"
    unit = "pairs"
    num_steps = 6

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        draw = torch.Generator().manual_seed(4)
        self.pairs = torch.randint(0, 32, (2, 4, 12), generator=draw)
        with torch.no_grad():
            self._reference = [self.log_probability(answers) for answers in self.pairs]

    def log_probability(self, tokens_BT: Tensor) -> Tensor:
        """Of each sequence, in nats, shape (B,)."""
        log_p_BTV = self._decoder(tokens_BT[:, :-1]).log_softmax(-1)
        return log_p_BTV.gather(-1, tokens_BT[:, 1:, None])[..., 0].sum(1)

    def micro_batches(self, step: int) -> MicroBatches:
        """Two of two pairs."""
        return MicroBatches([MicroBatch(partial(self._compute, slice(n, n + 2))) for n in (0, 2)])

    def _compute(self, part: slice) -> StepLoss:
        chosen, rejected = (
            self.log_probability(answers[part]) - reference[part]
            for answers, reference in zip(self.pairs, self._reference, strict=True)
        )
        margin = chosen - rejected
        loss = -F.logsigmoid(0.1 * margin).sum() / 4
        return StepLoss(loss, {self.primary_metric: loss, "train/margin_nats": margin.sum() / 4})

    def learning_rate(self, step: int) -> float:
        """Constant."""
        return 1e-2

    def num_items(self, step: int) -> float:
        """Pairs of the step."""
        return 4


def _trainer(objective: Objective, model: nn.Module, folder: Path) -> Trainer:
    torch.set_num_threads(1)
    optimizer = ShardedOptimizer(
        model, lambda shard: build_optimizer(AdamW(), model, objective.num_steps, shard)
    )
    config = EngineConfig(threads=1, compile="off", checkpoint_every=3)
    return Trainer(objective, model, optimizer, 1.0, config, CPU, folder, NoProgress())


def _regressed(folder: Path, preempted: int = 0) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    _trainer(Regression(model, preempted), model, folder).run()
    return model


def test_a_regression_trains_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    whole = _regressed(tmp_path / "whole")
    with pytest.raises(StoppedError, match="after step 5 of 8"):
        _regressed(tmp_path / "stopped", preempted=5)
    resumed = _regressed(tmp_path / "stopped")
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "stopped")]
    assert metrics[0] == metrics[1]
    lines = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert list(lines[0]) == [
        "step", "train/squared_error", "optim/learning_rate", "optim/gradient_norm",
    ]  # fmt: skip
    assert lines[-1]["train/squared_error"] < lines[0]["train/squared_error"]
    speed = read_metrics(tmp_path / "whole" / "log" / "speed.jsonl")
    assert {"speed/points_per_s", "speed/mfu"} <= speed[0].keys()


def test_preference_pairs_need_nothing_of_the_loop(tmp_path: Path) -> None:
    """Per-sequence log-probabilities; the metrics sum over micro-batches."""
    decoder = build_decoder(TINY, seed=3)
    objective = Preference(decoder)
    _trainer(objective, decoder, tmp_path).run()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert lines[0]["train/dpo_loss"] == pytest.approx(0.6931472, rel=1e-6)
    assert lines[0]["train/margin_nats"] == 0.0
    assert lines[-1]["train/dpo_loss"] < lines[0]["train/dpo_loss"]
    with torch.no_grad():
        chosen, rejected = (objective.log_probability(answers) for answers in objective.pairs)
    assert (chosen - rejected).sum() > 0 and lines[-1]["train/margin_nats"] > 0


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ((["loss"], ["loss"]), r"primary_metric 'train/squared_error' is not among .*\(loss\)"),
        ((["train/squared_error"], ["train/squared_error", "more"]), "an earlier one train/sq"),
    ],
)
def test_metrics_that_do_not_fit_are_errors(
    tmp_path: Path, metrics: tuple[list[str], list[str]], message: str
) -> None:
    class Wrong(Regression):
        def micro_batches(self, step: int) -> MicroBatches:
            def compute(names: list[str]) -> StepLoss:
                loss = self._model(torch.ones(1, 3)).sum()
                return StepLoss(loss, dict.fromkeys(names, loss))

            return MicroBatches([MicroBatch(partial(compute, names)) for names in metrics])

    model = nn.Linear(3, 1)
    with pytest.raises(ConfigError, match=message):
        _trainer(Wrong(model), model, tmp_path).run()
