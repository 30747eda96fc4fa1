"""Loss logs of other projects judged again: dependent runs, a target, a difference, several attempts.

Read are `val_loss:3.2785`, and `val_bpb:1.2244` where it follows, as modded-nanogpt and parameter-golf print
them, and `tel:3.2722` of llm.c. The last of a file is the result of its run. Training losses and `seed:42` only
tell whether two files are of one run.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError, DataError
from stamm.statistics.estimates import MeanInterval, difference_estimate, mean_estimate
from stamm.statistics.power import detectable
from stamm.statistics.student_t import t_probability

VAL_LOSS, VAL_BPB = "val_loss", "val_bpb"
CONFIDENCE = 0.99  # the rule of modded-nanogpt: p < 0.01
_LINE = re.compile(
    r"(?<![\w])(?:val_loss|tel):(?P<val_loss>[\d.]{1,20})(?:\s+val_bpb:(?P<val_bpb>[\d.]{1,20}))?"
)
_TRAINING = re.compile(r"(?<![\w])(?:train_loss|trl):([\d.]{1,20})")
_SEED = re.compile(r"^seed:(\d{1,20})\s*$", re.MULTILINE)
_MOST_BYTES, _MOST_LINES, _MOST_FILES = 2**28, 100_000, 10_000
_ALIKE = 3  # equal printed losses, all that two runs have in common, that make them one
_Row = dict[str, float | None]


@dataclass(frozen=True)
class LoggedRun:
    """A run.

    losses    of the metric, by line
    printed   all losses of the log as text, of training first
    seed      that the log states; "": none
    """

    path: Path
    losses: tuple[float, ...]
    printed: tuple[str, ...]
    seed: str

    @property
    def result(self) -> float:
        """The last loss."""
        return self.losses[-1]


@dataclass(frozen=True, kw_only=True)
class ClaimReport:
    """Statistics of logs, and of the claims about them.

    metric        val_loss (nats a token) or val_bpb (bits a byte)
    runs          independent ones, of which each counts once
    repeated      pairs of files with the same losses, or that state the same seed: the second is not counted
    mean          of the last losses, with its 95 % interval
    target, p_target    mean below the target: one-sided p of the t test, times `records`
    difference, p_difference    minus the mean of the other logs, Welch's interval and two-sided p, times `records`
    smallest      the difference of two such sets of runs that is shown with power 0.8 at 99 %
    """

    metric: str
    files: int
    runs: int
    repeated: tuple[tuple[str, str], ...]
    mean: MeanInterval
    standard_deviation: float | None
    records: int
    target: float | None = None
    p_target: float | None = None
    others: int = 0
    difference: MeanInterval | None = None
    p_difference: float | None = None
    smallest: float | None = None

    @property
    def passed(self) -> bool:
        """Whether no run is counted twice and everything that was asked is shown at 99 %."""
        asked = [
            p
            for asked, p in (
                (self.target is not None, self.p_target),
                (self.others > 0, self.p_difference),
            )
            if asked
        ]
        return not self.repeated and all(p is not None and p < 1 - CONFIDENCE for p in asked)

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "passed": self.passed}


def check_claim(
    *logs: str | os.PathLike[str],
    against: Sequence[str | os.PathLike[str]] | str = (),
    target: float | None = None,
    records: int = 1,
    metric: str = "",
) -> ClaimReport:
    """Judge the losses that logs of single runs end with.

    logs      files, or folders of .txt and .log files, one for each run
    against   logs of the runs that these are to beat
    target    the loss that their mean is to be below
    records   how many recipes were tried, of which this is the one that is shown: p is multiplied
    metric    val_loss or val_bpb; "": val_bpb where every log has it

    A run whose printed losses are those of another, or that states the same seed, is not counted: it adds nothing.

    Raises    DataError for a log without losses; ConfigError for settings out of range
    Checked   tests/unit/compare/test_claim.py
    """
    if records < 1:
        raise ConfigError(f"records = {records}", fix="Set it to the number of recipes tried")
    if target is not None and not (math.isfinite(target) and target > 0):
        raise ConfigError(f"target = {target}", fix="Set it to a positive loss")
    if metric not in ("", VAL_LOSS, VAL_BPB):
        raise ConfigError(f"metric = {metric!r}", fix=f"Choose {VAL_LOSS} or {VAL_BPB}")
    others = [against] if isinstance(against, str | os.PathLike) else list(against)
    ours, theirs = _files(logs), _files(others) if others else []
    logs_by_path = {path: _Log(path) for path in (*ours, *theirs)}
    if not metric:
        both = all(log.rows[-1][VAL_BPB] is not None for log in logs_by_path.values())
        metric = VAL_BPB if both else VAL_LOSS
    runs, repeated = _independent([logs_by_path[path].run(metric) for path in ours])
    control, more = _independent([logs_by_path[path].run(metric) for path in theirs])
    values, baseline = [run.result for run in runs], [run.result for run in control]
    mean = mean_estimate(values)
    deviation = _deviation(values)
    report: dict[str, Any] = {}
    if theirs:
        difference = difference_estimate(values, baseline)
        report |= {
            "others": len(control),
            "difference": difference,
            "p_difference": _times(_welch(values, baseline), records),
        }
    return ClaimReport(
        metric=metric,
        files=len(ours),
        runs=len(runs),
        repeated=(*repeated, *more),
        mean=mean,
        standard_deviation=deviation,
        records=records,
        target=target,
        p_target=None if target is None else _times(_below(values, target), records),
        smallest=None
        if deviation is None
        else detectable([len(values)], 1, CONFIDENCE) * deviation * math.sqrt(2),
        **report,
    )


def _files(places: Sequence[str | os.PathLike[str]]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, places):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".log"))
            if not inside:
                raise DataError(f"{path} holds no .txt or .log file", fix="Name the files")
            files += inside
        else:
            files.append(path)
    if not files:
        raise ConfigError(
            "no log is named", fix="stamm check claim LOGS [against=LOGS] [target=3.28]"
        )
    if len(files) > _MOST_FILES:
        raise DataError(f"{len(files):,} files, over {_MOST_FILES:,}", fix="Name fewer")
    if len(set(files)) < len(files):
        raise ConfigError("a log is named twice", fix="Name each once")
    return files


class _Log:
    """The losses of a file."""

    def __init__(self, path: Path) -> None:
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise DataError(
                    f"{path} has over {_MOST_BYTES:,} bytes", fix="Cut the log out of it"
                )
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise DataError(f"{path} can not be read: {error.strerror}", fix="Name a log") from None
        self.rows: list[_Row] = []
        validated: list[str] = []
        for match in itertools.islice(_LINE.finditer(text), _MOST_LINES):
            try:
                self.rows.append(
                    {n: float(match[n]) if match[n] else None for n in (VAL_LOSS, VAL_BPB)}
                )
                validated.append(match[0])
            except ValueError:  # "3.2.1", or the source code that prints such a line
                continue
        if not self.rows:
            raise DataError(
                f"{path} has no val_loss:NUMBER and no tel:NUMBER",
                fix="Name logs as modded-nanogpt, parameter-golf or llm.c print them",
            )
        training = [m[1] for m in itertools.islice(_TRAINING.finditer(text), _MOST_LINES)]
        seed = _SEED.search(text)
        self.path, self.printed, self.seed = path, (*training, *validated), seed[1] if seed else ""

    def run(self, metric: str) -> LoggedRun:
        losses = tuple(value for row in self.rows if (value := row[metric]) is not None)
        if self.rows[-1][metric] is None:
            raise DataError(f"{self.path} does not end with {metric}", fix=f"metric={VAL_LOSS}")
        return LoggedRun(self.path, losses, self.printed, self.seed)


def _independent(runs: Sequence[LoggedRun]) -> tuple[list[LoggedRun], list[tuple[str, str]]]:
    """The runs without those that repeat another; and the pairs."""
    kept: list[LoggedRun] = []
    repeated: list[tuple[str, str]] = []
    for run in runs:
        same = next((k for k in kept if _is_same(k, run)), None)
        if same is None:
            kept.append(run)
        else:
            repeated.append((str(same.path), str(run.path)))
    return kept, repeated


def _is_same(first: LoggedRun, second: LoggedRun) -> bool:
    """Whether both state one seed, or one's losses begin with the other's: not the first, before any training."""
    if first.seed and first.seed == second.seed:
        return True
    pairs = [(first.printed, second.printed), (first.losses, second.losses)]
    for a, b in pairs:
        common = min(len(a), len(b))
        if common > _ALIKE and a[1:common] == b[1:common]:
            return True
    return False


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _below(values: Sequence[float], target: float) -> float | None:
    """One-sided p of the t test that the mean is not below the target; None from fewer than two runs."""
    deviation = _deviation(values)
    if deviation is None:
        return None
    distance = target - math.fsum(values) / len(values)
    if deviation == 0:
        return 0.0 if distance > 0 else 1.0
    two_sided = t_probability(distance * math.sqrt(len(values)) / deviation, len(values) - 1)
    return two_sided / 2 if distance > 0 else 1 - two_sided / 2


def _welch(values: Sequence[float], control: Sequence[float]) -> float | None:
    first, second = _deviation(values), _deviation(control)
    if first is None or second is None:
        return None
    a, b = first**2 / len(values), second**2 / len(control)
    distance = math.fsum(values) / len(values) - math.fsum(control) / len(control)
    if a + b == 0:
        return 0.0 if distance else 1.0
    freedom = (a + b) ** 2 / (a**2 / (len(values) - 1) + b**2 / (len(control) - 1))
    return t_probability(distance / math.sqrt(a + b), max(math.floor(freedom * (1 + 1e-12)), 1))


def _times(p: float | None, records: int) -> float | None:
    return None if p is None else min(p * records, 1.0)
