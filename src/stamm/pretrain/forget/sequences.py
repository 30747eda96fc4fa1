"""Training sequences without some documents of the packed corpus.

A sequence has T + 1 tokens: T inputs, and the targets one token later. It is affected when one of them
belongs to a forgotten document.

  replace   An affected sequence is replaced by the next sequence behind the end of the run, in the
            order of the corpus, that is not affected. All other sequences stay where they are. Behind the
            last sequence of the corpus the order of its next epoch follows: such a replacement has been
            read before.
  drop      Sequences stay. Each token of a forgotten document is read as the end token, whatever it was;
            no loss is computed where it is the target or the last token before one. Documents see
            themselves alone, so that no loss depends on it.

Under both rules nothing that the model computes depends on the text of the documents. Under "drop" it
depends on their lengths and places: the tokens of a step that have a loss are fewer, and count more. Under
"replace" other documents that share a sequence with one lose that part of their tokens.

Checked  tests/unit/pretrain/test_forget.py
"""

from __future__ import annotations

from itertools import count as counted
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stamm.base.errors import DataError
from stamm.corpus.shuffle import TokenStream, WindowOrder
from stamm.corpus.tables import read_table
from stamm.losses.config import Goldfish, Rule
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.forget.config import ForgetRule
from stamm.pretrain.forget.records import DOCUMENTS

_AT_ONCE = 1 << 20  # sequences whose places are computed together


class TokenSpans:
    """Tokens of forgotten documents in a stream, as ranges that do not overlap.

    starts, stops   first token of each range, and the one after its last; rising
    """

    def __init__(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        order = np.argsort(starts, kind="stable")
        self.starts, self.stops = starts[order], stops[order]
        if np.any(self.stops <= self.starts) or np.any(self.starts[1:] < self.stops[:-1]):
            raise DataError("ranges of documents are empty or overlap", fix="Pack the corpus again")

    def touch(self, begin: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
        """Whether any of the `length` tokens from each of `begin` on is in a range."""
        after = np.searchsorted(self.stops, begin, side="right")
        starts = np.append(self.starts, np.iinfo(np.int64).max)
        return starts[after] < begin + length

    def contain(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether each of the tokens start .. stop - 1 is in a range."""
        return self.touch(np.arange(start, stop), 1)


def read_spans(folder: Path) -> TokenSpans:
    """The tokens of the forgotten documents, from the table in `folder`."""
    table = read_table(folder / DOCUMENTS, ["start", "stop"])
    return TokenSpans(table.column("start").to_numpy(), table.column("stop").to_numpy())


class _HiddenTokens:
    """A token stream whose forgotten tokens are read as its end token."""

    def __init__(self, stream: TokenStream, spans: TokenSpans) -> None:
        self._stream, self._spans = stream, spans
        self._hidden = 0 if stream.end_id is None else stream.end_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start .. stop - 1, int64."""
        tokens = self._stream.read(start, stop)
        tokens[self._spans.contain(start, stop)] = self._hidden
        return tokens


def affected_positions(
    order: WindowOrder, spans: TokenSpans, first: int, total: int
) -> NDArray[np.int64]:
    """The affected ones of the sequences first .. first + total - 1 of the order, rising."""
    places = [
        _places(order, spans, begin, min(_AT_ONCE, first + total - begin), affected=True)
        for begin in range(first, first + total, _AT_ONCE)
    ]
    return np.concatenate([np.empty(0, np.int64), *places])


def replacement_positions(
    order: WindowOrder, spans: TokenSpans, stop: int, count: int
) -> NDArray[np.int64]:
    """The first `count` sequences from position `stop` of the order on that are not affected.

    Raises   DataError when all sequences of the corpus are affected
    """
    places: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    at_once = min(_AT_ONCE, order.count)
    for begin in counted(stop, at_once):
        missing = count - sum(map(len, places))
        if missing <= 0:
            break
        if begin - stop >= 2 * order.count and missing == count:
            raise DataError(
                "every training sequence has a token of a forgotten document",
                fix="Set rule=drop, or train on another corpus",
            )
        places.append(_places(order, spans, begin, at_once, affected=False))
    return np.concatenate(places)[:count]


def replacements(order: WindowOrder, spans: TokenSpans, first: int, total: int) -> dict[int, int]:
    """The sequence that replaces each affected one of first .. first + total - 1."""
    affected = affected_positions(order, spans, first, total)
    others = replacement_positions(order, spans, first + total, len(affected))
    return dict(zip(affected.tolist(), others.tolist(), strict=True))


def _places(
    order: WindowOrder, spans: TokenSpans, first: int, count: int, *, affected: bool
) -> NDArray[np.int64]:
    touched = spans.touch(order.windows(first, count), order.length + 1)
    return first + np.flatnonzero(touched == affected)


class RemainingSequences(SequenceSampler):
    """Sampler of the sequences of a token stream without the forgotten documents.

    first, total   sequences of the run, from its first position in the order of the corpus on
    """

    def __init__(
        self,
        stream: TokenStream,
        context: int,
        seed: int,
        goldfish: Goldfish | None,
        masks: Rule,
        *,
        spans: TokenSpans,
        rule: ForgetRule,
        first: int,
        total: int,
    ) -> None:
        hidden: Any = _HiddenTokens(stream, spans)
        super().__init__(hidden, context, seed, goldfish, masks)
        self._spans = spans
        self._replaced: dict[int, int] = {}
        if rule == "replace":
            self._replaced = replacements(self._order, spans, first, total)

    def _starts(self, first: int, count: int) -> list[int]:
        starts = super()._starts(first, count)
        for position in self._replaced.keys() & set(range(first, first + count)):
            (starts[position - first],) = super()._starts(self._replaced[position], 1)
        return starts

    def _row(self, start: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        tokens, document, keep = super()._row(start)
        hidden = self._spans.contain(start, start + len(tokens))
        return tokens, document, keep & ~(hidden[1:] | hidden[:-1])
