"""What a page says about its own use in HTTP headers and their meta twins.

Honoured: `noai` in X-Robots-Tag or <meta name="robots">; noindex, none or noai addressed to one of
the agents asked; tdm-reservation: 1; Content-Usage: train-ai=n. A plain noindex speaks to search
engines and noimageai to collectors of images; neither is a word about text.

Source   W3C TDM Reservation Protocol, final group report 2024-05-10; draft-ietf-aipref-attach;
         noai is a convention without a standard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stamm.corpus.records import Signals, clean_field
from stamm.corpus.robots import reserves_training

# What may stand before a colon without being an addressee.
_WITH_VALUE = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
_TO_AN_AGENT = ("noindex", "none", "noai")


@dataclass(frozen=True, kw_only=True)
class PageRefusal:
    """A signal that keeps a page out: the ledger reason, the signal as written, and its agent."""

    reason: str
    rule: str
    agent: str = ""


def header_refusal(signals: Signals, agents: tuple[str, ...]) -> PageRefusal | None:
    """The first header that reserves the page, None when none does."""
    for value in signals.values("x-robots-tag"):
        found = _robots_tag(value, agents)
        if found is not None:
            return PageRefusal(
                reason="header_noai", rule=clean_field(f"X-Robots-Tag: {value}"), agent=found
            )
    for value in signals.values("tdm-reservation"):
        if value.strip() == "1":
            return PageRefusal(reason="tdm_reservation", rule="tdm-reservation: 1")
    for value in signals.values("content-usage"):
        if reserves_training(value):
            return PageRefusal(reason="content_usage", rule=clean_field(f"Content-Usage: {value}"))
    return None


def meta_refusal(metas: Iterable[tuple[str, str]], agents: tuple[str, ...]) -> PageRefusal | None:
    """The first <meta> that reserves the page, None when none does.

    metas   name in lower case and content of each
    """
    names = {agent.lower(): agent for agent in agents if agent != "*"}
    for name, content in metas:
        rule = clean_field(f'<meta name="{name}" content="{content}">')
        directives = [part.strip().lower() for part in content.split(",")]
        if name == "robots" and "noai" in directives:
            return PageRefusal(reason="meta_noai", rule=rule)
        if name in names and any(d in _TO_AN_AGENT for d in directives):
            return PageRefusal(reason="meta_noai", rule=rule, agent=names[name])
        if name == "tdm-reservation" and content.strip() == "1":
            return PageRefusal(reason="tdm_reservation", rule=rule)
    return None


def _robots_tag(value: str, agents: tuple[str, ...]) -> str | None:
    """The agent an X-Robots-Tag refuses ("" when it refuses everyone), None when it does not."""
    names = {agent.lower(): agent for agent in agents if agent != "*"}
    addressee = ""
    for part in value.split(","):
        said = part.strip().lower()
        name, colon, directive = said.partition(":")
        name = name.strip()
        # A time of day behind a comma has a colon too, but blanks before it.
        if colon and name not in _WITH_VALUE and len(name.split()) == 1:
            addressee, said = name, directive.strip()
        if not addressee and said == "noai":
            return ""
        if addressee in names and said in _TO_AN_AGENT:
            return names[addressee]
    return None
