"""Readers: nothing is lost silently, nothing unbounded is held, nothing stops the run."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from corpus_inputs import page, warc_record, warc_response

from stamm.base.errors import DataError
from stamm.corpus.documents import (
    InputRecord,
    UnreadableRecord,
    clean_field,
    content_id,
    whole_text,
)
from stamm.corpus.inputs import locate, shipped_files
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.readers.warc import archived_robots
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines

LIMITS = ReadLimits()
Writer = Callable[..., str]


def read(name: str, limits: ReadLimits = LIMITS) -> list[InputRecord | UnreadableRecord]:
    return list(read_input(name, Path(name), limits))


def reasons(records: list[InputRecord | UnreadableRecord]) -> list[str]:
    return [r.reason if isinstance(r, UnreadableRecord) else "" for r in records]


def test_jsonl_fields_and_positions(write_jsonl: Writer) -> None:
    name = write_jsonl(
        {"text": "one", "url": "https://a.org/1", "license": "CC0-1.0", "language": "eng_Latn"},
        b"   ",
        {"text": "two", "licence": "MIT", "date": "2020", "source": "s", "url": None},
    )
    first, second = read(name)
    assert isinstance(first, InputRecord)
    assert isinstance(second, InputRecord)
    assert (first.place.position, second.place.position) == (1, 3)
    assert (first.licence, first.language, first.url) == ("CC0-1.0", "eng_Latn", "https://a.org/1")
    assert (second.licence, second.date, second.source, second.url) == ("MIT", "2020", "s", "")
    assert second.content == b"two"


def test_a_deep_line_is_told_and_the_next_is_read(write_jsonl: Writer) -> None:
    # The limit of the parser and that of the writer lie a few levels apart.
    depths = (100, *range(700, 1010), 100_000)
    deep = [b'{"text": ' + b"[" * depth + b"]" * depth + b"}" for depth in depths]
    *bad, good = read(write_jsonl(*deep, {"text": "good"}))
    assert set(reasons(bad)) == {"no_text", "invalid_json"}
    assert [r.size for r in bad if isinstance(r, UnreadableRecord)] == list(map(len, deep))
    assert len({r.content_id for r in bad}) == len(deep)
    assert isinstance(good, InputRecord)


@pytest.mark.parametrize(
    ("said", "licence"),
    [
        ({"licence": None, "license": "MIT"}, "MIT"),
        ({"licence": "", "license": "MIT"}, "MIT"),
        ({"licence": " \t", "license": "MIT"}, "MIT"),
        ({"licence": ["a"], "license": "MIT"}, "LicenseRef-Unknown-Terms AND MIT"),
        ({"licence": "CC0-1.0", "license": "MIT"}, "CC0-1.0 AND MIT"),
        ({"licence": "CC0-1.0", "license": None}, "CC0-1.0"),
        ({"licences": ["MIT", "gpl-3.0"]}, "GPL-3.0-only AND MIT"),
        ({"metadata": {"license": "the MIT licence of 2020"}}, "the MIT licence of 2020"),
        (
            {"license": {"name": "x", "url": "https://spdx.org/licenses/MIT"}},
            "https://spdx.org/licenses/MIT",
        ),
        ({"license": "MIT"}, "MIT"),
        ({}, ""),
    ],
)
def test_every_licence_of_a_row_counts(
    write_jsonl: Writer, said: dict[str, object], licence: str
) -> None:
    (record,) = read(write_jsonl({"text": "one", **said}))
    assert isinstance(record, InputRecord) and record.licence == licence


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "\xff"}', "invalid_utf8"),
        (b'{"text": "a"', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"text": ' + b"1" * 5000 + b"}", "invalid_json"),
        (b'{"text": 5}', "no_text"),
        (b'["text"]', "no_text"),
        (b'{"url": "x"}', "no_text"),
        (b'{"text": "a", "url": ["https://a.org/"]}', "bad_url"),
        (b'{"text": "a", "url": 0}', "bad_url"),
        (
            b'{"text": "a", "url": "https://a.org/", "metadata": {"url": "https://b.org/"}}',
            "bad_url",
        ),
        (b'{"text": "a", "license": 3}', "bad_value"),
        (b'{"text": "a", "headers": 3}', "bad_value"),
        (b'{"text": "a", "metadata": {"WARC-Truncated": "length"}}', "truncated_record"),
        (b'{"text": "a", "text": "b"}', "invalid_json"),
        (b'{"text": ["a"]}', "no_text"),
        (
            b'{"text": "a", "meta.url": "https://a.org/", "meta": {"url": "https://b.org/"}}',
            "bad_value",
        ),
        (b'{"text": "a", "URL": "https://a.org/", "WARC-Target-URI": "https://b.org/"}', "bad_url"),
        (b'{"text": "a", "url": "' + b"u" * 5000 + b'"}', "field_too_long"),
    ],
)
def test_a_bad_line_is_told_and_the_next_one_read(
    write_jsonl: Writer, line: bytes, reason: str
) -> None:
    records = read(write_jsonl({"text": "before"}, line, {"text": "after"}))
    assert reasons(records) == ["", reason, ""]
    bad = records[1]
    assert isinstance(bad, UnreadableRecord)
    assert (bad.place.position, bad.size) == (2, len(line))


def test_half_a_surrogate_pair_becomes_a_replacement_character(write_jsonl: Writer) -> None:
    (record,) = read(write_jsonl(b'{"text": "a\\ud800b \\ud83d\\ude00"}'))
    assert isinstance(record, InputRecord)
    assert record.content.decode() == "a\ufffdb \U0001f600"
    assert whole_text("plain") == "plain"


def test_byte_order_mark_is_no_part_of_the_first_line(write_jsonl: Writer) -> None:
    assert reasons(read(write_jsonl(b'\xef\xbb\xbf{"text": "a"}'))) == [""]


def test_a_long_line_is_bounded(write_jsonl: Writer) -> None:
    name = write_jsonl(b'{"text": "' + b"x" * 3_000_000 + b'"}', {"text": "after"})
    tracemalloc.start()
    records = read(name, ReadLimits(line_bytes=10_000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reasons(records) == ["line_too_long", ""]
    assert peak_bytes < 200_000


def test_lines_hold_no_more_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"short\n" + b"y" * 20_000 + b"\n\nlast")
    with BoundedStream(path, 200) as stream:
        lines = list(bounded_lines(stream, 100))
    assert [(line.number, line.size, len(line.data)) for line in lines] == [
        (1, 5, 5),
        (2, 20_000, 100),
        (3, 0, 0),
        (4, 4, 4),
    ]


ROWS = b"".join(json.dumps({"text": f"document {i} " * 20}).encode() + b"\n" for i in range(3000))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst"])
def test_compressions_give_the_same_records(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    packed = {
        ".jsonl": ROWS,
        ".jsonl.gz": gzip.compress(ROWS[:100_000]) + gzip.compress(ROWS[100_000:]),
        ".jsonl.zst": zstandard.compress(ROWS),
    }[suffix.replace(".json.", ".jsonl.")]
    path.write_bytes(packed)
    records = read(str(path))
    assert len(records) == 3000
    assert set(reasons(records)) == {""}


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_truncated_compression_keeps_what_was_read_and_says_so(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    whole = gzip.compress(ROWS) if suffix.endswith(".gz") else zstandard.compress(ROWS)
    path.write_bytes(whole[: len(whole) * 2 // 3])
    records = read(str(path))
    assert reasons(records)[-1] == "broken_compression"
    assert 500 < reasons(records).count("") == len(records) - 1 < 3000
    last = records[-1]
    assert isinstance(last, UnreadableRecord)
    assert last.place.position == len(records)
    assert "are lost" in last.detail


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".warc.gz", ".warc"])
def test_a_file_that_is_not_what_its_name_says_stops_the_run(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    path.write_bytes(b"no such thing at all\n" * 10)
    with pytest.raises(DataError, match=r"in\..* cannot be read: .*record 1.*Check that the file"):
        read(str(path))


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".warc.gz"])
def test_decompression_bomb_is_stopped(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    head = json.dumps({"text": "fine"}).encode() + b"\n"
    bomb = head + b"0" * (80 * 2**20) + b"\n"
    if suffix == ".warc.gz":
        bomb = warc_response("https://a.org/1", page("fine")) + warc_response(
            "https://a.org/2", b"0" * (80 * 2**20)
        )
    path.write_bytes(
        zstandard.compress(bomb) if suffix.endswith(".zst") else gzip.compress(bomb, 1)
    )
    assert reasons(read(str(path), ReadLimits(expansion=1)))[-1] == "decompression_limit"


def test_stream_error_tells_ratio(tmp_path: Path) -> None:
    path = tmp_path / "x.zst"
    path.write_bytes(zstandard.compress(b"0" * (80 * 2**20)))
    with BoundedStream(path, 3) as stream, pytest.raises(StreamError, match="more than 3 to 1"):
        while stream.read():
            pass


def test_archive_pages_headers_and_dates(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.gz"
    headers = {"Content-Type": "text/html; charset=iso-8859-1", "X-Robots-Tag": "noai"}
    path.write_bytes(
        gzip.compress(b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n")
        + gzip.compress(warc_response("https://a.org/1", page("x"), headers))
        + gzip.compress(warc_response("https://a.org/robots.txt", b"User-agent: *\n"))
        + gzip.compress(
            warc_response(
                "https://a.org/2",
                "é".encode("latin-1"),
                {"Content-Type": "text/plain; charset=latin1"},
            )
        )
    )
    first, second = read(str(path))
    assert isinstance(first, InputRecord)
    assert isinstance(second, InputRecord)
    assert (first.place.position, first.date, first.charset) == (2, "2024-05-06", "iso-8859-1")
    assert first.is_html
    assert first.signals.values("x-robots-tag") == ("noai",)
    assert (second.content.decode(), second.is_html) == ("é", False)
    (robots,) = archived_robots(path, LIMITS)
    assert (robots.url, robots.status, robots.read) == (
        "https://a.org/robots.txt",
        200,
        "2024-05-06",
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (warc_response("https://a.org/", page("x"), status="404 Not Found"), "http_status"),
        (warc_response("https://a.org/", b"x", {"Content-Type": "image/png"}), "content_type"),
        (warc_response("https://a.org/", b"x", {"Server": "x"}), "content_type"),
        (
            warc_response(
                "https://a.org/",
                b"\x0b\x01",
                {"Content-Type": "text/html", "Content-Encoding": "br"},
            ),
            "content_encoding",
        ),
        (
            warc_response(
                "https://a.org/",
                b"\0no gzip",
                {"Content-Type": "text/html", "Content-Encoding": "gzip"},
            ),
            "content_encoding",
        ),
        (
            warc_response(
                "https://a.org/",
                gzip.compress(b"x" * 1000, mtime=0)[:-10],
                {"Content-Type": "text/html", "Content-Encoding": "gzip"},
            ),
            "truncated_record",
        ),
        (
            warc_response(
                "https://a.org/",
                gzip.compress(b"x" * 50_000_000, mtime=0),
                {"Content-Type": "text/html", "Content-Encoding": "gzip"},
            ),
            "record_too_long",
        ),
        (
            warc_response(
                "https://a.org/",
                gzip.compress(b"x" * 60_000, mtime=0) * 2,
                {"Content-Type": "text/html", "Content-Encoding": "gzip"},
            ),
            "record_too_long",
        ),
        (warc_response("https://a.org/", b"x" * 200_000), "record_too_long"),
        (warc_response("https://a.org/" + "u" * 5000, page("x")), "field_too_long"),
        (warc_response("", page("x")), "bad_url"),
        (warc_response("<>", page("x")), "bad_url"),
        (warc_response("\u200b", page("x")), "bad_url"),
        (warc_response("https://a.org/", page("x")).replace(b"WARC-Target", b"Other"), "bad_url"),
        (
            warc_response(
                "https://a.org/",
                b"5\r\nhello\r\n9\r\nwor",
                {"Content-Type": "text/html", "Transfer-Encoding": "chunked"},
            ),
            "truncated_record",
        ),
    ],
)
def test_a_bad_response_is_told_and_the_next_one_read(
    tmp_path: Path, record: bytes, reason: str
) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(record + warc_response("https://a.org/next", page("x")))
    records = read(str(path), ReadLimits(record_bytes=100_000))
    assert reasons(records) == [reason, ""]


def test_encoded_bodies_are_undone(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    html = {"Content-Type": "text/html"}
    path.write_bytes(
        warc_response(
            "https://a.org/1", gzip.compress(b"<p>x"), {**html, "Content-Encoding": "gzip"}
        )
        + warc_response(
            "https://a.org/2",
            b"4\r\n<p>x\r\n3;ext=1\r\nyz!\r\n0\r\n\r\n",
            {**html, "Transfer-Encoding": "chunked"},
        )
        + warc_response("https://a.org/3", b"<p>undone", {**html, "Transfer-Encoding": "chunked"})
        + warc_response(
            "https://a.org/4",
            gzip.compress(b"<p>one ") + gzip.compress(b"two") + b"\0\0",
            {**html, "Content-Encoding": "gzip"},
        )
    )
    contents = [r.content for r in read(str(path)) if isinstance(r, InputRecord)]
    assert contents == [b"<p>x", b"<p>xyz!", b"<p>undone", b"<p>one two"]


def test_truncated_and_broken_archives_are_told(tmp_path: Path) -> None:
    good = warc_response("https://a.org/1", page("x"))
    path = tmp_path / "a.warc"
    path.write_bytes(good + warc_response("https://a.org/2", page("y"), cut=5))
    assert reasons(read(str(path))) == ["", "truncated_record"]
    for cut in (12, 60, 150, 200):
        path.write_bytes(good + good[:cut])
        records = read(str(path))
        assert reasons(records) == ["", "truncated_record"]
        assert records[-1].place.position == 2
    path.write_bytes(good + b"garbage that is no record\r\n" + good)
    records = read(str(path))
    assert reasons(records) == ["", "broken_archive", ""]
    assert [record.place.position for record in records] == [1, 2, 3]
    packed = tmp_path / "a.warc.gz"
    packed.write_bytes((gzip.compress(good) + gzip.compress(good))[:-20])
    assert reasons(read(str(packed)))[-1] == "broken_compression"


def test_robots_record_that_cannot_be_read_does_not_pass_for_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    headers = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    path.write_bytes(warc_response("https://a.org/robots.txt", b"\0no gzip", headers))
    (robots,) = archived_robots(path, LIMITS)
    assert robots.status == 0
    shut = warc_response("https://a.org/robots.txt", b"Disallow: /")
    path.write_bytes(shut.replace(b"HTTP/1.1 200", b"200"))
    (robots,) = archived_robots(path, LIMITS)
    assert robots.status == 0
    path.write_bytes(shut.replace(b"application/http; msgtype=response", b"text/plain"))
    (robots,) = archived_robots(path, LIMITS)
    assert (robots.status, robots.text) == (200, "Disallow: /")


@pytest.mark.parametrize("kind", ["resource", "conversion"])
@pytest.mark.parametrize("media_type", ["text/plain", "text/html; charset=latin1"])
def test_records_without_http_headers_are_documents(
    tmp_path: Path, kind: str, media_type: str
) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(
        warc_record("https://a.org/1", b"A text.", kind=kind, content_type=media_type)
        + warc_record("https://a.org/2", b"A text.", kind=kind)
        + warc_record("https://a.org/3", b"A text.", kind="response", content_type=media_type)
    )
    first, *rest = read(str(path))
    assert isinstance(first, InputRecord)
    assert (first.content, first.url, first.date) == (b"A text.", "https://a.org/1", "2024-05-06")
    assert (first.is_html, first.charset) == (
        (True, "latin1") if "html" in media_type else (False, None)
    )
    assert reasons(rest) == ["content_type", "not_http"]


def test_content_id_depends_on_address_and_content() -> None:
    assert content_id("a", b"b") == content_id("a", b"b")
    assert len({content_id("a", b"b"), content_id("ab", b""), content_id("a", b"c")}) == 3


def test_fields_lose_control_characters() -> None:
    assert clean_field("a\x1b[31m\nb\u202ec") == "a[31mbc"
    assert len(clean_field("x" * 10_000)) == 4096


@pytest.mark.parametrize(
    "name",
    [
        "package:../config.py",
        "package:/etc/passwd",
        "package:",
        "package:demo_data/x",
        "package:no.jsonl.zst",
    ],
)
def test_package_names_lead_nowhere_else(name: str) -> None:
    with pytest.raises(DataError, match=r"is not shipped with stamm \(corpus.inputs\).*Known: "):
        locate(name, "corpus.inputs")


def test_shipped_names_and_paths_are_found(tmp_path: Path) -> None:
    for name in shipped_files():
        assert locate(f"package:{name}", "x").is_file()
    with pytest.raises(DataError, match="does not exist"):
        locate(str(tmp_path / "none.jsonl"), "corpus.inputs")
    with pytest.raises(DataError, match="is a folder"):
        locate(str(tmp_path), "corpus.inputs")
    with pytest.raises(DataError) as caught:
        locate(str(tmp_path / "requests.txt"), "replay.deletions")
    assert caught.value.line().endswith(
        "(replay.deletions). Name an existing file: text with one URL, document_id or sha256:… per "
        "line, as package:deletions.txt."
    )
    with pytest.raises(DataError, match="is not a regular file, and is read more than once"):
        locate("/dev/null", "corpus.inputs")
    with pytest.raises(DataError, match=r"not in a supported format.*\.warc\.gz"):
        read(str(tmp_path / "in.csv"))
