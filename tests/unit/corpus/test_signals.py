"""Opt-outs on the page itself: headers and their meta twins."""

from __future__ import annotations

import pytest

from stamm.corpus.agents import APERTUS_AGENTS
from stamm.corpus.records import Signals
from stamm.corpus.signals import header_refusal, meta_refusal


@pytest.mark.parametrize(
    ("name", "value", "reason", "agent"),
    [
        ("x-robots-tag", "noai, noimageai", "header_noai", ""),
        ("x-robots-tag", "noindex, NoAI", "header_noai", ""),
        ("x-robots-tag", "GPTBot: noindex", "header_noai", "GPTBot"),
        ("x-robots-tag", "googlebot: nofollow, gptbot: none", "header_noai", "GPTBot"),
        ("x-robots-tag", "noindex", None, ""),
        ("x-robots-tag", "noimageai", None, ""),
        ("x-robots-tag", "googlebot: noai", None, ""),
        ("x-robots-tag", "unavailable_after: 25 Jun 2030 15:00:00 PST", None, ""),
        ("x-robots-tag", "max-image-preview:large, noai", "header_noai", ""),
        ("x-robots-tag", "max-snippet:-1, noai", "header_noai", ""),
        ("x-robots-tag", "max-video-preview: 0, noai", "header_noai", ""),
        ("x-robots-tag", "unavailable_after: 25 Jun 2030 15:00:00 PST, noai", "header_noai", ""),
        ("x-robots-tag", "unavailable_after: Tue, 25 Jun 2030 15:00 PST, noai", "header_noai", ""),
        ("x-robots-tag", "gptbot: max-snippet:-1, noindex", "header_noai", "GPTBot"),
        ("x-robots-tag", "googlebot: max-snippet:-1, noai", None, ""),
        ("tdm-reservation", "1", "tdm_reservation", ""),
        ("tdm-reservation", "0", None, ""),
        ("content-usage", "train-ai=n", "content_usage", ""),
        ("content-usage", "train-ai=y", None, ""),
        ("server", "noai", None, ""),
    ],
)
def test_headers(name: str, value: str, reason: str | None, agent: str) -> None:
    refusal = header_refusal(Signals(headers=((name, value),)), APERTUS_AGENTS)
    assert (refusal.reason if refusal else None) == reason
    if refusal:
        assert refusal.agent == agent


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("robots", "noai", "meta_noai"),
        ("robots", "index, noai", "meta_noai"),
        ("robots", "noindex", None),
        ("gptbot", "noindex", "meta_noai"),
        ("googlebot", "noindex", None),
        ("tdm-reservation", " 1 ", "tdm_reservation"),
        ("tdm-reservation", "0", None),
    ],
)
def test_metas(name: str, content: str, reason: str | None) -> None:
    refusal = meta_refusal([(name, content)], APERTUS_AGENTS)
    assert (refusal.reason if refusal else None) == reason


def test_the_star_is_no_addressee() -> None:
    assert header_refusal(Signals(headers=(("x-robots-tag", "*: noindex"),)), ("*",)) is None


def test_rule_is_bounded_and_clean() -> None:
    signals = Signals(headers=(("x-robots-tag", "noai, \x1b[31m" + "x" * 9000),))
    refusal = header_refusal(signals, APERTUS_AGENTS)
    assert refusal is not None
    assert "\x1b" not in refusal.rule
    assert len(refusal.rule) <= 4096
