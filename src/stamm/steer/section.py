"""The page of steering vectors: effect against KL by layer and strength, beside random directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stamm.pages.figure import DataTable, Figure
from stamm.pages.formatting import fixed, signed
from stamm.pages.section import Section, section_of
from stamm.pages.svg_figure import Axes, draw_panels, legend
from stamm.pages.text import one_line
from stamm.pages.theme import depth, drawn
from stamm.steer.records import SteerFile, SteerMeasures

_MOST_ROWS = 400
_LEAST_KL = 1e-6  # of the logarithmic axis
_TICKS = [n * 10.0**power for power in range(-6, 3) for n in (1, 3)]
_MOST_TICKS = 7
_COLUMNS = ("layer", "strength", "direction", "effect", "KL, nats a token", "loss, positive", "loss, negative")  # fmt: skip


def steering_section(steering: SteerFile) -> Section:
    """The section about the directions of a model."""
    kinds = "; ".join(
        f"{word}: {one_line(texts.name, 60)}, {texts.texts:,} texts, {texts.tokens:,} measured tokens, loss {texts.loss:.3f}"
        for word, texts in (("positive", steering.positive), ("negative", steering.negative))
    )
    word = "Recommendation" if steering.recommended is not None else "No recommendation"
    paragraphs = [
        f"{word}: {steering.verdict}.",
        f"Texts, half of which the directions are fitted to and half measured: {kinds}.",
    ]
    if steering.no_gguf:
        paragraphs.append(f"No vector.gguf: {one_line(steering.no_gguf, 300)}")
    heading = "What the directions do, and what they cost"
    return section_of(
        "steering", "Steering", heading=heading, paragraphs=paragraphs, figures=(_figure(steering),)
    )


def kl_ticks(low: float, high: float) -> list[float]:
    """Values of KL that are written below an axis from low to high: as many as have room, of 1 and 3 times powers of 10."""
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    return ticks[:: max(1, -(-len(ticks) // _MOST_TICKS))]


def _figure(steering: SteerFile) -> Figure:
    layers = sorted({row.layer for row in steering.rows})

    def paint(panels: list[Axes]) -> None:
        for axes, name in zip(panels, ("effect", "negative_loss"), strict=True):

            def plot(points: Sequence[SteerMeasures], style: str, **look: Any) -> None:
                kl = [max(point.kl, _LEAST_KL) for point in points]
                axes.plot(kl, [getattr(point, name) for point in points], style, ms=4, **look)  # noqa: B023

            random = [measures for row in steering.rows for measures in row.random]
            plot(random, ".", color=drawn("muted"), label="random")
            for layer in layers:
                points = [row.vector for row in steering.rows if row.layer == layer]
                plot(points, "o-", color=depth(layer, max(layers) + 1), label=f"layer {layer}")
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            ticks = kl_ticks(low, high)
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.set_xticks([], minor=True)
            axes.set_xlabel("KL to the unsteered model, nats a token")
        panels[0].set_title("effect: change of the log-odds of positive tokens", pad=22)
        panels[1].set_title("loss on the negative texts, nats a token", pad=22)
        if len(layers) <= 8:
            legend(panels[0], columns=5)

    rows = [
        (str(row.layer), f"{row.strength:g}", f"random {number}" if number else "vector", signed(measures.effect, 3),
         fixed(measures.kl, 4), fixed(measures.positive_loss, 3), fixed(measures.negative_loss, 3))
        for row in steering.rows
        for number, measures in enumerate((row.vector, *row.random))
    ]  # fmt: skip
    rest = len(rows) - _MOST_ROWS
    note = f"{rest:,} more rows are in steer.json." if rest > 0 else ""
    return Figure(
        key="effect",
        title="Effect against KL",
        caption=(
            "A line joins the strengths of a layer; dots are random directions of equal length. A direction is worth its "
            "KL where it lies far above the dots at the same KL."
        ),
        alt=steering.verdict,
        svg=draw_panels("effect", 3.0, paint, 2),
        data=DataTable(columns=_COLUMNS, rows=tuple(rows[:_MOST_ROWS]), words=3, note=note),
        source="steer.json",
        command="stamm steer",
    )
