"""Overlap of a completion with right answers: F1 of words, ROUGE-L, and BLEU of a sentence, each in [0, 1].

Checked  tests/unit/evaluate/test_text_overlap.py (against rouge_score and sacrebleu)
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from stamm.base.rouge import rouge_l

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORD = re.compile(r"[^\W_]+")
_ORDER = 4
# The tokenization 13a of mteval, by which BLEU scores are reported.
_ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
_SPLITS = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)


def word_f1(text: str, answers: Sequence[str]) -> float:
    """F1 of the words of a text and of the answer that is closest, without case, punctuation and articles.

    Source   Rajpurkar et al. 2018, SQuAD 2.0, arXiv 1806.03822: the evaluation script's F1
    """
    return max(_f1(_squad_words(text), _squad_words(answer)) for answer in answers)


def word_rouge_l(text: str, answers: Sequence[str]) -> float:
    """F1 of the longest common subsequence of words, of the answer that is closest; words have no case.

    Source   Lin 2004, ROUGE, with precision and recall weighted alike
    """
    words = _WORD.findall(text.lower())
    return max(rouge_l(words, _WORD.findall(answer.lower())) for answer in answers)


def sentence_bleu(text: str, answers: Sequence[str]) -> float:
    """BLEU of one completion, all answers being its references.

    brevity penalty * exp(mean of log precisions of 1 to 4 words); the m-th precision without a match is
    1 / (2^m words); orders longer than the text are left out. Tokenized by 13a.

    Source   Papineni et al. 2002; Chen and Cherry 2014, method 3
    """
    words, references = _bleu_words(text), [_bleu_words(answer) for answer in answers]
    logs: list[float] = []
    smoothing = 1.0
    for order in range(1, min(_ORDER, len(words)) + 1):
        counts = _ngrams(words, order)
        most: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            most |= _ngrams(reference, order)
        matches = (counts & most).total()
        if order == 1 and not matches:
            return 0.0
        if not matches:
            smoothing *= 2
        logs.append(math.log((matches or 1 / smoothing) / counts.total()))
    if not logs:
        return 0.0
    closest = min(map(len, references), key=lambda size: (abs(size - len(words)), size))
    return math.exp(min(0.0, 1 - closest / len(words)) + math.fsum(logs) / len(logs))


OVERLAPS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    "f1": word_f1,
    "rouge_l": word_rouge_l,
    "sentence_bleu": sentence_bleu,
}
"""Metrics of a completion by its overlap with the right answers."""


def _f1(words: Sequence[str], wanted: Sequence[str]) -> float:
    if not words or not wanted:
        return float(words == wanted)
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted))


def _squad_words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _bleu_words(text: str) -> list[str]:
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, sign in _ENTITIES.items():
        text = text.replace(entity, sign)
    text = f" {text} "
    for pattern, split in _SPLITS:
        text = pattern.sub(split, text)
    return text.split()


def _ngrams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[n : n + order]) for n in range(len(words) - order + 1))
