"""The page and the figures of one activation: true, complete, escaped, alone."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from stamm.activations import catalog
from stamm.activations.describe import (
    cost,
    describe,
    describe_spec,
    operations_text,
    shipped,
    shipped_source,
)
from stamm.activations.page.figures import plot, sampled
from stamm.activations.page.page import activation_page, claims_of, when_to_use
from stamm.activations.spec import Factor, Gated, Piece
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.pages import mathml, theme

CERTIFICATE: dict[str, Any] = {
    "arity": {"claim": "y = f(x)", "status": "not applicable"},
    "bounds": {
        "slope": {"claim": "f' >= -0.3", "status": "proved", "boxes": 31, "holds": True},
        "lipschitz": {"claim": "not Lipschitz", "status": "not proved", "reason": "unbounded"},
    },
    "gaussian": {"hermite": {"claim": "spectrum", "status": "measured", "shares": [0.2, 0.5, 0.3]}},
    "for_all_parameters": [{"claim": "f(0) = 0", "status": "proved", "by": "substitution"}],
    "warnings": ["The gradient is unbounded above."],
}
VERDICT: dict[str, Any] = {
    "judged_where": "away from the zeros",
    "dtypes": [
        {
            "dtype": "bfloat16",
            "budget_ulp": 0.51,
            "problems": ["slope: 0.7 ulp"],
            "quantities": [
                {
                    "quantity": "slope_in_alpha_p",
                    "rows": [
                        {
                            "judged": True, "count": 1200, "p99": 0.499, "largest": 0.5,
                            "worst_at": -1.5, "wrong_sign": 0.0,
                        },
                        {
                            "judged": False, "count": 3, "p99": 9.0, "largest": math.inf,
                            "worst_at": 0.0, "wrong_sign": 0.5,
                        },
                    ],
                }
            ],
        }
    ],
}  # fmt: skip


class Reader(HTMLParser):
    """Every tag and attribute of a page, with the ids and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "action", "data"):
                self.links.append(value or "")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["script"]:
            self.text += data


def _read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def _page(name: str, **more: Any) -> str:
    spec = catalog.get(name)
    source = shipped_source(spec)
    assert source is not None
    facts = {**describe(name), "cost": cost(spec, source), "peers": list(spec.peers)}
    return activation_page(spec, facts, command=f"stamm show {name} --page x.html", **more)


@pytest.fixture(scope="module")
def full() -> str:
    """A page with everything on it."""
    return _page("xielu", certificate=CERTIFICATE, verdict=VERDICT, findings=["f is known."])


def test_a_page_stands_alone(full: str) -> None:
    reader = _read(full)
    assert not {"link", "img", "iframe", "object", "form", "base"} & set(reader.tags)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', full, re.DOTALL)
    assert reader.tags.count("script") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in full
    assert all(link.startswith("#") for link in reader.links)
    assert {link[1:] for link in reader.links} <= set(reader.ids)
    assert len(reader.ids) == len(set(reader.ids))
    assert not re.findall(r"url\((?!#)|@import|https?://", full)
    assert "prefers-color-scheme: dark" in full
    assert "default-src 'none'" in full
    assert not re.findall(r"#a1b2[0-9a-f]{2}", full)  # no sentinel colour is left


def test_everything_given_is_on_the_page(full: str) -> None:
    text = " ".join(_read(full).text.split())
    for said in (
        "xIELU: expanded integral", "2411.13010", catalog.XIELU.content_hash, "f' >= -0.3",
        "boxes 31", "unbounded", "for every real input", "The gradient is unbounded above.",
        "Hermite spectrum", "slope in alpha_p", "budget 0.51 units", "slope: 0.7 ulp",
        "f is known.", "1 exp, 1 phi2", "2 bytes in bfloat16", "stamm show xielu --page x.html",
        "df/dalpha_p = x**2 for x > 0", "Circles are where the gradient is zero (x = −0.9808)",
    ):  # fmt: skip
        assert said in text, said
    assert "y = f(x)" not in text  # a claim that does not apply
    assert full.count('class="status proved"') == 2
    assert "inf" not in re.findall(r"largest.*?</table>", full, re.DOTALL)[0]


