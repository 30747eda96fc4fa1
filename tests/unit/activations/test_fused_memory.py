"""Kept memory: a block comes back when its last tensor goes, never before, and not without bound."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stamm.activations.fused import memory

SHAPE = (1024, 4096)  # 8 MiB of bfloat16


@pytest.fixture(autouse=True)
def empty_pool() -> Iterator[None]:
    memory.release()
    yield
    memory.release()


def test_a_block_comes_back_when_no_view_is_left() -> None:
    tensor = memory.fresh(SHAPE, torch.bfloat16)
    assert tensor.shape == SHAPE and tensor.is_contiguous() and tensor.dtype == torch.bfloat16
    tensor.fill_(3)
    place, view, array = tensor.data_ptr(), tensor[5:], tensor.float().numpy()
    del tensor
    assert memory.kept_bytes() == 0
    other = memory.fresh(SHAPE, torch.bfloat16)
    other.fill_(4)
    assert view.eq(3).all() and (array == 3).all() and other.data_ptr() != place
    del view
    assert memory.kept_bytes() > 0
    again = memory.fresh(SHAPE, torch.bfloat16)
    assert again.data_ptr() == place and memory.kept_bytes() == 0
    assert other.eq(4).all()


def test_an_array_that_shares_the_tensor_keeps_its_block() -> None:
    array = memory.fresh(SHAPE, torch.float32).numpy()
    array[:] = 7
    assert memory.kept_bytes() == 0
    memory.fresh(SHAPE, torch.float32).fill_(1)
    assert (array == 7).all()


def test_what_is_kept_is_bounded_and_can_be_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "KEPT", 25 * 2**20)
    held = [memory.fresh(SHAPE, torch.bfloat16) for _ in range(4)]
    held.clear()
    kept = memory.kept_bytes()
    assert 2 * 8 * 2**20 < kept <= 25 * 2**20
    assert memory.release() == kept and memory.kept_bytes() == 0


def test_small_results_take_no_block() -> None:
    memory.fresh((100,), torch.float32)
    assert memory.fresh((0, 5), torch.float32).shape == (0, 5)
    assert memory.kept_bytes() == 0


def test_threads_never_share_a_block() -> None:
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


def test_sizes_that_are_no_longer_used_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "KEPT", 40 * 2**20)
    for rows in range(1024, 1024 + 2048, 256):
        memory.fresh((rows, 4096), torch.bfloat16)
    assert memory.kept_bytes() <= 40 * 2**20
    place = memory.fresh((2816, 4096), torch.bfloat16).data_ptr()
    assert memory.fresh((2816, 4096), torch.bfloat16).data_ptr() == place


def test_a_block_that_comes_back_amid_anothers_return_is_kept() -> None:
    """A collection of garbage may end tensors between any two steps, those of the pool too."""
    pool, size = memory._Pool(), 2**21

    class Disturbed(dict[int, list[mmap.mmap]]):
        def pop(self, *arguments: Any) -> Any:
            found = super().pop(*arguments)
            if disturbing:
                pool.give_back(disturbing.pop(), size)
            return found

    disturbing = [mmap.mmap(-1, size)]
    pool._free = Disturbed()
    pool.give_back(mmap.mmap(-1, size), size)
    assert not disturbing
    assert len(pool._free[size]) == 2 and pool.release() == 2 * size
