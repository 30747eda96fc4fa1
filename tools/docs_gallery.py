"""The gallery of the documentation site: every activation as a page, a thumbnail and a curve to compare.

Curves are sampled by the activation's own kernel; the page draws them without a network.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path

from stamm.activations import catalog
from stamm.activations.page.figures import sampled
from stamm.activations.page.page import activation_page
from stamm.activations.spec import Gated, Spec
from stamm.base.files import write_text
from stamm.cli.activation_show import facts_of

WIDTH, HEIGHT = 160, 110  # of a thumbnail, in pixels
REACH = 4.0  # thumbnails and comparisons show -REACH to REACH in x and y
KEPT = 3  # every third point of a curve is drawn

# The way back: pages of `stamm show --page` stand alone, those of the gallery have it.
_TOP = '<header class="top">'
_BACK = (
    '<p class="back" style="margin:.8rem 1.5rem 0"><a href="../gallery.html">← Gallery</a></p>\n'
)
_FILTER = """<p class="gallery-filter">
<label>Filter: <input type="search" id="gallery-name" placeholder="name or title"></label>
<label><input type="radio" name="gallery-kind" value="" checked> all</label>
<label><input type="radio" name="gallery-kind" value="plain"> plain</label>
<label><input type="radio" name="gallery-kind" value="gated"> gated units</label>
<output id="gallery-count"></output></p>
"""
_SCRIPT = """<script>
(() => {
  const cards = [...document.querySelectorAll(".gallery .card")];
  const name = document.getElementById("gallery-name"), count = document.getElementById("gallery-count");
  function filter() {
    const word = name.value.trim().toLowerCase();
    const kind = document.querySelector("[name=gallery-kind]:checked").value;
    for (const card of cards)
      card.hidden = !(card.title + " " + card.textContent).toLowerCase().includes(word)
        || (kind !== "" && card.dataset.kind !== kind);
    count.textContent = cards.filter(card => !card.hidden).length + " of " + cards.length;
  }
  document.querySelector(".gallery-filter").addEventListener("input", filter);
  filter();
})();
</script>
"""

Points = list[tuple[float, float] | None]


def write_gallery(names: Sequence[str], pages: Path) -> str:
    """Write NAME.html and compare.html into `pages`, and return the Markdown of the gallery.

    names   activations of the catalogue; the links of the Markdown begin with the folder's name
    """
    cards, curves = [], {}
    for name in names:
        spec = catalog.get(name)
        facts = facts_of(spec)
        page = activation_page(
            spec,
            facts,
            certificate=facts.get("certificate"),
            command=f"stamm show {name} --page {name}.html",
        )
        write_text(pages / f"{name}.html", page.replace(_TOP, f"{_BACK}{_TOP}", 1))
        function, gradient = _curves(spec)
        curves[name] = {"function": _clipped(function), "gradient": _clipped(gradient)}
        cards.append(_card(spec, f"{pages.name}/{name}.html", function, gradient))
    data = json.dumps(curves, separators=(",", ":")).replace("<", "\\u003c")
    template = (Path(__file__).parent / "compare_activations.html").read_text(encoding="utf-8")
    write_text(pages / "compare.html", template.replace("{CURVES}", data))
    grid = "\n".join(cards)
    return (
        f"# Gallery\n\n{len(names)} activations, each with formulas, plots, certificate and origin. "
        "Strong lines are the functions, thin blue lines their gradients, at the initial parameters, from "
        f"-{REACH:g} to {REACH:g}. Gated units, act(gate) * up, are marked; their curve is that of the gate.\n\n"
        f'<p><a href="{pages.name}/compare.html">Compare activations in one plot</a>, or '
        f'<a href="{pages.name}/compose.html">compose a gradient of your own</a> and see its integral.</p>\n\n'
        f'{_FILTER}\n<div class="gallery">\n{grid}\n</div>\n\n{_SCRIPT}'
    )


def _curves(spec: Spec) -> tuple[Points, Points]:
    found = sampled(spec)
    function = [_point(x, y) for x, y in zip(found.x, found.function, strict=True)]
    gradient = [_point(x, y) for x, y in zip(found.x, found.slope, strict=True)]
    return _thin(function), _thin(gradient)


def _point(x: float, y: float) -> tuple[float, float] | None:
    return (x, y) if math.isfinite(y) and abs(x) <= REACH else None


def _thin(points: Points) -> Points:
    """Fewer points, without losing the gaps between pieces."""
    return [p for i, p in enumerate(points) if p is None or i % KEPT == 0 or points[i - 1] is None]


def _clipped(points: Points) -> list[list[float] | None]:
    return [p and [round(p[0], 3), round(max(-99.0, min(99.0, p[1])), 3)] for p in points]


def _card(spec: Spec, link: str, function: Points, gradient: Points) -> str:
    title = html.escape(spec.title)
    lines = _line(gradient, "gradient") + _line(function, "function")
    gated = isinstance(spec.arity, Gated)
    mark = '<span class="gated">gated</span>' if gated else ""
    return (
        f'<a class="card" href="{link}" title="{title}" data-kind="{"gated" if gated else "plain"}"><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{title}">{_axes()}{lines}</svg><span>{spec.name}</span>{mark}</a>'
    )


def _axes() -> str:
    x, y = _pixel((0.0, 0.0))
    return f'<path class="axis" d="M0 {y}H{WIDTH}M{x} 0V{HEIGHT}"/>'


def _line(points: Points, kind: str) -> str:
    commands, pen = [], "M"
    for point in points:
        if point is None or abs(point[1]) > REACH:
            pen = "M"
            continue
        x, y = _pixel(point)
        commands.append(f"{pen}{x} {y}")
        pen = "L"
    return f'<path class="{kind}" d="{"".join(commands)}"/>'


def _pixel(point: tuple[float, float]) -> tuple[float, float]:
    x = (point[0] + REACH) / (2 * REACH) * WIDTH
    y = (REACH - point[1]) / (2 * REACH) * HEIGHT
    return round(x, 1), round(y, 1)
