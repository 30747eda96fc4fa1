"""Check of the provider's claims against the counts of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from stamm.base.errors import ConfigError
from stamm.corpus.transparency.config import EvidenceConfig, Kind
from stamm.corpus.transparency.facts import LedgerFacts

OPT_OUTS = (
    "robots_disallow", "robots_content_usage", "domain_list", "deletion_request", "ai_txt",
    "header_noai", "meta_noai", "tdm_reservation", "content_usage",
)  # fmt: skip
"""Reasons of the ledger that are opt-outs."""

KINDS: tuple[Kind, ...] = get_args(Kind)
_ASKED = "robots_allows"


def check_contradictions(config: EvidenceConfig, facts: LedgerFacts) -> None:
    """Raise one ConfigError with all claims that the ledger contradicts."""
    found = list(_contradictions(config, facts))
    if found:
        raise ConfigError(
            "; ".join(found),
            where="evidence",
            fix="Correct the claim, or leave it out: the ledger then answers by itself",
        )


def count_opt_outs(facts: LedgerFacts) -> int:
    """Number of documents dropped because of an opt-out."""
    return sum(facts.reasons[name]["documents"] for name in OPT_OUTS if name in facts.reasons)


def used_by_ledger(facts: LedgerFacts, kind: Kind) -> bool | None:
    """Whether data of a kind was used according to the ledger; None when unknown.

    True where a source is assigned to the kind, False where every source is assigned to other
    kinds. Planted passages are of kind "other".
    """
    if facts.kinds.get(kind, (0, 0))[0] or (kind == "other" and facts.planted):
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
        yield f"evidence.opt_outs_removed = False, but {removed} documents were left out by one"
    asked = removed or any(one.state == _ASKED or one.first_read for one in facts.consents)
    if config.opt_outs_removed and not asked:
        yield "evidence.opt_outs_removed = True, but the ledger holds no website's answer"
    replaced = sum(facts.summary["pii_replaced"].values())
    if config.personal_data_removed is False and replaced:
        yield f"evidence.personal_data_removed = False, but {replaced} values were replaced"
    if config.languages is not None and config.languages != len(facts.languages):
        yield (
            f"evidence.languages = {config.languages}, but the kept documents are in "
            f"{len(facts.languages)}"
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
    if kind == "other" and facts.planted:
        return f"{facts.planted} passages were planted, which is a source of its own"
    return "every source is assigned to another kind"
