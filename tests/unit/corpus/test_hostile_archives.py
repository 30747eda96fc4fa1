"""Archives whose records lie: each lie is told of its record, and the next record is read."""

from __future__ import annotations

import gzip
import random
import re
import time
from pathlib import Path

import pytest
from corpus_inputs import page, warc_response

from stamm.corpus.consent.robots_parser import PARSED_BYTES
from stamm.corpus.documents import InputRecord, UnreadableRecord
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.warc import archived_robots, read_archive

LIMITS = ReadLimits()
GOOD = warc_response("https://good.example/1", page("A good page."))
HTML = {"Content-Type": "text/html"}


def told(folder: Path, archive: bytes) -> list[str]:
    path = folder / "a.warc"
    path.write_bytes(archive)
    list(archived_robots(path, LIMITS))
    records = read_archive("a.warc", path, LIMITS)
    return [record.reason if isinstance(record, UnreadableRecord) else "" for record in records]


def test_a_page_with_too_many_headers_does_not_end_the_archive(tmp_path: Path) -> None:
    flood = HTML | {f"X-{number}": "v" for number in range(100_000)}
    bad = warc_response("https://bad.example/", page("x"), flood)
    assert told(tmp_path, GOOD + bad + GOOD) == ["", "not_http", ""]
    long = warc_response("https://bad.example/", page("x"), status="200 " + "O" * 2**20)
    assert told(tmp_path, long + GOOD) == ["not_http", ""]


def test_robots_txt_with_too_many_headers_does_not_pass_for_silence(tmp_path: Path) -> None:
    flood = {f"X-{number}": "v" for number in range(100_000)}
    path = tmp_path / "a.warc"
    rules = b"User-agent: *\nDisallow: /"
    shut = warc_response("https://shut.example/robots.txt", rules)
    path.write_bytes(warc_response("https://bad.example/robots.txt", rules, flood) + shut)
    assert [answer.status for answer in archived_robots(path, LIMITS)] == [0, 200]


def test_robots_txt_is_held_as_far_as_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(warc_response("https://big.example/robots.txt", b"#" * (2**20)))
    (answer,) = archived_robots(path, LIMITS)
    assert len(answer.text) == PARSED_BYTES + 1  # so that a cut is seen


@pytest.mark.parametrize(
    "length", ["-5", "1e9", "0x10", "", "5 5", "9" * 20, "9" * 5000, "٣", "99999999", "100", "500"]
)
def test_a_length_that_lies_costs_one_record(tmp_path: Path, length: str) -> None:
    lie = re.sub(rb"Content-Length: \d+", b"Content-Length: " + length.encode(), GOOD)
    assert told(tmp_path, GOOD + lie) == ["", "truncated_record"]
    assert told(tmp_path, GOOD + lie + GOOD) == ["", "truncated_record", ""]


def test_chunks_under_another_encoding_are_undone(tmp_path: Path) -> None:
    headers = HTML | {"Transfer-Encoding": "gzip, Chunked"}
    path = tmp_path / "a.warc"
    path.write_bytes(warc_response("https://a.example/", b"5\r\nabcde\r\n0\r\n\r\n", headers))
    (record,) = read_archive("a", path, LIMITS)
    assert isinstance(record, InputRecord)
    assert record.content == b"abcde"


def encoded(body: bytes) -> bytes:
    return warc_response("https://a.example/", body, HTML | {"Content-Encoding": "gzip"})


def contents(folder: Path, archive: bytes) -> list[bytes | str]:
    path = folder / "a.warc"
    path.write_bytes(archive)
    return [
        record.reason if isinstance(record, UnreadableRecord) else record.content
        for record in read_archive("a.warc", path, LIMITS)
    ]


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 100_000])
def test_members_are_put_together_wherever_they_end(tmp_path: Path, size: int) -> None:
    noise = random.Random(size).randbytes(size)
    for level in (0, 9):
        first, second = gzip.compress(noise, level), gzip.compress(b"end", level)
        archive = encoded(first + second) + encoded(first + b"\0" * 5000) + encoded(first + b"\x1f")
        assert contents(tmp_path, archive) == [noise + b"end", noise, noise]
        cut = encoded(first[:-1]) + encoded(first + second[:-1]) + encoded(first + b"\x1f\x8b")
        assert set(contents(tmp_path, cut)) == {"truncated_record"}


def test_a_body_of_many_empty_members_takes_time_as_its_length(tmp_path: Path) -> None:
    member = gzip.compress(b"", mtime=0)
    began = time.process_time()
    archive = encoded(member * (12 * 2**20 // len(member)) + gzip.compress(b"end"))
    assert contents(tmp_path, archive) == [b"end"]
    assert time.process_time() - began < 30  # 1 s; copying the rest for each member took 120 s


def test_archives_with_random_damage_end_with_reasons(tmp_path: Path) -> None:
    dice = random.Random(0)
    robots = warc_response("https://good.example/robots.txt", b"User-agent: *\nDisallow: /x")
    whole = GOOD + robots + encoded(gzip.compress(page("y"))) + GOOD
    for _ in range(300):
        bad = bytearray(whole)
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(bad))
            match dice.randrange(4):
                case 0:
                    bad[at] = dice.randrange(256)
                case 1:
                    del bad[at : at + dice.randint(1, 40)]
                case 2:
                    bad[at:at] = bytes(dice.choices(b"\r\n :0123456789a\0\xff", k=5))
                case _:
                    bad[at:at] = bad[: dice.randrange(200)]
        assert told(tmp_path, bytes(bad)) is not None
