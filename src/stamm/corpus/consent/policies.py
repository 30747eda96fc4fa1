"""All opt-outs that apply to a page, loaded once per process: snapshots, lists, archives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stamm.base.errors import DataError
from stamm.base.json_text import parse_json
from stamm.corpus.consent.ai_txt import AiTxtFile
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.decision import ConsentResolver, ConsentSource, Decision, RobotsSource
from stamm.corpus.consent.hosts import named_domain
from stamm.corpus.consent.robots import RobotsAnswer
from stamm.corpus.consent.signals import (
    PageRefusal,
    header_refusal,
    meta_refusal,
    tdm_reservation,
    unread_terms,
)
from stamm.corpus.consent.snapshot import (
    SiteFiles,
    SnapshotEntry,
    index_in_memory,
    latest_entry,
    open_snapshot,
)
from stamm.corpus.consent.tdmrep import TdmrepFile, TdmReservation
from stamm.corpus.documents import LONGEST_FIELD, Signals, clean_field
from stamm.corpus.limits import ReadLimits
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines


class DomainList:
    """A `ConsentSource` that refuses its domains and their subdomains.

    name      name of the list in the ledger: its file's name
    domains   each normalized domain, with its line number
    """

    def __init__(self, name: str, domains: Mapping[str, int]) -> None:
        self._name = clean_field(name)
        self._domains = dict(domains)

    def decide(self, url: str, host: str, config: ConsentConfig) -> Decision | None:
        """The refusal of a host in the list, None for any other host."""
        domain = host.partition(":")[0]
        while domain:
            line = self._domains.get(domain)
            if line is not None:
                rule = f"{domain} in {self._name}, line {line}"
                return Decision(consent="domain_list", allowed=False, rule=rule, host=host)
            domain = domain.partition(".")[2]
        return None


def read_domain_list(path: Path, limits: ReadLimits) -> DomainList:
    """Read a list of domains: one domain a line, or JSONL with a field `domain`.

    Edge     blank lines, and text after "#" on a line of plain text, are ignored; "*.example.org"
             and ".example.org" are example.org; of a repeated domain the first line counts.
    Raises   DataError for a line that names no domain, or only a top level such as "org": a refusal
             must not be skipped, and no owner refuses for all of "org".
    """
    domains: dict[str, int] = {}
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in bounded_lines(stream, limits.line_bytes):
                number = line.number
                written = _written(line.data.decode("utf-8-sig").strip())
                if written:
                    domains.setdefault(named_domain(written), number)
        except (StreamError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{path} is not a list of domains: {error}",
                where=f"line {max(number, 1)}",
                fix='Write one domain a line, or {"domain": "example.org"}',
            ) from None
    return DomainList(path.name, domains)


def _written(line: str) -> str:
    if not line.startswith("{"):
        return line.partition("#")[0].strip()
    domain = parse_json(line)["domain"]
    if not isinstance(domain, str) or not domain.strip():
        raise TypeError(f"{str(domain)[:40]!r} is not a domain")
    return domain.strip()


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

    def unread_terms(self, decision: Decision, signals: Signals) -> str:
        """Terms of use that the site or the page names, and that were not read; "" without any."""
        host = decision.host
        file = self._ai_txt.file(host) if host else None
        terms = [decision.terms] if decision.terms else []
        terms += ["ai.txt in an unknown format"] if file is not None and file.unread else []
        return "; ".join([*terms, *unread_terms(signals)])[:LONGEST_FIELD]

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
