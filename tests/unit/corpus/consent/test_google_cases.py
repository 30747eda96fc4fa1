"""Decisions held against Google's: its published cases, and its parser on real and on broken files.

jwm.robotstxt is that parser (C++) behind a binding. Where ours differs on purpose, a case says so.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

import pytest

from stamm.corpus.consent.robots import RobotsFile
from stamm.corpus.consent.robots_matcher import path_of

if sys.version_info >= (3, 13):
    pytest.skip("jwm.robotstxt has no wheel for Python 3.13", allow_module_level=True)
else:
    from jwm.robotstxt.googlebot import RobotsMatcher

HERE = Path(__file__).parent
# Google's parser reads the line "User-agent: AB42bot" as the agent AB, so that AB42bot, asked by
# its full name, follows "*". The site means AB42bot, as others mean AI2Bot.
NAMES_WITH_DIGITS = {"AB42bot", "XYZ123bot"}


def rows(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (HERE / name).read_text("utf-8").splitlines()]


def ours(file: RobotsFile, agent: str, url: str) -> bool:
    return file.allows(path_of(url).encode(), agent)


def google(octets: bytes, agent: str, url: str) -> bool:
    return bool(RobotsMatcher().OneAgentAllowedByRobots(octets, agent, url))


CASES = [
    (str(row["file"]), str(row["octets"]).encode("latin-1"), url, agent, allowed)
    for row in rows("google_cases.jsonl")
    for url, agent, allowed in row["cases"]  # type: ignore[attr-defined]
]


def test_published_cases() -> None:
    assert len(CASES) == 400
    differing = {
        (agent, allowed)
        for _, octets, url, agent, allowed in CASES
        if ours(RobotsFile(octets), agent, url) is not allowed
    }
    # Three cases, all of the same kind: ours refuses.
    assert differing == {("AB42bot", True), ("XYZ123bot", True)}


def addresses(text: str, rng: random.Random, count: int) -> list[str]:
    """Paths near the rules of a file: each rule with its wildcards filled and something behind."""
    rules = re.findall(r"(?im)^\s*(?:dis)?allow\w*\s*:\s*([\x21-\x22\x24-\x7e]+)", text)
    paths = ["/"]
    for rule in rng.sample(rules, min(count, len(rules))):
        filled = "".join(rng.choice(["", "x", "a/b"]) if c == "*" else c for c in rule.rstrip("$"))
        behind = rng.choice(["", "x", "/", "?q=1", "index.html", ".pdf"])
        paths.append(f"/{filled.removeprefix('/')}{behind}")
    return [f"https://example.org{path}" for path in paths]


def test_real_files_are_read_as_google_reads_them() -> None:
    rng = random.Random(7)
    checked = refused = 0
    for row in rows("real_robots.jsonl"):
        text = str(row["text"])
        octets = text.encode()
        file = RobotsFile(octets)
        named = re.findall(r"(?im)^\s*user-?agent\s*:\s*([A-Za-z_-]+)\s*$", text)
        for url in addresses(text, rng, 6):
            for agent in ("CCBot", "Googlebot", rng.choice(named or ["x"])):
                expected = google(octets, agent, url)
                assert ours(file, agent, url) is expected, (row["domain"], agent, url)
                if not re.search(r"[%*$]", url):  # these have several spellings, see below
                    assert (file.refusal(url, (agent,)) is None) is expected, (agent, url)
                checked, refused = checked + 1, refused + (not expected)
    assert checked > 1200 and 0.2 < refused / checked < 0.8


# What files are made of, and what breaks them.
KEYS = (
    "User-agent", "user agent", "useragents", "USER-AGENT", "Allow", "allowed", "Disallow", "disalow",
    "dissallow", "diasllow", "disallaw", "Disallow all", "Crawl-delay", "Sitemap", "Host", "noindex", "",
)  # fmt: skip
SEPARATORS = (":", " : ", ":\t", " ", "\t", "  ", "", "::", "\v:", " x ")
AGENTS = ("a", "A/1", "b", "*", "* x", "*x", "a b", "b_c", "b-c*", "", "é", "a1")
PATHS = (
    "", "/", "/a", "/a*", "/a*b", "/*b$", "*", "$", "/$", "**", "/a**$", "/a$b", "/*/*/b*", "a", "/index.html",
    "/a/index.htm$", "/a/index.html?x*", "/%61", "/%2a", "/%e3%83", "/é", "/%zz", "/a%", "/a?b", "/a;b",
    "/\ufffd", "http://x/a", "/a /b", "/a\v", "/b#c",
)  # fmt: skip
ENDS = ("\n", "\r", "\r\n", "\n\r", "\n\n", "\0\n", " \n", "#x\n", "\0x\n")
ASKED = (
    "/", "/a", "/ab", "/a/b", "/a/", "/aXb", "/b", "/a/b/c/b", "/%61", "/%2A", "/a?b", "/a$b", "/index.html",
    "/a/index.htm", "?a", ";b", "/%E3%83%84", "/%C3%A9", "/a%", "/%zz", "/a*b", "/$", "/a;b",
)  # fmt: skip


def broken_file(rng: random.Random) -> bytes:
    start = rng.choice(
        [b"", b"", b"\xef\xbb\xbf", b"\xef\xbb", b"\xef", b"\xef\xbb\xbf\xef\xbb\xbf", b"\xbb"]
    )
    lines = []
    for _ in range(rng.randrange(1, 12)):
        key, separator = rng.choice(KEYS), rng.choice(SEPARATORS if rng.random() < 0.3 else ":")
        value = rng.choice(AGENTS if key.lower().startswith("user") else PATHS)
        lines.append(
            f"{key}{separator}{value}{rng.choice(ENDS if rng.random() < 0.4 else ENDS[:1])}"
        )
    octets = start + "".join(lines).encode()
    if rng.random() < 0.2:
        at = rng.randrange(len(octets) + 1)
        octets = octets[:at] + rng.randbytes(2) + octets[at:]
    return octets


def test_broken_files_are_read_as_google_reads_them() -> None:
    rng = random.Random(28)
    refused = 0
    for _ in range(3000):
        octets = broken_file(rng)
        file = RobotsFile(octets)
        for agent in ("a", "B_c", "zzz"):
            for path in rng.sample(ASKED, 4):
                url = f"https://example.org{path}"
                expected = google(octets, agent, url)
                assert ours(file, agent, url) is expected, (octets, agent, path)
                if b"%" not in octets and not re.search(r"[%*$]", url):
                    assert (file.refusal(url, (agent,)) is None) is expected, (octets, agent, path)
                refused += not expected
    assert refused > 1000


@pytest.mark.parametrize("length", [16_650, 16_662, 16_663, 16_664, 20_000])
def test_long_lines_are_cut_where_google_cuts_them(length: int) -> None:
    path = "/" + "a" * (length - len("Disallow: /") - 1)
    octets = f"User-agent: x\nDisallow: {path}b\nDisallow: /b".encode()
    for asked in (path, f"{path}b", f"{path}c", path[:-30], "/b"):
        url = f"https://example.org{asked}"
        assert ours(RobotsFile(octets), "x", url) is google(octets, "x", url)


@pytest.mark.parametrize(
    "url",
    [
        "", "/", "//", "a", "a/b", "http://", "http://a", "http://a?b", "http://a;b", "http://a#/b", "//a/b?c",
        "a?b://c/d", "http://a/b#c?d", "http://a/?", "x:/a", "a#b://c/d", "https://a.b/c?d=http://e/f",
    ],
)  # fmt: skip
def test_the_path_of_an_address_is_found_as_google_finds_it(url: str) -> None:
    # Of all paths only one is allowed: the one we find.
    octets = f"User-agent: x\nDisallow: /\nAllow: {path_of(url)}$".encode()
    assert google(octets, "x", url)


def test_where_google_goes_beyond_the_standard() -> None:
    """RFC 9309 knows none of these; sites do."""

    def allowed(text: str, path: str, agent: str = "x") -> bool:
        verdict = google(text.encode(), agent, f"https://example.org{path}")
        assert ours(RobotsFile(text), agent, f"https://example.org{path}") is verdict
        return verdict

    assert not allowed("user agent: x\ndisalow: /", "/a")  # misspelt
    assert not allowed("User-agent x\nDisallow /", "/a")  # no colon
    assert allowed("User-agent: x\nDisallow: /\nAllow: /a/index.html", "/a/")  # index pages
    # A key alone is no line at all.
    assert allowed("User-agent: x\nDisallow: /\nUser-agent\nDisallow: /b", "/c") is False
    assert allowed("User-agent: x\nDisallow\nUser-agent: y\nDisallow: /", "/c") is False
    # A group of Crawl-delay alone runs on into the next, or stands for itself at the end.
    assert not allowed("User-agent: x\nCrawl-delay: 1\n\nUser-agent: y\nDisallow: /", "/a")
    assert allowed("User-agent: *\nDisallow: /\n\nUser-agent: x\nCrawl-delay: 1", "/a")


def test_where_we_differ_from_google_on_purpose() -> None:
    def both(text: str, url: str, agent: str = "x") -> tuple[bool, bool]:
        file = RobotsFile(text)
        return google(text.encode(), agent, url), file.refusal(url, (agent,)) is None

    site = "https://example.org"
    # RFC 9309, 2.2.2: the file itself is always allowed.
    assert both("User-agent: *\nDisallow: /", f"{site}/robots.txt") == (False, True)
    # RFC 9309, 2.2.2: one spelling of addresses.
    assert both("User-agent: *\nDisallow: /é", f"{site}/é") == (True, False)
    assert both("User-agent: *\nDisallow: /%C3%A9", f"{site}/%c3%a9") == (True, False)
    assert both("User-agent: *\nDisallow: /~x", f"{site}/%7Ex") == (True, False)
    assert both("User-agent: *\nDisallow: /%7Ex", f"{site}/~x") == (True, False)
    assert both("User-agent: *\nDisallow: /\nAllow: /%7Ex", f"{site}/%7ex") == (False, True)
    # RFC 9309, 2.2.3: an encoded star is a star and nothing else.
    assert both("User-agent: *\nDisallow: /a%2Ab", f"{site}/a*b") == (True, False)
    assert both("User-agent: *\nDisallow: /a%2Ab", f"{site}/axb") == (True, True)
    # draft-ietf-aipref-attach: Content-Usage is a rule, so it closes the list of names.
    text = "User-agent: x\nContent-Usage: train-ai=y\nUser-agent: y\nDisallow: /"
    assert both(text, f"{site}/a") == (False, True)
    assert both("User-agent: AI2Bot\nDisallow: /", f"{site}/a", "AI2Bot") == (True, False)
    assert both("User-agent: Bücherbot\nDisallow: /", f"{site}/a", "Bücherbot") == (True, False)
    assert both("User-agent: Bücherbot\nDisallow: /", f"{site}/a", "B") == (False, False)
    late = "#" * 500 * 1024 + "\nUser-agent: x\nDisallow: /"
    assert both(late, f"{site}/a") == (False, True)
