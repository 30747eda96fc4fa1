"""Devices of sharded jobs: a GPU is used by one process, processors by the workers of the run."""

from __future__ import annotations

import dataclasses
from typing import Literal

from stamm.engine.distributed import select_device
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Workspace


def device_type(name: str, where: str) -> Literal["cpu", "cuda"]:
    """The type of the device `name` ("auto", "cpu" or "cuda") on this machine.

    where   the setting, for errors

    Raises   ConfigError as `select_device`
    """
    return "cuda" if select_device(name, where).type == "cuda" else "cpu"


def on_device(workspace: Workspace, device: str) -> Workspace:
    """The workspace of a job whose shards run on `device`."""
    if device == "cpu":
        return workspace
    return dataclasses.replace(workspace, execution=LocalExecutor(workers=1))
