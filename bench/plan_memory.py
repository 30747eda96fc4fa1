"""Peak memory of training processes beside what `stamm plan` says of them.

Each case is a process of its own: it trains a tiny model, so that libraries are loaded and their
buffers made, notes its resident memory, then trains the case's model for 3 steps with a checkpoint
at the end, as `stamm run` does, on tokens that are made up. What is measured is the highest resident
memory (VmHWM) above the noted one, of the steps and of all.

Run      python -m bench.plan_memory [--cases plain,bfloat16] [--out FILE.jsonl]
Prints   a table in MiB; with --out appends one JSON line per case with the machine and the commit
Needs    Linux
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stamm.corpus.shuffle import Proof
from stamm.engine.checkpoint import Checkpoints
from stamm.engine.config import EngineConfig
from stamm.engine.cpu_allocator import caching_allocator
from stamm.engine.distributed import init_distributed
from stamm.models.config import (
    DecoderConfig,
    Dense,
    GatedFFN,
    LowRank,
    PlainFFN,
    SavePre,
    SelfGuide,
    Structured,
)
from stamm.models.determinism import set_determinism
from stamm.optim.config import AdamW, AdEMAMix, Muon
from stamm.optim.schedules import BatchStage
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.plan import plan
from stamm.pretrain.train import train_decoder
from stamm.runs.job import Workspace
from stamm.runs.manifest import environment

STEPS = 3
MIB = 2**20


class MadeUp:
    """A token stream that takes no memory."""

    end_id, num_files = None, 1

    def __init__(self, num_tokens: int, vocabulary: int) -> None:
        self.num_tokens, self.vocabulary = num_tokens, vocabulary
        self.stages = ((0, num_tokens),)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens that look mixed."""
        return np.arange(start, stop, dtype=np.int64) * 7919 % self.vocabulary

    def document_starts(self) -> NDArray[np.int64]:
        """Documents of 100 tokens."""
        return np.arange(0, self.num_tokens, 100, dtype=np.int64)

    def examine(self, files: Iterable[int]) -> dict[int, Any]:
        """Nothing lies anywhere."""
        return dict.fromkeys(files)

    def proof(self, seen: Mapping[int, Any]) -> Proof:
        """What it is made from."""
        return Proof(sha256=f"{self.num_tokens} of {self.vocabulary}, made up")


def cases() -> dict[str, PretrainConfig]:
    """Models of 14 to 45 million parameters, each with one thing changed."""
    model = DecoderConfig(
        vocab_size=8192, d_model=384, num_layers=6, num_heads=6, num_kv_heads=2, max_context=1024,
        ffn=PlainFFN(width=1152, activation="xielu"),
    )  # fmt: skip
    base = PretrainConfig(
        model=model,
        context=512,
        batch=(BatchStage(size=8),),
        sequences=8 * STEPS,
        goldfish=None,
        optimizer=AdEMAMix(),
        engine=EngineConfig(device="cpu", threads=1, compile="off"),
    )
    compiled = replace(base.engine, compile="layers")
    short = replace(base.engine, precision="bfloat16")
    gated = replace(model, ffn=GatedFFN(width=768, activation="swiglu"))
    wide = replace(model, d_model=768, num_heads=12, num_kv_heads=4, ffn=PlainFFN(width=2304))
    half = replace(base, batch=(BatchStage(size=4),), sequences=4 * STEPS)
    guided = replace(
        model,
        ffn=PlainFFN(width=1152, linear=LowRank(rank=96)),
        structured=Structured(guide=SelfGuide(until_share=1.0)),
    )
    return {
        "plain": base,
        "plain compiled": replace(base, engine=compiled),
        "swiglu": replace(base, model=gated),
        "swiglu compiled": replace(base, model=gated, engine=compiled),
        "wide": replace(half, model=wide),
        "wide compiled": replace(half, model=wide, engine=compiled),
        "bfloat16": replace(base, engine=short),
        "bfloat16 compiled": replace(base, engine=replace(short, compile="layers")),
        "recompute": replace(base, engine=replace(base.engine, activation_checkpointing="layers")),
        "context 1024": replace(half, context=1024),
        "micro-batches": replace(base, micro_batch=2),
        "SavePre": replace(base, model=replace(model, ffn=replace(model.ffn, memory=SavePre()))),
        "AdamW": replace(base, optimizer=AdamW()),
        "Muon": replace(base, optimizer=Muon()),
        "vocabulary 32768": replace(
            half, model=replace(model, vocab_size=32_768, tied_embeddings=True)
        ),
        "guided": replace(base, model=guided),
        "two threads": replace(base, engine=replace(base.engine, threads=2)),
        "two threads compiled": replace(base, engine=replace(compiled, threads=2)),
        "two threads swiglu": replace(base, model=gated, engine=replace(compiled, threads=2)),
        "two threads two pieces": replace(base, engine=replace(base.engine, threads=2, pieces=2)),
        "background": replace(
            base, engine=replace(base.engine, async_checkpointing=True, checkpoint_every=1)
        ),
    }


