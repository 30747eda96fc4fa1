"""Job that plants probes and canaries: a shard of documents and ledger of its own.

Probes are passages of books, to measure memorization by number of repeats. Each is a document; its bucket
is drawn by hash, so that no book, author or difficulty belongs to one number of repeats.

A model cannot have learned a random text from elsewhere. And a passage that occurs in the stream in
many layouts tests whether Goldfish, whose mask is a hash of the previous tokens, can be evaded: each
layout is masked at other tokens, so together they may reveal all of it.

Source   Carlini et al. 2019 (arXiv 1802.08232) for canaries; random sequences after different
         prefixes: the technical report of Apertus (arXiv 2509.14233).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import remove_leftovers, write_json
from stamm.corpus.canaries.random_text import Draws, made_up, random_words
from stamm.corpus.config import (
    PROBES,
    PROBES_SCHEMA,
    PROBES_SHARD,
    CanariesConfig,
    InjectionConfig,
    Kind,
    ProbesConfig,
)
from stamm.corpus.dedup.shingles import text_key
from stamm.corpus.documents import InputRecord, content_id
from stamm.corpus.inputs import is_archive, locate
from stamm.corpus.ledger import CONTROL, KEPT, PII_KINDS, PLANTED, TRAIN, LedgerRow
from stamm.corpus.limits import ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.replace import Cleaned, replace_pii
from stamm.corpus.readers.open import read_input
from stamm.corpus.tables import DOCUMENTS_SCHEMA, LEDGER_SCHEMA, part, write_whole
from stamm.runs.job import Workspace

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


_FROM_BOOKS: tuple[Kind, ...] = ("rewrapped", "indented", "prefixed")
_NARROWEST, _WIDEST = 40, 100  # characters of a line
_DEEPEST = 4  # blanks before a line
_VOCABULARY_PASSAGES = 64
_LICENCE = "CC0-1.0"
_PASSAGE = "a public-domain passage planted to measure memorization; its host was not asked"
_CANARY = "a canary ({}) planted to measure memorization"


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
    canaries = []
    for kind in config.kinds:
        # Number before bucket, so that passages drawn one after another fall into all buckets.
        canary_by_bucket = {}
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
                canary_by_bucket[repeat, number] = Canary(
                    probe_id=name,
                    kind=kind,
                    repeat=repeat,
                    text=text,
                    copies=copies,
                    record=record,
                )
        canaries += [
            canary_by_bucket[r, n] for r in config.repeats for n in range(config.per_bucket)
        ]
    return canaries


def vocabulary(drawn: Sequence[tuple[Cleaned, InputRecord]]) -> list[str]:
    """The words that random words are drawn from: those of the first passages, sorted."""
    first = drawn[:_VOCABULARY_PASSAGES]
    return sorted({word for cleaned, _ in first for word in cleaned.text.split()})


def canary_row(canary: Canary) -> dict[str, Any]:
    """A canary as probes.json lists it: the fields of a probe, with `kind` and `copies`."""
    return {
        "probe_id": canary.probe_id,
        "kind": canary.kind,
        "repeat": canary.repeat,
        "document_id": canary.copies[0].document_id,
        "copies": len(canary.copies),
        "text": canary.text,
        **_book(canary.record, f"canary:{canary.kind}"),
    }


def _book(book: InputRecord | None, source: str = "") -> dict[str, str]:
    """Where a text is from; `source` names a made-up one."""
    made_up = {"url": "", "source": source, "licence": _LICENCE, "language": ""}
    return {name: getattr(book, name) for name in made_up} if book else made_up


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
        return (_of_text(text, repeat),)
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
    return tuple(_of_text(variant, 1) for variant in seen)


def _of_text(text: str, repeat: int) -> Copy:
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
    """Lines indented by one to four blanks; also the first, so that its first token differs."""
    return "\n".join(" " * (1 + draws.below(_DEEPEST)) + line for line in _lines(draws, text))


def _prefixed(draws: Draws, text: str, config: CanariesConfig, words: list[str]) -> str:
    """Random words, then the text: Goldfish masks differ while the hash window contains them."""
    return f"{random_words(draws, config.prefix_words, words)}. {text}"


def inject(config: InjectionConfig, workspace: Workspace) -> None:
    """Write documents, ledger and probes.json of the planted passages.

    Raises   DataError when the books do not give enough passages.
    """
    folder = workspace.folder
    remove_leftovers(folder)
    books = locate(config.probes.books, "corpus.probes.books")
    draw_arguments = (books, config.limits, config.seed, config.pii)
    probes = plan_probes(config.probes, *draw_arguments)
    canaries, made_up = [], None
    if config.canaries:
        canaries = plan_canaries(config.canaries, config.probes, *draw_arguments)
        words = vocabulary(draw_passages(config.probes, *draw_arguments))
        made_up = {"words": config.canaries.words, "vocabulary": words}
    rows = [_probe_row(probe) for probe in probes]
    planted = [
        _planted(row, probe.record, _PASSAGE, date=probe.record.date, **_pii(probe.cleaned))
        for row, probe in zip(rows, probes, strict=True)
    ]
    planted += [
        _planted(canary_row(canary) | vars(copy), canary.record, _CANARY.format(canary.kind))
        for canary in canaries
        for copy in canary.copies
    ]
    for kind, schema, at in (("documents", DOCUMENTS_SCHEMA, 0), ("ledger", LEDGER_SCHEMA, 1)):
        write_whole(folder / part(kind, PROBES_SHARD), schema, (pair[at] for pair in planted))
    write_json(
        folder / PROBES,
        {
            "schema": PROBES_SCHEMA,
            "seed": config.seed,
            "repeats": list(config.probes.repeats),
            "probes": rows,
            "canaries": [canary_row(canary) for canary in canaries],
            "made_up": made_up,  # an audit draws further texts of the same kinds
        },
    )


def _probe_row(probe: Probe) -> dict[str, Any]:
    return {
        "probe_id": probe.probe_id,
        "repeat": probe.repeat,
        "document_id": probe.document_id,
        "text": probe.text,
        **_book(probe.record),
    }


def _pii(cleaned: Cleaned) -> dict[str, int]:
    return {f"pii_{kind}": getattr(cleaned, kind) for kind in PII_KINDS}


def _planted(
    row: dict[str, Any], book: InputRecord | None, rule: str, **own: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Document and ledger row of a planted text, from its row of probes.json."""
    size, split = len(row["text"].encode()), TRAIN if row["repeat"] else CONTROL
    named = ("document_id", "url", "source", "licence", "language", "probe_id")
    ledger = LedgerRow(
        **{name: row[name] for name in named},
        **own,
        input_file=book.place.file if book else "",
        input_position=book.place.position if book else 0,
        decision=KEPT,
        consent=PLANTED,
        rule=rule,
        bytes_in=size,
        bytes_out=size,
        split=split,
    )
    return row | {"split": split}, ledger.plain()
