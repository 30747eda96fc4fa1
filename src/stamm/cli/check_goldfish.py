"""`stamm check goldfish`: statistics of the Goldfish loss mask on a packed corpus, by language.

The corpus is streamed once; memory depends on the number of languages, not on its length.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stamm.base.config import from_plain, override, to_plain, validate
from stamm.base.errors import DataError, RunError, visible
from stamm.base.files import read_json
from stamm.cli.output import print_json, print_table
from stamm.corpus.packed_dataset import MANIFEST, PackedSplit
from stamm.losses.config import Goldfish
from stamm.losses.goldfish import measure, stated_rate
from stamm.losses.mask_statistics import PIECE, Coverage, LabelRun, MaskCounts

_SHOWN = 20  # languages in the table; JSON has all of them
_HEADER = (
    "",
    "labels",
    "dropped",
    "of windows",
    "std errors",
    "key 0",
    "learned runs: 50 %",
    "99 %",
    "longest",
    "in runs > 100",
)


@dataclass(frozen=True, kw_only=True)
class GoldfishCheck(Goldfish):
    """A Goldfish mask and the limits it is checked against.

    context      tokens of a sequence; hash="apertus" uses no earlier token
    split        of the packed corpus
    zero_share   share of full windows that may have the key 0
    """

    context: int = 4096
    split: str = "train"
    zero_share: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        validate(
            self,
            ("context", self.context >= 2, "must be at least 2"),
            ("zero_share", 0 <= self.zero_share <= 1, "must lie between 0 and 1"),
        )


def check_goldfish(word: str, changes: Sequence[str], as_json: bool) -> int:
    """Print mask statistics of the corpus `word`; returns 1 when the mask misses its stated rate.

    A language with enough text fails for the same reasons as the whole corpus.
    """
    pack, recorded, remark = _found(Path(word))
    config = override(recorded, changes)
    split = PackedSplit.open(pack, config.split)
    tally, names = counted(config, split)
    total = tally.total()
    found = {names[number]: coverage for number, coverage in tally.groups().items()}
    languages = dict(sorted(found.items(), key=lambda item: (-item[1].labels, item[0])))
    faults = total.faults(config.zero_share)
    failing = [n for n, c in languages.items() if c.judged and c.faults(config.zero_share)]
    if as_json:
        result = {
            "pack": str(pack),
            "remark": remark,
            "config": to_plain(config),
            "passed": not (faults or failing),
            "faults": faults,
            "failing_languages": failing,
            "all": _plain(total),
            "languages": {name: _plain(coverage) for name, coverage in languages.items()},
        }
        print_json(result)
    else:
        print(f"{visible(str(pack))}, {config.split}: {split.num_tokens:,} tokens")
        seen = f" context={config.context}" if config.hash == "apertus" else ""
        print(f"k={config.k} h={config.h} hash={config.hash} salt={config.salt}{seen}")
        print(f"{remark}\n")
        _print(total, languages, faults, failing)
    return 1 if faults or failing else 0


def _found(path: Path) -> tuple[Path, GoldfishCheck, str]:
    """The packed corpus at `path` or of the run there, the run's mask, and a remark."""
    config = _entry(path / "config.json", "config")
    if config is None and (path / MANIFEST).is_file():
        return path, GoldfishCheck(), ""
    named = (config or {}).get("pack")
    places = [path / "pack", *([Path(named)] if isinstance(named, str) and named else [])]
    if path.absolute().parent.name == "arms":
        places.append(Path(os.path.normpath(path / ".." / ".." / "pack")))
    recorded = (_entry(path / "manifest.json", "inputs") or {}).get("pack")
    if isinstance(recorded, dict):
        places.append(Path(os.path.normpath(path / str(recorded.get("path")))))
    for place in places:
        if config is not None and (place / MANIFEST).is_file():
            return place, *_trained(config, path)
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
    found = stored.get(name) if isinstance(stored, dict) else None
    return found if isinstance(found, dict) else None


def counted(config: GoldfishCheck, split: PackedSplit) -> tuple[MaskCounts, list[str]]:
    """Counts by language index, and the languages.

    Checked  tests/unit/cli/test_goldfish_walk.py
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
        gone = max(int(np.searchsorted(self._starts, start, side="right")) - 1, 0)
        self._starts, self._language = self._starts[gone:], self._language[gone:]
        while self._stop < stop:
            table = next(self._sidecars, None)
            if table is None:
                raise DataError(
                    f"the documents of the packed corpus end at token {self._stop}, before {stop}",
                    fix="Pack the corpus again",
                )
            self._read(table)
        place = np.searchsorted(self._starts, np.arange(start, stop), side="right") - 1
        return self._starts[place], self._language[place]

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


def _print(
    total: Coverage, languages: dict[str, Coverage], faults: Sequence[str], failing: Sequence[str]
) -> None:
    shown = list(languages)[:_SHOWN]
    print_table(
        _HEADER,
        [_row("all", total), *(_row(f"  {name}", languages[name]) for name in shown)],
    )
    more = len(languages) - len(shown)
    if more:
        print(f"  and {more} with less text; --json lists all")
    print()
    for fault in faults:
        print(f"FAILED {fault}")
    if failing:
        names = ", ".join(visible(name, 40) for name in failing[:_SHOWN])
        print(
            f"FAILED for {len(failing)} languages alone: {names}{', …' * (len(failing) > _SHOWN)}"
        )
    if not (faults or failing):
        short = "" if total.judged else " (too little text for a significant result)"
        print(f"the mask drops the stated share{short}")


def _row(name: str, found: Coverage) -> list[str]:
    gaps = found.gap_quantiles
    return [
        name,
        f"{found.labels:,}",
        f"{found.rate:.2%}",
        f"{found.window_rate:.2%}",
        f"{found.standard_errors:+.1f}" if found.judged else "few",
        f"{found.zero_share:.2%}",
        *(f"{gap:,}" for gap in (gaps[0], gaps[2], gaps[3])),
        f"{found.long_share:.0%}",
    ]


def _plain(found: Coverage) -> dict[str, Any]:
    return {
        **dataclasses.asdict(found),
        "window_rate": found.window_rate,
        "standard_errors": found.standard_errors,
        "judged": found.judged,
    }
