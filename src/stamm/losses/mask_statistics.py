"""Statistics of a loss mask on a text, in memory that does not grow with the text."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stamm.base.hashing import mix64

PIECE = 2**18  # labels at a time: a few tens of megabytes of work space
LONG = 100
EXPECTED_DROPS = 100  # with fewer, a rate is imprecise and not normally distributed
MOST_ERRORS = 5.0
_SKETCH_BITS = 12
_QUANTILES = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class LabelRun:
    """Consecutive labels of a run.

    document   a number per label, equal within a document
    group      a number per label, equal within a document: what is counted apart
    seen       how many labels at the beginning were counted before and serve only as context of
               windows; 0 where a run begins
    """

    labels: NDArray[np.int64]
    document: NDArray[np.int64]
    group: NDArray[np.int64]
    seen: int = 0


def cut(
    labels: NDArray[np.int64], document: NDArray[np.int64], reach: int, size: int = PIECE
) -> Iterator[LabelRun]:
    """One run in pieces of `size` labels, each with the `reach` labels before it."""
    group = np.zeros(len(labels), dtype=np.int64)
    for start in range(0, len(labels), size):
        first = max(start - max(reach, 1), 0)
        part = slice(first, start + size)
        yield LabelRun(labels[part], document[part], group[part], start - first)


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Statistics of a loss mask on a text: dropped labels, and lengths of runs of learned labels.

    labels          all of them
    masked          how many are dropped
    rate            masked / labels
    gap_quantiles   lengths of maximal runs of learned labels at 50, 90, 99 and 100 %; a run ends
                    with its document
    long_share      share of labels that lie in learned runs longer than 100
    windows         labels with a full window: only they can be dropped
    zero_share      share of them whose key is 0: a product that has wrapped
    stated_rate     share of them that should be dropped
    independent     effective number of distinct windows: a passage that occurs c times is dropped
                    c times or never
    """

    labels: int
    masked: int
    rate: float
    gap_quantiles: tuple[int, int, int, int]
    long_share: float
    windows: int
    zero_share: float
    stated_rate: float
    independent: float

    @property
    def window_rate(self) -> float:
        """Dropped share of the labels with a full window."""
        return self.masked / self.windows if self.windows else 0.0

    @property
    def judged(self) -> bool:
        """Whether the text is long enough to distinguish a wrong rate from chance."""
        return self.independent * self.stated_rate >= EXPECTED_DROPS

    @property
    def standard_errors(self) -> float:
        """Binomial standard errors of `window_rate` above the stated rate; below it: negative."""
        if not self.windows:
            return 0.0
        spread = math.sqrt(self.stated_rate * (1 - self.stated_rate) / self.independent)
        return (self.window_rate - self.stated_rate) / spread

    def faults(self, most_zero: float) -> tuple[str, ...]:
        """Faults of this mask on this text, a sentence each; empty without faults.

        most_zero   share of windows that may have the key 0

        Checked  tests/unit/losses/test_mask_statistics.py, tests/cli/test_check_goldfish.py
        """
        faults = []
        if not self.windows:
            faults.append("no document is as long as a window: nothing is ever dropped")
        if self.zero_share > most_zero:
            faults.append(
                f"{self.zero_share:.2%} of the full windows have the key 0 and the same mask; "
                f"{most_zero:.2%} may"
            )
        errors = self.standard_errors
        if self.judged and abs(errors) > MOST_ERRORS:
            faults.append(
                f"{self.window_rate:.3%} of the full windows are dropped instead of "
                f"{self.stated_rate:.3%}: {abs(errors):.0f} standard errors off"
            )
        return tuple(faults)


@dataclass
class _Counts:
    """Counts of one group, or of several added up.

    gaps     how many learned runs have each length; at most sqrt(2 labels) lengths can differ
    sketch   sums of +1 and -1 in hashed buckets: its squares add up to sum c^2 over the different
             windows, each occurring c times, to 2 %
    """

    labels: int = 0
    masked: int = 0
    windows: int = 0
    zeros: int = 0
    gaps: Counter[int] = field(default_factory=Counter)
    sketch: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(2**_SKETCH_BITS, dtype=np.int64)
    )

    def coverage(self, stated_rate: float) -> Coverage:
        total = max(self.labels, 1)
        squares = float(np.square(self.sketch.astype(np.float64)).sum())
        return Coverage(
            labels=self.labels,
            masked=self.masked,
            rate=self.masked / total,
            gap_quantiles=_quantiles(self.gaps),
            long_share=sum(n * c for n, c in self.gaps.items() if n > LONG) / total,
            windows=self.windows,
            zero_share=self.zeros / max(self.windows, 1),
            stated_rate=stated_rate,
            independent=min(self.windows**2 / max(squares, 1.0), float(self.windows)),
        )


