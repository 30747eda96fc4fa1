"""Configuration of the opt-outs honoured beside robots.txt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate
from stamm.corpus.consent.content_usage import USAGE_LABELS


@dataclass(frozen=True, kw_only=True)
class SignalsConfig:
    """One switch per signal. One opt-out is enough.

    noai             noai in X-Robots-Tag or <meta name="robots">, for all or for a configured agent;
                     a convention of DeviantArt (2022) without a standard
    noimageai        the same for noimageai, which is about images: off by default
    agent_noindex    noindex or none for a configured agent. Without an agent it is for search
                     engines (Google, "Robots meta tag specifications")
    tdm_reservation  tdm-reservation: 1 in tdmrep.json, a header or a meta (W3C TDM Reservation
                     Protocol, final group report 2024-05-10)
    tdmrep_unparsable  policy for a tdmrep.json that cannot be parsed
    content_usage    the headers Content-Usage: train-ai=n (draft-ietf-aipref-attach-05) and
                     Content-Signal: ai-train=no (contentsignals.org)
    usage_labels     the labels checked there
    ai_txt           text refused in /ai.txt (Spawning, 2023; no standard)
    rsl              an RSL licence inside the page that does not grant training to everyone without
                     payment (terms.py)
    row_opt_out      a field of a row of JSONL or a table that opts it out: noai, opt_out, HPLT's
                     robotstxt: disallowed … (readers/rows.py: ROW_KEYS.refused)
    """

    noai: bool = True
    noimageai: bool = False
    agent_noindex: bool = True
    tdm_reservation: bool = True
    tdmrep_unparsable: Literal["allow", "drop"] = "drop"
    content_usage: bool = True
    usage_labels: tuple[str, ...] = USAGE_LABELS
    ai_txt: bool = True
    rsl: bool = True
    row_opt_out: bool = True

    def __post_init__(self) -> None:
        validate(
            self,
            ("usage_labels", len(self.usage_labels) > 0, "is empty: name train-ai at least"),
            (
                "usage_labels",
                all(label == label.lower() and label.strip() for label in self.usage_labels),
                "has a label that is not in lower case, which cannot match",
            ),
        )
