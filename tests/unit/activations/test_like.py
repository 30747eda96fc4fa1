"""`stamm show --like`: equals and affine maps of a stated function are named, and bad input is one line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import stamm
from stamm.activations import catalog
from stamm.activations.equivalence.compare import Affine, rediscover
from stamm.activations.equivalence.curves import POINTS, values_of
from stamm.activations.equivalence.function_spec import spec_of_function
from stamm.activations.equivalence.verb import _spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import write_json
from stamm.cli.main import main

KNOWN = tuple(catalog.get(name) for name in ("snake", "relu", "gelu", "modulus", "sine", "symlog"))


def test_the_square_of_a_sine_is_an_affine_map_of_snake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--like", "sin(x)**2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    first = printed["known"][0]
    assert (first["name"], first["kind"], first["parameters"]) == ("snake", "affine map of", {"alpha": 1.0})  # fmt: skip
    assert first["map"] == vars(Affine(linear=-1.0))
    assert [row["formula"] for row in printed["gradient"]] == ["2*sin(x)*cos(x)"]
    distances = [row["distance"] for row in printed["nearest"]]
    assert len(distances) == 5 and distances == sorted(distances) and distances[0] > 0.1


@pytest.mark.parametrize(
    ("pieces", "known"),
    [
        (["max(x, 0)"], "relu"),
        (["x > 0: x", "x <= 0: 0"], "relu"),
        (["gelu(x)"], "gelu"),
        (["abs(x + 1)"], "modulus"),
        (["x*sign(x)"], "modulus"),
        (["sign(x)*log1p(abs(x))"], "symlog"),
        (["3*sin(x/2 + 1) - x"], "sine"),
    ],
)
def test_a_formula_of_the_function_is_compared(pieces: list[str], known: str) -> None:
    findings = rediscover(spec_of_function(pieces), among=KNOWN)
    assert known in [finding.name for finding in findings if finding.distance == 0.0]


def test_the_spec_of_a_formula_is_its_function() -> None:
    cases = {
        "x*log1p(x**2)": lambda x: x * math.log1p(x * x),
        "sin(x)/x": lambda x: math.sin(x) / x,
        "where(x > 1, x, sin(x))": lambda x: x if x > 1 else math.sin(x),
        "sign(x - 1/2)": lambda x: math.copysign(1, x - 0.5),
        "x > 0: 2 + sqrt(1 + x)": None,
    }
    for formula, true in cases.items():
        pieces = [formula] if true else [formula, "x <= 0: exp(x)"]
        spec = spec_of_function(pieces)
        result = values_of(spec, POINTS, spec.initial_values())
        function = true or (lambda x: 2 + math.sqrt(1 + x) if x > 0 else math.exp(x))
        np.testing.assert_allclose(result, [function(x) for x in POINTS], rtol=1e-8, atol=1e-9)
    assert [jump.at for jump in spec.jumps] == ["0"]


def test_a_gradient_a_name_a_file_and_a_folder_are_compared(tmp_path: Path) -> None:
    gradient = stamm.like("x > 0: 1", "x <= 0: 0", gradient=True, nearest=0)
    assert gradient.known[0].name == "relu" and gradient.nearest == ()
    bent = stamm.like("sign(x + 1)", gradient=True, nearest=0)
    shifted = Affine(input_shift=1.0, constant=-1.0)
    assert ("modulus", shifted) in [(finding.name, finding.map) for finding in bent.known]
    write_json(tmp_path / "spec.json", to_plain(catalog.get("square")))
    (tmp_path / "mine.py").write_text("from stamm.activations.catalog import get\nMINE = get('square')\n")  # fmt: skip
    things = (
        "square",
        str(tmp_path),
        f"{tmp_path}/spec.json",
        f"{tmp_path}/mine.py:MINE",
        catalog.get("square"),
    )
    for thing in things:
        assert _spec([thing], False, []).content_hash == catalog.get("square").content_hash
    first = stamm.like("identity").known[0]
    assert (first.name, first.kind) == ("identity", "same spec")


def test_parameters_are_trained_ones_of_the_new_function() -> None:
    spec = spec_of_function(["a*sin(x) + b"], ["a=2:softplus", "b=1:fixed"])
    (finding,) = rediscover(spec, among=[catalog.get("sine")])
    assert finding.kind == "affine map of" and finding.always
    assert finding.map.formula("sine") == "2*sine(x) + 1"


def test_a_jump_that_is_zero_at_the_initial_values_stays_one() -> None:
    spec = spec_of_function(["x > 0: x + b", "x <= 0: x"], ["b=0:identity"])
    assert [jump.at for jump in spec.jumps] == ["0"]
    result = values_of(spec, np.array([-1.0, 1.0]), {"b": 0.5})
    np.testing.assert_allclose(result, [-1.0, 1.5])


def test_the_number_e_is_written_as_a_formula() -> None:
    spec = spec_of_function(["exp(1)*x"])
    np.testing.assert_allclose(values_of(spec, np.array([2.0]), {}), [2 * math.e])


def test_a_spec_beside_a_name_is_named_in_one_word() -> None:
    with pytest.raises(ConfigError, match=r"'silu' is a complete activation"):
        stamm.like(catalog.get("square"), "silu")


def test_an_absolute_value_is_no_curve_whose_bend_is_between_the_points_of_the_proof() -> None:
    """With a bend at -0.991 softmodulus_t passed at every point: a sign inside a formula is a knot."""
    spec = spec_from_arguments(["sign(x + 1)"], continuity="jump")
    findings = rediscover(spec, among=[catalog.get("softmodulus_t")])
    assert all(finding.kind == "within epsilon of" for finding in findings)


@pytest.mark.parametrize(
    ("things", "message"),
    [
        (["sinn"], "'sinn' is not a known activation. Did you mean 'sine'"),
        (["a*sin(x)"], "the name 'a' is used in the formulas and not declared"),
        (["1/x"], "has a pole at x = 0"),
        (["tan(x)"], "cos(x) and what it divides are 0 there"),
        (["x > 0: x"], "no piece holds below x = 0"),
        (["x|x"], "is given as an integral of a function"),
        (["sign(sin(x))*x"], "jumps at x = 3.14159, inside the piece 'all x'"),
        (["0.01*atan(1/x)"], "is not the integral of its derivative at x = -0.1263"),
        (["(((10**64)**64)**64)**64*x"], "has no finite value for |x| < 5.6"),
        (["__import__('os')"], "calls the unknown function '__import__'"),
        (["(" * 300 + "x" + ")" * 300], "formula"),
        (["x+" * 1500 + "x"], "formula"),
        (["((x+1)**64)**64"], "has the exponent '4095', beyond 64"),
        (["relu", "x"], "'relu' is a complete activation. Give it alone"),
        (["relu", "--gradient"], "'relu' is a complete activation. Give it alone"),
        (["nothing.py:SPEC"], "nothing.py does not exist"),
        (["relu", "--plot", "a.svg"], "--plot cannot be combined with --like"),
        (["x", "--parameter", "a"], "'a' does not declare a parameter"),
        ([""], "lacks a formula"),
    ],
)  # fmt: skip
def test_what_is_not_a_function_is_refused_in_one_line(
    things: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "--like", *things]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and len(error) < 2500


def test_flags_of_like_need_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "relu", "--gradient"]) == 2
    assert "--gradient needs --like" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="nearest is -1"):
        stamm.like("x", nearest=-1)
    with pytest.raises(ConfigError, match="no function is given"):
        stamm.like()


def test_the_command_prints_equals_before_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--like", "x > 0: 1", "x <= 0: -1"]) == 0
    printed = capsys.readouterr().out
    assert "known as  no entry of the catalogue, nor an affine map of one" in printed
    assert printed.index("known as") < printed.index("near ") and "jump" in printed
