"""Decontamination index: texts of evaluation sets are found by n-grams, then by verified overlap.

Built once, stored in a folder with the hash of each file, and memory-mapped by every worker.
Documents and items are compared as hashes of words (`dedup.shingles`), so case, punctuation, line
breaks and invisible characters do not matter, and the index contains no text.

Source   Runs of words: Brown et al. 2020 (arXiv 2005.14165), appendix C, with 13. Runs of 8, then
         overlap in blocks of 5 words and half of the item: the decontamination of Apertus'
         posttraining data. It compares with difflib, in quadratic time; misses each item's last
         run, and items no longer than one run. Here blocks count at any place in the window, in
         linear time. Apertus' pretraining data were not decontaminated.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from unicodedata import category, east_asian_width

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.base.files import read_json, sha256_bytes, sha256_file, write_bytes, write_json
from stamm.base.hashing import GOLDEN, mix64
from stamm.base.schema import write_record
from stamm.corpus.contamination.config import ContaminationConfig
from stamm.corpus.contamination.items import Item
from stamm.corpus.dedup.shingles import (
    Hashes,
    WordHashes,
    hash_shingles,
    hash_words,
    normalize_text,
)
from stamm.corpus.records import CoverageFile, SetCoverage

SCHEMA = 2
INDEX = "index.json"
COVERAGE = "coverage.json"
# A run of words in more passages than this is a template; the first ones stand for all.
PASSAGES_PER_RUN = 8
# A passage is verified in at most so many places of a document.
PLACES_PER_PASSAGE = 64
_SHOWN_HITS = 3
_AT_ONCE = 1 << 16  # runs looked up together: memory does not grow with the document
_SETTINGS = tuple(f.name for f in fields(ContaminationConfig) if f.name != "sets")

Places = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One item of an evaluation set found in a document.

    overlap    share of the passage's words found, 1 for all
    words      words in that passage of the item
    position   words of the document before the first run found
    """

    set_name: str
    item_id: str
    overlap: float
    words: int
    position: int


@dataclass(frozen=True, kw_only=True)
class _Arrays:
    """The index as stored.

    keys       sorted numbers of runs of words
    first      where the entries of each key begin, one more than keys
    passages   the passage of each entry
    places     where in that passage the run begins
    words      all passages, one after another
    begins     where each passage begins in `words`, one more than passages
    letters    how many each passage has, a wide one counted for three
    items      the item of each passage
    """

    keys: Hashes
    first: NDArray[np.uint32]
    passages: NDArray[np.uint32]
    places: NDArray[np.uint32]
    words: Hashes
    begins: NDArray[np.uint64]
    letters: NDArray[np.uint32]
    items: NDArray[np.uint32]


