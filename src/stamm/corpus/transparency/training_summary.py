"""The public summary of training content required by the EU AI Act, filled from a corpus.

Sections, questions and size bands follow the Commission's template; the wording of the questions is
ours. Questions without an answer in the ledger stay open until the provider answers.

Source   Regulation (EU) 2024/1689, Article 53(1)(d); Commission, "Explanatory Notice and Template for
         the Public Summary of Training Content for general-purpose AI models", C(2025) 5235 final,
         24 July 2025, adopted as C(2025) 8311 final, 5 December 2025
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stamm.base.units import bytes_text
from stamm.corpus.transparency.config import EvidenceConfig, Kind
from stamm.corpus.transparency.facts import (
    OPT_OUTS,
    DomainCounts,
    LedgerFacts,
    count_opt_outs,
    is_used,
    used_by_ledger,
)
from stamm.corpus.transparency.template import (
    EU_LANGUAGES,
    LEDGER,
    PROVIDER,
    MarkdownTable,
    Question,
    TemplateSection,
    agents_table,
    consents_table,
    counted,
    domains_table,
    eu_languages,
    from_ledger,
    languages_table,
    reasons_table,
    sources_table,
)

TEMPLATE = {
    "title": "Public summary of training content for general-purpose AI models",
    "law": "Regulation (EU) 2024/1689, Article 53(1)(d)",
    "template": "C(2025) 5235 final, 24 July 2025; adopted as C(2025) 8311 final, 5 December 2025",
}
_BILLION, _TEN_TRILLION = 10**9, 10**13
_ALLOWS = "robots_allows"
_TOXIC = "toxic"
_TAG = re.compile(r"[a-z]{2,3}(_[A-Z][a-z]{3})?")
_MODALITY = from_ledger("Modality", "Text.")


def training_summary(
    config: EvidenceConfig, facts: LedgerFacts, domains: DomainCounts, listed: Path
) -> tuple[TemplateSection, ...]:
    """The sections of the template, in order.

    listed   the file with the domains of section 2.3
    """
    ask = _Asked(config, facts)
    sections: tuple[tuple[str, str, Iterator[Question] | tuple[Question, ...]], ...] = (
        ("1", "General information", ()),
        ("1.1", "Provider identification", _provider(ask)),
        ("1.2", "Model identification", _model(ask)),
        (
            "1.3",
            "Modalities, overall training data size and other characteristics",
            _modalities(ask),
        ),
        ("2", "List of data sources", _unassigned(facts)),
        ("2.1", "Publicly available datasets", _public(ask)),
        ("2.2", "Private non-publicly available datasets obtained from third parties", ()),
        (
            "2.2.1",
            "Datasets commercially licensed by rightsholders or their representatives",
            _of_kind(
                ask,
                "licensed",
                "Were commercial licensing agreements concluded with rightsholders or their "
                "representatives?",
            ),
        ),
        (
            "2.2.2",
            "Private datasets obtained from other third parties",
            _of_kind(
                ask,
                "private",
                "Were private datasets obtained from third parties under no such licence?",
            ),
        ),
        ("2.3", "Data crawled and scraped from online sources", _crawled(ask, domains, listed)),
        ("2.4", "User data", _user(ask)),
        ("2.5", "Synthetic data", _synthetic(ask)),
        ("2.6", "Other sources of data", _other(ask)),
        ("3", "Data processing aspects", ()),
        (
            "3.1",
            "Respect of reservation of rights from the text and data mining exception",
            _reservations(ask),
        ),
        ("3.2", "Removal of illegal content", _illegal(ask)),
        ("3.3", "Other information", _further(ask)),
    )
    return tuple(
        TemplateSection(number=number, title=title, fields=tuple(fields))
        for number, title, fields in sections
    )


def size_band(tokens: int) -> str:
    """The template's band for a number of tokens of text."""
    if tokens < _BILLION:
        return "Less than 1 billion tokens"
    return "1 billion to 10 trillion tokens" if tokens <= _TEN_TRILLION else (
        "More than 10 trillion tokens"
    )  # fmt: skip


