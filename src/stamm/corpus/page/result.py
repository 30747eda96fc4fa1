"""The result of a corpus: sentences for its page, and text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stamm.base.units import bytes_text
from stamm.corpus.page.record import Corpus, read_corpus_summary
from stamm.corpus.records import CorpusSummary, DeletionRequests, PackSplit
from stamm.pages.formatting import percent, table_lines
from stamm.pages.text import one_line

_MOST_REASONS = 12
_MOST_LINES = 10
_LONGEST_NAME = 60


def corpus_result(run_folder: Path) -> str:
    """Documents read, kept and dropped, as lines; "" when the run has no corpus.

    Raises   DataError when one of its summaries or manifests is malformed.
    """
    corpus = read_corpus_summary(run_folder)
    if corpus is None:
        return ""
    return "\n".join([*_reasons(corpus), "", *corpus_sentences(corpus)])


def _reasons(corpus: Corpus) -> list[str]:
    """Documents by decision, one line each."""
    rows = [("kept", corpus.summary.n_kept, corpus.summary.bytes_kept)]
    rows += [(reason.name, reason.documents, reason.bytes) for reason in corpus.reasons]
    cells = [
        (one_line(name.replace("_", " "), 40), f"{documents:,}", bytes_text(size))
        for name, documents, size in rows[: _MOST_REASONS + 1]
    ]
    table = [("", "documents", "text"), *cells]
    lines = table_lines(table, 1)
    num_hidden = len(rows) - len(cells)
    return [*lines, f"and {counted(num_hidden, 'more reason')}"] if num_hidden else lines


def corpus_sentences(corpus: Corpus) -> tuple[str, ...]:
    """Documents read, kept and dropped and tokens of each split, the most important first."""
    stayed = (
        f"{corpus.summary.n_kept:,} of {counted(corpus.summary.n_in, 'document')} stayed "
        f"({bytes_text(corpus.summary.bytes_kept)} of text), {corpus.documents_dropped:,} were left out."
    )
    summary = corpus.summary
    splits = corpus.pack.splits.items() if corpus.pack else ()
    others = (*_consent_sentences(summary), *(_split_sentence(*split) for split in splits))
    if summary.withdrawn_by_reason is None or corpus.withdrawn_ranges is None:
        return (stayed, *others)
    before = sum(language.documents for language in summary.withdrawn_by_language.values())
    withdrawn = sum(summary.withdrawn_by_reason.values())
    sentences = [
        f"A newer opt-out withdrew {withdrawn:,} of the {counted(before, 'document')} of a "
        f"finished corpus: {counted(corpus.withdrawn_ranges, 'range')} of its token stream, "
        f"{counted(sum(summary.withdrawn_tokens.values()), 'token')} in all.",
        stayed,
    ]
    if summary.withdrawn_probes:
        sentences.append(
            f"{counted(summary.withdrawn_probes, 'planted passage')} withdrawn, too: no audit "
            "measures them."
        )
    lost = sum(summary.duplicates_not_brought_back.values())
    if lost:
        sentences.append(
            f"{counted(lost, 'document')}, dropped before as duplicates of a withdrawn "
            "one, stay out: only a new build restores them."
        )
    if summary.deletion_requests and summary.deletion_requests.asked:
        sentences.append(_answer(summary.deletion_requests))
    return (*sentences, *others)


def _consent_sentences(summary: CorpusSummary) -> Iterator[str]:
    """Documents whose consent no file states, and rules and terms of websites that were not followed."""
    kept = {name: counts.documents for name, counts in summary.kept_by_consent.items()}
    if without_url := kept.get("no_url"):
        yield f"{counted(without_url, 'document')} without an address stayed, as your own text."
    unknown = summary.dropped_by_reason.get("unknown_host")
    if unknown:
        yield (
            f"{counted(unknown.documents, 'document')} of hosts whose robots.txt is not known "
            "were left out (unknown_host)."
        )
    if number := kept.get("unknown_host"):
        yield (
            f"{counted(number, 'document')} of hosts whose robots.txt is not known stayed "
            "(corpus.consent.unknown_host = allow)."
        )
    rules, terms = summary.absolute_rules, summary.unread_terms
    if rules.documents:
        yield (
            f"The robots.txt of {counted(rules.hosts, 'website')} "
            f"({counted(rules.documents, 'document')}) has rules written as absolute URLs of the same "
            "site. No parser follows them; the ledger names the first."
        )
    if terms.documents:
        yield (
            f"{counted(terms.hosts, 'website')} ({counted(terms.documents, 'document')}) name terms of "
            "use that were not read, such as a licence in a file of their own; the ledger has them in "
            "its column unread_terms."
        )


def _split_sentence(name: str, split: PackSplit) -> str:
    """Tokens and documents of a split, with the share of planted passages."""
    documents = counted(split.documents, "document")
    sentence = (
        f"{one_line(name, 40)}: {counted(split.tokens, 'token')} in {documents}, repeats counted"
    )
    if split.planted_documents and split.tokens:
        return (
            f"{sentence}: {split.documents - split.planted_documents:,} of the corpus and "
            f"{counted(split.planted_documents, 'copy', 'copies')} of planted passages, which are "
            f"{percent(split.planted_tokens / split.tokens)} of the tokens."
        )
    return f"{sentence}."


def _answer(requests: DeletionRequests) -> str:
    """Outcomes of the requests for deletion; unmatched ones by list and line."""
    sentence = (
        f"Of {counted(requests.asked, 'request')} for deletion {requests.withdrew:,} withdrew "
        f"documents, {requests.out_before:,} match only dropped ones and {requests.unmatched:,} match "
        "nothing that came in"
    )
    first = requests.first_unmatched[:_MOST_LINES]
    if not first:
        return f"{sentence}."
    lines = ", ".join(
        f"{one_line(request.list, _LONGEST_NAME)} line {request.line}" for request in first
    )
    num_hidden = requests.unmatched - len(first)
    return f"{sentence}: {lines}" + (f", and {num_hidden:,} more." if num_hidden else ".")


def counted(number: int, one: str, more: str = "") -> str:
    """A number with its noun: "1 document", "2 documents"."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"
