"""Configuration of reports: length of quotations and tables, smoothing of curves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from stamm.base.bounds import distinct, within
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
    excerpt_characters: Annotated[int, within("[40, 4000]")] = 420
    examples: Annotated[int, within("[0, 50]")] = 3
    passages: Annotated[int, within("[0, 50]")] = 4
    rows: Annotated[int, within("[2, 1000]")] = 60
    languages: Annotated[int, within("[1, 200]")] = 40
    hosts: Annotated[int, within("[1, 1000]")] = 100
    smoothing: Annotated[float, within("(0, 0.5]")] = 0.05
    redact: bool = False
    sections: Annotated[tuple[str, ...], distinct("names a function twice")] = field(
        default=(), metadata=NAMES_CODE
    )

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
            (
                "sections",
                all(map(is_reference, self.sections)),
                "must name Python functions: mine.py:function",
            ),
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
