"""One loop: micro-batches, compilation, bad losses, requests to end, against plain autograd."""

from __future__ import annotations

import errno
import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import TorchDynamoException

from stamm.base.console import NoProgress
from stamm.base.errors import DataError, RunError, StoppedError
from stamm.base.files import read_json
from stamm.engine.compile import compile_layers
from stamm.engine.config import EngineConfig, RollBackAndSkip, SkipUpdate, StopOnNonfinite
from stamm.engine.distributed import DistributedContext
from stamm.engine.micro_batches import GradientAccumulator
from stamm.engine.objective import MicroBatch, MicroBatches, Objective, StepLoss
from stamm.engine.preemption import PreemptionHandler
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.engine.trainer import Trainer
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdEMAMix
from stamm.runs.metrics import MetricsFile, read_metrics

MODEL = DecoderConfig(
    vocab_size=61, d_model=32, num_layers=2, ffn=PlainFFN(width=48), max_context=32
)
LOSS = "train/loss_nats"
CPU = DistributedContext(torch.device("cpu"))


class Fixed(Objective):
    """Eight sequences, over and over, in micro-batches of a given size.

    poison   steps whose loss is multiplied by a number: nan, or a large one for a spike
    asked    a step in which the process is asked to end
    """

    primary_metric = LOSS
    unit = "tokens"

    def __init__(
        self,
        decoder: Decoder,
        micro: int = 8,
        steps: int = 6,
        poison: dict[int, float] | None = None,
        asked: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(0, 61, (8, 33), generator=generator)
        self.keep = torch.rand(8, 32, generator=generator) > 0.1
        self._decoder, self._micro, self._poison = decoder, micro, poison or {}
        self._asked = asked
        self.num_steps = steps

    def micro_batches(self, step: int) -> MicroBatches:
        """The step's, all at once where there are threads for it."""
        if step == self._asked:
            os.kill(os.getpid(), signal.SIGTERM)
        starts = range(0, 8, self._micro)
        each = [MicroBatch(partial(self._compute, step, start)) for start in starts]
        return MicroBatches(each, at_once=len(each))

    def _compute(self, step: int, start: int) -> StepLoss:
        part = slice(start, start + self._micro)
        tokens, keep = self.tokens[part], self.keep[part]
        kept = float(self.keep.sum())
        found = self._decoder.losses(tokens[:, :-1], tokens[:, 1:], keep, kept)
        factor = self._poison.get(step, 1.0)
        return StepLoss(found.loss * factor, {LOSS: found.nll * factor})

    def learning_rate(self, step: int) -> float:
        """Constant."""
        return 1e-2

    def num_items(self, step: int) -> float:
        """Tokens of the step."""
        return 256


def _run(folder: Path, **asked: Any) -> Decoder:
    training, decoder = _training(folder, **asked)
    training.run()
    return decoder


def _training(
    folder: Path,
    micro: int = 8,
    compiled: bool = False,
    poison: dict[int, float] | None = None,
    steps: int = 6,
    policy: StopOnNonfinite | RollBackAndSkip | SkipUpdate | None = None,
    asked: int = 0,
    background: bool = False,
) -> tuple[Trainer, Decoder]:
    torch.set_num_threads(1)
    decoder = build_decoder(MODEL, seed=7)
    task = Fixed(decoder, micro, steps, poison, asked)
    updater = ShardedOptimizer(
        decoder, lambda piece: build_optimizer(AdEMAMix(), decoder, task.num_steps, piece)
    )
    config = EngineConfig(
        threads=1,
        compile="layers" if compiled else "off",
        checkpoint_every=2,
        async_checkpointing=background,
        on_nonfinite=policy or StopOnNonfinite(),
    )
    assert compile_layers(decoder.model.layers, config, NoProgress()) == compiled
    return Trainer(task, decoder, updater, 1.0, config, CPU, folder, NoProgress()), decoder


def _equal(a: Decoder, b: Decoder) -> bool:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


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
    task = Fixed(decoder)
    GradientAccumulator(decoder).compute(task.micro_batches(1))
    ours = {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}
    decoder.zero_grad()
    logits = decoder(task.tokens[:, :-1])
    F.cross_entropy(logits[task.keep], task.tokens[:, 1:][task.keep]).backward()  # type: ignore[no-untyped-call]
    assert ours.keys() == {name for name, _ in decoder.named_parameters()}
    for name, p in decoder.named_parameters():
        torch.testing.assert_close(ours[name], p.grad, rtol=1e-4, atol=1e-7)


NAN = float("nan")


@pytest.mark.parametrize("background", [False, True])
def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_checkpoint(
    tmp_path: Path, background: bool
) -> None:
    """Also the one that was being written when it came."""
    with pytest.raises(RunError, match=r"step 3 has loss nan.*Lower the learning rate"):
        _run(tmp_path, poison={3: NAN}, background=background)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]
    assert len(_losses(tmp_path)) == 2
    assert read_json(tmp_path / "events.json")["events"][0]["event"] == "non-finite loss"


