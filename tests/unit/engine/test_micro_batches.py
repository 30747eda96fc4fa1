"""Micro-batches side by side: the bits of one after the other, whoever computes them and whenever."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stamm.base.console import NoProgress
from stamm.engine.config import EngineConfig
from stamm.engine.micro_batches import GradientAccumulator
from stamm.engine.objective import MicroBatch, MicroBatches, StepLoss
from stamm.engine.pieces import FEWEST_TOKENS, pieces_of
from stamm.models.config import DecoderConfig, LowRank, PlainFFN, SelfGuide, Structured
from stamm.optim.config import AdamW, AdEMAMix, OptimizerConfig
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.runs.job import Workspace


class Sums(nn.Module):
    """Parameters whose gradients are of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.a = nn.Parameter(torch.randn(3, 5, generator=draw))
        self.b = nn.Parameter(torch.randn(3, 5, generator=draw))
        self.turned = nn.Parameter(torch.randn(5, 3, generator=draw))
        self.unused = nn.Parameter(torch.zeros(2))
        self.once = nn.Parameter(torch.ones(4))

    def forward(self, index: int) -> StepLoss:
        """`a` and `b` get one tensor from autograd, `turned` a transposed one, `once` one view."""
        draw = torch.Generator().manual_seed(index)
        x = torch.randn(3, 5, generator=draw) * 10.0**index
        loss = ((self.a + self.b) * x).sum() + (self.turned.t() * x * x).sum()
        if index == 2:
            loss = loss + self.once.sum()
        return StepLoss(loss, {"loss": loss.detach()})


def batches(losses: Callable[[int], StepLoss], count: int = 6, at_once: int = 6) -> MicroBatches:
    """`count` of them, all of one kind."""
    return MicroBatches([MicroBatch(partial(losses, n)) for n in range(count)], at_once)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """By name, where there is one."""
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("threads", [2, 3, 4, 7])
@pytest.mark.parametrize("slow", [None, 0, 1, 4])
def test_the_bits_are_those_of_one_after_the_other(threads: int, slow: int | None) -> None:
    def losses(model: Sums, index: int) -> StepLoss:
        if index == slow:
            time.sleep(0.05)
        found: StepLoss = model(index)
        return found

    alone, together = Sums(), Sums()
    one = GradientAccumulator(alone).compute(batches(alone))
    many = GradientAccumulator(together, threads).compute(batches(partial(losses, together)))
    assert [float(x.metrics["loss"]) for x in many] == [float(x.metrics["loss"]) for x in one]
    want, got = gradients(alone), gradients(together)
    assert got.keys() == want.keys() == {"a", "b", "turned", "once"}
    for name, gradient in want.items():
        assert torch.equal(got[name], gradient), name
        assert got[name].stride() == gradient.stride() == getattr(together, name).stride()
    # None shares its memory with another.
    got["a"].zero_()
    assert torch.equal(got["b"], want["b"]) and got["once"].is_contiguous()


def test_no_more_are_in_flight_than_may_be_nor_far_ahead_of_the_sum() -> None:
    model, lock = Sums(), threading.Lock()
    inside: set[int] = set()
    most, ahead, done = 0, 0, threading.Event()

    def losses(index: int) -> StepLoss:
        nonlocal most, ahead
        with lock:
            inside.add(index)
            most, ahead = max(most, len(inside)), max(ahead, index if 1 in inside else 0)
        if index == 1:  # the second is slow: it holds up the sum
            done.wait(0.3)
        found: StepLoss = model(index % 3)
        with lock:
            inside.discard(index)
        return found

    GradientAccumulator(model, threads=8).compute(batches(losses, count=12, at_once=2))
    assert most == 2
    assert ahead == 4  # 1 is next in the sum: 2 to 4 may be begun before it is done, 5 not


def test_each_operation_has_its_share_of_the_threads() -> None:
    model, seen = Sums(), set()

    def losses(index: int) -> StepLoss:
        seen.add((threading.current_thread().name.startswith("micro"), torch.get_num_threads()))
        time.sleep(0.02)
        found: StepLoss = model(index % 3)
        return found

    torch.set_num_threads(4)
    GradientAccumulator(model, threads=4).compute(batches(losses, count=8, at_once=2))
    assert seen == {(True, 2), (False, 2)}
    assert torch.get_num_threads() == 4
    GradientAccumulator(model, threads=4).compute(batches(losses, count=2, at_once=1))
    assert seen == {(True, 2), (False, 2), (False, 4)}


