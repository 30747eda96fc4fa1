"""What a gradient in stored (raw) numbers is made of: slopes of effective values in raw ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

from stamm.activations.expressions import logistic
from stamm.activations.parameters import (
    Absolute,
    Between,
    Exp,
    Parameter,
    Softplus,
)
from stamm.activations.spec import Spec


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
