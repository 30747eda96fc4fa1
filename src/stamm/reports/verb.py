"""`stamm.report`: the self-contained page of a run, a comparison, a search or results of a Hugging Face folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.config import assignments
from stamm.base.errors import RunError
from stamm.base.receipts import CONFIG
from stamm.compare.job import PAGE as COMPARISON_PAGE
from stamm.compare.job import write_comparison
from stamm.compare.results import is_comparison
from stamm.pages.config import ReportConfig
from stamm.recipes.trained_models import changed, changed_settings, check_run_folder
from stamm.reports.job import PAGE, write_report
from stamm.runs.arms import run_of_arm
from stamm.runs.command_receipts import report_lock, write_command_receipt
from stamm.runs.run import Run
from stamm.runs.run_view import is_results_folder
from stamm.search.page import SEARCH_PAGE, write_search
from stamm.search.result import RESULT


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """A page.

    file      of the page; of a dry run, where it would be
    verdict   of a comparison or a search, as text; "" for other runs, and in a dry run
    """

    file: Path
    verdict: str = ""


def report(
    run: str | os.PathLike[str],
    *changes: str,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    **settings: Any,
) -> WrittenReport:
    """Write the page of a run, one arm of it, or results of a Hugging Face folder.

        stamm.report("runs/demo").file

    changes, settings   of `ReportConfig`: "redact=true", redact=True
    out        the file; by default report.html, comparison.html or search.html in the folder
    dry_run    write nothing: the result names the file
    Raises     StammError with what is wrong and the fix
    """
    root, words = Path(run), assignments(changes, settings)
    if is_results_folder(root):
        config = changed(ReportConfig(), words)
    else:
        check_run_folder(root)
        config = changed_settings(run_of_arm(root), "report", ReportConfig, words)
    compared, searched = is_comparison(root), (root / RESULT).is_file()
    name = COMPARISON_PAGE if compared else SEARCH_PAGE if searched else PAGE
    file = Path(out) if out else root / name
    if file.is_dir():
        raise RunError(f"{file} is a folder", fix="Name a file with --out")
    if dry_run:
        return WrittenReport(file=file)
    verdict = ""
    inside = file.resolve().is_relative_to(root.resolve())
    with _page_locked(root) if inside else contextlib.nullcontext():
        if compared:
            verdict = write_comparison(root, file, config).text()
        elif searched:
            verdict = "\n".join(write_search(root, file, config).sentences)
        else:
            write_report(root, file, config)
        if inside:
            write_command_receipt(root, "report", [file])
    return WrittenReport(file=file, verdict=verdict)


@contextlib.contextmanager
def _page_locked(root: Path) -> Iterator[None]:
    """Write the page in the folder of a run, and its receipt, beside no run; after another report."""
    with contextlib.ExitStack() as locks:
        if (run := run_of_arm(root)).joinpath(CONFIG).is_file():
            try:
                locks.enter_context(Run(run, "", (), None).locked(shared=True))
            except RunError as error:
                fix = "Wait for it, or write the page elsewhere with --out"
                raise RunError(error.what, fix=fix) from None
        locks.enter_context(report_lock(root))
        yield
