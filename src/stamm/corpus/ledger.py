"""The ledger: one row per input document with the decision, its reason and the opt-out signal.

Prepared alignment data have a ledger with the same columns: a row per conversation, pair or rated
answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa

KEPT, DROPPED = "kept", "dropped"
ALIGNMENT = "alignment_ledger"
"""Kind of the ledger files of prepared alignment data; those of a corpus are "ledger"."""
PLANTED = "planted"
UNSCORED = -1.0
PII_KINDS = ("email", "ip", "iban", "card", "phone")
"""Kinds of personal data that are replaced; a column pii_… of the ledger counts each."""


@dataclass(kw_only=True)
class LedgerRow:
    """One row of the ledger.

    document_id     SHA-256 of URL and content as read, 32 hexadecimal digits
    input_file      as in the configuration
    input_position  number of the line, archive record or repository file, from 1
    path            of the file inside a repository; the row's own id in alignment data; else ""
    decision        "kept" or "dropped"; reason is empty, one of REASONS or the name of a
                    corpus filter
    consent         state of consent of the host (consent.Decision); "planted" for a probe
    rule, agent     the line or signal that decided, and the agents that it names
    robots_read     when robots.txt was read
    unread_terms    terms of use that the site or page names and that were not read (RSL licence …)
    licence         SPDX expression of the input, else of the page's markup
    licence_basis   its source: "input", the kind of markup (rel, json-ld, header ...), or in a
                    repository the file's own lines (spdx), a rule for its path (reuse), a
                    licence file (file) or a manifest
    language        of the input, else identified, else declared by the page
    language_own, language_other   predictions of stamm's model and CLD2, with their scores
    quality_basis   reference texts of the bounds that the document was checked against
    toxicity, quality   scores of the classifiers; -1 without one
    letters_lost    of a web page: share of the letters of a reading without rules that the
                    extracted text lacks (extract.letters_lost); -1 otherwise
    pii_*           values replaced
    bytes_in        of the text or body as read; of the line if it cannot be read
    bytes_out       of the text kept
    duplicate_of    the duplicate that is kept
    split           "train", "held_out" or "control" (probes that are never trained on)
    """

    document_id: str
    input_file: str
    input_position: int
    path: str = ""
    url: str = ""
    host: str = ""
    source: str = ""
    licence: str = ""
    licence_basis: str = ""
    language: str = ""
    language_own: str = ""
    language_own_score: float = 0.0
    language_other: str = ""
    language_other_score: float = 0.0
    quality_basis: str = ""
    toxicity: float = UNSCORED
    quality: float = UNSCORED
    letters_lost: float = UNSCORED
    date: str = ""
    decision: str = DROPPED
    reason: str = ""
    detail: str = ""
    consent: str = ""
    rule: str = ""
    agent: str = ""
    robots_read: str = ""
    unread_terms: str = ""
    pii_email: int = 0
    pii_ip: int = 0
    pii_iban: int = 0
    pii_card: int = 0
    pii_phone: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    duplicate_of: str = ""
    split: str = ""
    probe_id: str | None = None

    def plain(self) -> dict[str, Any]:
        """The row as column name and value."""
        return asdict(self)


LATER_COLUMNS: dict[str, Any] = {"letters_lost": UNSCORED, "unread_terms": ""}
"""Columns that ledgers of earlier versions lack, with the value of their rows."""

_TYPES = {"int": pa.int64(), "float": pa.float64()}
LEDGER_SCHEMA = pa.schema(
    [(f.name, _TYPES.get(str(f.type), pa.string())) for f in fields(LedgerRow)]
)

DOCUMENTS_SCHEMA = pa.schema(
    [
        ("document_id", pa.string()),
        ("text", pa.string()),
        ("url", pa.string()),
        ("source", pa.string()),
        ("licence", pa.string()),
        ("language", pa.string()),
        ("split", pa.string()),
        ("probe_id", pa.string()),
        ("repeat", pa.int64()),
    ]
)
"""Documents kept. `repeat`: number of copies in the training stream; 1 unless it is a probe."""
