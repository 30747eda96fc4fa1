"""The ONNX graph of a decoder with a KV cache, written node by node from its formulas.

Inputs and outputs are named as those of Optimum's text-generation models. Weights are in a file
beside the graph, written one by one. The operators are those of opset 18 alone.

Letters: B sequences, T new tokens, P cached tokens, S = P + T, H heads, K key-value heads, G = H / K,
E width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused.passes import PassName, graph_of
from stamm.activations.module import ActivationModule
from stamm.activations.primitives import coefficients
from stamm.activations.spec import Spec
from stamm.base.errors import ExportError
from stamm.base.files import atomic, write_bytes
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import Decoder
from stamm.models.mapped_weights import drop_pages
from stamm.models.norm import RMSNorm
from stamm.models.rope import rotation

MODEL = "model.onnx"
DATA = "model.onnx_data"
OPSET = 18
IR_VERSION = 10
_ALIGNMENT = 64
_FLOAT, _DOUBLE = 1, 11  # TensorProto.FLOAT and DOUBLE
_FARTHEST = 28.0  # exp(-x**2) is 0 in float32 from 11 on
_OPERATORS = {
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tanh": "Tanh",
    "atan": "Atan", "erf": "Erf", "abs": "Abs", "floor": "Floor", "neg": "Neg", "sign": "Sign",
    "isnan": "IsNaN", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "minimum": "Min",
    "maximum": "Max", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
    "eq": "Equal", "where": "Where",
}  # fmt: skip
"""Operations of a kernel's graph (`activations.fused.graph`), and their operators in ONNX."""
_HIDDEN = float(np.finfo(np.float32).min)  # finite: a row without any key gives no NaN


def write_onnx(folder: Path, decoder: Decoder) -> None:
    """Write model.onnx and model.onnx_data.

    decoder   dense, float32, with an activation of `runtime_support.onnx_reasons`

    Raises    ExportError without the package onnx; RunError when no space is left.
    """
    onnx = onnx_library()
    with atomic(folder / DATA) as temporary, temporary.open("wb") as data:
        graph = _Graph(onnx, data)
        _decoder(graph, decoder)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes, "decoder", graph.inputs, graph.outputs, graph.initializers
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="stamm",
    )
    write_bytes(folder / MODEL, model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(folder / MODEL))


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


def cache_names(layer: int) -> tuple[tuple[str, str], ...]:
    """Input and output of a layer's keys, and of its values."""
    return tuple((f"past_key_values.{layer}.{x}", f"present.{layer}.{x}") for x in ("key", "value"))


