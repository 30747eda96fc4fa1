"""The fetcher of robots.txt, tdmrep.json and ai.txt, against a server with every kind of failure."""

from __future__ import annotations

import asyncio
import gzip
import socket
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from site_server import NOW, Reply, Sites, client, configured

from stamm.corpus.consent.fetch import KEPT_BYTES, Fetcher
from stamm.corpus.consent.snapshot import SnapshotEntry

ROBOTS = Reply(body=b"User-agent: *\nDisallow: /private/\n")
Ask = Callable[..., list[SnapshotEntry]]


@pytest.fixture
def sites() -> Iterator[Sites]:
    server = Sites()
    yield server
    server.close()


@pytest.fixture
def naps() -> list[float]:
    """The pauses between attempts, which nobody sits out."""
    return []


@pytest.fixture
def ask(sites: Sites, naps: list[float]) -> Ask:
    """Asks one site for its files."""

    def run(domain: str, *, secure: Sequence[str] = (), **options: Any) -> list[SnapshotEntry]:
        config = configured(**options)

        async def collect() -> list[SnapshotEntry]:
            async with client(sites, config, naps, secure) as opened:
                return [file async for file in opened.site(domain, config.kinds)]

        return asyncio.run(collect())

    return run


@pytest.fixture
def robots(ask: Ask) -> Callable[..., SnapshotEntry]:
    """Asks one site for its robots.txt."""
    return lambda domain, **options: ask(domain, kinds=("robots",), **options)[0]


def test_three_files_of_a_site(sites: Sites, ask: Ask) -> None:
    sites.reply("a.example", "/robots.txt", ROBOTS)
    sites.reply("a.example", "/ai.txt", Reply(body=b""))
    files = ask("a.example")
    assert [(f.kind, f.state, f.status) for f in files] == [
        ("robots", "found", 200),
        ("tdmrep", "absent", 404),
        ("ai_txt", "found", 200),
    ]
    first = files[0]
    assert first.url == "http://a.example/robots.txt"
    assert first.fetched == "2026-11-22T02:20:00Z"
    assert first.text == ROBOTS.body.decode()
    assert first.bytes == len(ROBOTS.body)
    # Independently computed: printf '...' | sha256sum
    assert first.sha256 == "efc4db5408347a17597d7618522f084512d5d8d9ff46135129e293e4dee3355a"
    assert sites.headers["user-agent"] == "test-bot/1.0 (+https://example.org/bot)"
    assert sites.asked == [
        ("a.example", "/robots.txt"),
        ("a.example", "/.well-known/tdmrep.json"),
        ("a.example", "/ai.txt"),
    ]


def test_https_is_asked_first(sites: Sites, robots: Callable[..., SnapshotEntry]) -> None:
    sites.reply("secure.example", "/robots.txt", ROBOTS)
    file = robots("secure.example", secure=("secure.example",))
    assert (file.url, file.state) == ("https://secure.example/robots.txt", "found")
    assert len(sites.asked) == 1


def test_a_certificate_of_another_name_is_not_believed(
    sites: Sites, robots: Callable[..., SnapshotEntry]
) -> None:
    sites.reply("a.example", "/robots.txt", ROBOTS)
    file = robots("a.example", secure=("a.example",))
    # Nothing was asked under that certificate; http answered.
    assert (file.url, file.state, len(sites.asked)) == (
        "http://a.example/robots.txt",
        "found",
        1,
    )


def test_only_tls_errors_are_reported_as_tls(
    sites: Sites, robots: Callable[..., SnapshotEntry]
) -> None:
    sites.reply(
        "a.example",
        "/robots.txt",
        Reply(status=301, headers=(("Location", "https://a.example/robots.txt"),)),
    )
    file = robots("a.example", secure=("a.example",))
    assert (file.error, file.status) == ("tls", 0)
    assert file.redirects == ("https://a.example/robots.txt",)


