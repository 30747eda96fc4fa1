"""The peak of a CPU, the denominator of MFU."""

from __future__ import annotations

import time

import torch

from stamm.engine.config import EngineConfig
from stamm.engine.peak_flops import peak_flops


def test_no_product_is_faster_than_the_peak_of_a_cpu() -> None:
    threads = torch.get_num_threads()
    peak = peak_flops(EngineConfig(), torch.device("cpu"))
    assert torch.get_num_threads() == threads
    for rows, inner, columns in ((1024, 1024, 1024), (2048, 128, 512), (256, 256, 256)):
        a, b = torch.ones(rows, inner), torch.ones(inner, columns)
        for _ in range(10):
            began = time.perf_counter()
            torch.mm(a, b)
            flops = 2.0 * rows * inner * columns / (time.perf_counter() - began)
            assert flops < 1.1 * peak


def test_the_peak_of_a_cpu_is_that_of_the_machine_and_not_of_the_moment() -> None:
    cpu = torch.device("cpu")
    peaks = [peak_flops(EngineConfig(), cpu) for _ in range(4)]
    assert max(peaks) < 1.25 * min(peaks)
