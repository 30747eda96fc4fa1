"""stamm's decoding beside llama.cpp in float32: processor milliseconds per token on the same weights.

stamm       `models.decode_step.DecodeStep`, one row or several
llama.cpp   one sequence, on a GGUF file in F32 exported from the same decoder; float32 KV cache
torch       `DecodeStep` with torch's operations, which decode where no kernel can be built

All decode the same given tokens after a prompt of 32, so that nothing is drawn. They take turns, round
by round, and the processor time of the steps alone counts. Before they are timed, their logits must agree.

Models: "llama" is SwiGLU, "apertus" xIELU with QK-norm. With --experts the arms are a model with experts,
with a random router, and the dense model of the same matrices; with --rank a model whose feed-forward matrices have that rank, and
the same with these multiplied out.

Run      python -m bench.decode [--models llama apertus] [--sizes 17M 110M] [--rows 1 2 4 8] [--threads 1]
         [--rounds 9] [--tokens 64] [--out FILE.jsonl]; with the variables of `bench.capability` for AVX2
         python -m bench.decode --sizes 126M --rows 1 --experts 8 4
         python -m bench.decode --sizes 110M --rank 384
Prints   medians and ratios; with --out appends one JSON line per model and number of rows, with the
         machine and the commit
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.capability import processor_facts
from bench.trainers import Size, model_config
from stamm.export.gguf_file import write_gguf
from stamm.export.gguf_tokenizer import GgufTokenizer
from stamm.export.llama_cpp import LlamaCpp
from stamm.models.config import Experts, LowRank, Structured
from stamm.models.decode_layer import TorchStack
from stamm.models.decode_step import DecodeStep, run_prompts, stack_weights
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.flops import count_parameters

SIZES = {
    "tiny": Size(512, 64, 2, 160, 1),
    "17M": Size(8192, 384, 6, 1024, 1),
    "110M": Size(16384, 768, 12, 2048, 1),
    "126M": Size(16384, 768, 16, 2048, 1),  # tied embeddings
}
PROMPT = 32  # tokens
CLOSE = 1e-4  # of the largest logit
GOAL, CARVED_GOAL = 1.05, 1 / 1.3
Arm = Callable[[list[int]], tuple[float, Tensor]]


def write_model(path: Path, decoder: Decoder) -> None:
    """The decoder as a GGUF file in F32, with a vocabulary of made-up words."""
    words = [f"w{index}" for index in range(decoder.config.vocab_size)]
    types = [3 if index < 3 else 1 for index in range(len(words))]  # control, normal
    tokenizer = GgufTokenizer(
        pre="gpt-2",
        tokens=words,
        types=types,
        merges=["w 0"],
        begin=1,
        pad=0,
        add_begin=False,
        ends=[2],
    )
    write_gguf(path, tokenizer, decoder, "F32")


class Stamm:
    """Rows of one decoder; each decodes the same tokens.

    kernel   False: by torch's operations
    """

    def __init__(self, decoder: Decoder, rows: int, prompt: list[int], kernel: bool) -> None:
        self._states = run_prompts(decoder, [prompt])
        self._step, self._rows = DecodeStep(decoder, rows), rows
        if not kernel:
            self._step._stack = TorchStack(stack_weights(decoder), rows)

    def __call__(self, tokens: list[int]) -> tuple[float, Tensor]:
        """Processor seconds of the steps, and the first row's logits after the last."""
        for row in range(self._rows):
            self._step.free(row)
        for row in range(self._rows):
            self._step.fill(row, self._states, 0)
        began = time.process_time()
        for token in tokens:
            logits_BV = self._step(torch.full((self._rows,), token))
        return time.process_time() - began, logits_BV[0]


class Llama:
    """llama.cpp on the exported file."""

    def __init__(self, path: Path, prompt: list[int], longest: int) -> None:
        self._engine, self._prompt = LlamaCpp(path, longest), prompt

    def __call__(self, tokens: list[int]) -> tuple[float, Tensor]:
        """As `Stamm`."""
        self._engine._run(self._prompt, 0, every=False)
        began = time.process_time()
        for index, token in enumerate(tokens):
            logits_1V = self._engine._run([token], len(self._prompt) + index, every=False)
        return time.process_time() - began, torch.from_numpy(logits_1V)[0]


