"""Polynomials by Horner's rule, coefficients from the lowest power up."""

from __future__ import annotations

import torch
from torch import Tensor

Coefficients = tuple[float, ...]


def horner(u: Tensor, coefficients: Coefficients) -> Tensor:
    """coefficients[0] + coefficients[1] u + coefficients[2] u**2 + ..."""
    if len(coefficients) == 1:
        return torch.full_like(u, coefficients[0])
    total = coefficients[-2] + u * coefficients[-1]
    for coefficient in reversed(coefficients[:-2]):
        total = coefficient + u * total
    return total


def polynomial(u: Tensor, by_dtype: tuple[Coefficients, Coefficients]) -> Tensor:
    """The polynomial that is enough for the dtype of u: the first for float32, else the second."""
    return horner(u, by_dtype[1] if u.dtype == torch.float64 else by_dtype[0])


def anchored(u: Tensor, coefficients: Coefficients, single: int) -> Tensor:
    """u times a polynomial, lowest power first: 0 at 0, and as many digits near it as elsewhere.

    single   how many coefficients are enough for float32
    """
    enough = coefficients if u.dtype == torch.float64 else coefficients[:single]
    return u * horner(u, enough)