@dataclass(frozen=True)
class _Asked:
    """Questions that the ledger or the provider answers."""

    config: EvidenceConfig
    facts: LedgerFacts

    def provider(self, asks: str, setting: str) -> Question:
        """A question for the provider, which its `setting` answers; "", () and None leave it open."""
        value = getattr(self.config, setting)
        if isinstance(value, bool):
            value = "Yes" if value else "No"
        answer = ", ".join(value) if isinstance(value, tuple) else value
        return Question(
            asks=asks,
            answer=answer or None,
            origin=PROVIDER if answer else "",
            setting=f"evidence.{setting}",
        )

    def used(self, kind: Kind, asks: str) -> Question:
        """Whether data of a kind was used, answered by the ledger where possible."""
        answer = used_by_ledger(self.facts, kind)
        if answer is None:
            return self.provider(asks, kind)
        return Question(asks=asks, answer="Yes" if answer else "No", origin=LEDGER)

    def is_used(self, kind: Kind) -> bool | None:
        return is_used(self.config, self.facts, kind)

    def sources(self, kind: Kind) -> Question:
        documents, size = self.facts.kinds.get(kind, (0, 0))
        return from_ledger(
            "The data of this kind, as its sources name themselves",
            f"{counted(documents, 'document')}, {bytes_text(size)} of text.",
            sources_table(self.facts, kind),
        )


def _provider(ask: _Asked) -> Iterator[Question]:
    yield ask.provider("Provider name", "provider")
    yield ask.provider("Provider contact details", "contact")
    yield ask.provider(
        "Authorised representative, name and contact details, or why there is none",
        "representative",
    )


def _model(ask: _Asked) -> Iterator[Question]:
    yield ask.provider("Versioned model names", "model")
    yield ask.provider(
        "Model dependencies: the model that this one was made from, or none", "dependencies"
    )
    yield ask.provider("Date of placement on the Union market", "placed")


def _modalities(ask: _Asked) -> Iterator[Question]:
    facts = ask.facts
    tokens = None if facts.train is None else facts.train.tokens
    text = bytes_text(facts.summary.bytes_kept)
    size = f"{text} of text; the corpus is not packed, so that its tokens are not counted"
    if tokens is not None:
        size = f"{size_band(tokens)}: {tokens:,} tokens, repeats and planted passages counted, from {text} of text"
    dated = "No kept document has a date."
    if facts.last:
        dated = (
            f"The latest date of a kept document is {facts.last}; {facts.undated:,} of "
            f"{facts.summary.n_kept:,} have none. The meaning of a date depends on the source."
        )
    yield from_ledger("Modality", "Text. No other modality is in the corpus.")
    yield from_ledger("Training data size", f"{size}.")
    yield ask.provider("Types of content", "content")
    yield ask.provider("Latest date of data acquisition", "latest")
    yield from_ledger("Latest date in the documents", dated)
    yield ask.provider("Is the model continuously trained on newer data?", "continuous")
    yield from_ledger("Linguistic characteristics", _linguistic(facts), languages_table(facts))
    yield from_ledger(
        "Other relevant characteristics",
        f"{facts.summary.n_in:,} documents came in, {facts.summary.n_kept:,} stayed. Every one "
        "has a row in a ledger with its decision, rule and date.",
    )


def _linguistic(facts: LedgerFacts) -> str:
    total = max(facts.summary.bytes_kept, 1)
    name, most = max(
        facts.summary.kept_by_language.items(), key=lambda item: (item[1].bytes, item[0])
    )
    # The language of a document is untrusted text; only a tag is written into a sentence.
    name = name if _TAG.fullmatch(name) else "one of another name"
    return (
        f"{len(facts.summary.kept_by_language):,} languages, those in two scripts counted twice; {name} has most "
        f"text ({100 * most.bytes / total:.1f} %). Of the {len(EU_LANGUAGES)} official "
        f"languages of the Union {eu_languages(facts)} occur."
    )


def _unassigned(facts: LedgerFacts) -> Iterator[Question]:
    if facts.unassigned:
        yield Question(
            asks=(
                "Of which kind are these sources: public, licensed, private, crawled, user, service, "
                f"synthetic or other? They hold {facts.unassigned:,} of {facts.summary.n_kept:,} documents"
            ),
            answer=None,
            origin="",
            setting="evidence.sources",
            tables=(sources_table(facts, ""),),
        )


def _public(ask: _Asked) -> Iterator[Question]:
    yield ask.used("public", "Were publicly available datasets used?")
    if ask.is_used("public"):
        links = tuple(
            (source.source, source.link) for source in ask.config.sources if source.kind == "public"
        )
        yield _MODALITY
        yield ask.sources("public")
        yield from_ledger(
            "Where they are published",
            "As the provider states it, by pattern of their names.",
            MarkdownTable(columns=("source", "link"), rows=links, quoted=2),
        )


def _of_kind(ask: _Asked, kind: Kind, asks: str) -> Iterator[Question]:
    yield ask.used(kind, asks)
    if ask.is_used(kind):
        yield _MODALITY
        yield ask.sources(kind)


