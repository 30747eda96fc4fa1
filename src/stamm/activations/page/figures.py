"""Figures of one activation: the function, its gradient, its curvature, its parameter gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.spec import Gated, Spec
from stamm.activations.spec.gradient_checks import StatedGradient
from stamm.pages import theme
from stamm.pages.figure import DataTable, Figure, thinned
from stamm.pages.formatting import fixed
from stamm.pages.svg_figure import Axes, draw, draw_panels, legend, picture
from stamm.pages.theme import drawn, series

PRIME, DOUBLE_PRIME = "\u2032", "\u2033"
_ROWS = 33


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes: a title and named lines, with marks at points."""

    title: str
    lines: tuple[tuple[str, tuple[float, ...]], ...]
    marks: tuple[tuple[float, float], ...] = ()


def figures_of_activation(spec: Spec, command: str) -> list[Figure]:
    """The figures of an activation's page.

    command   what makes the page
    """
    curves = sampled(spec)
    gate = " of the gate" if isinstance(spec.arity, Gated) else ""
    first, second = _shape_panels(curves)
    made = [
        _figure(
            "function",
            f"The function{gate} and its gradient",
            f"Drawn at the initial values, by the kernel that trains, in float64.{_summary_text(curves)}",
            curves,
            (first, second),
            spec,
            command,
        )
    ]
    more = _more_panels(curves)
    if more:
        told = " and ".join(panel.title for panel in more)
        made.append(
            _figure(
                "derivatives",
                "What training needs besides",
                f"Drawn are {told}. Where a parameter's line is 0, it learns nothing from inputs"
                " there."
                if curves.parameter_slopes
                else "The curvature, away from the knots.",
                curves,
                more,
                spec,
                command,
            )
        )
    return made


def plot(spec: Spec, kind: str) -> bytes:
    """A file that shows f, f' and the parameter gradients side by side.

    kind   "svg", which follows the reader's theme, or "png" or "pdf", which are light
    """
    curves = sampled(spec)
    panels = (*_shape_panels(curves), *_more_panels(curves)[-1:])

    def paint(axes: list[Axes]) -> None:
        _paint(axes, panels, curves)

    if kind in ("png", "pdf"):
        return picture(2.9, paint, panels=len(panels), kind=kind)
    return _standalone(draw("plot", 2.9, paint, panels=len(panels)), spec).encode()


def spectrum_figure(energies: Sequence[float], command: str) -> Figure:
    """Bars: which share of the mean square of f(z), z normal, each Hermite polynomial holds."""

    def paint(axes: list[Axes]) -> None:
        degrees = list(range(len(energies)))
        axes[0].bar(degrees, list(energies), color=series(0), width=0.62)
        axes[0].set_xlabel("degree of the Hermite polynomial")
        axes[0].set_ylabel("share of E f(z)\u00b2")
        axes[0].set_xticks(degrees)
        axes[0].grid(axis="x", visible=False)

    largest = max(range(len(energies)), key=lambda k: energies[k])
    return Figure(
        key="spectrum",
        title="Hermite spectrum",
        caption=(
            "Shares of the mean square of f for a standard normal input, by Hermite polynomial: degree 0 is its mean,"
            " degree 1 its linear part, and the others are its nonlinear part."
        ),
        alt=f"Bars of degree 0 to {len(energies) - 1}; the largest is degree {largest}.",
        svg=draw("spectrum", 2.3, paint),
        data=DataTable(
            columns=("degree", "share"),
            rows=tuple((str(k), fixed(share, 6)) for k, share in enumerate(energies)),
        ),
        source="the certificate",
        command=command,
    )


def _shape_panels(curves: Curves) -> tuple[Panel, Panel]:
    slopes = [(f"f{PRIME}", curves.slope)]
    if curves.backward is not None:
        slopes.append(("declared backward", curves.backward))
    return (
        Panel(
            title="f(x)",
            lines=(("f", curves.function),),
            marks=tuple(zip(curves.zeros, curves.heights, strict=True)),
        ),
        Panel(
            title=f"f{PRIME}(x), the stated gradient",
            lines=tuple(slopes),
            marks=tuple((zero, 0.0) for zero in curves.zeros),
        ),
    )


