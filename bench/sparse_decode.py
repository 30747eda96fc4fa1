"""Feed-forward blocks at batch 1 that skip hidden units, beside the dense products of the decoding kernel.

A unit that is 0 needs no column of the last matrix, stored transposed as rows; of a gated block no row of
`up` either, as the gate decides. Which units are skipped is random, others in each layer and step, and
known after the first product; what is multiplied is compared with torch. `whole step` is the gain of
`DecodeStep` if its blocks took the time of these.

Run      python -m bench.sparse_decode [--sizes 17M 126M] [--densities 1 .5 .3 .1] [--rounds 7]
         [--out FILE.jsonl]
Prints   processor milliseconds of all blocks by density, the gain over dense, and the density without gain
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import mmap
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.capability import processor_facts
from stamm.activations.fused import build
from stamm.models import decode_kernel
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decode_step import DecodeStep, run_prompts
from stamm.models.decoder import build_decoder

SIZES = {"tiny": (64, 256, 2, 512), "17M": (384, 1536, 6, 8192), "126M": (768, 3072, 12, 16384)}
_C = ctypes.c_void_p
_SOURCE = """
using namespace stamm;
// y += h[i] rows[i] for the units of a list; the rows of later ones are fetched meanwhile.
static void add_rows(const float* h, const int64_t* units, int64_t count, const float* rows,
                     int64_t width, float* y) {
  std::memset(y, 0, width * sizeof(float));
  for (int64_t n = 0; n < count; n += 4) {
    const float* row[4];
    V by[4];
    for (int k = 0; k < 4; ++k) {
      const bool inside = n + k < count;
      row[k] = rows + units[inside ? n + k : n] * width;
      by[k] = full<V>(inside ? h[units[n + k]] : 0.0f);
    }
    for (int64_t d = 0; d < width; d += wide) {
      V sum = at(y + d);
      for (int k = 0; k < 4; ++k) sum += by[k] * at(row[k] + d);
      store(sum, y + d);
      if (d % 16 == 0 && n + 4 < count)
        for (int k = 0; k < 4; ++k)
          __builtin_prefetch(rows + units[std::min(n + 4 + k, count - 1)] * width + d, 0, 3);
    }
  }
}
// up: NULL in a plain block; first is packed, up and down are rows of a unit; dense: down is packed, too.
extern "C" void blocks(const float* x, const float* first, const float* up, const float* down,
                       int64_t layers, int64_t width, int64_t hidden, const int64_t* units,
                       int64_t count, float* h, float* g, float* y) {
  const int64_t size = width * hidden;
  for (int64_t n = 0; n < layers; ++n) {
    const int64_t* active = units + n * hidden;
    multiply<1>({{Matrix{first + n * size, nullptr, hidden, width, 1}, h, hidden}}, x, width, 1, 1);
    if (count < 0) {
      if (up) {
        multiply<1>({{Matrix{up + n * size, nullptr, hidden, width, 1}, g, hidden}}, x, width, 1, 1);
        for (int64_t i = 0; i < hidden; ++i) h[i] = std::max(h[i], 0.0f) * g[i];
      } else {
        for (int64_t i = 0; i < hidden; ++i) h[i] = std::max(h[i], 0.0f);
      }
      multiply<1>({{Matrix{down + n * size, nullptr, width, hidden, 1}, y, width}}, h, hidden, 1, 1);
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t unit = active[i];
      float value = std::max(h[unit], 0.0f);
      if (up) {
        const float *row = up + n * size + unit * width;
        const float *later = up + n * size + active[std::min(i + 2, count - 1)] * width;
        V part[4] = {};
        for (int64_t d = 0; d < width; d += 4 * wide)
          for (int k = 0; k < 4; ++k) {
            part[k] += at(x + d + k * wide) * at(row + d + k * wide);
            __builtin_prefetch(later + d + k * wide, 0, 3);
          }
        value *= sum((part[0] + part[1]) + (part[2] + part[3]));
      }
      h[unit] = value;
    }
    add_rows(h, active, count, down + n * size, width, y);
  }
}
"""


def pages(count: int) -> Tensor:
    """`count` random numbers in large pages, as the kernel's matrices."""
    held = mmap.mmap(-1, 4 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(held, dtype=torch.float32).normal_(std=0.02)


def step_ms(size: str, gated: bool, rounds: int) -> float:
    """Processor milliseconds of a whole step of one row."""
    width, hidden, layers, vocab = SIZES[size]
    block = GatedFFN(width=hidden * 2 // 3) if gated else PlainFFN(width=hidden, activation="relu2")
    config = DecoderConfig(
        vocab_size=vocab, d_model=width, num_layers=layers, num_heads=width // 64 or 1,
        num_kv_heads=width // 64 or 1, ffn=block, max_context=512,
    )  # fmt: skip
    decoder = build_decoder(config, seed=1).eval()
    step, states = DecodeStep(decoder, 1), run_prompts(decoder, [list(range(4, 36))])
    spent = []
    for _ in range(rounds + 1):
        step.free(0)
        step.fill(0, states, 0)
        began = time.process_time()
        for _ in range(8):
            step(torch.tensor([7]))
        spent.append((time.process_time() - began) / 8)
    return 1e3 * statistics.median(spent[1:])


def measured(size: str, gated: bool, densities: list[float], rounds: int) -> dict[str, Any]:
    """Milliseconds of all blocks, dense and by density, in turns."""
    width, hidden, layers, _ = SIZES[size]
    hidden = hidden * 2 // 3 if gated else hidden
    count = layers * width * hidden
    first, up, down = pages(count), pages(count) if gated else None, pages(count)
    x, h, g, y = (torch.randn(n) for n in (width, hidden, hidden, width))
    header = decode_kernel._SOURCE.read_text(encoding="utf-8")
    function = build.function(header + _SOURCE, "blocks")
    random = torch.Generator().manual_seed(0)

    def run(density: float | None) -> float:
        active = -1 if density is None else round(density * hidden)
        units = torch.stack(
            [
                torch.randperm(hidden, generator=random)[: max(active, 0)].sort()[0]
                for _ in range(layers)
            ]
        )
        listed = torch.zeros(layers, hidden, dtype=torch.int64)
        listed[:, : units.shape[1]] = units
        tensors = (first, up, down)
        began = time.process_time()
        function(
            _C(x.data_ptr()),
            *(_C(None if t is None else t.data_ptr()) for t in tensors),
            *map(ctypes.c_int64, (layers, width, hidden)),
            _C(listed.data_ptr()),
            ctypes.c_int64(active),
            *(_C(t.data_ptr()) for t in (h, g, y)),
        )
        taken = 1e3 * (time.process_time() - began)
        if active >= 0:
            rows = down.view(layers, hidden, width)[-1, units[-1]]
            torch.testing.assert_close(y, h[units[-1]] @ rows, rtol=1e-4, atol=1e-5)
        return taken

    choices = [None, *densities]
    spent: dict[float | None, list[float]] = {choice: [] for choice in choices}
    for turn in range(4 * rounds + 1):
        for choice in choices:
            taken = run(choice)
            if turn:
                spent[choice].append(taken)
    ms = {choice: statistics.median(times) for choice, times in spent.items()}
    step, dense = step_ms(size, gated, rounds), ms[None]
    line = {
        d: {"ms": ms[d], "blocks": dense / ms[d], "whole": step / (step - dense + ms[d])}
        for d in densities
    }
    return {
        "benchmark": "sparse_decode", "size": size, "gated": gated, "width": width, "hidden": hidden,
        "layers": layers, "dense_ms": dense, "step_ms": step, "densities": line,
        "break_even": break_even(dense, [(d, ms[d]) for d in densities]),
    }  # fmt: skip


def break_even(dense: float, times: list[tuple[float, float]]) -> float | None:
    """The density at which skipping takes as long as dense, between two that were measured; None: no gain."""
    ordered = sorted(times)
    if ordered[0][1] >= dense:
        return None
    for (low, fast), (high, slow) in itertools.pairwise(ordered):
        if slow >= dense:
            return low + (high - low) * (dense - fast) / (slow - fast)
    return ordered[-1][0]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=["17M", "126M"])
    parser.add_argument("--densities", nargs="+", type=float, default=[1.0, 0.5, 0.3, 0.1])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts = processor_facts()
    print("size  block  density     ms  blocks  whole step", flush=True)
    for size in options.sizes:
        for gated in (False, True):
            line = measured(size, gated, options.densities, options.rounds)
            name = f"{size:<5} {'gated' if gated else 'plain'}"
            print(f"{name}   dense {line['dense_ms']:>7.3f}    1.00  of {line['step_ms']:.3f} ms")
            for density, row in line["densities"].items():
                print(
                    f"{name} {density:>7} {row['ms']:>7.3f} {row['blocks']:>7.2f} {row['whole']:>7.2f}"
                )
            print(f"{name} as fast as dense at density {line['break_even']}", flush=True)
            if options.out:
                with options.out.open("a") as out:
                    out.write(json.dumps(line | facts) + "\n")


if __name__ == "__main__":
    main()
