"""Specs: identity, raw and effective values, and the errors of bad ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from stamm.activations.catalog import ENTRIES, XIELU
from stamm.activations.catalog.registry import check_name_free
from stamm.activations.spec import Compat, Constant, Factor, Gated, Jump, Piece, Spec
from stamm.activations.spec.parameters import (
    Absolute,
    Between,
    Exp,
    Fixed,
    Identity,
    Parameter,
    Softplus,
    inverse_softplus,
    softplus,
)
from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError


def spec(*pieces: tuple[str, str], **fields: Any) -> Spec:
    return Spec(
        name="mine",
        title="Mine",
        source="a test",
        pieces=tuple(Piece(where=w, formula=f) for w, f in pieces),
        **fields,
    )


def test_initial_raw_values_of_xielu() -> None:
    raw = XIELU.raw_values({"alpha_p": 0.8, "alpha_n": 0.8})
    assert raw["alpha_p"] == pytest.approx(math.log(math.expm1(0.8)), rel=1e-15)
    assert f"{raw['alpha_p']:.10f}" == "0.2033823208"
    assert f"{raw['alpha_n']:.10f}" == "-1.0502256128"


@pytest.mark.parametrize("value", [1e-300, 1e-8, 0.3, 1.0, 20.0, 166.0, 1e6])
def test_softplus_and_its_inverse(value: float) -> None:
    assert softplus(inverse_softplus(value)) == pytest.approx(value, rel=2e-13)


def test_softplus_has_no_inverse_at_zero() -> None:
    with pytest.raises(ConfigError, match=r"0.0 is not the softplus of any number"):
        inverse_softplus(0.0)


def test_effective_and_raw_are_inverse_with_a_trainable_bound() -> None:
    bounded = spec(
        ("all x", "a*x + b"),
        parameters=(
            Parameter(name="a", initial=2.0, bijection=Softplus(above="b")),
            Parameter(name="b", initial=0.5, bijection=Softplus(above="0.25")),
            Parameter(name="c", initial=-1.0, bijection=Identity()),
            Parameter(name="d", initial=3.0, bijection=Fixed()),
        ),
    )
    values = {"a": 1.5, "b": 0.75, "c": 4.0}
    raw = bounded.raw_values(values)
    assert raw["a"] == pytest.approx(inverse_softplus(0.75))
    assert bounded.effective_values(raw) == pytest.approx({**values, "d": 3.0}, rel=1e-14)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"alpha_p": 0.8, "alpha_n": 0.5}, r"alpha_n = 0.5 is not above 0.5"),
        ({"alpha_p": math.nan, "alpha_n": 0.8}, "alpha_p = nan is not finite"),
        ({"alpha_p": 0.8}, "needs a value for 'alpha_n'"),
        ({"alpha_p": 0.8, "alpha_n": 0.8, "alpa": 1.0}, "'alpa' is not a trainable parameter"),
        ({"alpha_p": 0.8, "alpha_n": 0.8, "beta": 0.5}, "'beta' is not a trainable parameter"),
    ],
)
def test_values_that_cannot_be_stored(values: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        XIELU.raw_values(values)


def test_identity_is_what_is_computed() -> None:
    renamed = replace(XIELU, name="other", title="Other", aliases=("also",), notes="", source="x")
    assert renamed.content_hash == XIELU.content_hash
    moved = replace(XIELU, anchor=("0", "1"))
    initial = replace(XIELU.parameters[0], initial=0.9)
    started = replace(XIELU, parameters=(initial, *XIELU.parameters[1:]))
    hashes = {s.content_hash for s in (XIELU, moved, started, replace(XIELU, compat=None))}
    assert len(hashes) == 4
    assert len({s.content_hash for s in ENTRIES}) == len(ENTRIES)


def test_the_identity_of_xielu_is_frozen() -> None:
    assert XIELU.content_hash.startswith("8419447e05f57d31")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda s: s.name)
def test_specs_survive_json(entry: Spec) -> None:
    again = from_plain(Spec, to_plain(entry))
    assert again == entry
    assert again.content_hash == entry.content_hash


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([("x > 0", "1"), ("x < 0", "0")], r"x = 0 lies in no piece: gap between 'x < 0' and"),
        ([("x > 1", "1"), ("x <= 0", "1")], r"x = 0.5 lies in no piece"),
        ([("x >= 0", "1"), ("x <= 0", "1")], r"x = 0 lies in two pieces"),
        ([("x > 0", "1"), ("x <= 2", "1")], r"x = 1 lies in two pieces"),
        ([("x > 0", "1")], "no piece holds below x = 0"),
        ([("x <= 0", "1")], "no piece holds above x = 0"),
        ([("1 < x < 0", "1")], "piece '1 < x < 0' is empty"),
        ([("all x", "1/(x - 3)")], r"piece 'all x' has a pole at x = 3: x - 3 is 0 there"),
        ([("all x", "1/(x - 0.37)**2")], r"has a pole at x = 0.37"),
        ([("x > 0", "x"), ("x <= 0", "x/(1 + x)")], r"piece 'x <= 0' has a pole at x = -1"),
        ([("all x", "log(x)")], "piece 'all x' has no finite value at x = "),
        ([("x > 0", "1/x"), ("x <= 0", "1")], "piece 'x > 0' has no finite value at x = 0"),
        ([("all x", "alpa*x")], "piece 'all x' uses the unknown name 'alpa'"),
        ([("x > a", "x"), ("x <= a", "a")], "names no parameter"),
        (
            [("x > 0", "2*x + 0.7"), ("x <= 0", "x + 0.5")],
            "jumps at x = 0: 0.5 by piece 'x <= 0', 0.7 by piece 'x > 0'",
        ),
        ([], "there is no piece"),
    ],
)
def test_bad_gradients_say_where_and_what(pieces: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(*pieces)
    assert "spec 'mine'" in str(caught.value)
    assert caught.match(said.replace("(", r"\(").replace(")", r"\)"))


def test_continuity_must_hold_for_all_values() -> None:
    a = Parameter(name="a", initial=1.0, bijection=Softplus())
    with pytest.raises(ConfigError, match=r"jumps at x = 1: 1\.\d+ by piece .* with a = 1\.\d+"):
        spec(("x <= 1", "a*x"), ("x > 1", "1"), parameters=(a,))


def test_a_declared_jump_is_allowed() -> None:
    assert spec(("x <= 0", "0"), ("x > 0", "1"), continuity="jump").continuity == "jump"


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        (
            Parameter(name="a", initial=0.0, bijection=Softplus()),
            "starts at 0.0, which is not above 0.0",
        ),
        (
            Parameter(name="a", initial=1.0, bijection=Softplus(above="b")),
            "is not another parameter",
        ),
        (Parameter(name="a", initial=math.inf, bijection=Identity()), "not finite"),
        (Parameter(name="x", initial=1.0, bijection=Identity()), "formula language"),
        (Parameter(name="exp", initial=1.0, bijection=Identity()), "formula language"),
        (Parameter(name="lambda", initial=1.0, bijection=Identity()), "is not a name"),
        (Parameter(name="A b", initial=1.0, bijection=Identity()), "is not a name"),
    ],
)
def test_bad_parameters(parameter: Parameter, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spec(("all x", "1"), parameters=(parameter,))


def test_other_bad_fields() -> None:
    a = Parameter(name="a", initial=1.0, bijection=Identity())
    with pytest.raises(ConfigError, match="'a' is given twice"):
        spec(("all x", "1"), parameters=(a, a))
    with pytest.raises(ConfigError, match="the anchor '1/0' has no finite value"):
        spec(("all x", "1"), anchor=("0", "1/0"))
    with pytest.raises(ConfigError, match="the anchor 'c' names something"):
        spec(("all x", "1"), anchor=("c", "0"))
    compat = Compat(name="other", source="", pieces=(Piece(where="all x", formula="x*e"),))
    with pytest.raises(ConfigError, match="compat 'other' uses the unknown name 'e'"):
        spec(("all x", "1"), compat=compat)
    b = Parameter(name="b", initial=3.0, bijection=Softplus(above="a"))
    c = Parameter(name="c", initial=4.0, bijection=Softplus(above="b"))
    with pytest.raises(ConfigError, match="c is above 'b', which has such a bound itself"):
        spec(("all x", "1"), parameters=(a, b, c))


@pytest.mark.parametrize(
    ("bijection", "value", "raw"),
    [
        (Exp(), 0.25, math.log(0.25)),
        (Exp(above="1"), 1.5, math.log(0.5)),
        (Absolute(), 0.75, 0.75),
        (Absolute(above="-2"), 2.5, 0.5),
        (Between(low=-1.0, high=3.0), 1.0, 0.0),
    ],
)
def test_every_bijection_has_its_inverse(bijection: Any, value: float, raw: float) -> None:
    parameter = Parameter(name="a", initial=value, bijection=bijection)
    made = spec(("all x", "a"), parameters=(parameter,))
    assert made.raw_values({"a": value}) == {"a": pytest.approx(raw, abs=1e-15)}
    assert made.effective_values({"a": raw}) == {"a": pytest.approx(value)}


def test_ranges_are_kept() -> None:
    inside = Parameter(name="a", initial=2.0, bijection=Between(low=0.0, high=1.0))
    with pytest.raises(ConfigError, match=r"starts at 2.0, which is not between 0.0 and 1.0"):
        spec(("all x", "a"), parameters=(inside,))
    empty = Parameter(name="a", initial=2.0, bijection=Between(low=1.0, high=1.0))
    with pytest.raises(ConfigError, match="an empty range"):
        spec(("all x", "a"), parameters=(empty,))


def test_the_identity_is_what_is_computed() -> None:
    plain = spec(("all x", "2*x"))
    assert replace(plain, name="other", title="T", notes="n", peers=("m:f",)) == replace(
        plain, name="other", title="T", notes="n", peers=("m:f",)
    )
    hinted = replace(plain, pieces=(Piece(where="all x", formula="2*x", integral="x**2"),))
    assert hinted.content_hash == plain.content_hash
    assert replace(plain, name="other").content_hash == plain.content_hash
    for change in (
        {"anchor": ("0", "1")},
        {"continuity": "jump"},
        {"arity": Gated(order=1)},
        {"surrogate": (Piece(where="all x", formula="1"),)},
    ):
        assert replace(plain, **change).content_hash != plain.content_hash  # type: ignore[arg-type]


def test_jumps_stand_at_knots() -> None:
    pieces = (("x <= 1", "0"), ("x > 1", "1"))
    jump = Jump(at="1", by="3")
    assert spec(*pieces, continuity="jump", jumps=(jump,)).jumps == (jump,)
    with pytest.raises(ConfigError, match="declared to jump at 2, which is not a knot"):
        spec(*pieces, continuity="jump", jumps=(Jump(at="2", by="3"),))


def test_the_up_factor_and_the_surrogate_are_checked_too() -> None:
    a = Parameter(name="a", initial=1.0, bijection=Identity())
    factor = Factor(pieces=(Piece(where="all x", formula="a"),))
    with pytest.raises(ConfigError, match="uses the unknown name 'a'"):
        spec(("all x", "a"), parameters=(a,), arity=Gated(order=2, up=factor))
    with pytest.raises(ConfigError, match="the surrogate: no piece holds above x = 0"):
        spec(("all x", "1"), surrogate=(Piece(where="x <= 0", formula="1"),))


def test_a_singular_gradient_has_to_be_declared() -> None:
    pieces = (("x > 0", "1/(2*sqrt(x))"), ("x <= 0", "0"))
    with pytest.raises(ConfigError, match=r"no finite value at x = 0|pole at x = 0"):
        spec(*pieces, continuity="jump")
    assert spec(*pieces, continuity="singular").continuity == "singular"


def test_a_name_that_is_taken() -> None:
    check_name_free(replace(XIELU, notes="the same function"), ENTRIES)
    with pytest.raises(ConfigError, match="the name 'xielu' is taken by 'xIELU"):
        check_name_free(replace(spec(("all x", "2*x")), name="xielu"), ENTRIES)


@pytest.mark.parametrize(
    ("pieces", "initial", "said"),
    [
        (
            (("all x", "1/(x**2 + a)"),),
            2.0,
            r"pole at x = .* with a = -2, which training may reach",
        ),
        ((("x <= a", "0"), ("a < x <= 2", "1"), ("x > 2", "0")), 1.0, r"is empty with a = 5"),
        ((("x <= 0", "a"), ("x > 0", "1 + 0*x")), 1.0, r"jumps at x = 0: .* with a = "),
    ],
)
def test_what_training_may_break_is_refused(
    pieces: tuple[tuple[str, str], ...], initial: float, said: str
) -> None:
    a = Parameter(name="a", initial=initial, bijection=Identity())
    jumps = "continuous" if "jumps" in said else "jump"
    with pytest.raises(ConfigError, match=said):
        spec(*pieces, parameters=(a,), continuity=jumps)
    bounded = Parameter(name="a", initial=initial, bijection=Softplus())
    if "pole" in said:
        assert spec(*pieces, parameters=(bounded,)).trainable == (bounded,)


def test_a_compat_order_is_formulas_and_nothing_else() -> None:
    evil = "x > __import__('os').system('true')"
    for where, said in (
        (evil, "not part of a formula|unknown function"),
        ("x > q", "unknown name 'q'"),
    ):
        pieces = (Piece(where=where, formula="x"), Piece(where="x <= 0", formula="x"))
        compat = Compat(name="other", source="", pieces=pieces)
        with pytest.raises(ConfigError, match=said):
            spec(("all x", "1"), compat=compat)
    plain = (Piece(where="all x", formula="x"),)
    with pytest.raises(ConfigError, match="has no meaning for an activation of two inputs"):
        compat = Compat(name="other", source="", pieces=plain)
        spec(("all x", "1"), compat=compat, arity=Gated(order=2))
    with pytest.raises(ConfigError, match="a name that is already used"):
        constants = (Constant(name="x", value=1.0),)
        spec(("all x", "1"), compat=Compat(name="o", source="", pieces=plain, constants=constants))


@pytest.mark.parametrize("name", ["torch", "primitives", "parameters"])
def test_a_parameter_cannot_be_called_what_kernels_are_made_of(name: str) -> None:
    a = Parameter(name=name, initial=1.0, bijection=Identity())
    with pytest.raises(ConfigError, match="in every kernel"):
        spec(("all x", name), parameters=(a,))


def test_poles_and_knots_far_out() -> None:
    with pytest.raises(ConfigError, match="pole at x = 1234"):
        spec(("all x", "1/(x - 1234.5)"))
    with pytest.raises(ConfigError, match="knot at x = 1e\\+30, beyond"):
        spec(("x > 1e30", "1"), ("x <= 1e30", "1"))
