"""Checkpoints: whole or not there, and the one before is used when the newest is damaged."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stamm.base.errors import RunError
from stamm.engine import checkpoint
from stamm.engine.checkpoint import Checkpoints
from stamm.optim.ademamix import AdEMAMixOptimizer
from stamm.optim.config import AdEMAMix


class Talk:
    """A Progress that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, task: str, total: float, unit: str) -> None: ...

    def advance(self, done: float, note: str = "") -> None: ...

    def end(self, note: str = "") -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)


def _pair(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(4, 4)
    return model, AdEMAMixOptimizer(model.parameters(), AdEMAMix(), total_steps=20, lr=0.1)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def same(step: int) -> str:
    """The metrics as they were when the checkpoint of `step` was written."""
    return f"m{step}"


def _equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole, optimizer = _pair(0)
    _train(whole, optimizer, 5)
    store = Checkpoints(tmp_path, keep=2)
    store.save(5, whole, optimizer, "m5")
    _train(whole, optimizer, 5)
    resumed, fresh = _pair(1)
    assert store.restore(resumed, fresh, same, Talk()) == 5
    _train(resumed, fresh, 5)
    assert _equal(whole, resumed)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    model, optimizer = _pair(0)
    store = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        _train(model, optimizer, 1)
        store.save(step, model, optimizer, f"m{step}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "state", "empty state"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage: str
) -> None:
    model, optimizer = _pair(0)
    store = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        _train(model, optimizer, 1)
        store.save(step, model, optimizer, f"m{step}")
    weights = tmp_path / "step-00000002" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "truncate":
        weights.write_bytes(data[:-3])
    elif damage == "remove":
        weights.unlink()
    else:
        text = "{" if damage == "state" else "{}"
        (tmp_path / "step-00000002" / "state.json").write_text(text)
    talk, (other, fresh) = Talk(), _pair(1)
    assert store.restore(other, fresh, same, talk) == 1
    assert "step-00000002 is damaged" in talk.said[0]
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_a_checkpoint_is_not_used_with_other_metrics_than_it_was_written_with(
    tmp_path: Path,
) -> None:
    model, optimizer = _pair(0)
    store = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        store.save(step, model, optimizer, f"m{step}")
    talk = Talk()
    assert store.restore(model, optimizer, lambda step: "m1", talk) == 1
    assert "metrics.jsonl has changed" in talk.said[0]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".step-00000007.part").mkdir(parents=True)
    model, optimizer = _pair(0)
    assert Checkpoints(tmp_path, keep=1).restore(model, optimizer, same, Talk()) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["system", "safetensors"])
def test_a_full_disk_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    model, optimizer = _pair(0)
    store = Checkpoints(tmp_path, keep=1)
    store.save(1, model, optimizer, "m1")

    def full(tensors: Any, path: Path) -> None:
        path.write_bytes(b"half")
        if how == "system":
            raise OSError(errno.ENOSPC, "No space left on device")
        raise checkpoint.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(RunError, match="no room left to write"):
        store.save(2, model, optimizer, "m2")
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_tied_weights_are_stored_and_come_back(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

    one, two = Tied(), Tied()
    optimizer = AdEMAMixOptimizer(one.parameters(), AdEMAMix(), total_steps=2)
    store = Checkpoints(tmp_path, keep=1)
    store.save(1, one, optimizer, "m1")
    fresh = AdEMAMixOptimizer(two.parameters(), AdEMAMix(), total_steps=2)
    store.restore(two, fresh, same, Talk())
    assert torch.equal(two.b.weight, one.a.weight)
    stored = (tmp_path / "step-00000001" / "model.safetensors").stat().st_size
    assert stored < 2 * 9 * 4 + 200  # once, with a header
