"""All opt-outs that apply to a page, loaded once per process: snapshots, lists, archives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stamm.corpus.consent.ai_txt import AiTxtFile
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.decision import ConsentResolver, ConsentSource, Decision, RobotsSource
from stamm.corpus.consent.domains import read_domain_list
from stamm.corpus.consent.robots import RobotsAnswer
from stamm.corpus.consent.signals import (
    PageRefusal,
    header_refusal,
    meta_refusal,
    tdm_reservation,
    unread_terms,
)
from stamm.corpus.consent.snapshot_entry import SiteFiles, SnapshotEntry
from stamm.corpus.consent.snapshot_index import index_in_memory, latest_entry, open_snapshot
from stamm.corpus.consent.tdmrep import TdmrepFile, TdmReservation
from stamm.corpus.limits import ReadLimits
from stamm.corpus.records import LONGEST_FIELD, Signals

_SILENT = TdmReservation()


class ConsentPolicies:
    """Opt-outs of a page, checked in this order: robots.txt and lists by address, then the site's
    tdmrep.json and ai.txt, the response headers, and the page's metas.
    """

    def __init__(
        self,
        config: ConsentConfig,
        sources: Sequence[ConsentSource],
        tdmrep: SiteFiles[TdmrepFile],
        ai_txt: SiteFiles[AiTxtFile],
    ) -> None:
        self._config = config
        self._sources = tuple(sources)
        self._tdmrep = tdmrep
        self._ai_txt = ai_txt
        self._consent = ConsentResolver(config, sources)

    def with_archive(self, answers: Iterable[RobotsAnswer]) -> ConsentPolicies:
        """These policies, and the robots.txt files of an archive for its pages."""
        sources = (*self._sources, robots_source(answers))
        return ConsentPolicies(self._config, sources, self._tdmrep, self._ai_txt)

    def decide(self, url: str) -> Decision:
        """The decision by address."""
        return self._consent.decide(url)

    def refusal_before_parsing(
        self, url: str, host: str, signals: Signals, is_html: bool
    ) -> PageRefusal | None:
        """The opt-out in ai.txt, tdmrep.json or the response headers; None when there is none."""
        enabled = self._config.signals
        if enabled is None:
            return None
        agents = self._config.agents
        file = self._ai_txt.file(host) if enabled.ai_txt and host else None
        if file is not None:
            answer = file.answer(url, agents)
            if answer.state == "reserved":
                return PageRefusal(reason="ai_txt", rule=answer.rule, agent=answer.agent)
        site = self._site(url, host)
        return header_refusal(signals, agents, enabled, site=site, metas_follow=is_html)

    def unread_terms(self, decision: Decision, signals: Signals, links: Sequence[str] = ()) -> str:
        """Terms of use that the site or the page names, and that were not read; "" without any.

        links   addresses of RSL licences in the page
        """
        host = decision.host
        file = self._ai_txt.file(host) if host else None
        terms = [decision.terms] if decision.terms else []
        terms += ["ai.txt in an unknown format"] if file is not None and file.unread else []
        return "; ".join([*terms, *unread_terms(signals, links)])[:LONGEST_FIELD]

    def refusal_by_meta(
        self,
        url: str,
        host: str,
        signals: Signals,
        metas: Sequence[tuple[str, str]],
        licences: Sequence[str] = (),
    ) -> PageRefusal | None:
        """The opt-out in a page's metas, which may also lift that of tdmrep.json and headers, or in an
        RSL licence in the page."""
        enabled = self._config.signals
        if enabled is None:
            return None
        before = tdm_reservation(self._site(url, host), signals)
        return meta_refusal(metas, self._config.agents, enabled, before=before, licences=licences)

    def _site(self, url: str, host: str) -> TdmReservation:
        file = self._tdmrep.file(host) if host else None
        return file.answer(url) if file is not None else _SILENT


def load_policies(
    config: ConsentConfig, robots: Sequence[Path], domains: Mapping[str, Path], limits: ReadLimits
) -> ConsentPolicies:
    """Load the snapshots and lists of a run.

    Raises   DataError for an invalid file.
    """
    indexes = [open_snapshot(path, limits) for path in robots]
    sources: list[ConsentSource] = [RobotsSource(latest_entry(indexes, "robots"))]
    sources += [read_domain_list(path, limits) for path in domains.values()]
    tdmrep = SiteFiles(latest_entry(indexes, "tdmrep"), TdmrepFile)
    ai_txt = SiteFiles(latest_entry(indexes, "ai_txt"), AiTxtFile)
    return ConsentPolicies(config, sources, tdmrep, ai_txt)


def robots_source(answers: Iterable[RobotsAnswer]) -> RobotsSource:
    """The robots.txt files of an archive as a source of decisions; the last answer of a host counts.

    Edge   an answer whose address names no host is ignored.
    """
    entries = (
        SnapshotEntry(
            kind="robots", domain="", url=a.url, status=a.status, fetched=a.read, text=a.text
        )
        for a in answers
    )
    return RobotsSource(latest_entry([index_in_memory(entries)], "robots"))
