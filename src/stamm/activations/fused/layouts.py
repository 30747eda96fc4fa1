"""How tensors lie in memory, as rows and columns."""

from __future__ import annotations

from torch import Tensor

from stamm.base.errors import ConfigError


def matrix(tensor: Tensor, columns: int) -> Tensor:
    """The same memory as (rows, C)."""
    try:
        return tensor.view(-1, columns)
    except RuntimeError as error:
        raise ConfigError(
            f"an output of shape {tuple(tensor.shape)} and strides {tensor.stride()} is no matrix",
            fix="Give one that can be viewed as rows and columns",
        ) from error
