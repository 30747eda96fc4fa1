"""Tokenizer fairness: fertility and compression of each language, and their inequality.

Tokens per line of a parallel text measure the cost of the same content; their Gini coefficient over
languages is 0 for equal costs. Bytes per token measure compression, tokens per word ("fertility")
how many pieces words are split into, and the share of ids that occur the use of the vocabulary.

Source   the four measures by which Apertus' tokenizer was chosen (Apertus report, tokenizer)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Scripts without blanks between words: splitting at blanks would count clauses.
_NO_BLANKS = ("Hans", "Hant", "Hani", "Jpan", "Thai", "Laoo", "Khmr", "Mymr", "Tibt", "Bopo")


class TextEncoder(Protocol):
    """A tokenizer to evaluate: `Tokenizer`, or one with the same methods."""

    @property
    def size(self) -> int:
        """The vocabulary size."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <s> and </s>."""
        ...


class TokenCounts:
    """Counts of tokens, bytes, characters and words of the texts of one language."""

    def __init__(self, size: int) -> None:
        self.documents = self.bytes = self.characters = self.words = self.tokens = 0
        self.used: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)

    def add(self, text: str, ids: Sequence[int]) -> None:
        """Count a text and its ids."""
        self.documents += 1
        self.bytes += len(text.encode())
        self.characters += len(text)
        self.words += len(text.split())
        self.tokens += len(ids)
        self.used[np.array(ids, dtype=np.int64)] = True

    def as_dict(self, language: str | None) -> dict[str, Any]:
        """The rates as JSON values; None where they are not defined.

        language   code with script; None for several languages together, without fertility
        """
        blanks = language is not None and not language.endswith(_NO_BLANKS)
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "tokens": self.tokens,
            "bytes_per_token": _rate(self.bytes, self.tokens),
            "tokens_per_character": _rate(self.tokens, self.characters),
            "tokens_per_word": _rate(self.tokens, self.words) if blanks else None,
            "vocabulary_used": _rate(int(self.used.sum()), len(self.used)),
        }


def count_tokens(encoder: TextEncoder, texts: Iterable[tuple[str, str]]) -> dict[str, TokenCounts]:
    """Count tokens by language.

    texts   pairs of language and text
    """
    costs: dict[str, TokenCounts] = {}
    for language, text in texts:
        cost = costs.setdefault(language, TokenCounts(encoder.size))
        cost.add(text, encoder.encode(text))
    return costs


def merge_counts(found: Mapping[str, TokenCounts], size: int) -> TokenCounts:
    """The counts of all languages together."""
    whole = TokenCounts(size)
    for cost in found.values():
        for name in ("documents", "bytes", "characters", "words", "tokens"):
            setattr(whole, name, getattr(whole, name) + getattr(cost, name))
        whole.used |= cost.used
    return whole


def fairness(encoder: TextEncoder, lines: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Token counts of a parallel text as JSON values, by language, with their Gini coefficient.

    lines   translations of the same lines in each language
    """
    texts = ((language, line) for language, translation in lines.items() for line in translation)
    counts = count_tokens(encoder, texts)
    languages = {
        name: {"tokens_per_line": _rate(cost.tokens, cost.documents), **cost.as_dict(name)}
        for name, cost in sorted(counts.items())
    }
    whole = merge_counts(counts, encoder.size)
    return {
        "lines": len(next(iter(lines.values()), ())),
        "gini": round(gini([cost.tokens / cost.documents for cost in counts.values()]), 4),
        "bytes_per_token": _rate(whole.bytes, whole.tokens),
        "vocabulary_used": _rate(int(whole.used.sum()), encoder.size),
        "languages": languages,
    }


def compare(
    encoders: Mapping[str, TextEncoder], lines: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """`fairness` of several tokenizers on the same parallel text, by name."""
    return {name: fairness(encoder, lines) for name, encoder in encoders.items()}


def gini(values: Sequence[float]) -> float:
    """Gini coefficient: from 0 for equal values to almost 1 when one has all.

    G = sum over i, j of |x_i - x_j| / (2 n^2 mean(x)), computed from the sorted values

    Edge     0 for no value, one value, or all zero.
    Source   Gini 1912; in this use the Apertus report
    Checked  tests/unit/corpus/tokenizer/test_fairness.py
    """
    ordered = sorted(values)
    number, total = len(ordered), sum(ordered)
    if total == 0:
        return 0.0
    ranked = sum((2 * i - number + 1) * value for i, value in enumerate(ordered))
    return ranked / (number * total)


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
