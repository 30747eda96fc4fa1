"""Every activation of the catalogue beside what torch.compile makes of its formula.

Both compute forward, and forward with every gradient, of the same inputs in turns: the generated
kernel, and the same formulas as torch's functions, compiled (one shape, whole graph).

Run      python -m bench.entries [--names gelu mish] [--dtypes bfloat16 float32] [--threads 1]
         [--shape 1024x4096] [--rounds 9] [--share 0/2] [--out FILE.jsonl]
Prints   a table of ratios, kernel over compiled; with --out one JSON line per entry and dtype
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bench.capability import processor_facts
from stamm.activations import catalog
from stamm.activations.benchmark import STEPS, BenchmarkArm, measure
from stamm.activations.fused.operation import use_eager
from stamm.activations.module import GatedActivation, build_activation
from stamm.engine.compile import separate_inductor_cache

KERNEL, COMPILED = "kernel", "compiled"


def arms(name: str) -> tuple[list[BenchmarkArm], int]:
    """The kernel and the compiled formula of an entry, and its number of inputs."""
    separate_inductor_cache()
    module = build_activation(name, precision="fast")
    plain = build_activation(name, precision="fast")
    compiled = torch.compile(plain, fullgraph=True, dynamic=False)

    def eager(*inputs: Tensor) -> Tensor:
        use_eager(plain.forms, eager=True)
        try:
            found: Tensor = compiled(*inputs)
        finally:
            use_eager(plain.forms, eager=False)
        return found

    count = 2 if isinstance(module, GatedActivation) else 1
    return [
        BenchmarkArm(name=KERNEL, call=module, parameters=tuple(module.parameters())),
        BenchmarkArm(
            name=COMPILED, call=eager, parameters=tuple(plain.parameters()), compiled=True
        ),
    ], count


def main(words: Sequence[str] | None = None) -> int:
    """Measure the entries of this share."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--names", nargs="+", default=list(catalog.names()))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shape", default="1024x4096")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", default="0/1", help="every how many-th entry, from which on")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    if options.rounds < 2:
        parser.error("--rounds: quantiles need at least 2")
    torch.set_num_threads(options.threads)
    first, ways = map(int, options.share.split("/"))
    rows, columns = map(int, options.shape.split("x"))
    facts = processor_facts()
    print("kernel's time over that of the compiled formula")
    print(f"{'entry':<22} {'dtype':<9} {'forward':>8} {'both':>8}")
    for name in options.names[first::ways]:
        for dtype in options.dtypes:
            torch._dynamo.reset()
            implementations, count = arms(name)
            found = measure(
                implementations,
                inputs=count,
                shape=(rows, columns),
                dtype=getattr(torch, dtype),
                device=torch.device("cpu"),
                rounds=options.rounds,
            )
            if found.refused:
                print(f"{name:<22} {dtype:<9} {found.refused[COMPILED]}", flush=True)
            ratios = {
                step: found.steps[step][KERNEL].p50 / found.steps[step][COMPILED].p50
                for step in STEPS
                if not found.refused
            }
            if ratios:
                cells = " ".join(f"{ratios[step]:>8.2f}" for step in STEPS)
                print(f"{name:<22} {dtype:<9} {cells}", flush=True)
            if options.out:
                line = {"benchmark": "entries", "entry": name, "dtype": dtype, "ratios": ratios}
                line |= {"refused": found.refused, "shape": [rows, columns]}
                line |= {"threads": options.threads, **facts}
                with options.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