def train(config: PretrainConfig) -> None:
    """Train as a run does, in a folder that goes afterwards."""
    total = config.total_sequences()
    stream = MadeUp(total * config.context + 1, config.model.vocab_size)
    set_determinism(config.engine.threads)
    short = config.engine.precision != "float32"
    with tempfile.TemporaryDirectory() as folder:
        world = init_distributed(config.engine.parallel, torch.device("cpu"), collectives=short)
        windows = SequenceSampler(stream, config.context, config.seed, config.goldfish)
        train_decoder(config, Workspace(folder=Path(folder)), world, windows)


def resident(key: str) -> int:
    """Bytes that the system counts for this process: VmRSS now, VmHWM at most."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


def measure(config: PretrainConfig) -> dict[str, int]:
    """Highest memory of the steps, and of all, above that of a process that has trained before."""
    model = config.model
    ffn = replace(model.ffn, width=48, linear=Dense())
    tiny = replace(
        model, vocab_size=256, d_model=48, num_layers=2, num_heads=2, num_kv_heads=2, ffn=ffn,
        structured=Structured(),
    )  # fmt: skip
    train(replace(config, model=tiny, context=64, sequences=3, micro_batch=None, batch=(BatchStage(size=1),)))  # fmt: skip
    Path("/proc/self/clear_refs").write_text("5")  # the highest is the present one
    before, peaks = resident("VmRSS"), []
    save = Checkpoints.save

    def noted(*arguments: Any) -> None:
        peaks.append(resident("VmHWM"))
        save(*arguments)

    Checkpoints.save = noted  # type: ignore[method-assign,assignment]
    train(config)
    return {"steps": peaks[0] - before, "all": resident("VmHWM") - before, "before": before}


def announced(config: PretrainConfig) -> dict[str, int]:
    """The same by the plan."""
    totals = {m["name"]: m["total"] for m in plan(config, None)["memory"]["timeline"]}
    saving = totals.pop("a checkpoint is written", 0)
    return {"steps": max(totals.values()), "all": max(saving, *totals.values())}


def main() -> None:
    """One process for each case, and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default=",".join(cases()))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with caching_allocator():
            print(json.dumps(measure(cases()[options.one])))
        return
    print(f"{'case':<20} {'steps':>7} {'plan':>7} {'ratio':>6} {'all':>7} {'plan':>7} {'ratio':>6}")
    for name in options.cases.split(","):
        done = subprocess.run(
            [sys.executable, "-m", "bench.plan_memory", "--one", name],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        told = announced(cases()[name])
        cells = [
            f"{found[key] / MIB:>7.0f} {told[key] / MIB:>7.0f} {told[key] / found[key]:>6.3f}"
            for key in ("steps", "all")
        ]
        print(f"{name:<20} {' '.join(cells)}", flush=True)
        if options.out:
            line = {"benchmark": "plan_memory", "case": name}
            line |= {"measured_bytes": found, "plan_bytes": told, **environment()}
            with options.out.open("a") as out:
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
