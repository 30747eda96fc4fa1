"""Target ONNX: a model with two functions of domain `stamm`, the activation and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from stamm.activations.emitters.program import Program, lowered
from stamm.activations.emitters.syntax import EmissionTarget, head, points
from stamm.activations.fused.graph import Graph
from stamm.activations.primitives import coefficients
from stamm.base.errors import ExportError

OPSET, IR_VERSION, _DOMAIN = 18, 10, "stamm"
_FLOAT, _INT64, _DOUBLE = 1, 7, 11  # of TensorProto
_SHAPES = (
    "Parameters are one number, or one for each of the last axis: others, as of shape (C, 1, 1), get "
    "wrong gradients.\n"
)
_FARTHEST = 28.0  # exp(-x**2) is 0 in float32 from 11 on
OPERATORS = {
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "tanh": "Tanh", "sinh": "Sinh", "cosh": "Cosh", "asin": "Asin", "atan": "Atan",
    "asinh": "Asinh", "acosh": "Acosh", "erf": "Erf", "abs": "Abs", "floor": "Floor", "neg": "Neg",
    "sign": "Sign", "isnan": "IsNaN", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div",
    "pow": "Pow", "minimum": "Min", "maximum": "Max", "lt": "Less", "le": "LessOrEqual",
    "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal", "where": "Where",
}  # fmt: skip


def onnx_library() -> Any:
    """The module onnx.

    Raises   ExportError when it is missing.
    """
    try:
        import onnx
    except ImportError as error:
        raise ExportError(
            f"onnx cannot be imported: {error}", fix="Run: pip install 'stamm[onnx]'"
        ) from None
    return onnx


class NodeWriter(Protocol):
    """Adds nodes to a graph or a function."""

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node of one output; return its name."""

    def number(self, value: float) -> str:
        """A constant float32."""

    def double(self, value: float) -> str:
        """A constant float64."""

    def numbers(self, values: Sequence[float]) -> str:
        """A constant vector of float32."""


def write_nodes(
    graph: Graph, inputs: Sequence[str], parameters: Sequence[str], writer: NodeWriter
) -> list[str]:
    """Add the operations of a graph; return the names of its outputs, then of its sums.

    Edge     the sign of a zero is not kept: ONNX Runtime's Where returns +0 for -0, its Min and Max
             either of two equal zeros; rebuilt from comparisons, xIELU was five times slower and
             some signs were still wrong
    """
    graph = lowered(graph, frozenset({*OPERATORS, "gather", "erfc"}), "ONNX")
    names: dict[int, str] = {}
    for index in graph.needed():
        node = graph.nodes[index]
        operands = [names[taken] for taken in node.takes]
        match node.name:
            case "input":
                names[index] = inputs[int(node.number)]
            case "parameter":
                names[index] = parameters[int(node.number)]
            case "constant":
                names[index] = writer.number(node.number)
            case "erfc":
                names[index] = _complement(writer, operands[0])
            case "gather":
                position = writer.op("Cast", *operands, to=_INT64)
                names[index] = writer.op("Gather", writer.numbers(node.row), position)
            case kind:
                names[index] = writer.op(OPERATORS[kind], *operands)
    return [names[index] for index in (*graph.outputs, *graph.sums)]


def _complement(g: NodeWriter, x: str) -> str:
    """erfc(x), in float64 inside: 1 - erf(x) would lose the digits of the tail."""
    wide = g.op("Cast", x, to=_DOUBLE)
    size = g.op("Min", g.op("Abs", wide), g.double(_FARTHEST))
    turned = g.op("Div", g.op("Sub", size, g.double(3)), g.op("Add", size, g.double(3)))
    total, *lower = reversed(coefficients.ERROR_COMPLEMENT[0])
    y = g.double(total)
    for coefficient in lower:
        y = g.op("Add", g.op("Mul", y, turned), g.double(coefficient))
    scale = g.op("Add", g.op("Mul", size, g.double(2)), g.double(1))
    y = g.op("Mul", g.op("Div", y, scale), g.op("Exp", g.op("Neg", g.op("Mul", size, size))))
    below = g.op("Less", wide, g.double(0))
    return g.op("Cast", g.op("Where", below, g.op("Sub", g.double(2), y), y), to=_FLOAT)


class _Body:
    """The nodes of a function, whose constants are nodes."""

    def __init__(self) -> None:
        self._helper = onnx_library().helper
        self.nodes: list[Any] = []

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(kind, inputs, [name], **attributes))
        return name

    def number(self, value: float) -> str:
        return self.op("Constant", value_float=float(value))

    def double(self, value: float) -> str:
        return self.op("Constant", value=self._helper.make_tensor("", _DOUBLE, [], [value]))

    def numbers(self, values: Sequence[float]) -> str:
        return self.op("Constant", value_floats=list(values))

    def integers(self, *values: int) -> str:
        return self.op("Constant", value_ints=list(values))


