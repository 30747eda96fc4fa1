"""Quality measures of a document, in one pass over its characters, words and lines."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stamm.corpus.language.codes import count_scripts, main_script
from stamm.corpus.quality.word_split import WITHOUT_BLANKS, count_characters, split_words

TOP_GRAMS: Final = (2, 3, 4)
REPEATED_GRAMS: Final = (5, 6, 7, 8, 9, 10)

_U = np.uint64
# The finalizer of splitmix64 (Steele et al. 2014) turns small numbers into well-mixed ones.
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_FACTOR = _U(0x9E3779B97F4A7C15)


def repeated_share(pieces: Sequence[str]) -> tuple[float, float]:
    """Share of repeated pieces, and share of all characters in such pieces.

    Edge   (0, 0) for no pieces.
    """
    letters = sum(map(len, pieces))
    if not letters:
        return 0.0, 0.0
    distinct = set(pieces)
    return 1 - len(distinct) / len(pieces), 1 - sum(map(len, distinct)) / letters


def gram_shares(
    numbers: NDArray[np.int64], letters: NDArray[np.int64], width: int
) -> dict[str, float]:
    """Shares of the characters of all words in repeated n-grams of words.

    top_n       the n-gram with most characters over all its occurrences, if it occurs twice or more
                (n = 2, 3, 4)
    repeated_n  repeated n-grams, each character counted once (n = 5 to 10)

    numbers  of the words in their order: equal words, equal numbers, from 0
    letters  characters of each word
    width    words that count as one: 2 where a word is a single letter

    Edge     blanks and punctuation do not count. The first of several equal n-grams is not a
             repetition.
    Source   Rae et al. 2021, arXiv 2112.11446, section A.1.1. They name the most frequent run;
             of equally frequent ones this is the one with most characters.
    Checked  tests/unit/corpus/quality/test_repetition.py
    """
    count, all_letters = len(numbers), int(letters.sum())
    shares = dict.fromkeys(
        [f"top_{n}" for n in TOP_GRAMS] + [f"repeated_{n}" for n in REPEATED_GRAMS], 0.0
    )
    ends = np.concatenate(([0], np.cumsum(letters)))
    hashes = mixed = _mixed(numbers.astype(np.uint64))
    starts = np.arange(count)
    for run in range(2, REPEATED_GRAMS[-1] * width + 1):
        # A run can only repeat where the run that is one word shorter repeats.
        starts = starts[starts <= count - run]
        if not len(starts):
            break
        hashes = hashes[: count - run + 1] * _FACTOR + mixed[run - 1 :]
        starts, later_starts, groups = _repeated(hashes, starts)
        n, rest = divmod(run, width)
        if not rest and len(starts) and n in TOP_GRAMS:
            shares[f"top_{n}"] = _top(starts, groups, ends, run) / all_letters
        elif not rest and n in REPEATED_GRAMS:
            shares[f"repeated_{n}"] = _covered(later_starts, letters, run) / all_letters
    return shares


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    numbers = (numbers + _U(1)) * _FACTOR
    for shift, factor in _MIX:
        numbers = (numbers ^ (numbers >> _U(shift))) * _U(factor)
    return numbers ^ (numbers >> _U(31))


def _repeated(
    hashes: NDArray[np.uint64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The starts whose hash repeats, those of them after the first, and the index at which each
    group of equal hashes begins in the former.

    A group is in ascending order: the sort is stable, and equal runs of n words were in one
    ascending group of equal runs of n - 1.
    """
    order = np.argsort(hashes[starts], kind="stable")
    ordered, placed = hashes[starts][order], starts[order]
    repeats = np.concatenate(([False], ordered[1:] == ordered[:-1]))
    shared = repeats | np.concatenate((repeats[1:], [False]))
    return placed[shared], placed[repeats], np.flatnonzero(~repeats[shared])


def _top(
    starts: NDArray[np.int64], groups: NDArray[np.int64], ends: NDArray[np.int64], run: int
) -> float:
    sizes = np.diff(np.append(groups, len(starts)))
    lengths = ends[starts[groups] + run] - ends[starts[groups]]
    most = sizes == sizes.max()
    # Overlapping runs ("ha ha ha") would count characters twice.
    return min(float((sizes * lengths)[most].max()), float(ends[-1]))


