"""A drawing surface: matplotlib axes in, one clean piece of SVG out.

The SVG is embedded in an HTML page: text stays text in the page's font, colours are
the page's variables, names are unique to the figure, and nothing depends on the clock.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import matplotlib
from matplotlib.axes import Axes as Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogFormatter, LogLocator, MaxNLocator, NullFormatter

from stamm.pages.text import one_line
from stamm.pages.theme import LIGHT, drawn, painted_in, themed

WIDTH_INCHES = 8.6
_FONT = re.compile(r"font: (?:[a-z0-9-]+ )*?([0-9.]+)px [^;]+")
_FAMILY = re.compile(r"font-family: [^;]+;? ?")
_NUMBER = re.compile(r"-?[0-9]+\.[0-9]{3,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_NAMESPACE = re.compile(r"\{[^}]*\}")
_MEANT_FOR_FILES = {"metadata", "style"}
_AXES = "axes_"


def draw(
    key: str, height_inches: float, paint: Callable[[list[Axes]], None], *, panels: int = 1
) -> str:
    """The SVG text of a figure.

    key      prefix of every name inside, unique on the page
    paint    draws on the axes it is given, `panels` of them side by side
    Edge     the same `paint` gives the same bytes: matplotlib's names are salted with `key`, and
             no date is written.
    """
    return _serialise(_clean(_svg(key, height_inches, paint, panels)[0], key))


def draw_panels(
    key: str, height_inches: float, paint: Callable[[list[Axes]], None], panels: int
) -> str:
    """The panels of a figure as one SVG each, in an HTML element that stacks them where it is narrow.

    Takes the arguments of `draw`. The panels are laid out and drawn together, then cut apart
    between their bounding boxes, so side by side they look as `draw` draws them.
    """
    if panels == 1:
        return draw(key, height_inches, paint)
    svg, edges = _svg(key, height_inches, paint, panels)
    drawn_together = _clean(svg, key)
    cut = []
    for panel, (left, right) in enumerate(itertools.pairwise(edges)):
        root = copy.deepcopy(drawn_together)
        if panel:
            # Clip paths and markers are found by name anywhere on the page: they stay in the first.
            for child in [child for child in root if child.tag == "defs"]:
                root.remove(child)
        (figure,) = (child for child in root if child.tag == "g")
        for number, group in enumerate(_axes_of(figure)):
            if number != panel:
                figure.remove(group)
        width, height = right - left, root.get("viewBox", "").split()[3]
        root.set("viewBox", f"{left:.1f} 0 {width:.1f} {height}")
        root.set("style", f"flex-grow: {width:.0f}")
        cut.append(_serialise(root))
    return f'<div class="panels">{"".join(cut)}</div>'


def _svg(
    key: str, height_inches: float, paint: Callable[[list[Axes]], None], panels: int
) -> tuple[str, list[float]]:
    """matplotlib's SVG, and the x positions, in points, between which each panel is drawn."""
    stream = io.StringIO()
    with _painted(key, height_inches, paint, panels) as drawing:
        drawing.savefig(stream, format="svg", metadata={"Date": None})
        boxes = [axes.get_tightbbox() for axes in drawing.axes]
    scale = 72 / drawing.dpi
    inner = [
        scale * (before.x1 + after.x0) / 2
        for before, after in itertools.pairwise(box for box in boxes if box is not None)
    ]
    return stream.getvalue(), [0.0, *inner, 72 * WIDTH_INCHES]


def picture(
    height_inches: float,
    paint: Callable[[list[Axes]], None],
    *,
    panels: int = 1,
    colours: Mapping[str, str] = LIGHT,
    kind: str = "png",
) -> bytes:
    """The same figure in the colours of one theme: as a PNG, 1720 pixels wide, or as a PDF."""
    stream = io.BytesIO()
    with painted_in(colours), _painted("picture", height_inches, paint, panels) as drawing:
        stamps = {"CreationDate": None} if kind == "pdf" else {}
        paper = colours["paper"]
        drawing.savefig(stream, format=kind, dpi=200, facecolor=paper, metadata=stamps)
    return stream.getvalue()


