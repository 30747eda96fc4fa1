"""Consent decisions by host, HTTP status and policy."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.config import ReplayConfig
from stamm.corpus.consent import decision
from stamm.corpus.consent.agents import APERTUS_AGENTS, agents_sha256, load_agents
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.decision import ConsentResolver, ConsentSource
from stamm.corpus.consent.hosts import normalize_host
from stamm.corpus.consent.policies import DomainList, read_domain_list, robots_source
from stamm.corpus.consent.robots import RobotsAnswer
from stamm.corpus.consent.snapshot import snapshot_entries
from stamm.corpus.limits import ReadLimits


def answer(url: str, text: str = "", status: int = 200, read: str = "2019-07") -> RobotsAnswer:
    return RobotsAnswer(url=url, status=status, read=read, text=text)


def consent(*answers: RobotsAnswer, **policy: object) -> ConsentResolver:
    return ConsentResolver(ConsentConfig(**policy), [robots_source(answers)])  # type: ignore[arg-type]


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
        ("https://Straße.example/", "xn--strae-oqa.example"),
        ("https://stra%C3%9Fe.example/", "xn--strae-oqa.example"),
        ("https://βόλος.example/", "xn--nxasmm1c.example"),
        ("https://ΒΌΛΟΣ.example/", "xn--nxasmq6b.example"),
        ("https://نامه\u200cای.example/", "xn--mgba3gch31f060k.example"),
        ("https://☃.example/", "xn--n3h.example"),
        ("https://bücher。example/", "xn--bcher-kva.example"),
        ("https://[2001:db8::1]/", "2001:db8::1"),
        ("https://[2001:DB8:0:0::0001]:443/", "2001:db8::1"),
        ("https://[2001:db8::1]:80/", "[2001:db8::1]:80"),
        ("https://user:a@b@example.org:8443/", "example.org:8443"),
        ("https://ex%61mple.org/", "example.org"),
        ("https://EXAMPLE。org/", "example.org"),
        ("HTTPS://Example.org?a", "example.org"),
        ("https://example.org", "example.org"),
        ("https://exa\nmple.org/", "example.org"),
        ("//example.org/a", "example.org"),
        ("not an address", ""),
        ("", ""),
    ],
)
def test_one_spelling_of_a_host(url: str, host: str) -> None:
    assert normalize_host(url) == host


def test_refusal_tells_rule_file_agent_and_date() -> None:
    decision = consent(answer("https://example.org/robots.txt", NO)).decide("https://example.org/a")
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
        (429, "robots_unreachable", False),
        (500, "robots_unreachable", False),
        (503, "robots_unreachable", False),
        (301, "robots_unreachable", False),
        (0, "robots_unreachable", False),
    ],
)
def test_status_rules(status: int, state: str, allowed: bool) -> None:
    asked = consent(answer("https://example.org/robots.txt", NO, status))
    decision = asked.decide("https://example.org/a")
    assert (decision.consent, decision.allowed) == (state, allowed)


def test_unreachable_can_be_allowed_by_policy() -> None:
    asked = consent(answer("https://example.org/robots.txt", "", 503), unreachable="allow")
    decision = asked.decide("https://example.org/a")
    assert decision.allowed
    assert decision.consent == "robots_unreachable"


def test_a_file_that_is_none_follows_its_own_policy() -> None:
    page = answer("https://example.org/robots.txt", "<html>Not found</html>")
    decision = consent(page).decide("https://example.org/a")
    assert (decision.consent, decision.allowed) == ("robots_unparsable", True)
    assert decision.rule == "an HTML page at https://example.org/robots.txt"
    assert not consent(page, unparsable="drop").decide("https://example.org/a").allowed


def test_a_redirect_does_not_overrule_an_answer_of_the_same_day() -> None:
    moved = answer("http://example.org/robots.txt", "", 301)
    target = answer("https://example.org/robots.txt", "User-agent: *\nDisallow: /a")
    for answers in ((moved, target), (target, moved)):
        assert consent(*answers).decide("https://example.org/b").consent == "robots_allows"
    later = answer("http://example.org/robots.txt", "", 301, read="2024")
    assert consent(target, later).decide("https://example.org/b").consent == "robots_unreachable"


def test_a_decision_does_not_depend_on_what_was_asked_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [
        answer(f"https://h{n}.org/robots.txt", f"User-agent: *\nDisallow: /{n}") for n in range(9)
    ]
    urls = [
        f"https://{www}h{n}.org/{m}" for n in range(9) for m in range(9) for www in ("", "www.")
    ]
    expected = {url: consent(*answers).decide(url) for url in urls}
    assert {d.allowed for d in expected.values()} == {True, False}
    monkeypatch.setattr(decision, "_CACHED_CHARACTERS", 400)
    monkeypatch.setattr(decision, "_MAX_CACHED_DECISIONS", 2)
    asked = consent(*answers)
    for url in urls + urls[::-1]:
        assert asked.decide(url) == expected[url]


def test_unknown_host_is_a_state_of_its_own() -> None:
    assert not consent().decide("https://example.org/a").allowed
    decision = consent(unknown_host="allow").decide("https://example.org/a")
    assert (decision.allowed, decision.consent, decision.read) == (True, "unknown_host", "")


def test_text_without_an_address_follows_its_own_policy() -> None:
    assert consent().decide("").allowed
    assert consent().decide(" \n").consent == "no_url"
    assert not consent(no_url="drop").decide("").allowed


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
    decision = consent(unknown_host="allow", no_url="allow").decide(url)
    assert (decision.allowed, decision.consent) == (False, "bad_url")


def test_answer_of_an_address_that_names_no_host_is_passed_over() -> None:
    wrong = ["http://a:99999999/robots.txt", f"http://{'ü' * 80}/robots.txt", "/robots.txt"]
    asked = consent(*(answer(url, NO) for url in wrong), unknown_host="allow")
    assert asked.decide("http://a/").consent == "unknown_host"


def test_address_that_cannot_be_parsed_is_refused() -> None:
    decision = consent(unknown_host="allow").decide("http://[broken")
    assert (decision.allowed, decision.consent) == (False, "bad_url")
    for url in (
        "http://a:99999999/",
        "https://exam%2Fple.org/",
        "https://%ff.org/",
        "https://a b.org/",
        "https://a..org/",
        "https://.a.org/",
        f"https://{'a.' * 127}org/",
        f"https://{'%61' * 10_000}.org/",
        f"https://a.org{'.' * 10_000}/",
        "https://[v1.a]/",
        "https://[fe80::1%25eth0]/",
        # One client asks a.org, another b.org.
        "https://a.org\\@b.org/",
    ):
        assert consent(unknown_host="allow").decide(url).consent == "bad_url"


def test_the_www_variant_is_used_only_without_an_own_answer() -> None:
    twin = answer("https://www.example.org/robots.txt", NO)
    own = answer("https://example.org/robots.txt", "User-agent: *\nAllow: /")
    assert not consent(twin).decide("https://example.org/a").allowed
    assert "https://www.example.org" in consent(twin).decide("https://example.org/a").rule
    assert consent(twin, own).decide("https://example.org/a").allowed
    assert (
        not consent(answer("https://example.org/robots.txt", NO))
        .decide("http://www.example.org/a")
        .allowed
    )


def test_the_answer_read_last_counts() -> None:
    old = answer("https://example.org/robots.txt", NO, read="2019-07")
    new = answer("https://example.org/robots.txt", "", read="2024-01-02")
    assert consent(old, new).decide("https://example.org/a").allowed
    assert consent(new, old).decide("https://example.org/a").allowed


def test_every_book_that_knows_the_host_must_agree() -> None:
    yes = robots_source([answer("https://example.org/robots.txt", "", read="2024")])
    no = robots_source([answer("https://example.org/robots.txt", NO, read="2018")])
    config = ConsentConfig()
    assert not ConsentResolver(config, [yes, no]).decide("https://example.org/a").allowed
    assert ConsentResolver(config, [yes, robots_source([])]).decide("https://example.org/a").allowed


def test_snapshot_is_read_and_a_broken_line_is_named(tmp_path: Path) -> None:
    row = {"url": "https://a.org/robots.txt", "status": 200, "fetched": "2020", "text": NO}
    path = tmp_path / "robots.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (found,) = list(snapshot_entries(path, ReadLimits()))
    assert (found.kind, found.url, found.status, found.fetched, found.text) == (
        "robots", "https://a.org/robots.txt", 200, "2020", NO,
    )  # fmt: skip
    wrong = (
        {"status": "200"}, {"status": True}, {"status": -1}, {"status": 10**30},
        {"fetched": "yesterday"}, {"fetched": "22.11.2026"}, {"fetched": ""}, {"fetched": "20261122"},
        {"url": "/robots.txt"}, {"kind": "robot"},
    )  # fmt: skip
    rows = [json.dumps({**row, **each}) for each in wrong]
    for broken in ("{", '{"url": "https://a.org/"}', "[]", *rows):
        path.write_text(json.dumps(row) + "\n" + broken + "\n")
        with pytest.raises(DataError, match=r"line 2.*Each line needs url, status, fetched"):
            list(snapshot_entries(path, ReadLimits()))


def test_date_of_a_snapshot_is_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "robots.jsonl"
    row = {"url": "https://a.org/robots.txt", "status": 200, "fetched": "20\ud80020", "text": NO}
    path.write_text(json.dumps(row))
    assert next(snapshot_entries(path, ReadLimits())).fetched == "2020"


def test_config_refuses_no_agents() -> None:
    with pytest.raises(ConfigError, match=r"agents = .* is empty"):
        ConsentConfig(agents=())
    with pytest.raises(ConfigError, match="empty name"):
        ConsentConfig(agents=("*", " "))
    with pytest.raises(ConfigError, match=r"robots.txt cannot address"):
        ConsentConfig(agents=("*", "Kangaroo Bot"))
    # An argument that is no UTF-8 (surrogateescape), and what came of a wrong decoding.
    for agent in ("B\udcfccherbot", "B\ufffdcherbot"):
        with pytest.raises(ConfigError, match=r"robots.txt cannot address"):
            ConsentConfig(agents=(agent,))


def test_an_agent_with_a_name_outside_ascii_is_asked_for() -> None:
    text = "User-agent: *\nAllow: /\n\nUser-agent: Bücherbot\nDisallow: /\n"
    asked = consent(answer("https://example.org/robots.txt", text), agents=("*", "BücherBot/2"))
    decision = asked.decide("https://example.org/a")
    assert (decision.allowed, decision.agent) == (False, "BücherBot/2")
    assert decision.rule == "Disallow: / (group bücherbot) at https://example.org/robots.txt"


def test_rules_written_as_absolute_urls_stand_in_the_decision() -> None:
    text = (
        "User-agent: *\nDisallow: /a\nDisallow: https://example.org/private/\n"
        "Disallow: http://www.example.org/c\nDisallow: https://cdn.example.org/\n"
    )
    where = "https://example.org/robots.txt"
    asked = consent(answer(where, text))
    for host in ("example.org", "www.example.org"):
        decision = asked.decide(f"https://{host}/private/b")
        assert (decision.consent, decision.allowed, decision.host) == ("robots_allows", True, host)
        assert decision.rule == (
            f"{where}; 2 ignored, written as absolute URLs, "
            "first line 3, Disallow: https://example.org/private/"
        )
    assert asked.decide("https://example.org/a").rule == f"Disallow: /a (group *) at {where}"
    # A group that nobody follows is nobody's loss.
    other = consent(answer(where, text.replace("*", "Slurp")))
    assert other.decide("https://example.org/private/b").rule == where


def test_named_lists_of_agents(tmp_path: Path) -> None:
    assert load_agents("apertus") == APERTUS_AGENTS
    assert len(APERTUS_AGENTS) == 15
    training, everybody = load_agents("training"), load_agents("all")
    assert {"GPTBot", "CCBot", "ClaudeBot", "Bytespider", "*"} <= set(training)
    assert "ChatGPT-User" not in training
    lower = {agent.lower() for agent in everybody}
    assert {agent.partition("/")[0].lower() for agent in APERTUS_AGENTS + training} <= lower
    assert len(lower) == len(everybody)
    for name in (training, everybody):
        ConsentConfig(agents=name)
    newer = tmp_path / "agents.json"
    newer.write_text(json.dumps({"date": "2026-11-01", "lists": {"mine": ["GPTBot", "*"]}}))
    assert load_agents("mine", newer) == ("GPTBot", "*")
    with pytest.raises(ConfigError, match=r"no list 'traning'.*Did you mean 'training'"):
        load_agents("traning")
    for broken in ("[]", "{}", '{"lists": 3}', '{"lists": {}}', "{"):
        newer.write_text(broken)
        with pytest.raises(
            DataError, match=r"agents\.json is (not a file of agent lists|not JSON)"
        ):
            load_agents("mine", newer)
    for members in ("[]", '["a b"]', "[3]", '"GPTBot"', "null"):
        newer.write_text(f'{{"date": "2026-11-01", "lists": {{"mine": {members}}}}}')
        with pytest.raises(DataError, match=r"list 'mine' of .* is not made of agent names"):
            load_agents("mine", newer)
    for date in ("null", '"November"', '"2026-13-01"', '"2026-11-01\\n"', "20261101"):
        newer.write_text(f'{{"date": {date}, "lists": {{"mine": ["*"]}}}}')
        with pytest.raises(DataError, match="Write the day of the lists"):
            load_agents("mine", newer)


def test_a_configuration_names_the_agents_of_a_list_and_where_they_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = json.dumps({"date": "2026-11-01", "lists": {"mine": ["NewBot", "*"]}})
    Path("mine.json").write_text(written)
    config = ConsentConfig(agents=("mine.json:mine", "CCBot", "NewBot"))
    assert config.agents == ("NewBot", "*", "CCBot")
    assert config.agents_source == (
        f"mine.json:mine of 2026-11-01, sha256 {hashlib.sha256(written.encode()).hexdigest()}; "
        f"names {agents_sha256(config.agents)}"
    )
    # A worker is told the names, wherever it stands, and needs no file.
    Path("mine.json").unlink()
    assert from_plain(ConsentConfig, json.loads(json.dumps(to_plain(config)))) == config
    # What was said of other names is not said of these.
    assert replace(config, agents=("CCBot",)).agents_source == ""
    with pytest.raises(DataError, match=r"mine\.json does not exist"):
        ConsentConfig(agents=("mine.json:mine",))
    with pytest.raises(ConfigError, match=r"agents\.json has no list 'traning'.*'training'"):
        ConsentConfig(agents=("package:traning",))


def test_a_shipped_list_is_reported_with_its_date() -> None:
    assert ConsentConfig().agents_source.startswith("package:apertus of 2026-08-22, sha256 ")
    training = ConsentConfig(agents=("package:training",))
    assert training.agents == load_agents("training")
    assert training.agents_source.startswith("package:training of ")
    assert ConsentConfig(agents=load_agents("training")) == training
    replay = ReplayConfig(agents=("package:training",), deletions=("x",))
    assert (replay.agents, replay.consent.agents_source) == (
        training.agents, training.agents_source,
    )  # fmt: skip


def test_the_hash_of_a_list_is_that_of_its_names_in_order() -> None:
    plain = hashlib.sha256(b'["GPTBot","*"]').hexdigest()
    assert agents_sha256(("GPTBot", "*")) == plain
    assert agents_sha256(("*", "GPTBot")) != plain


def domain_list(path: Path, text: str) -> DomainList:
    path.write_text(text, encoding="utf-8")
    return read_domain_list(path, ReadLimits())


def test_listed_domains_and_all_below_them_are_refused(tmp_path: Path) -> None:
    listed = domain_list(
        tmp_path / "refused.txt",
        "\ufeff# by letter\nexample.org  # 2024\n\n*.Bücher.example.\nhttps://www.a.net:8443/x\n"
        '{"domain": "json.example", "why": "form"}\nexample.org\n',
    )
    asked = ConsentResolver(ConsentConfig(unknown_host="allow"), [listed])
    for url, rule in {
        "https://example.org/": "example.org in refused.txt, line 2",
        "http://deep.below.EXAMPLE.org.:8080/a": "example.org in refused.txt, line 2",
        "https://shop.xn--bcher-kva.example/": "xn--bcher-kva.example in refused.txt, line 4",
        "https://www.a.net/": "www.a.net in refused.txt, line 5",
        "https://json.example": "json.example in refused.txt, line 6",
    }.items():
        decision = asked.decide(url)
        assert (decision.consent, decision.allowed, decision.rule) == ("domain_list", False, rule)
    for url in (
        "https://anexample.org/",
        "https://example.org.uk/",
        "https://a.net/",
        "https://org/",
    ):
        assert asked.decide(url).consent == "unknown_host"


def test_a_listed_domain_is_refused_whatever_its_robots_file(tmp_path: Path) -> None:
    listed = domain_list(tmp_path / "refused.txt", "example.org")
    book = robots_source([answer("https://example.org/robots.txt", "User-agent: *\nAllow: /")])
    orders: list[list[ConsentSource]] = [[listed, book], [book, listed]]
    for books in orders:
        assert not ConsentResolver(ConsentConfig(), books).decide("https://example.org/a").allowed
    other = robots_source([answer("https://other.org/robots.txt", "")])
    assert ConsentResolver(ConsentConfig(), [listed, other]).decide("https://other.org/a").allowed


@pytest.mark.parametrize(
    "line",
    [
        "org", "a b.org", "{", '{"host": "a.org"}', '{"domain": 3}', '{"domain": ""}', "a..org", "*", "/x",
        "http://[x", "exa\x00mple.org", "-.", "2001:db8::1",
    ],
)  # fmt: skip
def test_a_line_that_names_no_domain_is_reported(tmp_path: Path, line: str) -> None:
    with pytest.raises(DataError, match=r"refused.txt is not a list of domains: .*line 2"):
        domain_list(tmp_path / "refused.txt", f"a.org\n{line}\nb.org\n")
