"""Configuration of a search's own steps. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stamm.activations.spec import Spec
from stamm.base.bounds import Positive, within
from stamm.base.config import validate
from stamm.search.records import PlannedCandidate


@dataclass(frozen=True, kw_only=True)
class ScreenLimits:
    """Limits that a candidate's certificate must keep, at the initial values of its parameters.

    degree         largest power with which f may grow; exponential growth never passes
    flat           whether f' may be 0 on an interval, where units die
    gain           bounds of 1 / sqrt(E[f(z)^2]), z ~ N(0, 1): signals neither vanish nor explode
    nonlinearity   smallest share of the variance of f under N(0, 1) that no line explains
    known          whether a function of the catalogue may be a candidate; an affine map of one may,
                   since the line that it adds is absorbed by no matrix, and one that trains what
                   the entry keeps fixed
    slower         largest time of forward and backward pass, relative to the baseline's kernel
    """

    degree: Positive = 2.0
    flat: bool = False
    gain: tuple[Positive, Positive] = (0.2, 5.0)
    nonlinearity: Annotated[float, within("[0, 1)")] = 0.05
    known: bool = False
    slower: Positive = 3.0

    def __post_init__(self) -> None:
        validate(self, ("gain", len(self.gain) == 2, "must be two numbers"))
        low, high = self.gain
        validate(self, ("gain", low < high, "must rise"))


@dataclass(frozen=True, kw_only=True)
class CandidateConfig:
    """One candidate and its limits; `refused` is the reason why it has no spec, or ""."""

    name: str
    spec: Spec | None
    refused: str
    screen: ScreenLimits


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """Times of the candidates' kernels beside the baseline's, on this machine.

    candidates  names; inputs["candidate.NAME"] is the folder of each
    slower      largest ratio to the baseline's time that passes
    rows, columns, rounds   shape of the float32 inputs, and how often each kernel is timed
    """

    baseline: Spec
    candidates: tuple[Spec, ...]
    slower: float
    rows: int = 512
    columns: int = 1536
    rounds: int = 15
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class SearchPlanConfig:
    """A plan to register; of the candidates, only those that passed screen and timing are.

    config_sha256   of the search's configuration
    rounds          candidates that each round keeps at most
    confirmations   one sentence each
    """

    config_sha256: str
    baseline: str
    candidates: tuple[PlannedCandidate, ...]
    rounds: tuple[int, ...]
    confirmations: tuple[str, ...]
    rule: str
