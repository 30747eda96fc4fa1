"""Precision, recall and speed of the search for personal data, beside two sets of plain patterns.

stamm      stamm.corpus.pii, every kind
datatrove  what its PIIFormatter is described to do: mailbox pattern, and four numbers with points
           that are a public address; no accounts, cards or phones
apertus    as its pipeline is described to do: the same mailbox pattern, any four numbers with
           points, without borders; accounts only as 4 4 4 4 4 and one or two, without check digits

Both rivals are written from their description, not from their code. The labelled set is
tests/unit/corpus/pii/labelled.jsonl: constructed, by the same hands as the code, so that it shows
what is handled and what is not, and not how often either occurs on the web. For that, name corpora.

Run      python -m bench.pii [--corpus FILE.jsonl.zst ...]
Prints   a table on the labelled set; with --corpus hits and speed on each file, kind by kind
"""

from __future__ import annotations

import argparse
import io
import ipaddress
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import zstandard

from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.replace import find_pii

LABELS = (
    Path(__file__).resolve().parents[1] / "tests" / "unit" / "corpus" / "pii" / "labelled.jsonl"
)
KINDS = tuple(field.name for field in fields(PiiConfig))
Span = tuple[str, int, int]
Finder = Callable[[str, str], Iterator[Span]]

_MAILBOX = re.compile(r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}\b")
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FOUR_NUMBERS = re.compile(rf"(?:{_BYTE}\.){{3}}{_BYTE}")
_SPACED_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}(?: [0-9A-Z]{4}){4} [0-9A-Z]{1,2}")


def stamm(text: str, language: str) -> Iterator[Span]:
    """All kinds."""
    for value in find_pii(text, PiiConfig(), language):
        yield value.kind, value.start, value.stop


def datatrove(text: str, language: str) -> Iterator[Span]:
    """Mailboxes and public addresses."""
    for match in _MAILBOX.finditer(text):
        yield "email", *match.span()
    for match in _FOUR_NUMBERS.finditer(text):
        if ipaddress.ip_address(match[0]).is_global:
            yield "ip", *match.span()


def apertus(text: str, language: str) -> Iterator[Span]:
    """Mailboxes, four numbers with points, accounts in one layout."""
    for kind, pattern in (("email", _MAILBOX), ("ip", _FOUR_NUMBERS), ("iban", _SPACED_IBAN)):
        for match in pattern.finditer(text):
            yield kind, *match.span()


FINDERS: dict[str, Finder] = {"stamm": stamm, "datatrove": datatrove, "apertus": apertus}


def score(finder: Finder, rows: list[dict[str, Any]]) -> dict[str, tuple[int, int, int]]:
    """Right, found and labelled values of each kind; right is the exact stretch."""
    right: Counter[str] = Counter()
    found: Counter[str] = Counter()
    labelled: Counter[str] = Counter(row["kind"] for row in rows)
    for row in rows:
        label = (row["kind"], *row["span"]) if row["kind"] else None
        for span in finder(row["text"], row["language"]):
            found[span[0]] += 1
            right[span[0]] += span == label
    return {kind: (right[kind], found[kind], labelled[kind]) for kind in KINDS}


def alone(kind: str) -> Finder:
    """The search for one kind only."""
    config = PiiConfig(**{name: name == kind for name in KINDS})

    def find(text: str, language: str) -> Iterator[Span]:
        for value in find_pii(text, config, language):
            yield value.kind, value.start, value.stop

    return find


def without_phones(text: str, language: str) -> Iterator[Span]:
    """Every kind but phones."""
    for value in find_pii(text, PiiConfig(phone=False), language):
        yield value.kind, value.start, value.stop


def timed(finder: Finder, rows: list[dict[str, Any]]) -> tuple[float, Counter[str]]:
    """Seconds of processor time and hits by kind over all rows, once."""
    started = time.process_time()
    hits: Counter[str] = Counter()
    for row in rows:
        hits.update(span[0] for span in finder(row["text"], row["language"]))
    return time.process_time() - started, hits


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", nargs="*", type=Path, default=[])
    arguments = parser.parse_args()
    labels = [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]
    print(f"{len(labels)} labelled texts; precision, recall")
    for name, finder in FINDERS.items():
        cells = []
        for kind, (right, found, labelled) in score(finder, labels).items():
            precision = f"{right / found:.3f}" if found else "  -  "
            cells.append(f"{kind} {precision} {right / labelled:.3f}")
        print(f"{name:10} " + "   ".join(cells))
    arms = {**FINDERS, "no phones": without_phones, **{kind: alone(kind) for kind in KINDS}}
    seconds = dict.fromkeys(arms, 0.0)
    size = 0
    for path in arguments.corpus:
        with zstandard.open(path, "rb") as stream:
            rows = [json.loads(line) for line in io.TextIOWrapper(stream, encoding="utf-8")]
        size += sum(len(row["text"].encode()) for row in rows)
        for name, finder in arms.items():
            spent, hits = timed(finder, rows)
            seconds[name] += spent
            if name in FINDERS:
                print(f"{path.name:28} {len(rows):6} texts  {name:10} {dict(sorted(hits.items()))}")
    if size:
        for name, spent in seconds.items():
            print(f"{name:10} {size / 1e6 / spent:7.1f} MB/s")


if __name__ == "__main__":
    main()
