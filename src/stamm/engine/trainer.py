"""The loop: gradients, the optimizer, checkpoints, and what happens when something goes wrong.

What is learned is the task's affair. Steps count from 1.
"""

from __future__ import annotations

import contextlib
import shutil
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch._inductor import config as inductor

from stamm.activations.fused.memory import empty_cache
from stamm.base.console import Progress
from stamm.base.errors import RunError
from stamm.base.files import is_full, no_room
from stamm.base.status import TrainingStatus
from stamm.engine.checkpoint import Checkpoints
from stamm.engine.config import EngineConfig, GoOn, RollBack
from stamm.engine.distributed import World, together
from stamm.engine.events import PASSED_OVER, Events, read_events
from stamm.engine.micro_batches import Gradients, MicroBatches
from stamm.engine.parallel import finish_gradients
from stamm.engine.preemption import Requests
from stamm.engine.sharded_optimizer import Updater
from stamm.engine.spike_detection import Guard, Verdict
from stamm.runs.metrics import MetricsFile, metrics_hash, read_metrics

LOSS = "train/loss_nats"


class Task(Protocol):
    """What a model is trained to do."""

    num_steps: int

    @property
    def milestones(self) -> frozenset[int]:
        """Steps after which a checkpoint is written that stays."""

    def micro_batches(self, step: int) -> MicroBatches:
        """What this process computes; over all processes the losses sum to the step's."""

    def learning_rate(self, step: int) -> float:
        """Learning rate of the step."""

    def work(self, step: int) -> int:
        """Useful floating-point operations of the step, on all processes together."""

    def done(self, step: int) -> float:
        """Share of the whole that is done when the step ends."""

    def facts(self, step: int) -> dict[str, float]:
        """What to record beside the loss ("tokens", "train/kept_tokens", shapes on some steps)."""


def missing_to_compile() -> str:
    """What torch.compile would need on this machine's CPU and does not find; "" when nothing."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        return "A C++ compiler (g++, clang++) was"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python.h (Debian: python3-dev) was"
    return ""


def separate_inductor_cache() -> None:
    """Let inductor find no code that it compiled for other vectors than those in use.

    Its cache does not know ATEN_CPU_CAPABILITY: after a process with AVX-512, one that is held to AVX2
    was given its code, and got wrong numbers or was aborted (torch 2.13). The vectors' length, in bits,
    is part of the cache's key.

    Checked  tests/unit/engine/test_inductor_cache.py
    """
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        inductor.cpp.simdlen = 256


def compile_layers(layers: nn.ModuleList, config: EngineConfig, progress: Progress) -> bool:
    """Compile each layer in place; equal layers share one compilation. True when it was done.

    A machine without what it takes runs the same layers eagerly, slower; this is said aloud.
    """
    if config.compile == "off":
        return False
    missing = missing_to_compile()
    if missing:
        progress.log(f"{missing} not found: training runs uncompiled, slower.")
        return False
    separate_inductor_cache()
    torch._dynamo.reset()  # compilations of an earlier model count towards a limit per function
    for layer in layers:
        layer.compile(fullgraph=True)
    return True


@dataclass(frozen=True)
class Beginning:
    """Another run's checkpoint, and whether its optimizer goes on, too."""

    checkpoint: Path
    keep_moments: bool


