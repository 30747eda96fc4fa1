"""Gradients that are refused: poles, jumps, states that training can reach, and numbers without a value."""

from __future__ import annotations

from typing import Any

import pytest

from stamm.activations.catalog import XIELU
from stamm.activations.derivation.derive import derive
from stamm.activations.spec import Factor, Gated, Jump, Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.parameters import Exp, Parameter
from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError


def refused(*words: str, parameters: tuple[str, ...] = (), **options: Any) -> str:
    """The error of a spec that must be refused."""
    with pytest.raises(ConfigError) as caught:
        spec_from_arguments(words, parameters, **options)
    return caught.value.line()


@pytest.mark.parametrize(
    ("formula", "place"),
    [
        ("sign(x)", "x = 0"),
        ("x + sign(x - 3.3)", "x = 3.3"),
        ("sign(x - 3.3 + abs(x - 3.3))", "x = 3.3"),
        ("exp(x)*sign(exp(x) - 2)", "x = 0.693147"),
        ("sign(x - 1e6)", "x = 1e+06"),
    ],
)
def test_a_jump_inside_a_piece(formula: str, place: str) -> None:
    line = refused(formula)
    assert "declared continuous, but the gradient jumps" in line
    assert f"{place} inside piece 'all x'" in line
    assert spec_from_arguments([formula], continuity="jump").pieces[0].formula == formula


def test_a_sign_at_a_knot_has_its_value_beside_it() -> None:
    assert "jumps at x = 0: 0 by piece" in refused("x > 0: sign(x)", "x <= 0: 0")
    assert spec_from_arguments(["x > 0: sign(x)", "x <= 0: 1"]).continuity == "continuous"


@pytest.mark.parametrize(
    "formula",
    [
        "x*sign(x)", "sign(x**2) + x", "1e9*(x - 1000)*sign(x - 1000)", "sign(x)*sign(x)",
        "(x - 3.3)**2*sign(x - 3.3)", "sin(x)*sign(sin(x))", "sign(1 + x**2)",
    ],
)  # fmt: skip
def test_a_sign_without_a_jump_is_allowed(formula: str) -> None:
    assert spec_from_arguments([formula]).continuity == "continuous"


@pytest.mark.parametrize(
    ("formula", "parameters"),
    [
        ("(x - 3.3)**(0 - 1)", ()),
        ("(x - 3.3)**a", ("a=-1:fixed",)),
        ("abs(x - 3.3)**(-1/2)", ()),
        ("abs(x - 3.3)**(0 - 2)", ()),
        ("abs(x - 3.3)**a", ("a=1:identity",)),
        ("1/sqrt(abs(x - 3.3))", ()),
        ("1/((x - 3.3)**2*(1 + x**2))", ()),
    ],
)
def test_a_pole_in_any_spelling(formula: str, parameters: tuple[str, ...]) -> None:
    assert "piece 'all x' has a pole at x = 3.3: " in refused(formula, parameters=parameters)


@pytest.mark.parametrize("formula", ["log(abs(x - 3.3))", "log1p((x - 3.3)**2 - 1)"])
def test_the_logarithm_of_zero(formula: str) -> None:
    line = refused(formula)
    assert "piece 'all x' has no finite value at x = 3.3: " in line
    assert "is 0 in a logarithm" in line


@pytest.mark.parametrize(
    ("formula", "parameters"),
    [
        ("abs(x)**a", ("a=2:softplus",)),
        ("x**-n", ("n=-2:fixed",)),
        ("(1 + x**2)**(-a)", ("a=1:softplus",)),
        ("abs(x - 3.3)**x", ()),
        ("log1p(abs(x - 3.3))", ()),
    ],
)
def test_powers_and_logarithms_without_a_pole(formula: str, parameters: tuple[str, ...]) -> None:
    assert spec_from_arguments([formula], parameters).pieces[0].formula == formula


REACHED = "which training may reach"


@pytest.mark.parametrize(
    ("words", "parameters", "problem"),
    [
        (("tanh(x/a)",), ("a=1:identity",), "a is 0 with a = 0"),
        (("tanh(x/a)",), ("a=1:absolute",), "a is 0 with a = 0"),
        (("x > 0: 1/(1 + x/a)", "x <= 0: 1"), ("a=1:absolute",), "a is 0 with a = 0"),
        (("tanh(x/a)",), ("a=1:softplus>-2",), "a is 0 with a = 0"),
        (("tanh(x/a)",), ("a=0.3:between(-1,1)",), "a is 0 with a = 0"),
        (("1/(1 + a*x**2)",), ("a=5:identity",), "1 + a * x ** 2 is 0 there with a = -"),
        (
            ("x > t: 1", "s < x <= t: 0", "x <= s: 1"),
            ("t=6:identity", "s=-6:identity"),
            "piece 's < x <= t' is empty",
        ),
        (("x > a/b: 1", "x <= a/b: 1"), ("a=1:identity", "b=1:identity"), "the knot 'a / b'"),
        (("x > log(a): 1", "x <= log(a): 1"), ("a=1:identity",), "the knot 'log(a)'"),
    ],
)
def test_a_state_that_training_may_reach(
    words: tuple[str, ...], parameters: tuple[str, ...], problem: str
) -> None:
    line = refused(*words, parameters=parameters, continuity="jump")
    assert problem in line
    assert REACHED in line