def test_going_on_leaves_out_one_update(tmp_path: Path) -> None:
    left_out = _run(tmp_path / "on", poison={4: NAN}, policy=SkipUpdate())
    assert [line["step"] for line in read_metrics(tmp_path / "on" / "metrics.jsonl")] == [
        1,
        2,
        3,
        5,
        6,
    ]
    assert all(torch.isfinite(p).all() for p in left_out.parameters())
    with pytest.raises(RunError, match="step 4 has loss nan"):
        _run(tmp_path / "row", poison={2: NAN, 3: NAN, 4: NAN}, policy=SkipUpdate(at_most=2))


@pytest.mark.parametrize("skipped_steps", [1, 3])
def test_rolling_back_equals_a_run_without_those_steps(tmp_path: Path, skipped_steps: int) -> None:
    """Steps left out by the policy, and the same steps left out because the file says so."""
    rolled = _run(
        tmp_path / "a",
        poison={5: NAN},
        steps=8,
        policy=RollBackAndSkip(skipped_steps=skipped_steps),
    )
    events = read_json(tmp_path / "a" / "events.json")
    told = [(e["event"], e["first"], e["last"]) for e in events["events"]]
    assert told == [("skipped steps", 6 - skipped_steps, 5)]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "events.json").write_text((tmp_path / "a" / "events.json").read_text())
    without = _run(tmp_path / "b", steps=8, policy=RollBackAndSkip(skipped_steps=skipped_steps))
    assert _equal(rolled, without)
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (
        tmp_path / "b/metrics.jsonl"
    ).read_bytes()


def test_rolling_back_ends_after_some_times(tmp_path: Path) -> None:
    poison = dict.fromkeys((2, 3, 4), NAN)
    with pytest.raises(RunError, match=r"after 2 rollbacks"):
        _run(tmp_path, poison=poison, policy=RollBackAndSkip(at_most=2))


def test_rolling_back_further_than_checkpoints_are_kept_for_themselves(tmp_path: Path) -> None:
    """Six steps back, where the two newest checkpoints are of the last four."""
    policy = RollBackAndSkip(skipped_steps=6)
    rolled = _run(tmp_path / "a", poison={11: NAN}, steps=13, policy=policy)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "events.json").write_text((tmp_path / "a" / "events.json").read_text())
    assert _equal(rolled, _run(tmp_path / "b", steps=13, policy=policy))
    steps = [line["step"] for line in read_metrics(tmp_path / "a" / "metrics.jsonl")]
    assert steps == [1, 2, 3, 4, 5, 12, 13]


def test_going_back_leads_out_of_a_part_that_began_later(tmp_path: Path) -> None:
    """As where guides were left behind at step 4: the part before has to be built again."""
    _run(tmp_path, steps=4, policy=RollBackAndSkip(skipped_steps=3))
    training, _ = _training(tmp_path, poison={6: NAN}, policy=RollBackAndSkip(skipped_steps=3))
    assert training.run(first=4) == 2


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '{"events": []}',
        '{"schema": 2, "events": []}',
        '{"schema": 1}',
        '{"schema": 1, "events": [{"event": "spike"}]}',
        '{"schema": 1, "events": [{"event": "skipped steps", "step": 9, "first": 1, "last": 99}]}',
    ],
)
def test_damaged_events_are_named(tmp_path: Path, damage: str) -> None:
    (tmp_path / "events.json").write_text(damage)
    with pytest.raises(DataError, match=r"events\.json is not .*(delete|restore)"):
        _run(tmp_path)


def test_events_of_steps_that_are_done_again_are_no_longer_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="step 4 has loss nan"):
        _run(tmp_path, poison={4: NAN})
    _run(tmp_path)  # what was wrong has been mended
    assert read_json(tmp_path / "events.json")["events"] == []


def test_damaged_metrics_lead_back_to_the_checkpoint_before_the_damage(tmp_path: Path) -> None:
    whole = _run(tmp_path / "a")
    with pytest.raises(StoppedError):
        _run(tmp_path / "b", asked=5)
    metrics = tmp_path / "b" / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([*lines[:4], b"\x00" * 40 + b"\n"]))
    assert _equal(whole, _run(tmp_path / "b"))
    assert metrics.read_bytes() == (tmp_path / "a" / "metrics.jsonl").read_bytes()


