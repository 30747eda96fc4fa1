"""Facts about a corpus, counted from its ledger, summary and manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import read_json
from stamm.corpus.ledger import KEPT
from stamm.corpus.packed_dataset import MANIFEST
from stamm.corpus.query import Query
from stamm.corpus.summary import SUMMARY
from stamm.corpus.transparency.config import EvidenceConfig
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

    summary       content of summary.json
    sources       the largest by bytes, with num_sources pairs of source and licence in all
    kinds         kept documents and bytes by assigned kind; "" without one
    licences      licence, kept documents, bytes
    consents      most documents first
    agents        refused crawlers, with the number of documents
    last          latest date of a kept document, "" when none has one
    undated       kept documents without a date
    tokens        manifest of the packed corpus, None when there is none
    shards        manifests of the corpus' shards, by name
    """

    summary: Mapping[str, Any]
    sources: tuple[SourceCount, ...]
    num_sources: int
    kinds: Mapping[str, tuple[int, int]]
    licences: tuple[tuple[str, int, int], ...]
    consents: tuple[ConsentCount, ...]
    agents: tuple[tuple[str, int], ...]
    last: str
    undated: int
    tokens: Mapping[str, Any] | None
    shards: Mapping[str, Mapping[str, Any]]

    @property
    def kept(self) -> int:
        """Kept documents, without planted passages."""
        return int(self.summary["n_kept"])

    @property
    def planted(self) -> int:
        """Passages planted on purpose."""
        return int(self.summary["n_probes"])

    @property
    def languages(self) -> Mapping[str, Mapping[str, int]]:
        """Kept documents and bytes by language."""
        found: Mapping[str, Mapping[str, int]] = self.summary["kept_by_language"]
        return found

    @property
    def reasons(self) -> Mapping[str, Mapping[str, int]]:
        """Dropped documents and bytes by reason."""
        found: Mapping[str, Mapping[str, int]] = self.summary["dropped_by_reason"]
        return found

    @property
    def train_tokens(self) -> int | None:
        """Tokens of the training stream, repeats counted; None when nothing was packed."""
        return None if self.tokens is None else int(self.tokens["splits"]["train"]["tokens"])

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
    summary = _summary(corpus)
    ((kept, undated, last),) = query.rows(
        "select count(*), count(*) filter (not dated), coalesce(max(day) filter (dated), '') from (select left(date, 10) as day, "
        "try_cast(left(date, 10) as date) is not null and "
        "regexp_full_match(left(date, 10), '[0-9]{4}-[0-9]{2}-[0-9]{2}') as dated from ledger "
        f"where {KEPT_OWN})"
    )
    if kept != summary["n_kept"]:
        raise DataError(
            f"{corpus / SUMMARY} has {summary['n_kept']} kept documents, the ledger {kept}",
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
        tokens=None if pack is None else _packed(pack),
        shards=read_manifests(corpus),
    )


def kind_expression(config: EvidenceConfig) -> tuple[str, dict[str, str]]:
    """An SQL expression for the kind of a ledger row, and its parameters."""
    whens = [f"when source glob $kind{i} then '{one.kind}'" for i, one in enumerate(config.sources)]
    values = {f"kind{i}": one.source for i, one in enumerate(config.sources)}
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


def _summary(corpus: Path) -> dict[str, Any]:
    summary = read_json(corpus / SUMMARY)
    needed = {"n_in", "n_kept", "n_dropped", "n_probes", "bytes_in", "bytes_kept", "pii_replaced"}
    needed |= {"dropped_by_reason", "kept_by_language", "by_split"}
    missing = sorted(needed - summary.keys()) if isinstance(summary, dict) else ["n_in"]
    if missing:
        raise DataError(f"{corpus / SUMMARY} has no {missing[0]!r}", fix="Build the corpus again")
    for name in sorted(needed):
        whole = name.startswith(("n_", "bytes_"))
        if not (_is_count(summary[name]) if whole else isinstance(summary[name], dict)):
            raise DataError(
                f"{corpus / SUMMARY} has no {'number' if whole else 'table'} under {name!r}",
                fix="Build the corpus again",
            )
    return dict(summary)


def _packed(pack: Path) -> dict[str, Any]:
    manifest = read_json(pack / MANIFEST)
    try:
        train = manifest["splits"]["train"]
        stages = train.get("stages", [])
        counts = [train["tokens"], *train.get("tokens_by_language", {}).values()]
        counts += [one[key] for one in stages for key in ("documents", "tokens")]
        sound = all(map(_is_count, counts))
    except (KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise DataError(
            f"{pack / MANIFEST} is not a manifest of a packed corpus", fix="Pack the corpus again"
        )
    return dict(manifest)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
