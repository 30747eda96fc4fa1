"""The truth in float64: every quantity of a spec from its exact, stable formulas.

It is itself checked against 120 digits by `truth_check`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import Kernel, kernel_of
from stamm.activations.primitives import Parameters
from stamm.activations.spec import Spec
from stamm.activations.spec.expressions import logistic
from stamm.activations.spec.parameters import Absolute, Between, Exp, Parameter, Softplus

ILL_CONDITIONED = 32.0
CONDITION_TEXT = (
    "judged where the condition number |x v'(x)/v(x)| of the value v is below"
    f" {ILL_CONDITIONED:g}, that is, away from its zeros and its tails"
)
FUNCTION, SLOPE, UP_SLOPE = "function", "slope", "up_slope"
_STEP = 2.0**-24


@dataclass(frozen=True, eq=False)
class ExactValues:
    """One quantity at every input.

    values      float64
    condition   |x v'(x)/v(x)|: by how much a relative change of the input grows in the value;
                0 where the value is 0 and stays 0, infinite where it is 0 and does not
    terms       the largest magnitude that is met on the way, where it is not the value's own
    """

    values: Tensor
    condition: Tensor
    terms: Tensor | None = None

    @property
    def size(self) -> Tensor:
        """The largest magnitude that is met on the way to the value."""
        return self.values.abs() if self.terms is None else self.terms

    @property
    def well_conditioned(self) -> Tensor:
        """Where an implementation is held to its budget."""
        return self.condition < ILL_CONDITIONED


def parameter_slope(name: str) -> str:
    """Name of the slope in the parameter `name` among quantities."""
    return f"slope_in_{name}"


def exact_quantities(
    spec: Spec, values: Mapping[str, float], x: Tensor, up: Tensor | None = None
) -> dict[str, ExactValues]:
    """f, f' (or the declared surrogate), df/dp for each trainable p; with `up`, of f(x) h(up).

    x, up   float64, shape (N,)
    Edge    for a gated spec `slope` is the slope in the gate, and `up_slope` joins it
    """
    kernel = kernel_of(spec)
    parameters = kernel_parameters(spec, values)
    value = kernel.value(x, parameters)
    slope, *by_parameter = kernel.slopes(x, parameters)
    curvature, *rest = kernel.curvatures(x, parameters)
    mixed = rest[: len(by_parameter)]
    growth = _difference(kernel, parameters, x) if spec.surrogate else slope
    found = {
        FUNCTION: ExactValues(value, condition(x, value, growth)),
        SLOPE: ExactValues(slope, condition(x, slope, curvature)),
    }
    for parameter, of, change in zip(spec.trainable, by_parameter, mixed, strict=True):
        found[parameter_slope(parameter.name)] = ExactValues(of, condition(x, of, change))
    return found if up is None else _times_up(kernel, parameters, found, up)


def slope_size(found: Mapping[str, ExactValues], x: Tensor) -> Tensor:
    """|f| + |x f'| + |f'|: the size of the numbers whose difference a slope in a parameter is."""
    f, slope = found[FUNCTION].values.abs(), found[SLOPE].values.abs()
    return f + (x * slope).abs() + slope


def without_vanishing_slopes(found: Mapping[str, ExactValues], x: Tensor) -> dict[str, ExactValues]:
    """The quantities, with no verdict on a slope in a parameter that is next to nothing.

    Where a gate is shut or saturated, its slope in a shift is the difference of numbers of
    `slope_size`. Below 1/256 of that its last digits decide nothing.
    """
    least = slope_size(found, x) / 256
    return {
        name: of
        if name in (FUNCTION, SLOPE, UP_SLOPE)
        else ExactValues(
            of.values, torch.where(of.values.abs() < least, torch.inf, of.condition), of.terms
        )
        for name, of in found.items()
    }


def kernel_parameters(spec: Spec, values: Mapping[str, float]) -> Parameters:
    """The effective values as kernels take them: trainable ones as float64 tensors, in order."""
    return tuple(
        torch.tensor(values[p.name], dtype=torch.float64) if p.trainable else p.initial
        for p in spec.parameters
    )


def condition(x: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """|x slope/value|, with 0 where value and product are both 0."""
    change = (x * slope).abs()
    ratio = change / value.abs()
    still = torch.where(change == 0, 0.0, torch.inf).to(ratio.dtype)
    ratio = torch.where(value == 0, still, ratio)
    return torch.where(torch.isnan(ratio), torch.inf, ratio)


def _times_up(
    kernel: Kernel, parameters: Parameters, gate: dict[str, ExactValues], up: Tensor
) -> dict[str, ExactValues]:
    flat = torch.ones_like(up), torch.zeros_like(up)
    height, slope, curvature = up, *flat
    if kernel.up is not None:
        height = kernel.up.value(up, parameters)
        slope = kernel.up.slopes(up, parameters)[0]
        curvature = kernel.up.curvatures(up, parameters)[0]
    along = condition(up, height, slope)
    found = {
        name: ExactValues(of.values * height, of.condition + along) for name, of in gate.items()
    }
    function = gate[FUNCTION]
    found[UP_SLOPE] = ExactValues(
        function.values * slope, function.condition + condition(up, slope, curvature)
    )
    return found


def _difference(kernel: Kernel, parameters: Parameters, x: Tensor) -> Tensor:
    """f' where the kernel's slope is a surrogate: a central difference, good for a magnitude."""
    above, below = x * (1 + _STEP), x * (1 - _STEP)
    rise = kernel.value(above, parameters) - kernel.value(below, parameters)
    return torch.where(x == 0, 0.0, rise / (above - below))


def raw_slopes(spec: Spec, raw: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """For each stored number, the slope in it of every effective value that depends on it.

    raw      the stored number of each trainable parameter
    Edge     a bound that is itself trained passes its own slope on to what it bounds.
    """
    trainable = {p.name: p for p in spec.trainable}
    effective = spec.effective_values(raw)
    table: dict[str, dict[str, float]] = {}
    for name, parameter in trainable.items():
        table.setdefault(name, {})[name] = _own(parameter, raw[name])
        bound = trainable.get(parameter.above_name or "")
        if bound is not None:
            passed = _own(bound, raw[bound.name])
            if isinstance(parameter.bijection, Absolute):
                passed = math.copysign(passed, passed * effective[bound.name])
            table.setdefault(bound.name, {})[name] = passed
    return table


def _own(parameter: Parameter, raw: float) -> float:
    match parameter.bijection:
        case Softplus():
            return logistic(raw)
        case Exp():
            return math.exp(raw)
        case Absolute():
            return math.copysign(1.0, raw)
        case Between(low=low, high=high):
            return (high - low) * logistic(raw) * logistic(-raw)
    return 1.0