@contextlib.contextmanager
def _painted(
    key: str,
    height_inches: float,
    paint: Callable[[list[Axes]], None],
    panels: int,
) -> Iterator[Drawing]:
    with matplotlib.rc_context({**_settings(), "svg.hashsalt": key}), warnings.catch_warnings():
        # the measuring font lacks some scripts; the reader's browser has its own fonts for them
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        drawing = Drawing(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        FigureCanvasSVG(drawing)
        axes = drawing.subplots(1, panels, squeeze=False)[0]
        paint(list(axes))
        for panel in axes:
            _plain_powers(panel)
        yield drawing


def legend(axes: Axes, columns: int = 6) -> None:
    """A legend above the axes, in one line where it fits."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        handlelength=1.8,
        columnspacing=1.6,
        borderaxespad=0.2,
    )


def legend_name(text: str) -> str:
    """`text` as a legend shows it, at most 24 characters.

    matplotlib leaves out names that begin with an underscore; a hair space before it prevents that.
    """
    shown = one_line(text, 24)
    return f"\u200a{shown}" if shown.startswith("_") else shown


def whole_steps(axes: Axes) -> None:
    """An x axis of steps: whole numbers only, with its name."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _plain_powers(axes: Axes) -> None:
    """Plain numbers on logarithmic axes: matplotlib labels powers by mathematics, which is not parsed here."""
    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(axis.get_major_formatter(), LogFormatter):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if isinstance(axis.get_minor_formatter(), LogFormatter):
            axis.set_minor_formatter(NullFormatter())


def log_scale(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def note(axes: Axes, x: float, text: str) -> None:
    """A thin vertical line at `x` with a word beside it, at the top of the axes."""
    axes.axvline(x, color=drawn("muted"), linewidth=0.8, linestyle=(0, (2, 3)))
    axes.annotate(
        text,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -3),
        textcoords="offset points",
        va="top",
        color=drawn("muted"),
        fontsize=8,
    )


def _settings() -> dict[str, Any]:
    return {
        "svg.fonttype": "none",
        "svg.id": None,
        "text.parse_math": False,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": True,
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.titlecolor": drawn("ink"),
        "axes.labelcolor": drawn("muted"),
        "axes.edgecolor": drawn("line"),
        "axes.facecolor": "none",
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": drawn("line"),
        "grid.linewidth": 0.6,
        "xtick.color": drawn("line"),
        "ytick.color": drawn("line"),
        "xtick.labelcolor": drawn("muted"),
        "ytick.labelcolor": drawn("muted"),
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "text.color": drawn("ink"),
        "legend.frameon": False,
        "legend.labelcolor": drawn("ink"),
        "figure.facecolor": "none",
        "lines.linewidth": 1.7,
        "lines.solid_capstyle": "round",
        "savefig.facecolor": "none",
    }


def _clean(svg: str, key: str) -> ElementTree.Element:
    """matplotlib's SVG without the parts for a separate file; names are unique to `key`."""
    root = ElementTree.fromstring(svg)  # trusted: made by matplotlib, not read from a file
    for parent in list(root.iter()):
        for child in list(parent):
            if _NAMESPACE.sub("", child.tag) in _MEANT_FOR_FILES:
                parent.remove(child)
    referred = _referred(root)
    for element in root.iter():
        element.tag = _NAMESPACE.sub("", element.tag)
        attributes = {_NAMESPACE.sub("", name): value for name, value in element.attrib.items()}
        axes = attributes.get("id", "").startswith(_AXES)
        element.attrib.clear()
        element.attrib.update(
            (name, new)
            for name, value in attributes.items()
            if (new := _attribute(name, value, key, referred)) is not None
        )
        if axes:
            element.set("class", "axes")
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"class": "plot", "viewBox": box, "aria-hidden": "true"})
    return root


def _axes_of(figure: ElementTree.Element) -> list[ElementTree.Element]:
    return [group for group in figure if group.get("class") == "axes"]


def _serialise(root: ElementTree.Element) -> str:
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _referred(root: ElementTree.Element) -> set[str]:
    names: set[str] = set()
    for element in root.iter():
        for value in element.attrib.values():
            names.update(_REFERENCE.findall(value))
            if value.startswith("#"):
                names.add(value[1:])
    return names


def _attribute(name: str, value: str, key: str, referred: set[str]) -> str | None:
    if name == "id":
        return f"{key}-{value}" if value in referred else None
    if name == "href":
        return f"#{key}-{value[1:]}"
    if name in ("d", "x", "y", "width", "height", "points"):
        return _NUMBER.sub(_two_decimals, value)
    value = _REFERENCE.sub(rf"url(#{key}-\1)", value)
    return themed(_FAMILY.sub("", _FONT.sub(r"font-size: \1px", value)))


def _two_decimals(match: re.Match[str]) -> str:
    return f"{float(match.group()):.2f}".rstrip("0").rstrip(".")
