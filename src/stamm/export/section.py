"""Section "Export" of a run's page: agreement of the exported models, releases, texts."""

from __future__ import annotations

from stamm.export.records import ParityFile
from stamm.export.results import read_exported
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable
from stamm.pages.formatting import percent
from stamm.pages.frame import fill
from stamm.pages.section import Section
from stamm.pages.text import one_line
from stamm.release.records import ReleasedFile
from stamm.runs.run_view import ALIGNMENT, IMPORTED, STUDY, RunView

_LONGEST_CELL = 120
_MOST_LANGUAGES = 2000
_MOST_FILES = 200


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """Parity, release and samples of each arm; no section for alignment that exported nothing.

    Raises   DataError when a file does not follow its schema, or was made from other weights than
             the arm's model has
    """
    if run.kind not in (STUDY, IMPORTED, ALIGNMENT):
        return ()
    arms = [(arm, read_exported(arm)) for arm in run.arms]
    if run.kind == ALIGNMENT and not any(exported.parities for _, exported in arms):
        return ()
    context = {
        "run": run,
        "arms": arms,
        "parity_table": parity_table,
        "held_out_table": held_out_table,
        "released_table": released_table,
    }
    html = fill(
        "export.html", context, "stamm.export", excerpt_characters=config.excerpt_characters
    )
    return (Section(key="export", title="Export", html=html),)


def parity_table(parity: ParityFile) -> DataTable:
    """The parity report of an export."""
    return DataTable(
        columns=(
            "text", "sequences", "tokens", "largest difference, of any logit",
            "share, of the largest logit", "same most likely token",
        ),
        rows=tuple(
            (
                _cell(difference.text), f"{difference.sequences:,}", f"{difference.positions:,}",
                _small(difference.max_absolute), _small(difference.max_relative),
                percent(difference.argmax_agreement, 2),
            )
            for difference in parity.comparisons
        ),
    )  # fmt: skip


def held_out_table(parity: ParityFile) -> DataTable:
    """Token ids and bits per byte of held-out text by language, most different ids first."""
    ids = {row.language: row for row in parity.tokens}
    bits = {row.language: row for row in parity.bits if row.language}
    names = sorted({**ids, **bits}, key=lambda name: -ids[name].differing if name in ids else 0)
    rows = tuple(
        (
            _cell(name),
            *((f"{a.tokens:,}", f"{a.differing:,}") if (a := ids.get(name)) else ("", "")),
            *((f"{b.original:.4f}", f"{b.exported:.4f}") if (b := bits.get(name)) else ("", "")),
        )
        for name in names[:_MOST_LANGUAGES]
    )
    more = len(names) - len(rows)
    return DataTable(
        columns=("language", "token ids", "different ids", "bits per byte, original", "exported"),
        rows=rows,
        note=f"{more:,} more languages are in parity.json." if more else "",
    )


def released_table(release: ReleasedFile) -> DataTable:
    """The files of a release with size and SHA-256, at most 200."""
    rows = tuple(
        (_cell(name), f"{file.bytes:,}", _cell(file.sha256)) for name, file in release.files.items()
    )
    more = len(rows) - _MOST_FILES
    note = f"{more:,} more files are in SHA256SUMS." if more > 0 else ""
    return DataTable(columns=("file", "bytes", "SHA-256"), rows=rows[:_MOST_FILES], note=note)


def _small(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}"


def _cell(text: str) -> str:
    return one_line(text, _LONGEST_CELL)