def test_a_bound_keeps_a_magnitude_from_zero() -> None:
    bounded = spec_from_arguments(["tanh(x/a)"], ["a=2:absolute>1"])
    assert {values["a"] for values in bounded.stress_values()} == {4.0, 6.0, 1.0}
    assert spec_from_arguments(["1/(1 + a*x**2)"], ["a=5:absolute"]).trainable


@pytest.mark.parametrize("knot", ["1/0", "exp(1000)", "log(0 - 1)", "0*1e308*10 + 1e308*10"])
def test_a_knot_without_a_finite_value(knot: str) -> None:
    assert "has no finite value" in refused(f"x > {knot}: 1", f"x <= {knot}: 1")


def test_the_knot_of_an_up_factor_without_a_value() -> None:
    pieces = (Piece(where="x > 1/0", formula="1"), Piece(where="x <= 1/0", formula="1"))
    with pytest.raises(ConfigError, match="the up factor: the knot '1 / 0'"):
        _stated(arity=Gated(order=2, up=Factor(pieces=pieces)))


@pytest.mark.parametrize(("at", "by"), [("1/0", "1"), ("1", "1/0"), ("1", "exp(1000)")])
def test_a_jump_of_the_function_without_a_finite_value(at: str, by: str) -> None:
    pieces = (Piece(where="x <= 1", formula="0"), Piece(where="x > 1", formula="1"))
    with pytest.raises(ConfigError, match=r"the jump .* has no finite value"):
        _stated(pieces=pieces, continuity="jump", jumps=(Jump(at=at, by=by),))


def test_the_height_of_a_jump_that_training_may_make_infinite() -> None:
    pieces = (Piece(where="x <= 1", formula="0"), Piece(where="x > 1", formula="1"))
    a = spec_from_arguments(["a*x"], ["a=1:identity"]).parameters
    with pytest.raises(
        ConfigError, match=f"the jump '1/a' has no finite value with a = 0, {REACHED}"
    ):
        _stated(pieces=pieces, parameters=a, continuity="jump", jumps=(Jump(at="1", by="1/a"),))


def test_numbers_beyond_double_precision() -> None:
    long = "1" + "0" * 400
    assert "not finite in double precision" in refused("x", anchor=f"{long}=0")
    pieces = (Piece(where="all x", formula="a*x"),)
    a = Parameter(name="a", initial=int(long), bijection=Exp())
    with pytest.raises(ConfigError, match=r"a starts at 1000+…, which is not finite"):
        _stated(pieces=pieces, parameters=(a,))
    with pytest.raises(ConfigError, match=r"the range of a, .* is not finite"):
        spec_from_arguments(["a*x"], ["a=1:between(0,inf)"])


def test_values_that_overflow_are_not_tested() -> None:
    large = spec_from_arguments(["tanh(x/a)"], ["a=1e307:exp"])
    assert [values["a"] for values in large.stress_values()] == [
        pytest.approx(1e307 / 54.6, rel=1e-3)
    ]
    largest = spec_from_arguments(["tanh(x/a)"], ["a=1.7e308:exp"])
    assert largest.sample_values() == [{"a": 1.7e308}]
    assert Parameter(name="a", initial=1.0, bijection=Exp()).effective(1000.0) == float("inf")


@pytest.mark.parametrize("anchor", [["0"], [], ["0", "0", "1"]])
def test_an_anchor_has_two_formulas(anchor: list[str]) -> None:
    plain = {**to_plain(spec_from_arguments(["x"])), "anchor": anchor}
    with pytest.raises(ConfigError, match=r"the anchor has \d formulas, not the two"):
        from_plain(Spec, plain)
    with pytest.raises(ConfigError, match="the anchor of the up factor has"):
        factor = Factor(pieces=(Piece(where="all x", formula="1"),), anchor=tuple(anchor))  # type: ignore[arg-type]
        _stated(arity=Gated(order=2, up=factor))


def test_what_is_accepted_is_derived() -> None:
    for formula in ("x*sign(x)", "x**-n"):
        parameters = ["n=-2:fixed"] if "n" in formula else []
        assert derive(spec_from_arguments([formula], parameters)).exact.function
    assert XIELU.content_hash.startswith("8419447e05f57d31")


def _stated(**fields: Any) -> Spec:
    fields = {"pieces": (Piece(where="all x", formula="1"),), **fields}
    return Spec(name="mine", title="Mine", source="a test", **fields)
