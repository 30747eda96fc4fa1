"""Opt-outs of a page in HTTP headers and meta elements."""

from __future__ import annotations

import pytest

from stamm.base.errors import ConfigError
from stamm.corpus.consent.agents import APERTUS_AGENTS
from stamm.corpus.consent.config import SignalsConfig
from stamm.corpus.consent.signals import header_refusal, meta_refusal, tdm_reservation
from stamm.corpus.consent.tdmrep import TdmReservation
from stamm.corpus.documents import Signals


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
        ("x-robots-tag", "unavailable_after: Tue, 25-Jun-2030T15:00, noai", "header_noai", ""),
        ("x-robots-tag", "unavailable_after: Tue, 25-Jun-30 15:00, noai", "header_noai", ""),
        ("x-robots-tag", "CCBot: noindex", "header_noai", "CCBot"),
        ("x-robots-tag", "gptbot: max-snippet:-1, noindex", "header_noai", "GPTBot"),
        ("x-robots-tag", "googlebot: max-snippet:-1, noai", None, ""),
        ("x-robots-tag", "*: noai", "header_noai", ""),
        ("tdm-reservation", "1", "tdm_reservation", ""),
        ("tdm-reservation", " 1 ", "tdm_reservation", ""),
        ("tdm-reservation", "2", None, ""),
        ("tdm-reservation", "0", None, ""),
        ("content-usage", "train-ai=n", "content_usage", ""),
        ("content-usage", "train-ai=y", None, ""),
        ("content-signal", "search=yes, ai-train=no", "content_usage", ""),
        ("content-signal", "ai-train=yes, search=no", None, ""),
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


@pytest.mark.parametrize(
    ("values", "denied"),
    [
        (["train-ai=n"], True),
        (['train-ai=n;because="of, this"', "search=y"], True),
        (["search=n, train-ai = n"], True),
        (["search=n,\ttrain-ai=n"], True),
        (["  train-ai=n  "], True),
        (["ai-use=n"], True),
        (["train-ai=y, search=n"], False),
        # The vocabulary's own examples of what says nothing.
        (['train-ai=y, train-ai, search=n, search="n"'], False),
        (["train-ai;allow=n, train-ai=y"], False),
        (['train-ai;has;parameters="?";'], False),
        # The most restrictive of several statements, in one line or in two.
        (["train-ai=y", "train-ai=n"], True),
        (["train-ai=n", "train-ai=y"], True),
        (["train-ai=n, train-ai=y"], True),
        (["train-ai=n, train-ai"], True),
        # Every kind of item that may stand beside it.
        (['a=1, b=-2.5, c=?0, d=:AA==:, e=@1659578233, f=%"f%c3%bc", *g, train-ai=n'], True),
        (['a=(1 x "y";q=2);p, b=(), train-ai=n'], True),
        # Blanks and capital letters are not in the draft, but an opt-out all the same.
        (["Train-AI=n"], True),
        (["train-ai=N"], True),
        # Labels of earlier drafts.
        (["bots=n"], True),
        (["train-genai=n"], True),
        (["tdm=n, search=y"], True),
        (["search=n"], False),
        # A line that is no dictionary says nothing; another line still does.
        (["train-ai=n,"], False),
        (["train-ai=n; ,"], False),
        (["train-ai=n, =n"], False),
        (["train-ai=n search=n"], False),
        (["a=(1, train-ai=n"], False),
        (["a=(1)x, train-ai=n"], False),
        (['a=(1"x"), train-ai=n'], False),
        (['a="open, train-ai=n'], False),
        (["a=1234567890123456, train-ai=n"], False),
        (["a=1234567890123.5, train-ai=n"], False),
        (["a=@1.5, train-ai=n"], False),
        (["a=:A=A=:, train-ai=n"], False),
        (['a=%"%c3%28", train-ai=n'], False),
        (["train-ai=\u00fc, train-ai=n", "train-ai=n"], True),
        (["train-ai=no"], False),
        ([""], False),
        (["," * 100_000, "(" * 100_000, "a=" + "(" * 10_000], False),
        (["train-ai=n" + ";x" * 100_000], False),
    ],
)
def test_content_usage_is_a_dictionary(values: list[str], denied: bool) -> None:
    signals = Signals(headers=tuple(("content-usage", value) for value in values))
    refusal = header_refusal(signals, APERTUS_AGENTS)
    assert (refusal is not None) == denied
    if refusal is not None:
        assert refusal.reason == "content_usage"


def test_content_usage_asks_for_the_labels_that_are_set() -> None:
    signals = Signals(headers=(("content-usage", "ai-use=n"),))
    assert header_refusal(signals, ("*",), SignalsConfig(usage_labels=("train-ai",))) is None
    with pytest.raises(ConfigError, match="usage_labels"):
        SignalsConfig(usage_labels=("Train-AI",))


