"""Unary operations of ggml, llama.cpp's tensor library, on the CPU: for the conformance board."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stamm.activations.board.library import LibraryFunction
from stamm.activations.conformance.ulp import dtype_name
from stamm.base.errors import ExportError
from stamm.export.llama_cpp import VERSION, ggml_functions

_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}  # enum ggml_type
_ROOM = 2**20  # bytes for the structures of a graph
_F32, _FLAG, _POINTER = ctypes.c_float, ctypes.c_bool, ctypes.c_void_p
_UNARY = {
    "modulus": "abs", "square": "sqr", "relu": "relu", "hard_swish": "hardswish",
    "hard_sigmoid": "hardsigmoid", "elu": "elu", "silu": "silu", "gelu": "gelu_erf",
    "gelu_tanh": "gelu", "quick_gelu": "gelu_quick", "softplus": "softplus", "sigmoid": "sigmoid",
    "tanh": "tanh", "sine": "sin", "cosine": "cos",
}  # fmt: skip
_GATED = {
    "swiglu": "swiglu_split", "reglu": "reglu_split", "geglu": "geglu_erf_split",
    "geglu_tanh": "geglu_split", "quick_geglu": "geglu_quick_split",
}  # fmt: skip
# Stored numbers whose softplus is alpha_p, and with beta alpha_n, as ggml_xielu takes them.
_XIELU = {"alpha_p": 0.8, "alpha_n": 0.8, "beta": 0.5}


class _Parameters(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", _POINTER), ("no_alloc", _FLAG))


@dataclass(frozen=True)
class GgmlLibrary:
    """Operations of ggml, without slopes: the only one that it has, of silu, is not measured."""

    version: str = VERSION

    def functions(self, dtype: torch.dtype) -> Sequence[LibraryFunction]:
        """Each operation.

        Raises   ExportError for a dtype that ggml does not have
        """
        if dtype not in _TYPES:
            raise ExportError(f"ggml has no {dtype_name(dtype)}")
        kind = _TYPES[dtype]
        return [
            *(
                LibraryFunction(entry, f"ggml_{name}", _operation(name, kind))
                for entry, name in (_UNARY | _GATED).items()
            ),
            LibraryFunction(
                "leaky_relu",
                "ggml_leaky_relu",
                _aborts if dtype == torch.bfloat16 else _operation("leaky_relu", kind, 0.01, False),
            ),
            _xielu(kind),
        ]


def ggml_library() -> GgmlLibrary:
    """The installed ggml.

    Raises   ExportError when llama.cpp is missing
    """
    ggml_functions()
    return GgmlLibrary()


def _aborts(x: Tensor) -> Tensor:
    raise ExportError(
        "not called: it ends the process with a fatal error for bfloat16 (ggml-cpu/ops.cpp)"
    )


def _xielu(kind: int) -> LibraryFunction:
    alphas = [_raw(_XIELU["alpha_n"] - _XIELU["beta"]), _raw(_XIELU["alpha_p"])]
    held_n, held_p = (torch.nn.functional.softplus(torch.tensor(a).double()) for a in alphas)
    numbers = (*alphas, _XIELU["beta"], -1e-6)
    values = {**_XIELU, "alpha_p": held_p.item(), "alpha_n": held_n.item() + _XIELU["beta"]}
    return LibraryFunction(
        "xielu", "ggml_xielu", _operation("xielu", kind, *numbers), values=values
    )


def _raw(value: float) -> float:
    """The float32 number whose softplus is nearest to `value`."""
    return float(torch.log(torch.expm1(torch.tensor(value, dtype=torch.float64))).float())


def _operation(name: str, kind: int, *numbers: float) -> Callable[..., Tensor]:
    def run(*inputs: Tensor) -> Tensor:
        call = ggml_functions()
        size = sum(x.numel() * x.element_size() for x in inputs) * 2
        function = _typed(call, f"ggml_{name}", len(inputs), numbers)
        init = _signature(call, "ggml_init", _POINTER, _Parameters)
        new = _signature(call, "ggml_new_tensor_1d", _POINTER, _POINTER, ctypes.c_int, _LENGTH)
        data = _signature(call, "ggml_get_data", _POINTER, _POINTER)
        graph_of = _signature(call, "ggml_new_graph", _POINTER, _POINTER)
        expand = _signature(call, "ggml_build_forward_expand", None, _POINTER, _POINTER)
        compute = _signature(
            call, "ggml_graph_compute_with_ctx", ctypes.c_int, _POINTER, _POINTER, ctypes.c_int
        )
        context = init(_Parameters(2 * size + _ROOM, None, False))
        try:
            tensors = []
            for x in inputs:
                tensors.append(new(context, kind, x.numel()))
                dense = x.contiguous()  # a copy must live until it is read
                ctypes.memmove(data(tensors[-1]), dense.data_ptr(), dense.nbytes)
            result = function(context, *tensors, *numbers)
            graph = graph_of(context)
            expand(graph, result)
            if compute(context, graph, 1):
                raise ExportError(f"ggml_{name} cannot be computed")
            y = torch.empty_like(inputs[0])
            ctypes.memmove(y.data_ptr(), data(result), y.nbytes)
        finally:
            _signature(call, "ggml_free", None, _POINTER)(context)
        return y

    return run


_LENGTH = ctypes.c_int64


def _signature(call: Any, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(call, name)
    function.restype, function.argtypes = result, arguments
    return function


def _typed(call: Any, name: str, inputs: int, numbers: Sequence[float]) -> Any:
    kinds = [_FLAG if isinstance(number, bool) else _F32 for number in numbers]
    return _signature(call, name, _POINTER, _POINTER, *([_POINTER] * inputs), *kinds)
