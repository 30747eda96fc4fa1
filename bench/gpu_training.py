"""Training speed of the 1 B model on one device: tokens per second and model FLOPs utilisation (MFU).

The loop is that of `stamm run pretrain.llama_1b_xielu`, with a batch of one of 8 GPUs, on random
tokens. Each arm trains in a process of its own, since kernels that another arm compiled would help.

Run      python -m bench.gpu_training ARM [--device cpu] [--quick]    (all arms: python -m bench.gpu)
Prints   one JSON line: seconds, tokens/s and MFU of each counted step, peak memory of the device
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from stamm.base.console import NoProgress
from stamm.engine.checkpoint import Checkpoints
from stamm.engine.distributed import destroy_process_group, init_distributed, select_device
from stamm.models.config import GatedFFN, PlainFFN
from stamm.models.determinism import set_determinism
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.train import train_decoder
from stamm.recipes.llama import llama_1b_xielu
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics

ARMS = ("xielu", "swiglu", "relu2")  # of equal parameters
WARM_UP = 2  # steps that are not counted: compilation, first allocations
STEPS = 3
SEQUENCES = 64  # a step: 512 over 8 GPUs
DOCUMENT = 1000  # mean length in tokens


def arm_config(arm: str, quick: bool) -> PretrainConfig:
    """The 1 B recipe for `WARM_UP + STEPS` steps, with the activation of the arm."""
    base = llama_1b_xielu()
    model, sequences, context = base.model, SEQUENCES, base.context
    if quick:
        model = replace(
            model, vocab_size=512, d_model=64, num_layers=2, num_heads=4, num_kv_heads=4
        )
        sequences, context = 4, 64
    width = 6 * model.d_model
    ffn = (
        GatedFFN(width=width * 2 // 3) if arm == "swiglu" else PlainFFN(width=width, activation=arm)
    )
    return replace(
        base,
        model=replace(model, ffn=ffn, max_context=context),
        context=context,
        sequences=sequences * (WARM_UP + STEPS),
        batch=(BatchStage(size=sequences),),
        schedule=WarmupStableDecay(),
        engine=replace(base.engine, checkpoint_every=10**6),
    )


class RandomTokens:
    """A packed corpus in memory."""

    def __init__(self, config: PretrainConfig) -> None:
        draw = np.random.default_rng(0)
        self.num_tokens = config.total_sequences(None) * config.context + 1
        self.vocabulary, self.end_id = config.model.vocab_size, 2
        self.stages = ((0, self.num_tokens),)
        self._tokens = draw.integers(4, self.vocabulary, self.num_tokens)
        lengths = draw.geometric(1 / DOCUMENT, self.num_tokens)
        self._starts = np.concatenate(([0], lengths.cumsum()))

    def read(self, start: int, stop: int) -> Any:
        """Tokens start to stop."""
        return self._tokens[start:stop]

    def document_starts(self) -> Any:
        """Positions at which documents begin."""
        return self._starts[self._starts < self.num_tokens]


def measure(arm: str, device: torch.device, quick: bool, folder: Path) -> dict[str, Any]:
    """Train, and what the run wrote down of its steps."""
    set_determinism(torch.get_num_threads())
    config = arm_config(arm, quick)
    windows = SequenceSampler(RandomTokens(config), config.context, config.seed, config.goldfish)
    workspace = Workspace(folder=folder, progress=NoProgress())
    world = init_distributed(config.engine.parallel, device, collectives=True)
    try:
        # 13 GB each, at the start and at the end: on an H100 they took two thirds of the time.
        with mock.patch.object(Checkpoints, "save"):
            trained = train_decoder(config, workspace, world, windows)
    finally:
        destroy_process_group()
    steps = read_metrics(folder / "log" / "speed.jsonl")
    counted = steps[WARM_UP:]
    return {
        "seconds": [line["speed/seconds"] for line in counted],
        "tokens_per_s": [line["speed/tokens_per_s"] for line in counted],
        "mfu": [line["speed/mfu"] for line in counted],
        "flops_per_s": [line["speed/flops_per_s"] for line in counted],
        "first_step_s": steps[0]["speed/seconds"],
        "parameters": sum(p.numel() for p in trained.decoder.parameters()),
        "tokens_a_step": config.batch[0].size * config.context,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
        "compiled": trained.compiled,
        "optimizer": trained.optimizer,
    }


def main() -> None:
    """Measure one arm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("arm", choices=ARMS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(options.arm, select_device(options.device), options.quick, Path(folder))
    json.dump(measured, sys.stdout)


if __name__ == "__main__":
    main()
