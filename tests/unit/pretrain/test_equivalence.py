"""Configurations that must give one trajectory, and a step against plain autograd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from stamm.base.console import Silent
from stamm.base.errors import RunError
from stamm.engine.config import EngineConfig
from stamm.engine.loop import compile_layers, train
from stamm.losses.language_model import nll_per_kept_token
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdEMAMix
from stamm.runs.metrics import read_metrics

MODEL = DecoderConfig(
    vocab_size=61, d_model=32, num_layers=2, ffn=PlainFFN(width=48), max_context=32
)


class Fixed:
    """Eight sequences, over and over, in micro-batches of a given size."""

    def __init__(self, decoder: Decoder, micro: int, steps: int = 6, poison: int = -1) -> None:
        generator = torch.Generator().manual_seed(3)
        self._tokens = torch.randint(0, 61, (8, 33), generator=generator)
        self._keep = torch.rand(8, 32, generator=generator) > 0.1
        self._decoder, self._micro, self._poison = decoder, micro, poison
        self.num_steps = steps

    def losses(self, step: int) -> Iterator[Tensor]:
        """The step's micro-batches."""
        for start in range(0, 8, self._micro):
            part = slice(start, start + self._micro)
            hidden = self._decoder.model(self._tokens[part, :-1])
            loss = nll_per_kept_token(
                hidden.flatten(0, 1),
                self._decoder.lm_head.weight,
                self._tokens[part, 1:].flatten(),
                self._keep[part].flatten(),
                kept=float(self._keep.sum()),
            )
            yield loss * float("nan") if step == self._poison else loss

    def learning_rate(self, step: int) -> float:
        """Constant."""
        return 1e-2

    def facts(self, step: int) -> dict[str, float]:
        """Tokens of the step."""
        return {"train/tokens": 256}


def _run(folder: Path, micro: int = 8, compiled: bool = False, poison: int = -1) -> Decoder:
    torch.set_num_threads(1)
    decoder = build_decoder(MODEL, seed=7)
    task = Fixed(decoder, micro, poison=poison)
    optimizer = build_optimizer(AdEMAMix(), decoder, task.num_steps)
    config = EngineConfig(threads=1, compile="layers" if compiled else "off", checkpoint_every=2)
    assert compile_layers(decoder.model.layers, config, Silent()) == compiled
    train(task, decoder, optimizer, 1.0, config, folder, Silent())
    return decoder


def _losses(folder: Path) -> list[float]:
    return [line["train/loss_nats"] for line in read_metrics(folder / "metrics.jsonl")]


def test_micro_batches_follow_the_whole_batch(tmp_path: Path) -> None:
    _run(tmp_path / "whole")
    _run(tmp_path / "micro", micro=2)
    whole, micro = _losses(tmp_path / "whole"), _losses(tmp_path / "micro")
    assert micro == pytest.approx(whole, rel=1e-5)
    assert whole[-1] < whole[0] - 0.05


def test_compiled_layers_follow_eager_ones(tmp_path: Path) -> None:
    _run(tmp_path / "eager")
    _run(tmp_path / "compiled", compiled=True)
    assert _losses(tmp_path / "compiled") == pytest.approx(_losses(tmp_path / "eager"), rel=1e-4)


def test_a_step_has_the_gradients_of_plain_autograd() -> None:
    decoder = build_decoder(MODEL, seed=7)
    task = Fixed(decoder, micro=8)
    for loss in task.losses(0):
        loss.backward()
    ours = {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}
    decoder.zero_grad()
    logits = decoder(task._tokens[:, :-1])
    F.cross_entropy(logits[task._keep], task._tokens[:, 1:][task._keep]).backward()
    assert ours.keys() == {name for name, _ in decoder.named_parameters()}
    for name, p in decoder.named_parameters():
        torch.testing.assert_close(ours[name], p.grad, rtol=1e-4, atol=1e-7)


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"step 4 has loss nan.*Lower the learning rate"):
        _run(tmp_path, poison=3)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]
    assert len(_losses(tmp_path)) == 3


@pytest.mark.parametrize("missing", ["compiler", "headers"])
def test_without_what_compiling_takes_it_runs_eagerly_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    said: list[str] = []

    class Talk(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    if missing == "compiler":
        monkeypatch.setattr("stamm.engine.loop.shutil.which", lambda name: None)
    else:
        places = {"include": str(tmp_path)}
        monkeypatch.setattr("stamm.engine.loop.sysconfig.get_paths", lambda: places)
    decoder = build_decoder(MODEL, seed=7)
    assert not compile_layers(decoder.model.layers, EngineConfig(), Talk())
    assert "not found: training runs uncompiled" in said[0]


def test_a_failed_compilation_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise TorchDynamoException("CppCompileError: no such header\nand much more")

    monkeypatch.setattr("stamm.engine.loop._update", broken)
    with pytest.raises(RunError, match=r"could not be compiled: CppCompileError: no such header"):
        _run(tmp_path)
