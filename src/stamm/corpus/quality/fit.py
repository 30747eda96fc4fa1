"""Fitting of the quality filter: bounds of each language, or of its script with too little text."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import sha256_file, write_json
from stamm.corpus.documents import UnreadableRecord
from stamm.corpus.inputs import locate
from stamm.corpus.language.codes import language_tag, script_of
from stamm.corpus.limits import ReadLimits
from stamm.corpus.quality.config import QualityFitConfig
from stamm.corpus.quality.measures import MEASURES, WordUse, measure
from stamm.corpus.quality.rules import ANY, FILE, RULES, SCHEMA, QualityRule
from stamm.corpus.quality.word_split import count_characters, split_words
from stamm.corpus.readers.open import read_input
from stamm.runs.job import Workspace

_NEED_LANGUAGE: Final = frozenset(("stop_share", "order_share"))
_FEWEST_WORDS: Final = 30
_NUMBERS: Final = tuple(name for name in MEASURES if name != "script")
# A pair is learned when it occurs this often, and this many times as often as its reverse.
_PAIR_TIMES: Final = 12
_PAIR_RATIO: Final = 5
_SCALE: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceText:
    """Clean samples of one language: whole documents, and an excerpt of each longer one.

    Bounds must hold for pages and for books: shares of repeats grow with length. So a document gives
    itself and one excerpt as samples.
    """

    language: str
    documents: int
    samples: tuple[str, ...]
    whole: tuple[str, ...]


def fit(config: QualityFitConfig, workspace: Workspace) -> None:
    """Write quality.json: bounds, stop words and word orders, with the hashes of the inputs.

    A bound is the value beyond which `tail` of a language's samples are, moved away from their
    median by `slack` of its distance to it, then limited to lie between the published bound and the
    loosest (`QualityRule.as_bound`). Languages with too few samples use the bounds of their script,
    in which every language has the same weight.
    Source   the idea of bounds by language: Penedo et al. 2025, arXiv 2506.20920 (FineWeb2), who
             move English quantiles to other languages' Wikipedia; here each language's own text
             may only loosen the published bounds.
    Raises   DataError when no language has a sample.
    Checked  tests/unit/corpus/quality/test_fit.py
    """
    references = list(collect_references(config))
    if not any(reference.samples for reference in references):
        raise DataError("no document to fit bounds on", where="inputs", fix="Name other inputs")
    workspace.progress.begin("quality bounds", len(references), "languages")
    entries: dict[str, Any] = {}
    pools: dict[str, list[NDArray[np.float64]]] = {ANY: []}
    for number, reference in enumerate(references, start=1):
        has_own_bounds = len(reference.samples) >= config.min_samples
        use = (
            learn_word_use(reference.whole, reference.language[4:], config)
            if has_own_bounds
            else WordUse()
        )
        table = _table(reference.samples, use)
        if has_own_bounds:
            entries[reference.language] = _entry(table, use, reference, config)
        for pool in (reference.language[4:], ANY):
            pools.setdefault(pool, []).append(table)
        workspace.progress.advance(number, reference.language)
    for pool, tables in pools.items():
        if pool == ANY or sum(map(len, tables)) >= config.min_samples:
            entries[pool] = _pooled(tables, config)
    write_json(
        workspace.folder / FILE,
        {
            "schema": SCHEMA,
            "config": to_plain(config),
            "inputs": {name: sha256_file(locate(name, "inputs")) for name in config.inputs},
            "bounds": dict(sorted(entries.items())),
        },
    )
    workspace.progress.end(f"{len(entries)} sets of bounds")


def collect_references(config: QualityFitConfig) -> Iterator[ReferenceText]:
    """Yield the reference samples of each language of the inputs, by tag."""
    texts_by_language: dict[str, dict[str, str]] = {}
    for name in config.inputs:
        for record in read_input(name, locate(name, "inputs"), ReadLimits()):
            if isinstance(record, UnreadableRecord):
                continue
            text = record.content.decode()
            if language := language_tag(record.language, text):
                texts_by_language.setdefault(language, {})[record.content_id] = text
    for language in sorted(texts_by_language):
        documents = texts_by_language[language]
        chosen = [documents[identity] for identity in sorted(documents)][: config.max_samples]
        pieces = [_piece(text, config.piece) for text in chosen if len(text) > 2 * config.piece]
        yield ReferenceText(
            language=language,
            documents=len(documents),
            samples=tuple([*chosen, *pieces][: config.max_samples]),
            whole=tuple(chosen),
        )


def learn_word_use(texts: Iterable[str], script: str, config: QualityFitConfig) -> WordUse:
    """The most frequent words of texts, and the pairs of them with one usual order.

    Edge   a word counts at most 20 times a document, so that no document dominates, and only if it
           begins with a letter of the language's script: code and names in a manual are not its
           language.
    """
    counts: Counter[str] = Counter()
    scripts = (script, "Hani") if script in ("Jpan", "Kore") else (script,)
    split = [_lower_words(text) for text in texts]
    for words in split:
        for word, count in Counter(words).items():
            if script_of(word[0]) in scripts:
                counts[word] += min(count, 20)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    stop_words = tuple(word for word, _ in ranked[: config.stop_words])
    stop_word_ranks = {word: index for index, word in enumerate(stop_words)}
    pairs: Counter[tuple[int, int]] = Counter()
    for words in split:
        ranks = [stop_word_ranks.get(word, -1) for word in words]
        pairs.update((a, b) for a, b in itertools.pairwise(ranks) if min(a, b) >= 0)
    kept = [
        (count, pair)
        for pair, count in pairs.items()
        if count >= _PAIR_TIMES and count >= _PAIR_RATIO * pairs[pair[1], pair[0]]
    ]
    kept.sort(key=lambda item: (-item[0], item[1]))
    return WordUse(stop_words=stop_words, orders=tuple(pair for _, pair in kept[: config.orders]))


def _lower_words(text: str) -> list[str]:
    return split_words(text.lower(), count_characters(text.lower()))


def _piece(text: str, size: int) -> str:
    """An excerpt of a long text, cut at line ends; its position depends on the hash of the text."""
    at = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % (len(text) - size)
    piece = text[at : at + size]
    first, last = piece.find("\n"), piece.rfind("\n")
    return piece[first + 1 : last] if 0 <= first < last - size // 2 else piece


def _table(samples: Sequence[str], use: WordUse) -> NDArray[np.float64]:
    """A row of measures for each sample with enough words."""
    rows = [measure(sample, use) for sample in samples]
    return np.array(
        [[getattr(row, name) for name in _NUMBERS] for row in rows if row.words >= _FEWEST_WORDS],
        np.float64,
    ).reshape(-1, len(_NUMBERS))


def _entry(
    table: NDArray[np.float64], use: WordUse, reference: ReferenceText, config: QualityFitConfig
) -> dict[str, Any]:
    weights = np.full(len(table), 1.0)
    return {
        "documents": reference.documents,
        "samples": len(table),
        "bounds": _bounds(table, weights, bool(use.stop_words), config),
        "stop_words": list(use.stop_words),
        "orders": [list(pair) for pair in use.orders],
    }


def _pooled(tables: list[NDArray[np.float64]], config: QualityFitConfig) -> dict[str, Any]:
    full = [table for table in tables if len(table)] or [np.empty((0, len(_NUMBERS)))]
    weights = np.concatenate([np.full(len(table), 1 / max(1, len(table))) for table in full])
    table = np.concatenate(full)
    return {
        "documents": 0,
        "samples": len(table),
        "bounds": _bounds(table, weights, False, config),
        "stop_words": [],
        "orders": [],
    }


def _bounds(
    table: NDArray[np.float64],
    weights: NDArray[np.float64],
    has_language: bool,
    config: QualityFitConfig,
) -> dict[str, float]:
    bounds = {}
    for rule in RULES:
        if rule.measure in _NEED_LANGUAGE and not has_language:
            continue
        fitted = _fitted(table[:, _NUMBERS.index(rule.measure)], weights, rule, config)
        # Rounded outwards: the reference itself must pass.
        outwards = math.ceil if rule.is_high else math.floor
        bounds[rule.name] = outwards(rule.as_bound(fitted) * _SCALE) / _SCALE
    return bounds


def _fitted(
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    rule: QualityRule,
    config: QualityFitConfig,
) -> float:
    edge = _quantile(values, weights, 1 - config.tail if rule.is_high else config.tail)
    return edge + config.slack * (edge - _quantile(values, weights, 0.5))


def _quantile(values: NDArray[np.float64], weights: NDArray[np.float64], at: float) -> float:
    """The weighted quantile: the least value with a share `at` of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, at * below[-1] * (1 - 1e-12))])
