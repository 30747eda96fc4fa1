"""ONNX Runtime: each operator that is an activation, as a model of one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stamm.activations.board.library import LibraryFunction
from stamm.activations.conformance.ulp import dtype_name
from stamm.activations.emitters.onnx import onnx_library
from stamm.base.errors import DataError, ExportError

_OPSET, _IR_VERSION = 24, 11
_TYPES = {torch.float32: 1, torch.float16: 10}  # of TensorProto
_LAMBDA = {"lambd": 0.5}


def onnxruntime_library() -> Any:
    """The module onnxruntime.

    Raises   ExportError when it is missing.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ExportError(
            f"onnxruntime cannot be imported: {error}", fix="Run: pip install 'stamm[onnx]'"
        ) from None
    return onnxruntime


def session(model: bytes) -> Any:
    """A session of a model on the CPU.

    Raises   DataError where ONNX Runtime refuses it.
    """
    library = onnxruntime_library()
    options = library.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return library.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors share no narrower class
        lines = str(error).strip().splitlines()
        raise DataError(f"ONNX Runtime refuses it: {lines[0][:160] if lines else error}") from None


@dataclass(frozen=True)
class OnnxLibrary:
    """Operators of ONNX in ONNX Runtime, which has no slopes."""

    version: str
    _sessions: dict[tuple[str, torch.dtype], Any] = field(default_factory=dict)

    def functions(self, dtype: torch.dtype) -> Sequence[LibraryFunction]:
        """Each operator; the CPU's kernels do not have bfloat16."""
        if dtype not in _TYPES:
            raise DataError(f"ONNX Runtime has no operators of {dtype_name(dtype)} on the CPU")
        return [
            LibraryFunction(entry, _text(kind, attributes), self._call(kind, attributes, dtype))
            for entry, kind, attributes in _OPERATORS
        ]

    def _call(
        self, kind: str, attributes: Mapping[str, Any], dtype: torch.dtype
    ) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            key = (_text(kind, attributes), dtype)
            if key not in self._sessions:
                self._sessions[key] = session(_model(kind, attributes, dtype))
            (result,) = self._sessions[key].run(None, {"x": x.numpy()})
            return torch.from_numpy(np.asarray(result))

        return call


def onnx_operators() -> OnnxLibrary:
    """The installed ONNX Runtime.

    Raises   ExportError when it, or the package onnx, is missing.
    """
    onnx_library()
    return OnnxLibrary(version=str(onnxruntime_library().__version__))


_OPERATORS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("identity", "Identity", {}),
    ("modulus", "Abs", {}),
    ("relu", "Relu", {}),
    ("relu6", "Clip", {"low": 0.0, "high": 6.0}),
    ("hard_tanh", "Clip", {"low": -1.0, "high": 1.0}),
    ("leaky_relu", "LeakyRelu", {}),
    ("prelu", "PRelu", {"slope": 0.25}),
    ("thresholded_relu", "ThresholdedRelu", {}),
    ("hard_shrink", "Shrink", _LAMBDA),
    ("soft_shrink", "Shrink", {**_LAMBDA, "bias": 0.5}),
    ("hard_sigmoid", "HardSigmoid", {"alpha": 1 / 6}),
    ("hard_swish", "HardSwish", {}),
    ("elu", "Elu", {}),
    ("celu", "Celu", {}),
    ("selu", "Selu", {}),
    ("silu", "Swish", {}),
    ("gelu", "Gelu", {}),
    ("gelu_tanh", "Gelu", {"approximate": "tanh"}),
    ("mish", "Mish", {}),
    ("softplus", "Softplus", {}),
    ("softsign", "Softsign", {}),
    ("sigmoid", "Sigmoid", {}),
    ("tanh", "Tanh", {}),
    ("arctan", "Atan", {}),
    ("erf", "Erf", {}),
    ("sine", "Sin", {}),
    ("cosine", "Cos", {}),
)
_INPUTS = ("low", "high", "slope")  # of operators that take numbers as inputs, not as attributes


def _text(kind: str, attributes: Mapping[str, Any]) -> str:
    listed = ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f'{name}="{value}"'
        for name, value in attributes.items()
    )
    return f"{kind}({listed})" if listed else kind


def _model(kind: str, attributes: Mapping[str, Any], dtype: torch.dtype) -> bytes:
    helper, width = onnx_library().helper, _TYPES[dtype]
    numbers = {name: value for name, value in attributes.items() if name in _INPUTS}
    rest = {name: value for name, value in attributes.items() if name not in _INPUTS}
    constants = [
        helper.make_tensor(name, width, [1] if name == "slope" else [], [value])
        for name, value in numbers.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", *numbers], ["y"], **rest)],
        kind,
        [helper.make_tensor_value_info("x", width, ["n"])],
        [helper.make_tensor_value_info("y", width, ["n"])],
        constants,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )
    made: bytes = model.SerializeToString(deterministic=True)
    return made
