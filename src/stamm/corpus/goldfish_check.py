"""Statistics of the Goldfish loss mask on a packed corpus, by language.

The corpus is streamed once; memory depends on the number of languages, not on its length.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stamm.base.bounds import Share, at_least
from stamm.base.config import from_plain, override, to_plain
from stamm.base.errors import DataError, RunError
from stamm.base.files import read_json
from stamm.corpus.packed_dataset import MANIFEST, PackedSplit
from stamm.losses.config import Goldfish
from stamm.losses.goldfish import measure, stated_rate
from stamm.losses.mask_statistics import PIECE, Coverage, LabelRun, MaskCounts


@dataclass(frozen=True, kw_only=True)
class GoldfishCheck(Goldfish):
    """A Goldfish mask and the limits it is checked against.

    context      tokens of a sequence; hash="apertus" uses no earlier token
    split        of the packed corpus
    zero_share   share of full windows that may have the key 0
    """

    context: Annotated[int, at_least(2)] = 4096
    split: str = "train"
    zero_share: Share = 0.001


@dataclass(frozen=True, kw_only=True)
class GoldfishReport:
    """Statistics of the mask on a packed corpus.

    remark              on the configuration; "" without
    tokens              of the split
    total, languages    coverage of all labels, and by language, the most labels first
    faults              why the mask misses its stated rate
    failing_languages   that fail for the same reasons alone
    """

    pack: Path
    config: GoldfishCheck
    remark: str
    tokens: int
    total: Coverage
    languages: dict[str, Coverage]
    faults: tuple[str, ...]
    failing_languages: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the mask drops the stated share."""
        return not (self.faults or self.failing_languages)

    def plain(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "pack": str(self.pack),
            "remark": self.remark,
            "config": to_plain(self.config),
            "passed": self.passed,
            "faults": list(self.faults),
            "failing_languages": list(self.failing_languages),
            "all": _plain(self.total),
            "languages": {name: _plain(coverage) for name, coverage in self.languages.items()},
        }


def check_goldfish(place: str | os.PathLike[str], changes: Sequence[str]) -> GoldfishReport:
    """Check the Goldfish mask of a packed corpus, or of the run with one, against its stated rate.

    A language with enough text fails for the same reasons as the whole corpus.

    Raises   RunError when `place` is neither; DataError for a damaged corpus
    """
    pack, recorded, remark = _found(Path(place))
    config = override(recorded, changes)
    split = PackedSplit.open(pack, config.split)
    tally, names = counted(config, split)
    total = tally.total()
    coverage_by_language = {names[number]: coverage for number, coverage in tally.groups().items()}
    languages = dict(
        sorted(coverage_by_language.items(), key=lambda item: (-item[1].labels, item[0]))
    )
    failing = [n for n, c in languages.items() if c.judged and c.faults(config.zero_share)]
    return GoldfishReport(
        pack=pack,
        config=config,
        remark=remark,
        tokens=split.num_tokens,
        total=total,
        languages=languages,
        faults=tuple(total.faults(config.zero_share)),
        failing_languages=tuple(failing),
    )


def _found(path: Path) -> tuple[Path, GoldfishCheck, str]:
    """The packed corpus at `path` or of the run there, the run's mask, and a remark."""
    config = _entry(path / "config.json", "config")
    if config is None and (path / MANIFEST).is_file():
        return path, GoldfishCheck(), ""
    named = (config or {}).get("pack")
    folders = [path / "pack", *([Path(named)] if isinstance(named, str) and named else [])]
    if path.absolute().parent.name == "arms":
        folders.append(Path(os.path.normpath(path / ".." / ".." / "pack")))
    recorded = (_entry(path / "manifest.json", "inputs") or {}).get("pack")
    if isinstance(recorded, dict):
        folders.append(Path(os.path.normpath(path / str(recorded.get("path")))))
    for folder in folders:
        if config is not None and (folder / MANIFEST).is_file():
            return folder, *_trained(config, path)
    raise RunError(
        f"{path} is neither a packed corpus nor a run with one",
        fix="Name a run, or the folder `pack` of one; `stamm ls runs` lists runs",
    )


