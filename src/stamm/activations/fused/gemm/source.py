"""Triton source of a matrix product that ends in a pass: the activation meets the accumulator.

A program takes one tile of the result after another, neighbours first, so that what they share is
found in the cache. Products are added in float32; what follows stands in `triton_source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from stamm.activations.fused.graph import Graph
from stamm.activations.fused.triton_source import Writer, function_text, sizes_text

Written = Literal["pre", "post", "both"]
STORED = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}
SIZES = ("TALL", "WIDE", "DEEP", "GROUP", "WHOLE")


def source(
    graph: Graph,
    stored: torch.dtype,
    *,
    parameters: int,
    by_column: bool,
    descriptors: bool,
    parts: int,
    written: Written,
    interpreted: bool,
) -> str:
    """A module with the kernel `run`, and `add` where the pass has sums.

    graph         of "forward": the product is rounded to `stored` and is what f takes.
                  of "backward": the product, not rounded, is the weight, and f' takes what is read
    by_column     whether each column has its own parameters
    descriptors   tiles are moved by the GPU's own unit for tiles, which knows their edges; else by
                  pointers and masks
    parts         1, 2 or 4: the tile is finished piece by piece, in fewer registers
    written       forward only: the product as it is stored, f of it, or both
    """
    writer = _Product(
        graph, stored, parameters, by_column, descriptors, parts, written, interpreted
    )
    return writer.text()


class _Product(Writer):
    def __init__(
        self,
        graph: Graph,
        stored: torch.dtype,
        parameters: int,
        by_column: bool,
        descriptors: bool,
        parts: int,
        written: Written,
        interpreted: bool,
    ) -> None:
        layout: Literal["columns", "flat"] = "columns" if by_column else "flat"
        super().__init__(graph, stored, layout, parameters, interpreted)
        self.stored = STORED[stored]
        self.descriptors = descriptors
        self.parts = parts
        self.backward = graph.inputs == 2
        # Of the shape of the result, in the order in which the kernel takes them.
        results = {"pre": ["x0"], "post": ["y0"], "both": ["x0", "y0"]}[written]
        self.tensors = ["x1", "y0"] if self.backward else results

    def _flat(self) -> str:
        matrices = ["left", "right", *self.tensors]
        by_column = self.layout == "columns"
        takes = [
            *(f"{name}_{'tiles' if self.descriptors else 'ptr'}" for name in matrices),
            *(f"{p}_ptr" for p in self.given),
            *("tables", "partial", "rows", "columns", "depth"),
            *(f"{p}_column" for p in self.given if by_column),
        ]
        flatten = ", flatten=True" if self.descriptors else ""
        lines = [
            *([] if by_column else self._prepared()),
            "down, across = tl.cdiv(rows, TALL), tl.cdiv(columns, WIDE)",
            f"for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0){flatten}):",
            *_indented(self._tile()),
        ]
        return function_text("run", [*takes, *sizes_text(*SIZES)], lines)

    _rows = _flat

    def _tile(self) -> list[str]:
        lines = [
            "first = tile // (GROUP * across) * GROUP",
            "high = tl.minimum(down - first, GROUP)",
            "tile_row = first + tile % (GROUP * across) % high",
            "tile_column = tile % (GROUP * across) // high",
            "top, side = tile_row * TALL, tile_column * WIDE",
            "row = (top + tl.arange(0, TALL)).to(tl.int64)[:, None]",
            "total = tl.zeros((TALL, WIDE), tl.float32)",
            *self._multiplied(),
            "part0 = total",
        ]
        pieces = 1
        while pieces < self.parts:  # the last one first: its place is not another one's yet
            for k in reversed(range(pieces)):
                shape = f"(TALL, 2, WIDE // {2 * pieces})"
                halves = f"tl.permute(tl.reshape(part{k}, {shape}), (0, 2, 1))"
                lines.append(f"part{2 * k}, part{2 * k + 1} = tl.split({halves})")
            pieces *= 2
        for part in range(self.parts):
            lines += self._finished(part)
        if self.layout == "flat":
            lines += [
                f"tl.store(partial + {k} * down * across + tile_row * across + tile_column, added{k})"
                for k in range(len(self.summed))
            ]
        return lines

    def _multiplied(self) -> list[str]:
        """The products of a tile. The right matrix is (N, K) in forward and (K, N) in backward."""
        if self.descriptors:
            place = "[k, side]" if self.backward else "[side, k]"
            lines = ["a = left_tiles.load([top, k])", f"b = right_tiles.load({place})"]
            before = []
        else:
            before = ["across_row = (side + tl.arange(0, WIDE)).to(tl.int64)"]
            place, edge = (
                ("deep[:, None] * columns + across_row[None, :]", "across_row[None, :] < columns")
                if self.backward
                else (
                    "across_row[:, None] * depth + deep[None, :]",
                    "across_row[:, None] < columns",
                )
            )
            inner = "deep[:, None]" if self.backward else "deep[None, :]"
            lines = [
                "deep = (k + tl.arange(0, DEEP)).to(tl.int64)",
                "a = tl.load(left_ptr + row * depth + deep[None, :],"
                " mask=((row < rows) & (deep[None, :] < depth)) | WHOLE, other=0.0)",
                f"b = tl.load(right_ptr + {place},"
                f" mask=(({edge}) & ({inner} < depth)) | WHOLE, other=0.0)",
            ]
        if self.interpreted:  # it multiplies the bits of a bfloat16 as a whole number
            lines += [f"{m} = functions.widened({m}, tl.float32)" for m in ("a", "b")]
        lines.append(f"total = tl.dot(a, {'b' if self.backward else 'b.T'}, total)")
        return [*before, "for k in range(0, depth, DEEP):", *_indented(lines)]

    def _finished(self, part: int) -> list[str]:
        """The pass on one part of a tile: what is read, applied, written and summed."""
        wide = f"WIDE // {self.parts}"
        lines = [
            f"start = side + {part} * ({wide})",
            f"column = (start + tl.arange(0, {wide})).to(tl.int64)[None, :]",
            "within = column < columns",
            "inside = ((row < rows) & within) | WHOLE",
            *(self._prepared() if self.layout == "columns" else []),
        ]
        if self.backward:
            lines += [f"x0 = part{part}", self._taken("x1")]
        else:
            narrow = f"part{part}.to({self.stored})"
            if self.interpreted:
                narrow = f"functions.narrowed(part{part}, {self.stored})"
            lines.append(f"x0 = {narrow}")
            if "x0" in self.tensors:
                lines.append(self._put("x0", "x0"))
            lines.append(f"x0 = {self._wide('x0')}")
        if "y0" in self.tensors:
            narrow = f"y0.to({self.stored})"
            if self.interpreted:
                narrow = f"functions.narrowed(y0, {self.stored})"
            lines += [self._applied(), self._put("y0", narrow)]
        for k, s in enumerate(self.summed):
            added = f"tl.where(inside, {s}, 0.0)"
            if self.layout == "columns":
                place = f"({k} * down + tile_row).to(tl.int64) * columns + column"
                sums = f"tl.sum({added}, axis=0)[None, :]"
                lines.append(f"tl.store(partial + {place}, {sums}, mask=within)")
            else:
                lines.append(f"added{k} {'+' if part else ''}= tl.sum({added})")
        return lines

    def _taken(self, name: str) -> str:
        if self.descriptors:
            return f"{name} = {self._wide(f'{name}_tiles.load([top, start])')}"
        return self._load(name, f"{name}_ptr + row * columns + column")

    def _put(self, name: str, value: str) -> str:
        if self.descriptors:
            return f"{name}_tiles.store([top, start], {value})"
        return f"tl.store({name}_ptr + row * columns + column, {value}, mask=inside)"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]
