"""What an implementation gives: its outputs, and its gradients as autograd returns them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stamm.activations.conformance.callable import Bound, called
from stamm.activations.conformance.exact import FUNCTION, SLOPE, UP_SLOPE, parameter_slope
from stamm.base.errors import DataError


@dataclass(frozen=True, eq=False)
class Observed:
    """Results by quantity, each with the shape and dtype of the inputs.

    What the implementation has no gradient for is not there.
    """

    quantities: Mapping[str, Tensor]


def observe(
    name: str, bound: Bound, x: Tensor, up: Tensor | None, quantities: Collection[str]
) -> Observed:
    """Run an implementation forward and backward at each input.

    name     how errors call it
    Edge     a slope in a parameter is taken at each input by itself, as training would sum it.
    Raises   DataError when it raises, or returns another shape or dtype.
    """
    gate = x.clone().requires_grad_()
    factors = () if up is None else (up.clone().requires_grad_(),)
    output = called(name, bound, gate, *factors)
    found = {FUNCTION: output.detach()}
    if output.requires_grad and {SLOPE, UP_SLOPE} & set(quantities):
        try:
            slopes = torch.autograd.grad(
                output, (gate, *factors), torch.ones_like(output), allow_unused=True
            )
        except RuntimeError as error:
            raise DataError(f"{name} has no gradient: {error}") from error
        for quantity, slope in zip((SLOPE, UP_SLOPE), slopes, strict=False):
            found[quantity] = torch.zeros_like(x) if slope is None else slope
    for leaf in bound.leaves:
        if parameter_slope(leaf) in quantities:
            found.update(_parameter_slopes(bound, x, up))
            break
    return Observed({q: t for q, t in found.items() if q in quantities})


def _parameter_slopes(bound: Bound, x: Tensor, up: Tensor | None) -> dict[str, Tensor]:
    """The gradient in each parameter of each output by itself."""
    inputs = (x[:, None],) if up is None else (x[:, None], up[:, None])

    def one(leaves: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        return bound.function(leaves, *inputs).sum()

    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, *([0] * len(inputs))))
    try:
        slopes = each(dict(bound.leaves), *inputs)
    except Exception:  # not every function can be vectorised, and torch raises many kinds of error
        try:
            slopes = _twice(bound, x, up)
        except RuntimeError:  # nor differentiated twice
            return {}
    return {
        parameter_slope(name): slope.detach().reshape(len(x)).to(x.dtype)
        for name, slope in slopes.items()
    }


def _twice(bound: Bound, x: Tensor, up: Tensor | None) -> dict[str, Tensor]:
    """The same by differentiating twice: the sum of w_i df_i/dp, differentiated in each w_i."""
    leaves = {n: leaf.clone().requires_grad_() for n, leaf in bound.leaves.items()}
    output = bound.function(leaves, *((x,) if up is None else (x, up)))
    weight = torch.ones_like(output, requires_grad=True)
    sums = torch.autograd.grad(
        output, list(leaves.values()), weight, create_graph=True, allow_unused=True
    )
    return {
        name: torch.zeros_like(x)
        if total is None
        else torch.autograd.grad(total.sum(), weight, retain_graph=True)[0]
        for name, total in zip(leaves, sums, strict=True)
    }
