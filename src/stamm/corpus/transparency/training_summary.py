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
from pathlib import Path

from stamm.base.units import bytes_text
from stamm.corpus.transparency.config import EvidenceConfig, Kind
from stamm.corpus.transparency.contradictions import (
    OPT_OUTS,
    count_opt_outs,
    is_used,
    used_by_ledger,
)
from stamm.corpus.transparency.domains import DomainCounts
from stamm.corpus.transparency.facts import LedgerFacts
from stamm.corpus.transparency.markdown import MarkdownTable, counted
from stamm.corpus.transparency.tables import (
    EU_LANGUAGES,
    agents_table,
    consents_table,
    domains_table,
    eu_languages,
    languages_table,
    reasons_table,
    sources_table,
)
from stamm.corpus.transparency.template import (
    LEDGER,
    PROVIDER,
    Question,
    Section,
    from_ledger,
    from_provider,
    yes_or_no,
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


def training_summary(
    config: EvidenceConfig, facts: LedgerFacts, domains: DomainCounts, listed: Path
) -> tuple[Section, ...]:
    """The sections of the template, in order.

    listed   the file with the domains of section 2.3
    """
    return (
        Section(number="1", title="General information"),
        _provider(config),
        _model(config),
        _modalities(config, facts),
        Section(number="2", title="List of data sources", fields=tuple(_unassigned(facts))),
        _public(config, facts),
        Section(
            number="2.2",
            title="Private non-publicly available datasets obtained from third parties",
        ),
        _of_kind(config, facts, "2.2.1"),
        _of_kind(config, facts, "2.2.2"),
        _crawled(config, facts, domains, listed),
        _user(config, facts),
        _synthetic(config, facts),
        _other(config, facts),
        Section(number="3", title="Data processing aspects"),
        _reservations(config, facts),
        _illegal(config, facts),
        _further(config, facts),
    )


def size_band(tokens: int) -> str:
    """The template's band for a number of tokens of text."""
    if tokens < _BILLION:
        return "Less than 1 billion tokens"
    return "1 billion to 10 trillion tokens" if tokens <= _TEN_TRILLION else (
        "More than 10 trillion tokens"
    )  # fmt: skip


def _provider(config: EvidenceConfig) -> Section:
    return Section(
        number="1.1",
        title="Provider identification",
        fields=(
            from_provider("Provider name", config.provider, "provider"),
            from_provider("Provider contact details", config.contact, "contact"),
            from_provider(
                "Authorised representative, name and contact details, or why there is none",
                config.representative,
                "representative",
            ),
        ),
    )


def _model(config: EvidenceConfig) -> Section:
    return Section(
        number="1.2",
        title="Model identification",
        fields=(
            from_provider("Versioned model names", config.model, "model"),
            from_provider(
                "Model dependencies: the model that this one was made from, or none",
                config.dependencies,
                "dependencies",
            ),
            from_provider("Date of placement on the Union market", config.placed, "placed"),
        ),
    )


def _modalities(config: EvidenceConfig, facts: LedgerFacts) -> Section:
    tokens = facts.train_tokens
    text = bytes_text(facts.summary["bytes_kept"])
    size = f"{text} of text; the corpus is not packed, so that its tokens are not counted"
    if tokens is not None:
        size = f"{size_band(tokens)}: {tokens:,} tokens, repeats and planted passages counted, from {text} of text"
    dated = "No kept document has a date."
    if facts.last:
        dated = (
            f"The latest date of a kept document is {facts.last}; {facts.undated:,} of "
            f"{facts.kept:,} have none. The meaning of a date depends on the source."
        )
    return Section(
        number="1.3",
        title="Modalities, overall training data size and other characteristics",
        fields=(
            from_ledger("Modality", "Text. No other modality is in the corpus."),
            from_ledger("Training data size", f"{size}."),
            from_provider("Types of content", config.content, "content"),
            from_provider("Latest date of data acquisition", config.latest, "latest"),
            from_ledger("Latest date in the documents", dated),
            yes_or_no(
                "Is the model continuously trained on newer data?",
                config.continuous,
                "continuous",
                PROVIDER,
            ),
            from_ledger("Linguistic characteristics", _linguistic(facts), languages_table(facts)),
            from_ledger(
                "Other relevant characteristics",
                f"{facts.summary['n_in']:,} documents came in, {facts.kept:,} stayed. Every one "
                "has a row in a ledger with its decision, rule and date.",
            ),
        ),
    )


def _linguistic(facts: LedgerFacts) -> str:
    total = max(facts.summary["bytes_kept"], 1)
    name, most = max(facts.languages.items(), key=lambda item: (item[1]["bytes"], item[0]))
    # The language of a document is untrusted text; only a tag is written into a sentence.
    name = name if _TAG.fullmatch(name) else "one of another name"
    return (
        f"{len(facts.languages):,} languages, those in two scripts counted twice; {name} has most "
        f"text ({100 * most['bytes'] / total:.1f} %). Of the {len(EU_LANGUAGES)} official "
        f"languages of the Union {eu_languages(facts)} occur."
    )


def _unassigned(facts: LedgerFacts) -> Iterator[Question]:
    if facts.unassigned:
        yield Question(
            asks=(
                "Of which kind are these sources: public, licensed, private, crawled, user, service, "
                f"synthetic or other? They hold {facts.unassigned:,} of {facts.kept:,} documents"
            ),
            answer=None,
            origin="",
            setting="evidence.sources",
            tables=(sources_table(facts, ""),),
        )


def _used(config: EvidenceConfig, facts: LedgerFacts, kind: Kind, asks: str) -> Question:
    """The question whether data of a kind was used, answered by the ledger where possible."""
    origin = PROVIDER if used_by_ledger(facts, kind) is None else LEDGER
    return yes_or_no(asks, is_used(config, facts, kind), kind, origin)


def _sources(facts: LedgerFacts, kind: Kind) -> Question:
    documents, size = facts.kinds.get(kind, (0, 0))
    return from_ledger(
        "The data of this kind, as its sources name themselves",
        f"{counted(documents, 'document')}, {bytes_text(size)} of text.",
        sources_table(facts, kind),
    )


def _public(config: EvidenceConfig, facts: LedgerFacts) -> Section:
    fields = [_used(config, facts, "public", "Were publicly available datasets used?")]
    if is_used(config, facts, "public"):
        links = tuple((one.source, one.link) for one in config.sources if one.kind == "public")
        fields += [
            from_ledger("Modality", "Text."),
            _sources(facts, "public"),
            from_ledger(
                "Where they are published",
                "As the provider states it, by pattern of their names.",
                MarkdownTable(columns=("source", "link"), rows=links, quoted=2),
            ),
        ]
    return Section(number="2.1", title="Publicly available datasets", fields=tuple(fields))


_PRIVATE: dict[str, tuple[Kind, str, str]] = {
    "2.2.1": (
        "licensed",
        "Datasets commercially licensed by rightsholders or their representatives",
        "Were commercial licensing agreements concluded with rightsholders or their "
        "representatives?",
    ),
    "2.2.2": (
        "private",
        "Private datasets obtained from other third parties",
        "Were private datasets obtained from third parties under no such licence?",
    ),
}


def _of_kind(config: EvidenceConfig, facts: LedgerFacts, number: str) -> Section:
    kind, title, asks = _PRIVATE[number]
    fields = [_used(config, facts, kind, asks)]
    if is_used(config, facts, kind):
        fields += [from_ledger("Modality", "Text."), _sources(facts, kind)]
    return Section(number=number, title=title, fields=tuple(fields))


def _crawled(
    config: EvidenceConfig, facts: LedgerFacts, domains: DomainCounts, listed: Path
) -> Section:
    answer = is_used(config, facts, "crawled")
    fields = [
        _used(config, facts, "crawled", "Were crawlers used by the provider or on its behalf?")
    ]
    if answer:
        months = [config.collected_from, config.collected_until]
        fields += [
            from_provider("Crawler names", ", ".join(config.crawlers), "crawlers"),
            from_provider("Purposes of the crawlers", config.crawler_purpose, "crawler_purpose"),
            from_provider(
                "Behaviour of the crawlers", config.crawler_behaviour, "crawler_behaviour"
            ),
            from_provider("Period of collection, from", months[0], "collected_from"),
            from_provider("Period of collection, until", months[1], "collected_until"),
            from_ledger("Modality", "Text."),
            _sources(facts, "crawled"),
        ]
    fields.append(_domains(config, domains, listed))
    return Section(
        number="2.3", title="Data crawled and scraped from online sources", fields=tuple(fields)
    )


def _domains(config: EvidenceConfig, domains: DomainCounts, listed: Path) -> Question:
    whose = "crawled sources" if domains.crawled else "all sources"
    part = "5 % or 1,000, whichever are fewer" if config.sme else "10 %"
    share = 100 * domains.listed_bytes / max(domains.bytes, 1)
    return from_ledger(
        "Most relevant domain names",
        f"Documents of {whose}: {counted(domains.count, 'domain')}, of which the largest by kept "
        f"text are listed in {listed.name} ({part}: {counted(domains.listed, 'domain')} with "
        f"{share:.1f} % of the text). Without a website: "
        f"{counted(domains.without_host, 'document')}.",
        domains_table(listed, domains),
    )


def _user(config: EvidenceConfig, facts: LedgerFacts) -> Section:
    kinds: tuple[Kind, ...] = ("user", "service")
    fields = [
        _used(config, facts, "user", "Was data from users' interactions with the model used?"),
        _used(
            config,
            facts,
            "service",
            "Was data from users' interactions with other services or products of the provider "
            "used?",
        ),
    ]
    fields += [_sources(facts, kind) for kind in kinds if facts.kinds.get(kind)]
    if any(is_used(config, facts, kind) for kind in kinds):
        fields += [
            from_provider("Services and products that it is from", config.services, "services"),
            from_ledger("Modality", "Text."),
        ]
    return Section(number="2.4", title="User data", fields=tuple(fields))


def _synthetic(config: EvidenceConfig, facts: LedgerFacts) -> Section:
    fields = [
        _used(
            config,
            facts,
            "synthetic",
            "Was synthetic data made by AI, by the provider or on its behalf, used?",
        )
    ]
    if is_used(config, facts, "synthetic"):
        fields += [
            from_ledger("Modality", "Text."),
            from_provider("Models that made the synthetic data", config.generators, "generators"),
            _sources(facts, "synthetic"),
        ]
    return Section(number="2.5", title="Synthetic data", fields=tuple(fields))


def _other(config: EvidenceConfig, facts: LedgerFacts) -> Section:
    fields = [_used(config, facts, "other", "Were data sources of any other kind used?")]
    if facts.planted:
        fields.append(
            from_ledger(
                "Planted passages",
                f"{counted(facts.planted, 'passage')} planted on purpose, to measure later what the "
                "model memorized. The ledger names each; none is counted among the documents.",
            )
        )
    if facts.kinds.get("other"):
        fields.append(_sources(facts, "other"))
    return Section(number="2.6", title="Other sources of data", fields=tuple(fields))


def _reservations(config: EvidenceConfig, facts: LedgerFacts) -> Section:
    silent = sum(one.kept for one in facts.consents if one.state != _ALLOWS)
    own = [from_ledger("In the provider's words", config.opt_outs)] if config.opt_outs else []
    return Section(
        number="3.1",
        title="Respect of reservation of rights from the text and data mining exception",
        fields=(
            yes_or_no(
                "Has the provider signed the Code of Practice for general-purpose AI models?",
                config.signatory,
                "signatory",
                PROVIDER,
            ),
            from_ledger(
                "Measures to respect reservations of rights",
                f"Left out because of a reservation: {counted(count_opt_outs(facts), 'document')}. Kept "
                f"without a robots.txt that allows it: {counted(silent, 'document')}.",
                reasons_table(facts, OPT_OUTS),
                consents_table(facts),
                agents_table(facts),
            ),
            *(Question(asks=one.asks, answer=one.answer, origin=PROVIDER) for one in own),
        ),
    )


def _illegal(config: EvidenceConfig, facts: LedgerFacts) -> Section:
    fields = [
        from_provider(
            "Measures to remove illegal content", config.illegal_content, "illegal_content"
        )
    ]
    if _TOXIC in facts.reasons:
        fields.append(
            from_ledger(
                "Documents left out as toxic, which is not the same as illegal",
                f"{counted(facts.reasons[_TOXIC]['documents'], 'document')}.",
            )
        )
    return Section(number="3.2", title="Removal of illegal content", fields=tuple(fields))


def _further(config: EvidenceConfig, facts: LedgerFacts) -> Section:
    replaced = facts.summary["pii_replaced"]
    kinds = MarkdownTable(
        columns=("personal data replaced", "values"), rows=tuple(replaced.items())
    )
    comments = (
        [Question(asks="Comments", answer=config.comments, origin=PROVIDER)]
        if config.comments
        else []
    )
    return Section(
        number="3.3",
        title="Other information",
        fields=(
            from_ledger(
                "Personal data",
                f"{sum(replaced.values()):,} values were found by form and check digits and "
                "replaced by a marker.",
                kinds,
            ),
            from_ledger(
                "Everything that was left out, by reason", _left_out(facts), reasons_table(facts)
            ),
            *comments,
        ),
    )


def _left_out(facts: LedgerFacts) -> str:
    return f"{facts.summary['n_dropped']:,} of {facts.summary['n_in']:,} documents."
