"""Configuration of reports: length of quotations and tables, smoothing of curves."""

from __future__ import annotations

from dataclasses import dataclass

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Configuration of one page.

    title                 "" takes the recipe's name
    excerpt_characters    longest quotation from a document, a passage or a generated text
    examples              dropped documents shown for each reason
    passages              memorization probes shown for each arm
    rows                  longest data table under a figure; longer ones are thinned, and say so
    languages, hosts      rows of the language figure and of the table of websites
    redact                lengths and SHA-256 in place of the texts of memorization probes
    smoothing             share of the steps that the moving average of a loss curve spans
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
        )
