"""Several processes that do one recipe: the leader does every step, the others join it in training.

`torchrun --nproc-per-node 8 -m stamm run ...` starts them. The leader names each step that is done
together before it begins it; the others wait for the name, however long a corpus takes.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from stamm.base.errors import RunError
from stamm.engine.distributed import leave, meet, together
from stamm.runs.sharded_job import code_hash
from stamm.runs.torchrun_env import has_torchrun

_FOR_EVER = timedelta(days=60)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ROOMS = (
    "activations",
    "base",
    "corpus",
    "engine",
    "losses",
    "models",
    "optim",
    "pretrain",
    "runs",
)


class Crew:
    """This process's part in it. Made in every process, before anything else is done.

    Raises   RunError, in every process, when they do not run the same code
    """

    def __init__(self) -> None:
        _end_with_torchrun()
        meet(torch.cuda.is_available())
        self._group = dist.new_group(backend="gloo", timeout=_FOR_EVER)
        code: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(code, code_hash(_ROOMS), group=self._group)
        others = [str(rank) for rank, other in enumerate(code) if other != code[0]]
        if others:
            raise RunError(
                f"process {', '.join(others)} of {len(code)} runs other code than process 0",
                fix="Install the same stamm on every machine",
            )

    def call(self, step: str) -> None:
        """The leader: name the step that all begin now; "" when there is no other."""
        with together():
            dist.broadcast_object_list([step], src=0, group=self._group)

    def part(self) -> None:
        """The end of what is done together: the leader says so, and all leave."""
        if dist.get_rank() == 0:
            self.call("")
        leave()

    def hear(self) -> str:
        """The others: wait for the next step's name."""
        said: list[str] = [""]
        with together():
            dist.broadcast_object_list(said, src=0, group=self._group)
        return said[0]


def _end_with_torchrun() -> None:
    """Be asked to end when torchrun is gone: killed, or by a signal that it does not hand on.

    Else its processes would train on, with nobody to end them. Linux alone can say so.
    """
    if sys.platform == "linux" and has_torchrun():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
