"""Rows of a snapshot: the answer of a site for its robots.txt, tdmrep.json or ai.txt.

A row of the JSONL
  kind       "robots", "tdmrep" or "ai_txt"; "robots" when missing
  domain     the normalized host as listed
  url        the address requested first; the answer is that of its host, wherever redirects led
  status     HTTP status of the last answer, below 1,000; 0 without a readable answer
  error      why status is 0 (`ERRORS`), "" otherwise
  fetched    time of the request: "2026-11-22T02:20:00Z", or its year, month or day alone
  redirects  the addresses that followed, in order
  bytes      length of the stored body, decoded; of a status 2xx only. A longer one is stored up to
             its last whole line within 500 KiB
  truncated  whether the body was longer
  sha256     of these bytes
  text       the same as UTF-8 (UTF-16 after its byte order mark), invalid bytes as U+FFFD

The answers of a large snapshot are written once into an SQLite database beside it
(`robots.jsonl.zst.index`), by host and keyed by the content of the snapshot and by this package's code, and
rebuilt when either changes. It may be deleted at any time. A snapshot below 4 MiB, or one in a
folder that cannot be written, is indexed in a temporary database of the process.
"""

from __future__ import annotations

import errno
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

from cachetools import LRUCache, cached

from stamm.base.errors import DataError
from stamm.base.files import atomic, disk_full_error, sha256_file, sha256_value
from stamm.base.json_text import parse_json
from stamm.corpus.consent.config import KINDS, Kind
from stamm.corpus.consent.hosts import normalize_host, www_variant
from stamm.corpus.documents import clean_field
from stamm.corpus.limits import ReadLimits
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines
from stamm.runs.sharded_job import code_hash

Loaded = TypeVar("Loaded")
_OVERHEAD_CHARACTERS = 256


def cache_by_host(
    load: Callable[[str], tuple[Loaded, int]], capacity: int
) -> Callable[[str], tuple[Loaded, int]]:
    """`load` behind an LRU cache.

    load       returns the value of a host, and the characters it was parsed from
    capacity   characters cached together, and 256 for each host; a larger value is not cached
    """
    cache: LRUCache[str, tuple[Loaded, int]] = LRUCache(
        capacity, getsizeof=lambda loaded: loaded[1] + _OVERHEAD_CHARACTERS
    )
    return cached(cache, key=lambda host: host)(load)


