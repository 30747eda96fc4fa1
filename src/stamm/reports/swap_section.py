"""The layers of a model whose activation was replaced (`stamm run adapt.activation`)."""

from __future__ import annotations

from stamm.reports.figure import DataTable
from stamm.reports.formatting import fixed
from stamm.reports.text import one_line
from stamm.runs.schemas.adaptation import SwapFile, SwappedLayer

_MOST_ROWS = 400


def swap_table(found: SwapFile) -> DataTable:
    """Scales, shapes and errors of every layer, with the losses in the note."""
    initial = "not finite" if found.initial_loss is None else f"{fixed(found.initial_loss, 4)}"
    return DataTable(
        columns=(
            "layer", "learned shape", "input scale", "output scale", "error of f, unfitted",
            "error of f, fitted", "error of the block, scaled matrix", "error of the block, refit matrix",
        ),
        rows=tuple(_row(layer) for layer in found.layers[:_MOST_ROWS]),
        words=2,
        note=(
            f"{one_line(found.before, 40)} to {one_line(found.after, 40)}, fitted on {found.tokens:,} tokens. "
            f"Loss in nats per token on {found.measured:,} others ({one_line(found.text, 60)}): "
            f"{fixed(found.loss, 4)} before, {initial} with initial shapes and the old matrices, "
            f"{fixed(found.swapped_loss, 4)} fitted. Errors are shares of the mean square that is missed."
        ),
    )  # fmt: skip


def _row(one: SwappedLayer) -> tuple[str, ...]:
    shape = ", ".join(
        f"{one_line(name, 30)} {fixed(value, 3)}"
        for name, value in list(one.parameters.items())[:4]
    )
    initial = "not finite" if one.initial_error is None else fixed(one.initial_error, 4)
    return (
        str(one.layer),
        shape or "none",
        fixed(one.input_scale, 3),
        fixed(one.output_scale, 3),
        initial,
        fixed(one.error, 4),
        fixed(one.scaled_output_error, 4),
        fixed(one.output_error, 4),
    )
