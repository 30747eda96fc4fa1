"""What a snapshot says of robots.txt, as it is asked by address."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stamm.corpus.config import ReadLimits
from stamm.corpus.consent.frozen import FrozenFile, read_frozen
from stamm.corpus.consent.robots import RobotsAnswer
from stamm.corpus.records import clean_field


def read_snapshot(path: Path, limits: ReadLimits) -> list[RobotsAnswer]:
    """The robots.txt answers in a snapshot file: JSONL with url, status, fetched and text.

    Raises   DataError for a line that is not such an object: consent rests on this file, so a
             part of it cannot be passed over.
    """
    return robots_answers(read_frozen(path, limits))


def robots_answers(rows: Iterable[FrozenFile]) -> list[RobotsAnswer]:
    """The robots.txt among the answers of sites."""
    return [
        # The date is copied into every row of the ledger.
        RobotsAnswer(url=row.url, status=row.status, read=clean_field(row.fetched), text=row.text)
        for row in rows
        if row.kind == "robots"
    ]
