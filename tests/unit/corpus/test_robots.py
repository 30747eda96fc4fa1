"""The rules of one robots.txt file, against RFC 9309 and what sites write."""

from __future__ import annotations

import pytest

from stamm.corpus.agents import APERTUS_AGENTS
from stamm.corpus.robots import PARSED_BYTES, RobotsFile, reserves_training, robots_path

SITE = "https://example.org"


@pytest.mark.parametrize(
    ("text", "path", "agent", "allowed"),
    [
        ("User-agent: *\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: *\nDisallow:", "/a", "GPTBot", True),
        ("", "/a", "GPTBot", True),
        ("User-agent: gptbot\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: CCBot\nDisallow: /", "/a", "GPTBot", True),
        ("User-agent: CCBot\nDisallow: /", "/a", "CCBot/2.0", False),
        # An own group shields from the one for everybody.
        ("User-agent: *\nDisallow: /\n\nUser-agent: GPTBot\nAllow: /", "/a", "GPTBot", True),
        # A group is named by its product token, an agent follows the group of the same token.
        ("User-agent: GPTBot/1.0\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: GPTBot (ai)\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: CCBot/3.0\nDisallow: /", "/a", "CCBot/2.0", False),
        ("User-agent: * foo\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: B\nDisallow: /", "/a", "Bytespider", True),
        ("User-agent: b\nDisallow: /", "/a", "B", False),
        ("User-agent: *\nDisallow: /\n\nUser-agent: b\nAllow: /", "/a", "B", True),
        ("User-agent: *\nAllow: /\n\nUser-agent: b\nDisallow: /", "/a", "B", False),
        ("User-agent: AI\nDisallow: /", "/a", "AI2Bot", True),
        ("User-agent: AI2Bot\nDisallow: /", "/a", "AI2Bot", False),
        # The longest match wins, Allow wins a tie.
        ("User-agent: *\nDisallow: /a\nAllow: /a/b", "/a/b/c", "x", True),
        ("User-agent: *\nAllow: /a\nDisallow: /a/b", "/a/b/c", "x", False),
        ("User-agent: *\nDisallow: /a\nAllow: /a", "/a", "x", True),
        # Wildcards and the end mark.
        ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf", "x", False),
        ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf?z", "x", True),
        ("User-agent: *\nDisallow: /a/*/c", "/a/b/c/d", "x", False),
        ("User-agent: *\nDisallow: /a/*/c", "/a/c", "x", True),
        ("User-agent: *\nDisallow: /end$", "/end/more", "x", True),
        # Percent-encoding compares equal in both spellings.
        ("User-agent: *\nDisallow: /caf%C3%A9", "/café", "x", False),
        ("User-agent: *\nDisallow: /café", "/caf%c3%a9", "x", False),
        ("User-agent: *\nDisallow: /a%3Cd", "/a%3cd", "x", False),
        # Groups of one name are merged, and one group may have several names.
        ("User-agent: x\nDisallow: /a\n\nUser-agent: x\nDisallow: /b", "/b", "x", False),
        ("User-agent: x\nDisallow: /a\n\nUser-agent: x\nDisallow: /b", "/a", "x", False),
        ("User-agent: x\nUser-agent: y\nDisallow: /a", "/a", "x", False),
        # Comments, case of keys, carriage returns.
        ("# hi\r\nUSER-AGENT: *  # all\r\ndisallow: /a # no\r\n", "/a", "x", False),
        ("\ufeffUser-agent: *\nDisallow: /", "/a", "x", False),
        ("User-agent: *\nDisallow: /", "/robots.txt", "x", True),
    ],
)
def test_rules(text: str, path: str, agent: str, allowed: bool) -> None:
    assert (RobotsFile(text).refusal(SITE + path, (agent,)) is None) is allowed


def test_refusal_names_the_deciding_line_and_its_group() -> None:
    text = "User-agent: *\nDisallow: /a\nDisallow: /a/b\nAllow: /c\n"
    refusal = RobotsFile(text).refusal(f"{SITE}/a/b/c", ("*",))
    assert refusal is not None
    assert refusal.rule == "Disallow: /a/b (group *)"
    assert refusal.reason == "robots_disallow"


def test_agents_without_a_group_of_their_own_are_not_listed_beside_the_star() -> None:
    text = "User-agent: ccbot\nDisallow: /\nUser-agent: *\nDisallow: /\n"
    refusal = RobotsFile(text).refusal(f"{SITE}/a", APERTUS_AGENTS)
    assert refusal is not None
    assert refusal.agents == "CCBot, CCBot/2.0, CCBot/1.0, *"


def test_one_refused_agent_is_enough() -> None:
    refusal = RobotsFile("User-agent: GPTBot\nDisallow: /").refusal(f"{SITE}/a", APERTUS_AGENTS)
    assert refusal is not None
    assert refusal.agents == "GPTBot"


def test_misspelt_rule_is_refused_and_quoted() -> None:
    refusal = RobotsFile("User-agent: *\nDissallow: /a").refusal(f"{SITE}/a", ("*",))
    assert refusal is not None
    assert refusal.rule == "Disallow: /a (group *)"


def test_rules_behind_500_kib_do_not_count() -> None:
    filler = "# " + "x" * 98 + "\n"
    late = filler * (PARSED_BYTES // 100 + 1) + "User-agent: *\nDisallow: /\n"
    early = "User-agent: *\nDisallow: /\n" + filler * (PARSED_BYTES // 100 + 1)
    assert RobotsFile(late).refusal(f"{SITE}/a", ("*",)) is None
    assert RobotsFile(early).refusal(f"{SITE}/a", ("*",)) is not None


@pytest.mark.parametrize(
    ("text", "path", "refused"),
    [
        ("User-agent: *\nContent-Usage: / train-ai=n", "/a", True),
        ("User-agent: *\nContent-Usage: train-ai=n", "/a", True),
        ("User-agent: *\nContent-Usage: /\ttrain-ai=n", "/a", True),
        ("User-agent: *\nContent-Usage: /", "/a", False),
        ("User-agent: *\nContent-Usage: /b train-ai=n", "/a", False),
        ("User-agent: *\nContent-Usage: / train-ai=n\nContent-Usage: /a train-ai=y", "/a", False),
        ("User-agent: *\nContent-Usage: / search=n", "/a", False),
        ("User-agent: Other\nContent-Usage: / train-ai=n", "/a", False),
    ],
)
def test_content_usage_lines(text: str, path: str, refused: bool) -> None:
    refusal = RobotsFile(text).refusal(SITE + path, ("GPTBot",))
    assert (refusal is not None) is refused
    if refusal is not None:
        assert refusal.reason == "robots_content_usage"


def test_content_usage_value() -> None:
    assert reserves_training("train-ai=n, search=y")
    assert reserves_training("search=y, Train-AI = n;x=1")
    assert not reserves_training("train-ai=y")
    assert not reserves_training("do-train-ai=n")


def test_html_instead_of_rules_allows() -> None:
    assert RobotsFile("<html><body>Not found</body></html>").refusal(f"{SITE}/", ("*",)) is None


def test_robots_path() -> None:
    assert robots_path("https://a.b/robots.txt")
    assert not robots_path("https://a.b/x/robots.txt")
    assert not robots_path("http://[broken/robots.txt")
