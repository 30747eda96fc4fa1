"""The report job: one self-contained page from a run folder.

Reads    run (the run folder, or the folder of a single arm)
Leaves   report.html
"""

from __future__ import annotations

from pathlib import Path

from stamm.base.files import write_text
from stamm.pages.config import ReportConfig
from stamm.pages.frame import fill
from stamm.pages.text import one_line
from stamm.reports.sections import sections_of
from stamm.runs.again import again_section, run_facts
from stamm.runs.job import Workspace
from stamm.runs.run_view import RESULTS, RunView, open_view

PAGE = "report.html"
TEMPLATE, PACKAGE = "report.html", "stamm.reports"


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
    write_text(out, render(open_view(run_folder), config or ReportConfig()))
    return out


def render(view: RunView, config: ReportConfig) -> str:
    """The page about `view` as HTML text.

    Every value is escaped by the template engine; drawings and the style sheet, which are made
    here, are the only markup passed through. Links are never made from data.
    """
    sections = sections_of(view, config)
    if view.kind != RESULTS:
        sections = (*sections, again_section(view, config))
    context = {
        "title": one_line(config.title, 200) or _title(view),
        "facts": (
            *dict.fromkeys(fact for section in sections for fact in section.facts),
            *run_facts(view),
        ),
        "contents": tuple((section.key, section.title) for section in sections),
        "sections": sections,
        "version": view.manifest.version if view.manifest else None,
    }
    page = fill(TEMPLATE, context, PACKAGE, excerpt_characters=config.excerpt_characters)
    return str(page)


def _title(view: RunView) -> str:
    recipe = one_line(view.recipe, 120)
    if view.is_single or len(view.arms) < 2:
        return recipe
    names = [one_line(arm.name, 120) for arm in view.arms]
    return f"{recipe}: {', '.join(names[:-1])} and {names[-1]}"
