"""AdEMAMix' kernels: the bits of torch's lists, which are those of IEEE arithmetic."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stamm.activations.fused import build
from stamm.base.errors import ConfigError
from stamm.optim import ademamix, fused
from stamm.optim.ademamix import AdEMAMixOptimizer
from stamm.optim.ademamix_math import Numbers, formula, numbers_at, update_lists
from stamm.optim.build import build_optimizer, implementation_of
from stamm.optim.config import AdamW, AdEMAMix, Muon
from tests.unit.activations.ahead_of_time import compiled_for_nvidia, ran_in_a_process_of_its_own
from tests.unit.optim.ademamix_cases import arrays, same

CPU = torch.device("cpu")
CASES = Path(__file__).with_name("ademamix_cases.py")
NUMBERS = numbers_at(AdEMAMix(), 5, 20, 1e-3, 0.1)
needs_kernels = pytest.mark.skipif(
    build.unavailable_reason() is not None, reason=f"no CPU kernels: {build.unavailable_reason()}"
)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def exact(given: list[np.ndarray], numbers: Numbers) -> list[np.ndarray]:
    """The formula by numpy, which rounds every operation by itself."""

    class Rounded(np.ndarray):
        """An array whose square root answers to torch's name."""

        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any, kwargs: Any = None
        ) -> Any:
            assert function is torch.sqrt
            return np.sqrt(args[0])

    held = tuple(np.float32(n) for n in numbers)
    with np.errstate(all="ignore"):
        p, fast, slow, square = formula([a.view(Rounded) for a in given], held)
    return [np.asarray(a) for a in (p, given[1], fast, slow, square)]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 512, 1000, 20_011])
@pytest.mark.parametrize("kind", ["plain", "tiny", "huge", "mixed", "special"])
def test_lists_give_the_bits_of_ieee_arithmetic(count: int, kind: str) -> None:
    given = arrays(count, kind)
    tensors = [torch.from_numpy(a.copy()) for a in given]
    update_lists([tensors], NUMBERS)
    assert same(exact(given, NUMBERS), tensors)


@needs_kernels
@pytest.mark.parametrize("count", [1, 15, 16, 17, 512, 1000, 20_011])
@pytest.mark.parametrize("kind", ["plain", "tiny", "huge", "mixed", "special"])
def test_the_fused_step_gives_the_bits_of_ieee_arithmetic(count: int, kind: str) -> None:
    given = arrays(count, kind)
    tensors = [torch.from_numpy(a.copy()) for a in given]
    fused.update_fused(tensors, NUMBERS)
    assert same(exact(given, NUMBERS), tensors)


@needs_kernels
def test_fused_and_foreach_take_the_same_walk_with_any_number_of_threads() -> None:
    walks = []
    before = torch.get_num_threads()
    try:
        for implementation, threads in (("foreach", 1), ("fused", 1), ("fused", 2)):
            torch.set_num_threads(threads)
            walks.append(_walk(AdEMAMix(implementation=implementation)))  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(before)
    for walk in walks[1:]:
        for a, b in zip(walks[0], walk, strict=True):
            assert torch.equal(a, b)


def _walk(config: AdEMAMix) -> list[Tensor]:
    """Parameters after 60 steps: long, short, transposed, empty, and one without gradients."""
    random = torch.Generator().manual_seed(0)
    shapes = [(129, 257), (7,), (1,), (0, 3), (5, 5)]
    parameters = [nn.Parameter(torch.randn(shape, generator=random)) for shape in shapes]
    parameters.insert(2, nn.Parameter(torch.randn(33, 9, generator=random).T))
    assert not parameters[2].is_contiguous()
    optimizer = AdEMAMixOptimizer(parameters, config, total_steps=60, lr=1e-3)
    for _ in range(60):
        for p in parameters[:-1]:
            gradient = torch.randn(p.shape, generator=random)
            p.grad = gradient if p.dim() < 2 else gradient.T.contiguous().T
        optimizer.step()
    assert not optimizer.state[parameters[-1]]
    return [p.detach() for p in parameters]


