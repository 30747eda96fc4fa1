"""metrics.jsonl of a training run as series by step."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.receipts import Stamp, check_file, stamp_of
from stamm.base.schema import decode, read_lines
from stamm.pretrain.records import MetricsLine

_SHAPE = re.compile(r"shape/layers\.([0-9]{1,4})\.([a-z][a-z0-9_]{0,63})")
_PREFERENCE = re.compile(r"(reward|representation)/[a-z][a-z0-9_]{0,63}")
_EVALUATION = re.compile(r"evaluate/[a-z0-9_]{1,40}/[a-z_]{1,40}")
_COLUMNS = ("train/loss_nats", "optim/learning_rate", "optim/gradient_norm")
_FILES = 32  # that are kept parsed: several sections of a page draw the same ones


@dataclass(frozen=True, kw_only=True)
class Series:
    """A quantity by step."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics of a training run.

    loss            nats per kept token, of each step
    learning_rate   of each step
    gradient_norm   before clipping, of each step
    shapes          effective activation parameter by (name, layer), on some steps
    preference      metrics of a preference objective by name ("reward/accuracy"), of each step;
                    "representation/..", on some steps
    evaluations     metrics of evaluation during training ("evaluate/held_out/bits_per_byte")
    """

    loss: Series
    learning_rate: Series
    gradient_norm: Series
    shapes: Mapping[tuple[str, int], Series]
    preference: Mapping[str, Series]
    evaluations: Mapping[str, Series]

    def shape_names(self) -> tuple[str, ...]:
        """Names of the trainable shape parameters, in alphabetical order."""
        return tuple(sorted({name for name, _ in self.shapes}))

    def layers(self, name: str) -> tuple[int, ...]:
        """Layers that have the parameter `name`, from the first on."""
        return tuple(sorted(layer for other, layer in self.shapes if other == name))


def read_series(path: Path) -> Metrics:
    """The metrics in a file, parsed once until it changes.

    Raises   DataError when a line does not follow its schema, the steps do not rise, or the file does
             not match its receipt
    """
    check_file(path)
    return _parsed(path, stamp_of(path))


@functools.lru_cache(maxsize=_FILES)
def _parsed(path: Path, stamp: Stamp) -> Metrics:
    """The metrics in a file of this inode, size and times."""
    columns: dict[Any, tuple[list[int], list[float]]] = {}
    last = -1
    for number, line in enumerate(read_lines(MetricsLine, path), start=1):
        where = f"{path}, line {number}"
        if line.step <= last:
            raise DataError(
                f"{where}: step {line.step} follows step {last}",
                fix="Two runs wrote this file: delete the folder and run the step again",
            )
        last = line.step
        for key, value in line.values.items():
            match = _SHAPE.fullmatch(key)
            known = key in _COLUMNS or _PREFERENCE.fullmatch(key) or _EVALUATION.fullmatch(key)
            if match or known:
                column = (match[2], int(match[1])) if match else key
                steps, values = columns.setdefault(column, ([], []))
                steps.append(line.step)
                values.append(decode(float, value, where, key))
    series = {
        key: Series(steps=tuple(steps), values=tuple(values))
        for key, (steps, values) in columns.items()
    }
    loss, rate, norm = (series.pop(name, Series()) for name in _COLUMNS)
    named = {key: series.pop(key) for key in sorted(k for k in series if isinstance(k, str))}
    evaluations = {key: named.pop(key) for key in list(named) if key.startswith("evaluate/")}
    return Metrics(
        loss=loss,
        learning_rate=rate,
        gradient_norm=norm,
        shapes=dict(sorted(series.items())),
        preference=named,
        evaluations=evaluations,
    )