def test_a_dead_site_is_asked_once(ask: Ask, sites: Sites) -> None:
    files = ask("nowhere.example")
    assert [f.error for f in files] == ["dns"] * 3
    assert {f.status for f in files} == {0}
    assert sites.asked == []


def test_refused(sites: Sites, robots: Callable[..., SnapshotEntry]) -> None:
    sites.plain_port = sites.deaf_port
    assert robots("a.example").state == "refused"


@pytest.mark.parametrize(
    ("status", "state"), [(401, "absent"), (410, "absent"), (204, "found"), (304, "redirect")]
)
def test_final_statuses_are_asked_once(
    status: int, state: str, sites: Sites, robots: Callable[..., SnapshotEntry], naps: list[float]
) -> None:
    sites.reply("a.example", "/robots.txt", Reply(status=status))
    file = robots("a.example")
    assert (file.status, file.state, len(sites.asked)) == (status, state, 1)
    assert naps == []


def test_the_page_of_an_error_is_not_kept(
    sites: Sites, robots: Callable[..., SnapshotEntry]
) -> None:
    sites.reply("a.example", "/robots.txt", Reply(status=404, body=b"who@example.org"))
    file = robots("a.example")
    assert (file.text, file.bytes, file.sha256) == ("", 0, "")


def test_5xx_is_asked_again_with_growing_pauses(
    sites: Sites, robots: Callable[..., SnapshotEntry], naps: list[float]
) -> None:
    sites.reply("a.example", "/robots.txt", Reply(status=503), Reply(status=500), ROBOTS)
    assert robots("a.example").state == "found"
    assert naps == [2.0, 4.0]
    sites.reply("b.example", "/robots.txt", Reply(status=502))
    file = robots("b.example", retries=3, backoff_s=3.0, max_wait_s=5.0)
    assert (file.status, file.state) == (502, "server_error")
    assert naps[2:] == [3.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("value", "pauses"),
    [
        ("7", [7.0]),
        ("0", [2.0]),
        ("Sun, 22 Nov 2026 02:20:45 GMT", [45.0]),
        ("Sun, 22 Nov 2026 02:19:00 GMT", [2.0]),
        ("soon", [2.0]),
        ("-5", [2.0]),
        # Longer than we wait: the site is left alone.
        ("61", []),
        ("9" * 60, []),
        ("Mon, 23 Nov 2026 02:20:00 GMT", []),
    ],
)
def test_retry_after(
    value: str,
    pauses: list[float],
    sites: Sites,
    robots: Callable[..., SnapshotEntry],
    naps: list[float],
) -> None:
    busy = Reply(status=503, headers=(("Retry-After", value),))
    sites.reply("a.example", "/robots.txt", busy, ROBOTS)
    file = robots("a.example")
    assert naps == pauses
    assert file.state == ("found" if pauses else "server_error")


def test_429_is_no_absence(
    sites: Sites, robots: Callable[..., SnapshotEntry], naps: list[float]
) -> None:
    sites.reply("a.example", "/robots.txt", Reply(status=429, headers=(("Retry-After", "9"),)))
    file = robots("a.example")
    assert (file.state, file.status, len(sites.asked)) == ("rate_limited", 0, 3)
    assert naps == [9.0, 9.0]


@pytest.mark.parametrize(
    ("status", "wait", "states", "asked"),
    [
        (429, "9", ["rate_limited"] * 3, 3),
        (429, "900", ["rate_limited"] * 3, 1),
        (503, "900", ["server_error", "rate_limited", "rate_limited"], 1),
        (503, "9", ["server_error", "absent", "absent"], 5),
    ],
)
def test_who_wants_to_be_left_alone_is(
    status: int, wait: str, states: list[str], asked: int, sites: Sites, ask: Ask
) -> None:
    busy = Reply(status=status, headers=(("Retry-After", wait),))
    sites.reply("a.example", "/robots.txt", busy)
    assert [file.state for file in ask("a.example")] == states
    assert len(sites.asked) == asked


