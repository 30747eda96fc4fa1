"""Which personal data is replaced. Light: the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PiiConfig:
    """Which personal data is replaced by a marker (`<email-pii>`, `<ip-pii>`, `<iban-pii>`, ...).

    phone   finds the numbers of a document's language, and those in international form in any
    """

    email: bool = True
    ip: bool = True
    iban: bool = True
    card: bool = True
    phone: bool = True
