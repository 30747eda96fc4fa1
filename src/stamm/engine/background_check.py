"""A check of the training data that runs during the first steps, for data that take long to read.

Without it every byte is read before the first step. With it a thread of each process reads its part
while steps are trained, and no checkpoint is written before all parts are verified: no weights
trained on damaged data are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import torch

from stamm.engine.distributed import DistributedContext


class BackgroundCheck:
    """A check that is started in a thread, once on every process.

    check    reads this process's part; it raises when the part is damaged, and uses no collective
    passed   called on every process when all parts are intact
    """

    def __init__(
        self, check: Callable[[], object], world: DistributedContext, passed: Callable[[], None]
    ) -> None:
        self._world, self._passed, self._is_over = world, passed, False
        self._result: Future[None] = Future()
        # A daemon: a run that ends for another reason does not wait for it.
        threading.Thread(target=self._run, args=(check,), name="check-data", daemon=True).start()

    def advance(self) -> None:
        """End the run if a part is damaged, on all processes; it continues while parts are unread.

        Raises   what the check of a part raised
        """
        if self._is_over:
            return
        done = self._result.done()
        damaged = done and self._result.exception() is not None
        counts = torch.tensor([float(not done), float(damaged)], device=self._world.device)
        unread, damages = self._world.all_reduce_sum(counts).tolist()
        if damages or not unread:
            self._end()

    def finish(self) -> None:
        """Wait until all parts are read.

        Raises   what the check of a part raised, in every process
        """
        if not self._is_over:
            self._result.exception()
            self._end()

    def _end(self) -> None:
        failure = self._result.exception() if self._result.done() else None
        gathered = self._world.all_gather_object(failure)
        failures = [error for error in gathered if error is not None]
        if failures:
            raise failures[0]
        self._is_over = True
        self._passed()

    def _run(self, check: Callable[[], object]) -> None:
        try:
            check()
        except BaseException as error:  # raised by `_end`
            self._result.set_exception(error)
        else:
            self._result.set_result(None)
