"""Files of `stamm observe`: observe.json and text-HASH.json of a model, observe_comparison.json of a comparison."""

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
class LayerObservation:
    """One layer; `observe.statistics.LayerStatistics` defines every number.

    observed     tensor that x is: "pre-activation", or "gate pre-activation" of a gated block
    parameters   learned shape parameters by name
    rank_units   units that the effective rank is of
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


@dataclass(frozen=True, kw_only=True)
class ObserveFile:
    """The layers of a model on the held-out split (observe.json), or on another text (text-HASH.json).

    identity   SHA-256 of settings, text and weights, by which an observation is not repeated
    step       of a checkpoint; None for the model
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str
    identity: str
    step: int | None = None
    text: str
    documents: int
    tokens: int
    layers: tuple[LayerObservation, ...]

    def __post_init__(self) -> None:
        if [layer.layer for layer in self.layers] != list(range(len(self.layers))):
            raise FieldError("layers", "one entry for each layer from 0")


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
