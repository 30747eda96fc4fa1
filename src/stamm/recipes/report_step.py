"""The last step of every run: its report."""

from __future__ import annotations

from collections.abc import Sequence

from stamm.reports.config import ReportConfig
from stamm.runs.job import Step


def report_step(config: ReportConfig, before: Sequence[Step]) -> Step:
    """The report of a run whose other steps are `before`."""
    return Step(
        name="report",
        job="report",
        config=config,
        folder=".",
        inputs={"run": "."},
        after=tuple(step.name for step in before),
        outputs=("report.html",),
    )
