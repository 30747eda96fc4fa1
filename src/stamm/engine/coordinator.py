"""Several processes that run one recipe under torchrun: the main process runs all steps, the others
join the training steps.

`torchrun --nproc-per-node 8 -m stamm run ...` starts them. The main process broadcasts the name of each
training step before it begins it; the others wait for the name, however long a corpus takes.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from stamm.base.errors import RunError
from stamm.engine.distributed import destroy_process_group, init_process_group, report_lost_peers
from stamm.runs.sharded_job import code_hash
from stamm.runs.torchrun_env import has_torchrun

_NO_TIMEOUT = timedelta(days=60)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ALL_CODE = ("",)  # folders of the package: objectives and losses of every kind of training


class StepBroadcaster:
    """Broadcasts from the main process which training step all processes begin. Create it in every
    process, before anything else.

    Raises   RunError, in every process, when they do not run the same code
    """

    def __init__(self) -> None:
        _end_with_torchrun()
        init_process_group(torch.cuda.is_available())
        self._group = dist.new_group(backend="gloo", timeout=_NO_TIMEOUT)
        code: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(code, code_hash(_ALL_CODE), group=self._group)
        others = [str(rank) for rank, other in enumerate(code) if other != code[0]]
        if others:
            raise RunError(
                f"process {', '.join(others)} of {len(code)} runs other code than process 0",
                fix="Install the same stamm on every machine",
            )

    def broadcast(self, step: str) -> None:
        """On the main process: name the step that all processes begin now; "": there is no other."""
        with report_lost_peers():
            dist.broadcast_object_list([step], src=0, group=self._group)

    def shutdown(self) -> None:
        """End the common work: the main process broadcasts the end, and all leave the process group."""
        if dist.get_rank() == 0:
            self.broadcast("")
        destroy_process_group()

    def receive(self) -> str:
        """On the other processes: wait for the next step's name."""
        received: list[str] = [""]
        with report_lost_peers():
            dist.broadcast_object_list(received, src=0, group=self._group)
        return received[0]


def _end_with_torchrun() -> None:
    """Receive SIGTERM when torchrun ends: killed, or by a signal that it does not forward.

    Otherwise its processes would continue to train. Only on Linux.
    """
    if sys.platform == "linux" and has_torchrun():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
