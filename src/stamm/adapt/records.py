"""Files of `stamm run adapt.*`: replacement.json, carve.json, sparsify.json, stress.json, and change.json beside the changed weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class TextIdentity:
    """A text by the SHA-256 of its token ids, and its name as text."""

    name: str
    sha256: str
    tokens: int


@dataclass(frozen=True, kw_only=True)
class ChangeFile:
    """change.json beside the weights of a changed model: what was done to which model, and its cost.

    change         "replacement", "carve" or "sparsify"
    model_sha256   of the weights beside it
    parent_sha256  of the model that was changed
    calibration    the text that the change was fitted on
    measured       the text of the losses, in nats per token: of the parent, and after the change
    settings       by name, as texts
    trained_tokens   of further training after the change; the losses are from before it
    """

    SCHEMA: ClassVar[int] = 1

    change: str
    model_sha256: str
    parent_sha256: str
    calibration: TextIdentity
    measured: TextIdentity
    settings: Mapping[str, str]
    loss: float
    changed_loss: float
    trained_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class CarveArm:
    """The loss with one way to divide and to choose, in nats per token.

    carve    "balanced", "random" (mean over draws), "static": units pruned for good, with no choice
    router   "linear"; "oracle": the experts with the largest contributions, each with weight 1; "" without
    refit    whether the last matrix is refit to the units that act
    draws    random divisions
    """

    carve: str
    router: str
    refit: bool
    loss: float
    draws: int = 1


@dataclass(frozen=True, kw_only=True)
class CarveFile:
    """Experts that were carved from a dense model, with their controls on the same text.

    loss           of the dense model, and carved_loss of the stored one
    layer_errors   share of the mean square of each block's output that is missed on the calibration text
    decoded        tokens that were decoded, and multiplied: the expert slices that it took, of `slices` in a
                   dense decoder
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str
    parent_sha256: str
    experts: int
    active: int
    shared: int
    calibration: TextIdentity
    measured: TextIdentity
    loss: float
    carved_loss: float
    arms: tuple[CarveArm, ...]
    layer_errors: tuple[float, ...]
    decoded: int
    multiplied: int
    slices: int


@dataclass(frozen=True, kw_only=True)
class SparseLayer:
    """One layer: its threshold, and shares of units that are 0 on the measured text.

    threshold   of f(x_i) |column i of the last matrix|, in a gated block times the root mean square of up
    zeros       before the threshold
    skipped     with it
    """

    layer: int
    threshold: float
    zeros: float
    skipped: float


@dataclass(frozen=True, kw_only=True)
class SparsifyFile:
    """Thresholds that were folded into a model, with their cost in nats per token.

    before, after    activations of the model and of the changed one
    loss             of the model before
    unthresholded_loss   with the replaced activation, before the thresholds; None where it was not replaced
    sparse_loss      of the stored model
    random_loss      control: as many units of each layer set to 0 at random, of those that are not 0
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str
    parent_sha256: str
    before: str
    after: str
    calibration: TextIdentity
    measured: TextIdentity
    loss: float
    unthresholded_loss: float | None
    sparse_loss: float
    random_loss: float
    layers: tuple[SparseLayer, ...]


@dataclass(frozen=True, kw_only=True)
class StressPoint:
    """A fault: median loss over its draws between the ends of the 95 % interval, in nats per token; None: not finite.

    kind, at   "bfloat16" or "int8" and the bit that is flipped; "noise" and its deviation over the rms of `post`
    clipped    as `loss`, with the clip, on the same draws
    clip       whether it "lowers" or "raises" the loss of a draw, or "not shown"
    """

    kind: str
    at: float
    loss: tuple[float | None, ...]
    clipped: tuple[float | None, ...]
    clip: str


@dataclass(frozen=True, kw_only=True)
class StressFile:
    """Losses under faults; loss: without; controls: of the clip, and of the weights in each format, without faults."""

    SCHEMA: ClassVar[int] = 1

    model_sha256: str
    calibration: TextIdentity
    measured: TextIdentity
    rate: float
    loss: float
    controls: Mapping[str, float]
    points: tuple[StressPoint, ...]


@dataclass(frozen=True, kw_only=True)
class SwappedLayer:
    """One layer, as `activations.fit.ActivationFit` and `adapt.refit.RefitMatrix` describe it.

    parameters            effective values of the trainable shape parameters
    initial_error         None where the new activation is not finite without the fit
    output_error          of the block's output, with the refit matrix
    scaled_output_error   of the block's output, with the old matrix times the output scale
    up_scale              of a gate times a function of up, else 1
    """

    layer: int
    input_scale: float
    output_scale: float
    parameters: Mapping[str, float]
    error: float
    initial_error: float | None
    output_error: float
    scaled_output_error: float
    up_scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ReplacementFile:
    """The activations, their layers, and the loss in nats per token on text that was not fitted on.

    loss            of the model before
    initial_loss    of the new activation with its initial parameters; None where it is not finite
    swapped_loss    of the new activation, fitted
    """

    SCHEMA: ClassVar[int] = 2

    model_sha256: str
    before: str
    after: str
    calibration: TextIdentity
    measured: TextIdentity
    loss: float
    initial_loss: float | None
    swapped_loss: float
    layers: tuple[SwappedLayer, ...]
