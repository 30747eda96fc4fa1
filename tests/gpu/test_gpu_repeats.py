"""The same input has the same bits, whatever else the device does meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stamm.activations.module import build_activation

RUNS = 50
STREAMS = 8
# Plain and gated, one shape and one for each neuron; the last shape ends inside a tile.
CASES = [
    ("xielu", None, (4096, 4096)),
    ("xielu", 1031, (2049, 1031)),
    ("swish_beta", None, (2049, 1031)),
    ("xatglu", None, (2048, 4096)),
]


class Work:
    """One training step of an activation, on inputs that are always the same."""

    def __init__(
        self, name: str, neurons: int | None, shape: tuple[int, ...], device: torch.device
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.module = build_activation(name, neurons=neurons).to(device)
        gated = hasattr(self.module, "of_fused")
        given = [torch.randn(shape, generator=generator).bfloat16() for _ in range(2 + gated)]
        self.weight, *inputs = (t.to(device) for t in given)
        self.inputs = [t.requires_grad_() for t in inputs]

    def step(self) -> list[Tensor]:
        """The result and every gradient."""
        leaves = [*self.inputs, *self.module.parameters()]
        result = self.module(*self.inputs)
        return [result.detach(), *torch.autograd.grad(result, leaves, self.weight)]


def same_bits(found: list[Tensor], others: list[Tensor]) -> bool:
    """Whether all are equal, and none is NaN."""
    return all(torch.equal(a, b) for a, b in zip(found, others, strict=True))


@pytest.fixture(params=CASES, ids=str)
def work(request: pytest.FixtureRequest, device: torch.device) -> Work:
    """A case on the device."""
    return Work(*request.param, device)


def test_repeated_runs_have_the_same_bits(work: Work, passes: list[str]) -> None:
    first = work.step()
    assert all(torch.isfinite(t).all() for t in first)
    assert all(same_bits(first, work.step()) for _ in range(RUNS - 1))
    assert len(passes) == 2 * RUNS
    with torch.no_grad():
        work.weight[0, 0] += 1.0  # and the comparison can fail
    assert not same_bits(first, work.step())


def test_other_streams_and_a_busy_device_change_no_bit(
    work: Work, device: torch.device, passes: list[str]
) -> None:
    """Streams side by side, and products in between: programs then start and end in other orders."""
    if device.type == "cpu":
        pytest.skip("a CPU has no streams")
    first = work.step()
    matrix = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
    torch.cuda.synchronize(device)
    streams = [torch.cuda.Stream(device) for _ in range(STREAMS)]
    found = []
    for index, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            for _ in range(index % 3):
                matrix @ matrix
            found.append(work.step())
    torch.cuda.synchronize(device)
    assert all(same_bits(first, each) for each in found)
    assert len(passes) == 2 * (1 + STREAMS)


def test_halves_of_a_batch_add_up_to_the_whole(device: torch.device, passes: list[str]) -> None:
    """Sums of halves are other trees of the same numbers; added, they differ by rounding alone."""
    work = Work("xielu", None, (4096, 4096), device)
    _, _, *whole = work.step()
    parameters = list(work.module.parameters())
    halves = []
    for part in (slice(0, 2048), slice(2048, None)):
        leaf = work.inputs[0].detach()[part].requires_grad_()
        halves.append(torch.autograd.grad(work.module(leaf), parameters, work.weight[part]))
    for total, first, second in zip(whole, *halves, strict=True):
        wide = (first.double(), second.double())
        size = wide[0].abs() + wide[1].abs()
        assert (total - sum(wide)).abs() <= 4 * torch.finfo(torch.float32).eps * size
    assert len(passes) == 6