def _more_panels(curves: Curves) -> tuple[Panel, ...]:
    panels = []
    if curves.curvature is not None:
        panels.append(
            Panel(
                title=f"f{DOUBLE_PRIME}(x), the curvature",
                lines=((f"f{DOUBLE_PRIME}", curves.curvature),),
            )
        )
    if curves.parameter_slopes:
        panels.append(
            Panel(
                title="the gradient in each parameter",
                lines=tuple((f"∂f/∂{n}", v) for n, v in curves.parameter_slopes.items()),
            )
        )
    return tuple(panels)


def _figure(
    key: str,
    title: str,
    caption: str,
    curves: Curves,
    panels: Sequence[Panel],
    spec: Spec,
    command: str,
) -> Figure:
    named = [line for panel in panels for line in panel.lines]
    rows = [
        [fixed(x, 2), *(fixed(values[i], 4) for _, values in named)]
        for i, x in enumerate(curves.x)
        if not math.isnan(x)
    ]
    return Figure(
        key=key,
        title=title,
        caption=caption,
        alt=f"{spec.name}: {', '.join(panel.title for panel in panels)}.",
        svg=draw_panels(key, 3.1, lambda axes: _paint(axes, panels, curves), len(panels)),
        data=thinned(("x", *(name for name, _ in named)), rows, _ROWS, "the kernel", words=0),
        source="the spec",
        command=command,
    )


def _paint(axes: Sequence[Axes], panels: Sequence[Panel], curves: Curves) -> None:
    for panel_axes, panel in zip(axes, panels, strict=True):
        panel_axes.axhline(0, color=drawn("line"), lw=0.9)
        panel_axes.axvline(0, color=drawn("line"), lw=0.9)
        for knot in curves.knots:
            panel_axes.axvline(knot, color=drawn("muted"), lw=0.9, ls=(0, (2, 3)))
        for number, (name, values) in enumerate(panel.lines):
            panel_axes.plot(curves.x, values, color=series(number), label=name)
        for point in panel.marks:
            panel_axes.plot(
                *point, "o", ms=5, color=drawn("card"), mec=series(1), mew=1.5, zorder=5
            )
        panel_axes.set_title(panel.title, pad=22 if len(panel.lines) > 1 else 6)
        panel_axes.set_xlabel("x")
        low, high = _limits([v for _, values in panel.lines for v in values])
        if low < high:
            panel_axes.set_ylim(low, high)
        if len(panel.lines) > 1:
            legend(panel_axes, columns=3)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """The range to show, or an empty one to leave it to the axes: a pole must not flatten a curve."""
    finite = sorted(v for v in values if math.isfinite(v))
    if not finite:
        return 0.0, 0.0
    low, high = finite[len(finite) // 50], finite[-1 - len(finite) // 50]
    if finite[-1] - finite[0] <= 4 * (high - low) or high == low:
        return 0.0, 0.0
    return low - 0.4 * (high - low), high + 0.4 * (high - low)


def _summary_text(curves: Curves) -> str:
    knots = ", ".join(fixed(knot, 3) for knot in curves.knots)
    zeros = ", ".join(fixed(zero, 4) for zero in curves.zeros)
    said = f" Dotted lines are knots, where two pieces meet (x = {knots})." if knots else ""
    if zeros:
        said += f" Circles are where the gradient is zero (x = {zeros})."
    return said


def _standalone(svg: str, spec: Spec) -> str:
    """A drawing for a page as a file of its own, with both themes inside."""
    head, body = svg.split(">", 1)
    box = head.partition('viewBox="')[2].partition('"')[0]
    width, height = box.split()[2:]
    style = (
        f":root {{ {theme.variables(theme.LIGHT)} }}"
        f" @media (prefers-color-scheme: dark) {{ :root {{ {theme.variables(theme.DARK)} }} }}"
        " text { font-family: system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans',"
        " sans-serif; }"
    )
    title = escape(f"{spec.name}: the function, its gradient and its parameter gradients")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" width="{width}pt"'
        f' height="{height}pt" role="img"><title>{title}</title><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="var(--paper)"/>{body}\n'
    )


