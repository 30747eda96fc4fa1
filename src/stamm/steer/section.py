"""The page of steering vectors: effect against KL by layer and strength, beside random directions."""

from __future__ import annotations

from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import fixed, signed
from stamm.pages.section import Section, section_of
from stamm.pages.svg_figure import Axes, draw_panels, legend
from stamm.pages.text import one_line
from stamm.pages.theme import depth, drawn
from stamm.steer.records import SteerFile, SteerMeasures, SteerRow

_MOST_ROWS = 400
_LEAST_KL = 1e-6  # of the logarithmic axis


def steering_section(steering: SteerFile) -> Section:
    """The section about the directions of a model."""
    kinds = "; ".join(
        f"{word}: {one_line(texts.name, 60)}, {texts.texts:,} texts, {texts.tokens:,} measured tokens, loss {texts.loss:.3f}"
        for word, texts in (("positive", steering.positive), ("negative", steering.negative))
    )
    word = "Recommendation" if steering.recommended is not None else "No recommendation"
    said = [
        f"{word}: {steering.verdict}.",
        f"Texts, half of which the directions are fitted to and half measured: {kinds}.",
    ]
    if steering.no_gguf:
        said.append(f"No vector.gguf: {one_line(steering.no_gguf, 300)}")
    return section_of(
        "steering",
        "Steering",
        heading="What the directions do, and what they cost",
        paragraphs=said,
        figures=(_figure(steering),),
        tables={"Every measurement": _table(steering)},
    )


def _figure(steering: SteerFile) -> Figure:
    layers = sorted({row.layer for row in steering.rows})

    def paint(panels: list[Axes]) -> None:
        for axes, name in zip(panels, ("effect", "negative_loss"), strict=True):
            random = [one for row in steering.rows for one in row.random]
            axes.plot(
                [max(one.kl, _LEAST_KL) for one in random], [getattr(one, name) for one in random], ".", ms=4,
                color=drawn("muted"), label="random",
            )  # fmt: skip
            for layer in layers:
                rows = [row.vector for row in steering.rows if row.layer == layer]
                axes.plot(
                    [max(one.kl, _LEAST_KL) for one in rows], [getattr(one, name) for one in rows], "o-", ms=4, lw=1.2,
                    color=depth(layer, max(layers) + 1), label=f"layer {layer}",
                )  # fmt: skip
            axes.set_xscale("log")
            axes.set_xlabel("KL to the unsteered model, nats a token")
        panels[0].set_title("effect: change of the log-odds of positive tokens", pad=22)
        panels[1].set_title("loss on the negative texts, nats a token", pad=22)
        if len(layers) <= 8:
            legend(panels[0], columns=5)

    table = _table(steering)
    return Figure(
        key="effect",
        title="Effect against KL",
        caption=(
            "A line joins the strengths of a layer; dots are random directions of equal length. A direction is worth its "
            "KL where it lies far above the dots at the same KL."
        ),
        alt=steering.verdict,
        svg=draw_panels("effect", 3.0, paint, 2),
        data=table,
        source="steer.json",
        command="stamm steer",
    )


def _table(steering: SteerFile) -> DataTable:
    rows = [
        (str(row.layer), f"{row.strength:g}", name, signed(one.effect, 3), fixed(one.kl, 4),
         fixed(one.positive_loss, 3), fixed(one.negative_loss, 3))
        for row in steering.rows
        for name, one in _named(row)
    ]  # fmt: skip
    left = len(rows) - _MOST_ROWS
    return DataTable(
        columns=(
            "layer", "strength", "direction", "effect", "KL, nats a token", "loss, positive", "loss, negative",
        ),
        rows=tuple(rows[:_MOST_ROWS]),
        words=3,
        note=f"{left:,} more rows are in steer.json." if left > 0 else "",
    )  # fmt: skip


def _named(row: SteerRow) -> list[tuple[str, SteerMeasures]]:
    random = [(f"random {number}", one) for number, one in enumerate(row.random, 1)]
    return [("vector", row.vector), *random]