def _covered(again: NDArray[np.int64], letters: NDArray[np.int64], run: int) -> int:
    edges = np.zeros(len(letters) + 1, np.int64)
    np.add.at(edges, again, 1)
    np.add.at(edges, again + run, -1)
    return int(letters[np.cumsum(edges[:-1]) > 0].sum())


BULLETS: Final = tuple("-*+•◦‣▪●○■□–—·➢►✓・")
ELLIPSES: Final = ("...", "…")
# What ends a sentence, and the quotation marks and brackets that may follow it.
SENTENCE_ENDS: Final = tuple(".!?…。！？．｡؟۔।॥॰։՞՜።፧፨။៕។་།༎༑܀܁܂᙮᠃᠉჻⸮꓿꘎꛳\"'”’»›」』)）]")
_SHORT_LINE = 30
_LOREM = "lorem ipsum"
_PRIOR_PAIRS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityMeasures:
    """Measures that the quality rules bound. Shares are in [0, 1]; a share of nothing is 0.

    Words are those of `word_split.split_words`; blank lines do not count.
    script                 of most letters (ISO 15924), "" without letters
    words                  number of words
    mean_word_letters      mean number of characters of a word
    worded_share           words with at least one letter
    letter_share           letters and marks among non-blank characters
    digit_share            digits among them
    symbol_rate            signs "#" and ellipses for each word
    brace_share            curly braces among non-blank characters
    bullet_line_share      lines that begin with a bullet
    ellipsis_line_share    lines that end with an ellipsis
    ended_line_share       lines that end as sentences do
    short_line_share       lines of at most 30 characters
    line_rate              lines for each word
    duplicate_line_share, duplicate_line_letters
                           repeated lines, and characters in such lines
    duplicate_paragraph_share, duplicate_paragraph_letters
                           the same for paragraphs (between empty lines)
    top_2 to top_4         characters in the most frequent run of n words
    repeated_5 to repeated_10
                           characters in repeated runs of n words
    stop_share             words that are stop words of the language
    order_share            share in the usual order among neighbours that are a learned pair of
                           frequent words; four pairs are added as a prior, so that few pairs
                           decide nothing
    word_entropy           of the counts of words, in nats: 2 for eight words in equal parts
    lorem_ipsum            whether the text contains lorem ipsum (1 or 0)
    """

    script: str
    words: int
    mean_word_letters: float
    worded_share: float
    letter_share: float
    digit_share: float
    symbol_rate: float
    brace_share: float
    bullet_line_share: float
    ellipsis_line_share: float
    ended_line_share: float
    short_line_share: float
    line_rate: float
    duplicate_line_share: float
    duplicate_line_letters: float
    duplicate_paragraph_share: float
    duplicate_paragraph_letters: float
    top_2: float
    top_3: float
    top_4: float
    repeated_5: float
    repeated_6: float
    repeated_7: float
    repeated_8: float
    repeated_9: float
    repeated_10: float
    stop_share: float
    order_share: float
    word_entropy: float
    lorem_ipsum: int


MEASURES: Final = tuple(field.name for field in fields(QualityMeasures))


@dataclass(frozen=True, slots=True, kw_only=True)
class WordUse:
    """The most frequent words of a language and their usual order, learned from clean text.

    stop_words   the most frequent words, in lower case
    orders       pairs of indices of `stop_words` that occur in this order far more often
                 than in the reverse ("of the")
    """

    stop_words: tuple[str, ...] = ()
    orders: tuple[tuple[int, int], ...] = ()


