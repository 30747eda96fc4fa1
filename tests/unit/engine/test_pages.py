"""Kept pages: no tensor sees another's, nothing is held that was never needed, and it can be let go.

torch takes another allocator once for a process: each test's program has one of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from stamm.activations.fused import build

pytestmark = pytest.mark.skipif(bool(build.unavailable()), reason=str(build.unavailable()))

_BEGIN = """
import ctypes, json, math, random, re, threading
import torch
from stamm.activations.fused import build
from stamm.engine import heap

KIB, MIB = 2**10, 2**20

def call(name, *arguments):
    build.function(heap._source(), name, torch_headers=True)(*arguments)

def begin(start=64 * KIB, most_pieces=2**14):
    call("take_over", ctypes.c_size_t(start), ctypes.c_size_t(most_pieces))

def figures():
    three = (ctypes.c_size_t * 3)()
    call("figures", three)
    return dict(zip(("in_use", "kept", "moved"), three))

def resident(key="VmRSS"):
    return int(re.search(rf"{key}:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * KIB

def churn(seed, rounds, most=48 * MIB):
    # Tensors of sizes that fit into nobody's hole, each full of its own number.
    def intact(tensor, number):
        return tensor.min() == number == tensor.max()  # nothing of its size is made for this
    draw, held, live, highest = random.Random(seed), {}, 0, 0
    for number in range(rounds):
        size = int(2 ** draw.uniform(14, math.log2(most / 6)))
        while live + 4 * size > most:
            old = draw.choice(list(held))
            tensor = held.pop(old)
            assert intact(tensor, old), f"{old} was written over"
            live -= 4 * tensor.numel()
            del tensor
        held[number] = torch.full((size,), float(number))
        live += 4 * size
        highest = max(highest, live)
    assert all(intact(tensor, number) for number, tensor in held.items())
    return highest
"""


def told(program: str) -> Any:
    """What a process that runs `program` says last."""
    command = [sys.executable, "-c", _BEGIN + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("most_pieces", [0, 30, 2**14])
def test_no_more_is_held_than_was_in_use_at_once(most_pieces: int) -> None:
    """And no tensor is written over, whether pages are moved or, in too many pieces, are not."""
    found = told(f"""
torch.set_num_threads(1)
torch.full((MIB,), 1.0).sum()
begin(most_pieces={most_pieces})
before = resident()
highest = churn(seed=1, rounds=1000)
end = figures()
print(json.dumps({{"highest": highest, "held": resident("VmHWM") - before, **end}}))
""")
    assert found["in_use"] == 0
    # Whole pages of tensors of 16 KiB and more, and the C library's share below 64 KiB.
    assert found["kept"] <= found["highest"] * 1.01
    assert found["held"] <= found["highest"] * 1.01 + 4 * 2**20
    assert (found["moved"] > 0) == (most_pieces > 0)


def test_without_it_holes_are_held() -> None:
    """The measure tells a difference: the C library, told to keep what is freed."""
    found = told("""
import ctypes
torch.set_num_threads(1)
libc = ctypes.CDLL(None)
libc.mallopt(-3, 2**25), libc.mallopt(-1, 2**31 - 1)
torch.full((MIB,), 1.0).sum()
before = resident()
highest = churn(seed=1, rounds=1000)
print(json.dumps({"highest": highest, "held": resident("VmHWM") - before}))
""")
    assert found["held"] > found["highest"] * 1.1


def test_the_same_again_asks_the_system_for_nothing() -> None:
    found = told("""
import resource
torch.set_num_threads(1)
begin()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counted = []
for _ in range(4):
    before, moved = faults(), figures()["moved"]
    churn(seed=2, rounds=200)
    counted.append((faults() - before, figures()["moved"] - moved))
print(json.dumps(counted))
""")
    assert found[0][0] > 10 * found[-1][0]
    assert found[-1][0] < 100


def test_what_is_kept_is_given_to_the_system_when_asked() -> None:
    found = told("""
assert heap.keep_freed_memory() == "" and heap.keep_freed_memory() == ""  # twice is once
tensors = [torch.ones(MIB) for _ in range(64)]
kept = tensors[::2]
del tensors
full, noted = resident(), figures()
heap.give_back_freed_memory()
print(json.dumps([noted, figures(), full - resident(), float(sum(t.sum() for t in kept))]))
""")
    assert found[0]["kept"] == found[0]["in_use"] == 128 * 2**20
    assert found[1]["kept"] == 0 and found[1]["in_use"] == 128 * 2**20
    assert found[2] > 120 * 2**20 and found[3] == 32 * 2**20


def test_threads_take_and_give_at_once() -> None:
    found = told("""
torch.set_num_threads(1)
begin()
failed = []
def work(seed):
    try:
        churn(seed, rounds=400, most=16 * MIB)
    except BaseException as error:
        failed.append(repr(error))
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"failed": failed, **figures()}))
""")
    assert found["failed"] == [] and found["in_use"] == 0
    assert found["kept"] <= 4 * 16 * 2**20 * 1.01


def test_torch_uses_it_wherever_it_takes_memory() -> None:
    """Storage that grows, bare addresses of oneDNN, a child process, gradients, numpy's views."""
    found = told("""
import os
torch.set_num_threads(1)  # OpenMP does not survive a fork
small = torch.ones(10)
early = torch.ones(MIB)  # from the allocator before
begin()
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
print(json.dumps([same, gradient, float(view.mean()), float(again.sum()), child, raised]))
""")
    assert found[:5] == [True, 1024.0, 7.0, 0.0, "y"]
    assert "DefaultCPUAllocator" in found[5]


def test_when_memory_runs_out_what_is_kept_goes_first() -> None:
    found = told("""
import resource
begin()
size = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * KIB
kept = [torch.ones(2 * MIB) for _ in range(32)]  # 256 MiB
wall = [torch.ones(KIB * 128) for _ in range(8)]
del kept
noted = figures()["kept"]
limit = size + 512 * MIB
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
large = torch.ones(96 * MIB)  # 384 MiB beside them would not fit
print(json.dumps([noted, float(large[-1]), float(wall[0].sum())]))
""")
    assert found[0] == 256 * 2**20 and found[1:] == [1.0, 128 * 1024.0]
