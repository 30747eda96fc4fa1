"""One function and all that compute it, timed side by side: forward, backward, and plain copies.

Every implementation gets the same inputs. In each round everything is called once, and the order
is rotated by one from round to round, so that whatever disturbs the machine disturbs all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from stamm.activations.benchmark.clock import Timed, clock_of
from stamm.activations.benchmark.interleave import Quantiles, in_turns, quantiles
from stamm.activations.benchmark.machine import Load
from stamm.base.errors import DataError, visible

Step = Literal["forward", "forward_backward"]
STEPS: tuple[Step, ...] = ("forward", "forward_backward")
COPIES = ("warm", "fresh")
_WARM_UP = 2  # rounds that are not counted: memory, caches, compilers
_SPREAD = 2.0  # standard deviation of the inputs: half of them where curves bend
_CLOSE = 0.05  # of the norm of what is expected: 16 bits cost less, another function is further off


@dataclass(frozen=True, kw_only=True, eq=False)
class BenchmarkArm:
    """One implementation.

    call         (x) -> y, or (gate, up) -> y
    parameters   what it is trained in, besides its inputs
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
            # What a compiler raises is its own; our implementations must not raise at all.
            if not arm.compiled:
                raise
            message = (str(error).strip() or "no message").splitlines()[0]
            refused[arm.name] = visible(f"{type(error).__name__}: {message}", 200)
            continue
        saved[arm.name] = _saved(arm, given)
        works |= {(step, arm.name): work for step, work in steps.items()}
    works |= {("copy", name): work for name, work in _copies(given[0]).items()}
    load = Load()
    found = {name: quantiles(times) for name, times in in_turns(clock, works, rounds).items()}
    return ArmTimings(
        steps={step: {a: q for (s, a), q in found.items() if s == step} for step in STEPS},
        copies={name: found["copy", name] for name in COPIES},
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
        found = arm.call(*given)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise DataError(f"it gives {tuple(found.shape)} {found.dtype}")
    finite = found.isfinite() & expected.isfinite()
    wide, truth = found[finite].double(), expected[finite].double()
    error = float((wide - truth).norm() / truth.norm().clamp_min(torch.finfo(found.dtype).tiny))
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
    del result  # until here the graph held what was counted: no address was used twice
    return sum(kept.values())