# Values of `error`, with their meaning.
ERRORS = {
    "dns": "the name has no address",
    "private_address": "the name resolves to an address that is not public",
    "refused": "connection refused",
    "connect": "no connection, or a broken one",
    "connect_time_out": "timeout of the connection",
    "tls": "no trusted encrypted connection",
    "time_out": "timeout of the answer",
    "protocol": "the answer is not HTTP",
    "encoding": "the body is not in the stated content encoding",
    "redirects": "an invalid redirect, or too many",
    "rate_limited": "429 after all retries, or a longer pause demanded than is kept",
}
_DATE = re.compile(
    r"[0-9]{4}(-[0-9]{2}(-[0-9]{2}([T ][0-9:.,]{2,20}(Z|[+-][0-9]{2}:?[0-9]{2})?)?)?)?"
)
# Characters of the texts before parsing; a parsed file takes about ten times as much memory.
_CACHED_CHARACTERS = 4 * 2**20
F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class SnapshotEntry:
    """One answer; the fields are those of a row."""

    kind: Kind
    domain: str
    url: str
    status: int
    fetched: str
    redirects: tuple[str, ...] = ()
    bytes: int = 0
    truncated: bool = False
    sha256: str = ""
    text: str = ""
    error: str = ""

    @property
    def state(self) -> str:
        """The state: "found" (2xx), "redirect" (3xx without a location), "absent" (4xx),
        "rate_limited", "server_error" or `error`.
        """
        if self.error:
            return self.error
        if self.status == 429:
            return "rate_limited"
        return {2: "found", 3: "redirect", 4: "absent"}.get(self.status // 100, "server_error")

    def row(self) -> dict[str, Any]:
        """The row, ready for JSON."""
        return {**self.__dict__, "redirects": list(self.redirects)}


class SiteFiles(Generic[F]):
    """The files of one kind by host, parsed at first use.

    find     returns the answer of a host
    parse    parses a text: TdmrepFile, AiTxtFile
    Edge     only answers with status 2xx count. For a host without an answer that of its "www."
             variant is used, as for robots.txt.
    """

    def __init__(
        self, find: Callable[[str], SnapshotEntry | None], parse: Callable[[str], F]
    ) -> None:
        self._find = find
        self._parse = parse
        self._parsed = cache_by_host(self._file, _CACHED_CHARACTERS)

    def file(self, host: str) -> F | None:
        """The file of a normalized host, None when it has none."""
        return self._parsed(host)[0]

    def _file(self, host: str) -> tuple[F | None, int]:
        answer = self._find(host) or self._find(www_variant(host))
        if answer is None or answer.state != "found":
            return None, 0
        return self._parse(answer.text), len(answer.text)


def snapshot_entries(path: Path, limits: ReadLimits) -> Iterator[SnapshotEntry]:
    """Yield the answers of a snapshot file, in order.

    Raises   DataError for an invalid line: a missing answer would change consent decisions.
    """
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in bounded_lines(stream, limits.line_bytes):
                number = line.number
                if line.data.strip():
                    yield parse_entry(parse_json(line.data.decode("utf-8-sig")))
        except (StreamError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{path} is not a snapshot of sites: {error}",
                where=f"line {max(number, 1)}",
                fix="Each line needs url, status, fetched and text",
            ) from None


def parse_entry(row: Any) -> SnapshotEntry:
    """The answer of a row.

    Raises   KeyError, TypeError or ValueError for an invalid row.
    """
    if not isinstance(row, dict):
        raise TypeError(f"{str(row)[:40]!r} is not an object")
    kind, redirects = row.get("kind", "robots"), row.get("redirects", [])
    if kind not in KINDS:
        raise ValueError(f"kind {str(kind)[:40]!r} is not one of {', '.join(KINDS)}")
    if not isinstance(redirects, list):
        raise TypeError(f"redirects {str(redirects)[:40]!r} is not a list")
    url = _typed(row["url"], str)
    host = normalize_host(url)
    if not host:
        raise ValueError(f"{url[:80]!r} names no host")
    return SnapshotEntry(
        kind=cast(Kind, kind),
        domain=_typed(row.get("domain", host), str),
        url=url,
        status=_status(row["status"]),
        fetched=_date(row["fetched"]),
        redirects=tuple(_typed(target, str) for target in redirects),
        bytes=_typed(row.get("bytes", 0), int),
        truncated=_typed(row.get("truncated", False), bool),
        sha256=_typed(row.get("sha256", ""), str),
        text=_typed(row["text"], str),
        error=_typed(row.get("error", ""), str),
    )


def decode_body(body: bytes) -> str:
    """Decode a body: UTF-8, or UTF-16 after its byte order mark; invalid bytes as U+FFFD."""
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return body.decode("utf-16", "replace")
    return body.decode("utf-8", "replace")


def _status(value: Any) -> int:
    status = _typed(value, int)
    if isinstance(value, bool) or not 0 <= status <= 999:
        raise ValueError(f"{str(value)[:40]!r} is not an HTTP status")
    return status


def _date(value: Any) -> str:
    """A valid date: it is copied into the ledger, and compared to find the newest answer."""
    date = clean_field(_typed(value, str))
    if _DATE.fullmatch(date) is None:
        raise ValueError(f"{date[:40]!r} is not a date such as 2026-11-22")
    return date


V = TypeVar("V", str, int, bool)


def _typed(value: Any, kind: type[V]) -> V:
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:40]!r} is not {kind.__name__}")
    return value


INDEX = ".index"
_SMALL_BYTES = 4 * 2**20
_PAGES_KIB = 8 * 1024
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_TABLES = (
    "CREATE TABLE origin (key TEXT)",
    "CREATE TABLE answer (kind TEXT, host TEXT, fetched TEXT, settled INTEGER, url BLOB,"
    " status INTEGER, error BLOB, text BLOB, PRIMARY KEY (kind, host))",
)
# Of several answers of one host the newest counts; of these one that is not a redirect, and of these
# the last in order.
_PUT = (
    "INSERT INTO answer VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (kind, host) DO UPDATE SET"
    " fetched = excluded.fetched, settled = excluded.settled, url = excluded.url,"
    " status = excluded.status, error = excluded.error, text = excluded.text"
    " WHERE (excluded.fetched, excluded.settled) >= (fetched, settled)"
)
_GET = "SELECT fetched, url, status, error, text FROM answer WHERE kind = ? AND host = ?"

Find = Callable[[str], SnapshotEntry | None]


