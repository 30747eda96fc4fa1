"""Time of training runs beside what `stamm plan RECIPE --like RUN` says of them.

Each case is a process of its own that trains a model of another size, as `stamm run` does, on tokens
that are made up. Then each case is planned by the speed of each other, and by its own.

Run      python -m bench.plan_time [--cases small,large] [--seconds 30] [--threads 2] [--no-compile]
         [--out FILE.jsonl]
Prints   seconds of a run's steps, then predicted/measured by each run and by all others together: of all
         steps, and without the first, in which layers are compiled
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.plan_memory import MadeUp
from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.flops import training_flops
from stamm.optim.schedules import BatchStage
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan import plan
from stamm.pretrain.throughput_model import measured_throughput
from stamm.runs.job import Workspace
from stamm.runs.manifest import environment
from stamm.runs.metrics import read_metrics

FEWEST = 12  # steps of a run
FLOPS = 30e9  # a thread's, about: it decides how long the runs are, and nothing that is printed


def cases(seconds: float, threads: int) -> dict[str, PretrainConfig]:
    """Models of 2 to 30 million parameters, other batches and lengths, for about `seconds` each."""
    small = DecoderConfig(
        vocab_size=4096, d_model=192, num_layers=4, num_heads=4, num_kv_heads=2, max_context=1024,
        ffn=PlainFFN(width=576, activation="xielu"),
    )  # fmt: skip
    middle = replace(small, d_model=256, num_layers=6, vocab_size=8192, ffn=PlainFFN(width=1024))
    large = replace(middle, d_model=384, num_heads=6, ffn=PlainFFN(width=1536))
    base = PretrainConfig(
        context=256,
        batch=(BatchStage(size=8),),
        goldfish=None,
        engine=EngineConfig(device="cpu", threads=threads, checkpoint_every=1000),
    )
    asked = {
        "small": replace(base, model=small),
        "middle": replace(base, model=middle),
        "large": replace(base, model=large),
        "widest": replace(base, model=replace(large, d_model=512, num_heads=8, num_layers=8)),
        "swiglu": replace(base, model=replace(middle, ffn=GatedFFN(width=704))),
        "short batch": replace(base, model=middle, batch=(BatchStage(size=2),)),
        "long context": replace(base, model=middle, context=1024, batch=(BatchStage(size=4),)),
    }
    return {name: _as_long(config, seconds * FLOPS * threads) for name, config in asked.items()}


def _as_long(config: PretrainConfig, flops: float) -> PretrainConfig:
    size = config.batch[0].size
    steps = round(flops / (size * training_flops(config.model, config.context)))
    return replace(config, sequences=size * max(steps, FEWEST))


def train(config: PretrainConfig, folder: Path) -> None:
    """Train as a run does, and leave what it leaves."""
    stream = MadeUp(config.total_sequences() * config.context + 1, config.model.vocab_size)
    job.open_stream = lambda *_: stream
    job.run(config, Workspace(folder=folder))


def main() -> None:
    """One process for each case, and a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default="")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="where the runs are left; else they go")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = cases(options.seconds, options.threads)
    if options.no_compile:
        known = {
            name: replace(config, engine=replace(config.engine, compile="off"))
            for name, config in known.items()
        }
    if options.one:
        train(known[options.one], options.keep)
        return
    names = options.cases.split(",") if options.cases else list(known)
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: (options.keep or Path(temporary)) / name for name in names}
        for name, folder in folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "log" / "timing.json").exists():
                words = ["--one", name, "--keep", str(folder), "--seconds", str(options.seconds)]
                words += ["--threads", str(options.threads)]
                words += ["--no-compile"] * options.no_compile
                subprocess.run([sys.executable, "-m", "bench.plan_time", *words], check=True)
        _table({name: known[name] for name in names}, folders, options.out)


def _table(known: dict[str, PretrainConfig], folders: dict[str, Path], out: Path | None) -> None:
    heads = [*known, "all others"]
    print(f"{'planned':<14} {'steps':>5} {'seconds':>8} " + " ".join(f"{h:>13}" for h in heads))
    for name, config in known.items():
        seconds = [
            line["speed/seconds"] for line in read_metrics(folders[name] / "log/speed.jsonl")
        ]
        told = {}
        for head in heads:
            likes = (
                [folders[head]] if head in folders else [f for n, f in folders.items() if n != name]
            )
            pace = measured_throughput(likes, "", config, None)
            if pace is not None:
                planned = plan(config, None, pace=pace)["time"]["seconds"]
                steady = (planned - pace.begin_seconds) * (1 - 1 / len(seconds))
                told[head] = planned / sum(seconds), steady / sum(seconds[1:])
        cells = " ".join(f"{whole:>6.3f} {steady:>6.3f}" for whole, steady in told.values())
        print(f"{name:<14} {len(seconds):>5} {sum(seconds):>8.1f} {cells}", flush=True)
        if out:
            line = {"benchmark": "plan_time", "case": name, "seconds": seconds, "ratios": told}
            with out.open("a") as file:
                file.write(json.dumps({**line, **environment()}) + "\n")
    pace = measured_throughput(list(folders.values()), "", next(iter(known.values())), None)
    assert pace is not None
    print(
        f"all together: products {pace.flops_per_s / 1e9:.1f} GFLOP/s, besides"
        f" {pace.bytes_per_s / 1e9:.2f} GB/s: balance {pace.flops_per_s / pace.bytes_per_s:.1f}"
    )


if __name__ == "__main__":
    main()
