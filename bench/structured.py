"""Training steps with structured feed-forward matrices beside dense ones: time, FLOPs and parameters of each form.

One xIELU decoder; ranks are d_model / 2 and d_model / 4, as in arXiv 2406.16450, and every layer is structured. Forms take turns, round by round;
the first steps of a turn are not counted. Decoding: `python -m bench.decode --rank`.

Run      python -m bench.structured [--size 17M] [--rounds 5] [--steps 3] [--threads 1] [--out FILE.jsonl]
Prints   medians and ratios; with --out appends one JSON line per form with the machine and the commit
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from bench.capability import processor_facts
from bench.decode import SIZES
from bench.trainers import model_config
from bench.training_step import Ours, made_up_tokens
from stamm.models.config import BlockDense, BlockShuffle, Dense, Linear, LowRank, Structured
from stamm.models.determinism import set_determinism
from stamm.models.flops import count_parameters, training_flops
from stamm.recipes.demo import demo

WARM_UP, ROWS = 1, 4


def forms(width: int) -> dict[str, Linear]:
    """Forms for a d_model of `width`."""
    found: dict[str, Linear] = {"dense": Dense()}
    for share in (2, 4):
        found[f"low rank, 1/{share}"] = LowRank(rank=width // share)
        found[f"block dense, 1/{share}"] = BlockDense(blocks=2, rank=width // share)
        found[f"block shuffle, 1/{share}"] = BlockShuffle(blocks=share)
    return found


def main() -> None:
    """Take turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=tuple(SIZES), default="17M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    set_determinism(options.threads)
    base = model_config("apertus", SIZES[options.size])
    run = demo().pretrain
    runs, models = {}, {}
    for name, form in forms(base.d_model).items():
        model = replace(
            base, ffn=replace(base.ffn, linear=form), structured=Structured(keep_first=False)
        )
        models[name] = model
        config = replace(run, model=model, batch=(replace(run.batch[0], size=ROWS),))
        runs[name] = Ours(config, made_up_tokens(config, 8))
    spent: dict[str, list[float]] = {name: [] for name in runs}  # of a step, by round
    for ours in runs.values():
        ours.turn(1)  # compiles
    for _ in range(options.rounds):
        for name, ours in runs.items():
            times = ours.turn(options.steps + WARM_UP)[WARM_UP:]
            spent[name].append(statistics.median(times))
    facts = processor_facts()
    tokens = ROWS * run.context
    dense = training_flops(base, run.context)
    print(f"{'form':<20} {'ms a step':>10} {'of dense':>9} {'FLOPs':>7} {'parameters':>11}")
    for name, model in models.items():
        pairs = zip(spent[name], spent["dense"], strict=True)
        share = statistics.median(mine / other for mine, other in pairs)
        flops = training_flops(model, run.context) / dense
        count = count_parameters(model).total
        milliseconds = 1e3 * statistics.median(spent[name])
        print(f"{name:<20} {milliseconds:>10.1f} {share:>9.2f} {flops:>7.2f} {count:>11,}")
        if options.out:
            line = {
                "benchmark": "structured", "size": options.size, "form": name, "tokens": tokens,
                "threads": options.threads, "ms": milliseconds, "of_dense": share, "flops": flops,
                "parameters": count, **facts,
            }  # fmt: skip
            with options.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
