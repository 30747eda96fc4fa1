"""Triton source of a pass: its graph as statements on blocks, between loops written once.

Arithmetic is IEEE: division and square root round to nearest, minimum and maximum propagate NaN. A product may be fused with a sum, which rounds once less. What Triton's language lacks,
or computes with few digits, comes from the device's own library of functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from stamm.activations.fused.graph import TRUTH, Graph

Layout = Literal["flat", "rows", "columns"]
NUMBERS = {torch.float32: "tl.float32", torch.float64: "tl.float64"}
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
}  # fmt: skip
_HEAD = '''"""One pass over memory, written by stamm.activations.fused.triton_source."""

import triton
import triton.language as tl
{functions}
'''
_FUNCTIONS = {
    False: "from triton.language.extra import libdevice as functions",
    True: "import stamm.activations.fused.interpreted as functions",
}
_ADD = '''
@triton.jit
def add(partial, added, parts, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    """(count, parts, width) -> (count, parts / TALL, width), added in float64."""
    blocks, groups = tl.cdiv(width, WIDE), tl.cdiv(parts, TALL)
    program = tl.program_id(0).to(tl.int64)
    column = (program % blocks) * WIDE + tl.arange(0, WIDE)
    group, which = program // blocks % groups, program // blocks // groups
    part = group * TALL + tl.arange(0, TALL)
    place = (which * parts + part[:, None]) * width + column[None, :]
    inside = (part[:, None] < parts) & (column[None, :] < width)
    number = tl.load(partial + place, mask=inside, other=0.0).to(tl.float64)
    place = (which * groups + group) * width + column
    tl.store(added + place, tl.sum(number, axis=0), mask=column < width)
'''


def source(
    graph: Graph, stored: torch.dtype, layout: Layout, *, parameters: int, interpreted: bool
) -> str:
    """A module with the kernel `run`, and `add` where the pass has sums.

    stored        the dtype of the tensors that are read and written
    parameters    number of trainable parameters that are passed, read or not
    layout        flat: contiguous, one number for each parameter; rows: rows and columns with
                  strides; columns: likewise, and each column has its own parameters
    interpreted   for Triton's interpreter, which has no library of device functions: these are
                  then torch's
    """
    return Writer(graph, stored, layout, parameters, interpreted).text()


def tables(graph: Graph) -> tuple[float, ...]:
    """The numbers that the kernel looks up, one table after another."""
    return tuple(number for index in graph.needed() for number in graph.nodes[index].row)


class Writer:
    """The text of one pass: its statements before and for each element, and their names."""

    def __init__(
        self,
        graph: Graph,
        stored: torch.dtype,
        layout: Layout,
        parameters: int,
        interpreted: bool,
    ) -> None:
        self.graph = graph
        self.interpreted = interpreted
        self.number = NUMBERS[graph.dtype]
        # The fast one has 22 bits less those that a large x costs, at most 7, and no subnormal
        # numbers: enough for results of 16 bits, not for float32.
        fast = stored.itemsize == 2 and graph.dtype == torch.float32
        self.exp = "functions.fast_expf" if fast else "functions.exp"
        self.layout = layout
        uniform, needed = graph.uniform(), graph.needed()
        self.before = [
            p for p in needed if p in uniform and not self._is(p, "constant", "parameter")
        ]
        self.each = [p for p in needed if p not in uniform and not self._is(p, "input")]
        self.uniform = graph.carried()
        self.carried = [self._name(p) for p in self.uniform]
        self.parameters = [self._name(p) for p in needed if self._is(p, "parameter")]
        self.given = [f"p{k}" for k in range(parameters)]
        self.read = [f"x{k}" for k in range(graph.inputs)]
        self.written = [f"y{k}" for k in range(len(graph.outputs))]
        self.summed = [f"s{k}" for k in range(len(graph.sums))]

    def text(self) -> str:
        """Its functions, as Triton compiles them."""
        run = self._flat() if self.layout == "flat" else self._rows()
        parts = [_HEAD.format(functions=_FUNCTIONS[self.interpreted])]
        if self.carried:
            results = [
                name if self._is(p, *TRUTH) else self._narrow(name, self.number)
                for p, name in zip(self.uniform, self.carried, strict=True)
            ]
            lines = [self._statement(p, torch.float64) for p in self.before]
            lines.append(f"return {', '.join(results)}")
            parts.append(function_text("prepare", [*self.parameters, "tables"], lines))
        outcome = (*self.graph.outputs, *self.graph.sums)
        results = [self._block(p, self.graph.dtype) for p in outcome]
        lines = [self._statement(p, self.graph.dtype) for p in self.each]
        lines.append(f"return {', '.join(results)}")
        parts.append(function_text("apply", [*self.read, *self.carried, "tables"], lines))
        parts.append(run)
        if self.summed:
            parts.append(_ADD)
        return "\n".join(parts)

    def _flat(self) -> str:
        takes = [*self._pointers(), "count"]
        lines = [
            "program = tl.program_id(0).to(tl.int64)",
            "first = program * BLOCK",
            "lane = tl.arange(0, BLOCK)",
            "inside = (lane < count - first) | WHOLE",
            *self._prepared(),
            *(self._load(x, f"{x}_ptr + first + lane") for x in self.read),
            self._applied(),
            *(self._store(y, f"{y}_ptr + first + lane") for y in self.written),
            *(
                f"tl.store(partial + {k} * tl.num_programs(0) + program,"
                f" tl.sum(tl.where(inside, {s}, 0.0)))"
                for k, s in enumerate(self.summed)
            ),
        ]
        return function_text("run", [*takes, *sizes_text("BLOCK", "WHOLE")], lines)

    def _rows(self) -> str:
        by_column = self.layout == "columns"
        tensors = [*self.read, *self.written]
        steps = [f"{t}_{axis}" for t in tensors for axis in ("row", "column")]
        steps += [f"{p}_column" for p in self.given if by_column]
        takes = [*self._pointers(), "rows", "columns", *steps]
        pointer = "{0}_ptr + row * {0}_row + column * {0}_column"
        loop = [
            "row = first + down + tl.arange(0, TALL)[:, None]",
            "inside = ((row < rows) & within) | WHOLE",
            *(self._load(x, pointer.format(x)) for x in self.read),
            self._applied(),
            *(self._store(y, pointer.format(y)) for y in self.written),
            *(f"added{k} += tl.where(inside, {s}, 0.0)" for k, s in enumerate(self.summed)),
        ]
        lines = [
            "program = tl.program_id(0).to(tl.int64)",
            "blocks = tl.cdiv(columns, WIDE)",
            "column = program % blocks * WIDE + tl.arange(0, WIDE)[None, :]",
            "within = column < columns",
            *self._prepared(),
            *(f"added{k} = tl.zeros((TALL, WIDE), {self.number})" for k in range(len(self.summed))),
            "first = program // blocks * ROWS",
            "for down in range(0, ROWS, TALL):",
            *(f"    {line}" for line in loop),
        ]
        for k in range(len(self.summed)):
            if by_column:
                lines.append(
                    f"tl.store(partial + ({k} * tl.cdiv(rows, ROWS) + program // blocks) * columns"
                    f" + column, tl.sum(added{k}, axis=0)[None, :], mask=within)"
                )
            else:
                lines.append(
                    f"tl.store(partial + {k} * tl.num_programs(0) + program, tl.sum(added{k}))"
                )
        return function_text("run", [*takes, *sizes_text("ROWS", "TALL", "WIDE", "WHOLE")], lines)

    def _pointers(self) -> list[str]:
        tensors = [*self.read, *self.written, *self.given]
        return [*(f"{tensor}_ptr" for tensor in tensors), "tables", "partial"]

    def _prepared(self) -> list[str]:
        pointer, mask = "{0}_ptr", ""
        if self.layout == "columns":
            pointer, mask = "{0}_ptr + column * {0}_column", ", mask=within, other=0.0"
        lines = [  # in float64 until combined with an element: terms of parameters may cancel
            f"{p} = {self._wide(f'tl.load({pointer.format(p)}{mask})', NUMBERS[torch.float64])}"
            for p in self.parameters
        ]
        if self.carried:
            taken = ", ".join([*self.parameters, "tables"])
            lines.append(f"{', '.join(self.carried)} = prepare({taken})")
        return lines

    def _wide(self, loaded: str, number: str = "") -> str:
        number = number or self.number
        if self.interpreted:  # its own conversions of bfloat16 are wrong for subnormal numbers
            return f"functions.widened({loaded}, {number})"
        return f"{loaded}.to({number})"

    def _narrow(self, name: str, number: str) -> str:
        if self.interpreted:  # and cut off what should be rounded
            return f"functions.narrowed({name}, {number})"
        return f"{name}.to({number})"

    def _load(self, name: str, pointer: str) -> str:
        return f"{name} = {self._wide(f'tl.load({pointer}, mask=inside, other=0.0)')}"

    def _store(self, name: str, pointer: str) -> str:
        stored = self._narrow(name, f"{name}_ptr.dtype.element_ty")
        return f"tl.store({pointer}, {stored}, mask=inside)"

    def _applied(self) -> str:
        made, taken = [*self.written, *self.summed], [*self.read, *self.carried, "tables"]
        return f"{', '.join(made)} = apply({', '.join(taken)})"

    def _is(self, index: int, *names: str) -> bool:
        return self.graph.nodes[index].name in names

    def _name(self, index: int) -> str:
        node = self.graph.nodes[index]
        letter = {"input": "x", "parameter": "p"}.get(node.name)
        return f"{letter}{int(node.number)}" if letter else f"v{index}"

    def _block(self, index: int, dtype: torch.dtype) -> str:
        """The operand as a value of `dtype`, whatever the other operands are."""
        node = self.graph.nodes[index]
        if node.name != "constant":
            return self._name(index)
        return f"tl.full((), {_literal(node.number)}, {NUMBERS[dtype]})"

    def _statement(self, index: int, dtype: torch.dtype) -> str:
        return f"{self._name(index)} = {self._expression(index, dtype)}"

    def _expression(self, index: int, dtype: torch.dtype) -> str:
        node = self.graph.nodes[index]
        taken = [self._block(operand, dtype) for operand in node.takes]
        single = dtype == torch.float32
        match node.name:
            case "where" | "floor" | "abs":
                return f"tl.{node.name}({', '.join(taken)})"
            case "neg":
                return f"{taken[0]} * -1.0"  # Triton's own -x is 0 - x, which loses the sign of 0
            case "isnan":
                return f"{taken[0]} != {taken[0]}"
            case "sign":
                falling = f"tl.where({taken[0]} < 0, -1.0, 0.0)"
                return f"tl.where({taken[0]} > 0, 1.0, {falling}).to({NUMBERS[dtype]})"
            case "maximum" | "minimum":
                numbers = ", ".join(taken)
                return f"tl.{node.name}({numbers}, propagate_nan=tl.PropagateNan.ALL)"
            case "exp":
                return f"{self.exp if dtype == self.graph.dtype else 'functions.exp'}({taken[0]})"
            case "div" if single:
                return f"tl.div_rn({taken[0]}, {taken[1]})"
            case "sqrt" if single:
                return f"tl.sqrt_rn({taken[0]})"
            case "gather":
                before = sum(len(self.graph.nodes[p].row) for p in self.graph.needed() if p < index)
                return f"tl.load(tables + {before} + {taken[0]}.to(tl.int32))"
            case name if name in _OPERATORS:
                return f"{taken[0]} {_OPERATORS[name]} {taken[1]}"
            case name:
                return f"functions.{name}({', '.join(taken)})"


def function_text(name: str, takes: Sequence[str], lines: Sequence[str]) -> str:
    """The text of a function that Triton compiles."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"\n@triton.jit\ndef {name}({', '.join(takes)}):\n{body}"


def sizes_text(*names: str) -> list[str]:
    """Arguments that are known when a kernel is compiled."""
    return [f"{name}: tl.constexpr" for name in names]


def _literal(number: float) -> str:
    finite = number == number and abs(number) != float("inf")
    return repr(number) if finite else f'float("{number}")'