@needs_kernels
def test_neighbours_in_memory_are_left_alone() -> None:
    whole = torch.full((100,), torch.nan)
    piece = whole[3:96]
    rest = [torch.ones(93) for _ in range(4)]
    with torch.no_grad():
        piece.zero_()
    fused.update_fused([piece, *rest], NUMBERS)
    assert whole.isnan().nonzero().flatten().tolist() == [0, 1, 2, 96, 97, 98, 99]


def test_what_kernels_cannot_read_is_told_from_what_they_can() -> None:
    plain = torch.zeros(4, 6)
    assert fused.is_supported(plain, nn.Parameter(plain))
    assert not fused.is_supported(plain, plain.T)
    assert not fused.is_supported(plain, plain.double())
    assert not fused.is_supported(torch._neg_view(plain))


@needs_kernels
def test_auto_is_fused_where_it_can_be_built() -> None:
    assert fused.unavailable_reason(CPU) is None
    optimizer = AdEMAMixOptimizer([nn.Parameter(torch.ones(2))], AdEMAMix(), 1)
    assert implementation_of(optimizer) == "AdEMAMix: fused"


def test_where_it_cannot_be_built_auto_says_why_and_fused_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        ademamix.fused, "unavailable_reason", lambda device: "no C++ compiler is here"
    )
    parameter = nn.Parameter(torch.ones(2))
    optimizer = AdEMAMixOptimizer([parameter], AdEMAMix(), 1)
    assert implementation_of(optimizer) == "AdEMAMix: foreach (no C++ compiler is here)"
    with pytest.raises(ConfigError, match=r"'fused' cannot be built: no C\+\+ compiler is here"):
        AdEMAMixOptimizer([parameter], AdEMAMix(implementation="fused"), 1)
    asked = AdEMAMixOptimizer([parameter], AdEMAMix(implementation="foreach"), 1)
    assert implementation_of(asked) == "AdEMAMix: foreach"


@needs_kernels
def test_a_compiler_that_rounds_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the line that forbids it, a product and a sum are rounded once."""
    monkeypatch.setattr(fused, "_APART", "")
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("kernels for this machine know no fused multiply-add")
    fused._function.cache_clear()
    fused._unavailable.cache_clear()
    try:
        assert fused.unavailable_reason(CPU) == "its bits differ from foreach here"
    finally:
        monkeypatch.undo()
        fused._function.cache_clear()
        fused._unavailable.cache_clear()
    assert fused.unavailable_reason(CPU) is None


def test_there_are_no_kernels_for_other_devices() -> None:
    assert fused.unavailable_reason(torch.device("meta")) == "no kernel is written for meta"


@pytest.mark.parametrize(
    ("config", "told"),
    [(AdamW(), "AdamW: foreach"), (Muon(), "Muon: torch.optim.Muon, AdamW: foreach")],
)
def test_other_optimizers_name_their_form(config: Any, told: str) -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(3, 3)])
    assert implementation_of(build_optimizer(config, model, 1)) == told


@needs_triton
def test_the_triton_kernel_in_a_process_of_its_own() -> None:
    """On a GPU where there is one, else in the interpreter; see ademamix_cases.py."""
    ran_in_a_process_of_its_own(CASES, "test")


@needs_triton
def test_the_triton_kernel_compiles_for_a_gpu_and_fuses_no_product_with_a_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []

    def launch(kernel: Any, programs: int, arguments: list[Any], sizes: dict[str, Any]) -> None:
        found.append(compiled_for_nvidia(kernel, arguments, sizes))

    monkeypatch.setattr(fused.gpu, "launch", launch)
    fused.update_triton([torch.zeros(4096) for _ in range(5)], NUMBERS)
    (made,) = found
    assert made.spilled == 0
    assert made.registers <= 64  # four programs of 256 threads in a multiprocessor
    # 11 products and 8 sums for each of a thread's 8 numbers; fused, 56 of each would be gone. What
    # is fused belongs to the division and the root.
    assert made.count("FMUL") >= 11 * 8
    assert made.count("FADD") >= 8 * 8
