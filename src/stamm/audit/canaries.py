"""Canaries by kind: exposure of made-up texts, and memorization of varied copies against exact ones.

Source   Carlini et al. 2019 (arXiv 1802.08232), section 4: exposure by sampling, the rank among
         drawn texts, not among all possible ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stamm.audit.config import AuditConfig
from stamm.audit.memorization import (
    NEVER,
    Continuation,
    Passage,
    by_repeats,
    differences,
    grouped,
    prompts,
)
from stamm.corpus.canaries.random_text import rivals
from stamm.corpus.config import Kind
from stamm.models.decoder import Decoder
from stamm.models.generate import nats_of_sequences
from stamm.statistics.estimates import mean_estimate

PASSAGES = "passages"
BESIDE: Mapping[Kind, str] = {
    "rewrapped": PASSAGES,
    "indented": PASSAGES,
    "prefixed": PASSAGES,
    "prefixed_words": "random_words",
}
"""The kind with exact copies that a kind with varied copies is compared with: texts of the same form,
repeated equally often."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Parameters with which the made-up texts of a corpus were drawn.

    words        words in a text
    vocabulary   the words to draw from

    Raises   ValueError when no text can be drawn.
    """

    seed: int
    words: int
    vocabulary: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words < 1 or not self.vocabulary:
            raise ValueError(f"{self.words} words of {len(self.vocabulary)} cannot be drawn")


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Rank of a canary's likelihood among texts drawn in the same way and never planted.

    rank         from 1, the most likely, among the canary and `candidates` texts; last among equals
    candidates   number of texts drawn
    """

    rank: int
    candidates: int

    @property
    def bits(self) -> float:
        """log2(candidates + 1) - log2(rank).

        A text never seen has every rank with equal probability: its mean over many candidates is
        1.44 bits (1 / ln 2), not 0.
        """
        return math.log2(self.candidates + 1) - math.log2(self.rank)


def exposure(cost: float, others: Sequence[float]) -> Exposure:
    """The exposure of a canary, from its cost in nats and those of texts never planted.

    Edge   a model to which all texts cost the same exposes none: rank candidates + 1, 0 bits. A
           non-finite cost (NaN) ranks last.
    """
    cheaper = sum(not other > cost for other in others)
    return Exposure(rank=1 + cheaper, candidates=len(others))


def rival_costs(
    config: AuditConfig,
    decoder: Decoder,
    encode: Callable[[str], Sequence[int]],
    begin: Sequence[int],
    kind: Kind,
    drawing: Drawing,
) -> list[float]:
    """Cost in nats of each rival's first tokens, as many as of a canary."""
    texts = rivals(kind, config.candidates, drawing.seed, drawing.words, drawing.vocabulary)
    cut = prompts(config, encode, [Passage(probe_id="", repeats=NEVER, text=t) for t in texts])
    costs = nats_of_sequences(
        decoder, [[*begin, *prompt.prefix, *prompt.truth] for prompt in cut], config.batch_tokens
    )
    return [float(cost.double().sum()) for cost in costs]


def exposures(
    given: Mapping[Kind, Sequence[Continuation]], costs: Mapping[Kind, Sequence[float]]
) -> dict[str, Exposure]:
    """Exposure of every made-up canary by its identifier, for kinds that have rivals."""
    return {
        continuation.passage.probe_id: exposure(continuation.total_nats, costs[kind])
        for kind, group in given.items()
        if costs.get(kind)
        for continuation in group
    }


def by_kind(
    given: Mapping[Kind, Sequence[Continuation]],
    passages: Sequence[Continuation],
    exposed: Mapping[str, Exposure],
    skipped: Mapping[Kind, int],
) -> list[dict[str, Any]]:
    """Results of each kind of canary, by repeats, in the order given.

    skipped        canaries of a kind too short to be measured
    beside         the kind with exact copies that a kind with varied ones is compared with
    minus_exact    difference to exact copies with the same repeats; None without any
    exposure_bits  of made-up texts; None for passages of books
    """
    exact: dict[str, dict[int, list[Continuation]]] = {PASSAGES: grouped(passages)}
    exact.update((kind, grouped(group)) for kind, group in given.items())
    return [
        {
            "kind": kind,
            "beside": BESIDE.get(kind),
            "skipped": skipped[kind],
            "candidates": next(
                (exposed[name].candidates for name in _names(group) if name in exposed), 0
            ),
            "buckets": [
                {
                    **bucket,
                    "exposure_bits": _mean_bits(exposed, exact[kind][bucket["repeats"]]),
                    "minus_exact": _minus(exact, kind, bucket["repeats"]),
                }
                for bucket in by_repeats(group)
            ],
        }
        for kind, group in given.items()
    ]


def _names(group: Sequence[Continuation]) -> list[str]:
    return [continuation.passage.probe_id for continuation in group]


def _mean_bits(exposed: Mapping[str, Exposure], group: Sequence[Continuation]) -> Any:
    bits = [exposed[name].bits for name in _names(group) if name in exposed]
    return asdict(mean_estimate(bits)) if bits else None


def _minus(
    exact: Mapping[str, Mapping[int, Sequence[Continuation]]], kind: Kind, repeats: int
) -> Any:
    """Difference to exact copies; None for texts that were never planted."""
    other = exact.get(BESIDE.get(kind, ""), {}).get(repeats)
    return differences(exact[kind][repeats], other) if other and repeats != NEVER else None