_REACH = 4.0  # a figure goes this far on each side, further where there are knots
_FARTHEST = 12.0
_GRID = 480
_NUDGE = 1e-9  # a piece is drawn up to this distance from its knots
_BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class Curves:
    """An activation on a grid, in float64; NaN between pieces, so that jumps are seen as jumps.

    slope              the stated gradient
    backward           the declared surrogate of it, where the spec has one
    curvature          f'' away from the knots; None where the backward pass is a surrogate
    parameter_slopes   df/dp by parameter
    knots, zeros       where pieces meet, and the isolated zeros of the gradient, within the figure
    heights            f at the zeros
    """

    x: tuple[float, ...]
    function: tuple[float, ...]
    slope: tuple[float, ...]
    backward: tuple[float, ...] | None
    curvature: tuple[float, ...] | None
    parameter_slopes: Mapping[str, tuple[float, ...]]
    knots: tuple[float, ...]
    zeros: tuple[float, ...]
    heights: tuple[float, ...]


def sampled(spec: Spec, effective: Mapping[str, float] | None = None) -> Curves:
    """The curves of `spec` at effective values of its trainable parameters, by its own kernel.

    Checked  tests/unit/activations/test_activation_page.py
    """
    values = {**spec.initial_values(), **(effective or {})}
    parameters = tuple(values[p.name] for p in spec.parameters)
    kernel = kernel_of(spec)
    gradient = StatedGradient(spec, values)
    knots = _knots(gradient)
    x = torch.tensor(_grid(knots), dtype=torch.float64)

    def shown(tensor: Tensor) -> tuple[float, ...]:
        return tuple(torch.where(x.isnan(), x, tensor).tolist())

    slopes = kernel.slopes(x, parameters)
    stated = gradient if spec.surrogate else None
    slope_at: Callable[[float], float] = stated or (
        lambda at: kernel.slopes(torch.tensor([at], dtype=torch.float64), parameters)[0].item()
    )
    slope = (
        tuple(math.nan if math.isnan(at) else stated(at) for at in x.tolist())
        if stated
        else shown(slopes[0])
    )
    zeros = tuple(_zeros(x.tolist(), slope, knots, slope_at))
    heights = kernel.value(torch.tensor(zeros, dtype=torch.float64), parameters)
    return Curves(
        x=tuple(x.tolist()),
        function=shown(kernel.value(x, parameters)),
        slope=slope,
        backward=shown(slopes[0]) if spec.surrogate else None,
        curvature=None if spec.surrogate else shown(kernel.curvatures(x, parameters)[0]),
        parameter_slopes={
            p.name: shown(part) for p, part in zip(spec.trainable, slopes[1:], strict=True)
        },
        knots=knots,
        zeros=zeros,
        heights=tuple(heights.tolist()),
    )


def figure_ends(spec: Spec) -> tuple[float, float]:
    """The first and last x of the figures of `spec`, at its initial values."""
    return _figure_ends(_knots(StatedGradient(spec, spec.initial_values())))


def _knots(gradient: StatedGradient) -> tuple[float, ...]:
    return tuple(knot for knot in gradient.knots if abs(knot) <= _FARTHEST)


def _figure_ends(knots: Sequence[float]) -> tuple[float, float]:
    return min([-_REACH, *(knot - 1 for knot in knots)]), max([_REACH, *(k + 1 for k in knots)])


def _grid(knots: Sequence[float]) -> list[float]:
    low, high = _figure_ends(knots)
    ends = [low, *knots, high]
    points: list[float] = []
    for start, end in itertools.pairwise(ends):
        count = max(round(_GRID * (end - start) / (high - low)), 8)
        left, right = start + _NUDGE, end - _NUDGE
        points += [math.nan] if points else []
        points += [left + (right - left) * i / count for i in range(count + 1)]
    return points


def _zeros(
    x: Sequence[float],
    slope: Sequence[float],
    knots: Sequence[float],
    slope_at: Callable[[float], float],
) -> list[float]:
    """The isolated zeros of the gradient that the grid can see."""
    zeros = [
        knot
        for knot in knots
        if slope_at(knot) == 0 and slope_at(knot - 0.01) != 0 and slope_at(knot + 0.01) != 0
    ]
    for i in range(1, len(x)):
        if slope[i - 1] * slope[i] < 0:
            low, high = x[i - 1], x[i]
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                if slope_at(middle) * slope[i] > 0:
                    high = middle
                else:
                    low = middle
            zeros.append((low + high) / 2)
        elif slope[i] == 0 and 0 < i < len(x) - 1 and slope[i - 1] != 0 and slope[i + 1] != 0:
            zeros.append(x[i])
    return sorted(zeros)
