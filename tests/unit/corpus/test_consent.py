"""Hosts, statuses and policies: what is known of a host's word, and what follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError, DataError
from stamm.corpus.config import ConsentConfig, ReadLimits
from stamm.corpus.consent import Consent, RobotsBook, normal_host, read_snapshot
from stamm.corpus.robots import RobotsAnswer


def answer(url: str, text: str = "", status: int = 200, read: str = "2019-07") -> RobotsAnswer:
    return RobotsAnswer(url=url, status=status, read=read, text=text)


def consent(*answers: RobotsAnswer, **policy: object) -> Consent:
    return Consent(ConsentConfig(**policy), [RobotsBook(answers)])  # type: ignore[arg-type]


NO = "User-agent: *\nDisallow: /"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Example.ORG/a", "example.org"),
        ("https://example.org.:443/a", "example.org"),
        ("http://example.org:80/", "example.org"),
        ("http://example.org:8080/", "example.org:8080"),
        ("https://user:secret@example.org/", "example.org"),
        ("https://bücher.example/", "xn--bcher-kva.example"),
        ("https://[2001:db8::1]/", "2001:db8::1"),
        ("not an address", ""),
        ("", ""),
    ],
)
def test_one_spelling_of_a_host(url: str, host: str) -> None:
    assert normal_host(url) == host


def test_refusal_tells_rule_file_agent_and_date() -> None:
    decision = consent(answer("https://example.org/robots.txt", NO)).ask("https://example.org/a")
    assert not decision.allowed
    assert decision.consent == "robots_disallow"
    assert decision.rule == "Disallow: / (group *) at https://example.org/robots.txt"
    assert (decision.agent, decision.read, decision.host) == ("*", "2019-07", "example.org")


@pytest.mark.parametrize(
    ("status", "state", "allowed"),
    [
        (200, "robots_disallow", False),
        (404, "robots_absent", True),
        (403, "robots_absent", True),
        (500, "robots_unreachable", False),
        (503, "robots_unreachable", False),
        (301, "robots_unreachable", False),
        (0, "robots_unreachable", False),
    ],
)
def test_status_rules(status: int, state: str, allowed: bool) -> None:
    asked = consent(answer("https://example.org/robots.txt", NO, status))
    decision = asked.ask("https://example.org/a")
    assert (decision.consent, decision.allowed) == (state, allowed)


def test_unreachable_can_be_allowed_by_policy() -> None:
    asked = consent(answer("https://example.org/robots.txt", "", 503), unreachable="allow")
    decision = asked.ask("https://example.org/a")
    assert decision.allowed
    assert decision.consent == "robots_unreachable"


def test_unknown_host_is_a_state_of_its_own() -> None:
    assert not consent().ask("https://example.org/a").allowed
    decision = consent(unknown_host="allow").ask("https://example.org/a")
    assert (decision.allowed, decision.consent, decision.read) == (True, "unknown_host", "")


def test_text_without_an_address_follows_its_own_policy() -> None:
    assert consent().ask("").allowed
    assert consent().ask(" \n").consent == "no_url"
    assert not consent(no_url="drop").ask("").allowed


@pytest.mark.parametrize(
    "url",
    [
        "a book",
        "github.com/a",
        "www.github.com",
        "https:/github.com/a",
        "https:///github.com/a",
        "view-source:https://github.com/a",
    ],
)
def test_address_without_a_host_is_refused_under_every_policy(url: str) -> None:
    decision = consent(unknown_host="allow", no_url="allow").ask(url)
    assert (decision.allowed, decision.consent) == (False, "bad_url")


def test_answer_of_an_address_that_names_no_host_is_passed_over() -> None:
    wrong = ["http://a:99999999/robots.txt", f"http://{'ü' * 80}/robots.txt", "/robots.txt"]
    asked = consent(*(answer(url, NO) for url in wrong), unknown_host="allow")
    assert asked.ask("http://a/").consent == "unknown_host"


def test_address_that_cannot_be_parsed_is_refused() -> None:
    decision = consent(unknown_host="allow").ask("http://[broken")
    assert (decision.allowed, decision.consent) == (False, "bad_url")
    assert consent(unknown_host="allow").ask("http://a:99999999/").consent == "bad_url"


def test_twin_with_www_stands_in_but_does_not_overrule() -> None:
    twin = answer("https://www.example.org/robots.txt", NO)
    own = answer("https://example.org/robots.txt", "User-agent: *\nAllow: /")
    assert not consent(twin).ask("https://example.org/a").allowed
    assert "https://www.example.org" in consent(twin).ask("https://example.org/a").rule
    assert consent(twin, own).ask("https://example.org/a").allowed
    assert (
        not consent(answer("https://example.org/robots.txt", NO))
        .ask("http://www.example.org/a")
        .allowed
    )


def test_the_answer_read_last_counts() -> None:
    old = answer("https://example.org/robots.txt", NO, read="2019-07")
    new = answer("https://example.org/robots.txt", "", read="2024-01-02")
    assert consent(old, new).ask("https://example.org/a").allowed
    assert consent(new, old).ask("https://example.org/a").allowed


def test_every_book_that_knows_the_host_must_agree() -> None:
    yes = RobotsBook([answer("https://example.org/robots.txt", "", read="2024")])
    no = RobotsBook([answer("https://example.org/robots.txt", NO, read="2018")])
    config = ConsentConfig()
    assert not Consent(config, [yes, no]).ask("https://example.org/a").allowed
    assert Consent(config, [yes, RobotsBook([])]).ask("https://example.org/a").allowed


def test_snapshot_is_read_and_a_broken_line_is_named(tmp_path: Path) -> None:
    row = {"url": "https://a.org/robots.txt", "status": 200, "fetched": "2020", "text": NO}
    path = tmp_path / "robots.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert read_snapshot(path, ReadLimits()) == [
        answer("https://a.org/robots.txt", NO, read="2020")
    ]
    for broken in ("{", '{"url": "https://a.org/"}', "[]", json.dumps({**row, "status": "200"})):
        path.write_text(json.dumps(row) + "\n" + broken + "\n")
        with pytest.raises(DataError, match=r"line 2.*Each line needs url, status, fetched"):
            read_snapshot(path, ReadLimits())


def test_date_of_a_snapshot_is_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "robots.jsonl"
    row = {"url": "https://a.org/robots.txt", "status": 200, "fetched": "20\ud80020", "text": NO}
    path.write_text(json.dumps(row))
    assert read_snapshot(path, ReadLimits())[0].read == "2020"


def test_config_refuses_no_agents() -> None:
    with pytest.raises(ConfigError, match=r"agents = .* is empty"):
        ConsentConfig(agents=())
    with pytest.raises(ConfigError, match="empty name"):
        ConsentConfig(agents=("*", " "))
