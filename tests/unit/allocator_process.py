"""Processes of their own for tests of CPU allocators: resident memory and page faults are a process's."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_BEGIN = """
import contextlib, ctypes, gc, json, math, random, re, resource, threading
from pathlib import Path
import torch
from stamm.activations.fused import build, memory
from stamm.engine.cpu_allocator import caching_allocator

KIB, MIB = 2**10, 2**20

def enter(call=memory.allocator_function, start=64 * KIB, max_pieces=2**14):
    entered = ctypes.c_int()
    call("enter")(ctypes.c_size_t(start), ctypes.c_size_t(max_pieces), ctypes.byref(entered))
    assert entered.value == 1

def figures():
    return vars(memory.memory_stats()[0])

def resident(key="VmRSS"):
    return int(re.search(rf"{key}:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * KIB

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def churn(seed, rounds, most=48 * MIB):
    # Tensors of sizes that fit into no other's hole, each full of its own number.
    def intact(tensor, number):
        return tensor.min() == number == tensor.max()  # allocates nothing of its size
    draw, held, live, highest = random.Random(seed), {}, 0, 0
    for number in range(rounds):
        size = int(2 ** draw.uniform(14, math.log2(most / 6)))
        while live + 4 * size > most:
            old = draw.choice(list(held))
            tensor = held.pop(old)
            assert intact(tensor, old), f"{old} was overwritten"
            live -= 4 * tensor.numel()
            del tensor
        held[number] = torch.full((size,), float(number))
        live += 4 * size
        highest = max(highest, live)
    assert all(intact(tensor, number) for number, tensor in held.items())
    return highest

def in_threads(work, count):
    failed = []
    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            failed.append(repr(error))
    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return failed

def show(value):
    print(json.dumps(value))
"""


def shown(program: str) -> Any:
    """What a process that runs `program` passes to `show` last."""
    command = [sys.executable, "-c", _BEGIN + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])
