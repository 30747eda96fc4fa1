"""Section "Replaced activation": the layers of a model that `stamm run adapt.activation` fitted."""

from __future__ import annotations

from stamm.adapt.records import ReplacementFile, SwappedLayer
from stamm.base.schema import read_record_if_present
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable
from stamm.pages.formatting import fixed
from stamm.pages.section import Section, section_of
from stamm.pages.text import one_line
from stamm.runs.run_view import RunView

_MOST_ROWS = 400


def sections(run: RunView, config: ReportConfig) -> tuple[Section, ...]:
    """The fit of a replaced activation; nothing where none was replaced.

    Raises   DataError when its record does not follow its schema
    """
    record = read_record_if_present(ReplacementFile, run.root / "replacement" / "replacement.json")
    if record is None:
        return ()
    tables = {"Fit of every layer": replacement_table(record)}
    return (section_of("replacement", "Replaced activation", tables=tables),)


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
