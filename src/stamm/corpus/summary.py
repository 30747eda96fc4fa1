"""Summary of a corpus, counted from its ledger."""

from __future__ import annotations

from typing import Any

from stamm.base.errors import DataError
from stamm.corpus.consent.decision import ABSOLUTE_URL_RULES
from stamm.corpus.ledger import KEPT, PII_KINDS, PLANTED, reason_text
from stamm.corpus.query import Query
from stamm.corpus.tables import added_columns

SUMMARY = "summary.json"
_HOSTS_SHOWN = 100
_PERCENTILES = (50, 90, 99)
_VALUES_SHOWN = 20
_LONGEST_VALUE = 200
_OWN = f"consent <> '{PLANTED}'"
_KEPT = f"decision = '{KEPT}'"


def summarise(query: Query) -> dict[str, Any]:
    """The summary as JSON values: n_in = n_kept + n_dropped; planted passages are counted separately.

    query    has a view called ledger

    Edge     by_host counts documents without a host under ""
    """
    ((n_in, n_kept, n_planted, bytes_in, bytes_kept),) = query.rows(
        f"select count(*) filter ({_OWN}), count(*) filter ({_OWN} and {_KEPT}), "
        f"count(*) filter (not {_OWN}), coalesce(sum(bytes_in) filter ({_OWN}), 0)::bigint, "
        f"coalesce(sum(bytes_out) filter ({_OWN} and {_KEPT}), 0)::bigint from ledger"
    )
    summary = {
        "n_in": n_in,
        "n_kept": n_kept,
        "n_dropped": n_in - n_kept,
        "n_probes": n_planted,
        "bytes_in": bytes_in,
        "bytes_kept": bytes_kept,
        "dropped_by_reason": _table(query, "reason", f"{_OWN} and not {_KEPT}", "bytes_in"),
        "documents_by_consent": dict(
            query.rows(
                f"select coalesce(nullif(consent, ''), 'not asked') as state, count(*) as n "
                f"from ledger where {_OWN} group by state order by n desc, state"
            )
        ),
        "absolute_rules": _documents_and_hosts(
            query, f"consent = 'robots_allows' and contains(rule, '{ABSOLUTE_URL_RULES}')"
        ),
        "unread_terms": _documents_and_hosts(query, "unread_terms <> ''"),
        "letters_lost": _letters_lost(query),
        "pii_replaced": _pii(query),
        "kept_by_language": _table(query, "language", f"{_OWN} and {_KEPT}", "bytes_out"),
        "kept_by_consent": _table(query, "consent", f"{_OWN} and {_KEPT}", "bytes_out"),
        "by_split": dict(
            sorted(_table(query, "split", f"{_KEPT} and split <> ''", "bytes_out").items())
        ),
        "by_host": {
            host: {"kept": kept, "dropped": documents - kept}
            for host, documents, kept in query.rows(
                f"select host, count(*) as n, count(*) filter ({_KEPT}) from ledger "
                f"where {_OWN} group by host order by n desc, host limit {_HOSTS_SHOWN}"
            )
        },
        "hosts": query.rows(f"select count(distinct host) from ledger where {_OWN}")[0][0],
    }
    if columns := _filter_columns(query):
        summary["filter_columns"] = columns
    return summary


def require_kept(summary: dict[str, Any], query: Query) -> None:
    """Raise DataError when every document was dropped, with the most frequent reasons.

    query   has a view called ledger
    """
    if summary["n_kept"]:
        return
    if not summary["n_in"]:
        raise DataError("the inputs contain no documents", where="corpus.inputs")
    reasons = [(name, counts["documents"]) for name, counts in summary["dropped_by_reason"].items()]
    reasons.sort(key=lambda item: (-item[1], item[0]))
    biggest = ", ".join(f"{name} {number} ({reason_text(name)})" for name, number in reasons[:3])
    fix = "Look into the ledger"
    if reasons[0][0] == "unknown_host":
        fix = (
            "Name a robots.txt snapshot in corpus.consent.robots, "
            "or set corpus.consent.unknown_host=allow"
        )
    if reasons[0][0] == "licence_unknown":
        fix = "Set corpus.licences.unknown=allow to keep documents whose licence is not known"
    if reasons[0][0] == "no_text":
        ((file, detail),) = query.rows(
            "select input_file, detail from ledger where reason = 'no_text' limit 1"
        )
        biggest += f"; {file}: {detail}"
        fix = f"`stamm fields {file}` shows what is read"
    raise DataError(
        f"no document was kept of {summary['n_in']}: {biggest}", where="corpus.inputs", fix=fix
    )


def _table(query: Query, column: str, where: str, size: str) -> dict[str, dict[str, int]]:
    """Documents and bytes by the values of a column, the largest first."""
    rows = query.rows(
        f"select {column}, count(*) as n, sum({size})::bigint as size from ledger "
        f"where {where} group by {column} order by n desc, {column}"
    )
    return {value: {"documents": count, "bytes": size} for value, count, size in rows}


def _documents_and_hosts(query: Query, where: str) -> dict[str, int]:
    ((documents, hosts),) = query.rows(
        f"select count(*), count(distinct host) from ledger where {_OWN} and {where}"
    )
    return {"documents": documents, "hosts": hosts}


def _letters_lost(query: Query) -> dict[str, float]:
    """Web pages of which text was extracted, and percentiles of the share of letters they lost."""
    ((pages, *shares),) = query.rows(
        "select count(*), "
        + ", ".join(f"coalesce(quantile_disc(letters_lost, {p / 100}), 0.0)" for p in _PERCENTILES)
        + f" from ledger where {_OWN} and letters_lost >= 0"
    )
    names = [f"p{percentile}" for percentile in _PERCENTILES]
    return {"pages": pages, **dict(zip(names, shares, strict=True))}


def _filter_columns(query: Query) -> dict[str, dict[str, Any]]:
    """Values of the columns that a user's filters added, over the kept documents."""
    kinds = {name: kind for name, kind, *_ in query.rows("describe ledger")}
    columns: dict[str, dict[str, Any]] = {}
    for name in added_columns(kinds):
        where = f'{_OWN} and {_KEPT} and "{name}" is not null'
        if kinds[name] == "VARCHAR":
            values = query.rows(
                f'select left("{name}", {_LONGEST_VALUE}), count(*) from ledger where {where} '
                f"group by 1 order by 2 desc, 1 limit {_VALUES_SHOWN}"
            )
            columns[name] = {"values": dict(values)}
        else:
            ((least, median, largest),) = query.rows(
                f'select min("{name}"), quantile_disc("{name}", 0.5), max("{name}") '
                f"from ledger where {where}"
            )
            columns[name] = {"least": least, "median": median, "largest": largest}
        ((documents,),) = query.rows(f"select count(*) from ledger where {where}")
        columns[name]["documents"] = documents
    return columns


def _pii(query: Query) -> dict[str, int]:
    sums = ", ".join(f"coalesce(sum(pii_{kind}), 0)::bigint" for kind in PII_KINDS)
    (counts,) = query.rows(f"select {sums} from ledger where {_OWN} and {_KEPT}")
    return dict(zip(PII_KINDS, counts, strict=True))
