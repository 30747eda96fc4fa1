"""Speed of patching grids: one forward pass a cell, batches of 32 cells, and cells that share what precedes them.

Run      python -m bench.patching [--quick] [--rounds 5]; ATEN_CPU_CAPABILITY=avx2 for narrower vectors
Prints   processor seconds of a grid (medians, in turns, one thread, random weights), their ratios, and the largest
         difference of logits from one forward pass a cell
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.observe.patch import cell_logits

Grid = dict[tuple[int, int], Tensor]
# Vocabulary, width, layers, feed-forward width, tokens
SHAPES = {
    "16M, 32 tokens": (8192, 384, 6, 1536, 32),
    "1.6M, 10 tokens": (4096, 128, 4, 384, 10),
    "1.6M, 40 tokens": (4096, 128, 4, 384, 40),
}
QUICK = {"0.1M, 6 tokens": (512, 64, 2, 128, 6)}


def main(words: Sequence[str] | None = None) -> int:
    """Time every way for every shape."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    print(torch.backends.cpu.get_cpu_capability())
    for name, shape in (QUICK if options.quick else SHAPES).items():
        _time(name, shape, options.rounds)
    return 0


def _time(name: str, shape: tuple[int, int, int, int, int], rounds: int) -> None:
    vocabulary, width, layers, ffn, tokens = shape
    config = DecoderConfig(
        vocab_size=vocabulary, d_model=width, num_layers=layers, num_heads=width // 64 * 2, max_context=64,
        ffn=PlainFFN(width=ffn),
    )  # fmt: skip
    decoder = build_decoder(config, seed=1).eval()
    generator = torch.Generator().manual_seed(0)
    clean, corrupted = torch.randint(vocabulary, (2, tokens), generator=generator).tolist()
    ways: dict[str, Callable[[], Grid]] = {
        "one a cell": lambda: _one_a_cell(decoder, clean, corrupted),
        "batches": lambda: _grid(decoder, clean, corrupted, shared=False),
        "shared": lambda: _grid(decoder, clean, corrupted, shared=True),
    }
    grids = {way: run() for way, run in ways.items()}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for way in itertools.chain.from_iterable([ways] * rounds):
        began = time.process_time()
        ways[way]()
        seconds[way].append(time.process_time() - began)
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    exact = grids["one a cell"]
    apart = max(
        float((grid[cell] - exact[cell]).abs().max()) for grid in grids.values() for cell in exact
    )
    times = ", ".join(f"{way} {median:.3f} s" for way, median in medians.items())
    ratios = [medians[way] / medians["shared"] for way in ("one a cell", "batches")]
    print(
        f"{name}: {times}; shared {ratios[0]:.2f} and {ratios[1]:.2f} times as fast; {apart:.1e} apart"
    )


def _grid(decoder: Decoder, clean: list[int], corrupted: list[int], *, shared: bool) -> Grid:
    batches = cell_logits(decoder, clean, corrupted, shared=shared)
    return {cell: row for cells, logits in batches for cell, row in zip(cells, logits, strict=True)}


@torch.no_grad()
def _one_a_cell(decoder: Decoder, clean: list[int], corrupted: list[int]) -> Grid:
    layers, states = decoder.model.layers, list[Tensor]()
    handles = [
        layer.register_forward_hook(lambda _m, _i, out: states.append(out)) for layer in layers
    ]
    decoder.model(torch.tensor([clean]))
    for handle in handles:
        handle.remove()
    grid: Grid = {}
    for number, position in itertools.product(range(len(layers)), range(len(clean))):

        def patch(
            _m: Any, _i: Any, out: Tensor, cell: tuple[int, int] = (number, position)
        ) -> Tensor:
            out = out.clone()
            out[:, cell[1]] = states[cell[0]][:, cell[1]]
            return out

        handle = layers[number].register_forward_hook(patch)
        grid[number, position] = decoder.lm_head(decoder.model(torch.tensor([corrupted]))[:, -1])[0]
        handle.remove()
    return grid


if __name__ == "__main__":
    sys.exit(main())