def test_a_clock_that_stands_still_or_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _run(tmp_path / "a")
    monkeypatch.setattr("stamm.engine.trainer.time.perf_counter", lambda: 5.0)
    draw = random.Random(1)
    monkeypatch.setattr("stamm.engine.trainer.time.time", lambda: draw.uniform(-1e9, 4e9))
    assert _equal(whole, _run(tmp_path / "b"))
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (
        tmp_path / "b/metrics.jsonl"
    ).read_bytes()


@pytest.mark.parametrize("name", ["metrics.jsonl", "log/speed.jsonl"])
def test_a_disk_that_is_full_for_a_line_is_told_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    whole = _run(tmp_path / "a")
    write = MetricsFile.write

    def full(self: MetricsFile, values: dict[str, object]) -> None:
        if values["step"] == 4 and (LOSS in values) == (name == "metrics.jsonl"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, values)

    monkeypatch.setattr(MetricsFile, "write", full)
    with pytest.raises(RunError, match=r"no space left to write .*metrics\.jsonl"):
        _run(tmp_path / "b")
    monkeypatch.setattr(MetricsFile, "write", write)
    assert _equal(whole, _run(tmp_path / "b"))


def test_a_spike_is_seen_noted_and_rolled_back(tmp_path: Path) -> None:
    noted = _run(tmp_path / "stop", poison={20: 50.0}, steps=22)
    events = read_json(tmp_path / "stop" / "events.json")["events"]
    assert [(e["event"], e["step"]) for e in events] == [("spike", 20)]
    rolled = _run(tmp_path / "back", poison={20: 50.0}, steps=22, policy=RollBackAndSkip())
    assert len(_losses(tmp_path / "stop")) == 22 and len(_losses(tmp_path / "back")) == 21
    assert not _equal(noted, rolled)


@pytest.mark.parametrize("background", [False, True])
def test_asked_to_end_it_saves_and_goes_on_with_the_same_bits(
    tmp_path: Path, background: bool
) -> None:
    whole = _run(tmp_path / "whole", background=background)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedError, match=r"SIGTERM.*after step 3 of 6 is saved"):
        _run(tmp_path / "asked", asked=3, background=background)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (tmp_path / "asked" / "checkpoints" / "step-00000003").is_dir()
    resumed = _run(tmp_path / "asked", background=background)
    assert _equal(whole, resumed)
    names = ("metrics.jsonl",)
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "asked" / name).read_bytes()


def test_asked_in_the_last_step_it_ends_all_the_same(tmp_path: Path) -> None:
    """Else the recipe's next step would begin, and the request be forgotten."""
    with pytest.raises(StoppedError, match="after step 6 of 6 is saved"):
        _run(tmp_path, asked=6)
    assert (tmp_path / "checkpoints" / "step-00000006").is_dir()


def test_asked_in_a_step_that_is_rolled_back_it_ends_with_the_next(tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match=r"SIGTERM.*after step \d of 6 is saved"):
        _run(tmp_path / "b", asked=4, poison={4: NAN}, policy=RollBackAndSkip())
    whole = _run(tmp_path / "a", poison={4: NAN}, policy=RollBackAndSkip())
    assert _equal(whole, _run(tmp_path / "b", poison={4: NAN}, policy=RollBackAndSkip()))
    for name in ("metrics.jsonl", "events.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_request_that_nobody_heard_is_sent_again() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with PreemptionHandler():
            signal.raise_signal(signal.SIGTERM)
            assert came == []
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("missing", ["compiler", "headers"])
def test_without_what_compiling_takes_it_runs_eagerly_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    said: list[str] = []

    class Talk(NoProgress):
        def log(self, text: str) -> None:
            said.append(text)

    if missing == "compiler":
        monkeypatch.setattr("stamm.engine.compile.shutil.which", lambda name: None)
    else:
        places = {"include": str(tmp_path)}
        monkeypatch.setattr("stamm.engine.compile.sysconfig.get_paths", lambda: places)
    decoder = build_decoder(MODEL, seed=7)
    assert not compile_layers(decoder.model.layers, EngineConfig(), Talk())
    assert "not found: training runs uncompiled" in said[0]


def test_a_failed_compilation_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise TorchDynamoException("CppCompileError: no such header\nand much more")

    monkeypatch.setattr(Trainer, "_gradients", broken)
    with pytest.raises(RunError, match=r"could not be compiled: CppCompileError: no such header"):
        _run(tmp_path)


def test_a_signal_that_ends_the_compiler_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A group of processes gets a signal together: a compilation that it ended has not failed."""

    def ended(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise TorchDynamoException("CppCompileError: C++ compile error")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_gradients", ended)
        with pytest.raises(
            StoppedError, match=r"SIGTERM.*compiled, in step 1.*to resume"
        ) as caught:
            _run(tmp_path)
    assert caught.value.exit_code == 143
    _run(tmp_path)
