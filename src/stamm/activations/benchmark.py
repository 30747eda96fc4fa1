"""One function and all that compute it, timed side by side: forward, backward, and plain copies.

Every implementation gets the same inputs. In each round everything is called once, and the order
is rotated by one from round to round, so that whatever disturbs the machine disturbs all alike.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from stamm.activations.fused import build, cpu, gpu
from stamm.activations.fused.operation import SMALLEST
from stamm.base import processor
from stamm.base.errors import DataError, visible

Step = Literal["forward", "forward_backward"]
STEPS: tuple[Step, ...] = ("forward", "forward_backward")
COPIES = ("warm", "fresh")
_WARM_UP = 2  # rounds that are not counted: memory, caches, compilers
_SPREAD = 2.0  # standard deviation of the inputs: half lie in the curved part of an activation
_CLOSE = 0.05  # largest error, relative to the norm of the output; 16-bit rounding is below it


@dataclass(frozen=True, kw_only=True, eq=False)
class BenchmarkArm:
    """One implementation.

    call         (x) -> y, or (gate, up) -> y
    parameters   tensors that get gradients besides the inputs
    same         whether it must compute what the first arm computes
    overwrites   its backward pass destroys its inputs: it gets new ones each time, untimed
    compiled     it is compiled when it is first called: that may fail
    """

    name: str
    call: Callable[..., Tensor]
    parameters: tuple[Tensor, ...] = ()
    same: bool = True
    overwrites: bool = False
    compiled: bool = False


@dataclass(frozen=True, kw_only=True)
class ArmTimings:
    """Timings of one function, by the name of the arm.

    steps         seconds of each step
    copies        seconds of a copy of one input, into warm memory and into fresh memory
    tensor_bytes  size of one input
    saved_bytes   what is kept for the backward pass, inputs included
    others_busy   cores that other processes kept busy meanwhile; None where it is unknown
    refused       arms that were not measured, and why
    """

    steps: dict[Step, dict[str, Quantiles]]
    copies: dict[str, Quantiles]
    tensor_bytes: int
    saved_bytes: dict[str, int]
    others_busy: float | None
    refused: dict[str, str] = field(default_factory=dict)


def tensors_moved(inputs: int) -> dict[Step, int]:
    """Number of tensors of the input's size each step must read or write, at the least.

    Forward reads the inputs and writes y; backward reads y's gradient and the inputs, and writes a
    gradient for each.
    Checked  tests/unit/cli/test_bench.py::test_traffic_is_that_of_the_fused_passes
    """
    forward = inputs + 1
    return {"forward": forward, "forward_backward": forward + 1 + 2 * inputs}


def measure(
    arms: Sequence[BenchmarkArm],
    *,
    inputs: int,
    shape: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    rounds: int,
) -> ArmTimings:
    """Time every arm. The first one defines what those that claim the `same` must compute.

    inputs   1, or 2 for gate and up
    rounds   at least 2
    """
    generator = torch.Generator().manual_seed(0)
    given = [_normal(shape, generator).to(device, dtype) for _ in range(inputs)]
    weight = _normal(shape, generator).to(device, dtype)
    clock = clock_of(device)
    refused: dict[str, str] = {}
    works: dict[tuple[str, str], Timed] = {}
    saved: dict[str, int] = {}
    with torch.no_grad():
        expected = arms[0].call(*given)
    for arm in arms:
        steps = _steps(arm, given, weight)
        try:
            if arm.same:
                _agrees(arm, given, expected)
            for _ in range(_WARM_UP):
                clock.seconds(list(steps.values()))
        except DataError as error:
            refused[arm.name] = error.what
            continue
        except Exception as error:
            # A compiler may raise any exception; our implementations must not raise at all.
            if not arm.compiled:
                raise
            message = (str(error).strip() or "no message").splitlines()[0]
            refused[arm.name] = visible(f"{type(error).__name__}: {message}", 200)
            continue
        saved[arm.name] = _saved(arm, given)
        works |= {(step, arm.name): work for step, work in steps.items()}
    works |= {("copy", name): work for name, work in _copies(given[0]).items()}
    load = Load()
    by_work = {name: quantiles(times) for name, times in in_turns(clock, works, rounds).items()}
    return ArmTimings(
        steps={step: {a: q for (s, a), q in by_work.items() if s == step} for step in STEPS},
        copies={name: by_work["copy", name] for name in COPIES},
        tensor_bytes=weight.numel() * weight.element_size(),
        saved_bytes=saved,
        others_busy=load.others(),
        refused=refused,
    )


def _normal(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return _SPREAD * torch.randn(shape, generator=generator)


def _steps(arm: BenchmarkArm, given: Sequence[Tensor], weight: Tensor) -> dict[Step, Timed]:
    leaves = [(t.clone() if arm.overwrites else t.detach()).requires_grad_() for t in given]

    def renew() -> None:
        if arm.overwrites:
            with torch.no_grad():
                for leaf, source in zip(leaves, given, strict=True):
                    leaf.copy_(source)

    def forward() -> Tensor:
        with torch.no_grad():
            return arm.call(*given)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(arm.call(*leaves), [*leaves, *arm.parameters], weight)

    return {"forward": (_nothing, forward), "forward_backward": (renew, both)}


def _copies(source: Tensor) -> dict[str, Timed]:
    target = source.clone()
    warm, fresh = COPIES
    return {warm: (_nothing, lambda: target.copy_(source)), fresh: (_nothing, source.clone)}


def _nothing() -> None:
    pass


def _agrees(arm: BenchmarkArm, given: Sequence[Tensor], expected: Tensor) -> None:
    """Raises DataError when the arm computes another function."""
    with torch.no_grad():
        output = arm.call(*given)
    if output.shape != expected.shape or output.dtype != expected.dtype:
        raise DataError(f"it gives {tuple(output.shape)} {output.dtype}")
    finite = output.isfinite() & expected.isfinite()
    wide, truth = output[finite].double(), expected[finite].double()
    error = float((wide - truth).norm() / truth.norm().clamp_min(torch.finfo(output.dtype).tiny))
    if not error <= _CLOSE:
        raise DataError(f"it computes another function, {100 * error:.0f} % off")


def _saved(arm: BenchmarkArm, given: Sequence[Tensor]) -> int:
    """Bytes of the distinct memory that autograd keeps."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    leaves = [t.detach().requires_grad_() for t in given]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = arm.call(*leaves)
    del result  # kept until here, so that the addresses counted are those of live tensors
    return sum(kept.values())


