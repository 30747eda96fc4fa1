"""Checkpoints that are whole or not there: safetensors, hashes, no pickle.

checkpoints/step-00000120/{model.safetensors, optimizer.safetensors, state.json}. A checkpoint is
written under another name and renamed when complete; state.json holds the hashes of the others.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stamm.base.console import Progress
from stamm.base.errors import DataError, RunError
from stamm.base.files import no_room, read_json, sha256_file, write_json

SCHEMA = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_NAME = re.compile(r"step-(\d{8})")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Checkpoints:
    """The checkpoints of one training run.

    folder   where they lie
    keep     how many of the newest stay
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the state after `step` steps; older checkpoints beyond `keep` go afterwards.

        Raises   RunError when the disk is full. What was there before stays as it was.
        """
        final = self.folder / f"step-{step:08d}"
        part = self.folder / f".step-{step:08d}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            save_file(_contiguous(model.state_dict()), part / MODEL)
            save_file(optimizer_tensors(model, optimizer), part / OPTIMIZER)
            files = {name: sha256_file(part / name) for name in (MODEL, OPTIMIZER)}
            steps = [group.get("step", step) for group in optimizer.param_groups]
            state = {"schema": SCHEMA, "step": step, "group_steps": steps, "sha256": files}
            write_json(part / STATE, state)
            for name in (MODEL, OPTIMIZER):
                _flush(part / name)
        except (OSError, SafetensorError, RunError) as error:
            shutil.rmtree(part, ignore_errors=True)
            if isinstance(error, RunError):
                raise no_room(final) from error
            if _is_full(error):
                raise no_room(final) from error
            raise
        shutil.rmtree(final, ignore_errors=True)
        part.replace(final)
        _flush(self.folder)
        for old in self._steps()[: -self.keep]:
            shutil.rmtree(self._path(old))

    def restore(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
    ) -> int:
        """Load the newest whole checkpoint and return its step; 0 when there is none.

        A checkpoint whose hashes do not hold is named aloud and the one before it is used.
        """
        for leftover in self.folder.glob(".step-*.part"):
            shutil.rmtree(leftover)
        for step in reversed(self._steps()):
            path = self._path(step)
            try:
                state = self._verified(path)
            except DataError as error:
                progress.say(
                    f"Checkpoint {path.name} is damaged ({error.what}); using an older one."
                )
                continue
            model.load_state_dict(load_file(path / MODEL))
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


def _contiguous(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory are stored once each, as safetensors asks."""
    seen: set[int] = set()
    stored = {}
    for name, tensor in state.items():
        stored[name] = tensor.clone() if tensor.data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.data_ptr())
    return stored


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    text = str(error)  # safetensors reports the operating system's error only in words
    return any(f"os error {number}" in text for number in _FULL)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
