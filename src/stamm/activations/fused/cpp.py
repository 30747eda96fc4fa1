"""C++ source of a pass: its graph as statements on vectors, between loops written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from stamm.activations.fused.graph import TRUTH, Graph, Node
from stamm.activations.fused.subexpressions import eliminate_common_calls

NUMBERS = {torch.float32: "float", torch.float64: "double"}
_HELD = {torch.float32: "float", torch.bfloat16: "BFloat16", torch.float16: "Half"}
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
}  # fmt: skip
# Square roots round better than powers, and are single instructions. Of a negative base: NaN.
_POWERS = {
    0.5: "sqrt({0})", -0.5: "1 / sqrt({0})", 1.5: "{0} * sqrt({0})", -1.5: "1 / sqrt({0}) / {0}",
}  # fmt: skip
_HEAD = '#include "pointwise.h"\n\nusing namespace stamm;\n\n'


def source(graphs: Mapping[str, Graph], stored: torch.dtype, *, by_column: bool) -> str:
    """The whole source of a shared object with one function for each pass, under its name.

    stored      the dtype of the tensors that are read and written
    by_column   whether each column has its own parameters
    """
    loop = "run_columns" if by_column else "run"
    # Static tables of a struct with external linkage are one for all shared objects of a process.
    parts = [
        f"namespace {{\n{_struct(f'Pass{place}', eliminate_common_calls(graph))}}}\n\n"
        f'extern "C" void {name}(const Strided* in, const Strided* out, int64_t rows,\n'
        "    int64_t columns, const double* parameters, double* sums, double* partial,\n"
        "    int threads) {\n"
        f"  {loop}<Pass{place}, {_HELD[stored]}>(in, out, rows, columns, parameters, sums,\n"
        "      partial, threads);\n"
        "}\n"
        for place, (name, graph) in enumerate(graphs.items())
    ]
    return _HEAD + "\n".join(parts)


def _struct(name: str, graph: Graph) -> str:
    """The struct that the loops take; they call `prepare` with vectors of doubles."""
    uniform, needed = graph.uniform(), graph.needed()
    before = [place for place in needed if place in uniform]
    each = [place for place in needed if place not in uniform]
    carried = graph.carried()
    parameters = 1 + max(
        (int(node.number) for node in graph.nodes if node.name == "parameter"), default=-1
    )
    prepared = [_statement(graph, place) for place in before if not _is_constant(graph, place)]
    prepared += [f"uniforms[{k}] = v{place};" for k, place in enumerate(carried)]
    applied = [f"const V v{place} = uniforms[{k}];" for k, place in enumerate(carried)]
    applied += [_statement(graph, place) for place in each]
    applied += [f"out[{k}] = {_operand(graph, p)};" for k, p in enumerate(graph.outputs)]
    applied += [f"sum[{k}] = {_operand(graph, p)};" for k, p in enumerate(graph.sums)]
    return (
        f"struct {name} {{\n"
        f"  using Number = {NUMBERS[graph.dtype]};\n"
        "  using V = Vector<Number>;\n"
        f"  static constexpr int inputs = {graph.inputs}, outputs = {len(graph.outputs)},"
        f" sums = {len(graph.sums)};\n"
        f"  static constexpr int parameters = {parameters}, uniforms = {len(carried)};\n"
        "  template <class V>\n"
        "  static inline void prepare(const V* parameters, V* uniforms) {\n"
        f"{_indented(prepared)}"
        "  }\n"
        "  static inline void apply(const V* in, const V* uniforms, V* out, V* sum) {\n"
        f"{_indented(applied)}"
        "  }\n"
        "};\n"
    )


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)


def _is_constant(graph: Graph, place: int) -> bool:
    return graph.nodes[place].name == "constant"


def _operand(graph: Graph, place: int) -> str:
    node = graph.nodes[place]
    if node.name == "constant":
        return f"full<V>({_literal(node.number)})"
    return f"v{place}"


def _literal(number: float) -> str:
    if number != number:
        return "NAN"
    if number in (float("inf"), float("-inf")):
        return "INFINITY" if number > 0 else "-INFINITY"
    return repr(number)


def _statement(graph: Graph, place: int) -> str:
    node = graph.nodes[place]
    if node.name == "gather":
        row = ", ".join(_literal(number) for number in node.row)
        return (
            f"static const number_of<V> row{place}[] = {{{row}}}; "
            f"const V v{place} = gather(row{place}, {_operand(graph, node.takes[0])});"
        )
    kind = "auto" if node.name in TRUTH else "V"
    return f"const {kind} v{place} = {_expression(graph, node)};"


def _expression(graph: Graph, node: Node) -> str:
    taken = [_operand(graph, place) for place in node.takes]
    match node.name:
        case "input":
            return f"in[{int(node.number)}]"
        case "parameter":
            return f"parameters[{int(node.number)}]"
        case "where":
            return f"{taken[0]} ? {taken[1]} : {taken[2]}"
        case "neg":
            return f"-{taken[0]}"
        case "isnan":
            return f"{taken[0]} != {taken[0]}"
        case "maximum" | "minimum":
            known = graph.nodes[node.takes[1]].name == "constant"
            named = {"maximum": "at_least", "minimum": "at_most"}[node.name] if known else node.name
            return f"{named}({taken[0]}, {taken[1]})"
        case "pow" if (power := graph.nodes[node.takes[1]]).name == "constant" and (
            power.number in _POWERS
        ):
            return _POWERS[power.number].format(taken[0])
        case name if name in _OPERATORS:
            return f"{taken[0]} {_OPERATORS[name]} {taken[1]}"
        case name:
            return f"{name}({', '.join(taken)})"
