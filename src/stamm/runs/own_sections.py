"""Sections of a page that a user wrote: `report.sections=mine.py:function`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from markupsafe import Markup

from stamm.base.errors import ConfigError
from stamm.base.user_code import code_files, guarded
from stamm.pages.config import SECTIONS_KEY, ReportConfig, section_function
from stamm.pages.section import Section
from stamm.runs.again import AGAIN
from stamm.runs.run_view import RunView

PageSections = Callable[[RunView, ReportConfig], Iterable[Section]]
"""The sections of a subject, or of a user, about a run; () where the run has nothing of it."""


def own_sections(run: RunView, config: ReportConfig, keys: Sequence[str]) -> tuple[Section, ...]:
    """The sections of the functions that the user names, in their order.

    keys     anchors of the built-in sections of the page

    Raises   ConfigError where a function cannot be loaded, fails, returns something else, or makes a
             section with the anchor of another
    """
    sections: list[Section] = []
    taken = {*keys, AGAIN}
    for reference in config.sections:
        for section in _made(reference, run, config):
            if section.key in taken:
                raise ConfigError(
                    f"{reference} makes a section with key = {section.key!r}, which another has",
                    where=SECTIONS_KEY,
                    fix="Give it another key",
                )
            taken.add(section.key)
            sections.append(section)
    return tuple(sections)


def _made(reference: str, run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    function: PageSections = section_function(reference)
    file = next(iter(code_files([reference]).values()), Path(reference))
    made: tuple[Section, ...] = guarded(file, lambda: tuple(function(run, config)))
    for section in made:
        if not isinstance(section, Section) or not isinstance(section.html, Markup):
            raise ConfigError(
                f"{reference} returns {type(section).__name__}, not sections",
                where=SECTIONS_KEY,
                fix="Return a tuple of stamm.pages.section.section_of(...)",
            )
    return made
