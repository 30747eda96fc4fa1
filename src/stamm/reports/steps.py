"""The last step of every run: its report."""

from __future__ import annotations

from stamm.base.user_code import code_files
from stamm.pages.config import ReportConfig, check_sections
from stamm.runs.job import Step


def report_step(config: ReportConfig) -> Step:
    """The report of a run.

    Raises   ConfigError as `check_sections`
    """
    check_sections(config)
    return Step(
        name="report",
        job="report",
        config=config,
        folder=".",
        inputs={"run": "."},
        external=code_files(config.sections),
        outputs=("report.html",),
    )