@pytest.mark.parametrize(
    ("header", "switch", "standard"),
    [
        (("x-robots-tag", "noai"), "noai", True),
        (("x-robots-tag", "gptbot: noai"), "noai", True),
        (("x-robots-tag", "noimageai"), "noimageai", False),
        (("x-robots-tag", "gptbot: none"), "agent_noindex", True),
        (("tdm-reservation", "1"), "tdm_reservation", True),
        (("content-usage", "train-ai=n"), "content_usage", True),
    ],
)
def test_every_signal_has_its_switch(header: tuple[str, str], switch: str, standard: bool) -> None:
    signals = Signals(headers=(header,))
    assert (header_refusal(signals, APERTUS_AGENTS) is not None) == standard
    for on in (True, False):
        config = SignalsConfig(**{switch: on})  # type: ignore[arg-type]
        assert (header_refusal(signals, APERTUS_AGENTS, config) is not None) == on
    # The metas of the same signals obey the same switches.
    name = {"gptbot: noai": "gptbot", "gptbot: none": "gptbot"}.get(header[1], "robots")
    if header[0] == "x-robots-tag":
        meta = (name, header[1].removeprefix("gptbot: "))
        for on in (True, False):
            config = SignalsConfig(**{switch: on})  # type: ignore[arg-type]
            assert (meta_refusal([meta], APERTUS_AGENTS, config) is not None) == on


RESERVED = TdmReservation(state="reserved", rule="location /: tdm-reservation 1")
FREE = TdmReservation(state="not_reserved", rule="location /: tdm-reservation 0")


@pytest.mark.parametrize(
    ("site", "header", "meta", "refused"),
    [
        (RESERVED, None, None, True),
        (RESERVED, "0", None, False),
        (RESERVED, None, "0", False),
        (RESERVED, "1", "0", False),
        (RESERVED, "0", "1", True),
        (FREE, None, None, False),
        (FREE, "1", None, True),
        (FREE, "0", "1", True),
        (FREE, "1", "0", False),
        # Silence and errors of protocol leave what was said before.
        (RESERVED, "", "2", True),
        (FREE, "yes", "", False),
        (TdmReservation(), "1", "yes", True),
        (TdmReservation(), None, None, False),
        (TdmReservation(state="unparsable", rule="no array"), None, None, True),
        (TdmReservation(state="unparsable", rule="no array"), "0", None, False),
    ],
)
def test_a_later_technique_supersedes_an_earlier_one(
    site: TdmReservation, header: str | None, meta: str | None, refused: bool
) -> None:
    signals = Signals(headers=() if header is None else (("tdm-reservation", header),))
    metas = [] if meta is None else [("tdm-reservation", meta)]
    # The headers of a page of HTML cannot decide yet.
    assert header_refusal(signals, APERTUS_AGENTS, site=site, metas_follow=True) is None
    before = tdm_reservation(site, signals)
    refusal = meta_refusal(metas, APERTUS_AGENTS, before=before)
    assert (refusal is not None) == refused
    if not metas:
        assert header_refusal(signals, APERTUS_AGENTS, site=site) == refusal


def test_an_unparsable_file_follows_the_policy() -> None:
    site = TdmReservation(state="unparsable", rule="no array of rules")
    refusal = header_refusal(Signals(), ("*",), site=site)
    assert refusal is not None
    assert (refusal.reason, refusal.rule) == ("tdmrep_unparsable", "no array of rules")
    config = SignalsConfig(tdmrep_unparsable="allow")
    assert header_refusal(Signals(), ("*",), config, site=site) is None


def test_the_policy_of_a_reservation_is_named() -> None:
    headers = (("tdm-reservation", "1"), ("tdm-policy", "https://example.org/licences"))
    refusal = header_refusal(Signals(headers=headers), ("*",))
    assert refusal is not None
    assert refusal.rule == "header tdm-reservation: 1, tdm-policy: https://example.org/licences"


def test_the_star_is_no_addressee() -> None:
    assert header_refusal(Signals(headers=(("x-robots-tag", "*: noindex"),)), ("*",)) is None


def test_rule_is_bounded_and_clean() -> None:
    signals = Signals(headers=(("x-robots-tag", "noai, \x1b[31m" + "x" * 9000),))
    refusal = header_refusal(signals, APERTUS_AGENTS)
    assert refusal is not None
    assert "\x1b" not in refusal.rule
    assert len(refusal.rule) <= 4096


def test_an_agent_asked_with_its_version_is_meant_without_it() -> None:
    asked = ("CCBot/2.0", "CCBot/1.0", "*")
    header = header_refusal(Signals(headers=(("x-robots-tag", "ccbot: noai"),)), asked)
    meta = meta_refusal([("ccbot", "noindex")], asked)
    for refusal in (header, meta):
        assert refusal is not None and refusal.agent == "CCBot/2.0"


def test_of_several_headers_and_values_one_refusal_is_enough() -> None:
    for headers in (
        (("x-robots-tag", "all"), ("x-robots-tag", "googlebot: all"), ("x-robots-tag", "noai")),
        (("content-usage", "train-ai=y"), ("content-usage", "train-ai=n")),
        (("content-usage", "train-ai=n, train-ai=y"),),
        (("tdm-reservation", "0"), ("tdm-reservation", "1")),
    ):
        for order in (headers, headers[::-1]):
            assert header_refusal(Signals(headers=order), APERTUS_AGENTS) is not None


def test_a_flood_of_headers_ends() -> None:
    flood = tuple(("x-robots-tag", "a:" * 5000 + "," * 5000) for _ in range(50))
    flood += tuple(("content-usage", "a=(" * 5000) for _ in range(50))
    assert header_refusal(Signals(headers=flood), APERTUS_AGENTS) is None
    refusal = header_refusal(Signals(headers=(*flood, ("tdm-reservation", "1"))), APERTUS_AGENTS)
    assert refusal is not None and refusal.reason == "tdm_reservation"
