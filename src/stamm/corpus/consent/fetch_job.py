"""The fetch job: writes a snapshot of robots.txt, tdmrep.json and ai.txt of many sites.

Outputs
  snapshot.jsonl.zst  one row per site and kind (snapshot.py), sorted by site, then kind
  summary.json        answers by state, and rules that match no path
While the job runs, answers.jsonl holds the answers in the order they came. A killed fetch resumes
from it and fetches only what is missing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import zstandard

from stamm.base.errors import DataError, RunError
from stamm.base.files import atomic, write_json
from stamm.base.json_text import parse_json
from stamm.corpus.consent.config import FetchConfig, Kind
from stamm.corpus.consent.decision import ABSOLUTE_URL_RULES
from stamm.corpus.consent.fetch import NO_CONTACT, Fetcher, normalize_site
from stamm.corpus.consent.hosts import normalize_host
from stamm.corpus.consent.robots import RobotsFile
from stamm.corpus.consent.snapshot import ERRORS, SnapshotEntry, parse_entry
from stamm.corpus.limits import ReadLimits
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines
from stamm.runs.job import Workspace

SNAPSHOT = "snapshot.jsonl.zst"
SUMMARY = "summary.json"
ANSWERS = "answers.jsonl"
_LONGEST_LINE = 1024
_LEVEL = 9


def utc_now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


def fetch(
    config: FetchConfig,
    workspace: Workspace,
    fetcher: Callable[[FetchConfig], Fetcher] = lambda config: Fetcher(config, utc_now),
) -> None:
    """Fetch the files of every site of `config.domains`; write snapshot and summary.

    fetcher   makes the client; tests connect it to a local server
    Edge      lines of the list that are not a host are counted and skipped.
    Raises    DataError for a list that cannot be read, or a damaged answers.jsonl; RunError where no
              site answered at all, as without a network: nothing is kept, so all are fetched again.
    Checked   tests/unit/corpus/consent/test_fetch.py
    """
    sites, refused = _sites(Path(config.domains))
    with _Answers(workspace.folder / ANSWERS, config.sync_every) as answers:
        asyncio.run(_fetch_all(config, workspace, fetcher, sites, answers))
        wanted = [(site, kind) for site in sites for kind in sorted(config.kinds)]
        with atomic(workspace.folder / SNAPSHOT) as temporary:
            counts = _write_snapshot(temporary, answers, wanted)
            states = {state for state_counts in counts["states"].values() for state in state_counts}
            if states <= set(NO_CONTACT):
                (workspace.folder / ANSWERS).unlink()
                raise RunError(
                    f"none of {len(sites):,} sites answered: {_states(counts['states'])}",
                    fix="Check the network and the list, and run the same command again",
                )
    summary = {"sites": len(sites), "refused_lines": refused, "user_agent": config.user_agent}
    write_json(workspace.folder / SUMMARY, {**summary, **counts})
    workspace.progress.log(f"Answers of {len(sites):,} sites: {_states(counts['states'])}")
    ignored = counts["absolute_rules"]
    if ignored["rules"]:
        workspace.progress.log(
            f"{ignored['rules']:,} rules in {ignored['sites']:,} robots.txt files are {ABSOLUTE_URL_RULES} of "
            "their own site: they match no path and are ignored"
        )
    unread = counts["unread_terms"]
    if unread["lines"]:
        workspace.progress.log(
            f"{unread['lines']:,} lines in {unread['sites']:,} robots.txt files name terms of use that are not "
            "read, such as License: their pages are dropped unless corpus.consent.unread_terms=allow"
        )
    (workspace.folder / ANSWERS).unlink()


def _states(states: Mapping[str, Mapping[str, int]]) -> str:
    """One line: "robots: 3 found, 1 dns (the name has no address)"."""
    kinds = []
    for kind, state_counts in states.items():
        counts = (
            f"{count:,} {state}" + (f" ({ERRORS[state]})" if state in ERRORS else "")
            for state, count in state_counts.items()
        )
        kinds.append(f"{kind}: {', '.join(counts)}")
    return "; ".join(kinds)


async def _fetch_all(
    config: FetchConfig,
    workspace: Workspace,
    fetcher: Callable[[FetchConfig], Fetcher],
    sites: list[str],
    answers: _Answers,
) -> None:
    # Sites with similar names are often on one server; the order by hash separates them.
    order = iter(sorted(sites, key=lambda site: hashlib.sha256(site.encode()).digest()))
    done = 0
    # A DNS look-up blocks a thread until the system's timeout.
    threads = ThreadPoolExecutor(max_workers=config.hosts_at_once)
    asyncio.get_running_loop().set_default_executor(threads)
    workspace.progress.begin("fetch sites", len(sites), "sites")

    async def work(client: Fetcher) -> None:
        nonlocal done
        for site in order:
            missing = [kind for kind in config.kinds if (site, kind) not in answers]
            async for file in client.site(site, missing):
                answers.add(file)
            done += 1
            workspace.progress.advance(done)

    async with fetcher(config) as client, asyncio.TaskGroup() as workers:
        for _ in range(min(config.hosts_at_once, len(sites))):
            workers.create_task(work(client))
    workspace.progress.end()


class _Answers:
    """Answers so far, on disk in the order they came, indexed by site and kind."""

    def __init__(self, path: Path, sync_every: int) -> None:
        self._path = path
        self._sync_every = sync_every
        self._unsynced = 0
        self._places: dict[tuple[str, Kind], tuple[int, int]] = {}
        self._file = path.open("ab+")
        self._end = 0
        for file, size in self._whole_rows():
            self._places[file.domain, file.kind] = (self._end, size)
            self._end += size
        # After `self._end` is a partial row that a killed process left.
        self._file.truncate(self._end)

    def __enter__(self) -> _Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __contains__(self, key: tuple[str, Kind]) -> bool:
        return key in self._places

    def add(self, file: SnapshotEntry) -> None:
        row = json.dumps(file.row()).encode() + b"\n"
        self._file.write(row)
        # A killed process loses nothing that was flushed, a power failure what was not synced.
        self._file.flush()
        self._unsynced += 1
        if self._unsynced >= self._sync_every:
            os.fsync(self._file.fileno())
            self._unsynced = 0
        self._places[file.domain, file.kind] = (self._end, len(row))
        self._end += len(row)

    def row(self, key: tuple[str, Kind]) -> bytes:
        start, size = self._places[key]
        self._file.seek(start)
        return self._file.read(size)

    def _whole_rows(self) -> Iterator[tuple[SnapshotEntry, int]]:
        self._file.seek(0)
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield parse_entry(parse_json(line)), len(line)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise DataError(
                    f"{self._path} is damaged: {error}",
                    where=f"line {number}",
                    fix="Delete the file to fetch every site again",
                ) from None


def _write_snapshot(
    path: Path, answers: _Answers, wanted: list[tuple[str, Kind]]
) -> dict[str, Any]:
    """Write the wanted rows in order; return the counts of the summary."""
    states: dict[str, Counter[str]] = {kind: Counter() for _, kind in wanted}
    truncated, dates = 0, set()
    ignored = {"rules": 0, "sites": 0}
    unread = {"lines": 0, "sites": 0}
    packer = zstandard.ZstdCompressor(level=_LEVEL)
    with path.open("wb") as opened, packer.stream_writer(opened) as packed:
        for key in wanted:
            row = answers.row(key)
            packed.write(row)
            file = parse_entry(parse_json(row))
            states[file.kind][file.state] += 1
            truncated += file.truncated
            dates.add(file.fetched[:10])
            if file.kind == "robots" and file.state == "found":
                robots = RobotsFile(file.text)
                rules = len(robots.absolute_rules(normalize_host(file.url)))
                ignored["rules"] += rules
                ignored["sites"] += rules > 0
                unread["lines"] += len(robots.terms)
                unread["sites"] += len(robots.terms) > 0
    return {
        "states": {
            kind: dict(sorted(state_counts.items()))
            for kind, state_counts in sorted(states.items())
        },
        "truncated": truncated,
        "absolute_rules": ignored,
        "unread_terms": unread,
        "first_day": min(dates, default=""),
        "last_day": max(dates, default=""),
    }


def _sites(path: Path) -> tuple[list[str], int]:
    """The sites of a list, sorted, each once, and the number of invalid lines."""
    sites, refused = set(), 0
    with BoundedStream(path, ReadLimits().expansion) as stream:
        try:
            for line in bounded_lines(stream, _LONGEST_LINE):
                text = line.data.decode("utf-8-sig", "replace").strip()
                if not text or text.startswith("#"):
                    continue
                try:
                    sites.add(normalize_site(text))
                except ValueError:
                    refused += 1
        except StreamError as error:
            raise DataError(f"{path} cannot be read: {error}", where="domains") from None
    if not sites:
        raise DataError(
            f"{path} names no host ({refused} invalid lines)",
            where="domains",
            fix="Write one host per line, such as example.org",
        )
    return sorted(sites), refused