def redirect(target: str, status: int = 301) -> Reply:
    return Reply(status=status, headers=(("Location", target),), body=b"moved")


def test_a_redirect_to_another_host_is_followed_and_recorded(
    sites: Sites, robots: Callable[..., SnapshotEntry]
) -> None:
    sites.reply("a.example", "/robots.txt", redirect("http://www.b.example/r?x=1#there"))
    sites.reply("www.b.example", "/r?x=1", redirect("/caf\u00c3\u00a9 1", 308))
    sites.reply("www.b.example", "/caf%C3%A9%201", ROBOTS)
    file = robots("a.example")
    assert (file.state, file.url) == ("found", "http://a.example/robots.txt")
    assert file.redirects == ("http://www.b.example/r?x=1", "http://www.b.example/caf%C3%A9%201")


@pytest.mark.parametrize(("hops", "state"), [(5, "found"), (6, "redirects")])
def test_five_redirects_and_no_more(
    hops: int, state: str, sites: Sites, robots: Callable[..., SnapshotEntry]
) -> None:
    sites.reply("a.example", "/robots.txt", redirect("/1"))
    for hop in range(1, hops):
        sites.reply("a.example", f"/{hop}", redirect(f"/{hop + 1}", 302))
    sites.reply("a.example", f"/{hops}", ROBOTS)
    file = robots("a.example")
    assert (file.state, len(file.redirects)) == (state, 5)


@pytest.mark.parametrize(
    "target",
    [
        "ftp://a.example/robots.txt",
        "file:///etc/passwd",
        "gopher://a.example:70/",
        "http://a.example:22/",
        "http://[::1]/",
        "http://[::1",
        "http://a.example:99999/",
        "http://a b/",
        "/" + "x" * 3000,
    ],
)
def test_redirects_out_of_the_web(
    target: str, sites: Sites, robots: Callable[..., SnapshotEntry]
) -> None:
    sites.reply("a.example", "/robots.txt", redirect(target))
    file = robots("a.example")
    assert (file.state, file.redirects, len(sites.asked)) == ("redirects", (), 1)


def test_a_loop_ends(sites: Sites, robots: Callable[..., SnapshotEntry]) -> None:
    sites.reply("a.example", "/robots.txt", redirect("/robots.txt"))
    assert robots("a.example").state == "redirects"
    assert len(sites.asked) == 6


def test_slow_answers_run_out_of_time(
    sites: Sites, robots: Callable[..., SnapshotEntry], naps: list[float]
) -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(600):
            connection.sendall(b"#")
            sites.wait(0.05)

    sites.reply("a.example", "/robots.txt", Reply(talk=drip))
    file = robots("a.example", answer_s=0.4, connect_s=0.4, retries=1)
    # By http alone: https was refused at once.
    assert (file.state, len(sites.asked), naps) == ("time_out", 2, [2.0])


