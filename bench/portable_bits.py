"""Cost of the products of `engine.portable_bits`: processor time of a training step against the plain setting.

The model with xIELU of compare.evidence_activations (1.3 M parameters) or of the demo trains on made-up tokens. Steps
with torch's products and with those in a fixed order, for AVX-512 and for AVX2, take turns in one process; processor
time of all threads hardly depends on other processes.

Run      ATEN_CPU_CAPABILITY=avx2 python -m bench.portable_bits [--model demo] [--threads 2] [--steps 36]
         python -m bench.portable_bits --plain [--compile]: plain steps alone, with all vectors, eager or compiled
Prints   a line of JSON: milliseconds of a step, median without the first two, and least
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.plan_time import train
from stamm.activations.fused import build
from stamm.engine.trainer import Trainer
from stamm.models import fixed_order_products as products
from stamm.recipes.comparisons import evidence_activations
from stamm.recipes.demo import demo


def main() -> None:
    """Train once, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=("evidence", "demo"), default="evidence")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    kinds = ["plain"] if options.plain else ["plain", "AVX-512", "AVX2"]
    if options.steps < 3 * len(kinds):
        parser.error(
            f"--steps {options.steps}: at least {3 * len(kinds)}, of which two of each kind do not count"
        )
    study: Any = {"evidence": evidence_activations, "demo": demo}[options.model]()
    (arm,) = (arm for arm in study.arms if arm.name == "xielu")
    base = study.pretrain
    engine = replace(
        base.engine, compile="layers" if options.compile else "off", threads=options.threads,
        kernels="stamm", checkpoint_every=options.steps + 1,
    )  # fmt: skip
    config = replace(
        base, model=replace(base.model, ffn=arm.ffn), engine=engine, evaluate=None,
        sequences=options.steps * base.batch[0].size, schedule=replace(base.schedule, peak=1e-3),
    )  # fmt: skip
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    step: Any = Trainer._step

    def timed(*given: Any) -> Any:
        kind = kinds[sum(map(len, spent.values())) % len(kinds)]
        with contextlib.nullcontext() if kind == "plain" else products.fixed_order_products():
            if kind != "plain":
                text = products.source(wide=kind == "AVX-512")
                products.kernel_function = partial(build.function, text)  # type: ignore[assignment]
            began = time.process_time()
            result = step(*given)
            spent[kind].append(1e3 * (time.process_time() - began))
        return result

    trainer: Any = Trainer
    trainer._step = timed
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder))
    figures = {kind: (statistics.median(ms[2:]), min(ms[2:])) for kind, ms in spent.items()}
    facts = {"model": options.model, "threads": options.threads, "compiled": options.compile}
    print(
        json.dumps({**facts, "capability": torch.backends.cpu.get_cpu_capability(), "ms": figures})
    )


if __name__ == "__main__":
    main()
