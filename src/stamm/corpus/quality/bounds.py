"""Quality rules: the bounded side of each measure, with the published bound for English."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRule:
    """An upper or lower bound on one measure.

    name        the measure with the prefix "low_" or "high_"
    published   the bound for English in its source; None where each language needs its own
    loosest     limit of the bounds fitted on any language; None without a limit
    """

    measure: str
    is_high: bool
    published: float | None = None
    loosest: float | None = None

    @property
    def name(self) -> str:
        """The name of the rule in verdicts."""
        return f"{'high' if self.is_high else 'low'}_{self.measure}"

    def breaks(self, value: float, bound: float) -> bool:
        """Whether `value` is beyond `bound`."""
        return value > bound if self.is_high else value < bound

    def as_bound(self, fitted: float) -> float:
        """The bound to apply, given the bound `fitted` on clean text of a language.

        A language may loosen a published bound, up to `loosest`, but never tighten it.
        """
        looser, tighter = (max, min) if self.is_high else (min, max)
        if self.published is not None:
            fitted = looser(fitted, self.published)
        return fitted if self.loosest is None else tighter(fitted, self.loosest)


def _high(measure: str, published: float | None, loosest: float | None = None) -> QualityRule:
    return QualityRule(measure=measure, is_high=True, published=published, loosest=loosest)


def _low(measure: str, published: float | None, loosest: float | None = None) -> QualityRule:
    return QualityRule(measure=measure, is_high=False, published=published, loosest=loosest)


# In the order of checks; the first broken rule is reported.
# Published: Gopher (Rae et al. 2021, arXiv 2112.11446, A.1.1 and table A1), C4 (Raffel et al.
# 2020: any brace, any lorem ipsum), FineWeb (Penedo et al. 2024, arXiv 2406.17557, 3.6). That of
# order_share is ours: shuffled text scores one half, natural text nearly one.
RULES: Final = (
    _high("lorem_ipsum", 0.0, 0.0),
    _low("letter_share", None, 0.3),
    _low("worded_share", 0.8, 0.5),
    _high("digit_share", None, 0.4),
    _high("symbol_rate", 0.1, 0.4),
    _high("brace_share", 0.0, 0.2),
    _low("mean_word_letters", None),
    _high("mean_word_letters", None),
    _low("stop_share", None, 0.05),
    _low("order_share", 0.85, 0.65),
    _low("word_entropy", None, 2.2),
    _high("bullet_line_share", 0.9, 0.95),
    _high("ellipsis_line_share", 0.3, 0.5),
    _low("ended_line_share", 0.12, 0.0),
    _high("short_line_share", 0.67, 0.9),
    _high("line_rate", 0.3, 0.5),
    _high("duplicate_line_share", 0.3, 0.5),
    _high("duplicate_line_letters", 0.2, 0.4),
    _high("duplicate_paragraph_share", 0.3, 0.5),
    _high("duplicate_paragraph_letters", 0.2, 0.4),
    _high("top_2", 0.2, 0.4),
    _high("top_3", 0.18, 0.36),
    _high("top_4", 0.16, 0.32),
    _high("repeated_5", 0.15, 0.5),
    _high("repeated_6", 0.14, 0.47),
    _high("repeated_7", 0.13, 0.44),
    _high("repeated_8", 0.12, 0.41),
    _high("repeated_9", 0.11, 0.38),
    _high("repeated_10", 0.1, 0.35),
)