class Training:
    """One run of a task on one model.

    folder   events.json, metrics.jsonl (the same bytes however often the run was interrupted),
             log/speed.jsonl (wall clock; not reproducible) and checkpoints/ are written here
    peak     largest FLOP/s of a device; 0 where it is not known
    begin    what the model starts from, in place of the weights it has
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        updater: Updater,
        clip_norm: float,
        config: EngineConfig,
        world: World,
        folder: Path,
        progress: Progress,
        peak: float = 0.0,
        begin: Beginning | None = None,
    ) -> None:
        self._task, self._model, self._updater = task, model, updater
        self._clip_norm, self._config, self._world = clip_norm, config, world
        self._folder, self._progress, self._peak = folder, progress, peak
        self._begin = begin
        self._sums = Gradients(model, config.threads)
        self._path = folder / "metrics.jsonl"
        self._status = TrainingStatus()
        background = config.background_saves
        policy = config.bad_losses
        self._store = Checkpoints(
            folder / "checkpoints",
            config.keep_checkpoints,
            world,
            background=background,
            stays=self._stays,
            reach=policy.passed_over if isinstance(policy, RollBack) else 1,
        )
        path = folder / "events.json"
        known = world.of_leader(read_events(path) if world.leads else None)
        self._events = Events(path, writes=world.leads, known=known)

    def run(self, first: int = 0, until: int | None = None) -> int:
        """Train to the end, from the newest checkpoint when there is one; the step that is reached.

        first    what is trained here begins behind this step: nothing is done when the newest
                 checkpoint that can be used is from before it
        until    the step to stop at, with a checkpoint; None: the last
        Raises   RunError when losses are no numbers and the policy is at its end, when layers
                 cannot be compiled, when a disk is full, when another process is gone. StoppedError
                 when the process was asked to end: a checkpoint of the last step is there.
        """
        until = self._task.num_steps if until is None else until
        try:
            with together():
                return self._run(first, until)
        except OSError as error:
            if is_full(error):
                raise no_room(self._path) from error
            raise

    def _run(self, first: int, until: int) -> int:
        begun = self._restore()
        if begun < first:
            return begun
        if begun == 0 and self._begin is not None:
            self._store.load(
                self._begin.checkpoint,
                self._model,
                self._updater,
                moments=self._begin.keep_moments,
            )
        if begun:
            self._progress.log(f"Going on from step {begun} of {self._task.num_steps}.")
        with Requests() as requests:
            # Going back may lead to before what is trained here.
            while first <= begun < until:
                begun = self._stretch(begun, until, requests)
            self._store.finish()
        return begun

    def _restore(self, at_most: int | None = None) -> int:
        return self._store.restore(
            self._model,
            self._updater,
            lambda step: metrics_hash(self._path, step),
            self._progress,
            at_most,
        )

    def _stretch(self, begun: int, until: int, requests: Requests) -> int:
        """Train from step `begun` + 1 on, to `until` or until steps are to be done again."""
        rolls = isinstance(self._config.bad_losses, RollBack)
        self._events.forget_after(begun)
        passed = self._events.passed_over()
        with (
            self._file("metrics.jsonl", begun) as metrics,
            self._file("log/speed.jsonl", begun) as speed,
        ):
            # Opened, the metrics hold nothing of later steps, and no line that is damaged.
            guard = Guard(self._config.bad_losses, self._losses())
            if begun == 0 and rolls:
                self._save(0, metrics)  # a step may be passed over before the first checkpoint
            for step in range(begun + 1, until + 1):
                if step not in passed:
                    again = self._step(step, guard, requests, metrics, speed)
                    if again is not None:
                        return again
                if requests.heard or step == until or self._is_saved(step):
                    self._save(step, metrics)
                else:
                    self._store.advance()
                if requests.heard:
                    self._store.finish()
                    raise requests.stopped(step, self._task.num_steps)
        return until

    def _step(
        self,
        step: int,
        guard: Guard,
        requests: Requests,
        metrics: MetricsFile | None,
        speed: MetricsFile | None,
    ) -> int | None:
        """Do one step; the step to go on from when steps are to be done again, else None."""
        started = time.perf_counter()
        rate = self._task.learning_rate(step)
        try:
            loss, z, norm = self._gradients(step, requests)
        except TorchDynamoException as error:
            raise RunError(
                f"the layers could not be compiled: {str(error).strip().splitlines()[0]}",
                fix="Run the same command again, or train with engine.compile=off",
            ) from error
        verdict = guard.judge(loss, norm)
        if verdict != "good":
            learns, again = self._answer(verdict, step, loss, norm, guard)
            if not learns:
                self._updater.drop_gradients()
                return again
        self._updater.step(rate)
        guard.take(loss)
        facts = self._task.facts(step)
        line = {
            "step": step,
            LOSS: loss,
            **({"train/z_loss_nats": z} if z else {}),
            "optim/learning_rate": rate,
            "optim/gradient_norm": norm,
            **facts,
        }
        seconds = max(time.perf_counter() - started, 1e-9)  # a clock may stand still
        pace = facts["train/tokens"] / seconds
        timing = {"step": step, "speed/tokens_per_s": round(pace, 1), "speed/seconds": seconds}
        flops = self._task.work(step) / seconds
        share = flops / (self._peak * self._world.size) if self._peak else 0.0
        timing |= {"speed/flops_per_s": round(flops), "speed/utilisation": round(share, 4)}
        if metrics is not None and speed is not None:
            metrics.write(line)
            speed.write(timing)
        self._status.add(loss, facts["train/tokens"], seconds, share, rate)
        self._progress.advance(step, self._status.text(), share=self._task.done(step))
        return None

    def _gradients(self, step: int, requests: Requests) -> tuple[float, float, float]:
        """Loss, z-loss and gradient norm of the step; notes whether a process was asked to end."""
        device = self._world.device
        total = torch.zeros(3, dtype=torch.float64, device=device)
        for found in self._sums.compute(self._task.micro_batches(step)):
            total[0] += found.nll
            total[1] += found.z
        norm = finish_gradients(self._model, self._world, self._clip_norm)
        total[2] = float(requests.pending is not None)
        nll, z, asked = self._world.sum_(total).tolist()
        requests.heard = asked > 0
        return nll, z, norm.item()

    def _answer(
        self, verdict: Verdict, step: int, loss: float, norm: float, guard: Guard
    ) -> tuple[bool, int | None]:
        """What the policy says to a bad loss: whether to learn from it, and where to go on from."""
        policy = self._config.bad_losses
        told = f"step {step} has loss {loss} and gradient norm {norm}"
        facts = {"loss": repr(loss), "gradient_norm": repr(norm), "limit": repr(guard.limit())}
        if isinstance(policy, RollBack):
            return False, self._roll_back(policy, verdict, step, told, facts)
        self._events.add(verdict, step, **facts)
        if verdict == "spike":
            self._progress.log(f"A spike: {told}.")
            return True, None
        streak = self._streak(step)
        if not isinstance(policy, GoOn) or streak > policy.at_most:
            self._store.finish()  # what is being written is from before it
            raise RunError(
                told,
                fix="Lower the learning rate (schedule.peak), or set engine.bad_losses=RollBack; "
                "the checkpoints before it are kept",
            )
        self._progress.log(f"{told}: its update is left out.")
        return False, None

    def _roll_back(
        self, policy: RollBack, verdict: Verdict, step: int, told: str, facts: dict[str, str]
    ) -> int:
        times = sum(event["event"] == PASSED_OVER for event in self._events.all)
        if times >= policy.at_most:
            raise RunError(
                f"{told}, after steps were passed over {times} times",
                fix="Lower the learning rate (schedule.peak), or raise engine.bad_losses.at_most",
            )
        self._store.finish()
        first = max(step - policy.passed_over + 1, 1)
        restored = self._restore(at_most=first - 1)
        self._events.add(PASSED_OVER, step, why=verdict, first=first, last=step, **facts)
        passed = f"steps {first} to {step} are" if first < step else f"step {step} is"
        self._progress.log(f"{told}: {passed} passed over, going on from step {restored}.")
        return restored

    def _streak(self, step: int) -> int:
        """How many steps in a row, this one included, had a loss that is no number."""
        bad = {e["step"] for e in self._events.all if e["event"] == "no number"}
        return next(n for n in range(1, step + 2) if step - n not in bad)

    def _losses(self) -> list[float]:
        window = self._config.bad_losses.window
        lines = read_metrics(self._path) if self._world.leads else []
        return list(self._world.of_leader([line[LOSS] for line in lines[-window:]]))

    def _is_saved(self, step: int) -> bool:
        return step % self._config.checkpoint_every == 0 or self._stays(step)

    def _stays(self, step: int) -> bool:
        every = self._config.keep_every
        return step in self._task.milestones or (every is not None and step % every == 0)

    def _save(self, step: int, metrics: MetricsFile | None) -> None:
        empty_cache()  # a checkpoint's buffers are no tensors, and cannot use what tensors freed
        self._store.save(step, self._model, self._updater, metrics.sync() if metrics else "")
        self._status.saved(step)

    def _file(self, name: str, begun: int) -> contextlib.AbstractContextManager[Any]:
        path = self._folder / name
        return MetricsFile(path, begun) if self._world.leads else contextlib.nullcontext()
