"""Robots.txt answers by host: those of a snapshot, and those that stand in an archive."""

from __future__ import annotations

from collections.abc import Iterable

from stamm.corpus.consent.decision import RobotsBook
from stamm.corpus.consent.frozen import FrozenFile
from stamm.corpus.consent.robots import RobotsAnswer
from stamm.corpus.consent.snapshot_index import latest, shelved


def robots_book(answers: Iterable[RobotsAnswer]) -> RobotsBook:
    """A book of answers that come from elsewhere than a snapshot, each host's last one.

    Edge   an answer whose address names no host speaks for nobody.
    """
    rows = (
        FrozenFile(
            kind="robots", domain="", url=a.url, status=a.status, fetched=a.read, text=a.text
        )
        for a in answers
    )
    return RobotsBook(latest([shelved(rows)], "robots"))