class _Graph:
    """Nodes, and weights written to `data` as they are named."""

    def __init__(self, onnx: Any, data: BinaryIO) -> None:
        self._onnx, self._data = onnx, data
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.initializers: list[Any] = []
        self._constants: dict[tuple[Any, ...], str] = {}

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node of one output; return its name."""
        name = output or f"{kind}_{len(self.nodes)}"
        made = self._onnx.helper.make_node(kind, inputs, [name], name=name, **attributes)
        self.nodes.append(made)
        return name

    def halves(self, value: str, width: int) -> tuple[str, str]:
        """Add a split of the last axis in two halves."""
        names = [f"half_{len(self.nodes)}_{side}" for side in range(2)]
        sizes = self.integers(width // 2, width // 2)
        self.nodes.append(self._onnx.helper.make_node("Split", [value, sizes], names, axis=-1))
        return names[0], names[1]

    def integers(self, *values: int) -> str:
        """A constant vector of integers."""
        return self._constant(np.array(values, np.int64))

    def index(self, value: int) -> str:
        """A constant integer without axes."""
        return self._constant(np.array(value, np.int64))

    def number(self, value: float) -> str:
        """A constant float32."""
        return self._constant(np.array(value, np.float32))

    def double(self, value: float) -> str:
        """A constant float64."""
        return self._constant(np.array(value, np.float64))

    def weight(self, name: str, tensor: Tensor) -> str:
        """A float32 tensor, appended to the data file."""
        self._data.write(b"\0" * (-self._data.tell() % _ALIGNMENT))
        array = tensor.detach().float().contiguous().numpy()
        proto = self._onnx.TensorProto(name=name, data_type=1, dims=array.shape, data_location=1)
        entry = {"location": DATA, "offset": self._data.tell(), "length": array.nbytes}
        for key, value in entry.items():
            proto.external_data.add(key=key, value=str(value))
        self._data.write(array.data)
        drop_pages(tensor)
        self.initializers.append(proto)
        return name

    def value(self, name: str, kind: str, axes: Sequence[int | str]) -> Any:
        """The description of an input or output."""
        number = getattr(self._onnx.TensorProto, kind)
        return self._onnx.helper.make_tensor_value_info(name, number, axes)

    def _constant(self, array: NDArray[Any]) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            made = self._onnx.numpy_helper.from_array(array, self._constants[key])
            self.initializers.append(made)
        return self._constants[key]


def _decoder(g: _Graph, decoder: Decoder) -> None:
    config, stack = decoder.config, decoder.model
    for name, axes in (
        ("input_ids", ("batch", "new")),
        ("attention_mask", ("batch", "total")),
        ("position_ids", ("batch", "new")),
    ):
        g.inputs.append(g.value(name, "INT64", axes))
    g.outputs.append(g.value("logits", "FLOAT", ("batch", "new", config.vocab_size)))
    for layer in range(config.num_layers):
        for past, present in cache_names(layer):
            kept = ("batch", config.num_kv_heads, "past", config.head_width)
            g.inputs.append(g.value(past, "FLOAT", kept))
            kept = ("batch", config.num_kv_heads, "total", config.head_width)
            g.outputs.append(g.value(present, "FLOAT", kept))
    embedding = g.weight("model.embed_tokens.weight", stack.embed_tokens.weight)
    x = g.op("Gather", embedding, "input_ids")
    bias, turns = _mask(g), _rotation(g, config, stack.frequencies)
    for index, module in enumerate(stack.layers):
        place, part = f"model.layers.{index}.", module.get_submodule
        h = _norm(g, f"{place}attention_layernorm", x, part("attention_layernorm"))
        x = g.op("Add", x, _attention(g, index, h, part("self_attn"), config, bias, turns))
        h = _norm(g, f"{place}feedforward_layernorm", x, part("feedforward_layernorm"))
        x = g.op("Add", x, _feed_forward(g, f"{place}mlp", h, part("mlp"), config))
    x = _norm(g, "model.norm", x, stack.norm)
    g.op("MatMul", x, g.weight("lm_head.weight", decoder.lm_head.weight.t()), output="logits")


def _mask(g: _Graph) -> str:
    """0 where a key is visible, shape (B, 1, 1, T, S): not after its query, and not padding."""
    total = g.op("Gather", g.op("Shape", "attention_mask"), g.index(1))
    new = g.op("Gather", g.op("Shape", "input_ids"), g.index(1))
    keys = g.op("Range", g.index(0), total, g.index(1))
    queries = g.op("Range", g.op("Sub", total, new), total, g.index(1))
    causal = g.op("LessOrEqual", keys, g.op("Unsqueeze", queries, g.integers(1)))
    real = g.op("Cast", "attention_mask", to=9)
    visible = g.op("And", causal, g.op("Unsqueeze", real, g.integers(1, 2, 3)))
    return g.op("Where", visible, g.number(0.0), g.number(_HIDDEN))


def _rotation(g: _Graph, config: DecoderConfig, frequencies: Tensor) -> tuple[str, str]:
    """Cosine and sine of the angles of the new tokens, shape (B, 1, T, E)."""
    tables = rotation(frequencies, torch.arange(config.max_context))
    found = []
    for name, table in zip(("cosine", "sine"), tables, strict=True):
        rows = g.op("Gather", g.weight(f"rotation.{name}", table), "position_ids")
        found.append(g.op("Unsqueeze", rows, g.integers(1)))
    return found[0], found[1]


def _norm(g: _Graph, place: str, x: str, norm: torch.nn.Module) -> str:
    if not isinstance(norm, RMSNorm):
        return x
    mean = g.op("ReduceMean", g.op("Mul", x, x), g.integers(-1))
    root = g.op("Sqrt", g.op("Add", mean, g.number(norm.eps)))
    return g.op("Mul", g.weight(f"{place}.weight", norm.weight), g.op("Div", x, root))


def _linear(g: _Graph, place: str, x: str, module: torch.nn.Module, name: str) -> str:
    linear = module.get_submodule(name)
    weight, bias = linear.get_parameter("weight"), dict(linear.named_parameters()).get("bias")
    y = g.op("MatMul", x, g.weight(f"{place}.{name}.weight", weight.t()))
    return y if bias is None else g.op("Add", y, g.weight(f"{place}.{name}.bias", bias))


def _attention(
    g: _Graph,
    index: int,
    x: str,
    module: torch.nn.Module,
    config: DecoderConfig,
    bias: str,
    turns: tuple[str, str],
) -> str:
    place = f"model.layers.{index}.self_attn"
    width, kv_heads = config.head_width, config.num_kv_heads
    heads = g.integers(0, 0, -1, width)

    def projected(name: str) -> str:
        y = g.op("Reshape", _linear(g, place, x, module, f"{name}_proj"), heads)
        if config.qk_norm and name != "v":
            y = _norm(g, f"{place}.{name}_norm", y, module.get_submodule(f"{name}_norm"))
        y = g.op("Transpose", y, perm=[0, 2, 1, 3])
        return y if name == "v" else _rotate(g, y, turns, width)

    query = projected("q")
    kept = []
    for name, (past, present) in zip(("k", "v"), cache_names(index), strict=True):
        whole = g.op("Concat", past, projected(name), axis=2, output=present)
        kept.append(g.op("Unsqueeze", whole, g.integers(2)))
    scaled = g.op("Mul", query, g.number(1 / math.sqrt(width)))
    grouped = g.op(
        "Reshape", scaled, g.integers(0, kv_heads, config.num_heads // kv_heads, -1, width)
    )
    scores = g.op("MatMul", grouped, g.op("Transpose", kept[0], perm=[0, 1, 2, 4, 3]))
    shares = g.op("Softmax", g.op("Add", scores, bias), axis=-1)
    y = g.op("Reshape", g.op("MatMul", shares, kept[1]), g.integers(0, config.num_heads, -1, width))
    y = g.op("Transpose", y, perm=[0, 2, 1, 3])
    y = g.op("Reshape", y, g.integers(0, 0, config.num_heads * width))
    return _linear(g, place, y, module, "o_proj")


def _rotate(g: _Graph, x: str, turns: tuple[str, str], width: int) -> str:
    first, second = g.halves(x, width)
    turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
    return g.op("Add", g.op("Mul", x, turns[0]), g.op("Mul", turned, turns[1]))


def _feed_forward(
    g: _Graph, place: str, x: str, module: torch.nn.Module, config: DecoderConfig
) -> str:
    inputs = [_linear(g, place, x, module, "up_proj")]
    if isinstance(config.ffn, GatedFFN):
        inputs.insert(0, _linear(g, place, x, module, "gate_proj"))
    act = module.get_submodule("act_fn")
    values = act.effective() if isinstance(act, ActivationModule) else {}
    y = add_activation(g, config.ffn.spec, inputs, values)
    return _linear(g, place, y, module, "down_proj")


def add_activation(
    g: _Graph, spec: Spec, inputs: Sequence[str], values: Mapping[str, float]
) -> str:
    """Add the operations of an activation: those of its generated kernel, in float32.

    inputs   x, or gate and up
    values   the effective value of each parameter

    Raises   ExportError for an operation that ONNX does not have.
    Checked  tests/unit/export/test_onnx.py::test_an_activation_is_exact
    """
    name: PassName = "gated_forward" if len(inputs) > 1 else "forward"
    fixed = tuple(values[parameter.name] for parameter in spec.parameters)
    graph = graph_of(name, kernel_of(spec), fixed, torch.float32)
    names: dict[int, str] = {}
    for place in graph.needed():
        node = graph.nodes[place]
        operands = [names[taken] for taken in node.takes]
        match node.name:
            case "input":
                names[place] = inputs[int(node.number)]
            case "constant":
                names[place] = g.number(node.number)
            case "erfc":
                names[place] = _complement(g, operands[0])
            case kind if kind in _OPERATORS:
                names[place] = g.op(_OPERATORS[kind], *operands)
            case kind:
                raise ExportError(f"ONNX has no operator for {kind!r}, which {spec.name!r} needs")
    return names[graph.outputs[0]]


def _complement(g: _Graph, x: str) -> str:
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
