"""What is kept for the backward pass, and processor time of a step, under each memory policy and activation checkpointing.

Kept is the resident memory after the forward pass above that before it; MALLOC_MMAP_THRESHOLD_ makes the system take
back what is freed. Time is processor time of forward and backward pass, in turns, medians.

Run      python -m bench.memory_policies [--rounds 7]
Prints   a table in MiB and seconds
Needs    Linux
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import torch

from bench.plan_memory import MIB, resident
from stamm.models.config import (
    DecoderConfig,
    GatedFFN,
    MemoryPolicy,
    PlainFFN,
    Recompute,
    SavePost,
    SavePre,
)
from stamm.models.decoder import Decoder, build_decoder

POLICIES: dict[str, tuple[MemoryPolicy, bool]] = {
    "SavePost": (SavePost(), False),
    "SavePre": (SavePre(), False),
    "Recompute": (Recompute(), False),
    "activation checkpointing": (SavePost(), True),
}


def step(decoder: Decoder, ids_BT: torch.Tensor, checkpointing: bool) -> tuple[float, float]:
    """MiB kept after the forward pass, and processor seconds of both passes."""
    decoder.zero_grad(set_to_none=True)
    keep_BT = torch.ones_like(ids_BT).float()
    before, begin = resident("VmRSS"), time.process_time()
    for layer in decoder.model.layers:
        layer.recompute = checkpointing  # type: ignore[assignment]
    losses = decoder.losses(ids_BT, ids_BT.roll(-1, 1), keep_BT, kept=float(ids_BT.numel()))
    kept = resident("VmRSS") - before
    losses.loss.backward()
    return kept / MIB, time.process_time() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    if os.environ.get("MALLOC_MMAP_THRESHOLD_") is None:
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
        os.execv(sys.executable, [sys.executable, "-m", "bench.memory_policies", *sys.argv[1:]])
    torch.set_num_threads(1)
    ids_BT = torch.randint(1, 8192, (2, 512), generator=torch.Generator().manual_seed(0))
    blocks = (GatedFFN(width=768, activation="swiglu"), PlainFFN(width=1152, activation="xielu"))
    for ffn in blocks:
        config = DecoderConfig(
            vocab_size=8192, d_model=384, num_layers=6, num_heads=6, num_kv_heads=2, max_context=1024, ffn=ffn
        )  # fmt: skip
        decoder = build_decoder(config, seed=0).train()
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in POLICIES}
        for _ in range(rounds + 1):
            for name, (policy, checkpointing) in POLICIES.items():
                for layer in decoder.model.layers:
                    layer.mlp.memory = policy  # type: ignore[union-attr]
                found[name].append(step(decoder, ids_BT, checkpointing))
        for name, steps in found.items():
            kept, seconds = (statistics.median(values) for values in zip(*steps[1:], strict=True))
            print(f"{ffn.spec.name:8} {name:26} {kept:8.1f} MiB {seconds:7.2f} s", flush=True)


if __name__ == "__main__":
    main()
