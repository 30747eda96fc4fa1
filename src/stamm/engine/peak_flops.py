"""The most floating-point operations a second that a device can do: what speeds are a share of."""

from __future__ import annotations

import time

import torch

from stamm.base.processor import cpu_name
from stamm.engine.config import EngineConfig
from stamm.engine.estimate import PEAK_FLOPS

_WIDTH = 1024
_ROUNDS = 5


def device_name(device: torch.device) -> str:
    """What computes there, as its maker calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def peak_flops(config: EngineConfig, device: torch.device) -> float:
    """FLOP/s of one device in the precision of products; 0 where nothing is known.

    GPU   dense bfloat16, by the maker's data sheet; half of it in TF32 and a sixteenth in float32
          are not told apart: float32 training is measured against the bfloat16 peak, too, and so
          is training in 8 bits
    CPU   the fastest of a few products of 1024 x 1024 matrices, measured now, with all threads
    """
    if device.type == "cuda":
        name = device_name(device)
        known = [key for key in PEAK_FLOPS if key in name.replace(" ", "")]
        return PEAK_FLOPS[max(known, key=len)] if known else 0.0
    dtype = torch.float32 if config.precision == "float32" else torch.bfloat16
    a = torch.ones(_WIDTH, _WIDTH, dtype=dtype)
    fastest = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        a @ a
        fastest = min(fastest, time.perf_counter() - began)
    return 2.0 * _WIDTH**3 / fastest
