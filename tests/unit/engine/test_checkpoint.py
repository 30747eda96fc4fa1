"""Checkpoints: whole or not there, and the one before is used when the newest is damaged."""

from __future__ import annotations

import errno
import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stamm.base.errors import DataError, RunError
from stamm.base.files import atomic
from stamm.engine.checkpoint import Checkpoints
from stamm.engine.distributed import DistributedContext
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.optim.ademamix import AdEMAMixOptimizer
from stamm.optim.config import AdEMAMix

ALONE = DistributedContext(torch.device("cpu"))


class Talk:
    """A Progress that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, task: str, total: float, unit: str) -> None: ...

    def advance(self, done: float, note: str = "", share: float | None = None) -> None: ...

    def end(self, note: str = "") -> None: ...

    def log(self, text: str) -> None:
        self.said.append(text)


def _updater(model: nn.Module) -> ShardedOptimizer:
    def build(piece: Callable[[nn.Parameter], nn.Parameter]) -> torch.optim.Optimizer:
        return AdEMAMixOptimizer(map(piece, model.parameters()), AdEMAMix(), total_steps=20)

    return ShardedOptimizer(model, build)


def _pair(seed: int) -> tuple[nn.Module, ShardedOptimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(4, 4)
    return model, _updater(model)


def _train(model: nn.Module, updater: ShardedOptimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, 4)).square().sum().backward()
        updater.step(0.1)


def same(step: int) -> str:
    """The metrics as they were when the checkpoint of `step` was written."""
    return f"m{step}"


def _equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole, optimizer = _pair(0)
    _train(whole, optimizer, 5)
    store = Checkpoints(tmp_path, keep=2, world=ALONE)
    store.save(5, whole, optimizer, "m5")
    _train(whole, optimizer, 5)
    resumed, fresh = _pair(1)
    assert store.restore(resumed, fresh, same, Talk()) == 5
    _train(resumed, fresh, 5)
    assert _equal(whole, resumed)


def test_the_same_state_has_the_same_bytes(tmp_path: Path) -> None:
    """safetensors draws an order for what describes a file: 1 of 6 here, 1 of 7776 in six files."""
    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=9, world=ALONE)
    for step in range(6):
        store.save(step, model, updater, "m")
    assert len({path.read_bytes() for path in tmp_path.glob("*/*.safetensors")}) == 1


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    model, optimizer = _pair(0)
    store = Checkpoints(tmp_path, keep=2, world=ALONE)
    for step in (1, 2, 3):
        _train(model, optimizer, 1)
        store.save(step, model, optimizer, f"m{step}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_a_process_killed_while_it_deletes_leaves_no_half_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def killed(folder: Path, ignore_errors: bool = False) -> None:
        for file in Path(folder).glob("*.json"):
            file.unlink()
            raise KilledError

    model, optimizer = _pair(0)
    store = Checkpoints(tmp_path, keep=1, world=ALONE)
    store.save(1, model, optimizer, "m1")
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KilledError):
        store.save(2, model, optimizer, "m2")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.glob("step-*")] == ["step-00000002"]
    assert Checkpoints(tmp_path, keep=1, world=ALONE).restore(model, optimizer, same, Talk()) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000002"]


@pytest.mark.parametrize(
    "damage",
    ["flip", "truncate", "remove", "state", "empty state", "schema", "counts", "emptied", "other"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage: str
) -> None:
    model, optimizer = _pair(0)
    store = Checkpoints(tmp_path, keep=2, world=ALONE)
    for step in (1, 2):
        _train(model, optimizer, 1)
        store.save(step, model, optimizer, f"m{step}")
    newest = tmp_path / "step-00000002"
    (weights,) = newest.glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    state = json.loads((newest / "state.json").read_text())
    if damage == "flip":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "truncate":
        weights.write_bytes(data[:-3])
    elif damage == "remove":
        weights.unlink()
    elif damage in ("emptied", "other"):
        shutil.rmtree(newest)
        if damage == "other":
            shutil.copytree(tmp_path / "step-00000001", newest)
        else:
            newest.mkdir()
    else:
        text = {
            "state": "{",
            "empty state": "{}",
            "schema": json.dumps({**state, "schema": 2}),
            "counts": json.dumps({**state, "counts": [3]}),  # one bit of a number
        }
        (newest / "state.json").write_text(text[damage])
    talk, (other, fresh) = Talk(), _pair(1)
    assert store.restore(other, fresh, same, talk) == 1
    assert "step-00000002 is damaged" in talk.said[0]
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_a_checkpoint_is_not_used_with_other_metrics_than_it_was_written_with(
    tmp_path: Path,
) -> None:
    model, optimizer = _pair(0)
    store = Checkpoints(tmp_path, keep=2, world=ALONE)
    for step in (1, 2):
        store.save(step, model, optimizer, f"m{step}")
    talk = Talk()
    assert store.restore(model, optimizer, lambda step: "m1", talk) == 1
    assert "metrics.jsonl has changed" in talk.said[0]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    for left in (".step-00000007.part", ".step-00000003.gone"):
        (tmp_path / left).mkdir(parents=True)
    model, optimizer = _pair(0)
    assert Checkpoints(tmp_path, keep=1, world=ALONE).restore(model, optimizer, same, Talk()) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path, background: bool) -> None:
    """Full for a file of its size: the limit of this process, which the system enforces."""
    model = nn.Linear(256, 256)
    updater = _updater(model)
    store = Checkpoints(tmp_path, keep=1, world=ALONE, background=background)
    store.save(1, model, updater, "m1")
    store.finish()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        with pytest.raises(RunError, match="no space left to write"):
            store.save(2, model, updater, "m2")
            store.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_a_run_whose_checkpoints_are_all_damaged_says_so_and_keeps_them(tmp_path: Path) -> None:
    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=2, world=ALONE)
    for step in (1, 2):
        store.save(step, model, updater, f"m{step}")
    with pytest.raises(RunError, match=r"none of the 2 checkpoints .* can be used"):
        store.restore(model, updater, lambda step: "other", Talk())
    assert len(list(tmp_path.iterdir())) == 2


def test_some_checkpoints_stay(tmp_path: Path) -> None:
    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=1, world=ALONE, stays=lambda step: step == 2)
    for step in (1, 2, 3, 4):
        store.save(step, model, updater, f"m{step}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000004"]


def test_a_checkpoint_off_the_schedule_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    """As one that was written when the process was asked to end."""
    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=2, world=ALONE, scheduled=lambda step: step % 10 == 0)
    kept = []
    for step in (10, 20, 25, 27, 30, 35):
        store.save(step, model, updater, f"m{step}")
        kept.append(sorted(int(path.name[-8:]) for path in tmp_path.iterdir()))
    assert kept == [[10], [10, 20], [20, 25], [20, 27], [20, 30], [30, 35]]


def test_another_run_begins_with_its_weights_with_or_without_the_moments(tmp_path: Path) -> None:
    model, updater = _pair(0)
    _train(model, updater, 3)
    Checkpoints(tmp_path / "a", keep=1, world=ALONE).save(3, model, updater, "m3")
    other = Checkpoints(tmp_path / "b", keep=1, world=ALONE)
    kept, with_moments = _pair(1)
    other.load(tmp_path / "a" / "step-00000003", kept, with_moments, moments=True)
    begun, without = _pair(1)
    other.load(tmp_path / "a" / "step-00000003", begun, without, moments=False)
    assert _equal(model, kept) and _equal(model, begun)
    assert (with_moments.counts, without.counts) == ([3], [0])
    assert not any(t.any() for t in without.tensors().values())
    with pytest.raises(DataError, match=r"does not fit the model: Size mismatch .*4.* and .*5"):
        wider = nn.Linear(5, 5)
        other.load(tmp_path / "a" / "step-00000003", wider, _updater(wider), moments=False)


def test_another_run_does_not_begin_with_a_part_of_other_weights(tmp_path: Path) -> None:
    """Every tensor that it wants would be there; `restore` of the run itself reads as before."""
    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=1, world=ALONE)
    store.save(1, model, updater, "m1")
    smaller = nn.Linear(4, 4, bias=False)
    with pytest.raises(DataError, match="the checkpoint has the tensor bias, and the model does"):
        store.load(tmp_path / "step-00000001", smaller, _updater(smaller), moments=False)
    other, larger = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
    store.save(1, other, _updater(other), "m1")
    with pytest.raises(DataError, match="the model has the tensor bias, and the checkpoint does"):
        store.load(tmp_path / "step-00000001", larger, _updater(larger), moments=False)


def test_tied_weights_are_stored_and_come_back(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

    one, two = Tied(), Tied()
    store = Checkpoints(tmp_path, keep=1, world=ALONE)
    store.save(1, one, _updater(one), "m1")
    store.restore(two, _updater(two), same, Talk())
    assert torch.equal(two.b.weight, one.a.weight)
    (file,) = (tmp_path / "step-00000001").glob("*.safetensors")
    names = set(load_file(file))
    assert {name for name in names if name.startswith("model/")} == {"model/a.weight"}


def test_as_far_back_as_a_run_may_go_a_checkpoint_is_kept(tmp_path: Path) -> None:
    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=1, world=ALONE, reach=5)
    for step in range(0, 13, 2):
        store.save(step, model, updater, f"m{step}")
        kept = [int(path.name[-8:]) for path in tmp_path.iterdir()]
        for bad in (step + 1, step + 2):  # the steps before the next checkpoint
            assert min(kept) <= max(bad - 5, 0)
    assert sorted(kept) == [8, 10, 12]


def test_going_back_to_before_every_checkpoint_is_refused(tmp_path: Path) -> None:
    """The weights are then of a later step: nothing here makes them new."""
    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=1, world=ALONE)
    store.save(4, model, updater, "m4")
    with pytest.raises(RunError, match="can be used to go back to step 3"):
        store.restore(model, updater, same, Talk(), at_most=3)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000004"]


@pytest.mark.parametrize("background", [False, True])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, background: bool) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    model, updater = _pair(0)
    store = Checkpoints(tmp_path / "checkpoints", keep=1, world=ALONE, background=background)
    with pytest.raises(RunError, match=r"checkpoints/step-00000001 was not written: .*Not a dir"):
        store.save(1, model, updater, "m1")


def test_a_disk_that_is_full_for_the_state_alone_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: object) -> None:
        with atomic(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=1, world=ALONE)
    monkeypatch.setattr("stamm.engine.checkpoint_files.write_json", full)
    with pytest.raises(RunError, match=r"no space left to write .*step-00000001"):
        store.save(1, model, updater, "m1")
    assert list(tmp_path.iterdir()) == []


def test_a_piece_that_only_its_writer_sees_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two machines whose run folder is not the same one: the other's piece is not here."""

    def all_gather_object(self: DistributedContext, value: object) -> list[object]:
        elsewhere = ["shard-00002-model-00001-of-00001.safetensors"]
        return [value, elsewhere] if isinstance(value, list) else [value]

    monkeypatch.setattr(DistributedContext, "all_gather_object", all_gather_object)
    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=1, world=ALONE)
    with pytest.raises(RunError, match=r"step-00000001 was not written: .*shard-00002"):
        store.save(1, model, updater, "m1")
    assert list(tmp_path.iterdir()) == []


