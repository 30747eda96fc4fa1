"""Statements of a graph in a language, and the parts that all emitted texts have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stamm.activations.codegen.kernel_lookup import kernel_of, kernel_text
from stamm.activations.emitters.program import Program, lowered
from stamm.activations.fused.graph import TRUTH, Graph
from stamm.activations.spec import Gated
from stamm.base.errors import ConfigError

_INFIX = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "eq": "{0} == {1}", "isnan": "{0} != {0}",
}  # fmt: skip
_CALLS = (
    "exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "abs", "floor",
    "sign", "minimum", "maximum", "erf", "erfc", "asin", "atan", "asinh", "acosh", "atan2", "pow",
)  # fmt: skip


# As `codegen.formula` states a table and its error in a kernel.
_TABLE = re.compile(r"# (The integral of .*: a table of \d+ cells),\n# (within .*?);")


def calls(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    """Operations as calls of functions with a prefix; `names` has those of other names, "" for missing ones."""
    made = dict(_INFIX)
    for call in _CALLS:
        count = 2 if call in ("minimum", "maximum", "atan2", "pow") else 1
        operands = ", ".join(f"{{{k}}}" for k in range(count))
        text = names.get(call, call)
        if text:
            made[call] = text if "{" in text else f"{prefix}{text}({operands})"
    made["where"] = names.get("where", f"{prefix}where({{0}}, {{1}}, {{2}})")
    return made


def literal(
    infinity: str, nan: str, *, single: bool = False, ending: str = ""
) -> Callable[[float], str]:
    """Writer of constants: the shortest digits that read back equal, in parentheses where negative.

    infinity, nan   their names, or "" where the language has none
    single          whether constants are rounded to float32
    Raises          ConfigError for a constant that the language lacks
    """

    def text(number: float) -> str:
        with np.errstate(over="ignore"):
            rounded = np.float32(number) if single else np.float64(number)
        if not np.isfinite(rounded):
            name = nan if np.isnan(rounded) else infinity
            if not name:
                raise ConfigError(
                    f"the language has no constant {rounded}, which this activation needs",
                    fix="Choose another target",
                )
            return f"(-{name})" if rounded < 0 else name
        digits = str(rounded)
        if not any(mark in digits for mark in ".e"):
            digits += ".0"
        return f"({digits}{ending})" if np.signbit(rounded) else f"{digits}{ending}"

    return text


@dataclass(frozen=True, kw_only=True)
class EmissionTarget:
    """A language, or a format, for the functions of an activation.

    name          as `stamm emit NAME TARGET` takes it
    ending        of its file
    comment       what begins a line of comment; "" where the text has no head of comments
    write         the module of a program, without its head
    test          a program that ends with an error where the module is wrong; None where stamm tests
                  the text only
    test_ending   of its file, after the name of the activation
    """

    name: str
    ending: str
    comment: str
    write: Callable[[Program], str | bytes]
    test: Callable[[Program], str] | None = None
    test_ending: str = ""


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """Spelling of the operations of a graph in a language.

    operations   by name of an operation, the text with {0}, {1}, {2} for its operands
    number       the literal of a constant
    assign       a statement that names a value: {name}, {value}
    assign_truth the same for a truth value; `assign` by default
    gather       the text that looks {index} up in {table}, or "": refused. `table` writes the table
    """

    target: str
    operations: Mapping[str, str]
    number: Callable[[float], str]
    assign: str
    assign_truth: str = ""
    gather: str = ""
    table: str = ""


def statements(
    graph: Graph, syntax: Syntax, inputs: Sequence[str], parameters: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """Statements in order; the names of the outputs, and of the sums.

    inputs, parameters   names or texts of what the graph reads, in order
    Raises   ConfigError for an operation that the language lacks
    """
    known = dict(syntax.operations)
    if syntax.gather:
        known["gather"] = syntax.gather
    graph = lowered(graph, known, syntax.target)
    names: dict[int, str] = {}
    lines: list[str] = []
    for index in graph.needed():
        node = graph.nodes[index]
        operands = [names[taken] for taken in node.takes]
        if node.name == "constant":
            names[index] = syntax.number(node.number)
        elif node.name == "input":
            names[index] = inputs[int(node.number)]
        elif node.name == "parameter":
            names[index] = parameters[int(node.number)]
        else:
            names[index] = f"v{index}"
            if node.name == "gather":
                row = ", ".join(syntax.number(number) for number in node.row)
                lines.append(syntax.table.format(name=f"t{index}", row=row, count=len(node.row)))
                value = syntax.gather.format(table=f"t{index}", index=operands[0])
            else:
                value = syntax.operations[node.name].format(*operands)
            truth = node.name in TRUTH and syntax.assign_truth
            lines.append((truth or syntax.assign).format(name=names[index], value=value))
    return lines, [names[p] for p in graph.outputs], [names[p] for p in graph.sums]


def head(program: Program, comment: str, target: str) -> str:
    """Comments before a text: name, gradient, hash of the spec, errors of tables, and source.

    Edge   Python reads `coding:` in its first two lines as the encoding of the file, so there a blank
           is put before the colon.
    """
    spec = program.spec
    up = spec.arity.up if isinstance(spec.arity, Gated) else None
    factor = () if up is None else up.pieces
    lines = [
        f"{spec.name}: {spec.title}" if spec.title else spec.name,
        f"Written by `stamm emit {spec.name} target={target}` from the spec {spec.content_hash}.",
        *(f"f'(x) = {piece.formula} where {piece.where}" for piece in spec.pieces),
        *(f"h'(x) = {piece.formula} where {piece.where}" for piece in factor),
        *(
            f"Gradients use a surrogate, not f'(x): {piece.formula} where {piece.where}"
            for piece in spec.surrogate
        ),
        *(f"{table}, {error}" for table, error in _TABLE.findall(kernel_text(spec))),
        *([f"Source: {spec.source}"] if spec.source else []),
    ]
    if program.parameters:
        lines.append("Parameters are effective values, those that the formula has.")
    lines[:2] = [re.sub(r"coding(?=[:=])", "coding ", line) for line in lines[:2]]
    return "".join(f"{comment} {' '.join(line.split())}\n" for line in lines)


def indented(lines: Sequence[str], width: int = 4) -> str:
    """The lines with blanks before them."""
    return "".join(f"{' ' * width}{line}\n" for line in lines)


@dataclass(frozen=True)
class Passes:
    """Statements of the function and of its gradients, and the names of what they compute."""

    forward: list[str]
    value: str
    backward: list[str]
    gradients: list[str]


def passes(program: Program, syntax: Syntax, dtype: torch.dtype) -> Passes:
    """Both passes in a language; the gradients in the inputs come before those in the parameters."""
    names = list(program.parameters)
    forward, (value,), _ = statements(program.forward[dtype], syntax, program.inputs, names)
    backward, outputs, sums = statements(
        program.backward[dtype], syntax, ["weight", *program.inputs], names
    )
    return Passes(forward, value, backward, [*outputs, *sums])


def defaults(program: Program) -> list[str]:
    """The parameters with their values at the start, as arguments of Python."""
    return [f"{name}={value!r}" for name, value in program.parameters.items()]


WITHIN = 1e-12
SHORT_ENDING = "_short"  # of functions in float32 that serve numbers of 16 bits
_X = (-30.0, -3.0, -1.0, -0.5, -1e-3, -1e-6, 1e-6, 1e-3, 0.25, 1.0, 2.5, 20.0)


def points(program: Program, *, curvature: bool = False) -> list[tuple[list[float], list[float]]]:
    """Arguments, and the value and derivatives there, by the kernel in float64.

    curvature   whether the second derivative in the first input is the last one
    """
    kernel = kernel_of(program.spec)
    values = tuple(
        torch.tensor(p.initial, dtype=torch.float64) if p.trainable else p.initial
        for p in program.spec.parameters
    )
    x = torch.tensor(_X, dtype=torch.float64)
    value, (slope, *partials) = kernel.value(x, values), kernel.slopes(x, values)
    columns = [x, *(torch.full_like(x, v) for v in program.parameters.values())]
    second = [kernel.curvatures(x, values)[0]] if curvature else []
    results = [value, slope, *partials, *second]
    if len(program.inputs) == 2:
        up = torch.linspace(-1.5, 2.0, len(_X), dtype=torch.float64)
        factor, change = up, torch.ones_like(up)
        if kernel.up is not None:
            factor, (change, *_) = kernel.up.value(up, values), kernel.up.slopes(up, values)
        columns.insert(1, up)
        rest = (r * factor for r in (*partials, *second))
        results = [value * factor, slope * factor, value * change, *rest]
    given = torch.stack(columns, -1).tolist()
    true = torch.stack([torch.broadcast_to(r, x.shape) for r in results], -1).tolist()
    return [(g, t) for g, t in zip(given, true, strict=True) if all(map(math.isfinite, t))]
