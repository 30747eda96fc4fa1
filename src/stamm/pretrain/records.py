"""Files of a trained arm: summary.json, log/timing.json, and the learning-rate search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stamm.base.schema import FieldError

HELD_OUT_ROWS = "held_out_rows"
"""Evaluation during fine-tuning on rows of its data that are not trained on: evaluate/held_out_rows/…"""


@dataclass(frozen=True, kw_only=True)
class GoldfishCoverage:
    """Statistics of the Goldfish loss mask over the tokens of a run.

    k               one label in k should be masked
    h               tokens in a hash window
    gap_quantiles   lengths of runs of learned labels at 50, 90, 99 and 100 %
    long_share      share of labels in learned runs of more than 100
    windows         labels with a full hash window
    zero_share      share of windows whose hash is zero
    """

    OPEN: ClassVar[bool] = True

    hash: str
    k: int
    h: int
    labels: int
    masked: int
    rate: float
    gap_quantiles: tuple[float, ...]
    long_share: float
    windows: int = 0
    zero_share: float

    def __post_init__(self) -> None:
        if self.k < 2:
            raise FieldError("k", "at least 2: k = 1 would mask every label")
        if len(self.gap_quantiles) != 4:
            raise FieldError("gap_quantiles", "the four lengths at 50, 90, 99 and 100 %")


@dataclass(frozen=True, kw_only=True)
class TrainingEvent:
    """A loss spike, a non-finite loss, or skipped steps. Facts are untrusted."""

    REST: ClassVar[str] = "facts"

    step: int
    kind: str = field(metadata={"key": "event"})
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainingSummary:
    """summary.json: the end of a training run.

    trainable_parameters   those that are not frozen, adapters included; None in earlier files
    best_step          the step whose weights early stopping kept; None: the last
    trained_tokens     tokens of all steps, learned or not
    learned_tokens     labels that the loss mask kept
    final_loss_nats    mean over the last 5 % of the steps; None without any
    decay_start_step   the step after which the learning rate falls
    events             in order; None in files that did not record them
    """

    SCHEMA: ClassVar[int] = 1

    parameters: int
    trainable_parameters: int | None = None
    steps: int
    best_step: int | None = None
    trained_sequences: int = 0
    trained_tokens: int
    learned_tokens: int = 0
    epochs: float
    final_loss_nats: float | None = None
    flops: float
    decay_start_step: int
    events: tuple[TrainingEvent, ...] | None = None
    goldfish: GoldfishCoverage | None = None


@dataclass(frozen=True, kw_only=True)
class MetricsLine:
    """A line of metrics.jsonl: the metrics of one step by name ("train/loss_nats")."""

    REST: ClassVar[str] = "values"

    step: int
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TimingFile:
    """log/timing.json: wall-clock measurements; not reproducible.

    devices              processes by device name
    tokens_per_s_median  over steps; None without a step
    mfu_median           model FLOPs utilization (MFU)
    seconds              of all steps
    evaluation_seconds   of evaluations during training, which are not part of a step
    """

    SCHEMA: ClassVar[int] = 1
    SEALED: ClassVar[bool] = True

    compiled: bool
    optimizer: str = ""
    threads: int
    device: str = ""
    devices: Mapping[str, int] = field(default_factory=dict)
    precision: str = ""
    processes: Mapping[str, int] = field(default_factory=dict)
    tokens_per_s_median: float | None = None
    mfu_median: float | None = None
    seconds: float
    evaluation_seconds: float = 0.0
    peak_gib: float


@dataclass(frozen=True, kw_only=True)
class AccuracyFile:
    """activations/NAME/accuracy.json: errors of an activation that is the user's own.

    accuracy   largest errors in units of the last place, as text by dtype
    """

    SCHEMA: ClassVar[int] = 1

    name: str
    content_hash: str
    accuracy: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RateTrial:
    """A short run of a learning-rate search; loss_nats is None for a non-finite loss.

    shape_factor   shape_lr_factor of the optimizer; None where only rates were compared
    """

    rate: float
    shape_factor: float | None = None
    loss_nats: float | None = None


@dataclass(frozen=True, kw_only=True)
class ChosenRate:
    """chosen.json: the result of a learning-rate search.

    shape_factor   as in `RateTrial`
    at_edge   whether the best of the trials, from which a margin may lower `rate`, is the lowest or the
              highest
    factor_at_edge   whether `shape_factor` is
    runs      settings of the runs that use it, by name
    """

    SCHEMA: ClassVar[int] = 1

    arm: str = ""
    rate: float
    shape_factor: float | None = None
    at_edge: bool
    factor_at_edge: bool = False
    trials: tuple[RateTrial, ...]
    runs: Mapping[str, Any] = field(default_factory=dict)
