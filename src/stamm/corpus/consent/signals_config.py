"""Which signals about the use of a text are honoured beside robots.txt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate
from stamm.corpus.consent.content_usage import USAGE_LABELS


@dataclass(frozen=True, kw_only=True)
class SignalsConfig:
    """One switch per signal. One refusal is enough.

    noai             noai in X-Robots-Tag or <meta name="robots">, to all or to an agent asked; a
                     convention of DeviantArt (2022) without a standard
    noimageai        the same for noimageai, which speaks of images: off, for this is text
    agent_noindex    noindex or none addressed to an agent asked. A plain one speaks to search
                     engines (Google, "Robots meta tag specifications")
    tdm_reservation  tdm-reservation: 1 in tdmrep.json, a header or a meta (W3C TDM Reservation
                     Protocol, final group report 2024-05-10)
    tdmrep_unparsable  what follows from a tdmrep.json that was meant as one and cannot be read
    content_usage    Content-Usage: train-ai=n (draft-ietf-aipref-attach-05)
    usage_labels     the uses asked about there
    ai_txt           text refused in /ai.txt (Spawning, 2023; no standard)
    """

    noai: bool = True
    noimageai: bool = False
    agent_noindex: bool = True
    tdm_reservation: bool = True
    tdmrep_unparsable: Literal["allow", "drop"] = "drop"
    content_usage: bool = True
    usage_labels: tuple[str, ...] = USAGE_LABELS
    ai_txt: bool = True

    def __post_init__(self) -> None:
        validate(
            self,
            ("usage_labels", len(self.usage_labels) > 0, "is empty: name train-ai at least"),
            (
                "usage_labels",
                all(label == label.lower() and label.strip() for label in self.usage_labels),
                "holds a label that is not in lower case: none such can match",
            ),
        )
