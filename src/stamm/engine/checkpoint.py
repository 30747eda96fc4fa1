"""Checkpoints that are whole or not there: safetensors, hashes, no pickle.

checkpoints/step-00000120/{model.safetensors, optimizer.safetensors, state.json}. A checkpoint is
written under another name and renamed when complete; state.json holds the hashes of the others.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stamm.base.console import Progress
from stamm.base.errors import DataError
from stamm.base.files import is_full, no_room, read_json, sha256_file, write_json

SCHEMA = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_STATE_KEYS = {"schema", "step", "group_steps", "sha256", "metrics_sha256"}
_NAME = re.compile(r"step-(\d{8})")


class Checkpoints:
    """The checkpoints of one training run.

    folder   where they lie
    keep     how many of the newest stay
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def save(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, metrics: str
    ) -> None:
        """Write the state after `step` steps; older checkpoints beyond `keep` go afterwards.

        metrics  hash of the metrics up to this step, which a resumed run must find unchanged
        Raises   RunError when the disk is full. What was there before stays as it was.
        """
        final = self.folder / f"step-{step:08d}"
        part = self.folder / f".step-{step:08d}.part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
            save_file(_once(model), part / MODEL)
            save_file(optimizer_tensors(model, optimizer), part / OPTIMIZER)
            files = {name: sha256_file(part / name) for name in (MODEL, OPTIMIZER)}
            steps = [group.get("step", step) for group in optimizer.param_groups]
            state = {"schema": SCHEMA, "step": step, "group_steps": steps}
            state |= {"sha256": files, "metrics_sha256": metrics}
            write_json(part / STATE, state)
            for name in (MODEL, OPTIMIZER):
                _flush(part / name)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(part, ignore_errors=True)
            if is_full(error):
                raise no_room(final) from error
            raise
        shutil.rmtree(final, ignore_errors=True)
        part.replace(final)
        _flush(self.folder)
        for old in self._steps()[: -self.keep]:
            shutil.rmtree(self._path(old))

    def restore(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        metrics: Callable[[int], str],
        progress: Progress,
    ) -> int:
        """Load the newest whole checkpoint and return its step; 0 when there is none.

        A checkpoint whose hashes do not hold is named aloud and the one before it is used.
        metrics  the hash, as for `save`, of the metrics up to a step, as they are now
        """
        for leftover in self.folder.glob(".step-*.part"):
            shutil.rmtree(leftover)
        for step in reversed(self._steps()):
            path = self._path(step)
            try:
                state = self._verified(path)
                if state["metrics_sha256"] != metrics(step):
                    raise DataError("metrics.jsonl has changed since it was written")
            except DataError as error:
                progress.say(
                    f"Checkpoint {path.name} is damaged ({error.what}); using an older one."
                )
                continue
            _load(model, load_file(path / MODEL))
            load_optimizer_tensors(model, optimizer, load_file(path / OPTIMIZER))
            for group, count in zip(optimizer.param_groups, state["group_steps"], strict=True):
                if "step" in group:
                    group["step"] = count
            self._drop_after(step)
            return step
        self._drop_after(0)
        return 0

    def _verified(self, path: Path) -> Any:
        state = read_json(path / STATE)
        if not isinstance(state, dict) or not state.keys() >= _STATE_KEYS:
            raise DataError(f"{STATE} is incomplete")
        if state["schema"] != SCHEMA:
            raise DataError(f"{STATE} has schema {state['schema']!r}, not {SCHEMA}")
        for name, recorded in state["sha256"].items():
            if not (path / name).is_file():
                raise DataError(f"{name} is missing")
            if sha256_file(path / name) != recorded:
                raise DataError(f"{name} has changed since it was written")
        return state

    def _drop_after(self, step: int) -> None:
        for later in self._steps():
            if later > step:
                shutil.rmtree(self._path(later))

    def _steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in found if match)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimizer's state as "parameter name/state name"."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{key}"] = value.contiguous()
    return tensors


def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Put `tensors`, as named by `optimizer_tensors`, back where they came from."""
    parameters = dict(model.named_parameters())
    for path, value in tensors.items():
        name, key = path.rsplit("/", 1)
        optimizer.state[parameters[name]][key] = value


def _load(model: nn.Module, stored: dict[str, Tensor]) -> None:
    expected = _once(model)
    if expected.keys() != stored.keys():
        odd = sorted(expected.keys() ^ stored.keys())[0]
        raise DataError(f"{MODEL} and the model differ in tensor {odd!r}")
    model.load_state_dict(stored, strict=False)  # what is missing is tied to what is there


def _once(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model under its first name: tied parameters are stored once."""
    first = {name for name, _ in model.named_parameters()}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state: dict[str, Tensor] = model.state_dict()
    return {name: t.contiguous() for name, t in state.items() if name in first or name not in every}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
