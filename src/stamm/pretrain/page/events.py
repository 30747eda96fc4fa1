"""Training events as a table of bounded length: loss spikes, non-finite losses, skipped steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from stamm.pages.figure import DataTable, thinned
from stamm.pages.text import one_line
from stamm.pretrain.records import TrainingEvent
from stamm.pretrain.results import ArmTraining

_LONGEST = 60
_MOST_FACTS = 8
_SHORT = {"loss", "gradient_norm", "limit"}


def events_table(trainings: Sequence[tuple[str, ArmTraining]], limit: int) -> DataTable | None:
    """The events of runs with their names; None where no run recorded whether there were any.

    limit   longest table; a longer one is thinned
    """
    known = [
        (name, training.summary.events)
        for name, training in trainings
        if training.summary is not None and training.summary.events is not None
    ]
    if not known:
        return None
    rows = [
        (one_line(name, _LONGEST), f"{event.step:,}", one_line(event.kind, _LONGEST), _facts(event))
        for name, events in known
        for event in events
    ]
    table = thinned(("run", "step", "event", "facts"), rows, limit, "summary.json", words=4)
    return DataTable(
        columns=table.columns, rows=table.rows, words=table.words, note=_note(rows, table.note)
    )


def _note(rows: Sequence[tuple[str, ...]], thinning: str) -> str:
    kinds = Counter(row[2] for row in rows).most_common(_MOST_FACTS)
    counted = f"In all {', '.join(f'{count:,} × {kind}' for kind, count in kinds)}."
    return f"{counted} {thinning}".strip() if rows else ""


def _facts(event: TrainingEvent) -> str:
    shown = [
        _fact(name, value) for name, value in itertools.islice(event.facts.items(), _MOST_FACTS)
    ]
    more = len(event.facts) - len(shown)
    return ", ".join([*shown, *([f"and {more:,} more"] if more > 0 else [])])


def _fact(name: str, value: object) -> str:
    if isinstance(value, str) and name in _SHORT:
        value = _rounded(value)
    plain = value if isinstance(value, (str, int, float)) else "a list or an object"
    try:
        return f"{one_line(name.replace('_', ' '), _LONGEST)} {one_line(str(plain), _LONGEST)}"
    except ValueError:  # Python writes no integer of over 4,300 digits
        return f"{one_line(name, _LONGEST)} a number of thousands of digits"


def _rounded(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text
