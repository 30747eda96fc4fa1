"""Libraries that have activations of the catalogue, and the functions of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamm.activations import catalog
from stamm.activations.conformance.implementations import raised
from stamm.base.errors import DataError


@dataclass(frozen=True, eq=False)
class LibraryFunction:
    """A function of a library that computes an entry of the catalogue at its initial values.

    entry      name in the catalogue
    name       as the library's users write it
    value      x -> y; or gate, up -> y
    slopes     the same inputs -> the derivative of y in each of them; None: the library has none
    compiled   x -> value and slope, as the library's compiler computes them; None: there is none
    values     effective values of the parameters that it computes with; the initial ones by default
    remark     what differs from the entry by definition
    """

    entry: str
    name: str
    value: Callable[..., Tensor]
    slopes: Callable[..., Sequence[Tensor]] | None = None
    compiled: Callable[[Tensor], Sequence[Tensor]] | None = None
    values: Mapping[str, float] | None = None
    remark: str = ""


class Library(Protocol):
    """A library that is installed."""

    @property
    def version(self) -> str:
        """Its version."""

    def functions(self, dtype: torch.dtype) -> Sequence[LibraryFunction]:
        """Its functions, for tensors of a dtype."""


@dataclass(frozen=True, eq=False)
class TorchFunctions:
    """torch, or a library of torch modules.

    made     entry, name, and what makes the function for a dtype
    """

    version: str
    made: Sequence[tuple[str, str, Callable[[torch.dtype], Callable[..., Tensor]]]]

    def functions(self, dtype: torch.dtype) -> Sequence[LibraryFunction]:
        """Each function, differentiated by torch; those of one input are compiled in one graph."""
        calls = [(entry, name, make(dtype)) for entry, name, make in self.made]
        plain = [name for entry, name, _ in calls if entry not in GATED]
        run = _compiled([call for entry, _, call in calls if entry not in GATED])
        graph = CompiledTogether(run)
        return [
            LibraryFunction(
                entry,
                name,
                _detached(call),
                _differentiated(call),
                graph.of(plain.index(name)) if name in plain else None,
                _held_values(entry, call),
            )
            for entry, name, call in calls
        ]


GATED = ("glu",)  # entries of two inputs that torch, JAX and MLX have
# By name in transformers, the entry. Those with none: gelu_10, which is clipped, and sqrtsoftplus.
_TRANSFORMERS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh", "hardswish": "hard_swish", "laplace": "laplace",
    "leaky_relu": "leaky_relu", "linear": "identity", "mish": "mish", "quick_gelu": "quick_gelu",
    "relu": "relu", "relu2": "relu2", "relu6": "relu6", "sigmoid": "sigmoid", "silu": "silu",
    "swish": "silu", "tanh": "tanh", "prelu": "prelu", "xielu": "xielu",
}  # fmt: skip


def _held_values(entry: str, call: object) -> Mapping[str, float] | None:
    """The effective values of a module that stores raw numbers under the names of the entry."""
    spec = catalog.get(entry)
    if not isinstance(call, nn.Module) or not spec.trainable:
        return None
    held = dict(call.named_parameters())
    if any(parameter.name not in held for parameter in spec.trainable):
        return None
    return spec.effective_values(
        {p.name: held[p.name].detach().double().item() for p in spec.trainable}
    )


def _detached(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *inputs: call(*inputs).detach()


def _differentiated(call: Callable[..., Tensor]) -> Callable[..., Sequence[Tensor]]:
    def slopes(*inputs: Tensor) -> Sequence[Tensor]:
        leaves = [given.clone().requires_grad_() for given in inputs]
        y = call(*leaves)
        return torch.autograd.grad(y, leaves, torch.ones_like(y))

    return slopes


@dataclass(eq=False)
class CompiledTogether:
    """Functions of one input that a compiler takes as one graph: each alone would take as long.

    run   x -> for each function, its value and slope
    Edge  an error is kept as the results are, and raised for each function
    """

    run: Callable[[Tensor], Sequence[Sequence[Tensor]]]
    inputs: Tensor | None = None
    results: Sequence[Sequence[Tensor]] = ()
    error: Exception | None = None

    def of(self, position: int) -> Callable[[Tensor], Sequence[Tensor]]:
        """x -> value and slope of one of them."""

        def run(x: Tensor) -> Sequence[Tensor]:
            if self.inputs is not x:
                self.inputs, self.error = x, None
                try:
                    self.results = self.run(x)
                except Exception as error:  # compilers raise errors of every kind
                    self.error = error
            if self.error is not None:
                raise self.error
            return self.results[position]

        return run


def _compiled(
    calls: Sequence[Callable[[Tensor], Tensor]],
) -> Callable[[Tensor], Sequence[Sequence[Tensor]]]:
    def together(*inputs: Tensor) -> list[Tensor]:
        return [call(given) for call, given in zip(calls, inputs, strict=True)]

    def run(x: Tensor) -> Sequence[Sequence[Tensor]]:
        leaves = [x.clone().requires_grad_() for _ in calls]
        try:
            outputs = torch.compile(together, dynamic=False)(*leaves)
            slopes = torch.autograd.grad(outputs, leaves, [torch.ones_like(x)] * len(calls))
        except Exception as error:  # the compiler raises errors of every kind
            raise DataError(f"torch.compile raises {raised(error)}") from error
        return [(y.detach(), slope) for y, slope in zip(outputs, slopes, strict=True)]

    return run


def torch_functions() -> TorchFunctions:
    """torch.nn.functional, and functions of torch."""

    def always(call: Callable[..., Tensor]) -> Callable[[torch.dtype], Callable[..., Tensor]]:
        return lambda _: call

    return TorchFunctions(
        version=torch.__version__,
        made=[
            *((entry, name, always(call)) for entry, name, call in _TORCH),
            ("prelu", "nn.PReLU", lambda dtype: nn.PReLU().to(dtype)),
        ],
    )


def transformers_functions(
    version: str, makers: Mapping[str, Callable[[], nn.Module]]
) -> TorchFunctions:
    """The activations of transformers.

    makers   by name in a configuration, what makes the module
    """

    def cast(make: Callable[[], nn.Module]) -> Callable[[torch.dtype], Callable[..., Tensor]]:
        return lambda dtype: make().to(dtype)

    return TorchFunctions(
        version=version,
        made=[
            (_TRANSFORMERS[name], f'ACT2FN["{name}"]', cast(make))
            for name, make in makers.items()
            if name in _TRANSFORMERS
        ],
    )


_TORCH: tuple[tuple[str, str, Callable[..., Tensor]], ...] = (
    ("identity", "nn.Identity", nn.Identity()),
    ("modulus", "abs", torch.abs),
    ("square", "square", torch.square),
    ("relu", "F.relu", F.relu),
    ("relu6", "F.relu6", F.relu6),
    ("leaky_relu", "F.leaky_relu", F.leaky_relu),
    ("rrelu", "F.rrelu", F.rrelu),
    ("thresholded_relu", "F.threshold(1, 0)", lambda x: F.threshold(x, 1.0, 0.0)),
    ("hard_shrink", "F.hardshrink", F.hardshrink),
    ("soft_shrink", "F.softshrink", F.softshrink),
    ("hard_tanh", "F.hardtanh", F.hardtanh),
    ("hard_sigmoid", "F.hardsigmoid", F.hardsigmoid),
    ("hard_swish", "F.hardswish", F.hardswish),
    ("elu", "F.elu", F.elu),
    ("celu", "F.celu", F.celu),
    ("selu", "F.selu", F.selu),
    ("silu", "F.silu", F.silu),
    ("gelu", "F.gelu", F.gelu),
    ("gelu_tanh", 'F.gelu(approximate="tanh")', lambda x: F.gelu(x, approximate="tanh")),
    ("mish", "F.mish", F.mish),
    ("softplus", "F.softplus", F.softplus),
    ("log_sigmoid", "F.logsigmoid", F.logsigmoid),
    ("softsign", "F.softsign", F.softsign),
    ("tanh_shrink", "F.tanhshrink", F.tanhshrink),
    ("sigmoid", "sigmoid", torch.sigmoid),
    ("tanh", "tanh", torch.tanh),
    ("arctan", "atan", torch.atan),
    ("erf", "erf", torch.erf),
    ("sine", "sin", torch.sin),
    ("cosine", "cos", torch.cos),
    ("glu", "F.glu", lambda gate, up: F.glu(torch.cat([up, gate]), 0)),
)
