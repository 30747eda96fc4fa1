"""Sections of `stamm run adapt.*`: layers of a replaced activation, experts with their controls, faults."""

from __future__ import annotations

import math
from typing import Any

from stamm.adapt.records import (
    CarveFile,
    ReplacementFile,
    SparsifyFile,
    StressFile,
    SwappedLayer,
    TextIdentity,
)
from stamm.base.schema import read_record_if_present
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable, Figure, thinned
from stamm.pages.formatting import fixed
from stamm.pages.section import Section, section_of
from stamm.pages.svg_figure import Axes, draw_panels, legend
from stamm.pages.text import one_line
from stamm.pages.theme import series
from stamm.runs.run_view import RunView

_MOST_ROWS = 400
_MOST_LAYERS = 100


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """Changes of a model with their costs; nothing where none was changed.

    Raises   DataError when its record does not follow its schema
    """
    shown = []
    for kind, name, title, heading, table in _CHANGES:
        if record := read_record_if_present(kind, run.root / name / f"{name}.json"):
            shown.append(section_of(name, title, tables={heading: table(record)}))
    if stress := read_record_if_present(StressFile, run.root / "stress" / "stress.json"):
        figures = [stress_figure(stress, run.made_by())]
        shown.append(section_of("stress", "Flipped bits and noise", figures=figures))
    return tuple(shown)


def stress_figure(record: StressFile, command: str) -> Figure:
    """The loss by position of a flipped bit and by noise, with and without the clip."""
    kinds = ("bfloat16", "int8", "noise")

    def paint(panels: list[Axes]) -> None:
        for axes, kind in zip(panels, kinds, strict=True):
            points = [point for point in record.points if point.kind == kind]
            for number, name in enumerate(("loss", "clipped")):
                x, losses = [point.at for point in points], [getattr(p, name) for p in points]
                above = [[math.inf if y is None else y - record.loss for y in ys] for ys in losses]
                low, middle, high = zip(*above, strict=True)
                axes.plot(x, middle, "o-", ms=3, color=series(number), label=name)
                axes.fill_between(x, low, high, color=series(number), alpha=0.2, lw=0)
            if any(0.01 < y < math.inf for y in high):
                axes.set_yscale("symlog", linthresh=0.01)
            axes.set_xlabel("noise over rms" if kind == "noise" else f"bit of {kind}")
        panels[0].set_ylabel("nats per token above no fault")
        legend(panels[0])

    controls = ", ".join(f"{one_line(k, 20)} {v:.4f}" for k, v in record.controls.items())
    caption = (
        f"A bit is flipped in {record.rate:g} of the feed-forward weights: in bfloat16 15 is the sign, 14 to 7 the exponent, the "
        f"others the mantissa; in INT8 7 is the sign. Medians of 20 draws, 95 % intervals, on {_text(record.measured)}; clipped "
        f"at the largest sizes on {_text(record.calibration)}. Without faults {record.loss:.4f}; {controls}. Not drawn: not finite."
    )
    rows = [
        (p.kind, p.clip, f"{p.at:g}", *("not finite" if y is None else fixed(y, 4) for y in (*p.loss, *p.clipped)))
        for p in record.points
    ]  # fmt: skip
    columns = ("fault", "the clip", "at", "low", "loss", "high", "low, clipped", "clipped", "high, clipped")  # fmt: skip
    return Figure(
        key="stress", title="Loss with flipped bits and with noise", caption=caption, alt=caption,
        svg=draw_panels("stress", 2.6, paint, len(kinds)), data=thinned(columns, rows, _MOST_ROWS, "stress.json", 2),
        source="stress/stress.json", command=command,
    )  # fmt: skip


