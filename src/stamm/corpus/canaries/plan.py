"""Canaries: texts whose repetition is known, of kinds that the probes do not cover.

A model cannot have learned a random text from elsewhere. And a passage that occurs in the stream in
many layouts tests whether Goldfish, whose mask is a hash of the previous tokens, can be evaded: each
layout is masked at other tokens, so together they may reveal all of it.

Source   Carlini et al. 2019 (arXiv 1802.08232) for canaries; random sequences after different
         prefixes: the technical report of Apertus (arXiv 2509.14233).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.corpus.canaries.config import CanariesConfig, Kind, ProbesConfig
from stamm.corpus.canaries.probes import draw_passages, wanted_passages
from stamm.corpus.canaries.random_text import Draws, made_up, random_words
from stamm.corpus.limits import ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.replace import Cleaned
from stamm.corpus.records import InputRecord, content_id

_FROM_BOOKS: tuple[Kind, ...] = ("rewrapped", "indented", "prefixed")
_NARROWEST, _WIDEST = 40, 100  # characters of a line
_DEEPEST = 4  # blanks before a line
_VOCABULARY_PASSAGES = 64
_LICENCE = "CC0-1.0"


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One document of a canary, with its number of repeats in the stream."""

    document_id: str
    text: str
    repeat: int


@dataclass(frozen=True, kw_only=True)
class Canary:
    """One canary.

    probe_id   "rewrapped-r16-0003": the fourth of its kind with 16 repeats
    repeat     repeats of its text in the training stream; 0: never, the control
    text       common text of all copies, as an audit prompts and expects it
    copies     its documents: one with `repeat`, or `repeat` different ones
    record     the book of its text; None for a random text
    """

    probe_id: str
    kind: Kind
    repeat: int
    text: str
    copies: tuple[Copy, ...]
    record: InputRecord | None


def plan_canaries(
    config: CanariesConfig,
    probes: ProbesConfig,
    path: Path,
    limits: ReadLimits,
    seed: int,
    pii: PiiConfig,
) -> list[Canary]:
    """The canaries of a corpus: by kind, then by bucket, in the order of the configuration.

    probes   its books provide passages and words; passages of probes are not used again

    Edge     Copies are near-duplicates of each other on purpose: plant them after deduplication.
             Secrets contain text in the form of personal data: do not replace it.
    Raises   DataError when the books do not give enough distinct passages.
    Checked  tests/unit/corpus/test_canaries.py
    """
    drawn = draw_passages(probes, path, limits, seed, pii)
    words = vocabulary(drawn)
    spare = drawn[wanted_passages(probes) :]
    kinds = [kind for kind in config.kinds if kind in _FROM_BOOKS]
    needed = len(kinds) * len(config.repeats) * config.per_bucket
    if len(spare) < needed or not words:
        raise DataError(
            f"{probes.books} leaves {len(spare)} passages beside the probes, {needed} are needed",
            where="corpus.canaries",
            fix="Set corpus.canaries.per_bucket or corpus.probes.passages_per_bucket lower, or "
            "name more books",
        )
    passages = iter(spare)
    found = []
    for kind in config.kinds:
        # Number before bucket, so that passages drawn one after another fall into all buckets.
        made = {}
        for number in range(config.per_bucket):
            for repeat in config.repeats:
                name = f"{kind}-r{repeat}-{number:04d}"
                record = None
                if kind in _FROM_BOOKS:
                    cleaned, record = next(passages)
                    text = cleaned.text
                else:
                    text = made_up(kind, Draws("canary", seed, name), config.words, words)
                copies = _copies(kind, config, repeat, text, f"{seed} {name}", words)
                made[repeat, number] = Canary(
                    probe_id=name,
                    kind=kind,
                    repeat=repeat,
                    text=text,
                    copies=copies,
                    record=record,
                )
        found += [made[r, n] for r in config.repeats for n in range(config.per_bucket)]
    return found


def vocabulary(drawn: Sequence[tuple[Cleaned, InputRecord]]) -> list[str]:
    """The words that random words are drawn from: those of the first passages, sorted."""
    first = drawn[:_VOCABULARY_PASSAGES]
    return sorted({word for cleaned, _ in first for word in cleaned.text.split()})


def canary_row(canary: Canary) -> dict[str, Any]:
    """A canary as probes.json lists it: the fields of a probe, with `kind` and `copies`."""
    book = canary.record
    return {
        "probe_id": canary.probe_id,
        "kind": canary.kind,
        "repeat": canary.repeat,
        "document_id": canary.copies[0].document_id,
        "copies": len(canary.copies),
        "text": canary.text,
        "url": book.url if book else "",
        "source": book.source if book else f"canary:{canary.kind}",
        "licence": book.licence if book else _LICENCE,
        "language": book.language if book else "",
    }


def _copies(
    kind: Kind, config: CanariesConfig, repeat: int, text: str, name: str, words: list[str]
) -> tuple[Copy, ...]:
    """The documents of a canary: the text `repeat` times, or `repeat` variants once each."""
    variants: dict[Kind, Callable[[Draws], str]] = {
        "rewrapped": lambda draws: _rewrapped(draws, text),
        "indented": lambda draws: _indented(draws, text),
        "prefixed": lambda draws: _prefixed(draws, text, config, words),
        "prefixed_words": lambda draws: _prefixed(draws, text, config, words),
    }
    if kind not in variants or repeat == 0:
        return (_copy(text, repeat),)
    seen: dict[str, None] = {}
    for attempt in count():
        if len(seen) == repeat:
            break
        if attempt == 2 * repeat + 100:
            raise DataError(
                f"{repeat} different layouts of a text of {len(text)} characters cannot be drawn",
                where="corpus.canaries.repeats",
                fix="Name lower counts, or longer passages",
            )
        seen.setdefault(variants[kind](Draws("copy", name, attempt)))
    return tuple(_copy(variant, 1) for variant in seen)


def _copy(text: str, repeat: int) -> Copy:
    return Copy(document_id=content_id("", text.encode()), text=text, repeat=repeat)


def _lines(draws: Draws, text: str) -> Iterator[str]:
    """Lines of drawn widths, broken at blanks only."""
    line: list[str] = []
    room = _NARROWEST + draws.below(_WIDEST - _NARROWEST)
    for word in text.split():
        if line and room < len(word):
            yield " ".join(line)
            line, room = [], _NARROWEST + draws.below(_WIDEST - _NARROWEST)
        line.append(word)
        room -= len(word) + 1
    yield " ".join(line)


def _rewrapped(draws: Draws, text: str) -> str:
    return "\n".join(_lines(draws, text))


def _indented(draws: Draws, text: str) -> str:
    """Lines behind one to four blanks. The first always has some: its first token changes too."""
    return "\n".join(" " * (1 + draws.below(_DEEPEST)) + line for line in _lines(draws, text))


def _prefixed(draws: Draws, text: str, config: CanariesConfig, words: list[str]) -> str:
    """Random words, then the text. Masks differ until the window has left the beginning."""
    return f"{random_words(draws, config.prefix_words, words)}. {text}"