def test_moments_of_other_groups_of_parameters_are_refused(tmp_path: Path) -> None:
    model, updater = _pair(0)
    _train(model, updater, 1)
    Checkpoints(tmp_path / "a", keep=1, world=ALONE).save(1, model, updater, "m1")
    other, _ = _pair(1)

    def build(piece: Callable[[nn.Parameter], nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": [piece(p)]} for p in other.parameters()]
        return AdEMAMixOptimizer(groups, AdEMAMix(), total_steps=20)

    with pytest.raises(DataError, match="1 groups of parameters there, 2 here"):
        store = Checkpoints(tmp_path / "b", keep=1, world=ALONE)
        store.load(
            tmp_path / "a" / "step-00000001", other, ShardedOptimizer(other, build), moments=True
        )


@pytest.mark.parametrize("adam", [False, True])
def test_a_parameter_without_gradients_has_no_state_and_the_run_resumes(
    tmp_path: Path, adam: bool
) -> None:
    def updater(model: nn.Module) -> ShardedOptimizer:
        return (
            ShardedOptimizer(model, lambda piece: torch.optim.AdamW(map(piece, model.parameters())))
            if adam
            else _updater(model)
        )

    def train(model: nn.ModuleList, optimizer: ShardedOptimizer, steps: int, used: int) -> None:
        for _ in range(steps):
            for part in list(model)[:used]:
                part(torch.ones(2, 4)).square().sum().backward()
            optimizer.step(0.1)

    def pair() -> tuple[nn.ModuleList, ShardedOptimizer]:
        model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        return model, updater(model)

    torch.manual_seed(0)
    whole, optimizer = pair()
    train(whole, optimizer, 3, used=1)
    store = Checkpoints(tmp_path, keep=2, world=ALONE)
    store.save(3, whole, optimizer, "m3")
    resumed, fresh = pair()
    assert store.restore(resumed, fresh, same, Talk()) == 3
    assert fresh.tensors().keys() == optimizer.tensors().keys()
    for model, its in ((whole, optimizer), (resumed, fresh)):
        train(model, its, 2, used=2)  # the other has a gradient now
    assert _equal(whole, resumed)


def test_the_state_of_another_optimizer_is_not_taken_for_none(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    adam = ShardedOptimizer(model, lambda piece: torch.optim.AdamW(map(piece, model.parameters())))
    other = ShardedOptimizer(
        model, lambda piece: torch.optim.SGD(map(piece, model.parameters()), momentum=0.9)
    )
    store = Checkpoints(tmp_path, keep=1, world=ALONE)
    store.save(1, model, adam, "m1")
    with pytest.raises(DataError, match=r"does not fit the model: .*momentum_buffer"):
        store.load(tmp_path / "step-00000001", model, other, moments=True)


def test_what_cannot_begin_to_be_written_is_told_before_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes, one that alone could not copy its pieces; the other waited for 30 minutes."""

    def unable(*_: object, **__: object) -> None:
        raise RuntimeError("not enough memory: you tried to allocate 99 bytes")

    monkeypatch.setattr("stamm.engine.checkpoint.async_save", unable)
    model, updater = _pair(0)
    store = Checkpoints(tmp_path, keep=1, world=ALONE, background=True)
    with pytest.raises(RunError, match="step-00000001 was not written: not enough memory"):
        store.save(1, model, updater, "m1")
    assert list(tmp_path.iterdir()) == []