def measure(text: str, use: WordUse) -> QualityMeasures:
    """All measures of a text. Time grows with its length, for n-grams as n log n.

    Source   Rae et al. 2021 (arXiv 2112.11446, A.1.1: words, symbols, bullets, ellipses, stop
             words, repetition), Raffel et al. 2020 (JMLR 21:140, 2.2: ends of lines, braces, lorem
             ipsum), Penedo et al. 2024 (arXiv 2406.17557, 3.6: ended, short and repeated lines).
             Entropy of words: Weber et al. 2024 (RedPajama-V2, arXiv 2411.12372). The order of
             frequent words is ours: shuffled text keeps every other measure.
    Checked  tests/unit/corpus/quality/test_measures.py
    """
    characters = count_characters(text)
    script, _ = main_script(count_scripts(characters))
    words = split_words(text, characters)
    distinct = Counter(words)
    numbers = {word: number for number, word in enumerate(distinct)}
    word_numbers = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
    letters = np.fromiter(map(len, distinct), np.int64, len(distinct))[word_numbers]
    lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
    paragraphs = [stripped for part in text.split("\n\n") if (stripped := part.strip())]
    line_share, line_letters = repeated_share(lines)
    paragraph_share, paragraph_letters = repeated_share(paragraphs)
    stops, pairs, ordered = _uses(distinct, word_numbers, use)
    return QualityMeasures(
        script=script,
        words=len(words),
        mean_word_letters=_ratio(int(letters.sum()), len(words)),
        worded_share=_ratio(_worded(distinct), len(words)),
        **_character_shares(characters),
        symbol_rate=_ratio(_symbols(text, characters), len(words)),
        **_line_shares(lines),
        line_rate=_ratio(len(lines), len(words)),
        duplicate_line_share=line_share,
        duplicate_line_letters=line_letters,
        duplicate_paragraph_share=paragraph_share,
        duplicate_paragraph_letters=paragraph_letters,
        **gram_shares(word_numbers, letters, 2 if script in WITHOUT_BLANKS else 1),
        stop_share=_ratio(stops, len(words)),
        order_share=_ratio(ordered + _PRIOR_PAIRS, pairs + _PRIOR_PAIRS),
        word_entropy=_entropy(word_numbers),
        lorem_ipsum=int(_LOREM in text.lower()),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _entropy(word_numbers: NDArray[np.int64]) -> float:
    counts = np.bincount(word_numbers)
    shares = counts / max(1, len(word_numbers))
    return max(0.0, -float((shares * np.log(shares)).sum()))


def _worded(distinct: Mapping[str, int]) -> int:
    # For a word of letters and marks only, the first character decides.
    return sum(
        count
        for word, count in distinct.items()
        if word[0].isalpha() or any(map(str.isalpha, word))
    )


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    return "" if character.isspace() else unicodedata.category(character)[0]


def _character_shares(characters: Mapping[str, int]) -> dict[str, float]:
    kinds: dict[str, int] = {}
    for character, count in characters.items():
        kind = _kind(character)
        kinds[kind] = kinds.get(kind, 0) + count
    visible = sum(count for kind, count in kinds.items() if kind)
    braces = characters.get("{", 0) + characters.get("}", 0)
    return {
        "letter_share": _ratio(kinds.get("L", 0) + kinds.get("M", 0), visible),
        "digit_share": _ratio(kinds.get("N", 0), visible),
        "brace_share": _ratio(braces, visible),
    }


def _symbols(text: str, characters: Mapping[str, int]) -> int:
    ellipses = text.count("...") if characters.get(".", 0) > 2 else 0
    return characters.get("#", 0) + characters.get("…", 0) + ellipses


def _line_shares(lines: Sequence[str]) -> dict[str, float]:
    count = len(lines)
    return {
        "bullet_line_share": _ratio(sum(line.startswith(BULLETS) for line in lines), count),
        "ellipsis_line_share": _ratio(sum(line.endswith(ELLIPSES) for line in lines), count),
        "ended_line_share": _ratio(sum(line.endswith(SENTENCE_ENDS) for line in lines), count),
        "short_line_share": _ratio(sum(len(line) <= _SHORT_LINE for line in lines), count),
    }


def _uses(
    distinct: Iterable[str], word_numbers: NDArray[np.int64], use: WordUse
) -> tuple[int, int, int]:
    """Counts of stop words, of neighbours in `use.orders` in either order, and of those in order."""
    size = len(use.stop_words)
    if not size:
        return 0, 0, 0
    known = {word: index for index, word in enumerate(use.stop_words)}
    index_of_word = np.array([known.get(word.lower(), -1) for word in distinct] or [-1], np.int64)
    stop_word_indexes = index_of_word[word_numbers]
    is_stop = stop_word_indexes >= 0
    are_stop_words = is_stop[:-1] & is_stop[1:]
    neighbours = np.bincount(
        (stop_word_indexes[:-1] * size + stop_word_indexes[1:])[are_stop_words],
        minlength=size * size,
    )
    neighbours = neighbours.reshape(size, size)
    first, second = np.array(use.orders, np.int64).reshape(-1, 2).T
    usual, unusual = int(neighbours[first, second].sum()), int(neighbours[second, first].sum())
    return int(is_stop.sum()), usual + unusual, usual
