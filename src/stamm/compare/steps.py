"""Steps of a comparison that are its own: the plan, the looks, the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stamm.base.user_code import code_files
from stamm.compare.config import LOOK, PLAN, PLAN_SHA256, LookConfig, PlanConfig
from stamm.pages.config import ReportConfig, check_sections
from stamm.runs.job import Step

PAGE = ("comparison.json", "comparison.html")


def plan_step(config: PlanConfig, chosen: Mapping[str, str]) -> Step:
    """Registration of the plan, before the first run that is compared.

    chosen   file with the chosen learning rate of each arm, by its name
    """
    pilot = Path(config.pilot) / PAGE[0]
    return Step(
        name="plan",
        job="plan",
        config=config,
        folder="plan",
        inputs={f"chosen.{arm}": file for arm, file in chosen.items()},
        external={str(pilot): pilot} if config.pilot else {},
        outputs=(PLAN, PLAN_SHA256),
    )


def look_step(config: LookConfig, unless: str) -> Step:
    """Decision after the first seeds whether the comparison stops.

    unless   an earlier look, whose decision to stop skips this one; ""
    """
    return Step(
        name=f"look.{config.seeds}",
        job="look",
        config=config,
        folder=f"looks/{config.seeds}",
        inputs={"run": "."},
        outputs=(LOOK,),
        unless=unless,
    )


def page_step(config: ReportConfig) -> Step:
    """The last step of a comparison: its verdict and its page.

    Raises   ConfigError as `check_sections`
    """
    check_sections(config)
    return Step(
        name="compare",
        job="compare",
        config=config,
        folder=".",
        external=code_files(config.sections),
        inputs={"run": "."},
        outputs=PAGE,
    )