def test_what_is_not_given_is_left_out() -> None:
    reader = _read(_page("silu"))
    assert not {"certificate", "accuracy", "known", "parameters", "spectrum"} & set(reader.ids)
    assert {"formulas", "curves", "cost", "origin"} <= set(reader.ids)


def test_no_finding_is_said() -> None:
    assert "No activation of the catalogue computes this" in _page("gelu", findings=[])


def test_the_same_page_twice_has_the_same_bytes(full: str) -> None:
    again = _page("xielu", certificate=CERTIFICATE, verdict=VERDICT, findings=["f is known."])
    assert again == full


def test_words_of_a_stranger_are_escaped_and_made_visible() -> None:
    evil = "<script>alert(1)</script>\u202e\x1b[0m&amp;"
    spec = catalog.SILU  # a Spec refuses such words; the page does not rely on it
    facts = {**describe_spec(spec, shipped("silu")), "title": evil, "notes": evil, "source": evil}
    certificate = {"x": {"claim": evil, "status": evil, "reason": evil}, "warnings": [evil]}
    page = activation_page(spec, facts, certificate=certificate, findings=[evil], command=evil)
    assert page.count("<script") == page.count("</script") == 1  # the page's own
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in page


@pytest.mark.parametrize("name", ["xielu", "relu2", "xsilu_glu", "atlu"])
def test_plain_and_gated_entries_have_a_page(name: str) -> None:
    page = activation_page(catalog.get(name), describe(name))
    assert page.count('role="img"') == 3  # the live figure and two drawings
    assert "When to use it" in page and ("two thirds as wide" in page) == (name == "xsilu_glu")
    assert ("hidden values are sparse" in page) == (name == "relu2")
    assert ("of the gate" in page) == (name == "xsilu_glu")


def test_every_formula_of_the_catalogue_can_be_set() -> None:
    for name in catalog.names():
        facts = describe(name)
        parts = [facts[key] for key in ("gradient", "function", "curvature")]
        for pieces in [*parts, *facts["parameter_slopes"].values()]:
            set_ = mathml.piecewise("f(x)", pieces).replace("<mtext>all", "")
            assert "<mtext>" not in set_, (name, pieces)


def test_curves_know_the_knots_and_the_zeros_of_the_gradient() -> None:
    curves = sampled(catalog.XIELU)
    assert curves.knots == (0.0,)
    assert curves.zeros == pytest.approx((math.log(1 - 0.5 / 0.8),), abs=1e-12)
    assert curves.heights[0] == min(v for v in (*curves.heights, *curves.function) if v == v)
    at = curves.x.index(min(curves.x, key=lambda x: abs(x - 2.0) if x == x else math.inf))
    x = curves.x[at]
    assert curves.function[at] == pytest.approx(0.8 * x * x + 0.5 * x, rel=1e-14)
    assert curves.parameter_slopes["alpha_p"][at] == pytest.approx(x * x, rel=1e-14)
    assert curves.curvature is not None
    assert curves.curvature[at] == pytest.approx(1.6, rel=1e-14)


def test_values_of_parameters_move_the_curve() -> None:
    curves = sampled(catalog.XIELU, {"alpha_n": 2.0, "alpha_p": 1.0})
    assert curves.zeros == pytest.approx((math.log(1 - 0.5 / 2.0),), abs=1e-12)


def test_flat_stretches_are_no_zeros_and_jumps_are_gaps() -> None:
    curves = sampled(catalog.RELU)
    assert curves.zeros == ()
    gap = next(i for i, x in enumerate(curves.x) if math.isnan(x))
    assert (curves.slope[gap - 1], curves.slope[gap + 1]) == (0.0, 1.0)
    assert math.isnan(curves.slope[gap])


def test_a_zero_at_a_knot_is_found_and_far_knots_are_shown() -> None:
    pieces = ["x < 0: 2*x", "0 <= x < limit: x", "x >= limit: limit"]
    spec = spec_from_arguments(pieces, ["limit=7:fixed"], name="bowl")
    curves = sampled(spec)
    assert curves.zeros == (0.0,)
    assert curves.knots == (0.0, 7.0)
    assert max(x for x in curves.x if x == x) == pytest.approx(8.0)


