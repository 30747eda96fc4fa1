"""The formula language: what it accepts, what it refuses, and what it says."""

from __future__ import annotations

import math

import pytest

from stamm.activations.spec.expressions import (
    cauchy_cdf,
    evaluate,
    logistic,
    normal_cdf,
    parse,
    parse_interval,
    symbols,
)
from stamm.base.errors import ConfigError


def test_a_formula_has_its_value() -> None:
    tree = parse("2*a*x**2 - exp(-x)/pi")
    expected = 2 * 0.3 * 1.5**2 - math.exp(-1.5) / math.pi
    assert evaluate(tree, {"a": 0.3, "x": 1.5}) == pytest.approx(expected, rel=1e-15)
    assert symbols(tree) == {"a", "x"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').system('true')", "not part of a formula"),
        ("x.__class__", "not part of a formula"),
        ("[x for x in y]", "not part of a formula"),
        ("x if x else 1", "not part of a formula"),
        ("'x'", "not part of a formula"),
        ("True", "not part of a formula"),
        ("lambda: x", "not part of a formula"),
        ("expp(x)", "Did you mean 'exp'"),
        ("sigmoid(x)", "Write logistic"),
        ("max(x, 0)", "Write two pieces"),
        ("x^2", r"Write x\*\*2"),
        ("2x", r"Write products as 2\*x"),
        ("+".join(["x"] * 101), "more than 100 terms"),
        ("exp(x, x)", "takes one argument"),
        ("x +", "is not a formula"),
        ("1e999*x", "not finite"),
        ("1" + "0" * 400 + "*x", "not finite in double precision"),
        ("9**9**9", "beyond 64"),
        ("x**1000", "beyond 64"),
        ("(" * 300 + "x" + ")" * 300, "is not a formula"),
        ("-" * 200 + "x", "nested more than 60 deep"),
        ("x+" * 2000 + "x", "more than 2000"),
    ],
)
def test_what_is_not_a_formula_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        parse(text)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("x > 0", ("0", False, None, False)),
        ("x <= a", (None, False, "a", True)),
        ("0 < x <= 1", ("0", False, "1", True)),
        ("1 >= x > 0", ("0", False, "1", True)),
        ("0 < x", ("0", False, None, False)),
        ("all x", (None, False, None, False)),
    ],
)
def test_intervals(text: str, ends: tuple[object, ...]) -> None:
    found = parse_interval(text)
    assert (found.low, found.low_closed, found.high, found.high_closed) == ends


def test_a_flat_sum_of_many_terms_is_not_deep() -> None:
    assert evaluate(parse(" + ".join(["x"] * 100)), {"x": 0.5}) == 50.0


@pytest.mark.parametrize(
    "text",
    ["x", "x == 0", "0 < x > 1", "y > 0", "x < x", "x <", "0 < 1 < x", "0 < x < 1 < 2"],
)
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="does not state where the piece holds"):
        parse_interval(text)


def test_tails_keep_their_digits() -> None:
    assert logistic(-700.0) == pytest.approx(math.exp(-700.0), rel=1e-15)
    assert normal_cdf(-30.0) == pytest.approx(4.906713927148187e-198, rel=1e-12)
    assert cauchy_cdf(-1e12) == pytest.approx(1e-12 / math.pi, rel=1e-12)