class Index:
    """All evaluation texts looked for. Make it with `build_index` or `load_index`."""

    def __init__(
        self,
        settings: dict[str, Any],
        names: list[tuple[str, str]],
        coverage: dict[str, SetCoverage],
        arrays: _Arrays,
    ) -> None:
        self.coverage = coverage
        self._settings = settings
        self._names = names
        self._arrays = arrays
        self._gram: int = settings["gram_words"]
        sizes = np.diff(arrays.begins)
        self._short_lengths = np.unique(sizes[sizes < self._gram]).tolist()
        # A lookup in a table of 16 or more slots per key avoids the search for nearly every run.
        bits = min(26, max(16, (16 * len(arrays.keys)).bit_length()))
        self._shift = np.uint64(64 - bits)
        self._known = np.zeros(1 << bits, np.bool_)
        self._known[(arrays.keys >> self._shift).astype(np.int64)] = True

    def hits(self, words: WordHashes) -> tuple[Hit, ...]:
        """The items found in a document, each once, largest overlap first, at most `most_hits`.

        Edge     time is linear in the document, and does not grow with the index but for a search
                 for each run found. A passage is verified in the 64 places where most of its runs
                 agree; `position` is that of the first one with enough of it.
        Checked  tests/unit/corpus/contamination/test_index.py
        """
        best: dict[int, Hit] = {}
        for passage, overlap, position in [*self._whole(words), *self._overlapping(words)]:
            number = int(self._arrays.items[passage])
            name, item_id = self._names[number]
            hit = Hit(
                set_name=name,
                item_id=item_id,
                overlap=overlap,
                words=self._size(passage),
                position=position,
            )
            known = best.get(number)
            if known is None or (hit.overlap, hit.words) > (known.overlap, known.words):
                best[number] = hit
        ranked = sorted(best, key=lambda number: (-best[number].overlap, number))
        return tuple(best[number] for number in ranked[: self._settings["most_hits"]])

    def save(self, folder: Path) -> str:
        """Write the index into `folder`; the hash that names it. `index.json` is written last.

        coverage.json has the numbers of texts of each set that are looked for, and that are not.
        """
        files = {}
        for name, array in vars(self._arrays).items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            write_bytes(folder / f"{name}.npy", buffer.getvalue())
            files[f"{name}.npy"] = sha256_bytes(buffer.getvalue())
        coverage = {name: asdict(set_coverage) for name, set_coverage in self.coverage.items()}
        write_record(folder / COVERAGE, CoverageFile, {**self._settings, "sets": coverage})
        stored = {
            "schema": SCHEMA,
            **self._settings,
            "coverage": coverage,
            "files": files,
            "items": self._names,
        }
        write_json(folder / INDEX, stored)
        return sha256_file(folder / INDEX)

    def gaps(self) -> tuple[str, ...]:
        """A sentence for each set with items of which no text is looked for."""
        return tuple(
            f"evaluation set {name!r}: {set_coverage.blind:,} of {set_coverage.items:,} items cannot be found, "
            "because all their texts are too short"
            for name, set_coverage in self.coverage.items()
            if set_coverage.blind
        )

    def _size(self, passage: int) -> int:
        return int(self._arrays.begins[passage + 1] - self._arrays.begins[passage])

    def _find(self, runs: Hashes) -> tuple[Places, Places]:
        """Positions of the `runs` that have entries, and their keys."""
        likely = np.flatnonzero(self._known[(runs >> self._shift).astype(np.int64)])
        if not len(likely):  # always so when the index is empty
            return likely, likely
        keys = np.searchsorted(self._arrays.keys, runs[likely])
        keys = np.minimum(keys, len(self._arrays.keys) - 1)
        known = self._arrays.keys[keys] == runs[likely]
        return likely[known], keys[known]

    def _entries(self, key: int) -> range:
        return range(int(self._arrays.first[key]), int(self._arrays.first[key + 1]))

    def _whole(self, words: WordHashes) -> Iterator[tuple[int, float, int]]:
        """Short passages that occur as a whole: passage, 1, position."""
        runs = np.zeros(len(words.hashes), np.uint64)
        done = 0
        for length in self._short_lengths:
            with np.errstate(over="ignore"):
                while done < length:
                    runs = runs[: max(len(words.hashes) - done, 0)]
                    runs = runs * GOLDEN + words.hashes[done:]
                    done += 1
            alone = np.flatnonzero(words.edges[: len(runs)] & words.edges[length:])
            at, keys = self._find(mix64(runs[alone]))
            keys, once = np.unique(keys, return_index=True)
            for position, key in zip(alone[at[once]].tolist(), keys.tolist(), strict=True):
                for entry in self._entries(key):
                    passage = int(self._arrays.passages[entry])
                    if self._size(passage) == length:
                        yield passage, 1.0, position

    def _overlapping(self, words: WordHashes) -> Iterator[tuple[int, float, int]]:
        """Passages with enough overlap in one window: passage, overlap, position."""
        at, keys = self._find(hash_shingles(words.hashes, self._gram))
        if not len(at):
            return
        starts = self._starts(at, keys)
        blocks = hash_shingles(words.hashes, self._settings["block_words"])
        for passage in sorted(starts):
            overlap_and_position = self._verify(passage, starts[passage], blocks)
            if overlap_and_position is not None:
                yield passage, *overlap_and_position

    def _starts(self, at: Places, keys: Places) -> dict[int, list[tuple[int, int]]]:
        """Candidate starts of each passage in a document: position of its first run there, and start.

        Of many places those with most agreeing runs count: a repeated text, such as an instruction
        before each question, must not hide a question.
        """
        parts = [
            self._agreeing(at[begin : begin + _AT_ONCE], keys[begin : begin + _AT_ONCE])
            for begin in range(0, len(at), _AT_ONCE)
        ]
        passages, starts, positions, runs = map(np.concatenate, zip(*parts, strict=True))
        best = _most_of_each(passages, starts, runs)
        starts_by_passage: dict[int, list[tuple[int, int]]] = {}
        columns = (passages[best], positions[best], starts[best])
        for passage, position, start in zip(*(c.tolist() for c in columns), strict=True):
            starts_by_passage.setdefault(passage, []).append((position, start))
        return {
            passage: sorted(passage_starts) for passage, passage_starts in starts_by_passage.items()
        }

    def _agreeing(self, at: Places, keys: Places) -> tuple[Places, Places, Places, Places]:
        """Passages, starts, positions and how many runs agree there, for some of the runs found."""
        counts = self._arrays.first[keys + 1].astype(np.int64) - self._arrays.first[keys]
        before = np.repeat(np.cumsum(counts) - counts, counts)
        entries = np.repeat(self._arrays.first[keys], counts) + np.arange(len(before)) - before
        passages = self._arrays.passages[entries].astype(np.int64)
        position = np.repeat(at, counts)
        start = position - self._arrays.places[entries]
        lowest = start.min()
        packed, first, runs = np.unique(
            passages << 32 | (start - lowest), return_index=True, return_counts=True
        )
        passages, start = packed >> 32, (packed & 0xFFFFFFFF) + lowest
        best = _most_of_each(passages, start, runs)
        return passages[best], start[best], position[first][best], runs[best]

    def _verify(
        self, passage: int, starts: list[tuple[int, int]], blocks: Hashes
    ) -> tuple[float, int] | None:
        """The overlap with the first window that has enough of the passage, and its position."""
        size, length = self._size(passage), self._settings["block_words"]
        begin = int(self._arrays.begins[passage])
        sought = hash_shingles(self._arrays.words[begin : begin + size], length)
        slack = size // 2
        for position, start in starts:
            window = blocks[max(start - slack, 0) : start + size + slack]
            covered = np.zeros(size, np.bool_)
            is_in_window = np.isin(sought, window)
            for offset in range(length):
                covered[offset : offset + len(is_in_window)] |= is_in_window
            overlap = float(covered.mean())
            letters = overlap * int(self._arrays.letters[passage])
            enough = overlap == 1.0 or letters >= self._settings["part_letters"]
            if enough and overlap >= self._settings["share"]:
                return round(overlap, 4), position
        return None


