"""Facts about a corpus, counted from its ledger, summary and manifests.

A domain is a second-level name under its top-level name (example.com). Under a country's registry
(co.uk, gov.au) it is the name below that registry, so that no registry counts as a publisher. An IP
address is a domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from stamm.base.errors import ConfigError, DataError
from stamm.base.files import atomic, canonical_json
from stamm.base.schema import read_record
from stamm.corpus.ledger import KEPT
from stamm.corpus.packed_dataset import read_split
from stamm.corpus.query import Query
from stamm.corpus.records import CorpusSummary, PackSplit
from stamm.corpus.summary import SUMMARY
from stamm.corpus.transparency.config import EvidenceConfig, Kind
from stamm.runs.sharded_job import read_manifests

OWN = "consent <> 'planted'"
KEPT_OWN = f"{OWN} and decision = '{KEPT}'"
_MOST_SOURCES = 1000
_MOST_AGENTS = 100
_MOST_LICENCES = 1000


@dataclass(frozen=True, kw_only=True)
class SourceCount:
    """Kept documents of one source under one licence; kind is "" when none is assigned."""

    name: str
    licence: str
    kind: str
    documents: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ConsentCount:
    """Documents by state of consent, with the first and last day on which robots.txt was read."""

    state: str
    kept: int
    dropped: int
    first_read: str
    last_read: str


@dataclass(frozen=True, kw_only=True)
class LedgerFacts:
    """Counts of a corpus. Every text is untrusted.

    sources       the largest by bytes, with num_sources pairs of source and licence in all
    kinds         kept documents and bytes by assigned kind; "" without one
    licences      licence, kept documents, bytes
    consents      most documents first
    agents        refused crawlers, with the number of documents
    last          latest date of a kept document, "" when none has one
    undated       kept documents without a date
    train         the training stream, repeats counted; None when nothing was packed
    shards        manifests of the corpus' shards, by name
    """

    summary: CorpusSummary
    sources: tuple[SourceCount, ...]
    num_sources: int
    kinds: Mapping[str, tuple[int, int]]
    licences: tuple[tuple[str, int, int], ...]
    consents: tuple[ConsentCount, ...]
    agents: tuple[tuple[str, int], ...]
    last: str
    undated: int
    train: PackSplit | None
    shards: Mapping[str, Mapping[str, Any]]

    @property
    def unassigned(self) -> int:
        """Kept documents of sources without an assigned kind."""
        return self.kinds.get("", (0, 0))[0]


def read_facts(
    query: Query, config: EvidenceConfig, corpus: Path, pack: Path | None
) -> LedgerFacts:
    """The facts of a corpus.

    query    has a view called ledger
    Raises   DataError when ledger and summary differ, or no document was kept.
    """
    summary = read_record(CorpusSummary, corpus / SUMMARY)
    ((kept, undated, last),) = query.rows(
        "select count(*), count(*) filter (not dated), coalesce(max(day) filter (dated), '') from (select left(date, 10) as day, "
        "try_cast(left(date, 10) as date) is not null and "
        "regexp_full_match(left(date, 10), '[0-9]{4}-[0-9]{2}-[0-9]{2}') as dated from ledger "
        f"where {KEPT_OWN})"
    )
    if kept != summary.n_kept:
        raise DataError(
            f"{corpus / SUMMARY} has {summary.n_kept} kept documents, the ledger {kept}",
            fix="Build the corpus again",
        )
    if not kept:
        raise DataError(f"{corpus} has no kept document", fix="Build a corpus that keeps documents")
    kind, values = kind_expression(config)
    grouped = (
        f"select source, licence, {kind} as kind, count(*) as n, sum(bytes_out)::bigint as size "
        f"from ledger where {KEPT_OWN} group by source, licence"
    )
    query.run(f"create or replace temp table sources as {grouped}", values)
    ((num_sources,),) = query.rows("select count(*) from sources")
    return LedgerFacts(
        summary=summary,
        sources=tuple(
            SourceCount(name=name, licence=licence, kind=kind, documents=n, bytes=size)
            for name, licence, kind, n, size in query.rows(
                f"select * from sources order by size desc, source, licence limit {_MOST_SOURCES}"
            )
        ),
        num_sources=num_sources,
        kinds={
            kind: (n, size)
            for kind, n, size in query.rows(
                "select kind, sum(n)::bigint, sum(size)::bigint from sources group by kind "
                "order by kind"
            )
        },
        licences=tuple(
            query.rows(
                "select licence, sum(n)::bigint, sum(size)::bigint as size from sources "
                f"group by licence order by size desc, licence limit {_MOST_LICENCES}"
            )
        ),
        consents=_consents(query),
        agents=tuple(
            query.rows(
                "select agent, count(*) as n from (select unnest(string_split(agent, ', ')) as "
                f"agent from ledger where {OWN} and decision <> '{KEPT}' and agent <> '') "
                f"group by agent order by n desc, agent limit {_MOST_AGENTS}"
            )
        ),
        last=last,
        undated=undated,
        train=None if pack is None else read_split(pack, "train")[1],
        shards=read_manifests(corpus),
    )


def kind_expression(config: EvidenceConfig) -> tuple[str, dict[str, str]]:
    """An SQL expression for the kind of a ledger row, and its parameters."""
    whens = [
        f"when source glob $kind{i} then '{source.kind}'" for i, source in enumerate(config.sources)
    ]
    values = {f"kind{i}": source.source for i, source in enumerate(config.sources)}
    return (f"case {' '.join(whens)} else '' end" if whens else "''"), values


def _consents(query: Query) -> tuple[ConsentCount, ...]:
    return tuple(
        ConsentCount(state=state, kept=kept, dropped=dropped, first_read=first, last_read=last)
        for state, kept, dropped, first, last in query.rows(
            "select coalesce(nullif(consent, ''), 'not asked') as state, "
            f"count(*) filter (decision = '{KEPT}'), count(*) filter (decision <> '{KEPT}'), "
            "coalesce(min(robots_read) filter (robots_read <> ''), ''), "
            "coalesce(max(robots_read), '') "
            f"from ledger where {OWN} group by state order by count(*) desc, state"
        )
    )


# Second-level names under which registries of countries register names.
_REGISTRIES = (
    "ac", "asso", "co", "com", "edu", "firm", "gen", "go", "gob", "gouv", "gov", "govt", "gv", "id",
    "ind", "info", "jus", "ltd", "me", "mil", "ne", "net", "nhs", "nic", "nom", "or", "org", "plc",
    "police", "presse", "res", "sch", "school", "web",
)  # fmt: skip
_BARE = r"regexp_replace(host, '^([^:]*):[0-9]+$', '\1')"
_MOST_OF_SMALL = 1000


@dataclass(frozen=True, kw_only=True)
class DomainCounts:
    """Numbers of domains, and of the bytes of text from them.

    count, bytes                  all domains, and the kept text from them
    listed, listed_bytes          the largest ones, which are written to the file
    without_host                  kept documents without a website
    crawled                       whether only sources assigned to section 2.3 are counted
    """

    count: int
    bytes: int
    listed: int
    listed_bytes: int
    without_host: int
    crawled: bool


def write_domains(query: Query, config: EvidenceConfig, path: Path) -> DomainCounts:
    """Write the domains required by the template to `path`, a line each, the largest first.

    All documents with a host count, or, where sources are assigned to 2.3, those of these sources.
    Listed are the top 10 % of all domains by bytes of kept text; for an SME the top 5 % or the
    1,000 largest, whichever are fewer.

    query    has a view called ledger
    Source   Commission, C(2025) 5235 final, annex, section 2.3, footnote 16
    Checked  tests/unit/corpus/transparency/test_evidence_domains.py
    """
    crawled = any(source.kind == "crawled" for source in config.sources)
    kind, values = kind_expression(config) if crawled else ("''", {})
    where = f"{KEPT_OWN} and {kind} = 'crawled'" if crawled else KEPT_OWN
    query.run(
        "create or replace temp table hosts as select host, count(*) as documents, "
        f"sum(bytes_out)::bigint as bytes from ledger where {where} group by host",
        values,
    )
    query.run(
        f"create or replace temp table domains as select {_domain('bare')} as domain, "
        "sum(documents)::bigint as documents, sum(bytes)::bigint as bytes from "
        f"(select {_BARE} as bare, documents, bytes from hosts where host <> '') group by domain"
    )
    ((count, size),) = query.rows("select count(*), coalesce(sum(bytes), 0)::bigint from domains")
    ((without,),) = query.rows(
        "select coalesce(sum(documents), 0)::bigint from hosts where host = ''"
    )
    wanted = required_domains(count, config.sme)
    listed = listed_bytes = 0
    with atomic(path) as temporary, temporary.open("wb") as file:
        for domain, documents, part in query.stream(
            "select domain, documents, bytes from domains "
            f"order by bytes desc, documents desc, domain limit {wanted}"
        ):
            line = {
                "domain": domain,
                "documents": documents,
                "bytes": part,
                "share": round(part / size, 6) if size else 0.0,
            }
            file.write(canonical_json(line) + b"\n")
            listed, listed_bytes = listed + 1, listed_bytes + part
    return DomainCounts(
        count=count,
        bytes=size,
        listed=listed,
        listed_bytes=listed_bytes,
        without_host=without,
        crawled=crawled,
    )


def required_domains(count: int, sme: bool) -> int:
    """The number of `count` domains that must be listed, rounded up."""
    return min(-(-count // 20), _MOST_OF_SMALL) if sme else -(-count // 10)


def _domain(host: str) -> str:
    names = ", ".join(f"'{name}'" for name in _REGISTRIES)
    labels = f"string_split({host}, '.')"
    return (
        f"case when {host} like '%:%' or regexp_full_match({host}, '[0-9.]+') then {host} "
        f"when len({labels}[-1]) = 2 and {labels}[-2] in ({names}) "
        f"then array_to_string({labels}[-3:], '.') "
        f"else array_to_string({labels}[-2:], '.') end"
    )


OPT_OUTS = (
    "robots_disallow", "robots_content_usage", "domain_list", "deletion_request", "ai_txt",
    "header_noai", "meta_noai", "tdm_reservation", "content_usage",
)  # fmt: skip
"""Reasons of the ledger that are opt-outs."""

KINDS: tuple[Kind, ...] = get_args(Kind)
_ASKED = "robots_allows"


def check_contradictions(config: EvidenceConfig, facts: LedgerFacts) -> None:
    """Raise one ConfigError with all claims that the ledger contradicts."""
    contradictions = list(_contradictions(config, facts))
    if contradictions:
        raise ConfigError(
            "; ".join(contradictions),
            where="evidence",
            fix="Correct the claim, or leave it out: the ledger then answers by itself",
        )


def count_opt_outs(facts: LedgerFacts) -> int:
    """Number of documents dropped because of an opt-out."""
    return sum(
        facts.summary.dropped_by_reason[name].documents
        for name in OPT_OUTS
        if name in facts.summary.dropped_by_reason
    )


def used_by_ledger(facts: LedgerFacts, kind: Kind) -> bool | None:
    """Whether a source is of the kind; False where each is of another, else None. Planted: "other"."""
    if facts.kinds.get(kind, (0, 0))[0] or (kind == "other" and facts.summary.n_probes):
        return True
    return None if facts.unassigned else False


def is_used(config: EvidenceConfig, facts: LedgerFacts, kind: Kind) -> bool | None:
    """Whether data of a kind was used, according to the ledger or else to the claim."""
    answer = used_by_ledger(facts, kind)
    claimed: bool | None = getattr(config, kind)
    return claimed if answer is None else answer


def _contradictions(config: EvidenceConfig, facts: LedgerFacts) -> Iterator[str]:
    for kind in KINDS:
        if getattr(config, kind) not in (None, is_used(config, facts, kind)):
            yield f"evidence.{kind} = {getattr(config, kind)}, but {_reason(facts, kind)}"
    if config.crawled is False and config.crawlers:
        yield f"evidence.crawled = False, but {len(config.crawlers)} crawlers are named"
    removed = count_opt_outs(facts)
    if config.opt_outs_removed is False and removed:
        yield f"evidence.opt_outs_removed = False, but {removed} documents were dropped because of one"
    asked = removed or any(
        consent.state == _ASKED or consent.first_read for consent in facts.consents
    )
    if config.opt_outs_removed and not asked:
        yield "evidence.opt_outs_removed = True, but the ledger records no website's answer"
    replaced = sum(facts.summary.pii_replaced.values())
    if config.personal_data_removed is False and replaced:
        yield f"evidence.personal_data_removed = False, but {replaced} values were replaced"
    if config.languages is not None and config.languages != len(facts.summary.kept_by_language):
        yield (
            f"evidence.languages = {config.languages}, but the kept documents are in "
            f"{len(facts.summary.kept_by_language)}"
        )
    for name in ("latest", "collected_until"):
        month = getattr(config, name)
        crawled_alone = name == "latest" or set(facts.kinds) == {"crawled"}
        if month and crawled_alone and month < facts.last[:7]:
            yield f"evidence.{name} = {month}, but a kept document is of {facts.last}"


def _reason(facts: LedgerFacts, kind: Kind) -> str:
    documents = facts.kinds.get(kind, (0, 0))[0]
    if documents:
        return f"{documents} documents are of a source that is assigned to it"
    if kind == "other" and facts.summary.n_probes:
        return f"{facts.summary.n_probes} passages were planted, which is a source of its own"
    return "every source is assigned to another kind"