class SnapshotIndex:
    """The answer of each host, by kind."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database = database
        self._name = name

    def answer(self, kind: Kind, host: str) -> SnapshotEntry | None:
        """The answer of a normalized host; None when there is none.

        Raises   DataError when the database is damaged.
        """
        try:
            row = self._database.execute(_GET, (kind, host)).fetchone()
        except sqlite3.DatabaseError as error:
            raise _damaged(self._name, error) from None
        if row is None:
            return None
        fetched, url, status, failure, text = row
        return SnapshotEntry(
            kind=kind,
            domain=host,
            url=_text(url),
            status=status,
            fetched=fetched,
            error=_text(failure),
            text=_text(text),
        )


def latest_entry(indexes: Sequence[SnapshotIndex], kind: Kind) -> Find:
    """Return a function that finds the newest answer of a host in several snapshots."""

    def find(host: str) -> SnapshotEntry | None:
        preferred = None
        for index in indexes:
            answer = index.answer(kind, host)
            if answer is not None and (
                preferred is None or _precedence(preferred) <= _precedence(answer)
            ):
                preferred = answer
        return preferred

    return find


def index_in_memory(answers: Iterable[SnapshotEntry]) -> SnapshotIndex:
    """Index the answers that name a host in a temporary database, on disk where it grows."""
    database = _connect("")
    _fill(database, answers, "")
    return SnapshotIndex(database, "the temporary database")


def open_snapshot(path: Path, limits: ReadLimits) -> SnapshotIndex:
    """Open the index of a snapshot file; it is built when missing or out of date.

    Raises   DataError for an invalid line, or a damaged index.
    """
    index = _index(path, limits)
    if index is None:
        return index_in_memory(snapshot_entries(path, limits))
    return SnapshotIndex(_read_only(index), str(index))


def index_snapshots(paths: Iterable[Path], limits: ReadLimits) -> None:
    """Build missing indexes of large snapshots, before each of many workers would."""
    for path in paths:
        _index(path, limits)


def _index(path: Path, limits: ReadLimits) -> Path | None:
    """The current index of a snapshot, None where it has none."""
    if not path.is_file() or path.stat().st_size < _SMALL_BYTES:
        return None
    index = path.with_name(path.name + INDEX)
    key = sha256_value([sha256_file(path), code_hash(("corpus/consent",))])
    if not _is_current(index, key):
        try:
            with atomic(index) as temporary:
                _build(temporary, snapshot_entries(path, limits), key)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            return None
    return index


def _build(path: Path, answers: Iterable[SnapshotEntry], key: str) -> None:
    path.unlink(missing_ok=True)
    path.touch()
    database = _connect(f"file:{quote(str(path.absolute()))}")
    try:
        _fill(database, answers, key)
    except sqlite3.OperationalError as error:
        if "full" in str(error) or "I/O" in str(error):
            raise disk_full_error(path) from error
        raise
    finally:
        database.close()


def _fill(database: sqlite3.Connection, answers: Iterable[SnapshotEntry], key: str) -> None:
    # `atomic` renames the finished file, so no transaction has to be rolled back.
    for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_PAGES_KIB}"):
        database.execute(f"PRAGMA {setting}")
    database.execute("BEGIN")
    for table in _TABLES:
        database.execute(table)
    database.executemany(_PUT, _rows(answers))
    database.execute("INSERT INTO origin VALUES (?)", (key,))
    database.execute("COMMIT")


def _rows(answers: Iterable[SnapshotEntry]) -> Iterator[tuple[object, ...]]:
    for entry in answers:
        try:
            host = normalize_host(entry.url)
        except ValueError:
            continue
        if host:
            url, error, text = map(_to_bytes, (entry.url, entry.error, entry.text))
            yield entry.kind, host, *_precedence(entry), url, entry.status, error, text


def _precedence(answer: SnapshotEntry) -> tuple[str, bool]:
    return answer.fetched, not 300 <= answer.status < 400


def _is_current(index: Path, key: str) -> bool:
    """Whether the index exists, has this key, and has exactly our tables."""
    if not index.is_file():
        return False
    try:
        database = _read_only(index)
    except DataError:
        return False
    try:
        tables = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        return sorted(sql for (sql,) in tables) == sorted(_TABLES) and database.execute(
            "SELECT key FROM origin"
        ).fetchall() == [(key,)]
    except sqlite3.DatabaseError:
        return False
    finally:
        database.close()


def _read_only(index: Path) -> sqlite3.Connection:
    # A finished index is never written: no locks, which network file systems lack.
    try:
        database = _connect(f"file:{quote(str(index.absolute()))}?mode=ro&immutable=1")
        database.execute(f"PRAGMA cache_size = -{_PAGES_KIB}")
    except sqlite3.DatabaseError as error:
        raise _damaged(str(index), error) from None
    return database


def _connect(database: str) -> sqlite3.Connection:
    return sqlite3.connect(
        database, isolation_level=None, check_same_thread=False, uri=bool(database)
    )


def _damaged(name: str, error: sqlite3.Error) -> DataError:
    return DataError(f"{name} cannot be read: {error}", fix="Delete it; it will be rebuilt")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogatepass")
