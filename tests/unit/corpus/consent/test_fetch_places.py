"""Addresses that the fetcher connects to and refuses: names, IP addresses and redirects of hostile lists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from site_server import NOW, Reply, Sites, configured

from stamm.base.errors import ConfigError
from stamm.corpus.consent.fetch import (
    Fetcher,
    FetchError,
    is_public,
    normalize_site,
    public_addresses,
)
from stamm.corpus.consent.snapshot import SnapshotEntry


@pytest.fixture
def sites() -> Iterator[Sites]:
    server = Sites()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("64:ff9b::5db8:d70e", True),
        *[
            (address, False)
            for address in [
                "127.0.0.1",
                "127.8.9.1",
                "0.0.0.0",
                "10.1.2.3",
                "172.16.0.1",
                "192.168.1.1",
                "169.254.169.254",
                "100.64.0.1",
                "192.0.2.7",
                "198.18.0.1",
                "224.0.0.1",
                "240.0.0.1",
                "255.255.255.255",
                "::",
                "::1",
                "fe80::1",
                "fe80::1%eth0",
                "fc00::1",
                "fd12::1",
                "fec0::1",
                "ff02::1",
                "2001:db8::1",
                "::ffff:127.0.0.1",
                "::ffff:10.0.0.1",
                "64:ff9b::7f00:1",
                "2002:7f00:1::",
                "::127.0.0.1",
                "2001::1",
                "100::1",
            ]
        ],
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) == public


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "0", "169.254.169.254"]
)
def test_names_of_private_addresses_are_refused(host: str) -> None:
    with pytest.raises(FetchError, match="private_address"):
        asyncio.run(public_addresses(host, 80))


def test_the_client_refuses_private_addresses_by_default(sites: Sites) -> None:
    async def collect() -> list[SnapshotEntry]:
        async with Fetcher(configured(), lambda: NOW) as opened:
            site = f"127.0.0.1:{sites.plain_port}"
            return [file async for file in opened.site(site, ("robots", "ai_txt"))]

    assert [f.state for f in asyncio.run(collect())] == ["private_address"] * 2
    assert sites.asked == []


def test_a_redirect_into_a_private_net_is_refused(sites: Sites) -> None:
    secret = f"http://localhost:{sites.plain_port}/secret"
    sites.reply("a.example", "/robots.txt", Reply(status=301, headers=(("Location", secret),)))

    async def collect() -> list[SnapshotEntry]:
        async def resolve(host: str, port: int) -> Sequence[tuple[str, int]]:
            if host == "a.example":
                return [("127.0.0.1", sites.plain_port if port == 80 else sites.deaf_port)]
            return await public_addresses(host, port)

        async with Fetcher(configured(), lambda: NOW, resolve=resolve) as opened:
            return [file async for file in opened.site("a.example", ("robots", "ai_txt"))]

    files = asyncio.run(collect())
    # The site itself can be spoken to, so its other file is asked for.
    assert [f.state for f in files] == ["private_address", "absent"]
    assert ("localhost", "/secret") not in sites.asked
    assert files[0].redirects == (secret,)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" Example.ORG. ", "example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("Faß.example:8443", "xn--fa-hia.example:8443"),
        ("a_b.example:8080", "a_b.example:8080"),
        ("a.example:443", "a.example"),
    ],
)
def test_site_names(text: str, name: str) -> None:
    assert normalize_site(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "http://a.example/",
        "a.example/path",
        "user@a.example",
        "a.example:22",
        "a.example:70000",
        "a.example:",
        "[::1]",
        "a b.example",
        "a.example\r\nX: 1",
        "x" * 64 + ".example",
        ".".join(["abc"] * 100),
        "\u2028.example",
        "ü" * 300,
        "ü" * 63,
        "xn--ü.example",
        "a\ue000.example",
    ],
)
def test_what_names_no_site(text: str) -> None:
    with pytest.raises(ValueError):
        normalize_site(text)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("agent", "bot"),
        ("agent", "bot/1.0\r\nX: 1"),
        ("contact", "me"),
        ("contact", "https://a.example/\r\nX: 1"),
        ("contact", "https://a.example/ (x)"),
        ("kinds", ()),
        ("connect_s", 6.0),
        ("hosts_at_once", 0),
        ("max_wait_s", 0.1),
    ],
)
def test_configurations_that_are_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=option):
        configured(**{option: value})