_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Of the seconds that a call took: a fifth took less than p20, half less than p50."""

    p20: float
    p50: float
    p80: float


def in_turns(
    clock: Clock, works: Mapping[_Name, Timed], rounds: int, *, warm_up: int = 0
) -> dict[_Name, list[float]]:
    """Seconds of each call in every round, by its name.

    Each round calls everything once, and the order is rotated by one from round to round.

    warm_up   rounds before, which are not counted
    Checked   tests/unit/cli/test_bench.py::test_the_order_rotates_from_round_to_round
    """
    names = list(works)
    times: dict[_Name, list[float]] = {name: [] for name in names}
    for turn in range(-warm_up, rounds):
        first = turn % len(names)
        order = names[first:] + names[:first]
        durations = clock.seconds([works[name] for name in order])
        for name, seconds in zip(order, durations, strict=True):
            if turn >= 0:
                times[name].append(seconds)
    return times


def quantiles(numbers: Sequence[float]) -> Quantiles:
    """p20, p50 and p80 of at least two numbers."""
    cuts = statistics.quantiles(numbers, n=10, method="inclusive")
    return Quantiles(p20=cuts[1], p50=statistics.median(numbers), p80=cuts[7])


# Bytes overwritten before each call on a GPU: many times its cache, and enough work for the host
# to queue the whole call meanwhile, so that events time the device and not Python.
_FLUSH = 2**30

Timed = tuple[Callable[[], object], Callable[[], object]]


class Clock(Protocol):
    """Times calls that are made one after the other."""

    def seconds(self, calls: Sequence[Timed]) -> list[float]:
        """Seconds of each call; the first function of a pair is run before it, untimed."""


class CpuClock:
    """Wall time. Caches hold what the previous call left; freeing the results is not timed."""

    def seconds(self, calls: Sequence[Timed]) -> list[float]:
        """Seconds of each call."""
        taken = []
        for prepare, call in calls:
            prepare()
            began = time.perf_counter()
            kept = call()
            taken.append(time.perf_counter() - began)
            del kept
        return taken


class GpuClock:
    """Time between two events on the device's stream, its cache overwritten before each call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flushed = torch.empty(_FLUSH, dtype=torch.uint8, device=device)

    def seconds(self, calls: Sequence[Timed]) -> list[float]:
        """Seconds of each call on the device."""
        events = []
        for prepare, call in calls:
            prepare()
            self._flushed.zero_()
            began, ended = _event(), _event()
            began.record()
            call()
            ended.record()
            events.append((began, ended))
        torch.cuda.synchronize(self._device)
        return [began.elapsed_time(ended) / 1000 for began, ended in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_of(device: torch.device) -> Clock:
    """The clock of a device: "cpu" or "cuda"."""
    return CpuClock() if device.type == "cpu" else GpuClock(device)


_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # columns of /proc/stat: idle, waiting for a disk
_COUNTED = 8  # columns that add up to the total time; guest time, after them, is part of "user"


def memory_bytes(device: torch.device) -> int:
    """Memory of the device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return processor.memory_bytes()


def kernels_text(elements: int, dtype: torch.dtype, device: torch.device) -> str:
    """Which kernels compute activations of tensors like this: "fused", or "eager" and why."""
    if device.type == "cuda" and elements < SMALLEST:
        return f"eager: below {SMALLEST:,} elements"
    probe = torch.empty(1, dtype=dtype, device=device)
    if gpu.is_supported(probe) if probe.is_cuda else cpu.is_supported(probe):
        caveat = gpu.caveat() if probe.is_cuda else None
        return f"fused ({caveat})" if caveat else "fused"
    why = gpu.unavailable_reason() if probe.is_cuda else build.unavailable_reason()
    return f"eager: {why or f'no fused kernels for {dtype}'.replace('torch.', '')}"


class Load:
    """Number of cores that other processes keep busy since it was created (Linux only)."""

    def __init__(self) -> None:
        self._began = self._now()

    def others(self) -> float | None:
        """Cores busy with other processes since then, on average; None where it is unknown."""
        now = self._now()
        if self._began is None or now is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self._began, now, strict=True))
        return max(0.0, (busy - own) / wall)

    def _now(self) -> tuple[float, float, float] | None:
        """Seconds: of the clock, busy on all cores together, of them ours."""
        if not _STAT.is_file():
            return None
        columns = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:]]
        ticks = sum(columns[:_COUNTED]) - sum(columns[column] for column in _IDLE)
        return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time()
