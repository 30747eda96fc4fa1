"""Configuration of PII replacement. Light: the command line imports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PiiConfig:
    """Kinds of PII that are replaced by a marker (`<email-pii>`, `<ip-pii>`, `<iban-pii>`, ...).

    phone   national numbers of the document's language, and international ones in any
    """

    email: bool = True
    ip: bool = True
    iban: bool = True
    card: bool = True
    phone: bool = True
