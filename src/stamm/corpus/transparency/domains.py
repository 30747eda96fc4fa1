"""The domains with most of the text, counted as the template defines, out of core.

A domain is a second-level name under its top-level name (example.com). Under a country's registry
(co.uk, gov.au) it is the name below that registry, so that no registry counts as a publisher. An IP
address is a domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stamm.base.files import atomic, canonical_json
from stamm.corpus.query import Query
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.corpus.transparency.facts import KEPT_OWN, kind_expression

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
    crawled = any(one.kind == "crawled" for one in config.sources)
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
