"""The sections of a run's page, in their order: each is a function of the subject that wrote what it shows."""

from __future__ import annotations

import importlib

from stamm.pages.config import ReportConfig
from stamm.pages.section import Section
from stamm.runs.own_sections import PageSections, own_sections
from stamm.runs.run_view import RunView

SECTIONS = (
    "stamm.align.section:verdict_sections",
    "stamm.compare.section:sections",
    "stamm.align.section:judge_sections",
    "stamm.adapt.section:sections",
    "stamm.align.section:sections",
    "stamm.pretrain.forget.section:sections",
    "stamm.pretrain.section:sections",
    "stamm.observe.section:sections",
    "stamm.evaluate.section:sections",
    "stamm.corpus.section:sections",
    "stamm.audit.section:sections",
    "stamm.export.section:sections",
)


def sections_of(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """All sections about `run`, those of the user last.

    Raises   DataError for a file of the run that is not what it should be; what `own_sections` raises
    """
    sections = [section for name in SECTIONS for section in _built_in(name)(run, config)]
    return (*sections, *own_sections(run, config, [section.key for section in sections]))


def _built_in(name: str) -> PageSections:
    module, _, function = name.partition(":")
    sections: PageSections = getattr(importlib.import_module(module), function)
    return sections
