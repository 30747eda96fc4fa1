"""The page's colours in both themes, and how a drawing made once follows the reader's choice.

A figure is drawn in sentinel colours, one per role. Afterwards each sentinel is replaced by the
CSS variable of its role, so that the same drawing is right on light and on dark paper.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

SERIES = 8
DEPTHS = 8
_MARKS = "osD^vP"

# The first six hues stay apart for protanopia, deuteranopia and tritanopia (their lightness differs
# too); where there are more series, marks and dashes tell them apart as well. Each has at least 3:1
# against its paper, text roles at least 4.5:1.
LIGHT: Mapping[str, str] = {
    "paper": "#fbfaf8",
    "card": "#ffffff",
    "ink": "#1c2024",
    "muted": "#5c646d",
    "line": "#dcd9d2",
    "accent": "#0a5c8c",
    "series-0": "#0a66a8",
    "series-1": "#c24d00",
    "series-2": "#0b7d62",
    "series-3": "#98468f",
    "series-4": "#7c6a00",
    "series-5": "#4c535b",
    "series-6": "#c2185b",
    "series-7": "#3f8f0f",
    "depth-0": "#440f76",
    "depth-1": "#5a2a9a",
    "depth-2": "#4350a8",
    "depth-3": "#2a6ea6",
    "depth-4": "#1c8194",
    "depth-5": "#198a74",
    "depth-6": "#488a36",
    "depth-7": "#7f7a00",
}
DARK: Mapping[str, str] = {
    "paper": "#14171a",
    "card": "#1b1f23",
    "ink": "#e9e7e2",
    "muted": "#a3abb4",
    "line": "#343a41",
    "accent": "#74bdf2",
    "series-0": "#62b4f0",
    "series-1": "#ff9b57",
    "series-2": "#3fcba2",
    "series-3": "#dd9fd6",
    "series-4": "#d8c247",
    "series-5": "#b3bac2",
    "series-6": "#ff86ae",
    "series-7": "#9bdc62",
    "depth-0": "#b79cf0",
    "depth-1": "#9aa4f5",
    "depth-2": "#7ab2f5",
    "depth-3": "#5fc0e8",
    "depth-4": "#4fcdcb",
    "depth-5": "#5fd7a5",
    "depth-6": "#96da78",
    "depth-7": "#dcd456",
}
_FIRST_SENTINEL = 0xA1B200
_SENTINELS = {role: f"#{_FIRST_SENTINEL + index:06x}" for index, role in enumerate(LIGHT)}


_PAINT: ContextVar[Mapping[str, str]] = ContextVar("_PAINT", default=_SENTINELS)


@contextlib.contextmanager
def painted_in(colours: Mapping[str, str]) -> Iterator[None]:
    """While the block runs, figures are drawn in the colours of one theme, not in sentinels.

    For a file that no page holds, such as a PNG.
    """
    token = _PAINT.set(colours)
    try:
        yield
    finally:
        _PAINT.reset(token)


def drawn(role: str) -> str:
    """The colour that a role is drawn in: its sentinel, or its own inside `painted_in`."""
    return _PAINT.get()[role]


def series(index: int) -> str:
    """The colour of the series with this number; after eight they repeat."""
    return drawn(f"series-{index % SERIES}")


def mark(index: int) -> str:
    """The marker of the series with this number; after six they repeat."""
    return _MARKS[index % len(_MARKS)]


def depth(layer: int, num_layers: int) -> str:
    """The colour of a layer: from violet for the first to yellow for the last."""
    fraction = layer / (num_layers - 1) if num_layers > 1 else 0.0
    return drawn(f"depth-{round(fraction * (DEPTHS - 1))}")


def themed(style: str) -> str:
    """`style` with every sentinel replaced by the CSS variable of its role."""
    for role, sentinel in _SENTINELS.items():
        style = style.replace(sentinel, f"var(--{role})")
    return style


def variables(colours: Mapping[str, str]) -> str:
    """The CSS declarations of a theme."""
    return " ".join(f"--{role}: {colour};" for role, colour in colours.items())


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours, from 1 to 21.

    (L1 + 0.05) / (L2 + 0.05), with L the relative luminance of the lighter and the darker one.

    Source   W3C, Web Content Accessibility Guidelines 2.2, "contrast ratio"
    """
    dark, light = sorted((_luminance(first), _luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
