"""Outputs of fused activations outside of a scope: cached, bounded, never shared by two tensors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from stamm.activations import xielu
from stamm.activations.fused import build, memory
from stamm.base.errors import RunError
from stamm.engine.cpu_allocator import caching_allocator
from tests.unit.allocator_process import shown

pytestmark = pytest.mark.skipif(
    bool(build.unavailable_reason()), reason=str(build.unavailable_reason())
)

MIB = 2**20
SHAPE = (1024, 4096)  # 8 MiB of bfloat16


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    gc.collect()
    memory.empty_cache()
    yield
    memory.empty_cache()


def cached() -> int:
    return memory.memory_stats()[1].cached


def test_memory_is_cached_when_no_view_is_left() -> None:
    tensor = memory.fresh(SHAPE, torch.bfloat16)
    assert tensor.shape == SHAPE and tensor.is_contiguous() and tensor.dtype == torch.bfloat16
    tensor.fill_(3)
    place, view, array = tensor.data_ptr(), tensor[5:], tensor.float().numpy()
    del tensor
    assert cached() == 0
    other = memory.fresh(SHAPE, torch.bfloat16)
    other.fill_(4)
    assert view.eq(3).all() and (array == 3).all() and other.data_ptr() != place
    del view
    assert cached() == 8 * MIB
    again = memory.fresh(SHAPE, torch.bfloat16)
    assert again.data_ptr() == place and cached() == 0
    assert other.eq(4).all()


def test_an_array_that_shares_the_tensor_keeps_its_memory() -> None:
    array = memory.fresh(SHAPE, torch.float32).numpy()
    array[:] = 7
    assert cached() == 0
    memory.fresh(SHAPE, torch.float32).fill_(1)
    assert (array == 7).all()


def test_storage_is_resizable() -> None:
    tensor = memory.fresh(SHAPE, torch.bfloat16).fill_(2)
    assert tensor.resize_(2048, 4096)[:1024].eq(2).all()
    with torch.inference_mode():
        assert memory.fresh(SHAPE, torch.bfloat16).fill_(3).eq(3).all()


def test_the_cache_is_bounded() -> None:
    found = shown("""
memory.MAX_CACHED = 20 * MIB
sizes = [16, 12, 40, 9]
held = [memory.fresh((size * MIB,), torch.uint8).fill_(size) for size in sizes]
before = resident()
cached = []
while held:
    held.pop(0)
    cached.append(memory.memory_stats()[1].cached // MIB)
show([cached, (before - resident()) // MIB])
""")
    assert found[0] == [16, 20, 20, 20]
    assert abs(found[1] - (16 + 12 + 40 + 9 - 20)) <= 1


def test_other_sizes_use_the_same_memory() -> None:
    found = shown("""
torch.set_num_threads(1)
memory.fresh((256 * MIB,), torch.uint8).fill_(1)
begun = faults()
for size in range(18, 250, 16):
    parts = [memory.fresh((size * MIB // 2,), torch.uint8).fill_(1) for _ in range(2)]
    del parts
show([faults() - begun, memory.memory_stats()[1].cached // MIB])
""")
    assert found[0] < 100 and found[1] == 256


def test_small_outputs_and_empty_ones_are_torchs() -> None:
    memory.fresh((100,), torch.float32)
    assert memory.fresh((0, 5), torch.float32).shape == (0, 5)
    assert memory.fresh((), torch.float32).shape == ()
    assert cached() == 0


def test_threads_never_share_memory() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(30):
            tensor = memory.fresh(SHAPE, torch.float16).fill_(number)
            if not tensor.eq(number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_inside_a_scope_outputs_are_the_scopes() -> None:
    before = memory.fresh(SHAPE, torch.bfloat16).fill_(6)
    del [memory.fresh(SHAPE, torch.bfloat16)][0]
    assert cached() == 8 * MIB
    with caching_allocator():
        assert cached() == 0  # else it would count twice
        inside = memory.fresh(SHAPE, torch.bfloat16).fill_(7)
        assert memory.memory_stats()[0].allocated == 8 * MIB
        assert before.eq(6).all()
    del before
    assert inside.eq(7).all() and cached() == 8 * MIB
    del inside
    assert memory.memory_stats()[0].allocated == 0 and cached() == 8 * MIB


def test_the_profiler_counts_outputs() -> None:
    x = torch.zeros(SHAPE, dtype=torch.bfloat16)
    activation = xielu()
    with torch.no_grad():
        activation(x)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            held = activation(x)
        assert held.untyped_storage().data_ptr() and memory.memory_stats()[1].allocated == 8 * MIB
    counted = sum(e.self_cpu_memory_usage for e in profile.key_averages())
    assert counted == 8 * MIB


def test_where_the_allocator_cannot_be_compiled_memory_is_torchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: str) -> None:
        raise RunError("none")

    monkeypatch.setattr(memory, "results_allocator", memory.results_allocator.__wrapped__)
    monkeypatch.setattr(memory, "allocator_function", refuse)
    assert memory.fresh(SHAPE, torch.bfloat16).fill_(1).eq(1).all()
