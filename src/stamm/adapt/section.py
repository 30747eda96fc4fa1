"""Sections of `stamm run adapt.*`: the layers of a replaced activation, the experts with their controls."""

from __future__ import annotations

from stamm.adapt.records import (
    CarveFile,
    ReplacementFile,
    SparsifyFile,
    SwappedLayer,
    TextIdentity,
)
from stamm.base.schema import read_record_if_present
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable
from stamm.pages.formatting import fixed
from stamm.pages.section import Section, section_of
from stamm.pages.text import one_line
from stamm.runs.run_view import RunView

_MOST_ROWS = 400
_MOST_LAYERS = 100


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """Changes of a model with their costs; nothing where none was changed.

    Raises   DataError when its record does not follow its schema
    """
    record = read_record_if_present(ReplacementFile, run.root / "replacement" / "replacement.json")
    shown = []
    if record is not None:
        tables = {"Fit of every layer": replacement_table(record)}
        shown.append(section_of("replacement", "Replaced activation", tables=tables))
    carved = read_record_if_present(CarveFile, run.root / "carve" / "carve.json")
    if carved is not None:
        tables = {"Loss by carve and router": carve_table(carved)}
        shown.append(section_of("carve", "Carved experts", tables=tables))
    sparse = read_record_if_present(SparsifyFile, run.root / "sparsify" / "sparsify.json")
    if sparse is not None:
        tables = {"Units that are 0": sparse_table(sparse)}
        shown.append(section_of("sparsify", "Sparse activation", tables=tables))
    return tuple(shown)


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
    return (
        f"{one_line(text.name, 60)} ({text.tokens:,} tokens, SHA-256 {one_line(text.sha256, 12)})"
    )


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
            f"{one_line(record.before, 40)} to {one_line(record.after, 40)}, fitted on {record.tokens:,} tokens. "
            f"Loss in nats per token on {record.measured:,} others ({one_line(record.text, 60)}): "
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
