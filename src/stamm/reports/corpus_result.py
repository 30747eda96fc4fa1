"""The result of a corpus run as text for the terminal."""

from __future__ import annotations

from pathlib import Path

from stamm.base.units import bytes_text
from stamm.reports.corpus_record import Corpus, read_corpus_summary, read_pack
from stamm.reports.corpus_tables import corpus_sentences, counted, split_sentences
from stamm.reports.text import one_line

_MOST_REASONS = 12


def corpus_result(run_folder: Path) -> str:
    """Documents read, kept and dropped, as lines; "" when the run has no corpus.

    Raises   DataError when the corpus' summary or the pack's manifest is malformed.
    """
    corpus = read_corpus_summary(run_folder / "corpus")
    if corpus is None:
        return ""
    pack = read_pack(run_folder / "pack")
    lines = [*_reasons(corpus), "", *corpus_sentences(corpus), *split_sentences(pack)]
    return "\n".join(lines)


def _reasons(corpus: Corpus) -> list[str]:
    """Documents by decision, one line each."""
    rows = [("kept", corpus.summary.n_kept, corpus.summary.bytes_kept)]
    rows += [(reason.name, reason.documents, reason.bytes) for reason in corpus.reasons]
    cells = [
        (one_line(name.replace("_", " "), 40), f"{documents:,}", bytes_text(size))
        for name, documents, size in rows[: _MOST_REASONS + 1]
    ]
    table = [("", "documents", "text"), *cells]
    widths = [max(len(row[i]) for row in table) for i in range(3)]
    lines = [
        f"{name.ljust(widths[0])}  {documents.rjust(widths[1])}  {size.rjust(widths[2])}".rstrip()
        for name, documents, size in table
    ]
    left = len(rows) - len(cells)
    return [*lines, f"and {counted(left, 'more reason')}"] if left else lines
