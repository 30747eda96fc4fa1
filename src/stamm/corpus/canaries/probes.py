"""Passages planted in the corpus to measure memorization by number of repeats.

Each passage is a document of its own. Its bucket is drawn by hash, so that no book, author or
difficulty belongs to one number of repeats.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import DataError
from stamm.corpus.canaries.config import ProbesConfig
from stamm.corpus.dedup.exact import text_key
from stamm.corpus.formats import is_archive
from stamm.corpus.limits import ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.replace import Cleaned, replace_pii
from stamm.corpus.readers.open import read_input
from stamm.corpus.records import InputRecord, content_id

_SENTENCE_START = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"'”’»]))\s+(?=[\"'“‘«]?[A-ZÀ-ÞΑ-ΩА-Я])")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One planted passage.

    probe_id   "r16-0003": the fourth passage with 16 repeats
    repeat     repeats in the training stream; 0: never, the control
    cleaned    the planted passage, personal data replaced
    record     the book of the passage
    """

    probe_id: str
    repeat: int
    document_id: str
    cleaned: Cleaned
    record: InputRecord

    @property
    def text(self) -> str:
        """The passage as it is planted."""
        return self.cleaned.text


def passages(text: str, shortest: int, longest: int) -> Iterator[str]:
    """Disjoint passages of a text, each cut at sentence starts.

    Edge   a stretch without a sentence start inside the bounds is skipped up to the next one.
    """
    flat = " ".join(text.split())
    starts = [0, *(m.end() for m in _SENTENCE_START.finditer(flat))]
    begin = 0
    for stop in starts[1:]:
        length = stop - begin
        if length > longest:
            begin = stop
        elif length >= shortest:
            yield flat[begin:stop].rstrip()
            begin = stop


def wanted_passages(config: ProbesConfig) -> int:
    """Number of passages of the probes, which are the first ones drawn."""
    return config.passages_per_bucket * len(config.repeats)


def draw_passages(
    config: ProbesConfig, path: Path, limits: ReadLimits, seed: int, pii: PiiConfig
) -> list[tuple[Cleaned, InputRecord]]:
    """All distinct passages of the books, in an order drawn by hash, each with its book.

    pii      personal data to replace, as in every other document
    Raises   DataError when the books are an archive, whose pages need a consent check, or cannot
             be read.
    """
    if is_archive(config.books):
        raise DataError(
            f"{config.books} is a web archive",
            where="corpus.probes.books",
            fix="Name a .jsonl, .jsonl.gz or .jsonl.zst of public-domain texts",
        )
    candidates: dict[bytes, tuple[bytes, Cleaned, InputRecord]] = {}
    for record in read_input(config.books, path, limits):
        if not isinstance(record, InputRecord):
            raise DataError(
                f"{config.books} cannot be read: {record.detail}",
                where=f"record {record.place.position}",
            )
        for passage in passages(record.content.decode(), config.shortest, config.longest):
            rank = hashlib.sha256(f"probe {seed} {record.url} {passage}".encode()).digest()
            cleaned = replace_pii(passage, pii)
            candidates.setdefault(text_key(cleaned.text), (rank, cleaned, record))
    return [(c[1], c[2]) for c in sorted(candidates.values(), key=lambda c: c[0])]


def plan_probes(
    config: ProbesConfig, path: Path, limits: ReadLimits, seed: int, pii: PiiConfig
) -> list[Probe]:
    """The probes of a corpus, by bucket in the order of `config.repeats`.

    Raises   DataError as `draw_passages` does, and when there are too few distinct passages.
    """
    drawn = draw_passages(config, path, limits, seed, pii)
    wanted = wanted_passages(config)
    if len(drawn) < wanted:
        most = len(drawn) // len(config.repeats)
        fewer = f"Set corpus.probes.passages_per_bucket={most} or name" if most else "Name"
        raise DataError(
            f"{config.books} gives {len(drawn)} passages of {config.shortest} to {config.longest} "
            f"characters, {wanted} are needed",
            where="corpus.probes",
            fix=f"{fewer} more books",
        )
    return [
        Probe(
            probe_id=f"r{repeat}-{number:04d}",
            repeat=repeat,
            document_id=content_id(record.url, cleaned.text.encode()),
            cleaned=cleaned,
            record=record,
        )
        for bucket, repeat in enumerate(config.repeats)
        for number in range(config.passages_per_bucket)
        for cleaned, record in [drawn[number * len(config.repeats) + bucket]]
    ]