def _crawled(ask: _Asked, domains: DomainCounts, listed: Path) -> Iterator[Question]:
    yield ask.used("crawled", "Were crawlers used by the provider or on its behalf?")
    if ask.is_used("crawled"):
        yield ask.provider("Crawler names", "crawlers")
        yield ask.provider("Purposes of the crawlers", "crawler_purpose")
        yield ask.provider("Behaviour of the crawlers", "crawler_behaviour")
        yield ask.provider("Period of collection, from", "collected_from")
        yield ask.provider("Period of collection, until", "collected_until")
        yield _MODALITY
        yield ask.sources("crawled")
    whose = "crawled sources" if domains.crawled else "all sources"
    part = "5 % or 1,000, whichever are fewer" if ask.config.sme else "10 %"
    share = 100 * domains.listed_bytes / max(domains.bytes, 1)
    yield from_ledger(
        "Most relevant domain names",
        f"Documents of {whose}: {counted(domains.count, 'domain')}, of which the largest by kept "
        f"text are listed in {listed.name} ({part}: {counted(domains.listed, 'domain')} with "
        f"{share:.1f} % of the text). Without a website: "
        f"{counted(domains.without_host, 'document')}.",
        domains_table(listed, domains),
    )


def _user(ask: _Asked) -> Iterator[Question]:
    kinds: tuple[Kind, ...] = ("user", "service")
    yield ask.used("user", "Was data from users' interactions with the model used?")
    yield ask.used(
        "service",
        "Was data from users' interactions with other services or products of the provider used?",
    )
    yield from (ask.sources(kind) for kind in kinds if ask.facts.kinds.get(kind))
    if any(map(ask.is_used, kinds)):
        yield ask.provider("Services and products that it is from", "services")
        yield _MODALITY


def _synthetic(ask: _Asked) -> Iterator[Question]:
    yield ask.used(
        "synthetic", "Was synthetic data made by AI, by the provider or on its behalf, used?"
    )
    if ask.is_used("synthetic"):
        yield _MODALITY
        yield ask.provider("Models that made the synthetic data", "generators")
        yield ask.sources("synthetic")


def _other(ask: _Asked) -> Iterator[Question]:
    yield ask.used("other", "Were data sources of any other kind used?")
    if ask.facts.summary.n_probes:
        yield from_ledger(
            "Planted passages",
            f"{counted(ask.facts.summary.n_probes, 'passage')} planted on purpose, to measure later what the "
            "model memorized. The ledger names each; none is counted among the documents.",
        )
    if ask.facts.kinds.get("other"):
        yield ask.sources("other")


def _reservations(ask: _Asked) -> Iterator[Question]:
    facts = ask.facts
    silent = sum(consent.kept for consent in facts.consents if consent.state != _ALLOWS)
    yield ask.provider(
        "Has the provider signed the Code of Practice for general-purpose AI models?", "signatory"
    )
    yield from_ledger(
        "Measures to respect reservations of rights",
        f"Left out because of a reservation: {counted(count_opt_outs(facts), 'document')}. Kept "
        f"without a robots.txt that allows it: {counted(silent, 'document')}.",
        reasons_table(facts, OPT_OUTS),
        consents_table(facts),
        agents_table(facts),
    )
    if ask.config.opt_outs:
        yield Question(asks="In the provider's words", answer=ask.config.opt_outs, origin=PROVIDER)


def _illegal(ask: _Asked) -> Iterator[Question]:
    yield ask.provider("Measures to remove illegal content", "illegal_content")
    if _TOXIC in ask.facts.summary.dropped_by_reason:
        yield from_ledger(
            "Documents left out as toxic, which is not the same as illegal",
            f"{counted(ask.facts.summary.dropped_by_reason[_TOXIC].documents, 'document')}.",
        )


def _further(ask: _Asked) -> Iterator[Question]:
    summary = ask.facts.summary
    replaced = summary.pii_replaced
    yield from_ledger(
        "Personal data",
        f"{sum(replaced.values()):,} values were found by form and check digits and "
        "replaced by a marker.",
        MarkdownTable(columns=("personal data replaced", "values"), rows=tuple(replaced.items())),
    )
    yield from_ledger(
        "Everything that was left out, by reason",
        f"{summary.n_dropped:,} of {summary.n_in:,} documents.",
        reasons_table(ask.facts),
    )
    if ask.config.comments:
        yield Question(asks="Comments", answer=ask.config.comments, origin=PROVIDER)
