"""Specs from the words of a command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from stamm.activations import catalog
from stamm.activations.describe import describe, describe_spec, shipped
from stamm.activations.spec import Compat, Constant, Gated, Piece
from stamm.activations.spec.command_line import (
    known_entry,
    parse_parameter,
    parse_piece,
    same_statement,
    spec_from_arguments,
)
from stamm.activations.spec.parameters import (
    Absolute,
    Between,
    Bijection,
    Exp,
    Fixed,
    Identity,
    Parameter,
    Softplus,
)
from stamm.activations.spec.spec import unused_parameters
from stamm.base.errors import ConfigError

XIELU = ["x>0: 2*alpha_p*x+beta", "x<=0:alpha_n*(exp(x)-1)+beta"]
XIELU_PARAMETERS = ["alpha_p=0.8:softplus", "alpha_n=0.8:softplus>beta", "beta=0.5:fixed"]


@pytest.mark.parametrize(
    ("word", "where", "formula", "integral"),
    [
        ("x > 0: 2*x", "x > 0", "2*x", ""),
        ("x<=0:exp( x )", "x <= 0", "exp( x )", ""),
        ("tanh(x)", "all x", "tanh(x)", ""),
        (" all x : x | x**2/2 ", "all x", "x", "x**2/2"),
        ("0<x<=1: 1", "0 < x <= 1", "1", ""),
        ("-1 < x < 1: 1", "-1 < x < 1", "1", ""),
    ],
)
def test_pieces(word: str, where: str, formula: str, integral: str) -> None:
    assert parse_piece(word) == Piece(where=where, formula=formula, integral=integral)


@pytest.mark.parametrize(
    ("word", "name", "initial", "bijection"),
    [
        ("a=0.8:softplus", "a", 0.8, Softplus()),
        ("a=0.8:softplus>b", "a", 0.8, Softplus(above="b")),
        ("a = 1.5 : exp > 0.5", "a", 1.5, Exp(above="0.5")),
        ("a=0.3:exp", "a", 0.3, Exp()),
        ("a=2:absolute", "a", 2.0, Absolute()),
        ("t=0.5:between(0,1)", "t", 0.5, Between(low=0.0, high=1.0)),
        ("t=-1:between(-2, 1e-3)", "t", -1.0, Between(low=-2.0, high=1e-3)),
        ("c=-1:identity", "c", -1.0, Identity()),
        ("b=0.5:fixed", "b", 0.5, Fixed()),
    ],
)
def test_parameters(word: str, name: str, initial: float, bijection: Bijection) -> None:
    expected = Parameter(name=name, initial=initial, bijection=bijection)
    assert parse_parameter(word) == expected


@pytest.mark.parametrize(
    "word",
    [
        "a", "a=1", "=1:fixed", "a=1:", "a=one:fixed", "a=1:soft", "a=1:between", "a=1:fixed>0",
        "a=1:between(0)", "a=1:between(0,1,2)", "a=1:between(0,b)", "a=1:softplus(0,1)",
        "a=1:identity(0,1)", "a=1:fixed\nx", "a.b=1:fixed", "a=1:softplus>(b", "",
    ],
)  # fmt: skip
def test_a_word_that_declares_no_parameter_is_quoted(word: str) -> None:
    with pytest.raises(ConfigError) as told_:
        parse_parameter(word)
    assert "parameter" in told_.value.line()
    assert "\n" not in told_.value.line()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no piece"),
        (["x > 0:"], "lacks a formula"),
        (["x > 0: x |"], "lacks a formula"),
        (["x > : x"], "does not state where"),
        (["tanh(x"], "is not a formula"),
        (["all x: x; import os"], "is not a formula"),
        (["__import__('os').system('true')"], "not part of a formula"),
        (["all x: (lambda: x)()"], "not part of a formula"),
        (["x.__class__"], "not part of a formula"),
        (["9**9**9**9"], "exponent"),
        (["x > 0: 1", "x < 0: 0"], "gap"),
        (["x > 0: 1", "x <= 0: 0"], "jumps at x = 0"),
        (["1/x"], "pole at x = 0"),
        (["x" * 3000], "more than 2000"),
    ],
)
def test_a_gradient_that_cannot_be_is_refused_with_its_piece(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as told_:
        spec_from_arguments(words)
    assert says in told_.value.line()


def test_an_undeclared_name_is_told_with_how_to_declare_it() -> None:
    with pytest.raises(ConfigError) as told_:
        spec_from_arguments(["x > t: 2*a*x + b", "x <= t: b"], ["b=1:fixed"], anchor="0=c")
    line = told_.value.line()
    assert "'a', 'c', 't' are used in the formulas" in line
    assert "--parameter a=1:identity --parameter c=1:identity" in line


@pytest.mark.parametrize("anchor", ["0", "=1", "0=", "", "x=1", "0=1=2"])
def test_an_anchor_that_is_none_is_refused(anchor: str) -> None:
    with pytest.raises(ConfigError):
        spec_from_arguments(["all x: 1"], anchor=anchor)


def test_flags_reach_the_spec() -> None:
    spec = spec_from_arguments(
        ["x > 0: 1", "x <= 0: 0"], name="mine", anchor="0=1/2", continuity="jump", gated=2
    )
    assert spec.anchor == ("0", "1/2")
    assert spec.continuity == "jump"
    assert spec.arity == Gated(order=2)
    assert spec.name == "mine"


def test_without_a_name_the_identity_names_it() -> None:
    spec = spec_from_arguments(["all x: 3*x"])
    assert spec.name == f"activation_{spec.content_hash[:8]}"
    assert spec_from_arguments(["all x : 3*x"]) == spec


def test_blanks_in_a_condition_are_no_part_of_the_identity() -> None:
    one, other = (spec_from_arguments([f"{w} 1", "x<=0: 1"]) for w in ("x>0:", "x  >  0 :"))
    assert one.content_hash == other.content_hash


def test_a_known_statement_is_recognised_however_it_is_spaced_and_ordered() -> None:
    spec = spec_from_arguments(XIELU[::-1], XIELU_PARAMETERS[::-1])
    assert spec.content_hash != catalog.XIELU.content_hash  # the other one has a compat order
    found = known_entry(spec, catalog.ENTRIES)
    assert found is not None
    assert found.name == "xielu"
    assert same_statement(spec, catalog.XIELU)


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": ["alpha_p=0.8:softplus", "alpha_n=0.9:softplus>beta", "beta=0.5:fixed"]},
        {"anchor": "0=1"},
        {"gated": 1},
    ],
)
def test_another_statement_is_not_taken_for_a_known_one(change: dict[str, object]) -> None:
    arguments = {"pieces": XIELU, "parameters": XIELU_PARAMETERS, **change}
    assert known_entry(spec_from_arguments(**arguments), catalog.ENTRIES) is None  # type: ignore[arg-type]


def test_every_entry_is_known_as_itself() -> None:
    for spec in catalog.ENTRIES:
        found = known_entry(spec, catalog.ENTRIES)
        assert found is not None
        assert found.content_hash == spec.content_hash


def test_a_spec_is_told_as_the_catalogue_tells_it() -> None:
    for name in ("xielu", "swiglu", "relu"):
        ours = describe_spec(catalog.get(name), shipped(name))
        assert json.loads(json.dumps(ours)) == ours
        theirs = describe(name)
        assert {key: ours[key] for key in theirs if key in ours} == {
            key: value for key, value in theirs.items() if key in ours
        }
        assert set(ours) >= {"gradient", "function", "curvature", "parameter_slopes", "peers"}


ESCAPES = [
    {"title": 'x"""\nprint(1)\n"""'},
    {"title": "a\\"},
    {"source": "a\nb"},
    {"notes": "a\x1b[31mb"},
    {"compat": {"source": "y\n    pass\nprint(1)\ndef q(x):\n    pass #"}},
    {"compat": {"name": "c():\n    pass\nprint(1)\ndef r"}},
    {"compat": {"constants": (Constant(name="k: Tensor, *, z=print(1), w", value=1.0),)}},
    {"compat": {"constants": (Constant(name="lambda", value=1.0),)}},
    {
        "compat": {
            "pieces": (Piece(where="x > 0 # ", formula="x"), Piece(where="x <= 0", formula="x"))
        }
    },
]


@pytest.mark.parametrize("change", ESCAPES)
def test_a_word_that_could_leave_its_line_in_a_kernel_is_refused(change: dict[str, Any]) -> None:
    compat = Compat(name="c", pieces=(Piece(where="all x", formula="x"),), source="elsewhere")
    spec = spec_from_arguments(["all x: 5*x"])
    assert replace(spec, compat=compat).compat == compat
    with pytest.raises(ConfigError) as told_:
        if "compat" in change:
            change = {"compat": replace(compat, **change["compat"])}
        replace(spec, **change)
    assert "\n" not in told_.value.line()


def test_what_ships_is_no_way_around_it() -> None:
    with pytest.raises(ConfigError, match="is not one line of printable text"):
        replace(catalog.XIELU, title="known by its hash\n")


def test_reading_words_needs_neither_torch_nor_sympy() -> None:
    code = (
        "import sys; from stamm.activations.spec.command_line import spec_from_arguments;"
        "spec_from_arguments(['all x: tanh(x)']); import stamm.activations.cache;"
        "print([m for m in ('torch', 'sympy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("pieces", "parameters", "line"),
    [
        (["all x: 1 \u2212 exp(x)"], [], "invalid character '\u2212' (U+2212) (piece 'all x: 1 \u2212 exp(x)'). Write -."),
        (["all x: x\u00b72"], [], "invalid character '\u00b7' (U+00B7) (piece 'all x: x\u00b72'). Write *."),
        (["all x: \uff54anh(x)"], [], "Write it in ASCII."),
        (["x \u2265 0: x", "x < 0: 0"], [], "(U+2265) (piece 'x \u2265 0: x'). Write >=."),
        (["all x: 1e-400*x"], [], "1e-400 is 0 in double precision"),
        (["x > 1e-400: x", "x <= 1e-400: 0"], [], "1e-400 is 0 in double precision"),
        (["all x: logistic(lambda*x)"], ["lambda=1:exp"], "call the parameter lam."),
        (["all x: a*x"], ["a=1:fixed", "a=2:fixed"], "stamm: the parameter 'a' is given twice ("),
    ],
)  # fmt: skip
def test_what_would_be_read_as_something_else_is_refused(
    pieces: list[str], parameters: list[str], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_from_arguments(pieces, parameters)
    assert line in f"stamm: {caught.value.line()}"


def test_a_parameter_that_no_formula_uses_is_found() -> None:
    spec = spec_from_arguments(["x > k: x", "x <= k: a"], ["k=0:fixed", "a=0:fixed", "b=1:fixed"])
    assert unused_parameters(spec) == ["b"]
    assert not any(unused_parameters(entry) for entry in catalog.ENTRIES)
