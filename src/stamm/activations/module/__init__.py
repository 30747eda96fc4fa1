"""Activations as torch modules: their ops, shape parameters, and gradients across processes."""

from stamm.activations.module.activation import (
    Activation,
    ActivationModule,
    GatedActivation,
    Value,
    build_activation,
    xielu,
)

__all__ = [
    "Activation",
    "ActivationModule",
    "GatedActivation",
    "Value",
    "build_activation",
    "xielu",
]
