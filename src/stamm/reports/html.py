"""Rendering of templates with autoescape. One file, no script, no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from stamm.reports import theme
from stamm.reports.config import ReportConfig
from stamm.reports.figure import Figure
from stamm.reports.figures import figures_of
from stamm.reports.formatting import ABSENT, fixed
from stamm.reports.judge_section import JudgeSection
from stamm.reports.page import ReportPage, page_of
from stamm.reports.run_data import RunResults
from stamm.reports.text import excerpt, one_line
from stamm.reports.verdict import judge

TEMPLATE = "report.html"
JUDGE_TEMPLATE = "judge_report.html"
_LONGEST_TEXT = 20_000


def render(study: RunResults, config: ReportConfig) -> str:
    """The page about `study` as HTML text.

    Every value is escaped by the template engine; drawings and the style sheet, which are made
    here, are the only markup passed through. Links are never made from data.
    """
    figures = figures_of(study, config)
    page: ReportPage = page_of(study, config)
    context: dict[str, Any] = {
        "study": study,
        "page": page,
        "verdict": judge(study),
        "figures": figures,
    }
    return fill(TEMPLATE, context, excerpt_characters=config.excerpt_characters)


def render_judge(study: RunResults, judge: JudgeSection, config: ReportConfig) -> str:
    """The page about a run that trained no model, with a judge, as HTML text."""
    page = page_of(study, config)
    context = {
        "study": study,
        "page": page,
        "title": page.title,
        "contents": (("judge", "Judge"), ("again", "Doing it again")),
        "judge": judge,
    }
    return fill(JUDGE_TEMPLATE, context, excerpt_characters=config.excerpt_characters)


def fill(template: str, context: Mapping[str, Any], *, excerpt_characters: int = 600) -> str:
    """The page that `template` makes of `context`, as HTML text.

    Every value is escaped by the template engine but those that are `Markup` already. Both
    themes and the word for what was not run are added to the context.

    excerpt_characters   how much of a quotation is shown
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("stamm.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        {
            "fixed": fixed,
            "quote": lambda text: excerpt(text, excerpt_characters),
            "line": lambda text, limit=120: one_line(text, limit),
            "drawing": _drawing,
        }
    )
    themes = {
        "absent": ABSENT,
        "light": Markup(theme.variables(theme.LIGHT)),
        "dark": Markup(theme.variables(theme.DARK)),
    }
    return environment.get_template(template).render({**themes, **context})


def _visible(value: Any) -> Any:
    """Text of a template expression before escaping: control characters become visible escapes."""
    return excerpt(value, _LONGEST_TEXT) if type(value) is str else value


def _drawing(figure: Figure) -> Markup:
    return Markup(figure.svg)  # drawn by stamm.reports.svg_figure, which escapes every label
