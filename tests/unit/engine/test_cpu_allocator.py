"""The scope of the caching allocator: what torch has inside and afterwards, and what outlives it."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stamm.activations.fused import build
from stamm.activations.fused.memory import empty_cache, memory_stats
from stamm.base.errors import RunError
from stamm.engine import cpu_allocator
from stamm.engine.cpu_allocator import caching_allocator
from tests.unit.allocator_process import shown

MIB = 2**20
needs_compiler = pytest.mark.skipif(
    bool(build.unavailable_reason()), reason=str(build.unavailable_reason())
)


def torch_allocator() -> int:
    """The address of torch's CPU allocator, by torch's own account."""
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    get = c10._ZN3c1015GetCPUAllocatorEv
    get.restype = ctypes.c_size_t
    return int(get())


@needs_compiler
def test_torch_has_its_allocator_back_and_nothing_is_cached() -> None:
    before = torch_allocator()
    for _ in range(3):
        with caching_allocator() as reason:
            assert reason == "" and torch_allocator() != before
            held = torch.ones(MIB)
            assert memory_stats()[0].allocated == 4 * MIB
            del held
            assert memory_stats()[0].cached == 4 * MIB
        assert torch_allocator() == before
        assert memory_stats()[0].allocated == memory_stats()[0].cached == 0
        torch.ones(MIB)
        assert memory_stats()[0].cached == 0


@needs_compiler
def test_the_outermost_of_nested_scopes_counts() -> None:
    before = torch_allocator()
    with caching_allocator():
        with caching_allocator():
            del [torch.ones(MIB)][0]
        assert torch_allocator() != before and memory_stats()[0].cached == 4 * MIB
        torch.ones(MIB)
    assert torch_allocator() == before and memory_stats()[0].cached == 0


@needs_compiler
def test_an_exception_ends_the_scope() -> None:
    before = torch_allocator()
    with pytest.raises(KeyError, match="inside"), caching_allocator():
        torch.ones(MIB)
        raise KeyError("inside")
    assert torch_allocator() == before and memory_stats()[0].cached == 0


@needs_compiler
def test_tensors_that_outlive_the_scope_stay_and_are_freed() -> None:
    before = torch_allocator()
    with caching_allocator():
        kept = torch.arange(MIB)
        cached = torch.ones(MIB)
        del cached
    later = torch.ones(MIB)  # torch's own memory
    assert memory_stats()[0].allocated == 8 * MIB and memory_stats()[0].cached == 0
    assert int(kept.sum()) == MIB * (MIB - 1) // 2
    kept.resize_(2 * MIB)  # storage goes by the allocator that it was made with
    assert int(kept[:MIB].sum()) == MIB * (MIB - 1) // 2
    del kept
    assert memory_stats()[0].allocated == memory_stats()[0].cached == 0
    assert torch_allocator() == before
    with caching_allocator():
        del later  # from before the scope
    assert torch_allocator() == before


@needs_compiler
def test_addresses_that_onednn_holds_outlive_the_scope() -> None:
    """oneDNN frees bare addresses through the allocator that torch has then."""
    before = torch_allocator()
    outer = torch.rand(1024, 1024).to_mkldnn()
    with caching_allocator():
        inner = torch.full((1024, 1024), 3.0).to_mkldnn()
        del outer
    assert memory_stats()[0].allocated == 4 * MIB
    assert float(inner.to_dense().sum()) == 3 * MIB
    del inner
    assert memory_stats()[0].allocated == 0 and torch_allocator() == before


@needs_compiler
def test_threads_enter_and_leave_scopes_while_others_allocate() -> None:
    found = shown("""
torch.set_num_threads(1)
def work(number):
    for turn in range(30):
        with caching_allocator() if number % 2 else contextlib.nullcontext():
            held = torch.full((300, 1000), float(number))
            packed = held.to_mkldnn()
            churn(seed=number, rounds=4, most=8 * MIB)
        assert float(held.sum()) == float(packed.to_dense().sum()) == 300_000 * number
        del held, packed
