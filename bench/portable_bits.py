"""Cost of `engine.portable_bits`: processor time of a training step against the plain setting.

Models of compare.evidence_activations (1.3 M parameters) and of the demo, with xIELU, train on made-up tokens; each
run is a process of its own, and the settings take turns. Processor time of all threads, because it hardly
depends on other processes.

Run      python -m bench.portable_bits [--models evidence,demo] [--threads 1,2] [--rounds 3] [--out FILE.jsonl]
Prints   for each model, number of threads and setting: milliseconds of a step (median of the steps after the
         first 4, least of the rounds), and the ratio to plain, compiled
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.capability import environment_of, processor_facts
from stamm.base.processor import PORTABLE

STEPS, WARM = 14, 4
SETTINGS = {  # environment, compile, portable_bits, vectors of products
    "plain": ("native", "layers", False, "wide"),
    "plain, AVX2": ("avx2", "layers", False, "wide"),
    "plain, not compiled": ("native", "off", False, "wide"),
    "portable": ("native", "off", True, "wide"),
    "portable, AVX2 products": ("native", "off", True, "narrow"),
}


def measure(model: str, threads: int, setting: str) -> float:
    """Milliseconds of processor time of a step, in this process."""
    from bench.plan_time import train
    from stamm.engine.trainer import Trainer
    from stamm.models import fixed_order_products
    from stamm.recipes.comparisons import evidence_activations
    from stamm.recipes.demo import demo

    _, compiled, portable, vectors = SETTINGS[setting]
    if vectors == "narrow":
        fixed_order_products._WIDE_FLAGS = {"none"}
    study: Any = {"evidence": evidence_activations, "demo": demo}[model]()
    (arm,) = (arm for arm in study.arms if arm.name == "xielu")
    base = study.pretrain
    engine = replace(
        base.engine, compile=compiled, portable_bits=portable, threads=threads, kernels="stamm",
        checkpoint_every=STEPS + 1,
    )  # fmt: skip
    config = replace(
        base, model=replace(base.model, ffn=arm.ffn), engine=engine, sequences=STEPS * base.batch[0].size,
        schedule=replace(base.schedule, peak=1e-3), evaluate=None,
    )  # fmt: skip
    spent: list[float] = []
    step = Trainer._step

    def timed(*given: Any) -> Any:
        began = time.process_time()
        result = step(*given)
        spent.append(time.process_time() - began)
        return result

    Trainer._step = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder))
    return 1e3 * statistics.median(spent[WARM:])


def main() -> None:
    """All settings in turns, and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="evidence,demo")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--settings", default=";".join(SETTINGS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.one[2])))
        return
    for model in options.models.split(","):
        for threads in options.threads.split(","):
            least: dict[str, float] = {}
            for _ in range(options.rounds):
                for setting in options.settings.split(";"):
                    capability, _, portable, _ = SETTINGS[setting]
                    environment = {**environment_of(capability), **(PORTABLE if portable else {})}
                    words = [
                        sys.executable,
                        "-m",
                        "bench.portable_bits",
                        "--one",
                        model,
                        threads,
                        setting,
                    ]
                    done = subprocess.run(
                        words,
                        env={**os.environ, **environment},
                        stdout=subprocess.PIPE,
                        text=True,
                        check=True,
                    )
                    seconds = json.loads(done.stdout.splitlines()[-1])
                    least[setting] = min(least.get(setting, seconds), seconds)
            first = next(iter(least.values()))
            for setting, milliseconds in least.items():
                print(
                    f"{model}, {threads} threads, {setting}: {milliseconds:.1f} ms, {milliseconds / first:.2f}",
                    flush=True,
                )
            if options.out:
                facts = processor_facts()
                line = {
                    "bench": "portable_bits",
                    "model": model,
                    "threads": int(threads),
                    "ms": least,
                }
                line |= {name: facts[name] for name in ("cpu", "commit")}
                with options.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
