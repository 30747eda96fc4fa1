"""Quality rules with their bounds by language: the verdict is the first rule that a document breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from stamm.base.config import nearest
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_file
from stamm.corpus.quality.config import SHIPPED_THRESHOLDS, QualityConfig
from stamm.corpus.quality.measures import QualityMeasures, WordUse, measure
from stamm.corpus.quality.word_split import WITHOUT_BLANKS

SCHEMA: Final = 1
FILE: Final = "quality.json"
ANY: Final = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityBounds:
    """The bounds for one document.

    basis    texts they were fitted on: of a language ("deu_Latn"), of a script ("Latn") or "any"
    bounds   a bound for each rule that applies on this basis
    use      frequent words of the language; empty for a script: its rules are not applied
    """

    basis: str
    bounds: Mapping[str, float]
    use: WordUse


class QualityThresholds:
    """Bounds for every language, from a file that `fit` wrote.

    Raises   DataError when the file is missing or invalid.
    Checked  tests/unit/corpus/quality/test_thresholds.py
    """

    def __init__(self, path: Path) -> None:
        plain = read_json(path)
        try:
            if plain["schema"] != SCHEMA:
                raise ValueError(f"its schema is {plain['schema']}, not {SCHEMA}")
            self._bounds = {name: _bounds(name, entry) for name, entry in plain["bounds"].items()}
            self._bounds[ANY]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path} is not a file of quality bounds: {type(error).__name__} {error}",
                fix="Run the fit again",
            ) from None
        self.sha256 = sha256_file(path)

    def for_language(self, language: str) -> QualityBounds | None:
        """The bounds of a language, or None."""
        return self._bounds.get(language)

    def for_script(self, script: str) -> QualityBounds:
        """The bounds of a script; those of all texts when it has none."""
        return self._bounds.get(script, self._bounds[ANY])


def _bounds(name: str, entry: Mapping[str, Any]) -> QualityBounds:
    bounds = {rule: float(bound) for rule, bound in entry["bounds"].items()}
    unknown = bounds.keys() - {rule.name for rule in RULES}
    if unknown:
        raise ValueError(f"unknown rules {sorted(unknown)}")
    words = tuple(str(word) for word in entry["stop_words"])
    orders = tuple((int(first), int(second)) for first, second in entry["orders"])
    if any(not 0 <= index < len(words) for pair in orders for index in pair):
        raise ValueError("an order names no stop word")
    return QualityBounds(basis=name, bounds=bounds, use=WordUse(stop_words=words, orders=orders))


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


# In the order of checks; the first broken rule is reported.
# Published: Gopher (Rae et al. 2021, arXiv 2112.11446, A.1.1 and table A1), C4 (Raffel et al.
# 2020: any brace, any lorem ipsum), FineWeb (Penedo et al. 2024, arXiv 2406.17557, 3.6). That of
# order_share is ours: shuffled text scores one half, natural text nearly one.
RULES: Final = tuple(
    QualityRule(**rule) for rule in read_json(Path(__file__).with_name("rules.json"))
)
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
        """The verdict on a text in `language`; without bounds of its own those of its script apply.

        Checked  tests/unit/corpus/quality/test_rules.py
        """
        language_bounds = self.thresholds.for_language(language)
        measures = measure(text, language_bounds.use if language_bounds else WordUse())
        return self.verdict(
            measures, language_bounds or self.thresholds.for_script(measures.script)
        )

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