failed = in_threads(work, 4)
show([failed, figures()])
""")
    assert found[0] == [] and found[1]["allocated"] == found[1]["cached"] == 0


@needs_compiler
def test_the_profiler_counts_its_tensors() -> None:
    def counted(size: int) -> dict[str, int]:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            held = torch.empty(size, dtype=torch.uint8)
            del held
        return {e.key: e.self_cpu_memory_usage for e in profile.key_averages()}

    size = 3 * MIB + 5
    expected = counted(size)  # torch's own
    assert expected["aten::empty"] == size and expected["[memory]"] == -size
    with caching_allocator():
        assert counted(size) == expected  # new memory
        assert counted(size) == expected  # cached memory


@needs_compiler
def test_torch_uses_it_wherever_it_takes_memory() -> None:
    """Storage that grows, bare addresses of oneDNN, a child process, gradients, numpy's views."""
    found = shown("""
import os
torch.set_num_threads(1)  # OpenMP does not survive a fork
small = torch.ones(10)
early = torch.ones(MIB)  # from the allocator before
enter()
grown = torch.arange(MIB, dtype=torch.float32)
grown.resize_(3 * MIB)
same = bool((grown[:MIB] == torch.arange(MIB)).all())
a = torch.ones(512, 512, dtype=torch.bfloat16, requires_grad=True)
(a @ a).sum().backward()
view = torch.full((MIB,), 7.0).numpy()
again = torch.zeros(MIB)
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, b"y" if churn(3, 50) and bool((grown[:5] == torch.arange(5)).all()) else b"n")
    os._exit(0)
child = os.read(read, 1).decode()
gradient = float(a.grad.float().mean())
try:
    torch.empty(2**50)
    raised = ""
except RuntimeError as error:
    raised = str(error)
del early, small
show([same, gradient, float(view.mean()), float(again.sum()), child, raised])
""")
    assert found[:5] == [True, 1024.0, 7.0, 0.0, "y"]
    assert "DefaultCPUAllocator" in found[5]


@needs_compiler
def test_cached_memory_returns_to_the_kernel_when_asked_and_at_the_end() -> None:
    found = shown("""
noted = []
def note():
    noted.append([figures()["allocated"] // MIB, figures()["cached"] // MIB, resident() // MIB])
with caching_allocator():
    tensors = [torch.ones(MIB) for _ in range(64)]
    kept = tensors[::2]
    del tensors
    note()
    memory.empty_cache()
    note()
    del [torch.ones(8 * MIB)][0]
    note()
note()
intact = float(sum(t.sum() for t in kept))
del kept
note()
show([noted, intact])
""")
    (full, emptied, again, left, end), intact = found
    assert full[:2] == [128, 128] and emptied[:2] == [128, 0] and full[2] - emptied[2] > 120
    assert again[:2] == [128, 32] and left[:2] == [128, 0] and again[2] - left[2] > 28
    assert end[:2] == [0, 0] and left[2] - end[2] > 120 and intact == 32 * 2**20


@needs_compiler
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's own thresholds")
def test_the_c_librarys_settings_stay() -> None:
    """glibc returns large pieces at once, and does so after a scope: their faults come again."""
    found = shown("""
def asked():
    before = faults()
    pieces = [bytearray(b"x") * 2**26 for _ in range(4)]  # above any threshold that glibc adjusts
    del pieces
    pieces = [bytearray(b"x") * 2**24 for _ in range(8)]
    del pieces
    return faults() - before
asked()
counted = asked()
with caching_allocator():
    inside = asked()
show([counted, inside, asked()])
""")
    before, inside, after = found
    assert inside > 0.9 * before and after > 0.9 * before


@needs_compiler
def test_another_allocator_of_higher_priority_stays() -> None:
    """torch lets an allocator be replaced only by one of its priority or a higher one."""
    found = shown("""
source = '''
#include <c10/core/CPUAllocator.h>
extern "C" void raise_priority() { c10::SetCPUAllocator(c10::GetCPUAllocator(), 1); }
'''
build.function(source, "raise_priority", torch_headers=True)()
with caching_allocator() as reason:
    torch.ones(MIB)
show([reason, figures()])
""")
    assert "priority" in found[0] and found[1]["allocated"] == found[1]["cached"] == 0


def test_without_a_compiler_the_reason_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import torch\n"
        "from stamm.activations.fused.memory import empty_cache\n"
        "from stamm.engine.cpu_allocator import caching_allocator\n"
        "with caching_allocator() as reason:\n"
        "    torch.ones(2**20)\n"
        "    empty_cache()\n"
        "print(reason)"
    )
    bare = {**os.environ, "PATH": str(tmp_path), "HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=bare)
    assert "no C++ compiler" in done.stdout and done.stdout.count("\n") == 1

    def refuse(_: str) -> None:
        raise RunError("none")

    monkeypatch.setattr(cpu_allocator, "allocator_function", refuse)
    with pytest.raises(ValueError, match="own"), caching_allocator() as reason:
        assert reason == "none"
        raise ValueError("own")


@needs_compiler
def test_empty_cache_keeps_what_is_allocated() -> None:
    with caching_allocator():
        held = torch.full((MIB,), 5.0)
        empty_cache()
        assert float(held.sum()) == 5 * MIB and memory_stats()[0].allocated == 4 * MIB