def hits_text(hits: tuple[Hit, ...]) -> str:
    """The first evaluation items found and the number of further ones; never the text."""
    shown = [f"{hit.set_name} {hit.item_id} ({hit.overlap:.0%})" for hit in hits[:_SHOWN_HITS]]
    num_hidden = len(hits) - len(shown)
    return ", ".join(shown) + (f" and {num_hidden} more" if num_hidden else "")


def build_index(config: ContaminationConfig, items: Iterable[Item]) -> Index:
    """The index of all items, in order.

    Edge     texts too short to tell from chance are counted as unseen in `Index.coverage`, and
             items that have no other as blind; a run of words that more than 8 passages share
             stands for the first 8.
    """
    names: list[tuple[str, str]] = []
    none = asdict(SetCoverage(items=0, blind=0, runs=0, short=0, unseen=0))
    counts: dict[str, dict[str, int]] = {
        evaluation_set.name: dict(none) for evaluation_set in config.sets
    }
    passages: list[Hashes] = []
    letters: list[int] = []
    owners: list[int] = []
    for number, item in enumerate(items):
        names.append((item.set_name, item.item_id))
        count = counts[item.set_name]
        count["items"] += 1
        known = len(owners)
        for text in item.texts:
            hashes = hash_words(text).hashes
            size = _letters(text)
            if len(hashes) >= config.gram_words:
                count["runs"] += 1
            elif len(hashes) >= config.shortest_words and size >= config.shortest_letters:
                count["short"] += 1
            else:
                count["unseen"] += 1
                continue
            passages.append(hashes)
            letters.append(size)
            owners.append(number)
        count["blind"] += len(owners) == known
    return Index(
        {name: getattr(config, name) for name in _SETTINGS},
        names,
        {name: SetCoverage(**count) for name, count in counts.items()},
        _arrays(passages, letters, owners, config.gram_words),
    )


