"""Configuration of reports: length of quotations and tables, smoothing of curves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.base.user_code import NAMES_CODE, is_reference, load_reference

SECTIONS_KEY = "report.sections"
"""Key of ReportConfig.sections, for messages."""

_TRAINING = ("pretrain", "finetune", "grpo")
_CORPUS = ("finalize", "replay")
# The jobs whose results a setting is about: "report" has them on its page, "compare" those of training.
_JOBS = {
    "examples": _CORPUS,
    "hosts": _CORPUS,
    "languages": (*_CORPUS, "evaluate"),
    "passages": ("audit",),
    "redact": ("audit",),
    "rows": (*_TRAINING, "audit"),
    "smoothing": _TRAINING,
}


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Configuration of one page.

    title                 "" takes the recipe's name
    excerpt_characters    longest quotation from a document, a passage or a generated text
    examples              dropped documents shown for each reason
    passages              memorization probes shown for each arm
    rows                  longest data table under a figure; longer ones are thinned, with a note
    languages, hosts      rows of the language figure and of the table of websites
    redact                lengths and SHA-256 in place of the texts of memorization probes
    smoothing             share of the steps that the moving average of a loss curve spans
    sections              further sections of your own: mine.py:function
    """

    title: str = ""
    excerpt_characters: int = 420
    examples: int = 3
    passages: int = 4
    rows: int = 60
    languages: int = 40
    hosts: int = 100
    smoothing: float = 0.05
    redact: bool = False
    sections: tuple[str, ...] = field(default=(), metadata=NAMES_CODE)

    def shown_of(self, page: str, jobs: Collection[str]) -> ReportConfig:
        """This, with the defaults for settings that the page of a run with these jobs does not read.

        page   the job that writes it, "report" or "compare"
        """
        shown = set(jobs if page == "report" else _TRAINING)
        default = ReportConfig()
        unread = [name for name, of_jobs in _JOBS.items() if shown.isdisjoint(of_jobs)]
        return replace(self, **{name: getattr(default, name) for name in unread})

    def __post_init__(self) -> None:
        validate(
            self,
            ("title", len(self.title) <= 200, "is longer than 200 characters"),
            ("excerpt_characters", 40 <= self.excerpt_characters <= 4000, "must lie in [40, 4000]"),
            ("examples", 0 <= self.examples <= 50, "must lie in [0, 50]"),
            ("passages", 0 <= self.passages <= 50, "must lie in [0, 50]"),
            ("rows", 2 <= self.rows <= 1000, "must lie in [2, 1000]"),
            ("languages", 1 <= self.languages <= 200, "must lie in [1, 200]"),
            ("hosts", 1 <= self.hosts <= 1000, "must lie in [1, 1000]"),
            ("smoothing", 0.0 < self.smoothing <= 0.5, "must lie in (0, 0.5]"),
            (
                "sections",
                all(map(is_reference, self.sections)),
                "must name Python functions: mine.py:function",
            ),
            ("sections", len(set(self.sections)) == len(self.sections), "names a function twice"),
        )


def section_function(reference: str) -> Callable[..., Any]:
    """The user's function, of a run and the settings of the page, that makes sections.

    Raises   ConfigError where it cannot be loaded, or is not a function
    """
    function: Any = load_reference(reference, None, "a function that makes sections")
    if not callable(function):
        raise ConfigError(
            f"{reference} is {type(function).__name__}, not a function that makes sections",
            where=SECTIONS_KEY,
            fix="Name a function of the run and the settings of the page",
        )
    return function  # type: ignore[no-any-return]


def check_sections(config: ReportConfig) -> None:
    """Load the user's functions, so that an error shows before training.

    Raises   ConfigError as `section_function`
    """
    for reference in config.sections:
        section_function(reference)
