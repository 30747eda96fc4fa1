"""Peak FLOP/s of a device, the denominator of MFU (model FLOPs utilisation)."""

from __future__ import annotations

import time

import torch

from stamm.base.processor import cpu_name
from stamm.engine.config import EngineConfig
from stamm.engine.estimate import PEAK_FLOPS

_WIDTH = 1024
_ROUNDS = 5


def device_name(device: torch.device) -> str:
    """Product name of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def peak_flops(config: EngineConfig, device: torch.device) -> float:
    """Peak FLOP/s of one device in the precision of products; 0 where it is unknown.

    GPU   dense bfloat16, by the vendor's data sheet. The peaks of TF32 (half) and float32 (a
          sixteenth) are not used: training in float32 and in 8 bits is measured against the bfloat16
          peak, too
    CPU   the fastest of five products of 1024 x 1024 matrices, measured now, with all threads
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
