"""Contamination of a task: which of its items are in the training text of the evaluated run.

The items are searched for as decontamination of a corpus does (`corpus.contamination.index`): by runs of
8 words, then by half of an item's words; a short text as a whole. An item is found where its question is,
or its question with the right answer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.receipts import Stamp, stamp_of
from stamm.base.schema import read_record_if_present
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.corpus.contamination.index import build_index
from stamm.corpus.contamination.items import Item
from stamm.corpus.dedup.shingles import hash_words
from stamm.corpus.packed_dataset import MANIFEST
from stamm.corpus.records import CoverageFile
from stamm.corpus.tables import read_parts
from stamm.evaluate.items import TaskItem, read_items
from stamm.evaluate.task_file import TaskData

UNKNOWN = "unknown, because the training text of the model is not available"
_COVERAGE = Path("filtered", "contamination", "coverage.json")
_MOST_HITS = 2**31


@dataclass(frozen=True, kw_only=True)
class ContaminationStatus:
    """Number of items of a task that are in the training text.

    text    the status as a sentence without its full stop
    items   numbers of those found; None where the training text is not known
    """

    text: str
    items: tuple[int, ...] | None = None

    def details(self) -> dict[str, Any]:
        """Values of a task's result."""
        count = None if self.items is None else len(self.items)
        return {"contamination": self.text, "contaminated": count}


def contamination_of(task: TaskData, pack: Path | None) -> ContaminationStatus:
    """The items of a task from a file that are in the training text, by their lines.

    Edge   a process searches once for each task and packed corpus
    """
    is_packed = pack is not None and (pack / MANIFEST).is_file()
    stamp = stamp_of(pack / MANIFEST) if pack is not None and is_packed else None
    return _contamination(task, pack, stamp)


@functools.lru_cache(maxsize=8)
def _contamination(task: TaskData, pack: Path | None, _: Stamp | None) -> ContaminationStatus:
    return find_items(task.name, _texts(task), pack)


def find_items(task: str, items: Iterable[Item], pack: Path | None) -> ContaminationStatus:
    """The items of a task that are in the training split of a run's corpus.

    items   their item_id is a number
    pack    packed corpus of the run, beside which its corpus is; None without one

    Edge    memory grows with the words of the task, time with the corpus
    """
    root = None if pack is None else pack.resolve().parent
    if root is None or not any((root / "corpus").glob("documents-*.parquet")):
        return ContaminationStatus(text=UNKNOWN)
    sets = (EvaluationSet(name=task, file=task),)
    index = build_index(ContaminationConfig(sets=sets, most_hits=_MOST_HITS), items)
    contaminated: set[int] = set()
    for row in read_parts(root / "corpus", "documents", ["text", "split"]):
        if row["split"] == "train":
            contaminated.update(int(hit.item_id) for hit in index.hits(hash_words(row["text"])))
    counts = index.coverage[task]
    text = f"{len(contaminated):,} of {counts.items:,} items are in the training text"
    if counts.blind:
        text += f"; {counts.blind:,} are too short to search for"
    filtered = read_record_if_present(CoverageFile, root / _COVERAGE)
    if filtered is not None and task in filtered.sets:
        text += "; documents with its items were dropped from the corpus"
    return ContaminationStatus(text=text, items=tuple(sorted(contaminated)))


def _texts(task: TaskData) -> Iterator[Item]:
    for item in read_items(task):
        if isinstance(item, TaskItem):
            whole = f"{item.context}{task.description.delimiter}{item.answer}"
            texts = (item.context, whole) if item.context else (item.answer,)
            yield Item(set_name=task.name, item_id=str(item.line), texts=texts)
