"""Gradient accumulation over a step's micro-batches: in sequence, or data-parallel over a CPU's threads.

Two threads that share each operation wait for each other at its end; beside another busy process
they mostly wait. Here each micro-batch is computed by one thread alone, the next free one takes the
next, and threads synchronise once a step. A gradient is the sum over micro-batches in their order,
whichever thread computed them and whenever: its bits do not depend on the load, nor on the number
of threads while each operation has one.

Measured  docs/log/2026-11-23-busy-machine.md
Checked   tests/unit/engine/test_micro_batches.py
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from stamm.engine.objective import MicroBatch, MicroBatches, StepLoss
from stamm.engine.pieces import threads_of_operations
from stamm.models.determinism import operation_threads


class GradientAccumulator:
    """Computes a model's gradients over the micro-batches of a step.

    model     its parameters get the sums, as `grad`
    threads   all CPU threads: micro-batches in flight divide them
    """

    def __init__(self, model: nn.Module, threads: int = 1) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._threads = threads
        self._compiled: set[Hashable] = set()

    def compute(self, batches: MicroBatches) -> list[StepLoss]:
        """Set every parameter's gradient; the losses by micro-batch, detached from their graphs.

        Raises   what a micro-batch raises, after all threads have stopped
        """
        workers = min(self._threads, batches.at_once, len(batches.each))
        if workers <= 1:
            return [_backward(batch) for batch in batches.each]
        step = _Step(batches.each, self._parameters, ahead=2 * workers)
        threads = threads_of_operations(self._threads, workers)
        with operation_threads(threads):
            for index, batch in enumerate(batches.each):
                if batch.kind not in self._compiled:
                    step.compute_alone(index)
                    self._compiled.add(batch.kind)
            with ThreadPoolExecutor(
                workers - 1, "micro-batches", _set_operation_threads, (threads,)
            ) as pool:
                for _ in range(workers - 1):
                    pool.submit(step.work)
                step.work()
        return step.finish()


class _Step:
    """The micro-batches of one step, and their results so far.

    ahead   how many may be begun before the one whose gradients are added next
    """

    def __init__(
        self, batches: Sequence[MicroBatch], parameters: Sequence[nn.Parameter], ahead: int
    ) -> None:
        self._batches, self._parameters, self._ahead = batches, parameters, ahead
        self._losses: dict[int, StepLoss] = {}
        self._to_begin = list(range(len(batches)))
        self._changed = threading.Condition()
        self._waiting: dict[int, Sequence[Tensor | None]] = {}
        self._added = 0
        self._summed: set[nn.Parameter] = set()
        self._error: BaseException | None = None

    def compute_alone(self, index: int) -> None:
        """Compute the micro-batch before others are begun."""
        self._to_begin.remove(index)
        self._compute(index)

    def work(self) -> None:
        """Compute micro-batches until none is left, or one has failed."""
        while (index := self._next()) is not None:
            self._compute(index)

    def finish(self) -> list[StepLoss]:
        """The losses in order, once all is computed."""
        if self._error is not None:
            raise self._error
        for parameter in self._parameters:
            if parameter.grad is not None and parameter not in self._summed:
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
        return [self._losses[index] for index in range(len(self._batches))]

    def _next(self) -> int | None:
        with self._changed:
            while self._to_begin and self._error is None:
                if self._to_begin[0] < self._added + self._ahead:
                    return self._to_begin.pop(0)
                self._changed.wait()
        return None

    def _compute(self, index: int) -> None:
        gradients: Sequence[Tensor | None]
        try:
            if self._error is not None:
                return
            loss = self._batches[index].compute()
            gradients = torch.autograd.grad(loss.loss, self._parameters, allow_unused=True)
            with self._changed, torch.no_grad():
                self._losses[index] = loss.detach()
                self._waiting[index] = gradients
                del gradients
                while self._added in self._waiting:
                    self._add(self._waiting.pop(self._added))
                    self._added += 1
                self._changed.notify_all()
        except BaseException as error:  # raised by `finish`, when no thread computes any more
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _add(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient
            elif parameter in self._summed:
                parameter.grad += gradient
            else:
                # A gradient from autograd may share its memory with another gradient.
                total = torch.empty_like(parameter)
                parameter.grad = torch.add(parameter.grad, gradient, out=total)
                self._summed.add(parameter)


def _backward(batch: MicroBatch) -> StepLoss:
    loss = batch.compute()
    loss.loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _set_operation_threads(threads: int) -> None:
    # The first query in a thread returns the number that was last set in any thread.
    torch.get_num_threads()
    torch.set_num_threads(threads)
