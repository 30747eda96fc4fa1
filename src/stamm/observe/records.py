"""Files of `stamm observe`: observe.json, text-HASH.json and plasticity.json of a model, observe_comparison.json of a
comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stamm.base.schema import FieldError
from stamm.statistics.estimates import MeanInterval

MEASURES = (
    "negative_share",
    "negative_gradient_share",
    "negative_slope_share",
    "mean_abs_slope",
    "nonlinearity",
    "unit_nonlinearity",
    "dead_share",
    "zero_share",
    "effective_rank",
    "kurtosis",
    "max_median",
    "gradient_dead_share",
    "one_sided_share",
    "first_channel_ratio",
    "first_int8_tensor_db",
    "first_int8_token_db",
    "first_fp8_tensor_db",
    "last_channel_ratio",
    "last_int8_tensor_db",
    "last_int8_token_db",
    "last_fp8_tensor_db",
    "skippable_share",
)
"""Names of the numbers of a layer, as in `LayerObservation`."""


@dataclass(frozen=True, kw_only=True)
class LearnedParameter:
    """Effective values of a learned shape parameter: their mean, least and greatest, and number."""

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, kw_only=True)
class MassiveActivation:
    """Massive activations of one token id in one dimension of the residual stream.

    value   the one with the largest magnitude
    """

    token_id: int
    token: str
    dimension: int
    count: int
    value: float


@dataclass(frozen=True, kw_only=True)
class LayerObservation:
    """One layer; `LayerStatistics`, `InputStatistics` and `MassiveActivations` define the numbers.

    observed          tensor that x is: "pre-activation", or "gate pre-activation" of a gated block
    parameters        learned shape parameters by name
    rank_units        units that the effective rank is of
    skippable_share   of the sparsity ruler, on this text; None where the calibration text was too short
    massive           the places with the largest of `massive_count` massive activations
    """

    layer: int
    activation: str
    observed: str
    units: int
    parameters: Mapping[str, LearnedParameter] = field(default_factory=dict)
    negative_share: float
    negative_gradient_share: float | None = None
    negative_slope_share: float | None = None
    mean_abs_slope: float
    nonlinearity: float | None = None
    unit_nonlinearity: float | None = None
    dead_share: float
    zero_share: float | None = None
    effective_rank: float | None = None
    rank_units: int
    kurtosis: float
    max_median: float
    gradient_dead_share: float | None = None
    one_sided_share: float | None = None
    first_channel_ratio: float | None = None
    first_int8_tensor_db: float | None = None
    first_int8_token_db: float | None = None
    first_fp8_tensor_db: float | None = None
    last_channel_ratio: float | None = None
    last_int8_tensor_db: float | None = None
    last_int8_token_db: float | None = None
    last_fp8_tensor_db: float | None = None
    skippable_share: float | None = None
    massive_count: int | None = None
    massive: tuple[MassiveActivation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SparsityObservation:
    """The sparsity ruler (`observe.ruler`): units that can be skipped at `perplexity` times the perplexity.

    calibration          text that the thresholds were found on, which is not the observed one
    calibration_sha256   of its token ids
    thresholds           by layer, of the magnitude of a unit
    share                skipped units of all layers on the observed text
    loss, skipped_loss   mean nats of a token of the observed text, without and with skipping
    """

    perplexity: float
    calibration: str
    calibration_tokens: int
    calibration_sha256: str
    cett: float
    thresholds: tuple[float, ...]
    share: float
    loss: float
    skipped_loss: float


@dataclass(frozen=True, kw_only=True)
class ObserveFile:
    """The layers of a model on the held-out split (observe.json), or on another text (text-HASH.json).

    identity   SHA-256 of settings, text and weights, by which an observation is not repeated
    step       of a checkpoint; None for the model
    sparsity   None where the calibration text has fewer tokens than a layer has units
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str
    identity: str
    step: int | None = None
    text: str
    documents: int
    tokens: int
    layers: tuple[LayerObservation, ...]
    sparsity: SparsityObservation | None = None

    def __post_init__(self) -> None:
        if [layer.layer for layer in self.layers] != list(range(len(self.layers))):
            raise FieldError("layers", "one entry for each layer from 0")


@dataclass(frozen=True, kw_only=True)
class PlasticityFile:
    """plasticity.json: the plasticity probe (`observe.plasticity`) of a model or a checkpoint.

    initial_loss, final_loss   mean nats of a random target, before the first step and after the last
    mean_loss                  mean over the steps, which differs where all final losses are near 0
    fresh_loss                 the final loss of a decoder of the same shape with newly drawn weights; None
                               for a checkpoint
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str
    identity: str
    step: int | None = None
    text: str
    tokens: int
    steps: int
    initial_loss: float
    final_loss: float
    mean_loss: float
    fresh_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasureByDepth:
    """A number of the layers over the seeds of an arm: means with t intervals.

    name     one of MEASURES, or a learned parameter's
    layers   from the first layer; None where a seed has no value
    slope    least-squares slope over the layer's number, fitted for each seed; None with one layer
    """

    name: str
    layers: tuple[MeanInterval | None, ...]
    slope: MeanInterval | None = None


@dataclass(frozen=True, kw_only=True)
class ObservedArm:
    """The arm of a comparison."""

    name: str
    activation: str
    seeds: tuple[int, ...]
    measures: tuple[MeasureByDepth, ...]


@dataclass(frozen=True, kw_only=True)
class ObserveComparisonFile:
    """observe_comparison.json: the arms of a comparison by depth, over their seeds.

    identities   of the observations, by "ARM/SEED"
    diverged     runs that were left out because they diverged, as "ARM/SEED"
    """

    SCHEMA: ClassVar[int] = 1

    confidence: float
    text: str
    tokens: int
    identities: Mapping[str, str]
    diverged: tuple[str, ...]
    arms: tuple[ObservedArm, ...]
