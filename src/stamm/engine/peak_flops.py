"""Peak FLOP/s of a device, the denominator of MFU (model FLOPs utilisation)."""

from __future__ import annotations

import time

import torch

from stamm.base.processor import cpu_name
from stamm.engine.config import EngineConfig
from stamm.engine.estimate import PEAK_FLOPS

_WIDTH = 384  # fits into the caches of one core, and a product between two switches of processes
_ROUNDS = 32
_SECONDS = 0.1


def device_name(device: torch.device) -> str:
    """Product name of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def peak_flops(config: EngineConfig, device: torch.device) -> float:
    """Peak FLOP/s of one device in the precision of products; 0 where it is unknown.

    GPU   dense bfloat16, by the vendor's data sheet. The peaks of TF32 (half) and float32 (a
          sixteenth) are not used: training in float32 and in 8 bits is measured against the bfloat16
          peak, too
    CPU   that of one core, times the number of threads. A core's is the fastest of many products of
          384 x 384 matrices, measured now: in float32 each takes about a millisecond, so that another
          busy process does not lower it, as it does a long product of all threads. In bfloat16 without
          instructions for it (AVX2) each takes 0.1 s and the measurement 5 s
    """
    if device.type == "cuda":
        name = device_name(device)
        known = [key for key in PEAK_FLOPS if key in name.replace(" ", "")]
        return PEAK_FLOPS[max(known, key=len)] if known else 0.0
    dtype = torch.float32 if config.precision == "float32" else torch.bfloat16
    return torch.get_num_threads() * core_flops(dtype)


def core_flops(dtype: torch.dtype) -> float:
    """FLOP/s of products on one core: of the fastest of at least 32 products, and of those of 0.1 s."""
    a = torch.ones(_WIDTH, _WIDTH, dtype=dtype)
    product = torch.empty_like(a)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fastest, first, rounds = float("inf"), time.perf_counter(), 0
        while rounds < _ROUNDS or time.perf_counter() - first < _SECONDS:
            began = time.perf_counter()
            torch.mm(a, a, out=product)
            fastest = min(fastest, time.perf_counter() - began)
            rounds += 1
    finally:
        torch.set_num_threads(threads)
    return 2.0 * _WIDTH**3 / fastest
