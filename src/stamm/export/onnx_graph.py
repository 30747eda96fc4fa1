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
from stamm.activations.emitters.onnx import IR_VERSION, OPSET, onnx_library, write_nodes
from stamm.activations.emitters.program import scalar_graph
from stamm.activations.fused.passes import PassName
from stamm.activations.module import ActivationModule
from stamm.activations.spec import Spec
from stamm.base.files import atomic, write_bytes
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import Decoder
from stamm.models.mapped_weights import drop_pages
from stamm.models.norm import RMSNorm
from stamm.models.rope import rotation

MODEL = "model.onnx"
DATA = "model.onnx_data"
_ALIGNMENT = 64
_HIDDEN = float(np.finfo(np.float32).min)  # finite: a row without any key gives no NaN


def write_onnx(folder: Path, decoder: Decoder) -> None:
    """Write model.onnx and model.onnx_data.

    decoder   dense, float32

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

    def numbers(self, values: Sequence[float]) -> str:
        """A constant vector of float32."""
        return self._constant(np.array(values, np.float32))

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
        prefix, part = f"model.layers.{index}.", module.get_submodule
        h = _norm(g, f"{prefix}attention_layernorm", x, part("attention_layernorm"))
        x = g.op("Add", x, _attention(g, index, h, part("self_attn"), config, bias, turns))
        h = _norm(g, f"{prefix}feedforward_layernorm", x, part("feedforward_layernorm"))
        x = g.op("Add", x, _feed_forward(g, f"{prefix}mlp", h, part("mlp"), config))
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
    gathered = []
    for name, table in zip(("cosine", "sine"), tables, strict=True):
        rows = g.op("Gather", g.weight(f"rotation.{name}", table), "position_ids")
        gathered.append(g.op("Unsqueeze", rows, g.integers(1)))
    return gathered[0], gathered[1]


def _norm(g: _Graph, prefix: str, x: str, norm: torch.nn.Module) -> str:
    if not isinstance(norm, RMSNorm):
        return x
    mean = g.op("ReduceMean", g.op("Mul", x, x), g.integers(-1))
    root = g.op("Sqrt", g.op("Add", mean, g.number(norm.eps)))
    return g.op("Mul", g.weight(f"{prefix}.weight", norm.weight), g.op("Div", x, root))


def _linear(g: _Graph, prefix: str, x: str, module: torch.nn.Module, name: str) -> str:
    linear = module.get_submodule(name)
    weight, bias = linear.get_parameter("weight"), dict(linear.named_parameters()).get("bias")
    y = g.op("MatMul", x, g.weight(f"{prefix}.{name}.weight", weight.t()))
    return y if bias is None else g.op("Add", y, g.weight(f"{prefix}.{name}.bias", bias))


def _attention(
    g: _Graph,
    index: int,
    x: str,
    module: torch.nn.Module,
    config: DecoderConfig,
    bias: str,
    turns: tuple[str, str],
) -> str:
    prefix = f"model.layers.{index}.self_attn"
    width, kv_heads = config.head_width, config.num_kv_heads
    heads = g.integers(0, 0, -1, width)

    def projected(name: str) -> str:
        y = g.op("Reshape", _linear(g, prefix, x, module, f"{name}_proj"), heads)
        if config.qk_norm and name != "v":
            y = _norm(g, f"{prefix}.{name}_norm", y, module.get_submodule(f"{name}_norm"))
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
    return _linear(g, prefix, y, module, "o_proj")


def _rotate(g: _Graph, x: str, turns: tuple[str, str], width: int) -> str:
    first, second = g.halves(x, width)
    turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
    return g.op("Add", g.op("Mul", x, turns[0]), g.op("Mul", turned, turns[1]))


def _feed_forward(
    g: _Graph, prefix: str, x: str, module: torch.nn.Module, config: DecoderConfig
) -> str:
    inputs = [_linear(g, prefix, x, module, "up_proj")]
    if isinstance(config.ffn, GatedFFN):
        inputs.insert(0, _linear(g, prefix, x, module, "gate_proj"))
    act = module.get_submodule("act_fn")
    values = act.effective() if isinstance(act, ActivationModule) else {}
    y = add_activation(g, config.ffn.spec, inputs, values)
    return _linear(g, prefix, y, module, "down_proj")


def add_activation(
    g: _Graph, spec: Spec, inputs: Sequence[str], values: Mapping[str, float]
) -> str:
    """Add the operations of an activation: those of its generated kernel, in float32.

    inputs   x, or gate and up
    values   the effective value of each parameter

    Raises   ConfigError as `scalar_graph`
    Checked  tests/unit/export/test_onnx.py::test_an_activation_is_exact
    """
    name: PassName = "gated_forward" if len(inputs) > 1 else "forward"
    fixed = tuple(values[parameter.name] for parameter in spec.parameters)
    (result,) = write_nodes(
        scalar_graph(name, kernel_of(spec), fixed, torch.float32), inputs, [], g
    )
    return result
