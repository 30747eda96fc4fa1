"""Curves, colours, quotations and numbers: the small parts a page is made of."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest
from run_folder import noise

from stamm.activations import catalog
from stamm.activations.describe import known_spec, learned_curve
from stamm.base.errors import ConfigError
from stamm.pages import theme
from stamm.pages.config import ReportConfig
from stamm.pages.figure import thinned
from stamm.pages.formatting import fixed, percent, signed, smoothed, spaced
from stamm.pages.svg_figure import Axes, draw, legend, legend_name
from stamm.pages.text import excerpt, one_line


def xielu(x: float, positive: float, negative: float) -> float:
    if x > 0:
        return positive * x * x + 0.5 * x
    return negative * (math.expm1(x) - x) + 0.5 * x


@pytest.mark.parametrize(("positive", "negative"), [(0.8, 0.8), (1.7, 0.6), (166.0, 41.25)])
def test_the_learned_curve_is_the_integral_of_the_stated_gradient(
    positive: float, negative: float
) -> None:
    grid = [-3.0, -1.3, -0.01, 0.0, 0.2, 2.9]
    learned = {"alpha_p": positive, "alpha_n": negative}
    curve = learned_curve(catalog.get("xielu"), learned, grid)
    for x, value in zip(grid, curve.value, strict=True):
        assert value == pytest.approx(xielu(x, positive, negative), rel=1e-9, abs=1e-12)
    assert curve.slope[3] == 0.5


def test_a_curve_with_a_jump_in_its_gradient() -> None:
    curve = learned_curve(catalog.get("relu"), {}, [-1.0, -0.5, 0.25, 2.0])
    assert curve.value == pytest.approx((0.0, 0.0, 0.25, 2.0))
    assert curve.slope == (0.0, 0.0, 1.0, 1.0)


def test_a_curve_of_one_piece() -> None:
    curve = learned_curve(catalog.get("silu"), {}, [-2.0, 0.0, 1.0])
    assert curve.value == pytest.approx(
        [x / (1 + math.exp(-x)) for x in (-2.0, 0.0, 1.0)], abs=1e-9
    )


def test_an_unknown_activation_has_no_spec() -> None:
    assert known_spec("of_my_own") is None
    assert known_spec(None) is None


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK])
def test_colours_can_be_read_on_their_paper(colours: dict[str, str]) -> None:
    for paper in ("paper", "card"):
        for role in ("ink", "muted", "accent"):
            assert theme.contrast(colours[role], colours[paper]) >= 4.5, role
        for role in colours:
            if role.startswith(("series", "depth")):
                assert theme.contrast(colours[role], colours[paper]) >= 3.0, role


def test_contrast_of_black_and_white() -> None:
    assert theme.contrast("#ffffff", "#000000") == pytest.approx(21.0)


def test_both_themes_know_the_same_roles() -> None:
    assert list(theme.LIGHT) == list(theme.DARK)


def test_depth_runs_over_all_hues() -> None:
    assert theme.depth(0, 32) == theme.drawn("depth-0")
    assert theme.depth(31, 32) == theme.drawn("depth-7")
    assert theme.depth(0, 1) == theme.drawn("depth-0")


def test_a_label_is_text_and_no_markup() -> None:
    label = "<b>$\\frac{1}{2}$</b> & more"

    def paint(panels: list[object]) -> None:
        panels[0].set_title(label)  # type: ignore[attr-defined]  # an Axes

    svg = draw("one", 2.0, paint)
    root = ElementTree.fromstring(svg)
    assert label in [element.text for element in root.iter("text")]
    assert "metadata" not in svg
    assert "xmlns" not in svg
    assert "DejaVu" not in svg


def test_a_name_with_an_underscore_stays_in_the_legend() -> None:
    def paint(panels: list[object]) -> None:
        panels[0].plot([0, 1], label=legend_name("_mine"))  # type: ignore[attr-defined]  # an Axes
        legend(panels[0])  # type: ignore[arg-type]

    assert "_mine" in draw("one", 2.0, paint)
    assert len(legend_name("x" * 99)) == 24


def test_names_inside_a_drawing_carry_its_key() -> None:
    def paint(panels: list[object]) -> None:
        panels[0].plot([0, 1], [0, 1], "o")  # type: ignore[attr-defined]  # an Axes

    root = ElementTree.fromstring(draw("mine", 2.0, paint))
    names = [element.get("id") for element in root.iter() if element.get("id")]
    assert names
    assert all(name and name.startswith("mine-") for name in names)


def test_an_excerpt_hides_nothing() -> None:
    assert excerpt("a\u202eb\x07c\ud800", 99) == "a\\u202eb\\x07c\\ud800"
    assert excerpt("می\u200cخواهم", 99) == "می\u200cخواهم"
    assert excerpt("one\r\ntwo", 99) == "one \ntwo"
    assert excerpt("x" * 100, 10) == "x" * 9 + "…"
    assert one_line(" a\n\n b\tc ", 99) == "a b c"
    assert len(one_line("y" * 10_000_000, 50)) == 50


def test_numbers_are_written_one_way() -> None:
    assert fixed(-0.00001, 3) == "0.000"
    assert fixed(-1234.5, 1) == "\u22121,234.5"
    assert fixed(None, 2) == "not run"
    assert fixed(math.nan, 2) == fixed(math.inf, 2) == "not finite"
    assert signed(0.02, 3) == "+0.020"
    assert signed(-0.02, 3) == "\u22120.020"
    assert signed(-0.0001, 3) == "0.000"
    assert percent(0.123) == "12.3 %"
    assert percent(None) == "not run"


def test_a_moving_average_by_hand() -> None:
    assert smoothed([1.0, 2.0, 3.0, 10.0], 3) == [1.5, 2.0, 5.0, 6.5]
    assert smoothed([1.0, math.nan, 3.0], 3) == [1.0, 2.0, 3.0]
    assert math.isnan(smoothed([math.inf], 3)[0])
    values = [noise(i) for i in range(40)]
    assert smoothed(values, 1) == pytest.approx(values)


def test_thinning_keeps_both_ends_and_says_so() -> None:
    rows = [[str(i)] for i in range(1000)]
    table = thinned(["step"], rows, 10, "metrics.jsonl")
    assert len(table.rows) == 10
    assert table.rows[0] == ("0",)
    assert table.rows[-1] == ("999",)
    assert "10 of 1000 rows" in table.note
    assert thinned(["step"], rows[:5], 10, "metrics.jsonl").note == ""
    assert spaced(3, 10) == [0, 1, 2]


def test_settings_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"excerpt_characters = 1 must lie in \[40, 4000\]"):
        ReportConfig(excerpt_characters=1)
    with pytest.raises(ConfigError, match="smoothing"):
        ReportConfig(smoothing=0.0)


@pytest.mark.parametrize("scale", ["log", "symlog"])
def test_logarithmic_axes_have_plain_numbers(scale: str) -> None:
    def paint(panels: list[Axes]) -> None:
        panels[0].plot([0.002, 3, 800], [0.1, 20, 7000])
        panels[0].set_xscale(scale)
        panels[0].set_yscale(scale)

    shown = "".join(ElementTree.fromstring(draw("powers", 2.0, paint)).itertext())
    assert "1000" in shown and "$" not in shown
