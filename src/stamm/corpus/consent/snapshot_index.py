"""On-disk index of a snapshot by host: memory does not grow with the snapshot.

The answers of a snapshot are written once into an SQLite database beside it
(`robots.jsonl.zst.index`), keyed by the content of the snapshot and by this package's code, and
rebuilt when either changes. It may be deleted at any time. A snapshot below 4 MiB, or one in a
folder that cannot be written, is indexed in a temporary database of the process.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from stamm.base.errors import DataError
from stamm.base.files import atomic, disk_full_error, sha256_file, sha256_value
from stamm.corpus.consent.fetch_config import Kind
from stamm.corpus.consent.hosts import normalize_host
from stamm.corpus.consent.snapshot_entry import SnapshotEntry, snapshot_entries
from stamm.corpus.limits import ReadLimits
from stamm.runs.sharded_job import code_hash

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
        found = None
        for index in indexes:
            answer = index.answer(kind, host)
            if answer is not None and (found is None or _precedence(found) <= _precedence(answer)):
                found = answer
        return found

    return find


def index_in_memory(answers: Iterable[SnapshotEntry]) -> SnapshotIndex:
    """Index answers in a temporary database, which SQLite moves to the disk when it grows.

    Edge   an answer whose address names no host is ignored.
    """
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
    """Build missing indexes of large snapshots, before many workers would, each for itself.

    Raises   DataError for an invalid line.
    """
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
    for one in answers:
        try:
            host = normalize_host(one.url)
        except ValueError:
            continue
        if host:
            url, error, text = map(_to_bytes, (one.url, one.error, one.text))
            yield one.kind, host, *_precedence(one), url, one.status, error, text


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


def _connect(place: str) -> sqlite3.Connection:
    return sqlite3.connect(place, isolation_level=None, check_same_thread=False, uri=bool(place))


def _damaged(name: str, error: sqlite3.Error) -> DataError:
    return DataError(f"{name} cannot be read: {error}", fix="Delete it; it will be rebuilt")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogatepass")
