"""PII replacement: each kind of personal data becomes a marker.

Only counts are returned; values are neither logged nor stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.patterns import (
    address_spans,
    card_spans,
    email_spans,
    iban_spans,
    to_ascii_signs,
)
from stamm.corpus.pii.phone import phone_spans
from stamm.tokenizer.special_tokens import PII_MARKERS


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """A text after PII replacement, and the number of replacements by kind."""

    text: str
    email: int = 0
    ip: int = 0
    iban: int = 0
    card: int = 0
    phone: int = 0


@dataclass(frozen=True, kw_only=True)
class PiiMatch:
    """Position and kind of a value: email, ip, iban, card or phone."""

    start: int
    stop: int
    kind: str


def find_pii(text: str, config: PiiConfig, language: str = "") -> list[PiiMatch]:
    """Find the values of the enabled kinds, in order and without overlap.

    language   of the text, as deu_Latn, for national phone numbers ("": unknown)

    Edge     digits of twenty other scripts count, and characters of any width (０３－３５８０,
             jane＠example．com). Of two that overlap the first is kept, of two with one start the one
             with check digits, extended to the end of both, so that no part remains.
    """
    text = to_ascii_signs(text)
    kinds: list[tuple[str, bool, Iterator[tuple[int, int]]]] = [
        ("iban", config.iban, iban_spans(text)),
        ("card", config.card, card_spans(text)),
        ("email", config.email, email_spans(text)),
        ("ip", config.ip, address_spans(text)),
        ("phone", config.phone, phone_spans(text, language)),
    ]
    spans = [
        (start, rank, stop, kind)
        for rank, (kind, wanted, kind_spans) in enumerate(kinds)
        if wanted
        for start, stop in kind_spans
    ]
    kept: list[PiiMatch] = []
    for start, _, stop, kind in sorted(spans):
        if not kept or start >= kept[-1].stop:
            kept.append(PiiMatch(start=start, stop=stop, kind=kind))
        elif stop > kept[-1].stop:
            kept[-1] = replace(kept[-1], stop=stop)
    return kept


def replace_pii(text: str, config: PiiConfig, language: str = "") -> Cleaned:
    """Replace each value that find_pii finds by a marker; count the values by kind.

    Time and memory are linear in the length of the text.

    Checked  tests/unit/corpus/pii/test_labelled.py
    """
    parts, end = [], 0
    counts: Counter[str] = Counter()
    for match in find_pii(text, config, language):
        parts += [text[end : match.start], PII_MARKERS[match.kind]]
        end = match.stop
        counts[match.kind] += 1
    return Cleaned(text="".join([*parts, text[end:]]), **counts)
