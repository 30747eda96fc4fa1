"""Whole certificates: plain data, the same every time, honest about what is not proved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from stamm.activations.catalog.core import (
    ENTRIES,
    GELU,
    RELU,
    RELU2,
    SILU,
    XGELU,
    XSILU,
)
from stamm.activations.catalog.xielu import XIELU
from stamm.activations.certificates.certificate import certify
from stamm.activations.certificates.rounding import certificate_text
from stamm.activations.derivation.derive import derive
from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError
from tests.unit.activations.witnesses import swept

STATUSES = {"proved", "measured", "not proved", "not applicable"}


def _sections(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        if "claim" in value and "status" in value:
            yield path, value
        for name, inner in value.items():
            yield from _sections(inner, f"{path}/{name}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _sections(inner, f"{path}/{i}")


@pytest.mark.parametrize("spec", swept(ENTRIES[:19]))
def test_every_entry_of_the_core(spec: Spec) -> None:
    derived = derive(spec)
    told = certify(derived)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    found = dict(_sections(told))
    assert len(found) > 25 and {s["status"] for s in found.values()} <= STATUSES
    unproved = [path for path, s in found.items() if s["status"] == "not proved"]
    assert not unproved, unproved


def test_xielu() -> None:
    told = certify(derive(XIELU))
    assert json.dumps(certify(derive(XIELU))) == json.dumps(told)
    assert told["values"] == {"alpha_p": 0.8, "alpha_n": 0.8, "beta": 0.5}
    assert told["bounds"]["slope"]["low"] == -0.3
    assert told["shape"]["inverse"]["kind"] == "one bit"
    assert told["numerics"]["function_overflow"]["finite_up_to"]["fp16"]["right"] == pytest.approx(
        285.873, abs=1e-2
    )
    assert told["warnings"] == [
        "The variance map is unstable (slope 1.73 at its fixed point): use a normaliser before it.",
        "The gradient is unbounded above.",
    ]


def test_values_may_be_given_and_are_checked() -> None:
    told = certify(derive(XSILU), {"alpha": 0.2})
    assert told["values"] == {"alpha": 0.2}
    assert told["bounds"]["slope"]["low"] == pytest.approx(-0.339775, abs=1e-6)
    xielu = certify(derive(XIELU), {"alpha_n": 1.5})
    assert xielu["bounds"]["slope"]["low"] == -1.0
    with pytest.raises(ConfigError, match="Did you mean 'alpha_n'"):
        certify(derive(XIELU), {"alpha_nn": 1.0})
    with pytest.raises(ConfigError, match="'beta' is not a trainable parameter of xielu"):
        certify(derive(XIELU), {"beta": 1.0})
    with pytest.raises(ConfigError):
        certify(derive(XIELU), {"alpha_n": 0.4})


def test_knots_that_pass_each_other_are_refused() -> None:
    spec = spec_from_arguments(
        ["x < a: 0", "a <= x <= 50: 1", "x > 50: 2"],
        ["a=0.0:identity"],
        name="gap",
        continuity="jump",
    )
    told = certify(derive(spec), {"a": 0.5})
    assert [j["at"] for j in told["shape"]["jumps"]["at"]] == [0.5, 50.0]
    with pytest.raises(ConfigError, match="a piece of gap is empty"):
        certify(derive(spec), {"a": 60.0})


def test_gated_entries_are_certified_as_their_gate() -> None:
    swiglu = next(spec for spec in ENTRIES if spec.name == "swiglu")
    told = certify(derive(swiglu))
    assert told["arity"]["status"] == "not applicable"
    assert "of degree 2, and has no Lipschitz constant" in told["arity"]["claim"]
    assert told["bounds"]["slope"] == certify(derive(SILU))["bounds"]["slope"]
    assert certificate_text(told)[0][0] == "inputs"


def test_warnings() -> None:
    jumping = Spec(
        name="step",
        title="A line with a step",
        pieces=(Piece(where="x > 0", formula="1"), Piece(where="x <= 0", formula="1")),
        jumps=(Jump(at="0", by="1"),),
        source="a test",
    )
    told = certify(derive(jumping))
    assert told["bounds"]["lipschitz"]["claim"] == "not Lipschitz: f jumps"
    assert any("f is discontinuous at x = 0" in warning for warning in told["warnings"])
    weak = spec_from_arguments(["all x: 1 + sin(x)/100"], name="weak")
    assert any("nearly linear" in w for w in certify(derive(weak))["warnings"])
    assert any("receives no signal" in w for w in certify(derive(RELU))["warnings"])
    steep = spec_from_arguments(["all x: exp(x)"], name="steep")
    assert "f overflows fp16 beyond |x| = 11.09." in certify(derive(steep))["warnings"]
    assert certify(derive(GELU))["warnings"] == []


def test_text() -> None:
    lines = dict(certificate_text(certify(derive(RELU2))))
    assert lines["gradient"] == "f' >= 0 for all x, without an upper bound"
    assert lines["scaling"] == "f(c x) = c^2 f(x) for all c > 0"
    assert lines["right"] == "f grows like |x|^2 far to the right"
    assert lines["signal"].endswith("[measured]")
    xgelu = dict(certificate_text(certify(derive(XGELU))))
    assert "f(0) = 0" in xgelu["all parameters"]
    assert xgelu["symmetry"] == (
        "f(x) - f(-x) = x for all x: E f' = 0.5 under every symmetric input"
    )


def test_text_needs_no_sympy() -> None:
    code = (
        "import sys; import stamm.activations.certificates.rounding;"
        "print([m for m in ('sympy', 'torch', 'mpmath') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_cannot_be_proved_says_so() -> None:
    wave = spec_from_arguments(["all x: cos(x)"], name="wave")
    told = certify(derive(wave))
    assert told["bounds"]["slope"]["status"] == "proved"
    assert told["shape"]["zeros"]["status"] == "not proved"
    assert told["shape"]["inverse"]["status"] == "not proved"
    lines = dict(certificate_text(told))
    assert lines["inverse"] == "invertibility [not proved: the signs of f' are not settled]"
