"""Memory layout of the tensors of a pass, as rows and columns, and the shapes of its sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stamm.base.errors import ConfigError

STORED = (torch.float32, torch.bfloat16, torch.float16)  # what passes read and write


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """The tensors of a pass as matrices of one shape, without a copy.

    by_column   whether each column has its own parameters
    flat        whether everything is one row, without steps
    """

    read: list[Tensor]
    written: list[Tensor]
    rows: int
    columns: int
    by_column: bool
    flat: bool


def arranged(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Matrices:
    """Inputs and outputs (..., C) as (rows, C), or as one row where no step lies between them.

    Raises   ConfigError for an output whose leading axes cannot be joined: it cannot be written;
             for a parameter of other than one value or C
    """
    for parameter in parameters:
        check_neurons(parameter, inputs[0])
    by_column = any(p.numel() > 1 for p in parameters)
    flat = not by_column and all(t.is_contiguous() for t in (*inputs, *outputs))
    first = inputs[0]
    columns = first.numel() if flat else first.shape[-1] if first.dim() else 1
    return Matrices(
        read=[t.reshape(-1, columns) for t in inputs],
        written=[_matrix(t, columns) for t in outputs],
        rows=first.numel() // columns,
        columns=columns,
        by_column=by_column,
        flat=flat,
    )


def check_neurons(parameter: Tensor, x: Tensor) -> None:
    """Check that a parameter has one value, or one for each of the C neurons of x (..., C)."""
    if parameter.numel() != 1 and (x.dim() == 0 or parameter.shape != x.shape[-1:]):
        raise ConfigError(
            f"the parameter has {parameter.numel()} values and the input {size_text(x)}",
            fix="Build the activation for as many neurons as its input has in the last axis",
        )


def size_text(tensor: Tensor) -> str:
    """Its shape and dtype, for a message."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def shaped(
    sums: Iterable[Tensor], parameters: Sequence[Tensor], added: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """One sum for each parameter, shaped and typed like it, in memory of its own.

    added   what adds up a row, of which a parameter with one number needs a single sum
    """
    return [
        (s if s.numel() == p.numel() else added(s)).to(p.dtype, copy=True).reshape(p.shape)
        for s, p in zip(sums, parameters, strict=True)
    ]


def _matrix(tensor: Tensor, columns: int) -> Tensor:
    """The same memory as (rows, C)."""
    try:
        return tensor.view(-1, columns)
    except RuntimeError as error:
        raise ConfigError(
            f"an output of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not a matrix",
            fix="Give one that can be viewed as rows and columns",
        ) from error