def measured(name: str, size: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The times of all arms on one model, by number of rows.

    Raises   SystemExit when they compute different things.
    """
    config = replace(model_config(name, SIZES[size]), tied_embeddings=size == "126M")
    if options.rank:
        ffn = replace(config.ffn, linear=LowRank(rank=options.rank))
        config = replace(config, ffn=ffn, structured=Structured(keep_first=False))
    decoder = build_decoder(config, seed=1).eval()
    random = torch.Generator().manual_seed(0)
    longest = PROMPT + options.tokens
    tokens = torch.randint(4, decoder.config.vocab_size, (longest,), generator=random).tolist()
    prompt, tokens = tokens[:PROMPT], tokens[PROMPT:]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        if not (options.experts or options.rank):
            write_model(path, decoder)
        for rows in options.rows:
            arms: dict[str, Arm] = {"stamm": Stamm(decoder, rows, prompt, True)}
            if options.experts:
                experts = Experts(count=options.experts[0], active=options.experts[1])
                carved = with_experts(decoder, experts)
                arms = {"carved": Stamm(carved, rows, prompt, True), "dense": arms["stamm"]}
                arms["torch"] = Stamm(carved, rows, prompt, False)
            elif options.rank:
                arms = {
                    "factors": arms["stamm"],
                    "merged": Stamm(decoder.merged(), rows, prompt, True),
                }
                arms["torch"] = Stamm(decoder, rows, prompt, False)
            else:
                if rows == 1:
                    arms["llama.cpp"] = Llama(path, prompt, longest)
                arms["torch"] = Stamm(decoder, rows, prompt, False)
            lines.append(timed(arms, tokens, options.rounds, f"{name} {size}") | {"rows": rows})
    facts = {
        "benchmark": "decode",
        "model": name,
        "size": size,
        "parameters": count_parameters(decoder.config).total,
        "prompt": PROMPT,
        "tokens": options.tokens,
        "threads": options.threads,
        **({"experts": options.experts} if options.experts else {}),
        **({"rank": options.rank} if options.rank else {}),
    }
    return [facts | line for line in lines]


def timed(arms: dict[str, Arm], tokens: list[int], rounds: int, name: str) -> dict[str, Any]:
    """Milliseconds of a step, of each arm and round after one that is not counted, and ratios."""
    first, *others = arms
    expected = arms[first](tokens)[1]
    for arm, run in arms.items():
        logits = run(tokens)[1]
        error = float((logits - expected).abs().max() / expected.abs().max())
        if not error < CLOSE and arm != "dense":
            raise SystemExit(f"{first} and {arm} differ by {error:.1e} on {name}: nothing is timed")
    spent: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm, run in arms.items():
            spent[arm].append(1e3 * run(tokens)[0] / len(tokens))
    return {
        "ms": {arm: statistics.median(times) for arm, times in spent.items()},
        "over": {  # times that of the arm
            arm: statistics.median(a / b for a, b in zip(spent[first], spent[arm], strict=True))
            for arm in others
        },
        "rounds_ms": spent,
    }


def with_experts(dense: Decoder, experts: Experts) -> Decoder:
    """The decoder of the same matrices with experts, which a random router chooses."""
    config = replace(dense.config, ffn=replace(dense.config.ffn, experts=experts))
    decoder = build_decoder(config, seed=2).eval()
    decoder.load_state_dict(dense.state_dict(), strict=False)
    return decoder


def main() -> None:
    """Take turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--models", nargs="+", choices=("llama", "apertus"), default=["llama", "apertus"]
    )
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=["17M", "110M"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--experts", nargs=2, type=int, metavar=("COUNT", "ACTIVE"))
    parser.add_argument("--rank", type=int, help="of all feed-forward matrices")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    facts = processor_facts()
    print(f"{options.tokens} tokens after {PROMPT}, {options.threads} threads; processor ms a step")
    parts = ("stamm", "llama.cpp", "torch")
    if options.experts or options.rank:
        parts = ("factors", "merged", "torch") if options.rank else ("carved", "dense", "torch")
    print(f"{'model':<14} rows" + "".join(f"{arm:>10}" for arm in parts), end="")
    goal = CARVED_GOAL if options.experts else 1.0 if options.rank else GOAL
    print("".join(f"{'/ ' + arm:>13}" for arm in parts[1:]) + f"; goal {goal:.2f}", flush=True)
    for name in options.models:
        for size in options.sizes:
            for line in measured(name, size, options):
                print(f"{name + ' ' + size:<14} {line['rows']:>4}", end="")
                print("".join(f"{line['ms'].get(arm, 0):>10.3f}" for arm in parts), end="")
                print(
                    "".join(f"{line['over'].get(arm, 0):>13.2f}" for arm in parts[1:]), flush=True
                )
                if options.out:
                    with options.out.open("a") as out:
                        out.write(json.dumps(line | facts) + "\n")


if __name__ == "__main__":
    main()