def test_the_first_of_a_kind_is_computed_alone() -> None:
    model, lock, pair = Sums(), threading.Lock(), threading.Barrier(2, timeout=20)
    inside, company = 0, dict[str, int]()

    def losses(kind: str) -> StepLoss:
        nonlocal inside
        with lock:
            inside += 1
        if kind in company:
            pair.wait()  # computed by two threads, always in pairs
        time.sleep(0.05)
        with lock:
            company.setdefault(kind, inside)
            inside -= 1
        found: StepLoss = model(0)
        return found

    kinds = ["a", "a", "b", "a", "b", "a"]
    step = MicroBatches([MicroBatch(partial(losses, k), kind=k) for k in kinds], at_once=2)
    sums = GradientAccumulator(model, threads=2)
    sums.compute(step)
    assert company == {"a": 1, "b": 1}
    sums.compute(step)


@pytest.mark.parametrize("failing", [0, 3, 5])
def test_what_one_raises_is_raised_when_none_is_computed_any_more(failing: int) -> None:
    model, finished = Sums(), []

    def losses(index: int) -> StepLoss:
        if index == failing:
            raise MemoryError("no room")
        time.sleep(0.05)
        found: StepLoss = model(index)
        finished.append(index)
        return found

    before = threading.active_count()
    with pytest.raises(MemoryError, match="no room"):
        GradientAccumulator(model, threads=3).compute(batches(losses))
    assert threading.active_count() == before
    count = len(finished)
    time.sleep(0.1)
    assert len(finished) == count


def trained(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    optimizer: OptimizerConfig | None = None,
    **engine: Any,
) -> dict[str, bytes]:
    """What four steps leave: two sizes of batch, guides in some layers of some steps."""
    bench: Any = importlib.import_module("bench.plan_memory")
    model = DecoderConfig(
        vocab_size=64, d_model=32, num_layers=2, num_heads=2, num_kv_heads=2, max_context=32,
        ffn=PlainFFN(width=48, linear=LowRank(rank=8)),
        structured=Structured(guide=SelfGuide(until_share=1.0)),
    )  # fmt: skip
    config = PretrainConfig(
        model=model,
        context=32,
        batch=(BatchStage(size=8), BatchStage(start=16, size=12)),
        sequences=40,
        optimizer=optimizer or AdEMAMix(),
        engine=EngineConfig(device="cpu", checkpoint_every=1000, kernels="stamm", **engine),
    )
    monkeypatch.setattr(job, "open_stream", lambda *_: bench.MadeUp(40 * 32 + 1, 64))
    folder.mkdir()
    job.run(config, Workspace(folder=folder, progress=NoProgress()))
    files = ("metrics.jsonl", "model/model.safetensors")
    return {name: (folder / name).read_bytes() for name in files}


@pytest.mark.parametrize(
    ("compile_", "optimizer"),
    [("off", AdEMAMix()), ("off", AdamW()), ("layers", AdEMAMix())],
    ids=["eager", "AdamW", "compiled"],
)
def test_a_run_has_the_same_bits_with_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile_: str, optimizer: OptimizerConfig
) -> None:
    runs = [
        trained(tmp_path / str(n), monkeypatch, optimizer, threads=n, pieces=4, compile=compile_)
        for n in ((1, 2, 3, 4) if compile_ == "off" else (1, 2))
    ]
    assert all(run == runs[0] for run in runs)


def test_the_bits_of_a_run_depend_on_the_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, four = (
        trained(tmp_path / str(n), monkeypatch, threads=1, pieces=n, compile="off") for n in (1, 4)
    )
    assert one != four


def test_pieces_follow_threads_and_tokens() -> None:
    def count(
        sequences: int, context: int = 256, threads: int = 2, pieces: int | None = None
    ) -> int:
        return pieces_of(EngineConfig(threads=threads, pieces=pieces), sequences, context)

    assert count(16) == 4 and count(16, threads=1) == 1 and count(16, threads=16) == 4
    assert count(64, threads=16) == 16 and count(1, context=8 * FEWEST_TOKENS) == 1
    assert count(4) == 1 and count(15) == 3 and count(17) == 1  # as many sequences in each
    assert count(16, pieces=1) == 1 and count(16, pieces=5) == 5 and count(3, pieces=5) == 3