def _function(name: str, graph: Graph, inputs: list[str], parameters: list[str]) -> Any:
    """A FunctionProto: inputs and parameters -> outputs, then sums."""
    body = _Body()
    results = write_nodes(graph, inputs, parameters, body)
    outputs = [
        body.op("Identity", result, output=f"result_{k}") for k, result in enumerate(results)
    ]
    helper = onnx_library().helper
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_function(_DOMAIN, name, [*inputs, *parameters], outputs, body.nodes, opset)


def _summed(g: _Body, gradient: str, parameter: str, shape: str) -> None:
    """Sum a gradient to the shape of its parameter: one number, or one for each of the last axis."""
    rows = g.op(
        "Concat", g.integers(-1), g.op("Reshape", g.op("Size", parameter), g.integers(1)), axis=0
    )
    matrix = g.op("Reshape", g.op("Expand", gradient, shape), rows)
    total = g.op("ReduceSum", matrix, g.integers(0), keepdims=0)
    g.op("Reshape", total, g.op("Shape", parameter), output=f"d_{parameter}", allowzero=1)


def _model(program: Program) -> bytes:
    onnx = onnx_library()
    helper, single = onnx.helper, onnx.TensorProto.FLOAT
    inputs, parameters = list(program.inputs), list(program.parameters)
    forward, backward = program.forward[torch.float32], program.backward[torch.float32]
    names = [*inputs, *parameters]
    functions = [
        _function(program.name, forward, inputs, parameters),
        _function(f"{program.name}_gradients", backward, ["weight", *inputs], parameters),
    ]
    body = _Body()
    body.nodes += [
        helper.make_node(program.name, names, ["y"], domain=_DOMAIN),
        helper.make_node(
            f"{program.name}_gradients",
            ["weight", *names],
            [f"result_{name}" for name in names],
            domain=_DOMAIN,
        ),
    ]
    shape = body.op("Shape", "y")
    for name in inputs:
        body.op("Expand", f"result_{name}", shape, output=f"d_{name}")
    for name in parameters:
        _summed(body, f"result_{name}", name, shape)
    initial = {"weight": 1.0, **program.parameters}
    graph = helper.make_graph(
        body.nodes,
        program.name,
        [helper.make_tensor_value_info(name, single, None) for name in (*inputs, *initial)],
        [helper.make_tensor_value_info(n, single, None) for n in ("y", *(f"d_{n}" for n in names))],
        [helper.make_tensor(name, single, [], [value]) for name, value in initial.items()],
        doc_string=head(program, "", "onnx") + (_SHAPES if parameters else ""),
    )
    model = helper.make_model(
        graph,
        functions=functions,
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(_DOMAIN, 1)],
        ir_version=IR_VERSION,
        producer_name="stamm",
    )
    # Without shapes x has any number of axes; the checker alone wants a number, so it gets a copy.
    ranked = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*ranked.graph.input, *ranked.graph.output):
        value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(ranked)
    made: bytes = model.SerializeToString(deterministic=True)
    return made


def _test(program: Program) -> str:
    rows = ",\n".join(f"    ({given}, {true})" for given, true in points(program))
    return (
        "import numpy as np\nimport onnxruntime\n\n"
        f"NAMES = {[*program.inputs, *program.parameters]!r}\nROWS = [\n{rows},\n]\n\n\n"
        "def test_values_and_gradients():\n"
        '    """Parameters have one value for each of the last axis, so that no two gradients are added."""\n'
        "    columns = zip(*(row[0] for row in ROWS))\n"
        "    given = {n: np.array(c, np.float32) for n, c in zip(NAMES, columns)}\n"
        "    given[NAMES[0]] = given[NAMES[0]].reshape(1, 1, -1)\n"
        "    onnxruntime.set_default_logger_severity(3)  # each parameter has an initial value\n"
        f'    session = onnxruntime.InferenceSession("{program.name}.onnx")\n'
        "    for column, result in enumerate(session.run(None, given)):\n"
        "        true = np.array([row[1][column] for row in ROWS])\n"
        "        assert result.shape == ((1, 1, len(ROWS)) if column <= "
        f"{len(program.inputs)} else true.shape)\n"
        "        error = np.abs(result - true)\n"
        "        assert np.all(error <= 1e-5 * np.abs(true) + 2e-38), (column, result, true)\n\n\n"
        'if __name__ == "__main__":\n    test_values_and_gradients()\n'
    )


ONNX = EmissionTarget(
    name="onnx", ending=".onnx", comment="", write=_model, test=_test, test_ending="_test.py"
)
