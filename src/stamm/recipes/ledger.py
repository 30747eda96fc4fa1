"""Read a run's corpus: rows of its ledger and its packed tokens."""

from __future__ import annotations

import os
from pathlib import Path

from stamm.corpus.lookup import LedgerMatches, look_up
from stamm.corpus.packed_dataset import PackedSplit
from stamm.recipes.run_folder import RunFolder

_ROWS = 1000


def ledger(
    run: str | os.PathLike[str] | RunFolder, *, limit: int = _ROWS, **columns: str
) -> LedgerMatches:
    """Rows of a run's ledger: which documents are kept or dropped, and why.

        stamm.ledger("runs/demo", decision="dropped", url="https://example.org/*").rows

    columns   values to match, * and ? as wildcards: url, host, decision, reason, language, licence,
              source, consent ... (`stamm.corpus.lookup.COLUMNS`)
    limit     rows returned; `count` of the result counts all matches
    Raises    ConfigError for an unknown column; DataError when the run has no ledger.
    """
    return look_up(_root(run), columns, limit)


def open_pack(run: str | os.PathLike[str] | RunFolder, split: str = "train") -> PackedSplit:
    """The packed tokens of a run: `read(start, stop)` returns token ids.

    split     "train" or "held_out"
    Raises    DataError when the run has no packed corpus or no such split.
    """
    return PackedSplit.open(_root(run) / "pack", split)


def _root(run: str | os.PathLike[str] | RunFolder) -> Path:
    return run.root if isinstance(run, RunFolder) else Path(run)