def test_a_host_that_takes_no_connection_in_time(ask: Ask, sites: Sites, naps: list[float]) -> None:
    # A queue of one that is full: the kernel lets further connections wait.
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    port = full.getsockname()[1]
    waiting = [socket.socket() for _ in range(3)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
    sites.plain_port = port
    files = ask("a.example", connect_s=0.3)
    assert [file.state for file in files] == ["connect_time_out"] * 3
    assert naps == []
    for one in (*waiting, full):
        one.close()


def test_a_slow_name_costs_no_more_than_a_connection(sites: Sites) -> None:
    async def resolve(host: str, port: int) -> Sequence[tuple[str, int]]:
        await asyncio.sleep(60)
        return []

    async def collect() -> list[SnapshotEntry]:
        config = configured(connect_s=0.2)
        async with Fetcher(config, lambda: NOW, resolve=resolve) as opened:
            return [file async for file in opened.site("a.example", ("robots",))]

    assert [file.state for file in asyncio.run(collect())] == ["connect_time_out"]


def test_an_endless_body_is_cut(sites: Sites, robots: Callable[..., SnapshotEntry]) -> None:
    sent = Counter[str]()

    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent["bytes"] < 2**30:
            sent["bytes"] += connection.send(b"Disallow: /\n" * 1000)

    sites.reply("a.example", "/robots.txt", Reply(talk=pour))
    file = robots("a.example")
    # The line that stands across 500 KiB would be another rule when it is cut.
    assert (file.bytes, file.truncated, file.state) == (KEPT_BYTES // 12 * 12, True, "found")
    assert set(file.text.splitlines()) == {"Disallow: /"}
    # No more than what buffers on the way hold.
    assert sent["bytes"] < 2**26


@pytest.mark.parametrize(("extra", "truncated"), [(0, False), (1, True)])
def test_500_kib_are_kept(
    extra: int, truncated: bool, sites: Sites, robots: Callable[..., SnapshotEntry]
) -> None:
    sites.reply("a.example", "/robots.txt", Reply(body=b"#" * (KEPT_BYTES + extra)))
    file = robots("a.example")
    assert (file.bytes, file.truncated) == (KEPT_BYTES, truncated)


def packed(body: bytes, coding: str = "gzip") -> Reply:
    return Reply(body=body, headers=(("Content-Encoding", coding),))


def test_a_packed_body_is_unpacked(sites: Sites, robots: Callable[..., SnapshotEntry]) -> None:
    members = gzip.compress(b"User-agent: *\n") + gzip.compress(b"") + gzip.compress(b"Allow: /\n")
    sites.reply("a.example", "/robots.txt", packed(members))
    assert robots("a.example").text == "User-agent: *\nAllow: /\n"
    assert sites.headers["accept-encoding"] == "gzip"


def test_a_bomb_is_cut(sites: Sites, robots: Callable[..., SnapshotEntry]) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(40)) + packer.flush()
    assert len(bomb) < 2**16
    sites.reply("a.example", "/robots.txt", packed(bomb))
    tracemalloc.start()
    file = robots("a.example")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (file.bytes, file.truncated) == (KEPT_BYTES, True)
    # 40 MiB wait to come out, one piece of the wire holds them all.
    assert peak < 2**23


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"plain text that says it is packed", "gzip"),
        (gzip.compress(b"#" * 1000, mtime=0)[:-9], "gzip"),
        # A file name in the gzip head that never ends: nothing comes out.
        (b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * (3 * KEPT_BYTES), "gzip"),
        (gzip.compress(b"", mtime=0) * (3 * KEPT_BYTES // 20), "gzip"),
        (b"\x0b\x02\x80hello\x03", "br"),
        (gzip.compress(gzip.compress(b"#", mtime=0), mtime=0), "gzip, gzip"),
        (b"#", "\xff"),
    ],
)
def test_wrong_encodings(
    body: bytes, coding: str, sites: Sites, robots: Callable[..., SnapshotEntry]
) -> None:
    sites.reply("a.example", "/robots.txt", packed(body, coding))
    file = robots("a.example")
    assert (file.state, file.status, file.text) == ("encoding", 0, "")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\xef\xbb\xbfUser-agent: *\n", "\ufeffUser-agent: *\n"),
        ("User-agent: *\n".encode("utf-16"), "User-agent: *\n"),
        (b"Disallow: /caf\xe9\n\x00\x1b", "Disallow: /caf\ufffd\n\x00\x1b"),
    ],
)
def test_texts(body: bytes, text: str, sites: Sites, robots: Callable[..., SnapshotEntry]) -> None:
    sites.reply("a.example", "/robots.txt", Reply(body=body))
    assert robots("a.example").text == text


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (b"hello\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "protocol"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "protocol"),
        (b"", "protocol"),
        (b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n", "server_error"),
    ],
)
def test_what_is_no_http(
    said: bytes, state: str, sites: Sites, robots: Callable[..., SnapshotEntry]
) -> None:
    sites.reply("a.example", "/robots.txt", Reply(talk=lambda connection: connection.sendall(said)))
    assert robots("a.example", retries=0).state == state
