"""Figures of learned shape parameters: by depth, by step, and as curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stamm.activations.describe import LearnedCurve, learned_curve
from stamm.pages.config import ReportConfig
from stamm.pages.figure import DataTable, Figure, thinned
from stamm.pages.formatting import fixed, spaced
from stamm.pages.svg_figure import Axes, draw_panels, legend, whole_steps
from stamm.pages.theme import depth, drawn
from stamm.pretrain.results import ArmTraining
from stamm.runs.metric_series import Metrics
from stamm.runs.run_view import ArmView, RunView

MOST_PANELS = 3
MOST_LAYERS = 8  # curves in one panel that can still be distinguished
_REACH = 3.0
_GRID = 120


def shape_figures(
    run: RunView, arms: Sequence[tuple[ArmView, ArmTraining]], config: ReportConfig
) -> list[Figure]:
    """For each arm with learned activation parameters: by depth, over training, as curves."""
    figures = []
    for arm, training in arms:
        metrics = training.metrics
        names = learned_names(training)
        if metrics is None or not names:
            continue
        figures.append(_depth_figure(run, arm, training, metrics, names))
        figures.append(_training_figure(run, arm, training, metrics, names, config))
        curves = _curve_figure(run, arm, training, metrics, names)
        if curves is not None:
            figures.append(curves)
    return figures


def learned_names(training: ArmTraining) -> tuple[str, ...]:
    """The activation parameters of an arm that were trained, at most three.

    Constants of a catalogued activation are recorded with the rest and are not shown.
    """
    if training.metrics is None:
        return ()
    spec = training.spec
    names = training.metrics.shape_names()
    if spec is not None:
        trained = {parameter.name for parameter in spec.trainable}
        names = tuple(name for name in names if name in trained)
    return names[::-1][:MOST_PANELS]


def _means(training: ArmTraining) -> str:
    return (
        " Each neuron has its own shape; values are means over them." if training.per_neuron else ""
    )


def _depth_figure(
    run: RunView, arm: ArmView, training: ArmTraining, metrics: Metrics, names: tuple[str, ...]
) -> Figure:
    starts = _starts(training)
    ends = {
        name: [metrics.shapes[name, layer].values[-1] for layer in metrics.layers(name)]
        for name in names
    }

    def paint(panels: list[Axes]) -> None:
        for axes, name in zip(panels, names, strict=True):
            layers = metrics.layers(name)
            if name in starts:
                axes.axhline(starts[name], color=drawn("muted"), lw=1, ls=(0, (2, 2)))
                # Outside of the axes, where no dot, line or tick label can be.
                axes.annotate(
                    "start", (1, starts[name]), xycoords=("axes fraction", "data"), va="center",
                    xytext=(3, 0), textcoords="offset points", color=drawn("muted"), fontsize=8,
                )  # fmt: skip
            axes.vlines(
                layers, [starts.get(name, ends[name][0])] * len(layers), ends[name],
                color=drawn("line"), lw=1.2,
            )  # fmt: skip
            axes.plot(layers, ends[name], color=drawn("muted"), lw=0.8)
            for layer, value in zip(layers, ends[name], strict=True):
                axes.plot([layer], [value], "o", ms=6.5, color=depth(layer, layers[-1] + 1))
            axes.set_title(name)
            axes.set_xlabel("layer, from the input (0) upwards")
            axes.set_xticks([layers[i] for i in spaced(len(layers), 16)])
            axes.margins(x=0.08, y=0.2)

    rows = [
        [str(layer), *(_end(metrics, name, layer) for name in names)]
        for layer in metrics.layers(names[0])
    ]
    said = "; ".join(
        f"{name} from {fixed(ends[name][0], 3)} in the first layer to {fixed(ends[name][-1], 3)} "
        "in the last"
        for name in names
    )
    return Figure(
        key=f"depth-{arm.number}",
        title=f"{arm.name}: learned shape by depth",
        caption=(
            "Each layer has its own activation and learns its shape. Dots are the values at the "
            "end of training, the dotted line is where every layer began. A slope is a trend over "
            "depth. It does not show how nonlinear a layer is, since that also depends on where "
            "its inputs lie: `stamm observe` measures it." + _means(training)
        ),
        alt=f"Values after training: {said}.",
        svg=draw_panels(f"depth-{arm.number}", 2.6, paint, len(names)),
        data=DataTable(columns=("layer", *names), rows=tuple(tuple(row) for row in rows), words=0),
        source=f"{run.inside(arm)}metrics.jsonl",
        command=run.made_by(),
    )


def _training_figure(
    run: RunView,
    arm: ArmView,
    training: ArmTraining,
    metrics: Metrics,
    names: tuple[str, ...],
    config: ReportConfig,
) -> Figure:
    starts = _starts(training)

    def paint(panels: list[Axes]) -> None:
        for axes, name in zip(panels, names, strict=True):
            layers = metrics.layers(name)
            shown = {layers[i] for i in spaced(len(layers), MOST_LAYERS)}
            for layer in layers:
                curve = metrics.shapes[name, layer]
                steps, values = list(curve.steps), list(curve.values)
                if name in starts:
                    steps, values = [0, *steps], [starts[name], *values]
                axes.plot(
                    steps, values, color=depth(layer, layers[-1] + 1), lw=1.5,
                    label=f"layer {layer}" if layer in shown else None,
                )  # fmt: skip
            axes.set_title(name, pad=22)
            whole_steps(axes)
        legend(panels[0], columns=4)

    layers = metrics.layers(names[0])
    recorded = metrics.shapes[names[0], layers[0]].steps
    columns = ["step", *(f"{name}, layer {i}" for name in names for i in metrics.layers(name))]
    rows = [
        [
            str(step),
            *(
                fixed(metrics.shapes[name, layer].values[at], 4)
                for name in names
                for layer in metrics.layers(name)
            ),
        ]
        for at, step in enumerate(recorded)
        if all(at < len(curve.values) for curve in metrics.shapes.values())
    ]
    return Figure(
        key=f"shape-{arm.number}",
        title=f"{arm.name}: the shape over training",
        caption=(
            "The same parameters during training, one line for each layer. Lines that still change "
            "at the end show that the run was too short for the shapes to converge."
            + _means(training)
        ),
        alt=f"{' and '.join(names)} of {len(layers)} layers over {recorded[-1]} steps.",
        svg=draw_panels(f"shape-{arm.number}", 2.8, paint, len(names)),
        data=thinned(columns, rows, config.rows, "metrics.jsonl", words=0),
        source=f"{run.inside(arm)}metrics.jsonl",
        command=run.made_by(),
    )


def _curve_figure(
    run: RunView, arm: ArmView, training: ArmTraining, metrics: Metrics, names: tuple[str, ...]
) -> Figure | None:
    spec = training.spec
    layers = metrics.layers(names[0])
    complete = all(metrics.layers(name) == layers for name in names)
    if spec is None or not complete or {p.name for p in spec.trainable} != set(names):
        return None
    grid = [-_REACH + 2 * _REACH * i / _GRID for i in range(_GRID + 1)]
    shown = [layers[i] for i in spaced(len(layers), MOST_LAYERS)]
    curves: dict[int, LearnedCurve] = {}
    for layer in shown:
        learned = {name: metrics.shapes[name, layer].values[-1] for name in names}
        if not all(math.isfinite(value) for value in learned.values()):
            return None
        curves[layer] = learned_curve(spec, learned, grid)
    begun = learned_curve(spec, {}, grid)

    def paint(panels: list[Axes]) -> None:
        for axes, part, title in zip(
            panels, ("value", "slope"), ("f(x)", "its gradient f\u2032(x)"), strict=True
        ):
            axes.plot(
                begun.x, getattr(begun, part), color=drawn("muted"), lw=1.2, ls=(0, (2, 2)),
                label="start",
            )  # fmt: skip
            for layer, curve in curves.items():
                axes.plot(
                    curve.x, getattr(curve, part), lw=1.5, color=depth(layer, layers[-1] + 1),
                    label=f"layer {layer}",
                )  # fmt: skip
            axes.axvline(0, color=drawn("line"), lw=0.8)
            axes.axhline(0, color=drawn("line"), lw=0.8)
            axes.set_title(title, pad=22)
            axes.set_xlabel("x, the input of the activation")
        legend(panels[0], columns=5)

    columns = ["x", *(f"{what}, layer {layer}" for layer in shown for what in ("f", "f\u2032"))]
    rows = [
        [
            fixed(x, 2),
            *(
                fixed(v, 4)
                for layer in shown
                for v in (curves[layer].value[i], curves[layer].slope[i])
            ),
        ]
        for i, x in enumerate(grid)
        if i % 6 == 0
    ]
    what = "of the gate " if "Gated" in type(spec.arity).__name__ else ""
    return Figure(
        key=f"curve-{arm.number}",
        title=f"{arm.name}: the learned curves",
        caption=(
            f"The activation {what}of each layer at the end, and its gradient, by which it is "
            "defined. The dotted curve is the common start. The curves are integrated from the "
            "gradient of the spec at each layer's learned values." + _means(training)
        ),
        alt=f"Curves of {spec.name} and of its gradient for layers {', '.join(map(str, shown))}.",
        svg=draw_panels(f"curve-{arm.number}", 3.1, paint, 2),
        data=thinned(columns, rows, 60, "this table", words=0),
        source=f"{run.inside(arm)}metrics.jsonl; stamm show {spec.name}",
        command=run.made_by(),
    )


def _starts(training: ArmTraining) -> dict[str, float]:
    spec = training.spec
    return spec.initial_values() if spec else {}


def _end(metrics: Metrics, name: str, layer: int) -> str:
    curve = metrics.shapes.get((name, layer))
    return fixed(curve.values[-1], 4) if curve else ""
