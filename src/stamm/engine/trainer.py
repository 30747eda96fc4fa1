"""The training loop: gradients, optimizer steps, checkpoints, non-finite losses, loss spikes, preemption.

What is trained is defined by an `Objective`; nothing here depends on it. Steps count from 1.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException

from stamm.activations.fused.memory import empty_cache
from stamm.base.console import Progress
from stamm.base.errors import ConfigError, RunError
from stamm.base.files import disk_full_error, is_full
from stamm.base.status import TrainingStatus
from stamm.engine.background_check import BackgroundCheck
from stamm.engine.checkpoint import Checkpoints
from stamm.engine.compile import graph_break
from stamm.engine.config import EngineConfig, RollBackAndSkip, SkipUpdate
from stamm.engine.distributed import DistributedContext, report_lost_peers
from stamm.engine.events import NONFINITE, SKIPPED, SPIKE, Events, read_events
from stamm.engine.micro_batches import GradientAccumulator
from stamm.engine.objective import Objective
from stamm.engine.parallel import clip_grad_norm
from stamm.engine.preemption import PreemptionHandler
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.engine.spike_detection import LossStatus, SpikeDetector
from stamm.runs.metrics import MetricsFile, metrics_hash, read_metrics

Evaluator = Callable[[int], dict[str, float]]
"""Metrics of the model after a step, by name; {} where it is not evaluated. Changes no tensor of it."""

CompileError = TorchDynamoException


@dataclass(frozen=True)
class EarlyStopping:
    """End training when a metric of the evaluations has not become lower for `patience` of them.

    The weights of the step with the lowest value are kept, at the end of a run of full length too.
    The evaluation before the first step does not count: a line reports where it was lower.
    """

    metric: str
    patience: int

    def best(self, values: Mapping[int, float]) -> int | None:
        """The step with the lowest value, the first of equal ones; None where none is finite."""
        finite = {step: value for step, value in values.items() if math.isfinite(value)}
        return min(finite, key=lambda step: (finite[step], step), default=None)

    def is_over(self, values: Mapping[int, float]) -> bool:
        """Whether training ends, with the metric by step, of one evaluation after the other."""
        best = self.best(values)
        return sum(best is None or step > best for step in values) >= self.patience


@dataclass(frozen=True)
class InitialCheckpoint:
    """Another run's checkpoint, or a stored decoder, to start from.

    path              its folder
    optimizer_state   whether the optimizer state of the checkpoint is loaded too
    frozen            whether checkpoints refer to it by its hash for the model's frozen weights, and
                      hold what is trained only; the run then needs it to resume
    """

    path: Path
    optimizer_state: bool
    frozen: bool = False


class Trainer:
    """Trains one model on one objective.

    model       already divided over the processes of `world`
    clip_norm   gradient clipping: largest gradient norm
    folder      events.json, metrics.jsonl (the same bytes however often the run was interrupted),
                log/speed.jsonl (wall clock; not reproducible) and checkpoints/ are written here
    peak        peak FLOP/s of a device, the denominator of MFU; 0 where it is not known
    start       checkpoint or stored decoder to load in place of the weights that the model has
    evaluate    further metrics after a step, and before the first, timed apart from it
    stopping    early stopping by a metric of `evaluate`; None: none
    check       a check of the data that has not ended; the first checkpoint waits for it. None: none

    best_step   the step whose weights the model has after `run` because of `stopping`; None: the last
    """

    def __init__(
        self,
        objective: Objective,
        model: nn.Module,
        optimizer: ShardedOptimizer,
        clip_norm: float,
        config: EngineConfig,
        world: DistributedContext,
        folder: Path,
        progress: Progress,
        peak: float = 0.0,
        start: InitialCheckpoint | None = None,
        evaluate: Evaluator | None = None,
        stopping: EarlyStopping | None = None,
        check: BackgroundCheck | None = None,
    ) -> None:
        self._objective, self._model, self._optimizer = objective, model, optimizer
        self._clip_norm, self._config, self._world = clip_norm, config, world
        self._folder, self._progress, self._peak = folder, progress, peak
        self._start, self._evaluate, self._stopping = start, evaluate, stopping
        self._check = check
        self._evaluated: dict[int, float] = {}  # the metric of `stopping` by step
        self.best_step: int | None = None
        self.stopped_early = False
        self._began = False
        self._accumulator = GradientAccumulator(model, config.threads)
        self._metric_names: tuple[str, ...] = ()
        self._path = folder / "metrics.jsonl"
        self._status = TrainingStatus(objective.unit)
        policy = config.on_nonfinite
        self._checkpoints = Checkpoints(
            folder / "checkpoints",
            config.keep_checkpoints,
            world,
            background=config.async_checkpointing,
            scheduled=self._is_saved,
            stays=self._is_kept,
            reach=policy.skipped_steps if isinstance(policy, RollBackAndSkip) else 1,
        )
        path, main = folder / "events.json", world.is_main_process
        known = world.broadcast_object(read_events(path) if main else None)
        self._events = Events(path, writes=main, known=known)

    def run(self, first: int = 0, until: int | None = None) -> int:
        """Train to the end, resuming from the newest checkpoint when there is one; the step reached.

        first    the part of the run that is trained here begins after this step: nothing is done
                 when the newest usable checkpoint is older
        until    the step to stop at, with a checkpoint; None: the last
        Raises   RunError for non-finite losses beyond what the policy allows, when layers cannot be
                 compiled, when a disk is full, when another process is lost. What `check` raises.
                 StoppedError when the process was asked to end: a checkpoint of the last step was
                 written.
        """
        until = self._objective.num_steps if until is None else until
        try:
            with report_lost_peers():
                return self._run(first, until)
        except OSError as error:
            if is_full(error):
                raise disk_full_error(self._path) from error
            raise

    def _run(self, first: int, until: int) -> int:
        start = self._start
        if start is not None and start.frozen:
            self._checkpoints.load_frozen(start.path, self._model, self._optimizer)
        done = self._restore()
        if done < first:
            return done
        if done == 0 and start is not None and not start.frozen:
            self._checkpoints.load(
                start.path, self._model, self._optimizer, moments=start.optimizer_state
            )
        if done:
            self._progress.log(f"Resuming after step {done} of {self._objective.num_steps}.")
        with PreemptionHandler() as preemption:
            # A rollback may go back to before the part that is trained here.
            while first <= done < until and not self.stopped_early:
                done = self._train_until(done, until, preemption)
            if self._check is not None:
                self._check.finish()
            self._checkpoints.finish()
        if self._stopping is not None:
            self._load_best(done, self._stopping)
        return done

    def _load_best(self, done: int, stopping: EarlyStopping) -> None:
        """The weights of the step with the lowest metric, after the last step `done`."""
        values = self._recorded(stopping.metric)
        best = stopping.best({step: value for step, value in values.items() if 0 < step <= done})
        if best is None:
            return
        if (before := values.get(0, math.inf)) < values[best]:
            self._progress.log(
                f"No step improved on the start model: {stopping.metric} was {before:.4f} before training, "
                f"and {values[best]:.4f} at best."
            )
        if best == done:
            return
        self._checkpoints.load_step(best, self._model, self._optimizer)
        self.best_step = best
        ended = f"Stopped early after step {done}" if self.stopped_early else f"After step {done}"
        self._progress.log(
            f"{ended}: {stopping.metric} was lowest at step {best}, whose weights are kept."
        )

    def _evaluated_up_to(self, done: int) -> dict[int, float]:
        """The metric of early stopping at the evaluated steps, in their order, the same on every process."""
        if self._stopping is None:
            return {}
        steps = self._recorded(self._stopping.metric)
        return {step: value for step, value in steps.items() if 0 < step <= done}

    def _recorded(self, name: str, newest: int = 0) -> dict[int, float]:
        """The `newest` values of a metric by step, 0: all, the same on every process."""
        lines = read_metrics(self._path) if self._world.is_main_process else []
        values = [(line["step"], line[name]) for line in lines if name in line]
        return dict(self._world.broadcast_object(values[-newest:]))

    def _restore(self, at_most: int | None = None) -> int:
        return self._checkpoints.restore(
            self._model,
            self._optimizer,
            lambda step: metrics_hash(self._path, step),
            self._progress,
            at_most,
        )

    def _train_until(self, done: int, until: int, preemption: PreemptionHandler) -> int:
        """Train from step `done` + 1 to `until`, or until a rollback; the last step that is done."""
        can_roll_back = isinstance(self._config.on_nonfinite, RollBackAndSkip)
        self._events.forget_after(done)
        skipped = self._events.skipped_steps()
        with (
            self._open("metrics.jsonl", done) as metrics,
            self._open("log/speed.jsonl", done) as speed,
        ):
            # Opening the metrics has dropped lines of later steps, and damaged lines.
            spread = getattr(self._objective, "least_spread", 0.0)
            detector = SpikeDetector(self._config.on_nonfinite, self._recent_losses(), spread)
            self._evaluated = self._evaluated_up_to(done)
            before = self._evaluate(0) if done == 0 and self._evaluate is not None else {}
            if before and metrics is not None:
                metrics.write({"step": 0, **before})
            if done == 0 and can_roll_back:
                self._save(0, metrics)  # a step may be skipped before the first checkpoint
            for step in range(done + 1, until + 1):
                if self._stopping is not None and self._stopping.is_over(self._evaluated):
                    self.stopped_early = True
                    return step - 1
                if step not in skipped:
                    restored = self._step(step, detector, preemption, metrics, speed)
                    if restored is not None:
                        return restored
                if self._check is not None:
                    self._check.advance()
                if preemption.requested or step == until or self._is_saved(step):
                    self._save(step, metrics)
                else:
                    self._checkpoints.advance()
                if preemption.requested:
                    self._checkpoints.finish()
                    raise preemption.stopped(step, self._objective.num_steps)
        return until

    def _step(
        self,
        step: int,
        detector: SpikeDetector,
        preemption: PreemptionHandler,
        metrics: MetricsFile | None,
        speed: MetricsFile | None,
    ) -> int | None:
        """Train one step; the step that was rolled back to, else None."""
        started = time.perf_counter()
        rate = self._objective.learning_rate(step)
        try:
            sums, norm = self._gradients(step, preemption)
        except CompileError as error:
            if preemption.pending is not None:  # the compiler was sent the signal, too
                raise preemption.stopped_compiling(step) from error
            raise RunError(
                f"the layers could not be compiled: {str(error).strip().splitlines()[0]}",
                fix="Run the same command again, or train with engine.compile=off",
            ) from error
        if not self._began:
            self._began = True
            if reason := graph_break():
                self._progress.log(f"Layers are compiled in several parts, slower: {reason}")
        loss = sums[self._objective.primary_metric]
        status = detector.classify(loss, norm)
        if status != "ok":
            update, restored = self._handle(status, step, loss, norm, detector)
            if not update:
                self._optimizer.zero_grad()
                return restored
        self._optimizer.step(rate)
        detector.update(loss)
        line = {
            "step": step,
            **sums,
            "optim/learning_rate": rate,
            "optim/gradient_norm": norm,
            **self._objective.metrics(step),
        }
        seconds = max(time.perf_counter() - started, 1e-9)  # the clock may not have advanced
        items, unit = self._objective.num_items(step), self._objective.unit
        flops = self._objective.flops(step) / seconds
        mfu = flops / (self._peak * self._world.size) if self._peak else 0.0
        timing = {
            "step": step,
            f"speed/{unit}_per_s": round(items / seconds, 1),
            "speed/seconds": seconds,
            "speed/flops_per_s": round(flops),
            "speed/mfu": round(mfu, 4),
        }
        if self._evaluate is not None:
            started = time.perf_counter()
            if evaluated := self._evaluate(step):
                line |= evaluated
                if self._stopping is not None and self._stopping.metric in evaluated:
                    self._evaluated[step] = evaluated[self._stopping.metric]
                timing["speed/evaluation_seconds"] = time.perf_counter() - started
        if metrics is not None and speed is not None:
            metrics.write(line)
            speed.write(timing)
        self._status.add(loss, items, seconds, mfu, rate)
        fraction = self._objective.fraction_done(step)
        self._progress.advance(step, self._status.text(), share=fraction)
        return None

    def _gradients(
        self, step: int, preemption: PreemptionHandler
    ) -> tuple[dict[str, float], float]:
        """Metrics and gradient norm of the step; notes whether a process was asked to end."""
        losses = self._accumulator.compute(self._objective.micro_batches(step))
        names = self._check_metrics([tuple(loss.metrics) for loss in losses])
        total = torch.zeros(len(names) + 1, dtype=torch.float64, device=self._world.device)
        for loss in losses:
            for index, name in enumerate(names):
                total[index] += loss.metrics[name]
        norm = clip_grad_norm(self._model, self._world, self._clip_norm)
        total[-1] = float(preemption.pending is not None)
        *values, asked = self._world.all_reduce_sum(total).tolist()
        preemption.requested = asked > 0
        return dict(zip(names, values, strict=True)), norm.item()

    def _check_metrics(self, names_of_batches: list[tuple[str, ...]]) -> tuple[str, ...]:
        """The names of the metrics, the same in every micro-batch, step and process.

        Raises   ConfigError when they are not, or lack the primary metric
        """
        if not self._metric_names:
            primary, names = self._objective.primary_metric, names_of_batches[0]
            if primary not in names:
                raise ConfigError(
                    f"the objective's primary_metric {primary!r} is not among its metrics "
                    f"({', '.join(names) or 'none'})",
                    fix="Return it in StepLoss.metrics",
                )
            self._world.assert_same_on_all_ranks("the list of metrics", ",".join(names))
            self._metric_names = names
        for names in names_of_batches:
            if names != self._metric_names:
                raise ConfigError(
                    f"a micro-batch has the metrics {', '.join(names) or 'none'}, an earlier one "
                    f"{', '.join(self._metric_names)}",
                    fix="Return the same metrics in the same order in every StepLoss",
                )
        return self._metric_names

    def _handle(
        self, status: LossStatus, step: int, loss: float, norm: float, detector: SpikeDetector
    ) -> tuple[bool, int | None]:
        """Apply the policy to a non-finite loss or a spike.

        Returns whether the step's update is done, and the step that was rolled back to, if any.
        """
        policy = self._config.on_nonfinite
        what = f"step {step} has loss {loss} and gradient norm {norm}"
        facts = {"loss": repr(loss), "gradient_norm": repr(norm), "limit": repr(detector.limit())}
        if isinstance(policy, RollBackAndSkip):
            return False, self._roll_back(policy, status, step, what, facts)
        self._events.add(SPIKE if status == "spike" else NONFINITE, step, **facts)
        if status == "spike":
            self._progress.log(f"Loss spike: {what}.")
            return True, None
        streak = self._nonfinite_streak(step)
        if not isinstance(policy, SkipUpdate) or streak > policy.at_most:
            self._checkpoints.finish()  # the one that is being written is from before this step
            raise RunError(
                what,
                fix="Lower the learning rate (schedule.peak), or set "
                "engine.on_nonfinite=RollBackAndSkip; the checkpoints before it are kept",
            )
        self._progress.log(f"Non-finite loss: {what}. Its update is skipped.")
        return False, None

    def _roll_back(
        self,
        policy: RollBackAndSkip,
        status: LossStatus,
        step: int,
        what: str,
        facts: dict[str, str],
    ) -> int:
        times = sum(event["event"] == SKIPPED for event in self._events.all)
        if times >= policy.at_most:
            raise RunError(
                f"{what}, after {times} rollbacks",
                fix="Lower the learning rate (schedule.peak), or raise engine.on_nonfinite.at_most",
            )
        self._checkpoints.finish()
        first = max(step - policy.skipped_steps + 1, 1)
        restored = self._restore(at_most=first - 1)
        why = SPIKE if status == "spike" else NONFINITE
        self._events.add(SKIPPED, step, why=why, first=first, last=step, **facts)
        steps = f"steps {first} to {step} are" if first < step else f"step {step} is"
        self._progress.log(f"{what}: {steps} skipped, resuming after step {restored}.")
        return restored

    def _nonfinite_streak(self, step: int) -> int:
        """Number of consecutive steps with a non-finite loss, up to and including this one."""
        bad = {e["step"] for e in self._events.all if e["event"] == NONFINITE}
        return next(n for n in range(1, step + 2) if step - n not in bad)

    def _recent_losses(self) -> list[float]:
        window = self._config.on_nonfinite.window
        return list(self._recorded(self._objective.primary_metric, window).values())

    def _is_saved(self, step: int) -> bool:
        return step % self._config.checkpoint_every == 0 or self._is_kept(step)

    def _is_kept(self, step: int) -> bool:
        every = self._config.keep_every
        if self._stopping is not None and step == self._stopping.best(self._evaluated):
            return True
        return step in self._objective.milestones or (every is not None and step % every == 0)

    def _save(self, step: int, metrics: MetricsFile | None) -> None:
        if self._check is not None:
            self._check.finish()
        empty_cache()  # a checkpoint's buffers are not tensors and cannot use the tensors' cache
        self._checkpoints.save(
            step, self._model, self._optimizer, metrics.sync() if metrics else ""
        )
        self._status.saved(step)

    def _open(self, name: str, done: int) -> contextlib.AbstractContextManager[Any]:
        if not self._world.is_main_process:
            return contextlib.nullcontext()
        return MetricsFile(
            self._folder / name, done or -1
        )  # the line before step 1 is repeated, too