def test_a_declared_backward_is_drawn_beside_the_gradient() -> None:
    spec = replace(
        catalog.RELU,
        name="soft_backward",
        surrogate=(Piece(where="all x", formula="logistic(x)"),),
    )
    curves = sampled(spec)
    assert curves.backward is not None
    assert curves.curvature is None
    assert set(curves.slope) >= {0.0, 1.0}
    assert 0.01 < min(v for v in curves.backward if v == v) < 0.02
    facts = describe_spec(spec, shipped("relu"))
    page = activation_page(spec, facts)
    assert "declared backward" in page
    assert "s(x) = logistic(x) for all x" in page


def test_what_up_is_sent_through_is_told() -> None:
    factor = Factor(pieces=(Piece(where="all x", formula="1"),), anchor=("0", "1"))
    spec = replace(catalog.get("swiglu"), name="shifted", arity=Gated(order=2, up=factor))
    facts = describe_spec(spec, shipped("swiglu"))
    assert facts["output"] == "f(gate) * h(up)"
    page = activation_page(spec, facts)
    assert "h&#39;(x) = 1 for all x" in page
    assert "with h(0) = 1" in page


def test_a_plot_is_a_file_of_its_own() -> None:
    svg = plot(catalog.XIELU, "svg").decode()
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    style = root.find("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert style.text is not None
    assert theme.DARK["paper"] in style.text
    assert plot(catalog.XIELU, "svg").decode() == svg
    assert plot(catalog.RELU, "png").startswith(b"\x89PNG\r\n\x1a\n")


def test_claims_are_found_in_every_section() -> None:
    claims = claims_of(CERTIFICATE)
    assert [(c.section, c.status, c.rank) for c in claims] == [
        ("Range and growth", "proved", "proved"),
        ("Range and growth", "not proved", "open"),
        ("Under a normal input", "measured", "measured"),
        ("For every value of the parameters", "proved", "proved"),
    ]


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        ("2*alpha_p*x + beta", "2αpx+β"),
        ("-alpha*x", "−αx"),
        ("(-a + b)*x", "(−a+b)x"),
        ("a - (b - c)", "a−(b−c)"),
        ("a*(b/c)", "abc"),
        ("exp(-x)", "e−x"),
        ("(x + 1)**2", "(x+1)2"),
        ("x*2", "x·2"),
        ("logistic(x)*logistic(-x)", "σ(x)σ(−x)"),
        ("expm1(x)**2", "(ex−1)2"),
        ("p1*x", "p1x"),
        ("1e-07*x", "1×10^-7x"),
        ("nosuch(x)", "nosuch(x)"),
        ("x if y else z", "x if y else z"),
        ("x.real", "x.real"),
        ("<b>", "<b>"),
    ],
)
def test_formulas_are_set(formula: str, shown: str) -> None:
    markup = f"<math>{mathml.inline(formula)}</math>".replace("&#x2061;", "").replace(
        "&#x2062;", ""
    )
    assert "".join(ElementTree.fromstring(markup).itertext()) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0 < x <= 1", "0<x≤1"),
        ("all x", "all\u00a0x"),
        ("alpha = beta + softplus(raw)", "α=β+softplus(raw)"),
        ("x in y", "x in y"),
    ],
)
def test_conditions_are_set(text: str, shown: str) -> None:
    markup = f"<math>{mathml.condition(text)}</math>".replace("&#x2061;", "")
    assert "".join(ElementTree.fromstring(markup).itertext()) == shown


def test_a_formula_of_any_depth_is_shown() -> None:
    deep = "-" * 5000 + "x"
    assert "x" in mathml.inline(deep)


def test_cost_is_counted_in_the_kernel() -> None:
    source = shipped_source(catalog.RELU2)
    assert source is not None
    told_ = cost(catalog.RELU2, source)
    assert operations_text(told_["forward"]) == "1 arithmetic, 1 selection"
    gated = catalog.get("swiglu")
    source = shipped_source(gated)
    assert source is not None
    assert cost(gated, source)["saved_inputs"] == 2
    assert cost(gated, source)["forward"]["calls"] == {"logistic": 1}


def test_advice_follows_from_the_certificate() -> None:
    facts = describe("xielu")
    growth = dict(when_to_use(facts, facts["certificate"]))["Growth"]
    assert growth.startswith("It grows like |x|^2") and "overflows for x > 285.9" in growth
    silu = describe("silu")
    assert "Growth" not in dict(when_to_use(silu, silu["certificate"]))
