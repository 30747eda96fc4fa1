"""The domains that most of the text is from, as the template counts them: computed out of core.

A domain is a second-level name under its top-level name (example.com). Below a country's name with
a registry of its own (co.uk, gov.au) it is the name under that registry, so that no registry is
taken for a publisher. An address of numbers stands for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stamm.base.files import atomic, canonical_json
from stamm.corpus.query import Query
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.corpus.transparency.facts import STAYED, kind_of

# Second-level names that registries of countries use for others to register under.
_REGISTRIES = (
    "ac", "asso", "co", "com", "edu", "firm", "gen", "go", "gob", "gouv", "gov", "govt", "gv", "id",
    "ind", "info", "jus", "ltd", "me", "mil", "ne", "net", "nhs", "nic", "nom", "or", "org", "plc",
    "police", "presse", "res", "sch", "school", "web",
)  # fmt: skip
_BARE = r"regexp_replace(host, '^([^:]*):[0-9]+$', '\1')"
_MOST_OF_SMALL = 1000


@dataclass(frozen=True, kw_only=True)
class DomainCounts:
    """How many domains there are and how much of the text is from those listed.

    count, bytes                  all domains, and the kept text from them
    listed, listed_bytes          the largest ones, which are written to the file
    without_host                  kept documents that name no website
    crawled                       only sources that are assigned to 2.3 are counted
    """

    count: int
    bytes: int
    listed: int
    listed_bytes: int
    without_host: int
    crawled: bool


def write_domains(query: Query, config: EvidenceConfig, path: Path) -> DomainCounts:
    """Write the domains that the template asks for to `path`, a line each, the largest first.

    All documents with a host count, or, where sources are assigned to 2.3, those of these sources.
    Listed are the top 10 % of all domains by bytes of kept text; for an SME the top 5 % or the
    1,000 largest, whichever are fewer.

    query    has a view called ledger
    Source   Commission, C(2025) 5235 final, annex, section 2.3, footnote 16
    Checked  tests/unit/corpus/transparency/test_evidence_domains.py
    """
    crawled = any(one.kind == "crawled" for one in config.sources)
    kind, values = kind_of(config) if crawled else ("''", {})
    where = f"{STAYED} and {kind} = 'crawled'" if crawled else STAYED
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
    wanted = number_wanted(count, config.sme)
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


def number_wanted(count: int, sme: bool) -> int:
    """How many of `count` domains have to be named, rounded up."""
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
