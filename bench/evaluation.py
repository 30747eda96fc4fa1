"""Multiple choice by stamm's scoring beside lm-evaluation-harness' own model: items per second.

stamm     `evaluate.harness_model.HarnessModel`: the choices of a question share its context
harness   lm_eval's `hf` model on the exported folder, on the same weights

Questions are those of the shipped conversations, with the answer and three answers to other questions;
float32, log-likelihoods of every choice. The two take turns, round by round, and their log-likelihoods must
agree within 1e-5 (relative) before anything is timed.

Run      python -m bench.evaluation ARM [--items 300] [--batch 32] [--threads 2] [--rounds 5]
         [--out FILE.jsonl]
         ARM is a trained arm of a run with its export: runs/demo/arms/xielu
Prints   medians; with --out appends one JSON line with the machine and the commit
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import zstandard
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from bench.capability import processor_facts
from stamm.evaluate.harness_model import HarnessModel
from stamm.models.loading import with_tokenizer
from stamm.models.serialization import load_decoder
from stamm.runs.arms import input_of_arm

CHOICES, GOAL, TOLERANCE = 4, 2.0, 1e-5
BATCH_TOKENS = 8192


def requests(items: int) -> list[Instance]:
    """One request for each choice, question by question, as a multiple-choice task makes them."""
    packed = (resources.files("stamm.align") / "demo_data" / "align_chats.jsonl.zst").read_bytes()
    text = zstandard.ZstdDecompressor().decompress(packed, max_output_size=2**26).decode()
    pairs = [
        (turns[0]["content"], turns[1]["content"])
        for turns in (json.loads(line)["messages"] for line in text.splitlines())
        if [turn["role"] for turn in turns[:2]] == ["user", "assistant"]
    ]
    draw = random.Random(1)
    found = []
    for question, answer in draw.sample(pairs, items):
        others = [other for _, other in draw.sample(pairs, CHOICES - 1)]
        for choice in (answer, *others):
            arguments = (f"Question: {question}\nAnswer:", f" {choice}")
            found.append(Instance("loglikelihood", {}, arguments, 0))
    return found


def main() -> None:
    """Take turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("arm", type=Path)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = input_of_arm(options.arm, "tokenizer")
    decoder = load_decoder(options.arm / "model")
    model = with_tokenizer(decoder, folder)
    arms: dict[str, Any] = {
        "stamm": HarnessModel(model, BATCH_TOKENS),
        "harness": HFLM(
            pretrained=str(options.arm / "export" / "transformers"),
            device="cpu",
            dtype="float32",
            batch_size=options.batch,
            add_bos_token=True,
        ),
    }
    asked = requests(options.items)
    ask: dict[str, Callable[[], Any]] = {
        "stamm": lambda: arms["stamm"].loglikelihood(asked),
        "harness": lambda: arms["harness"].loglikelihood(asked, disable_tqdm=True),
    }
    scores = {name: [score for score, _ in one()] for name, one in ask.items()}
    worst = max(
        abs(ours - theirs) / abs(theirs) for ours, theirs in zip(*scores.values(), strict=True)
    )
    if worst > TOLERANCE:
        raise SystemExit(f"the log-likelihoods differ by {worst:.1e}: nothing is timed")
    wall: dict[str, list[float]] = {name: [] for name in arms}
    used: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        for name, one in ask.items():
            began = time.perf_counter(), time.process_time()
            one()
            wall[name].append(time.perf_counter() - began[0])
            used[name].append(time.process_time() - began[1])
    line = {
        "benchmark": "evaluation",
        "items": options.items,
        "choices": CHOICES,
        "batch": options.batch,
        "threads": options.threads,
        "largest_difference": worst,
        "items_per_s": {name: options.items / statistics.median(t) for name, t in wall.items()},
        "ratio": statistics.median(wall["harness"]) / statistics.median(wall["stamm"]),
        "ratio_fastest": min(wall["harness"]) / min(wall["stamm"]),
        "ratio_processor": statistics.median(used["harness"]) / statistics.median(used["stamm"]),
        "seconds": wall,
    }
    print(json.dumps({key: value for key, value in line.items() if key != "seconds"}, indent=1))
    print(f"goal {GOAL}x items per second")
    if options.out:
        with options.out.open("a") as out:
            out.write(json.dumps(line | processor_facts()) + "\n")


if __name__ == "__main__":
    main()
