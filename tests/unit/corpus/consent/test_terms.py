"""Terms of use beside the opt-out signals: RSL licences, and what is stated and not read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpus_inputs import page, warc_response

from stamm.base.console import NoProgress
from stamm.corpus.config import CorpusConfig
from stamm.corpus.consent.ai_txt import AiTxtFile
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.robots import RobotsFile
from stamm.corpus.consent.signals import meta_refusal, unread_terms
from stamm.corpus.consent.terms import rsl_refusal
from stamm.corpus.documents import Signals
from stamm.corpus.extract import extract
from stamm.corpus.limits import ReadLimits
from stamm.corpus.tables import read_parts
from tests.unit.small_corpus import build_corpus

ROBOTS = "License: https://example.org/license.xml\nUser-agent: *\nAllow: /\n"
RSL = '<rsl xmlns="https://rslstandard.org/rsl"><content url="/"{}><license>{}</license></content></rsl>'


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("License: https://example.org/license.xml", "license"),
        ("  licence : https://example.org/license.xml # ours", "licence"),
        ("Permits: search", "permits"),
        ("AI-Training: no", "ai-training"),
        ("NoAI: true", "noai"),
        ("X-Robots-Tag: noai", "x-robots-tag"),
        ("TDM-Reservation: 1", "tdm-reservation"),
        ("Train-AI: n", "train-ai"),
    ],
)
def test_a_line_about_use_that_is_not_read_is_told(line: str, key: str) -> None:
    file = RobotsFile(f"User-agent: *\nDisallow: /a\n{line}\nAllow: /b\n")
    assert [(number, name) for number, name, _ in file.terms] == [(3, key)]
    assert file.refusal("https://example.org/c", ("*",)) is None
    # It belongs to no group, and ends none.
    assert file.refusal("https://example.org/a", ("*",)) is not None
    assert RobotsFile(f"User-agent: a\n{line}\nUser-agent: b\nDisallow: /").refusal(
        "https://example.org/", ("a",)
    )


def test_other_lines_are_not() -> None:
    text = "Sitemap: /a\nCrawl-delay: 3\nHost: x\nDisallow: /ai: no\nAllow: /license: x\n# License: y\n"
    text += (
        "Content-Signal: search=yes\nContent-Usage: search=y\nLicense:\nDisallowAITraining: /x\n"
    )
    assert RobotsFile(f"User-agent: *\n{text}").terms == ()


@pytest.mark.parametrize("value", ["ai-training", "search, ai-train", "all", "train-ai"])
def test_a_prohibition_of_training_in_robots_txt_refuses(value: str) -> None:
    refusal = RobotsFile(f"User-agent: *\nAllow: /\nProhibits: {value}").refusal(
        "https://example.org/", ("*",)
    )
    assert refusal is not None
    assert (refusal.reason, refusal.rule) == (
        "robots_content_usage",
        f"Prohibits: {value} (no group)",
    )


@pytest.mark.parametrize(
    ("attributes", "licence", "reason"),
    [
        ("", "", ""),
        ("", '<permits type="usage">all</permits>', ""),
        ("", '<permits type="usage">search ai-train</permits><payment type="free"/>', ""),
        ("", '<permits type="usage">search</permits>', "permits search"),
        ("", '<prohibits type="usage">ai-train</prohibits>', "prohibits ai-train"),
        ("", "<prohibits>ai-all</prohibits>", "prohibits ai-all"),
        ("", '<permits type="usage">all</permits><permits type="geo">EU</permits>', "permits geo EU"),
        ("", '<permits type="user">non-commercial</permits>', "permits user non-commercial"),
        ("", '<payment type="crawl"><amount currency="USD">0.1</amount></payment>', "payment crawl"),
        ("", '<payment type="attribution"/>', "payment attribution"),
        ("", "<payment><standard>https://x.example/l</standard></payment>", "payment"),
        (' server="https://x.example"', "", "licence server https://x.example"),
    ],
)  # fmt: skip
def test_an_rsl_licence_that_does_not_grant_training_for_nothing_refuses(
    attributes: str, licence: str, reason: str
) -> None:
    text = RSL.format(attributes, licence)
    assert rsl_refusal(text) == reason
    prefixed = text.replace("<", "<r:").replace("<r:/", "</r:").replace("xmlns=", "xmlns:r=")
    assert rsl_refusal(prefixed) == reason
    head = f'<script type="application/rsl+xml">{text}</script>'
    refusal = meta_refusal(
        [], ("*",), licences=extract(page("x", head), None, ReadLimits()).licences
    )
    assert (refusal.reason if refusal else "") == ("rsl_licence" if reason else "")


def test_one_licence_of_several_is_enough() -> None:
    text = RSL.format(
        "", "<prohibits>ai-train</prohibits></license><license><permits>all</permits>"
    )
    assert rsl_refusal(text) == ""
    assert rsl_refusal("<rsl></rsl>") == "no licence in it"
    assert rsl_refusal("<rsl><content>") == "cannot be read"
    assert rsl_refusal('<!DOCTYPE rsl [<!ENTITY a "b">]><rsl>&a;</rsl>') == "cannot be read"


def test_licences_at_other_addresses_are_named() -> None:
    header = '<https://a.example/x>; rel="next", <https://a.example/l.xml>; rel="license"; type="application/rsl+xml"'
    signals = Signals(headers=(("link", header),))
    assert unread_terms(signals, ["/l2.xml"]) == [
        "RSL licence https://a.example/l.xml",
        "RSL licence /l2.xml",
    ]
    head = '<link rel="license" type="application/rsl+xml" href="/l.xml">'
    assert extract(page("x", head), None, ReadLimits()).licence_links == ("/l.xml",)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("content-usage", "train-ai=n", "content_usage"),
        ("content-signal", "search=yes, ai-train=no", "content_usage"),
        ("content-signal", "ai-train=yes", None),
        ("x-robots-tag", "noai", "meta_noai"),
        ("robots", "DisallowAITraining", "meta_noai"),
        ("tdm-reservation", "1", "tdm_reservation"),
    ],
)
@pytest.mark.parametrize("key", ["name", "http-equiv"])
def test_signals_in_meta_elements(key: str, name: str, content: str, reason: str | None) -> None:
    head = f'<meta {key}="{name}" content="{content}">'
    refusal = meta_refusal(extract(page("x", head), None, ReadLimits()).metas, ("*",))
    assert (refusal.reason if refusal else None) == reason


def test_an_ai_txt_in_another_format_is_told() -> None:
    assert AiTxtFile("Training: disallow\nContact: x\n").unread
    assert not AiTxtFile("User-Agent: *\nDisallow: *.txt\n").unread
    assert not AiTxtFile("<html>not found</html>").unread
    assert not AiTxtFile(" \n").unread


@pytest.mark.parametrize("policy", ["allow", "drop", ""])
def test_unread_terms_are_in_the_ledger_and_counted_and_may_drop(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rsl = 'type="application/rsl+xml"'
    archive = tmp_path / "pages.warc"
    archive.write_bytes(
        warc_response("https://a.example/1", page("The first text of it."))
        + warc_response("https://b.example/2", page("The second text.", f"<link {rsl} href=/l>"))
        + warc_response("https://c.example/3", page("The third text here."))
    )
    robots = tmp_path / "robots.jsonl"
    answers = {"a": ROBOTS, "b": "", "c": ""}
    rows = [
        {"url": f"https://{name}.example/robots.txt", "status": 200, "fetched": "2026-11-22", "text": text}
        for name, text in answers.items()
    ]  # fmt: skip
    rows.append(
        {"kind": "ai_txt", "url": "https://c.example/ai.txt", "status": 200, "fetched": "2026",
         "text": "Training: no"}
    )  # fmt: skip
    robots.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stated = {"unread_terms": policy} if policy else {}
    consent = ConsentConfig(robots=(str(robots),), **stated)  # type: ignore[arg-type]
    if policy != "allow":
        archive.write_bytes(
            archive.read_bytes() + warc_response("https://b.example/4", page("The fourth text."))
        )
    config = CorpusConfig(inputs=(str(archive),), consent=consent, held_out=0.0)
    told: list[str] = []
    monkeypatch.setattr(NoProgress, "log", lambda _, text: told.append(text))
    folder = build_corpus(config, tmp_path)
    by_host = {row["url"][8]: row for row in read_parts(folder, "ledger") if "4" not in row["url"]}
    assert {name: row["unread_terms"] for name, row in by_host.items()} == {
        "a": "robots.txt, line 1, license: https://example.org/license.xml",
        "b": "RSL licence /l",
        "c": "ai.txt in an unknown format",
    }
    dropped = {row["reason"] for row in by_host.values()}
    assert dropped == ({""} if policy == "allow" else {"unread_terms"})  # dropped by default
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["unread_terms"] == {"documents": 3, "hosts": 3}
    assert [line.partition(";")[0] for line in told if "terms of use" in line] == [
        "Documents whose site names terms of use that were not read: RSL licence (1), "
        "ai.txt in an unknown format (1), license in robots.txt (1)"
    ]
