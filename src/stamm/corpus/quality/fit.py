"""Fits the bounds: each language's own where it has enough text, its script's where not."""

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
from stamm.corpus.config import ReadLimits
from stamm.corpus.inputs import locate
from stamm.corpus.language.codes import UNDETERMINED
from stamm.corpus.language.scripts import script_of
from stamm.corpus.quality.bounds import RULES, QualityRule
from stamm.corpus.quality.config import QualityFitConfig
from stamm.corpus.quality.measures import MEASURES, WordUse, measure
from stamm.corpus.quality.thresholds import ANY, FILE, SCHEMA
from stamm.corpus.quality.words import count_characters, split_words
from stamm.corpus.readers.open import read_input
from stamm.corpus.records import Unread
from stamm.runs.job import Workspace

_OF_A_LANGUAGE: Final = frozenset(("stop_share", "order_share"))
_FEWEST_WORDS: Final = 30
_NUMBERS: Final = tuple(name for name in MEASURES if name != "script")
# A pair is learned when it stands so often, and so many times as often as the other way round.
_PAIR_TIMES: Final = 12
_PAIR_RATIO: Final = 5
_SCALE: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceText:
    """Clean samples of one language: whole documents, and a piece of each longer one.

    Bounds must hold for a page and for a book: shares of repeats grow with length. So a document
    speaks as a whole and with one piece.
    """

    language: str
    documents: int
    samples: tuple[str, ...]
    whole: tuple[str, ...]


def fit(config: QualityFitConfig, workspace: Workspace) -> None:
    """Write quality.json: bounds, stop words and word orders, with what they were learned from.

    A bound is the value beyond which `tail` of a language's samples lie, moved away from their
    median by `slack` of its distance to it, then settled between the published bound and the
    loosest (`bounds.Rule.settle`). Languages with too few samples are judged by their script's,
    in which every language has the same weight.
    Source   the idea of bounds by language: Penedo et al. 2025, arXiv 2506.20920 (FineWeb2), who
             move English quantiles to other languages' Wikipedia; here each language's own text
             may only loosen what was published.
    Raises   DataError when no language has a sample.
    Checked  tests/unit/corpus/quality/test_fit.py
    """
    references = list(gather(config))
    if not any(reference.samples for reference in references):
        raise DataError("no document to fit bounds on", where="inputs", fix="Name other inputs")
    workspace.progress.begin("quality bounds", len(references), "languages")
    entries: dict[str, Any] = {}
    pools: dict[str, list[NDArray[np.float64]]] = {ANY: []}
    for number, reference in enumerate(references, start=1):
        own = len(reference.samples) >= config.fewest_samples
        use = learn_use(reference.whole, reference.language[4:], config) if own else WordUse()
        table = _table(reference.samples, use)
        if own:
            entries[reference.language] = _entry(table, use, reference, config)
        for pool in (reference.language[4:], ANY):
            pools.setdefault(pool, []).append(table)
        workspace.progress.advance(number, reference.language)
    for pool, tables in pools.items():
        if pool == ANY or sum(map(len, tables)) >= config.fewest_samples:
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


def gather(config: QualityFitConfig) -> Iterator[ReferenceText]:
    """The reference samples of each language of the inputs, by tag."""
    found: dict[str, dict[str, str]] = {}
    for name in config.inputs:
        for record in read_input(name, locate(name, "inputs"), ReadLimits()):
            if isinstance(record, Unread) or record.language[:3] in ("", UNDETERMINED):
                continue
            found.setdefault(record.language, {})[record.content_id] = record.content.decode()
    for language in sorted(found):
        documents = found[language]
        chosen = [documents[identity] for identity in sorted(documents)][: config.samples_of_one]
        pieces = [_piece(text, config.piece) for text in chosen if len(text) > 2 * config.piece]
        yield ReferenceText(
            language=language,
            documents=len(documents),
            samples=tuple([*chosen, *pieces][: config.samples_of_one]),
            whole=tuple(chosen),
        )


def learn_use(texts: Iterable[str], script: str, config: QualityFitConfig) -> WordUse:
    """The most frequent words of texts, and pairs of them that keep one order.

    Edge   a word counts at most 20 times a document, so that no document sets the list, and only
           words that begin with a letter of the language's script are taken: code and names in
           a manual are not its language.
    """
    counts: Counter[str] = Counter()
    own = (script, "Hani") if script in ("Jpan", "Kore") else (script,)
    split = [_lower_words(text) for text in texts]
    for words in split:
        for word, count in Counter(words).items():
            if script_of(word[0]) in own:
                counts[word] += min(count, 20)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    stop_words = tuple(word for word, _ in ranked[: config.stop_words])
    places = {word: place for place, word in enumerate(stop_words)}
    pairs: Counter[tuple[int, int]] = Counter()
    for words in split:
        seats = [places.get(word, -1) for word in words]
        pairs.update((a, b) for a, b in itertools.pairwise(seats) if min(a, b) >= 0)
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
    """A piece of a long text: the place is a matter of its hash, the ends are ends of lines."""
    at = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % (len(text) - size)
    piece = text[at : at + size]
    first, last = piece.find("\n"), piece.rfind("\n")
    return piece[first + 1 : last] if 0 <= first < last - size // 2 else piece


def _table(samples: Sequence[str], use: WordUse) -> NDArray[np.float64]:
    """A row of measures for each sample that has words enough to be judged."""
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
    of_a_language: bool,
    config: QualityFitConfig,
) -> dict[str, float]:
    bounds = {}
    for rule in RULES:
        if rule.measure in _OF_A_LANGUAGE and not of_a_language:
            continue
        fitted = _fitted(table[:, _NUMBERS.index(rule.measure)], weights, rule, config)
        # Rounded outwards: the reference itself must stay.
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
