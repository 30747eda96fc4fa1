"""Processor time of attention within packed documents on a CPU, forward and backward.

torch   scaled_dot_product_attention with what `models.attention_mask.document_mask` adds to scores
stamm   models.fused_attention

Same queries, keys, values, documents of random lengths (geometric), float32, one thread. The two
take turns; before they are timed, their outputs and gradients must agree.

Run      python -m bench.attention [--rounds 9] [--quick] [--out FILE.jsonl]
Prints   a table of medians; with --out appends one JSON line per shape with the machine and the
         commit. `open` is the share of the T x T scores that a query may look at.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.models.attention_mask import document_mask
from stamm.models.determinism import set_determinism
from stamm.models.fused_attention import fused_attention, unavailable_reason
from stamm.runs.manifest import environment

# Rows, heads, tokens, head width, tokens of a document on average.
SHAPES = ((16, 4, 256, 32, 200), (16, 4, 256, 64, 200), (2, 6, 2048, 64, 500))
QUICK = (2, 2, 64, 32, 20)
AGREE = 1e-5  # relative, in the Euclidean norm
WARM_UP = 2

Step = Callable[[], tuple[Tensor, ...]]


def arms(
    rows: int, heads: int, tokens: int, width: int, mean: int
) -> tuple[dict[str, Step], float]:
    """A step of each arm, and the share of scores that are open."""
    random = torch.Generator().manual_seed(0)
    made = [torch.randn(rows, tokens, heads, width, generator=random) for _ in range(4)]
    q, k, v, d_o = (x.transpose(1, 2) for x in made)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    document = (torch.rand(rows, tokens, generator=random) < 1 / mean).cumsum(1)
    place = torch.arange(tokens)
    mask = document_mask(document, document, place, place, torch.float32)

    def step(o: Tensor) -> tuple[Tensor, ...]:
        return o.detach(), *torch.autograd.grad(o, inputs, d_o)

    return {
        "torch": lambda: step(F.scaled_dot_product_attention(q, k, v, mask)),
        "stamm": lambda: step(fused_attention(q, k, v, document)),
    }, float(mask.isfinite().float().mean())


def must_agree(steps: dict[str, Step]) -> None:
    """Raises   SystemExit when the two arms compute different things."""
    for ours, theirs in zip(steps["stamm"](), steps["torch"](), strict=True):
        error = float((ours.double() - theirs.double()).norm() / theirs.double().norm())
        if not error < AGREE:
            raise SystemExit(f"stamm and torch differ by {error:.1e}: nothing is timed")


def main() -> None:
    """Take turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small: its numbers mean nothing")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    why = unavailable_reason()
    if why is not None:
        raise SystemExit(f"there is nothing to compare: {why}")
    set_determinism(1)
    names = ("rows", "heads", "tokens", "width", "document")
    print(
        "".join(f"{name:>9}" for name in names),
        f"{'open':>6} {'torch ms':>9} {'stamm ms':>9}",
        end="",
    )
    print(f" {'time':>5}")
    for shape in [QUICK] if options.quick else SHAPES:
        steps, share = arms(*shape)
        must_agree(steps)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(WARM_UP + options.rounds):
            for name, step in steps.items():
                began = time.process_time()
                step()
                if turn >= WARM_UP:
                    times[name].append(time.process_time() - began)
        medians = {name: statistics.median(found) for name, found in times.items()}
        ratio = medians["stamm"] / medians["torch"]
        print("".join(f"{number:>9,}" for number in shape), f"{share:>6.2f}", end="")
        for name in steps:
            print(f" {1e3 * medians[name]:>9.1f}", end="")
        print(f" {ratio:>5.2f}", flush=True)
        if options.out:
            line = {
                "benchmark": "attention",
                **dict(zip(names, shape, strict=True)),
                "open": share,
                "seconds": times,
                "ratio": ratio,
                **environment(),
            }
            with options.out.open("a") as out:
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
