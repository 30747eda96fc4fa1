"""Time and memory of the loss of a language model's last layer, forward and backward.

plain   all logits at once: cross_entropy(hidden @ weight.T), dropped tokens ignored
stamm   losses.linear_cross_entropy: chunk by chunk, dropped tokens left out

Same hidden states, matrix and targets, of which one in fifty is dropped as by the Goldfish mask.
The two take turns on one thread; before they are timed, their losses and gradients must agree.

Run      python -m bench.linear_cross_entropy [--rounds 5] [--quick] [--out FILE.jsonl]
Prints   a table; with --out appends one JSON line per shape with the machine and the commit
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from stamm.losses.linear_cross_entropy import linear_cross_entropy
from stamm.models.determinism import set_determinism
from stamm.runs.manifest import environment

# Tokens, vocabulary, width: the demo's, and two whose vocabularies are those of large models.
SHAPES = ((4096, 4096, 128), (1024, 32_768, 256), (1024, 131_072, 256))
QUICK = (256, 512, 32)
DTYPES = (torch.float32, torch.bfloat16)
AGREE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # relative, in the Euclidean norm
DROPPED = 50  # one token in so many
NOT_MEASURED = "Liger-Kernel's fused loss is not measured here: it is written in Triton, for GPUs."

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain(hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> Tensor:
    """Sum over the tokens whose target is not -100; every token has its logits."""
    logits_NV = (hidden_ND @ weight_VD.T).float()
    return F.cross_entropy(logits_NV, target_N, reduction="sum")


def chunked(hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> Tensor:
    """The same sum."""
    return linear_cross_entropy(hidden_ND, weight_VD, target_N).loss


ARMS: dict[str, Loss] = {"plain": plain, "stamm": chunked}


def inputs(tokens: int, vocabulary: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Hidden states, matrix, targets."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).mul_(0.02).to(dtype)
    target = torch.randint(0, vocabulary, (tokens,), generator=generator)
    target[::DROPPED] = -100
    return [hidden, weight.requires_grad_(), target]


def step(loss: Loss, data: list[Tensor]) -> list[Tensor]:
    """Loss and both gradients."""
    value = loss(*data)
    return [value, *torch.autograd.grad(value, data[:2])]


def peak_bytes(loss: Loss, data: list[Tensor]) -> int:
    """The most that a step holds at once, its results included, its inputs not."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step(loss, data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    memory = [event for event in events if event.get("name") == "[memory]"]
    memory.sort(key=lambda event: event["args"]["Ev Idx"])
    first = memory[0]["args"]
    before = first["Total Allocated"] - first["Bytes"]
    return int(max(event["args"]["Total Allocated"] for event in memory) - before)


def must_agree(data: list[Tensor]) -> None:
    """Raises   SystemExit when the two arms compute different things."""
    for ours, theirs in zip(step(chunked, data), step(plain, data), strict=True):
        error = ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()
        if not error < AGREE[data[0].dtype]:
            raise SystemExit(f"stamm and plain differ by {error:.1e}: nothing is timed")


def main() -> None:
    """Take turns and print the medians and the peaks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small: its numbers mean nothing")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    set_determinism(1)
    print(f"{'tokens':>7} {'vocabulary':>11} {'width':>6} {'dtype':<9}", end="")
    print("".join(f"{arm + ' ms':>11} {arm + ' MiB':>11}" for arm in ARMS) + f" {'time':>7}")
    for dtype in DTYPES:
        for shape in [QUICK] if options.quick else SHAPES:
            data = inputs(*shape, dtype)
            must_agree(data)
            peaks = {name: peak_bytes(loss, data) for name, loss in ARMS.items()}
            times: dict[str, list[float]] = {name: [] for name in ARMS}
            for _ in range(options.rounds):
                for name, loss in ARMS.items():
                    began = time.perf_counter()
                    step(loss, data)
                    times[name].append(time.perf_counter() - began)
            medians = {name: statistics.median(found) for name, found in times.items()}
            kind = str(dtype).removeprefix("torch.")
            ratio = medians["stamm"] / medians["plain"]
            print(f"{shape[0]:>7,} {shape[1]:>11,} {shape[2]:>6} {kind:<9}", end="")
            for name in ARMS:
                print(f"{1e3 * medians[name]:>11,.1f} {peaks[name] / 2**20:>11,.1f}", end="")
            print(f" {ratio:>7.2f}", flush=True)
            if options.out:
                line = {
                    "benchmark": "linear_cross_entropy",
                    "tokens": shape[0],
                    "vocabulary": shape[1],
                    "width": shape[2],
                    "dtype": kind,
                    "seconds": times,
                    "peak_bytes": peaks,
                    "ratio": ratio,
                    **environment(),
                }
                with options.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")
    print(NOT_MEASURED)


if __name__ == "__main__":
    main()
