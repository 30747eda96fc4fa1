"""Data card in the format of the Hugging Face Hub: YAML front matter, then sections."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from stamm.base.markdown import escape_markdown
from stamm.base.units import bytes_text
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.corpus.transparency.facts import DomainCounts, LedgerFacts, count_opt_outs
from stamm.corpus.transparency.template import (
    LONGEST_TEXT,
    MarkdownTable,
    Question,
    TemplateSection,
    agents_table,
    consents_table,
    counted,
    domains_table,
    languages_table,
    licences_table,
    reasons_table,
    sources_table,
    table,
)

_LANGUAGE = re.compile(r"[a-z]{2,3}")
_MOST_FILES = 100
# Source: size_categories of the Hub's dataset cards, huggingface.co/docs/hub/datasets-cards.
_SIZES = (
    (10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"), (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"),
    (10**11, "10B<n<100B"), (10**12, "100B<n<1T"),
)  # fmt: skip


def data_card(
    config: EvidenceConfig,
    facts: LedgerFacts,
    domains: DomainCounts,
    listed: Path,
    unanswered: Sequence[tuple[TemplateSection, Question]],
) -> str:
    """The data card as Markdown.

    listed       the file with the largest domains
    unanswered   open questions
    """
    parts = [_front_matter(config, facts), f"# {_title(config)}", _opening(facts)]
    for title, body in _sections(facts, domains, listed):
        parts += [f"## {title}", *body]
    parts += ["## Open questions", _questions(unanswered)]
    return "\n\n".join(parts) + "\n"


def _title(config: EvidenceConfig) -> str:
    return (
        f"Training data of {escape_markdown(config.model, LONGEST_TEXT)}"
        if config.model
        else "Training data"
    )


def _front_matter(config: EvidenceConfig, facts: LedgerFacts) -> str:
    """YAML; untrusted text is written as JSON strings, which are valid YAML."""
    codes = sorted({name.partition("_")[0] for name in facts.summary.kept_by_language})
    named = [f"- {_yaml(name)}" for name in codes if _LANGUAGE.fullmatch(name)]
    lines = ["---", *(["language:", *named] if named else [])]
    lines += [f"license: {_yaml(config.licence or 'unknown')}"]
    lines += [f"pretty_name: {_yaml(config.model or 'Training data')}"]
    lines += ["size_categories:", f"- {_yaml(_size(facts.summary.n_kept))}"]
    lines += ["task_categories:", "- text-generation", "tags:", "- stamm", "- pretraining", "---"]
    return "\n".join(lines)


def _yaml(text: str) -> str:
    # Characters beyond U+FFFF are not escaped: YAML has no surrogate pairs.
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def _size(documents: int) -> str:
    return next((name for bound, name in _SIZES if documents < bound), "n>1T")


def _opening(facts: LedgerFacts) -> str:
    summary = facts.summary
    tokens = ""
    if facts.train is not None:
        tokens = (
            f" The training stream has {facts.train.tokens:,} tokens, repeats and planted passages "
            "counted."
        )
    return (
        f"{counted(summary.n_in, 'document')} came in, {facts.summary.n_kept:,} stayed "
        f"({bytes_text(summary.bytes_kept)} of text in {counted(len(facts.summary.kept_by_language), 'language')})."
        f"{tokens} Every number here was counted from the ledger, which has a row for each document "
        "with its decision, rule and date."
    )


def _sections(
    facts: LedgerFacts, domains: DomainCounts, listed: Path
) -> Iterator[tuple[str, list[str]]]:
    summary = facts.summary
    yield (
        "What was left out",
        [
            f"{counted(summary.n_dropped, 'document')}, {count_opt_outs(facts):,} of them because of a "
            "reservation of rights.",
            table(reasons_table(facts)),
        ],
    )
    yield (
        "Consent",
        [
            "State of consent of the website, and when its robots.txt was read. Of an unknown host "
            "no robots.txt was fetched, which does not count as consent.",
            table(consents_table(facts)),
            *([table(agents_table(facts))] if facts.agents else []),
        ],
    )
    yield "Sources", [table(sources_table(facts))]
    yield (
        "Licences",
        [
            "As stated by the documents, not verified.",
            table(licences_table(facts)),
        ],
    )
    yield "Languages", [table(languages_table(facts))]
    yield (
        "Domains",
        [
            f"{counted(domains.count, 'domain')}; the {domains.listed:,} largest by kept text: "
            f"`{listed.name}`. Without a website: {counted(domains.without_host, 'document')}.",
            table(domains_table(listed, domains)),
        ],
    )
    yield (
        "Personal data",
        [
            "Found by form and check digits, replaced by a marker, counted, never kept.",
            table(
                MarkdownTable(
                    columns=("kind", "replaced"), rows=tuple(summary.pii_replaced.items())
                )
            ),
        ],
    )
    yield "Splits", list(_splits(facts))
    yield "Files", [table(_files(facts))]


def _splits(facts: LedgerFacts) -> Iterator[str]:
    rows = tuple((n, split.documents, split.bytes) for n, split in facts.summary.by_split.items())
    yield table(MarkdownTable(columns=("split", "documents", "bytes"), rows=rows))
    if facts.summary.n_probes:
        yield (
            f"Counted here and nowhere else on this card: {counted(facts.summary.n_probes, 'passage')} "
            "planted to measure later what a model memorized."
        )
    stages = facts.train.stages if facts.train else ()
    if len(stages) > 1:
        yield table(
            MarkdownTable(
                columns=("stage of the training stream", "documents, with repeats", "tokens"),
                rows=tuple(
                    (stage.name or str(number), stage.documents, stage.tokens)
                    for number, stage in enumerate(stages, 1)
                ),
            )
        )


def _files(facts: LedgerFacts) -> MarkdownTable:
    every = [
        (name, output["sha256"], output["bytes"])
        for shard in facts.shards.values()
        for name, output in shard["outputs"].items()
    ]
    num_hidden = len(every) - _MOST_FILES
    return MarkdownTable(
        columns=("file", "SHA-256", "bytes"),
        rows=tuple(every[:_MOST_FILES]),
        quoted=2,
        rest=f"{num_hidden:,} more are in the manifests." if num_hidden > 0 else "",
    )


def _questions(unanswered: Sequence[tuple[TemplateSection, Question]]) -> str:
    if not unanswered:
        return "None."
    return "\n".join(f"- {field.asks} (`{field.setting}`)" for _, field in unanswered)
