"""One trained arm as its folder tells it: what it is, how its training went, what it learned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stamm.activations.spec import Spec
from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, DataError
from stamm.reports.json_reader import Record, lines_of, record_if_there
from stamm.reports.learned_curve import known_spec

_SHAPE = re.compile(r"shape/layers\.([0-9]{1,4})\.([a-z][a-z0-9_]{0,63})")


@dataclass(frozen=True, kw_only=True)
class Series:
    """A quantity by step."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What was recorded while training.

    loss            nats per kept token, of each step
    learning_rate   of each step
    gradient_norm   before clipping, of each step
    shapes          effective activation parameter by (name, layer), on some steps
    """

    loss: Series
    learning_rate: Series
    gradient_norm: Series
    shapes: Mapping[tuple[str, int], Series]

    def shape_names(self) -> tuple[str, ...]:
        """The parameters that were learned, in alphabetical order."""
        return tuple(sorted({name for name, _ in self.shapes}))

    def layers(self, name: str) -> tuple[int, ...]:
        """The layers that have the parameter `name`, from the first on."""
        return tuple(sorted(layer for other, layer in self.shapes if other == name))


@dataclass(frozen=True, kw_only=True)
class GoldfishCoverage:
    """What the Goldfish mask did to the tokens seen.

    k               one label in k should be masked
    h               tokens in a hash window
    gap_quantiles   lengths of runs of learned labels at 50, 90, 99 and 100 %
    long_share      share of labels in learned runs of more than 100
    zero_share      share of windows that the released hash maps to zero
    """

    hash: str
    k: int
    h: int
    labels: int
    masked: int
    rate: float
    gap_quantiles: tuple[float, ...]
    long_share: float
    zero_share: float


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something beside the plan: a spike, a loss that is no number, steps passed over.

    facts   names and values as recorded: untrusted
    """

    step: int
    kind: str
    facts: tuple[tuple[str, object], ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The end of a training run.

    decay_start_step   the step after which the learning rate falls
    events             in the order in which they happened; None where none were recorded, not
                       even that there were none
    """

    parameters: int
    steps: int
    trained_tokens: int
    epochs: float
    flops: float
    decay_start_step: int
    goldfish: GoldfishCoverage | None
    events: tuple[Event, ...] | None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Wall clock; not reproducible. The median is None where no step was learned from."""

    seconds: float
    tokens_per_s_median: float | None
    peak_gib: float
    compiled: bool
    threads: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """The configuration of an arm and how it was trained; None where a file is missing.

    spec   of the activation; None for a name that the catalogue does not have
    """

    activation: str | None
    spec: Spec | None
    ffn_kind: str | None
    ffn_width: int | None
    seed: int | None
    metrics: Metrics | None
    summary: Summary | None
    timing: Timing | None


def read_training(folder: Path) -> Training:
    """The training of the arm in `folder`.

    Raises   DataError when a file is there and is not what it should be.
    """
    config = record_if_there(folder / "config.json", schema=1)
    ffn = seed = None
    if config is not None:
        tree = config.record("config")
        ffn = tree.record("model").record("ffn")
        seed = tree.whole("seed") if tree.has("seed") else None
    summary = record_if_there(folder / "summary.json", schema=1)
    timing = record_if_there(folder / "log" / "timing.json", schema=1)
    metrics = folder / "metrics.jsonl"
    activation, spec = _activation(ffn) if ffn else (None, None)
    return Training(
        activation=activation,
        spec=spec,
        ffn_kind=ffn.text("kind") if ffn else None,
        ffn_width=ffn.whole("width") if ffn else None,
        seed=seed,
        metrics=_read_metrics(metrics) if metrics.exists() else None,
        summary=_summary(summary) if summary else None,
        timing=_timing(timing) if timing else None,
    )


def _activation(ffn: Record) -> tuple[str, Spec | None]:
    """Name and spec of an activation: a name of the catalogue, or the spec of a user's own."""
    if isinstance(ffn.plain.get("activation"), str):
        name = ffn.text("activation")
        return name, known_spec(name)
    own = ffn.record("activation")
    try:
        spec = from_plain(Spec, own.plain, own.where)
    except ConfigError as error:
        raise DataError(error.what, where=own.where, fix=error.fix) from None
    return spec.name, spec


def _read_metrics(path: Path) -> Metrics:
    columns: dict[str, tuple[list[int], list[float]]] = {}
    shapes: dict[tuple[str, int], tuple[list[int], list[float]]] = {}
    last = 0
    for line in lines_of(path):
        step = line.whole("step")
        if step <= last:
            raise DataError(
                f"{line.where}: step {step} follows step {last}",
                fix="Two runs wrote this file: delete the folder and run the step again",
            )
        last = step
        for key in line.plain:
            match = _SHAPE.fullmatch(key)
            if match:
                at = shapes.setdefault((match[2], int(match[1])), ([], []))
            elif key in _COLUMNS:
                at = columns.setdefault(key, ([], []))
            else:
                continue
            at[0].append(step)
            at[1].append(line.number(key))
    loss, rate, norm = (_series(columns.get(name, ([], []))) for name in _COLUMNS)
    return Metrics(
        loss=loss,
        learning_rate=rate,
        gradient_norm=norm,
        shapes={key: _series(at) for key, at in sorted(shapes.items())},
    )


_COLUMNS = ("train/loss_nats", "optim/learning_rate", "optim/gradient_norm")


def _series(at: tuple[list[int], list[float]]) -> Series:
    return Series(steps=tuple(at[0]), values=tuple(at[1]))


def _summary(record: Record) -> Summary:
    return Summary(
        parameters=record.whole("parameters"),
        steps=record.whole("steps"),
        trained_tokens=record.whole("trained_tokens"),
        epochs=record.number("epochs"),
        flops=record.number("flops"),
        decay_start_step=record.whole("decay_start_step"),
        goldfish=_coverage(record.record("goldfish")) if record.has("goldfish") else None,
        events=tuple(map(_event, record.records("events"))) if record.has("events") else None,
    )


def _event(record: Record) -> Event:
    return Event(
        step=record.whole("step"),
        kind=record.text("event"),
        facts=tuple((k, v) for k, v in record.plain.items() if k not in ("step", "event")),
    )


def _timing(record: Record) -> Timing:
    return Timing(
        seconds=record.number("seconds"),
        tokens_per_s_median=record.number("tokens_per_s_median")
        if record.has("tokens_per_s_median")
        else None,
        peak_gib=record.number("peak_gib"),
        compiled=record.flag("compiled"),
        threads=record.whole("threads"),
    )


def _coverage(record: Record) -> GoldfishCoverage:
    if record.whole("k") < 2:
        raise record.wrong("k", "at least 2: k = 1 would mask every label")
    if len(record.numbers("gap_quantiles")) != 4:
        raise record.wrong("gap_quantiles", "the four lengths at 50, 90, 99 and 100 %")
    return GoldfishCoverage(
        hash=record.text("hash"),
        k=record.whole("k"),
        h=record.whole("h"),
        labels=record.whole("labels"),
        masked=record.whole("masked"),
        rate=record.number("rate"),
        gap_quantiles=record.numbers("gap_quantiles"),
        long_share=record.number("long_share"),
        zero_share=record.number("zero_share"),
    )