class MaskCounts:
    """Counts by group, of text that comes piece by piece.

    Source   the sketch: Alon, Matias and Szegedy 1996; Charikar, Chen and Farach-Colton 2002
    """

    def __init__(self, stated_rate: float) -> None:
        self._stated_rate = stated_rate
        self._of: defaultdict[int, _Counts] = defaultdict(_Counts)
        self._open: tuple[int, int, int] | None = None  # length, document, group

    def add(
        self,
        piece: LabelRun,
        keep: NDArray[np.bool_],
        window: NDArray[np.bool_],
        zero: NDArray[np.bool_],
        identity: NDArray[np.uint64],
    ) -> None:
        """Count the labels of `piece` behind those that were counted before.

        keep       True where a label is learned
        window     True where it has a full window
        zero       True where its key is 0
        identity   a number for its window's content

        Shapes   as piece.labels
        """
        new = slice(piece.seen, None)
        keep, window, zero, identity = keep[new], window[new], zero[new], identity[new]
        group = piece.group[new]
        if not len(group):
            return
        self._add_gaps(keep, piece.document[new], group, continues=piece.seen > 0)
        order = np.argsort(group, kind="stable")
        for here in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            counts = self._of[int(group[here[0]])]
            counts.labels += len(here)
            counts.masked += len(here) - int(np.count_nonzero(keep[here]))
            counts.windows += int(np.count_nonzero(window[here]))
            counts.zeros += int(np.count_nonzero(zero[here]))
            counts.sketch += _sketch(identity[here[window[here]]])

    def total(self) -> Coverage:
        """All groups together."""
        counts = _Counts()
        for group in self._closed().values():
            counts.labels += group.labels
            counts.masked += group.masked
            counts.windows += group.windows
            counts.zeros += group.zeros
            counts.gaps.update(group.gaps)
            counts.sketch += group.sketch
        return counts.coverage(self._stated_rate)

    def groups(self) -> dict[int, Coverage]:
        """Each group alone."""
        groups = sorted(self._closed().items())
        return {number: counts.coverage(self._stated_rate) for number, counts in groups}

    def _closed(self) -> dict[int, _Counts]:
        """The counts, once the learned run that is open has ended."""
        if self._open is not None:
            length, _, group = self._open
            self._of[group].gaps[length] += 1
            self._open = None
        return self._of

    def _add_gaps(
        self,
        keep: NDArray[np.bool_],
        document: NDArray[np.int64],
        group: NDArray[np.int64],
        continues: bool,
    ) -> None:
        """Count the learned runs that end here; the last one may continue in the next piece."""
        border = document[1:] != document[:-1]
        first, last = keep.copy(), keep.copy()
        first[1:] &= border | ~keep[:-1]
        last[:-1] &= border | ~keep[1:]
        starts = np.flatnonzero(first)
        lengths = np.flatnonzero(last) + 1 - starts
        if self._open is not None and continues and keep[0] and document[0] == self._open[1]:
            lengths[0] += self._open[0]
            self._open = None
        self._closed()
        if keep[-1]:
            self._open = (int(lengths[-1]), int(document[-1]), int(group[-1]))
            starts, lengths = starts[:-1], lengths[:-1]
        ended, counts = np.unique(np.stack((group[starts], lengths)), axis=1, return_counts=True)
        for (number, length), count in zip(ended.T.tolist(), counts.tolist(), strict=True):
            self._of[number].gaps[length] += count


def _sketch(identity: NDArray[np.uint64]) -> NDArray[np.int64]:
    mixed = mix64(identity ^ np.uint64(0x5BF03635F0935AD1))  # any number: not the mask's own bits
    bucket = (mixed >> np.uint64(64 - _SKETCH_BITS)).astype(np.int64)
    up = (mixed & np.uint64(1)).astype(np.bool_)
    size = 2**_SKETCH_BITS
    sketch: NDArray[np.int64] = np.bincount(bucket[up], minlength=size) - np.bincount(
        bucket[~up], minlength=size
    )
    return sketch


def _quantiles(gaps: Counter[int]) -> tuple[int, int, int, int]:
    lengths = np.array(sorted(gaps), dtype=np.int64)
    upto = np.cumsum([gaps[n] for n in lengths.tolist()])
    if not len(lengths):
        return (0, 0, 0, 0)
    count = int(upto[-1])
    at = [
        int(lengths[np.searchsorted(upto, min(int(q * count), count - 1), side="right")])
        for q in _QUANTILES
    ]
    return (at[0], at[1], at[2], at[3])
