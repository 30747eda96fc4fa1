"""replacement.json: an activation that was replaced in a trained model (`stamm run adapt.activation`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class SwappedLayer:
    """One layer, as `activations.fit.ActivationFit` and `adapt.refit.RefitMatrix` describe it.

    parameters            effective values of the trainable shape parameters
    initial_error         None where the new activation is not finite without the fit
    output_error          of the block's output, with the refit matrix
    scaled_output_error   of the block's output, with the old matrix times the output scale
    """

    layer: int
    input_scale: float
    output_scale: float
    parameters: Mapping[str, float]
    error: float
    initial_error: float | None
    output_error: float
    scaled_output_error: float


@dataclass(frozen=True, kw_only=True)
class ReplacementFile:
    """The activations, their layers, and the loss in nats per token on text that was not fitted on.

    loss            of the model before
    initial_loss    of the new activation with its initial parameters; None where it is not finite
    swapped_loss    of the new activation, fitted
    tokens          that were fitted on, and `measured` those of the losses
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str
    before: str
    after: str
    text: str
    tokens: int
    measured: int
    loss: float
    initial_loss: float | None
    swapped_loss: float
    layers: tuple[SwappedLayer, ...]