def _trained(config: dict[str, Any], path: Path) -> tuple[GoldfishCheck, str]:
    """The mask of the run, or the defaults with a remark."""
    inner = config.get("pretrain")
    trained = inner if isinstance(inner, dict) else config
    goldfish, context = trained.get("goldfish"), trained.get("context")
    plain = dict(goldfish) if isinstance(goldfish, dict) else {}
    if context is not None:
        plain["context"] = context
    remark = "" if plain and goldfish else "No model of this run was trained with Goldfish."
    return from_plain(GoldfishCheck, plain, str(path / "config.json")), remark


def _entry(path: Path, name: str) -> dict[str, Any] | None:
    stored = read_json(path) if path.is_file() else None
    section = stored.get(name) if isinstance(stored, dict) else None
    return section if isinstance(section, dict) else None


def counted(config: GoldfishCheck, split: PackedSplit) -> tuple[MaskCounts, list[str]]:
    """Counts by language index, and the languages.

    Checked  tests/unit/corpus/test_goldfish_walk.py
    """
    documents = _Documents(split)
    tally = MaskCounts(stated_rate(config))
    for before, start, stop in _spans(config, split):
        labels = split.read(before, stop)[1:]
        number, language = documents.of(before + 1, stop)
        measure(config, LabelRun(labels, number, language, start - before - 1), tally)
    return tally, documents.languages


def _spans(config: GoldfishCheck, split: PackedSplit) -> Iterator[tuple[int, int, int]]:
    """Spans as training reads them: start of reading, first new label, end.

    hash="apertus" hashes one sequence at a time; hash="stamm" the whole stream, so that every piece
    also gets the h - 1 labels before it. The first token of the stream is not a label.
    """
    if config.hash == "apertus":
        for first, end in split.stages:
            for start in range(first, end - config.context, config.context):
                yield start, start + 1, start + config.context + 1
        return
    for start in range(1, split.num_tokens, PIECE):
        before = max(start - max(config.h - 1, 1) - 1, 0)
        yield before, start, min(start + PIECE, split.num_tokens)


class _Documents:
    """Document and language of each token, read in order.

    languages   names by index
    """

    def __init__(self, split: PackedSplit) -> None:
        self._sidecars = split.sidecars(["start", "stop", "language"])
        self.languages: list[str] = []
        self._numbers: dict[str, int] = {}
        self._starts = self._language = np.empty(0, dtype=np.int64)
        self._stop = 0

    def of(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Document (its first token) and language of tokens start .. stop - 1.

        Raises   DataError when no document contains them.
        """
        num_passed = max(int(np.searchsorted(self._starts, start, side="right")) - 1, 0)
        self._starts, self._language = self._starts[num_passed:], self._language[num_passed:]
        while self._stop < stop:
            table = next(self._sidecars, None)
            if table is None:
                raise DataError(
                    f"the documents of the packed corpus end at token {self._stop}, before {stop}",
                    fix="Pack the corpus again",
                )
            self._read(table)
        row = np.searchsorted(self._starts, np.arange(start, stop), side="right") - 1
        return self._starts[row], self._language[row]

    def _read(self, table: pa.Table) -> None:
        names = [name or "unknown" for name in table.column("language").to_pylist()]
        for name in dict.fromkeys(names):
            if name not in self._numbers:
                self._numbers[name] = len(self.languages)
                self.languages.append(name)
        numbers = np.array([self._numbers[name] for name in names], dtype=np.int64)
        self._starts = np.concatenate((self._starts, table.column("start").to_numpy()))
        self._language = np.concatenate((self._language, numbers))
        self._stop = max([self._stop, *table.column("stop").to_pylist()])


def _plain(coverage: Coverage) -> dict[str, Any]:
    return {
        **dataclasses.asdict(coverage),
        "window_rate": coverage.window_rate,
        "standard_errors": coverage.standard_errors,
        "judged": coverage.judged,
    }
