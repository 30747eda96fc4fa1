"""stamm's sampling beside transformers.generate: completion tokens per second on the same weights.

stamm          `models.sampling.sample`, with log-probabilities of every token
transformers   `generate(do_sample=True)` of its class with a KV cache, which reports none

16 prompts of equal length, so that transformers computes no padding; float32; temperature 1; no stop
token, so that both compute the same number of tokens. The two take turns, round by round. Before they
are timed, their most likely tokens must agree.

Models: "apertus" is xIELU with QK-norm, "llama" SwiGLU; "small" has 1.9 million parameters, "middle" 17.

Run      python -m bench.sampling [--models apertus llama] [--sizes small middle] [--threads 2]
         [--rounds 7] [--tokens 128] [--out FILE.jsonl]
Prints   medians and the fastest round; with --out appends one JSON line per model with the machine and
         the commit
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.capability import processor_facts
from bench.trainers import Size, model_config
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.flops import count_parameters
from stamm.models.hub import HubSpecialIds, hub_config, hub_state, quiet_transformers
from stamm.models.sampling import sample
from stamm.models.sampling_config import SamplingConfig

SIZES = {"small": Size(4096, 128, 4, 352, 16), "middle": Size(8192, 384, 6, 1024, 16)}
PROMPT = 32  # tokens
AGREE = 12  # tokens of each completion that are compared
GOAL = 2.0


def transformers_model(decoder: Decoder) -> Any:
    """The same weights in transformers' class."""
    with quiet_transformers() as transformers:
        plain = hub_config(decoder.config, HubSpecialIds(begin=1, end=2, pad=3))
        kind = transformers.AutoConfig.for_model(**plain)
        model = transformers.AutoModelForCausalLM.from_config(kind, dtype=torch.float32)
    model.load_state_dict(hub_state(decoder))
    return model.eval()


def ours(decoder: Decoder, prompt_BT: Tensor, tokens: int, temperature: float) -> list[list[int]]:
    """Completions by stamm, in the order of the prompts."""
    config = SamplingConfig(max_new_tokens=tokens, slots=len(prompt_BT), temperature=temperature)
    found = sorted(
        sample(decoder, prompt_BT.tolist(), config, frozenset()), key=lambda each: each.request
    )
    return [each.tokens for each in found]


@torch.no_grad()
def theirs(model: Any, prompt_BT: Tensor, tokens: int, temperature: float) -> list[list[int]]:
    """Completions by transformers, in the order of the prompts."""
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    with quiet_transformers():
        found = model.generate(
            prompt_BT,
            attention_mask=torch.ones_like(prompt_BT),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=3,
            **(drawn if temperature else {"do_sample": False}),
        )
    rows: list[list[int]] = found[:, prompt_BT.shape[1] :].tolist()
    return rows


def timed(
    arms: dict[str, Callable[[], list[list[int]]]], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Wall and processor seconds of each round, after one that does not count."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for turn in range(rounds + 1):
        for name, arm in arms.items():
            began = time.perf_counter(), time.process_time()
            arm()
            if turn:
                seconds[name].append(
                    (time.perf_counter() - began[0], time.process_time() - began[1])
                )
    return seconds


def measured(name: str, size: str, options: argparse.Namespace) -> dict[str, Any]:
    """The times of both on one model, and their ratios.

    Raises   SystemExit when the two compute different things.
    """
    decoder = build_decoder(model_config(name, SIZES[size]), seed=1).eval()
    model = transformers_model(decoder)
    random = torch.Generator().manual_seed(0)
    shape = (SIZES[size].batch, PROMPT)
    prompt_BT = torch.randint(4, decoder.config.vocab_size, shape, generator=random)
    greedy = ours(decoder, prompt_BT, AGREE, 0.0), theirs(model, prompt_BT, AGREE, 0.0)
    if greedy[0] != greedy[1]:
        raise SystemExit(f"stamm and transformers differ on {name} {size}: nothing is timed")
    seconds = timed(
        {
            "stamm": lambda: ours(decoder, prompt_BT, options.tokens, 1.0),
            "transformers": lambda: theirs(model, prompt_BT, options.tokens, 1.0),
        },
        options.rounds,
    )
    count = len(prompt_BT) * options.tokens
    wall = {arm: [wall for wall, _ in found] for arm, found in seconds.items()}
    processor = {arm: [used for _, used in found] for arm, found in seconds.items()}

    def ratio(times: dict[str, list[float]]) -> float:
        pairs = zip(times["stamm"], times["transformers"], strict=True)
        return statistics.median(theirs / ours for ours, theirs in pairs)

    return {
        "benchmark": "sampling",
        "model": name,
        "size": size,
        "parameters": count_parameters(decoder.config).total,
        "batch": len(prompt_BT),
        "prompt": PROMPT,
        "tokens": options.tokens,
        "threads": options.threads,
        "tokens_per_s": {arm: count / statistics.median(times) for arm, times in wall.items()},
        "tokens_per_s_fastest": {arm: count / min(times) for arm, times in wall.items()},
        "ratio": ratio(wall),
        "ratio_fastest": min(wall["transformers"]) / min(wall["stamm"]),
        "ratio_processor": ratio(processor),
        "seconds": wall,
        "processor_s": processor,
    }


def main() -> None:
    """Take turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--models", nargs="+", choices=("apertus", "llama"), default=["apertus", "llama"]
    )
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    facts = processor_facts()
    print(f"batch 16, {options.tokens} new tokens, {options.threads} threads; goal {GOAL}x")
    print(f"{'model':<16} {'stamm tok/s':>12} {'transf. tok/s':>14} {'ratio':>6}", end="")
    print(f" {'fastest':>8} {'processor':>10}")
    for name in options.models:
        for size in options.sizes:
            line = measured(name, size, options)
            speed = line["tokens_per_s"]
            print(f"{name + ' ' + size:<16} {speed['stamm']:>12,.0f}", end="")
            print(f" {speed['transformers']:>14,.0f} {line['ratio']:>6.2f}", end="")
            print(f" {line['ratio_fastest']:>8.2f} {line['ratio_processor']:>10.2f}", flush=True)
            if options.out:
                with options.out.open("a") as out:
                    out.write(json.dumps(line | facts) + "\n")


if __name__ == "__main__":
    main()
