"""Fairness over languages: the mean over languages, the best and the worst one, and the Gini coefficient.

A total over all items is mostly that of the languages with the most text; these figures count every
language once.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from stamm.corpus.tokenizer.fairness import gini

LOWER_IS_BETTER = frozenset({"bits_per_byte", "loss_nats"})


def language_fairness(metric: str, values: Mapping[str, float]) -> dict[str, Any] | None:
    """`LanguageFairness` of a metric by language as JSON values; None for fewer than two languages.

    Edge     ties go to the first language by name; items without a language are not counted
    Checked  tests/unit/evaluate/test_language_fairness.py
    """
    named = {language: value for language, value in sorted(values.items()) if language}
    if len(named) < 2:
        return None
    ascending = sorted(named, key=lambda language: named[language])
    ordered = ascending if metric in LOWER_IS_BETTER else sorted(named, key=lambda n: -named[n])
    best, worst = ordered[0], ordered[-1]
    lowest, total = named[ascending[0]], sum(named.values())
    return {
        "languages": len(named),
        "mean": statistics.fmean(named.values()),
        "best": best,
        "best_value": named[best],
        "worst": worst,
        "worst_value": named[worst],
        "gini": gini(list(named.values())) if lowest >= 0 and total > 0 else None,
    }
