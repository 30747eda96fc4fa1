"""Personal data in text becomes markers, each kind its own.

Only counts leave this file; a value found is neither logged nor kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stamm.corpus.pii.addresses import address_spans
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.email import email_spans
from stamm.corpus.pii.iban import iban_spans
from stamm.corpus.pii.payment_card import card_spans
from stamm.corpus.pii.phone import phone_spans
from stamm.corpus.pii.word_boundaries import plain_signs
from stamm.corpus.special_tokens import PII_MARKERS


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """A text without the personal data looked for, and how many of each kind were replaced."""

    text: str
    email: int = 0
    ip: int = 0
    iban: int = 0
    card: int = 0
    phone: int = 0


@dataclass(frozen=True, kw_only=True)
class PiiMatch:
    """Where a value stands, and of which kind it is: email, ip, iban, card or phone."""

    start: int
    stop: int
    kind: str


def find_pii(text: str, config: PiiConfig, language: str = "") -> list[PiiMatch]:
    """The values of the kinds switched on, in order, none overlapping another.

    language   of the text, as deu_Latn: where its phone numbers may be at home ("": unknown)

    Edge     digits of twenty other scripts count, and signs of any width (０３－３５８０, jane＠example．com).
             Of two that overlap the first is kept, of two at one place the one with check digits,
             and it reaches to the end of both: no part stays in clear.
    """
    text = plain_signs(text)
    kinds: list[tuple[str, bool, Iterator[tuple[int, int]]]] = [
        ("iban", config.iban, iban_spans(text)),
        ("card", config.card, card_spans(text)),
        ("email", config.email, email_spans(text)),
        ("ip", config.ip, address_spans(text)),
        ("phone", config.phone, phone_spans(text, language)),
    ]
    spans = [
        (start, rank, stop, kind)
        for rank, (kind, wanted, found) in enumerate(kinds)
        if wanted
        for start, stop in found
    ]
    kept: list[PiiMatch] = []
    for start, _, stop, kind in sorted(spans):
        if not kept or start >= kept[-1].stop:
            kept.append(PiiMatch(start=start, stop=stop, kind=kind))
        elif stop > kept[-1].stop:
            kept[-1] = replace(kept[-1], stop=stop)
    return kept


def replace_pii(text: str, config: PiiConfig, language: str = "") -> Cleaned:
    """`text` with a marker in place of each value that find_pii finds, and how many of each kind.

    Time and memory are linear in the length of the text, whatever it holds.

    Checked  tests/unit/corpus/pii/test_labelled.py
    """
    parts, end = [], 0
    counts: Counter[str] = Counter()
    for found in find_pii(text, config, language):
        parts += [text[end : found.start], PII_MARKERS[found.kind]]
        end = found.stop
        counts[found.kind] += 1
    return Cleaned(text="".join([*parts, text[end:]]), **counts)
