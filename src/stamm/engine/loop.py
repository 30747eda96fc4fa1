"""The loop: gradients, clipping, the optimizer, checkpoints. What is learned is the task's affair."""

from __future__ import annotations

import math
import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from stamm.base.console import Progress
from stamm.base.errors import RunError
from stamm.engine.checkpoint import Checkpoints
from stamm.engine.config import EngineConfig
from stamm.optim.groups import set_learning_rate
from stamm.runs.metrics import MetricsFile, metrics_hash


class Task(Protocol):
    """What a model is trained to do. Steps count from 0."""

    num_steps: int

    def losses(self, step: int) -> Iterator[Tensor]:
        """The losses of the step's micro-batches; their sum is the loss of the step."""

    def learning_rate(self, step: int) -> float:
        """Learning rate of the step."""

    def facts(self, step: int) -> dict[str, float]:
        """What to record beside the loss ("tokens", "train/kept_tokens", shapes on some steps)."""


def missing_to_compile() -> str:
    """What torch.compile would need on this machine's CPU and does not find; "" when nothing."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        return "A C++ compiler (g++, clang++) was"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python.h (Debian: python3-dev) was"
    return ""


def compile_layers(layers: nn.ModuleList, config: EngineConfig, progress: Progress) -> bool:
    """Compile each layer in place; equal layers share one compilation. True when it was done.

    A machine without what it takes runs the same layers eagerly, slower; this is said aloud.
    """
    if config.compile == "off":
        return False
    missing = missing_to_compile()
    if missing:
        progress.say(f"{missing} not found: training runs uncompiled, slower.")
        return False
    torch._dynamo.reset()  # compilations of an earlier model count towards a limit per function
    for layer in layers:
        layer.compile(fullgraph=True)
    return True


def train(
    task: Task,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clip_norm: float,
    config: EngineConfig,
    folder: Path,
    progress: Progress,
) -> None:
    """Train to the end, from the newest checkpoint in `folder` when there is one.

    Writes    metrics.jsonl (the same bytes however often the run was interrupted), log/speed.jsonl
              (wall clock; not reproducible) and checkpoints/
    Raises    RunError when a loss is not finite
    """
    store = Checkpoints(folder / "checkpoints", config.keep_checkpoints)
    path = folder / "metrics.jsonl"
    begun = store.restore(model, optimizer, lambda step: metrics_hash(path, step), progress)
    if begun:
        progress.say(f"Going on from step {begun} of {task.num_steps}.")
    with (
        MetricsFile(path, begun) as metrics,
        MetricsFile(folder / "log" / "speed.jsonl", begun) as speed,
    ):
        for step in range(begun, task.num_steps):
            started = time.perf_counter()
            rate = task.learning_rate(step)
            set_learning_rate(optimizer, rate)
            try:
                loss, norm = _update(task, step, model, optimizer, clip_norm)
            except TorchDynamoException as error:
                raise RunError(
                    f"the layers could not be compiled: {str(error).strip().splitlines()[0]}",
                    fix="Run the same command again, or train with engine.compile=off",
                ) from error
            facts = task.facts(step)
            metrics.write(
                {
                    "step": step + 1,
                    "train/loss_nats": loss,
                    "optim/learning_rate": rate,
                    "optim/gradient_norm": norm,
                    **facts,
                }
            )
            seconds = time.perf_counter() - started
            pace = facts["train/tokens"] / seconds
            speed.write(
                {"step": step + 1, "speed/tokens_per_s": round(pace, 1), "speed/seconds": seconds}
            )
            progress.advance(step + 1, f"loss {loss:.3f}, {pace:,.0f} tokens/s")
            last = step + 1 == task.num_steps
            if last or (step + 1) % config.checkpoint_every == 0:
                store.save(step + 1, model, optimizer, metrics.sync())


def _update(
    task: Task, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float
) -> tuple[float, float]:
    total = 0.0
    for loss in task.losses(step):
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm, foreach=True).item()
    if not (math.isfinite(total) and math.isfinite(norm)):
        raise RunError(
            f"step {step + 1} has loss {total} and gradient norm {norm}",
            fix="Lower the learning rate (schedule.peak); the checkpoints before it are kept",
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total, norm
