"""The forest plot of docs/evidence.md as SVG: differences in held-out loss, tokens to the same loss, sizes."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from stamm.base.units import count_text

_WIDTH, _ROW, _TOP = 560, 21, 62
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.claim{font-weight:600}.head{fill:#f0f2f5}"
    ".tick{text-anchor:middle;fill:#555}.end{text-anchor:end}.grid{stroke:#e3e6ea}.zero{stroke:#555}"
    "path,circle{fill:none;stroke-width:2}.grid,.zero{stroke-width:1}"
    ".t0{stroke:#5b7083;fill:#5b7083}.t1{stroke:#0a6e8a;fill:#0a6e8a}.t2{stroke:#b3470f;fill:#b3470f}"
    ".t3{stroke:#7a1fa2;fill:#7a1fa2}.line{fill:none}.open{fill:#fff}text.t0,text.t1,text.t2,text.t3{stroke:none}"
)
_SHAPES = (
    (0.5e6, "under 0.5 M", "M{x} {u}L{r} {d}H{l}Z"),
    (1e6, "0.5 to 1 M", "M{x} {u}L{r} {y}L{x} {d}L{l} {y}Z"),
    (2e6, "1 to 2 M", ""),  # a circle
    (math.inf, "2 M or more", "M{l} {u}H{r}V{d}H{l}Z"),
)
_COLOURS = (
    (1, "under 1", "t0"),
    (4, "1 to 4", "t1"),
    (12, "4 to 12", "t2"),
    (math.inf, "12 or more", "t3"),
)


@dataclass(frozen=True)
class Estimate:
    """A difference in bits per byte with its interval: a line of the plot.

    log_tokens           ln of the tokens to the same loss, with its interval, where it was computed
    parameters, tokens   of the arm; tokens None: not recorded
    """

    label: str
    mean: float
    low: float
    high: float
    parameters: int
    tokens: float | None
    log_tokens: tuple[float, float, float] | None = None

    def text(self) -> str:
        """ "+0.0162 (+0.0130 to +0.0194)"."""
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"

    def size(self) -> str:
        """ "1.28M · 0.61": parameters, and tokens a parameter."""
        share = "" if self.tokens is None else f" · {self.tokens / self.parameters:.2g}"
        return count_text(self.parameters) + share


class _Axis:
    """A panel between two places of the picture, with round ticks."""

    def __init__(self, numbers: Sequence[float], step: float, left: float, right: float) -> None:
        self.low, self.high = math.floor(min(numbers, default=-step) / step), math.ceil(max(numbers, default=step) / step)  # fmt: skip
        self.step, self.left, self.right = step, left, right

    def x(self, value: float) -> float:
        share = (value / self.step - self.low) / (self.high - self.low)
        return round(self.left + share * (self.right - self.left), 1)

    def grid(self, top: float, bottom: float, every: int, form: str) -> list[str]:
        parts = []
        for tick in range(self.low, self.high + 1):
            if tick % every and tick:
                continue
            x = self.x(tick * self.step)
            parts.append(f'<path class="{"grid" if tick else "zero"}" d="M{x} {top}V{bottom}"/>')
            label = format(tick * self.step, form) if tick else "0"
            parts.append(f'<text class="tick" x="{x}" y="{bottom + 15}">{label}</text>')
        return parts


def draw(rows: Sequence[Estimate | str]) -> str:
    """The plot; texts are headings, and estimates below them are its lines."""
    lines = [row for row in rows if isinstance(row, Estimate)]
    ends = [end for row in lines for end in (row.low, row.high)]
    shares = [100 * math.expm1(e) for row in lines for e in row.log_tokens or ()]
    bits, tokens = _Axis(ends, 0.05, 172, 328), _Axis(shares, 10, 364, 448)
    bottom = _TOP + _ROW * len(rows)
    parts = [
        *bits.grid(_TOP - 8, bottom, 2, "+.1f"),
        *tokens.grid(_TOP - 8, bottom, 2, "+.0f"),
    ]
    for number, row in enumerate(rows):
        y = _TOP + 10 + _ROW * number
        if isinstance(row, str):
            shown = row if len(row) <= 64 else f"{row[:62].rsplit(' ', 1)[0]} …"
            parts.append(f'<rect x="4" y="{y - 12}" width="{_WIDTH - 8}" height="18" class="head"/>')  # fmt: skip
            parts.append(f'<text class="claim" x="8" y="{y + 2}">{html.escape(shown)}</text>')
            continue
        parts.append(f'<text x="16" y="{y + 2}">{html.escape(row.label)}</text>')
        parts += _interval(bits, row, (row.mean, row.low, row.high), y - 2)
        if row.log_tokens:
            mean, low, high = (100 * math.expm1(value) for value in row.log_tokens)
            parts += _interval(tokens, row, (mean, low, high), y - 2)
        parts.append(f'<text class="end {_colour(row)}" x="{_WIDTH - 6}" y="{y + 2}">{row.size()}</text>')  # fmt: skip
    height = bottom + 92
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH * 5 // 4}" role="img">\n'
        "<title>Differences in held-out loss and in tokens to the same loss, with 95 % intervals</title>\n"
        f"<style>{_STYLE}</style>\n"
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>\n'
        '<text class="tick" x="250" y="18">bits per byte</text><text class="tick" x="250" y="36">← lower · higher →</text>'
        '<text class="tick" x="406" y="18">tokens to the</text><text class="tick" x="406" y="36">same loss, %</text>'
        f'<text class="end" x="{_WIDTH - 6}" y="18">parameters,</text><text class="end" x="{_WIDTH - 6}" y="36">tokens/p.</text>\n'
        + "\n".join([*parts, *_legend(bottom + 42, lines)])
        + "\n</svg>\n"
    )


def _interval(axis: _Axis, row: Estimate, ends: tuple[float, float, float], y: float) -> list[str]:
    mean, low, high = ends
    is_open = "" if low > 0 or high < 0 else " open"
    colour = _colour(row)
    return [
        f'<path class="{colour} line" d="M{axis.x(low)} {y}H{axis.x(high)}"/>',
        _marker(axis.x(mean), y, row.parameters, f"{colour}{is_open}"),
    ]


def _marker(x: float, y: float, parameters: float, kind: str) -> str:
    form = next(form for edge, _, form in _SHAPES if parameters < edge)
    if not form:
        return f'<circle class="{kind}" cx="{x}" cy="{y}" r="4"/>'
    sides = {"u": y - 4, "d": y + 4, "l": round(x - 4, 1), "r": round(x + 4, 1)}
    return f'<path class="{kind}" d="{form.format(x=x, y=y, **sides)}"/>'


def _colour(row: Estimate) -> str:
    if row.tokens is None:
        return _COLOURS[0][2]
    return next(name for edge, _, name in _COLOURS if row.tokens / row.parameters < edge)


def _legend(y: float, lines: Sequence[Estimate]) -> list[str]:
    """Shapes are parameters, colours tokens a parameter; the last column has both as numbers."""
    parts = [f'<text x="8" y="{y}">parameters:</text>']
    for number, (edge, name, _) in enumerate(_SHAPES):
        x = 100 + 115 * number
        size = 3e6 if edge == math.inf else edge * 0.9
        parts += [_marker(x, y - 4, size, "t0"), f'<text x="{x + 10}" y="{y}">{name}</text>']
    parts.append(f'<text x="8" y="{y + 20}">tokens/p.:</text>')
    for number, (_, name, kind) in enumerate(_COLOURS):
        x = 100 + 115 * number
        parts.append(f'<path class="{kind}" d="M{x - 6} {y + 16}h12"/>')
        parts.append(f'<text class="{kind}" x="{x + 10}" y="{y + 20}">{name}</text>')
    parts.append(
        f'<text x="8" y="{y + 40}">tokens/p.: tokens per parameter; hollow: the interval has 0 in it</text>'
    )
    return parts
