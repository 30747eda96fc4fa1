"""Files of a search for activations: screen.json, costs.json, plan.json, search.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

SCREENED, COSTS, PLAN, PLAN_SHA256 = "screen.json", "costs.json", "plan.json", "plan.sha256"


@dataclass(frozen=True, kw_only=True)
class CandidateFile:
    """screen.json: what the screen found about one candidate.

    gradient       its pieces, "x > 0: 2*alpha_p*x + beta"
    reasons        why it is not trained; () when it passed
    known          sentences of the rediscovery detector
    growth         of f on the left and on the right
    nonlinearity, gain, chi   under N(0, 1) at the initial values; None where they are not defined
    operations     of the forward and of the backward pass
    """

    SCHEMA: ClassVar[int] = 1

    name: str
    content_hash: str = ""
    gradient: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    growth: tuple[str, ...] = ()
    nonlinearity: float | None = None
    gain: float | None = None
    chi: float | None = None
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CostsFile:
    """costs.json: medians of forward and backward pass of the baseline's kernel and the candidates'.

    seconds   by candidate that passed the screen, and of the baseline under its own name
    passed    candidates that are trained, in the order of the families
    """

    SCHEMA: ClassVar[int] = 1

    baseline: str
    processor: str
    seconds: Mapping[str, float]
    slower: float
    passed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PlannedCandidate:
    """A candidate that is trained."""

    name: str
    content_hash: str


@dataclass(frozen=True, kw_only=True)
class SearchPlanFile:
    """plan.json: what a search decided before its first training run.

    config_sha256   of the search's configuration
    rounds          number of candidates that each round keeps at most
    rule            how candidates are dropped, and what a winner is
    """

    SCHEMA: ClassVar[int] = 1

    config_sha256: str
    baseline: str
    candidates: tuple[PlannedCandidate, ...]
    rounds: tuple[int, ...]
    confirmations: tuple[str, ...]
    rule: str


@dataclass(frozen=True, kw_only=True)
class RankedCandidate:
    """A candidate after a round: difference to the baseline in bits per byte, and its interval."""

    name: str
    difference: float | None
    low: float | None
    high: float | None
    kept: bool


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """A round of successive halving; candidates best first."""

    folder: str
    seeds: int
    tokens: float | None
    ranking: tuple[RankedCandidate, ...]


@dataclass(frozen=True, kw_only=True)
class ConfirmationResult:
    """The finalist against the baseline on seeds and text that the search did not use.

    better    whether the finalist is better, at the plan's confidence
    excluded  the improvement in bits per byte above which all are excluded; None when better
    """

    name: str
    folder: str
    matched: str
    parameters: int | None
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    better: bool
    excluded: float | None


@dataclass(frozen=True, kw_only=True)
class SearchFile:
    """search.json: the result of a search so far.

    state      "searching", "confirming" or "complete"
    finalist   "" before the last round, or when no candidate was left
    winner     the finalist, when every confirmation shows that it is better
    """

    SCHEMA: ClassVar[int] = 1

    state: str
    plan_sha256: str
    baseline: str
    finalist: str = ""
    winner: str = ""
    rounds: tuple[RoundResult, ...] = ()
    confirmations: tuple[ConfirmationResult, ...] = ()
    sentences: tuple[str, ...] = ()