def sparse_table(record: SparsifyFile) -> DataTable:
    """Thresholds and zeros of every layer, with the losses in the note."""
    dense = record.unthresholded_loss
    swapped = (
        "" if dense is None else f"{fixed(dense, 4)} with {one_line(record.after, 40)} uncut, "
    )
    return DataTable(
        columns=("layer", "threshold", "zero before", "zero with the threshold"),
        rows=tuple(
            (str(x.layer), f"{x.threshold:.4g}", fixed(x.zeros, 4), fixed(x.skipped, 4))
            for x in record.layers[:_MOST_ROWS]
        ),
        words=0,
        note=(
            f"{one_line(record.before, 40)} to {one_line(record.after, 40)}, before further training. Fitted on "
            f"{_text(record.calibration)}; measured on {_text(record.measured)}. Loss in nats per token: "
            f"{fixed(record.loss, 4)} before, {swapped}{fixed(record.sparse_loss, 4)} with the thresholds, "
            f"{fixed(record.random_loss, 4)} with as many acting units set to 0 at random. Zeros are counted in "
            "the outputs of the activation; no decoder of stamm skips their rows."
        ),
    )


def carve_table(record: CarveFile) -> DataTable:
    """Losses of the carved model and of its controls, with what decoding multiplied in the note."""
    arms = [
        (arm.carve, arm.router or "none", "yes" if arm.refit else "no", str(arm.draws), arm.loss)
        for arm in record.arms[:20]
    ]
    rows = [
        ("dense", "none", "no", "1", record.loss),
        ("balanced, as stored", "linear", "yes", "1", record.carved_loss),
        *arms,
    ]
    errors = ", ".join(fixed(error, 4) for error in record.layer_errors[:_MOST_LAYERS])
    return DataTable(
        columns=(
            "carve",
            "router",
            "last matrix refit",
            "draws",
            "loss, nats per token",
            "above dense",
        ),
        rows=tuple((*words, fixed(loss, 4), fixed(loss - record.loss, 4)) for *words, loss in rows),
        words=3,
        note=(
            f"{record.active} of {record.experts} experts, {record.shared} of them shared, before further training. "
            f"Fitted on {_text(record.calibration)}; measured on {_text(record.measured)}. "
            f"Decoding {record.decoded} tokens multiplied {record.multiplied:,} of {record.slices:,} expert "
            f"slices. Share of each block's output that is missed where it was fitted: {errors}. Oracle: the experts "
            "with the largest contributions, which no router knows. Static: units pruned for good, as many."
        ),
    )


def _text(text: TextIdentity) -> str:
    return f"{one_line(text.name, 60)} ({text.tokens:,} tokens, SHA-256 {text.sha256[:12]})"


def replacement_table(record: ReplacementFile) -> DataTable:
    """Scales, shapes and errors of every layer, with the losses in the note."""
    initial = "not finite" if record.initial_loss is None else f"{fixed(record.initial_loss, 4)}"
    return DataTable(
        columns=(
            "layer", "learned shape", "input scale", "output scale", "error of f, unfitted",
            "error of f, fitted", "error of the block, scaled matrix", "error of the block, refit matrix",
        ),
        rows=tuple(_row(layer) for layer in record.layers[:_MOST_ROWS]),
        words=2,
        note=(
            f"{one_line(record.before, 40)} to {one_line(record.after, 40)}, fitted on {_text(record.calibration)}. "
            f"Loss in nats per token on {_text(record.measured)}: "
            f"{fixed(record.loss, 4)} before, {initial} with initial shapes and the old matrices, "
            f"{fixed(record.swapped_loss, 4)} fitted. Errors are shares of the mean square that is missed."
        ),
    )  # fmt: skip


def _row(layer: SwappedLayer) -> tuple[str, ...]:
    shape = ", ".join(
        f"{one_line(name, 30)} {fixed(value, 3)}"
        for name, value in list(layer.parameters.items())[:4]
    )
    initial = "not finite" if layer.initial_error is None else fixed(layer.initial_error, 4)
    return (
        str(layer.layer),
        shape or "none",
        fixed(layer.input_scale, 3),
        fixed(layer.output_scale, 3),
        initial,
        fixed(layer.error, 4),
        fixed(layer.scaled_output_error, 4),
        fixed(layer.output_error, 4),
    )


_CHANGES: tuple[tuple[Any, str, str, str, Any], ...] = (
    (
        ReplacementFile,
        "replacement",
        "Replaced activation",
        "Fit of every layer",
        replacement_table,
    ),
    (CarveFile, "carve", "Carved experts", "Loss by carve and router", carve_table),
    (SparsifyFile, "sparsify", "Sparse activation", "Units that are 0", sparse_table),
)
