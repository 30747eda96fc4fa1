"""Activations of tensors of any size, from one number to 2^25: ours beside what they replace.

Processor time of one thread, of calls in turns: per size, dtype and step the smallest and the median
of several rounds. The limit is 1.2 times the best of transformers' eager code, torch.compile, and
the price of F.silu (times up, for swiglu) and 10 us.

Run      python -m bench.sizes [--names xielu] [--sizes 0 10 20] [--dtypes bfloat16 float32]
         [--rounds 9] [--quick] [--out FILE.jsonl]; with both vector widths:
         python -m bench.cpu --only sizes
Prints   microseconds per call, and ours over the limit
Writes   with --out one JSON line per function, dtype, step and size
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import XIELUActivation

from bench.capability import processor_facts
from stamm.activations.benchmark import Load
from stamm.activations.fused import direct
from stamm.activations.module import build_activation
from stamm.engine.compile import separate_inductor_cache

NAMES = ("xielu", "silu", "swiglu")
SIZES = (0, 5, 10, 15, 17, 20, 22, 25)
DTYPES = ["bfloat16", "float32", "float16"]
STEPS = ("forward", "both")
FACTOR, FIXED = 1.2, 10e-6
_EAGER_UP_TO = 2**20  # elements; transformers' eager code takes ten times as long as the others
_SECONDS = 1e-3  # of a measured group of calls
_SPREAD = 2.0  # standard deviation of the inputs


@dataclass(frozen=True)
class _Arm:
    name: str
    call: Callable[..., Tensor]
    parameters: tuple[Tensor, ...] = ()
    up_to: int = 2**62


def arms(*, compile_others: bool = True) -> dict[str, tuple[int, list[_Arm]]]:
    """Per function its number of inputs and its implementations: ours, "silu" (its price), others."""
    separate_inductor_cache()
    found: dict[str, tuple[int, list[_Arm]]] = {}

    def plain_swiglu(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    for name in NAMES:
        price = plain_swiglu if name == "swiglu" else F.silu
        ours = {p: build_activation(name, precision=p) for p in ("exact", "fast")}
        rows = [_arm(f"stamm, {p}", module) for p, module in ours.items()]
        rows.append(_Arm("silu", price))
        formula: Callable[..., Tensor] = price
        if name == "xielu":
            rows.append(_arm("transformers", XIELUActivation(), _EAGER_UP_TO))
            formula = XIELUActivation()
        given = tuple(formula.parameters()) if isinstance(formula, nn.Module) else ()
        if compile_others:
            rows.append(_Arm("compiled", torch.compile(formula, dynamic=True), given))
        found[name] = (2 if name == "swiglu" else 1, rows)
    return found


def _arm(name: str, module: nn.Module, up_to: int = 2**62) -> _Arm:
    return _Arm(name, module, tuple(module.parameters()), up_to)


def limit(seconds: dict[str, float]) -> float:
    """What a call of ours may take."""
    others = [s for name, s in seconds.items() if name in ("transformers", "compiled")]
    return FACTOR * min([*others, seconds["silu"] + FIXED])


def measure(
    rows: Sequence[_Arm], inputs: int, size: int, dtype: torch.dtype, step: str, rounds: int
) -> dict[str, list[float]]:
    """Processor seconds per call, per arm one number for each round."""
    generator = torch.Generator().manual_seed(0)
    made = [(_SPREAD * torch.randn(size, generator=generator)).to(dtype) for _ in range(inputs + 1)]
    *given, weight = made
    calls: dict[str, Callable[[], object]] = {}
    for arm in rows:
        if size > arm.up_to:
            continue
        if step == "forward":
            calls[arm.name] = lambda arm=arm: arm.call(*given)  # type: ignore[misc]
        else:
            leaves = [t.detach().requires_grad_() for t in given]
            calls[arm.name] = lambda arm=arm, leaves=leaves: torch.autograd.grad(  # type: ignore[misc]
                arm.call(*leaves), [*leaves, *arm.parameters], weight
            )
    counts = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.set_grad_enabled(step == "both"):
        for name, call in calls.items():
            for _ in range(3):
                call()
            once = min(_timed(call, 1) for _ in range(3))
            counts[name] = max(1, round(_SECONDS / max(once, 1e-7)))
        names = list(calls)
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times[name].append(_timed(calls[name], counts[name]))
    return times


def _timed(call: Callable[[], object], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) / count


def main(words: Sequence[str] | None = None) -> int:
    """Measure every function, dtype, step and size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), metavar="POWER_OF_2")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES[:2])
    parser.add_argument("--names", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one size, nothing compiled")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    if options.quick:
        options.sizes, options.rounds, options.names = [3], 2, ["silu"]
    else:
        direct.prepare()
    torch.set_num_threads(1)
    facts = processor_facts()
    print("us per call, and ours over its limit")
    for name, (inputs, rows) in arms(compile_others=not options.quick).items():
        for dtype in options.dtypes if name in options.names else ():
            for step in STEPS:
                torch._dynamo.reset()  # a function is compiled for 8 cases at most, then runs uncompiled
                for power in options.sizes:
                    load = Load()
                    arguments = (inputs, 2**power, getattr(torch, dtype), step)
                    rounds = options.rounds if power <= 20 else max(options.rounds // 2, 2)
                    times = measure(rows, *arguments, rounds)
                    least = {arm: min(seconds) for arm, seconds in times.items()}
                    bound = limit(least)
                    ratios = {a: s / bound for a, s in least.items() if a.startswith("stamm")}
                    cells = "  ".join(f"{arm} {1e6 * s:,.1f}" for arm, s in least.items())
                    over = " ".join(f"{ratio:.2f}" for ratio in ratios.values())
                    print(f"{name} {dtype} {step} 2^{power}: {cells}  [{over}]", flush=True)
                    line = {"benchmark": "sizes", "function": name, "dtype": dtype, "step": step}
                    line |= {"elements": 2**power, "seconds": least, "limit": bound}
                    line |= {"median": {arm: median(s) for arm, s in times.items()}}
                    line |= {"over_limit": ratios, "threads": 1, "clock": "processor"}
                    line |= {"load": os.getloadavg()[0], "others_busy_cores": load.others()}
                    if options.out:
                        with options.out.open("a") as out:
                            out.write(json.dumps({**line, **facts}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
