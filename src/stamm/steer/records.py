"""steer.json: effect and price of a model's steering vectors, by layer and strength."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class SteerTexts:
    """Texts of one kind.

    texts    read, every second of which the direction is fitted to; the others are measured
    tokens   predicted in the measured texts
    loss     of the unsteered model on them, nats a token
    """

    name: str
    sha256: str
    texts: int
    tokens: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class SteerMeasures:
    """Measures of a steered model, on texts that the vector was not fitted to.

    effect          mean over the positions of the negative texts of the change of log P - log(1 - P), P the probability of
                    all positive tokens
    kl              mean over the same positions of KL(steered, unsteered), nats
    positive_loss   nats a token of the positive texts
    negative_loss   of the negative texts
    """

    effect: float
    kl: float
    positive_loss: float
    negative_loss: float


@dataclass(frozen=True, kw_only=True)
class SteerRow:
    """A layer and a strength: the vector beside random directions of equal length."""

    layer: int
    strength: float
    vector: SteerMeasures
    random: tuple[SteerMeasures, ...]


@dataclass(frozen=True, kw_only=True)
class SteerFile:
    """steer.json.

    model_sha256      of the parameters, as of `models.steering.parameters_sha256`
    settings          without the paths
    positive_tokens   different tokens that are more than twice as frequent in the positive texts as in the negative ones
    lengths           of the direction by layer, beside the mean length of the residual stream there
    rows              measurements
    recommended       the row of the largest effect with kl at most the bound, and above every random effect there; None
    verdict           a sentence about it
    files             written beside this one, with their SHA-256; none without a recommendation
    no_gguf           why there is no vector.gguf; "" where there is one
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str
    settings: Mapping[str, Any]
    positive: SteerTexts
    negative: SteerTexts
    positive_tokens: int
    lengths: Mapping[str, tuple[float, float]]
    rows: tuple[SteerRow, ...]
    recommended: int | None
    verdict: str
    files: Mapping[str, str]
    no_gguf: str
