"""The ledger: one row per input document with the decision, its reason and the opt-out signal.

Prepared alignment data have a ledger with the same columns: a row per conversation, pair or rated
answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import read_json

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
    own             values of columns that a user's corpus filters add, by name
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
    own: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The row as column name and value."""
        return {name: getattr(self, name) for name in COLUMNS} | self.own

    def fill(self, columns: Mapping[str, Any]) -> None:
        """Set the values of some columns."""
        for name, value in columns.items():
            if name in COLUMNS:
                setattr(self, name, value)
            else:
                self.own[name] = value


COLUMNS = tuple(f.name for f in fields(LedgerRow) if f.name != "own")
"""Columns of every ledger."""
RESERVED = ("filename", "tokens")
"""Names that rows have beside their columns, in queries and look-ups."""


LATER_COLUMNS: dict[str, Any] = {"letters_lost": UNSCORED, "unread_terms": ""}
"""Columns that ledgers of earlier versions lack, with the value of their rows."""


TRAIN, HELD_OUT, CONTROL = "train", "held_out", "control"


def count_held_out(documents: int, share: float) -> int:
    """Number of held-out documents of a language: max(1, round(share * n)), never all.

    Edge     share 0 holds nothing out; a language with one document is never held out.
    Checked  tests/unit/corpus/test_split.py
    """
    if share == 0.0 or documents < 2:
        return 0
    return min(documents - 1, max(1, round(share * documents)))


def check_held_out(documents: int) -> None:
    """Raise DataError without a held-out document to evaluate on."""
    if not documents:
        raise DataError(
            "the packed corpus holds no held-out document",
            fix="Add documents: none is held out of a language with a single one; or set corpus.held_out "
            "above 0; or leave out the evaluation, evaluate=none",
        )


REASONS: dict[str, str] = read_json(Path(__file__).with_name("reasons.json"))
"""Reasons of the built-in filters. The name of a user's corpus filter is a reason, too, and so are its `reasons`."""


def reason_text(reason: str) -> str:
    """Meaning of a reason; one that is not built in comes from a user's corpus filter."""
    return REASONS.get(reason, "dropped by a corpus filter of the user's own")
