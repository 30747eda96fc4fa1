"""Inputs made to hurt: each is bounded in time and memory, told in the ledger, and stops nothing."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from corpus_inputs import page, warc_response

from tests.conftest import environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
GOOD = {"text": "A good page among bad ones.", "url": "https://good.example/1"}
MEMORY_MIB = 900
Row = dict[str, Any]

BUILD = """
import json, sys
from pathlib import Path
from stamm.base.config import from_plain
from stamm.corpus.config import CorpusConfig
from stamm.corpus.tables import read_parts
from tests.unit.small_corpus import build_corpus
root = Path(sys.argv[1])
config = from_plain(CorpusConfig, json.loads(sys.argv[2]))
folder = build_corpus(config, root)
rows = [
    {key: row[key] for key in ("input_file", "reason", "detail", "decision", "url", "rule")}
    for row in read_parts(folder, "ledger")
]
# Not ru_maxrss, which a process inherits from the one that started it.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peak = int(status["VmHWM"].split()[0]) // 1024
print(json.dumps({"rows": rows, "peak_mib": peak}))
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[..., list[Row]]:
    """Builds a corpus in a process of its own; its ledger rows. Memory is looked at."""

    def run(*inputs: Path, **consent: Any) -> list[Row]:
        plain = {
            "inputs": [str(path) for path in inputs],
            "consent": {"unknown_host": "allow", **consent},
            "language": None,
        }
        root = Path(__file__).parents[3]
        done = subprocess.run(
            [sys.executable, "-c", BUILD, str(tmp_path), json.dumps(plain)],
            cwd=root,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        told = json.loads(done.stdout)
        assert told["peak_mib"] < MEMORY_MIB
        return list(told["rows"])

    return run


def line(row: Row) -> bytes:
    return json.dumps(row).encode() + b"\n"


def zstd_of(path: Path, *pieces: tuple[bytes, int]) -> Path:
    """A file that repeats each piece many times, without holding it."""
    with path.open("wb") as opened, zstandard.ZstdCompressor().stream_writer(opened) as writer:
        for piece, times in pieces:
            for _ in range(times):
                writer.write(piece)
    return path


def test_a_line_of_a_gigabyte_is_passed_over(
    tmp_path: Path, ledger: Callable[..., list[Row]]
) -> None:
    megabyte = b"a" * 2**20
    path = tmp_path / "long.jsonl.zst"
    # Random bytes first, so that the file is large enough for what it grows to.
    noise = bytes(range(32, 127)) * 2**12
    zstd_of(path, (line(GOOD), 1), (noise, 1), (megabyte, 1024), (b"\n", 1), (line(GOOD), 1))
    rows = ledger(path)
    assert [row["reason"] for row in rows] in (
        ["", "line_too_long", "exact_duplicate"],
        ["", "decompression_limit"],
    )


def test_a_bomb_is_stopped_and_what_came_before_is_kept(
    tmp_path: Path, ledger: Callable[..., list[Row]]
) -> None:
    bomb = tmp_path / "bomb.jsonl.gz"
    with gzip.open(bomb, "wb") as writer:
        writer.write(line(GOOD))
        for _ in range(512):
            writer.write(b"\0" * 2**20)
    other = tmp_path / "other.jsonl"
    other.write_bytes(line({**GOOD, "text": "Another good page."}))
    rows = ledger(bomb, other)
    assert [row["reason"] for row in rows] == ["", "decompression_limit", ""]


def test_archives_that_lie_give_what_they_hold(
    tmp_path: Path, ledger: Callable[..., list[Row]]
) -> None:
    good = warc_response("https://good.example/a", page("A good page in an archive."))
    lying = tmp_path / "lying.warc"
    huge = good.replace(b"Content-Length: ", b"Content-Length: 9999", 1)
    lying.write_bytes(good + huge)
    noise = tmp_path / "noise.warc"
    noise.write_bytes(good + bytes(range(256)) * 400)
    deep = tmp_path / "deep.warc"
    nested = b"<div>" * 100_000 + b"text" + b"</div>" * 100_000
    deep.write_bytes(warc_response("https://good.example/deep", nested) + good)
    inflated = tmp_path / "inflated.warc"
    body = gzip.compress(b"<p>" + b"x" * (200 * 2**20))
    headers = {"Content-Type": "text/html", "Content-Encoding": "gzip"}
    inflated.write_bytes(warc_response("https://good.example/bomb", body, headers))
    rows = ledger(lying, noise, deep, inflated)
    told = {(Path(row["input_file"]).name, row["reason"]) for row in rows}
    assert ("lying.warc", "truncated_record") in told
    assert {name for name, reason in told if reason in ("html_too_deep", "html_too_large")} == {
        "deep.warc"
    }
    assert ("inflated.warc", "record_too_long") in told
    assert sum(row["decision"] == "kept" for row in rows) == 1  # the same page in three archives


def test_a_robots_file_of_a_hundred_megabytes_is_read_up_to_its_bound(
    tmp_path: Path, ledger: Callable[..., list[Row]]
) -> None:
    rules = "User-agent: *\nDisallow: /shut\n" + "".join(
        f"Disallow: /*a*b*c*{n}$\n" for n in range(20_000)
    )
    text = rules + "# padding\n" * (10 * 2**20)
    snapshot = tmp_path / "robots.jsonl"
    answer = {"url": "https://good.example/robots.txt", "status": 200, "fetched": "2026"}
    snapshot.write_bytes(line({**answer, "text": text[: 7 * 2**20]}))
    archive = tmp_path / "robots.warc"
    plain = {"Content-Type": "text/plain"}
    archive.write_bytes(
        warc_response("https://big.example/robots.txt", text.encode(), plain)
        + warc_response("https://big.example/page", page("A page of that host."))
    )
    pages = tmp_path / "pages.jsonl"
    pages.write_bytes(
        line({**GOOD, "url": "https://good.example/shut/1"})
        + line({**GOOD, "url": "https://good.example/" + "abc" * 600})
    )
    rows = ledger(pages, archive, robots=[str(snapshot)])
    assert [row["reason"] for row in rows] == ["robots_disallow", "", "robots_unreachable"]
    assert rows[0]["rule"].startswith("Disallow: /shut")


def test_names_and_fields_cannot_reach_out(
    tmp_path: Path, ledger: Callable[..., list[Row]]
) -> None:
    """Path tricks in what documents call themselves, and in the names of files."""
    tricks = "../../../etc/passwd"
    rows = [
        {
            **GOOD,
            "text": f"Text {n}.",
            "url": url,
            "source": tricks,
            "language": tricks,
            "date": tricks,
        }
        for n, url in enumerate(
            (
                "https://good.example/<script>alert(1)</script>",
                "file:///etc/passwd",
                "https://[::1",
                "javascript:alert(1)",
                "https://good.example/\u202e\x1b[31m",
                "https://user:secret@good.example:99999/",
            )
        )
    ]
    path = tmp_path / "weird '; drop table x; -- $(touch hacked) .jsonl"
    path.write_bytes(b"".join(line(row) for row in rows))
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    told = ledger(path)
    assert len(told) == len(rows)
    assert all("\x1b" not in row["url"] and "\u202e" not in row["url"] for row in told)
    assert {row["reason"] for row in told} <= {"", "bad_url"}
    made = {p for p in tmp_path.rglob("*") if p.is_file()} - before
    assert {p.relative_to(tmp_path).parts[0] for p in made} == {
        "filtered",
        "global_filter",
        "corpus",
    }


@pytest.mark.parametrize("columns", ["wrong", "none"])
def test_tables_that_are_no_documents_are_told(
    tmp_path: Path, ledger: Callable[..., list[Row]], columns: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "x.parquet"
    names = {"wrong": {"text": [1, 2], "url": ["a", "b"]}, "none": {"body": ["a", "b"]}}
    pq.write_table(pa.table(names[columns]), path)
    other = tmp_path / "other.jsonl"
    other.write_bytes(line(GOOD))
    assert [row["reason"] for row in ledger(path, other)] == ["no_text", "no_text", ""]


def test_a_table_that_repeats_a_long_text_costs_what_it_holds_once(
    tmp_path: Path, ledger: Callable[..., list[Row]]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.DictionaryArray.from_arrays(
        pa.array([0] * 20_000 + [1], pa.int32()), pa.array(["x" * (9 * 2**20), "A short text."])
    )
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"text": texts}), path, compression="zstd")
    rows = ledger(path)
    assert len(rows) == 20_001
    assert [row["reason"] for row in rows[-2:]] == ["line_too_long", ""]


def test_this_process_has_no_bound_of_its_own() -> None:
    """So that the bounds above are the corpus', and not the machine's."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    assert soft == resource.RLIM_INFINITY or soft > 2**32
