"""The fetch job: politeness over many sites, and a snapshot that survives kills."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from site_server import Reply, Sites, client, configured

from stamm.base.console import NoProgress
from stamm.base.errors import DataError, RunError
from stamm.corpus.consent.config import KINDS
from stamm.corpus.consent.fetch_job import ANSWERS, SNAPSHOT, SUMMARY, fetch
from stamm.corpus.consent.snapshot import (
    ERRORS,
    SiteFiles,
    SnapshotEntry,
    index_in_memory,
    latest_entry,
    snapshot_entries,
)
from stamm.corpus.consent.tdmrep import TdmrepFile
from stamm.corpus.limits import ReadLimits
from stamm.runs.job import Workspace

ROBOTS = Reply(body=b"User-agent: *\nDisallow: /private/\n")
RESERVED = Reply(body=b'[{"location": "/", "tdm-reservation": 1}]')


@pytest.fixture
def sites() -> Iterator[Sites]:
    server = Sites()
    yield server
    server.close()


@pytest.fixture
def run(sites: Sites, tmp_path: Path) -> Callable[..., Path]:
    """Runs the job over a list of lines; gives its folder."""

    def go(*lines: str, folder: str = "out", **options: Any) -> Path:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        names = tmp_path / "sites.txt"
        names.write_text("".join(f"{line}\n" for line in lines))
        config = configured(domains=str(names), **options)
        fetch(config, Workspace(folder=place), lambda given: client(sites, given, []))
        return place

    return go


def rows(folder: Path) -> list[dict[str, Any]]:
    with zstandard.open(folder / SNAPSHOT, "rt", encoding="utf-8") as opened:
        return [json.loads(line) for line in opened]


def test_rules_written_as_absolute_urls_are_counted(sites: Sites, tmp_path: Path) -> None:
    class Heard(NoProgress):
        said: list[str] = []  # noqa: RUF012

        def log(self, text: str) -> None:
            self.said.append(text)

    body = b"User-agent: *\nDisallow: http://%b/private/\nAllow: https://www.%b/\nDisallow: /\n"
    for host in ("a.example", "b.example"):
        sites.reply(host, "/robots.txt", Reply(body=body.replace(b"%b", host.encode())))
    sites.reply("c.example", "/robots.txt", Reply(body=body.replace(b"%b", b"cdn.example")))
    sites.reply("d.example", "/robots.txt", ROBOTS)
    names = tmp_path / "sites.txt"
    names.write_text("a.example\nb.example\nc.example\nd.example\n")
    heard = Heard()
    fetch(
        configured(domains=str(names)),
        Workspace(folder=tmp_path, progress=heard),
        lambda given: client(sites, given, []),
    )
    assert heard.said == [
        "Answers of 4 sites: ai_txt: 4 absent; robots: 4 found; tdmrep: 4 absent",
        "4 rules in 2 robots.txt files are written as absolute URLs of their own site: they match no "
        "path and are ignored",
    ]
    summary = json.loads((tmp_path / SUMMARY).read_text())
    assert summary["absolute_rules"] == {"rules": 4, "sites": 2}


def test_without_any_answer_the_job_fails_and_keeps_nothing(
    sites: Sites, run: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(RunError) as caught:
        run("nowhere.example", "nowhere-else.example", kinds=("robots",))
    assert caught.value.line().startswith(
        f"none of 2 sites answered: robots: 2 dns ({ERRORS['dns']}). Check the network"
    )
    assert list((tmp_path / "out").iterdir()) == []
    sites.reply("a.example", "/robots.txt", ROBOTS)
    folder = run("a.example", "nowhere.example", kinds=("robots",))
    assert [row["error"] for row in rows(folder)] == ["", "dns"]


def test_a_list_becomes_a_snapshot(sites: Sites, run: Callable[..., Path]) -> None:
    sites.reply("b.example", "/robots.txt", ROBOTS)
    sites.reply("b.example", "/.well-known/tdmrep.json", RESERVED)
    sites.reply("a.example", "/robots.txt", Reply(status=500))
    folder = run(
        "# sites", "", "b.example", "a.example", "B.Example.", "no host", "nowhere.example"
    )
    found = rows(folder)
    assert [(row["domain"], row["kind"]) for row in found] == [
        (domain, kind)
        for domain in ("a.example", "b.example", "nowhere.example")
        for kind in ("ai_txt", "robots", "tdmrep")
    ]
    by_key = {(row["domain"], row["kind"]): row for row in found}
    assert by_key["b.example", "robots"] == {
        "kind": "robots",
        "domain": "b.example",
        "url": "http://b.example/robots.txt",
        "status": 200,
        "fetched": "2026-11-22T02:20:00Z",
        "redirects": [],
        "bytes": 34,
        "truncated": False,
        "sha256": "efc4db5408347a17597d7618522f084512d5d8d9ff46135129e293e4dee3355a",
        "text": "User-agent: *\nDisallow: /private/\n",
        "error": "",
    }
    assert json.loads((folder / SUMMARY).read_text()) == {
        "sites": 3,
        "refused_lines": 1,
        "user_agent": "test-bot/1.0 (+https://example.org/bot)",
        "states": {
            "ai_txt": {"absent": 2, "dns": 1},
            "robots": {"dns": 1, "found": 1, "server_error": 1},
            "tdmrep": {"absent": 1, "dns": 1, "found": 1},
        },
        "truncated": 0,
        "absolute_rules": {"rules": 0, "sites": 0},
        "unread_terms": {"lines": 0, "sites": 0},
        "first_day": "2026-11-22",
        "last_day": "2026-11-22",
    }
    assert sorted(path.name for path in folder.iterdir()) == [SNAPSHOT, SUMMARY]


def test_a_snapshot_is_read_by_kind(sites: Sites, run: Callable[..., Path]) -> None:
    sites.reply("a.example", "/.well-known/tdmrep.json", RESERVED)
    sites.reply("c.example", "/.well-known/tdmrep.json", Reply(status=500))
    path = run("a.example", "b.example", "c.example") / SNAPSHOT
    read = [file for file in list(snapshot_entries(path, ReadLimits())) if file.kind == "tdmrep"]
    assert [file.row() for file in read] == [
        row for row in rows(path.parent) if row["kind"] == "tdmrep"
    ]
    book = SiteFiles(latest_entry([index_in_memory(read)], "tdmrep"), TdmrepFile)
    for host, state in [("a.example", "reserved"), ("www.a.example", "reserved")]:
        file = book.file(host)
        assert file is not None
        assert file.answer(f"https://{host}/x").state == state
    for host in ("b.example", "c.example", "d.example"):
        assert book.file(host) is None


def test_the_same_answers_give_the_same_bytes(sites: Sites, run: Callable[..., Path]) -> None:
    names = [f"s{number}.example" for number in range(12)]
    for name in names:
        sites.reply(name, "/robots.txt", Reply(body=name.encode()))
    first = run(*names, folder="first", hosts_at_once=1)
    second = run(*names[::-1], folder="second", hosts_at_once=7)
    for file in (SNAPSHOT, SUMMARY):
        assert (first / file).read_bytes() == (second / file).read_bytes()


def test_one_request_at_a_time_per_host(sites: Sites, run: Callable[..., Path]) -> None:
    names = [f"s{number}.example" for number in range(10)]
    hub = Reply(status=302, headers=(("Location", "http://hub.example/robots.txt"),))
    for name in names:
        sites.reply(name, "/robots.txt", hub)
    sites.pause = 0.03
    run(*names, "hub.example", hosts_at_once=4)
    assert Counter(sites.asked)["hub.example", "/robots.txt"] == 11
    assert set(sites.busiest.values()) == {1}
    assert 1 < sites.busiest_of_all <= 4


def test_a_killed_fetch_resumes(sites: Sites, run: Callable[..., Path], tmp_path: Path) -> None:
    names = [f"s{number}.example" for number in range(20)]
    for name in names:
        sites.reply(name, "/robots.txt", ROBOTS)
    (tmp_path / "sites.txt").write_text("\n".join(names))
    (tmp_path / "out").mkdir()
    started: list[subprocess.Popen[bytes]] = []
    here = str(Path(__file__).parent)
    code = (
        f"import sys; sys.path.insert(0, {here!r}); import test_fetch_job as t; t.child(sys.argv)"
    )
    ports = [str(sites.plain_port), str(sites.deaf_port)]

    def kill() -> None:
        if len(sites.asked) == 30:
            started[0].send_signal(signal.SIGKILL)

    sites.on_request = kill
    sites.pause = 0.005
    started.append(subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *ports]))
    assert started[0].wait(timeout=120) == -signal.SIGKILL
    written = (tmp_path / "out" / ANSWERS).read_bytes().split(b"\n")[:-1]
    known = {(row["domain"], row["kind"]) for row in map(json.loads, written)}
    assert 20 <= len(known) <= 30
    sites.on_request = lambda: None
    before = Counter(sites.asked)
    folder = run(*names)
    again = Counter(sites.asked) - before
    paths = {"robots": "/robots.txt", "tdmrep": "/.well-known/tdmrep.json", "ai_txt": "/ai.txt"}
    assert not [key for key in known if again[key[0], paths[key[1]]]]
    assert len(again) == len(names) * len(KINDS) - len(known)
    assert len(rows(folder)) == 60
    # Interrupted or not, the bytes are the same.
    assert (folder / SNAPSHOT).read_bytes() == (run(*names, folder="whole") / SNAPSHOT).read_bytes()


def child(arguments: list[str]) -> None:
    """The fetch that gets killed, in a process of its own."""
    place, plain, deaf = Path(arguments[1]), int(arguments[2]), int(arguments[3])
    # Only the ports of the server matter here; the server itself is in the other process.
    server: Any = type("Ports", (), {"plain_port": plain, "deaf_port": deaf, "secure_port": deaf})
    config = configured(domains=str(place / "sites.txt"), hosts_at_once=4)
    make = functools.partial(client, server, naps=[])
    fetch(config, Workspace(folder=place / "out"), make)


def answer(domain: str, kind: str = "robots") -> dict[str, Any]:
    url = f"http://{domain}/robots.txt"
    return SnapshotEntry(kind=kind, domain=domain, url=url, status=404, fetched="2026-01-01").row()  # type: ignore[arg-type]


def test_a_row_that_was_begun_is_asked_again(
    sites: Sites, run: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    whole, cut = (json.dumps(answer(name)) for name in ("a.example", "b.example"))
    (tmp_path / "out" / ANSWERS).write_text(f"{whole}\n{cut[:-9]}")
    folder = run("a.example", "b.example", kinds=("robots",))
    assert sites.asked == [("b.example", "/robots.txt")]
    assert [row["fetched"] for row in rows(folder)] == ["2026-01-01", "2026-11-22T02:20:00Z"]


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", '"x"', "null", "nonsense", '{"kind": "other"}', "[" * 100_000]
)
def test_damaged_answers_are_reported(line: str, run: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ANSWERS).write_text(f"{json.dumps(answer('a.example'))}\n{line}\n")
    with pytest.raises(DataError, match=r"answers\.jsonl is damaged.*line 2"):
        run("a.example")


@pytest.mark.parametrize("lines", [[], ["# nothing"], ["no host", "x" * 9999]])
def test_a_list_without_hosts_is_refused(lines: list[str], run: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="names no host"):
        run(*lines)


def test_an_old_snapshot_of_robots_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    row = {"domain": "a.example", "url": "https://a.example/robots.txt", "status": 200}
    path.write_text(json.dumps({**row, "fetched": "2019-01-01", "text": "x"}) + "\n")
    assert [file.kind for file in list(snapshot_entries(path, ReadLimits()))].count("robots") == 1


@pytest.mark.parametrize(
    "change",
    [{"kind": "x"}, {"url": "no host"}, {"status": "200"}, {"text": None}, {"redirects": "x"}],
)
def test_a_snapshot_with_other_rows_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({**answer("a.example"), **change}) + "\n")
    with pytest.raises(DataError, match="line 1"):
        list(snapshot_entries(path, ReadLimits()))


def test_every_error_is_documented() -> None:
    source = Path(sys.modules["stamm.corpus.consent.fetch"].__file__ or "").read_text()
    for state, words in ERRORS.items():
        assert f'"{state}"' in source, state
        assert words
