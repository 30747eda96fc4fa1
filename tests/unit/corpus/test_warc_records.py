"""Web archives as crawlers write them: what is read, and that a defect costs one record."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from pathlib import Path

import pytest
from corpus_inputs import page, warc_record, warc_response

from stamm.base.errors import DataError
from stamm.corpus.documents import InputRecord, UnreadableRecord
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.readers.rows import FieldUse

PAGE, AFTER = page("The bridge."), page("The tunnel.")
HTML, PLAIN = {"Content-Type": "text/html"}, {"Content-Type": "text/plain; charset=utf-8"}
NEXT = warc_response("https://a.test/next", AFTER)
HTTP = "application/http; msgtype=response"


def read(
    folder: Path, archive: bytes, limits: ReadLimits | None = None, use: FieldUse | None = None
) -> list[InputRecord | UnreadableRecord]:
    path = folder / "a.warc"
    path.write_bytes(archive)
    return list(read_input("a.warc", path, limits or ReadLimits(), use=use))


def results(records: list[InputRecord | UnreadableRecord]) -> list[bytes | str]:
    return [r.content if isinstance(r, InputRecord) else r.reason for r in records]


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def chunked(body: bytes, head: str = "%x\r\n") -> bytes:
    parts = [body[i : i + 40] for i in range(0, len(body), 40)]
    framed = [(head % len(part)).encode() + part + b"\r\n" for part in parts]
    return b"".join(framed) + b"0\r\n\r\n"


LETTERS = [
    b"A guide to the bridge\n\nThe",
    b"Dear all,\r\n\r\nThe",
    b"2024\nThe",
]


@pytest.mark.parametrize(
    ("headers", "body", "content"),
    [
        *(({**HTML, "Content-Encoding": name}, PAGE, PAGE)
          for name in ("gzip", "x-gzip", "deflate", "br", "zstd", "none", "utf-8", "UTF-8", "identity",
                       "", "text/html", "gzip, br")),
        ({**HTML, "Content-Encoding": "gzip"}, gzip.compress(PAGE, mtime=0), PAGE),
        ({**HTML, "Content-Encoding": "deflate"}, zlib.compress(PAGE), PAGE),
        ({**HTML, "Content-Encoding": "deflate"}, raw_deflate(PAGE), PAGE),
        ({**HTML, "Content-Encoding": "gzip, gzip"}, gzip.compress(gzip.compress(PAGE, mtime=0), mtime=0), PAGE),
        (HTML, gzip.compress(PAGE, mtime=0), PAGE),
        ({**HTML, "Transfer-Encoding": "gzip, chunked"}, chunked(gzip.compress(PAGE, mtime=0)), PAGE),
        ({**HTML, "Transfer-Encoding": "gzip"}, gzip.compress(PAGE, mtime=0), PAGE),
        ({**HTML, "Transfer-Encoding": "chunked"}, chunked(PAGE), PAGE),
        ({**HTML, "Transfer-Encoding": "chunked"}, chunked(PAGE, "%012x \r\n"), PAGE),
        ({**HTML, "Transfer-Encoding": "chunked", "Content-Encoding": "gzip"},
         chunked(gzip.compress(PAGE, mtime=0)), PAGE),
        ({**HTML, "Transfer-Encoding": "chunked"}, PAGE, PAGE),
        *(({**PLAIN, "Transfer-Encoding": "chunked"}, text, text) for text in LETTERS),
        ({"content-type": 'TEXT/HTML; Charset="utf-8"'}, PAGE, PAGE),
        ({"Content-Type": "text/html, text/html"}, PAGE, PAGE),
        ({**HTML, "X-Folded": "a\r\n  b"}, PAGE, PAGE),
        ({**HTML, "Content-Encoding": "none"}, b"\xff\xfe<\0p\0>\0", b"\xff\xfe<\0p\0>\0"),
        ({**HTML, "Content-Encoding": "br"}, b"\x0b\x02\x80binary", "content_encoding"),
        ({**HTML, "Content-Encoding": "gzip"}, gzip.compress(PAGE, mtime=0)[:-20], "truncated_record"),
        ({**HTML, "Transfer-Encoding": "chunked"}, chunked(PAGE)[:-30], "truncated_record"),
        # It may be text, and may be the beginning of a chunk of 64,206 bytes.
        ({**PLAIN, "Transfer-Encoding": "chunked"}, b"face\r\nThe bridge", "truncated_record"),
        ({**HTML, "Content-Encoding": "deflate"}, raw_deflate(b"x" * 10**6), "record_too_long"),
    ],
)  # fmt: skip
def test_bodies_in_and_out_of_their_encoding(
    tmp_path: Path, headers: dict[str, str], body: bytes, content: bytes | str
) -> None:
    archive = warc_response("https://a.test/", body, headers) + NEXT
    assert results(read(tmp_path, archive, ReadLimits(record_bytes=100_000))) == [content, AFTER]


def test_heads_as_crawlers_write_them(tmp_path: Path) -> None:
    plain = b"Content-Type: text/html\n\n" + PAGE
    bodies = [
        warc_record("https://a.test/lf", b"HTTP/1.1 200 OK\n" + plain, content_type=HTTP),
        warc_record("https://a.test/untyped", b"HTTP/1.1 200 OK\n" + plain),
        warc_record("https://a.test/2", b"HTTP/2 200\n" + plain, content_type=HTTP),
        warc_record(
            "https://a.test/100",
            b"HTTP/1.1 100 Continue\n\nHTTP/1.1 200 OK\n" + plain,
            content_type=HTTP,
        ),
        warc_record("<https://a.test/brackets>", b"HTTP/1.0 200 OK\n" + plain, content_type=HTTP),
        warc_record(
            "https://a.test/wet", b"The bridge.", kind="conversion", content_type="text/plain"
        ),
    ]
    lf = bodies[0].replace(b"\r\n", b"\n").replace(b"/lf", b"/warc-lf")
    records = read(tmp_path, b"".join(bodies) + lf + b"\r\n\r\n\r\n" + NEXT + b"\n\n")
    assert [r.url.rpartition("/")[2] for r in records] == [
        "lf", "untyped", "2", "100", "brackets", "wet", "warc-lf", "next",
    ]  # fmt: skip
    assert set(results(records)) == {PAGE, b"The bridge.", AFTER}


FULL = warc_response("https://a.test/1", PAGE)
SIZE = int(FULL.split(b"Content-Length: ")[1].split(b"\r\n")[0])


@pytest.mark.parametrize(
    ("archive", "expected"),
    [
        (FULL.replace(b": %d\r" % SIZE, b": %d\r" % (SIZE - 8)) + NEXT, ["truncated_record", AFTER]),
        (FULL.replace(b": %d\r" % SIZE, b": 0\r") + NEXT, ["truncated_record", AFTER]),
        (FULL.replace(b": %d\r" % SIZE, b": %d\r" % (SIZE + 4)) + NEXT, [PAGE + b"\r\n\r\n", AFTER]),
        (FULL.replace(b": %d\r" % SIZE, b": %d\r" % (SIZE + 90)) + NEXT, ["truncated_record", AFTER]),
        (FULL.replace(b": %d\r" % SIZE, b": 99999999\r") + NEXT, ["truncated_record", AFTER]),
        (FULL[:-2] + NEXT, [PAGE, AFTER]),
        (FULL[:-4] + NEXT, [PAGE, AFTER]),
        (FULL + b"junk\r\n\r\n" + NEXT, [PAGE, "broken_archive", AFTER]),
        (FULL + b"WARC/junk\r\n\r\n" + NEXT, [PAGE, "truncated_record", AFTER]),
        (FULL.replace(b"Content-Length", b"X"), ["truncated_record"]),
        (
            FULL.replace(b"WARC-Date", b"X: " + b"x" * 40_000 + b"\r\nWARC-Date") + NEXT,
            [PAGE, AFTER],
        ),
        (
            FULL.replace(b"WARC-Date", b"X: " + b"x" * 2**20 + b"\r\nWARC-Date") + NEXT,
            ["record_too_long", AFTER],
        ),
        (FULL.replace(b"WARC-Date", b"WARC-Truncated: length\r\nWARC-Date") + NEXT,
         ["truncated_record", AFTER]),
        (FULL.replace(b"WARC-Date", b"WARC-Segment-Number: 1\r\nWARC-Date") + NEXT,
         ["truncated_record", AFTER]),
        (FULL.replace(b"WARC-Date", b"WARC-Target-URI: https://b.test/\r\nWARC-Date") + NEXT,
         ["bad_value", AFTER]),
    ],
)  # fmt: skip
def test_a_defect_costs_one_record(
    tmp_path: Path, archive: bytes, expected: list[bytes | str]
) -> None:
    records = read(tmp_path, NEXT + archive + NEXT)
    assert results(records) == [AFTER, *expected, AFTER]
    assert [record.place.position for record in records] == list(range(1, len(records) + 1))


def test_the_first_bytes_decide_whether_it_is_an_archive(tmp_path: Path) -> None:
    assert results(read(tmp_path, b"\r\n\r\n" + NEXT)) == [AFTER]
    with pytest.raises(DataError, match="does not begin with WARC/"):
        read(tmp_path, b"junk" + NEXT)


def test_the_texts_of_common_crawl_are_read_by_their_own_ending(tmp_path: Path) -> None:
    path = tmp_path / "CC-MAIN-2026-10.warc.wet.gz"
    wet = warc_record("https://a.test/", b"A text.", kind="conversion", content_type="text/plain",
                      fields="WARC-Identified-Content-Language: eng\r\n")  # fmt: skip
    info = warc_record(
        "", b"Software-Info: x", kind="warcinfo", content_type="application/warc-fields"
    )
    path.write_bytes(gzip.compress(info, mtime=0) + gzip.compress(wet, mtime=0))
    (record,) = read_input(path.name, path, ReadLimits())
    assert isinstance(record, InputRecord)
    assert (record.content, record.url, record.is_html) == (b"A text.", "https://a.test/", False)


def test_unknown_fields_of_heads_are_counted(tmp_path: Path) -> None:
    use = FieldUse()
    own = warc_record("https://a.test/", b"text", kind="resource", content_type="text/plain",
                      fields="WARC-IP-Address: 1.2.3.4\r\nWARC-Mood: good\r\n")  # fmt: skip
    read(tmp_path, own + own + NEXT, use=use)
    assert use.facts() == {"unknown_keys": {"warc-mood": 2}}


def test_wrong_lengths_cannot_make_an_archive_costly(tmp_path: Path) -> None:
    """Each record claims all others; reading them again and again would take hours."""
    record = warc_record("https://a.test/", b"x", kind="resource", length=str(16 * 2**20))
    tracemalloc.start()
    *records, last = read(tmp_path, record * (8 * 2**20 // len(record)))
    assert isinstance(last, UnreadableRecord)
    assert last.reason == "broken_archive"
    assert "too many records with a wrong Content-Length" in last.detail
    assert 5 < len(records) < 100
    assert tracemalloc.get_traced_memory()[1] < 2**27
    tracemalloc.stop()
