"""Time of one optimizer step over a model's parameters, in some forty matrices.

foreach         AdEMAMix by torch's functions over lists
fused           the same in one pass over memory (optim/fused.py)
AdamW foreach   torch's AdamW, one average of the gradient less
AdamW fused     torch's own kernel for it

The arms take turns. Before they are timed, fused and foreach must agree to the bit over three
steps. A step of AdEMAMix has to move 36 bytes for each parameter, one of AdamW 28: "GB/s" counts
these and no temporaries.

Run      python -m bench.optimizer [--rounds 15] [--threads 1] [--on cuda] [--quick]
         [--out FILE.jsonl]
Prints   a table; with --out appends one JSON line per size with the machine and the commit
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from stamm.models.determinism import set_determinism
from stamm.optim.ademamix import AdEMAMixOptimizer
from stamm.optim.config import AdEMAMix
from stamm.runs.manifest import environment

SIZES = (1_300_000, 30_000_000)
QUICK = 100_000
MATRICES = 40
STEPS = 1000

ARMS: dict[str, tuple[int, Callable[[list[nn.Parameter]], Optimizer]]] = {
    "foreach": (36, lambda p: ours(p, "foreach")),
    "fused": (36, lambda p: ours(p, "fused")),
    "AdamW foreach": (28, lambda p: AdamW(p, lr=1e-3, foreach=True)),
    "AdamW fused": (28, lambda p: AdamW(p, lr=1e-3, fused=True)),
}


def ours(parameters: list[nn.Parameter], implementation: str) -> Optimizer:
    """AdEMAMix over these parameters."""
    config = AdEMAMix(implementation=implementation)  # type: ignore[arg-type]  # a name of two
    return AdEMAMixOptimizer(parameters, config, total_steps=STEPS, lr=1e-3)


def parameters(total: int, device: str) -> list[nn.Parameter]:
    """Matrices with `total` numbers in all, about, and their gradients."""
    generator = torch.Generator().manual_seed(0)
    each = total // MATRICES
    rows = int(each**0.5)
    made = []
    for _ in range(MATRICES):
        parameter = nn.Parameter(torch.randn(rows, each // rows, generator=generator).to(device))
        parameter.grad = torch.randn(parameter.shape, generator=generator).mul_(0.01).to(device)
        made.append(parameter)
    return made


def must_agree(device: str, total: int) -> None:
    """Raises   SystemExit when fused and foreach differ in a bit."""
    walks = [parameters(total, device) for _ in range(2)]
    for walk, name in zip(walks, ("foreach", "fused"), strict=True):
        optimizer = ours(walk, name)
        for _ in range(3):
            optimizer.step()
    if not all(torch.equal(a, b) for a, b in zip(*walks, strict=True)):
        raise SystemExit("fused and foreach differ: nothing is timed")


def seconds_of(optimizer: Optimizer, device: str) -> float:
    """One step, and what it started."""
    began = time.perf_counter()
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Take turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--on", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="small: its numbers mean nothing")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    set_determinism(options.threads)
    must_agree(options.on, QUICK if options.quick else SIZES[0])
    print(f"{'parameters':>12} {'arm':<14} {'ms':>9} {'of fused':>9} {'GB/s':>7}")
    for total in [QUICK] if options.quick else SIZES:
        made = {name: build(parameters(total, options.on)) for name, (_, build) in ARMS.items()}
        times: dict[str, list[float]] = {name: [] for name in ARMS}
        for count in range(options.rounds + 1):
            for name, optimizer in made.items():
                taken = seconds_of(optimizer, options.on)
                if count:  # the first step makes the averages
                    times[name].append(taken)
        medians = {name: statistics.median(found) for name, found in times.items()}
        for name, median in medians.items():
            rate = ARMS[name][0] * total / median / 1e9
            ratio = median / medians["fused"]
            print(f"{total:>12,} {name:<14} {1e3 * median:>9.2f} {ratio:>9.2f} {rate:>7.1f}")
        if options.out:
            line = {
                "benchmark": "optimizer",
                "parameters": total,
                "threads": options.threads,
                "device": options.on,
                "seconds": times,
                **environment(),
            }
            with options.out.open("a") as out:
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
