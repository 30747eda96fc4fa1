"""Everything that was said about pages, gathered once for a process: snapshots, lists, archives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stamm.corpus.config import ReadLimits
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
)
from stamm.corpus.consent.snapshot_entry import SiteFiles, SnapshotEntry
from stamm.corpus.consent.snapshot_index import index_in_memory, latest_entry, open_snapshot
from stamm.corpus.consent.tdmrep import TdmrepFile, TdmReservation
from stamm.corpus.records import Signals

_SILENT = TdmReservation()


class ConsentPolicies:
    """Who is asked about a page, in this order: robots.txt and lists by address, then the site's
    tdmrep.json and ai.txt, the response's headers, and the page itself.
    """

    def __init__(
        self,
        config: ConsentConfig,
        books: Sequence[ConsentSource],
        tdmrep: SiteFiles[TdmrepFile],
        ai_txt: SiteFiles[AiTxtFile],
    ) -> None:
        self._config = config
        self._books = tuple(books)
        self._tdmrep = tdmrep
        self._ai_txt = ai_txt
        self._consent = ConsentResolver(config, books)

    def with_archive(self, answers: Iterable[RobotsAnswer]) -> ConsentPolicies:
        """The same, for the pages of an archive that holds robots.txt files of its own."""
        books = (*self._books, robots_source(answers))
        return ConsentPolicies(self._config, books, self._tdmrep, self._ai_txt)

    def decide(self, url: str) -> Decision:
        """The decision by address."""
        return self._consent.decide(url)

    def refusal_before_parsing(
        self, url: str, host: str, signals: Signals, is_html: bool
    ) -> PageRefusal | None:
        """The refusal of a site's other files, or of a response's headers."""
        asked = self._config.signals
        if asked is None:
            return None
        agents = self._config.agents
        file = self._ai_txt.file(host) if asked.ai_txt and host else None
        if file is not None:
            answer = file.answer(url, agents)
            if answer.state == "reserved":
                return PageRefusal(reason="ai_txt", rule=answer.rule, agent=answer.agent)
        site = self._site(url, host)
        return header_refusal(signals, agents, asked, site=site, metas_follow=is_html)

    def refusal_by_meta(
        self, url: str, host: str, signals: Signals, metas: Sequence[tuple[str, str]]
    ) -> PageRefusal | None:
        """The refusal of a page's own meta elements, which may also take an earlier word back."""
        asked = self._config.signals
        if asked is None:
            return None
        before = tdm_reservation(self._site(url, host), signals)
        return meta_refusal(metas, self._config.agents, asked, before=before)

    def _site(self, url: str, host: str) -> TdmReservation:
        file = self._tdmrep.file(host) if host else None
        return file.answer(url) if file is not None else _SILENT


def load_policies(
    config: ConsentConfig, robots: Sequence[Path], domains: Mapping[str, Path], limits: ReadLimits
) -> ConsentPolicies:
    """What the snapshots and lists of a run say.

    Raises   DataError for a file that is not what it claims to be.
    """
    shelves = [open_snapshot(path, limits) for path in robots]
    books: list[ConsentSource] = [RobotsSource(latest_entry(shelves, "robots"))]
    books += [read_domain_list(path, limits) for path in domains.values()]
    tdmrep = SiteFiles(latest_entry(shelves, "tdmrep"), TdmrepFile)
    ai_txt = SiteFiles(latest_entry(shelves, "ai_txt"), AiTxtFile)
    return ConsentPolicies(config, books, tdmrep, ai_txt)


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
