"""The quality filter: a document's verdict is the first rule whose bound its measures break."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from stamm.base.config import nearest
from stamm.base.errors import ConfigError
from stamm.corpus.quality.bounds import RULES
from stamm.corpus.quality.config import SHIPPED_THRESHOLDS, QualityConfig
from stamm.corpus.quality.measures import QualityMeasures, WordUse, measure
from stamm.corpus.quality.thresholds import FILE, QualityBounds, QualityThresholds
from stamm.corpus.quality.word_split import WITHOUT_BLANKS

TOO_SHORT: Final = "too_few_words"
# In scripts without blanks a word has about two letters.
_LETTERS_OF_A_WORD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityVerdict:
    """The result for one document, without its text, for the ledger.

    rule       the broken rule ("high_top_2"), "" when the document passes
    value      value of that rule's measure, 0 when the document passes
    bound      bound of that rule
    basis      texts that the bounds were fitted on: "deu_Latn", "Latn" or "any"
    measures   all measures
    """

    rule: str
    value: float
    bound: float
    basis: str
    measures: QualityMeasures


class QualityFilter:
    """Applies the quality rules to documents. Stateless between documents."""

    def __init__(self, config: QualityConfig) -> None:
        known = [rule.name for rule in RULES]
        for name in config.skip:
            if name not in known:
                raise ConfigError(
                    f"QualityConfig.skip has the unknown rule {name!r}", fix=nearest(name, known)
                )
        self._config = config
        self._rules = tuple(rule for rule in RULES if rule.name not in config.skip)
        self.thresholds = QualityThresholds(_file(config.thresholds))

    def judge(self, text: str, language: str) -> QualityVerdict:
        """The verdict on a text in `language` ("deu_Latn"; "und" when not known).

        Edge     for a language without bounds those of the script of most letters apply. A text
                 without words has too few of them.
        Checked  tests/unit/corpus/quality/test_rules.py
        """
        own = self.thresholds.for_language(language)
        measures = measure(text, own.use if own else WordUse())
        return self.verdict(measures, own or self.thresholds.for_script(measures.script))

    def verdict(self, measures: QualityMeasures, bounds: QualityBounds) -> QualityVerdict:
        """The first rule that `measures` break, in the order of `bounds.RULES`."""
        min_words = self._config.min_words
        if measures.script in WITHOUT_BLANKS:
            min_words *= _LETTERS_OF_A_WORD
        if measures.words < min_words:
            return QualityVerdict(
                rule=TOO_SHORT,
                value=float(measures.words),
                bound=float(min_words),
                basis=bounds.basis,
                measures=measures,
            )
        for rule in self._rules:
            bound = bounds.bounds.get(rule.name)
            if bound is None:
                continue
            value = float(getattr(measures, rule.measure))
            if rule.breaks(value, bound):
                return QualityVerdict(
                    rule=rule.name,
                    value=value,
                    bound=bound,
                    basis=bounds.basis,
                    measures=measures,
                )
        return QualityVerdict(rule="", value=0.0, bound=0.0, basis=bounds.basis, measures=measures)


def _file(name: str) -> Path:
    if name == SHIPPED_THRESHOLDS:
        return Path(str(resources.files("stamm.corpus.quality") / FILE))
    return Path(name)
