"""What a corpus step did, in numbers that add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from stamm.base.errors import DataError
from stamm.corpus.ledger import KEPT, REASONS, LedgerRow

SCHEMA = 1
_HOSTS_SHOWN = 100


@dataclass
class Tally:
    """Counts ledger rows as they are written."""

    rows: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    consents: Counter[str] = field(default_factory=Counter)
    hosts: dict[str, Counter[str]] = field(default_factory=dict)
    languages: dict[str, Counter[str]] = field(default_factory=dict)
    splits: dict[str, Counter[str]] = field(default_factory=dict)
    pii: Counter[str] = field(default_factory=Counter)
    size: Counter[str] = field(default_factory=Counter)

    def add(self, row: LedgerRow) -> None:
        """Count one input document."""
        self.rows[row.decision] += 1
        self.size["in"] += row.bytes_in
        self.hosts.setdefault(row.host, Counter())[row.decision] += 1
        self.consents[row.consent or "not asked"] += 1
        if row.decision != KEPT:
            self.reasons[row.reason] += 1
            self.lost[row.reason] += row.bytes_in
            return
        self.size["out"] += row.bytes_out
        self.pii.update(email=row.pii_email, ip=row.pii_ip, iban=row.pii_iban)
        self.languages.setdefault(row.language, Counter()).update(documents=1, bytes=row.bytes_out)

    def add_split(self, split: str, size: int) -> None:
        """Count one document of the output, probes included."""
        self.splits.setdefault(split, Counter()).update(documents=1, bytes=size)

    def require_kept(self) -> None:
        """Raise DataError when every document was dropped, naming the reasons that did most."""
        if self.rows[KEPT]:
            return
        count = sum(self.rows.values())
        if not count:
            raise DataError("the inputs hold no documents", where="corpus.inputs")
        biggest = ", ".join(
            f"{reason} {number} ({REASONS[reason]})" for reason, number in _ranked(self.reasons)[:3]
        )
        fix = "Look into the ledger"
        if _ranked(self.reasons)[0][0] == "unknown_host":
            fix = (
                "Name a robots.txt snapshot in corpus.consent.robots, "
                "or say corpus.consent.unknown_host=allow"
            )
        raise DataError(
            f"no document was kept of {count}: {biggest}", where="corpus.inputs", fix=fix
        )

    def plain(self, probes: int) -> dict[str, Any]:
        """The summary as JSON values: n_in = n_kept + n_dropped; planted probes stand apart."""
        hosts = sorted(self.hosts.items(), key=lambda item: (-sum(item[1].values()), item[0]))
        return {
            "schema": SCHEMA,
            "n_in": sum(self.rows.values()),
            "n_kept": self.rows[KEPT],
            "n_dropped": sum(self.reasons.values()),
            "n_probes": probes,
            "bytes_in": self.size["in"],
            "bytes_kept": self.size["out"],
            "dropped_by_reason": {
                reason: {"documents": count, "bytes": self.lost[reason]}
                for reason, count in _ranked(self.reasons)
            },
            "documents_by_consent": dict(_ranked(self.consents)),
            "pii_replaced": {kind: self.pii[kind] for kind in ("email", "ip", "iban")},
            "kept_by_language": {
                language: dict(counts)
                for language, counts in sorted(
                    self.languages.items(), key=lambda item: (-item[1]["bytes"], item[0])
                )
            },
            "by_split": {split: dict(counts) for split, counts in sorted(self.splits.items())},
            "by_host": {
                host or "none": {
                    "kept": counts[KEPT],
                    "dropped": sum(counts.values()) - counts[KEPT],
                }
                for host, counts in hosts[:_HOSTS_SHOWN]
            },
            "hosts": len(hosts),
        }


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