def load_index(folder: Path, expected: str = "") -> Index:
    """The index stored in `folder`, its arrays mapped and not read.

    expected   the hash that `Index.save` gave; empty: any
    Raises     DataError when a file is missing, or is not the one that was written.
    """
    stored = read_json(folder / INDEX)
    try:
        intact = stored["schema"] == SCHEMA and all(
            sha256_file(folder / name) == digest for name, digest in stored["files"].items()
        )
        if not intact or (expected and sha256_file(folder / INDEX) != expected):
            raise DataError(
                f"{folder} is not the contamination index that was written",
                fix="Delete it and run the step that writes it again",
            )
        arrays = _Arrays(
            **{
                name: np.load(folder / f"{name}.npy", mmap_mode="r")
                for name in _Arrays.__dataclass_fields__
            }
        )
        coverage = {
            name: SetCoverage(**stored_coverage)
            for name, stored_coverage in stored["coverage"].items()
        }
        names = [(name, item_id) for name, item_id in stored["items"]]
        return Index({name: stored[name] for name in _SETTINGS}, names, coverage, arrays)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise DataError(
            f"{folder} holds no contamination index: {type(error).__name__}: {error}",
            fix="Delete it and run the step that writes it again",
        ) from None


def _letters(text: str) -> int:
    # Vowel signs count: in the scripts of India half of a word is marks.
    seen = (c for c in normalize_text(text) if category(c)[0] in "LMN")
    return sum(3 if east_asian_width(c) in "WF" else 1 for c in seen)


def _most_of_each(passages: Places, starts: Places, runs: Places) -> Places:
    """The rows, at most 64 a passage, in which most runs agree; of equals the first in the text."""
    order = np.lexsort((starts, -runs, passages))
    _, first, sizes = np.unique(passages[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, sizes)
    return np.asarray(order[rank < PLACES_PER_PASSAGE])


def _arrays(passages: list[Hashes], letters: list[int], owners: list[int], gram: int) -> _Arrays:
    runs = [hash_shingles(hashes, min(gram, len(hashes))) for hashes in passages]
    counts = np.array([len(run_hashes) for run_hashes in runs], np.int64)
    keys = np.concatenate([np.empty(0, np.uint64), *runs])
    holders = np.repeat(np.arange(len(runs), dtype=np.uint32), counts)
    run_starts = np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)]).astype(np.uint32)
    order = np.argsort(keys, kind="stable")
    unique, first = np.unique(keys[order], return_index=True)
    group = np.repeat(np.arange(len(unique)), np.diff(np.append(first, len(keys))))
    is_stored = np.arange(len(keys)) - first[group] < PASSAGES_PER_RUN
    sizes = np.bincount(group[is_stored], minlength=len(unique))
    return _Arrays(
        keys=unique,
        first=np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32),
        passages=holders[order][is_stored],
        places=run_starts[order][is_stored],
        words=np.concatenate([np.empty(0, np.uint64), *passages]),
        begins=np.cumsum([0, *map(len, passages)]).astype(np.uint64),
        letters=np.array(letters, np.uint32),
        items=np.array(owners, np.uint32),
    )
