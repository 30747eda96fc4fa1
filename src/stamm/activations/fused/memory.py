"""Memory for large results on a CPU, kept for the next result of the same size.

The operating system hands out zeroed pages one by one: for a result of 64 MiB that costs more than
computing it. So a block that a tensor no longer needs is kept, as accelerators' allocators do, and
new ones are asked for in large pages. Nothing but time depends on it.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

FROM = 2**23  # bytes; smaller results come from memory that the C library keeps itself
KEPT = 2**30  # bytes that are kept at most
_HUGE = 2**21  # a large page of Linux


class _Pool:
    """Blocks that no tensor uses, by size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[mmap.mmap]] = {}  # the size that was used last stands last
        self._back: deque[tuple[mmap.mmap, int]] = deque()  # came back, and are not in place yet
        self._kept = 0
        self.closed = False  # whether nothing is kept any more

    def take(self, size: int) -> mmap.mmap:
        """A block of this size: the last one that came back, or a new one."""
        self._put_in_place()
        with self._lock:
            blocks = self._free.get(size)
            if blocks:
                self._kept -= size
                block = blocks.pop()
                if not blocks:
                    del self._free[size]
                return block
        try:
            made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:  # there may be enough where nothing is kept
            self.release()
            made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Advice: where the system has no large pages it changes nothing.
            made.madvise(mmap.MADV_HUGEPAGE)
        return made

    def give_back(self, block: mmap.mmap, size: int) -> None:
        """Keep a block in the place of those whose sizes were used least lately."""
        if size <= KEPT and not self.closed:
            self._back.append((block, size))
            self._put_in_place()

    def kept(self) -> int:
        """How many bytes no tensor uses."""
        self._put_in_place()
        return self._kept

    def release(self) -> int:
        """Let every kept block go; returns how many bytes that were."""
        self._put_in_place()
        with self._lock:
            released, self._kept = self._kept, 0
            self._free.clear()
        return released

    def _put_in_place(self) -> None:
        # Tensors end anywhere, between two steps of this very loop too. Whoever comes second
        # leaves the block to the first, who looks again after the lock is free.
        while self._back and self._lock.acquire(blocking=False):
            try:
                while self._back:
                    self._keep(*self._back.popleft())
            finally:
                self._lock.release()

    def _keep(self, block: mmap.mmap, size: int) -> None:
        self._free[size] = [*self._free.pop(size, []), block]
        self._kept += size
        while self._kept > KEPT:
            oldest = next(iter(self._free))
            self._free[oldest].pop(0)
            self._kept -= oldest
            if not self._free[oldest]:
                del self._free[oldest]


_POOL = _Pool()


def leave_to_torch() -> None:
    """Keep nothing from now on, where torch's own memory is kept (`engine.heap`)."""
    _POOL.closed = True
    _POOL.release()


def fresh(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor with any content, contiguous, on the CPU.

    Edge     its storage cannot be resized in place
    Checked  tests/unit/activations/test_fused_memory.py
    """
    count = 1
    for extent in shape:
        count *= extent
    needed = count * dtype.itemsize
    if needed < FROM or _POOL.closed:
        return torch.empty(tuple(shape), dtype=dtype)

    # numpy, because its arrays tell when a tensor lets them go.
    size = -(-needed // _HUGE) * _HUGE + _HUGE  # one page more: the data begins on a large page
    block = _POOL.take(size)
    held = numpy.frombuffer(block, dtype=numpy.uint8)
    start = -held.ctypes.data % _HUGE
    # `used` lives as long as the tensor's storage. It keeps `held`, and thereby the block mapped.
    used = held[start : start + needed]
    weakref.finalize(used, _POOL.give_back, block, size).atexit = False
    storage = torch.from_numpy(used).untyped_storage()
    # Not a view of the bytes: a view may not be changed in place where autograd looks on.
    contiguous = torch.empty(shape, dtype=dtype, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape), contiguous)


def kept_bytes() -> int:
    """How much memory is kept that no tensor uses."""
    return _POOL.kept()


def release() -> int:
    """Give kept memory back to the operating system; returns how many bytes that were."""
    return _POOL.release()
