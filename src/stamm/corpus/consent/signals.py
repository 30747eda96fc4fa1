"""Opt-outs of a page in HTTP headers and meta elements.

Source   X-Robots-Tag and its meta: Google, "Robots meta tag specifications"; noai and noimageai:
         DeviantArt, 2022, a convention without a standard; DisallowAITraining:
         draft-canel-robots-ai-control-00; tdm-reservation: W3C TDM Reservation
         Protocol, final group report 2024-05-10; Content-Usage: draft-ietf-aipref-attach-05.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stamm.corpus.consent.config import SignalsConfig
from stamm.corpus.consent.content_usage import refused_use, signal_refuses
from stamm.corpus.consent.robots_parser import agent_token
from stamm.corpus.consent.tdmrep import TdmReservation, policy_value, reservation_value
from stamm.corpus.consent.terms import linked_licences, rsl_refusal
from stamm.corpus.documents import OPT_OUT_FIELD, Signals, clean_field

# Directives with a value: the name before their colon is not an agent.
_WITH_VALUE = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
_ADDRESSEE = re.compile(r"\*|[a-z_][a-z0-9_.-]*")
_NO_INDEX = ("noindex", "none")
_SILENT = TdmReservation()
_ALL = SignalsConfig()


@dataclass(frozen=True, kw_only=True)
class PageRefusal:
    """An opt-out of a page: the ledger reason, the signal as written, and its agent."""

    reason: str
    rule: str
    agent: str = ""


def tdm_reservation(site: TdmReservation, signals: Signals) -> TdmReservation:
    """The TDM reservation of `site`, its tdmrep.json, unless a header supersedes it.

    Source   TDM Reservation Protocol, "Processing priority".
    """
    values = signals.values("tdm-reservation")
    return _superseded(site, values, signals.values("tdm-policy"), "header tdm-reservation")


def header_refusal(
    signals: Signals,
    agents: tuple[str, ...],
    config: SignalsConfig = _ALL,
    *,
    site: TdmReservation = _SILENT,
    metas_follow: bool = False,
) -> PageRefusal | None:
    """Return the first header, or field of a row, that opts the page out, or None.

    site          the answer of the site's tdmrep.json for this address
    metas_follow  the page is HTML whose metas are checked next, and may lift a tdm-reservation
    """
    fields = signals.values(OPT_OUT_FIELD) if config.row_opt_out else ()
    if fields:
        return PageRefusal(reason="row_opt_out", rule=clean_field(fields[0]))
    for value in signals.values("x-robots-tag"):
        agent = _robots_tag(value, agents, config)
        if agent is not None:
            rule = clean_field(f"X-Robots-Tag: {value}")
            return PageRefusal(reason="header_noai", rule=rule, agent=agent)
    usage = signals.values("content-usage")
    label = refused_use(usage, config.usage_labels) if config.content_usage else None
    if label is not None:
        rule = clean_field(f"Content-Usage: {', '.join(usage)}")
        return PageRefusal(reason="content_usage", rule=rule)
    for value in signals.values("content-signal") if config.content_usage else ():
        if signal_refuses(value):
            return PageRefusal(reason="content_usage", rule=clean_field(f"Content-Signal: {value}"))
    return None if metas_follow else _tdm_refusal(tdm_reservation(site, signals), config)


def meta_refusal(
    metas: Iterable[tuple[str, str]],
    agents: tuple[str, ...],
    config: SignalsConfig = _ALL,
    *,
    before: TdmReservation = _SILENT,
    licences: Sequence[str] = (),
) -> PageRefusal | None:
    """Return the first <meta>, or RSL licence, that opts the page out, or None.

    metas    name in lower case and content of each
    before   reservation of tdmrep.json and headers (`tdm_reservation`); a meta supersedes it
    licences   RSL licences in the page
    """
    listed = tuple(metas)
    names = _names(agents)
    for name, content in listed:
        agent = "" if name in ("robots", "x-robots-tag") else names.get(name)
        directives = [part.strip().lower() for part in content.split(",")]
        if agent is not None and any(
            _refuses(directive, agent, config) for directive in directives
        ):
            rule = clean_field(f'<meta name="{name}" content="{content}">')
            return PageRefusal(reason="meta_noai", rule=rule, agent=agent)
    for name, content in listed if config.content_usage else ():
        denied = name == "content-usage" and refused_use([content], config.usage_labels)
        if denied or (name == "content-signal" and signal_refuses(content)):
            rule = clean_field(f'<meta name="{name}" content="{content}">')
            return PageRefusal(reason="content_usage", rule=rule)
    for licence in licences if config.rsl else ():
        if reason := rsl_refusal(licence):
            return PageRefusal(reason="rsl_licence", rule=f"RSL licence in the page: {reason}")
    reservations = [content for name, content in listed if name == "tdm-reservation"]
    policies = [content for name, content in listed if name == "tdm-policy"]
    reservation = _superseded(before, reservations, policies, "meta tdm-reservation")
    return _tdm_refusal(reservation, config)


def _superseded(
    before: TdmReservation, reservations: Sequence[str], policies: Sequence[str], source: str
) -> TdmReservation:
    """`before`, unless a later technique has the value 0 or 1. Other values are ignored."""
    stated = {reservation_value(value) for value in reservations} - {None}
    if not stated:
        return before
    reserved = True in stated
    policy = next((p for value in policies if (p := policy_value(value, reserved))), "")
    return TdmReservation(
        state="reserved" if reserved else "not_reserved",
        rule=f"{source}: {int(reserved)}",
        policy=policy,
    )


def _tdm_refusal(reservation: TdmReservation, config: SignalsConfig) -> PageRefusal | None:
    if not config.tdm_reservation:
        return None
    if reservation.state == "reserved":
        rule = (
            f"{reservation.rule}, tdm-policy: {reservation.policy}"
            if reservation.policy
            else reservation.rule
        )
        return PageRefusal(reason="tdm_reservation", rule=clean_field(rule))
    if reservation.state == "unparsable" and config.tdmrep_unparsable == "drop":
        return PageRefusal(reason="tdmrep_unparsable", rule=reservation.rule)
    return None


def _robots_tag(value: str, agents: tuple[str, ...], config: SignalsConfig) -> str | None:
    """The agent an X-Robots-Tag refuses ("" when it refuses everyone), None when it does not."""
    names = _names(agents)
    addressee = ""
    for part in value.split(","):
        directive = part.strip().lower()
        name, colon, rest = directive.partition(":")
        name = name.strip()
        # A time of day after a comma also has a colon, but with blanks before it, or a digit at its start.
        if colon and name not in _WITH_VALUE and _ADDRESSEE.fullmatch(name):
            addressee, directive = name, rest.strip()
        agent = "" if addressee in ("", "*") else names.get(addressee)
        if agent is not None and _refuses(directive, agent, config):
            return agent
    return None


@functools.lru_cache(maxsize=8)
def _names(agents: tuple[str, ...]) -> dict[str, str]:
    """The agents by their name in headers, as in robots.txt without a version."""
    names: dict[str, str] = {}
    for agent in agents:
        if agent != "*":
            names.setdefault(agent_token(agent), agent)
    return names


def unread_terms(signals: Signals, links: Iterable[str] = ()) -> list[str]:
    """RSL licences at other addresses that a page names, in headers or link elements (`links`)."""
    named = [*linked_licences(signals.values("link")), *links]
    return [f"RSL licence {clean_field(address)[:200]}" for address in dict.fromkeys(named)]


def _refuses(directive: str, agent: str, config: SignalsConfig) -> bool:
    """Whether a directive for an agent ("": for all) opts the page out."""
    if directive in ("noai", "disallowaitraining"):
        return config.noai
    if directive == "noimageai":
        return config.noimageai
    return bool(agent) and config.agent_noindex and directive in _NO_INDEX
