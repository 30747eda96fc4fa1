"""Figures of one activation: the function, its gradient, its curvature, its parameter gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from stamm.activations.spec import Gated, Spec
from stamm.reports import theme
from stamm.reports.activation_curves import Curves, sampled
from stamm.reports.figure import DataTable, Figure, thinned
from stamm.reports.formatting import fixed
from stamm.reports.svg_figure import Axes, draw, draw_panels, legend, picture
from stamm.reports.theme import drawn, series

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
            "How f of a standard normal input splits into polynomials: degree 0 is its mean,"
            " degree 1 what a straight line would do, the rest is what makes it nonlinear."
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
    for one, panel in zip(axes, panels, strict=True):
        one.axhline(0, color=drawn("line"), lw=0.9)
        one.axvline(0, color=drawn("line"), lw=0.9)
        for knot in curves.knots:
            one.axvline(knot, color=drawn("muted"), lw=0.9, ls=(0, (2, 3)))
        for number, (name, values) in enumerate(panel.lines):
            one.plot(curves.x, values, color=series(number), label=name)
        for place in panel.marks:
            one.plot(*place, "o", ms=5, color=drawn("card"), mec=series(1), mew=1.5, zorder=5)
        one.set_title(panel.title, pad=22 if len(panel.lines) > 1 else 6)
        one.set_xlabel("x")
        low, high = _limits([v for _, values in panel.lines for v in values])
        if low < high:
            one.set_ylim(low, high)
        if len(panel.lines) > 1:
            legend(one, columns=3)


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
