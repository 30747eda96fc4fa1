"""The report job: one self-contained page from a run folder.

Reads    run (the run folder, or the folder of a single arm)
Leaves   report.html
"""

from __future__ import annotations

from pathlib import Path

from stamm.base.files import write_text
from stamm.reports.config import ReportConfig
from stamm.reports.html import render, render_judge
from stamm.reports.judge_section import judge_section
from stamm.reports.results import is_results_folder
from stamm.reports.run_data import collect, collect_results
from stamm.reports.verdict import Verdict, verdict
from stamm.runs.job import Workspace

PAGE = "report.html"
__all__ = ["PAGE", "Verdict", "run", "verdict", "write_report"]


def run(config: ReportConfig, workspace: Workspace) -> None:
    """Write report.html about the run in inputs["run"] into the workspace's folder."""
    workspace.progress.begin("report", 1, "page")
    write_report(workspace.inputs["run"], workspace.folder / PAGE, config)
    workspace.progress.end()


def write_report(run_folder: Path, out: Path, config: ReportConfig | None = None) -> Path:
    """Write the page about `run_folder`, a run or results of a Hugging Face folder, to `out`; `out`.

    The same folder gives the same bytes. `out` need not lie in the run.

    Raises   RunError when the folder holds no run; DataError when a file in it is malformed.
    """
    settings = config or ReportConfig()
    of_folder = is_results_folder(run_folder)
    study = collect_results(run_folder) if of_folder else collect(run_folder)
    judge = judge_section(run_folder) if not study.arms else None
    page = render_judge(study, judge, settings) if judge else render(study, settings)
    write_text(out, page)
    return out
