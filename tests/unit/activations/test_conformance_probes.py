"""Proofs, probes, certificates and the truth: that they hold for entries, and that they can fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.activations import catalog
from stamm.activations.certificates.certificate import certify
from stamm.activations.conformance import probes, proofs
from stamm.activations.conformance import proofs as certified
from stamm.activations.conformance.implementations import StammImplementation
from stamm.activations.conformance.probes import probe
from stamm.activations.conformance.proofs import certificate_findings, prove
from stamm.activations.conformance.reference import ALLOWED_ULP, truth_errors, truth_finding
from stamm.activations.conformance.verdict import CheckResult, finding
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branch, Derived
from stamm.activations.module import Activation, build_activation
from stamm.activations.spec import Jump, Piece, Spec
from stamm.base.errors import DataError

JUMPING = Spec(
    name="jumping",
    title="",
    pieces=(Piece(where="x > 1", formula="1"), Piece(where="x <= 1", formula="tanh(x)")),
    continuity="jump",
    jumps=(Jump(at="1", by="1/3"),),
    source="",
)
SURROGATE = Spec(
    name="soft_backward",
    title="",
    pieces=(Piece(where="x > 0", formula="1"), Piece(where="x <= 0", formula="0")),
    continuity="jump",
    surrogate=(Piece(where="all x", formula="logistic(x)"),),
    source="",
)


def _failed(findings: list[CheckResult]) -> list[str]:
    return [found.line() for found in findings if not found.passed]


@pytest.mark.parametrize(
    "name",
    ["relu", *(pytest.param(n, marks=pytest.mark.slow) for n in ("xielu", "gelu", "xatlu_glu"))],
)
def test_entries_are_proved_and_probed(name: str) -> None:
    spec = catalog.get(name)
    assert not _failed(prove(spec, points=20))
    assert not _failed(probe(spec))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [JUMPING, SURROGATE], ids=lambda spec: spec.name)
def test_jumps_and_surrogates_are_understood(spec: Spec) -> None:
    findings = [*prove(spec, points=20), *probe(spec)]
    assert not _failed(findings)
    told = {found.name: found.numbers for found in findings}
    if spec.jumps:
        assert "1 jump as declared" in told["f at the knots"]
    if spec.surrogate:
        assert "surrogate" in told["gradients in float64"]


def _with(derived: Derived, **changes: Any) -> Derived:
    return replace(derived, exact=replace(derived.exact, **changes))


def test_a_wrong_integral_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    derived = derive(catalog.XIELU)
    left, right = derived.exact.function
    shifted = Branch(**{**vars(right), "formula": right.formula * 2 + 1})
    wrong = _with(derived, function=(left, shifted))
    monkeypatch.setattr(proofs, "derive", lambda spec: wrong)
    failed = _failed(prove(catalog.XIELU, points=20))
    assert any("slope of f is the stated gradient" in line for line in failed)
    assert any("f at the knots" in line for line in failed)
    assert any("slope in alpha_p" in line for line in failed)
    assert not any("slope in alpha_n" in line for line in failed)


def test_a_wrong_parameter_slope_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    derived = derive(catalog.XIELU)
    first, second = derived.exact.parameter_slopes
    wrong = _with(derived, parameter_slopes=(second, first))
    monkeypatch.setattr(proofs, "derive", lambda spec: wrong)
    failed = _failed(prove(catalog.XIELU, points=20))
    assert len([line for line in failed if "slope in alpha" in line]) == 2


def test_probes_fail_where_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spec: Spec, **settings: Any) -> Activation:
        module = build_activation(spec, **settings)
        right = module.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = right(x)
            noise = 1e-3 * x.detach().sign() * torch.get_num_threads() * x
            return torch.where(torch.isnan(x), torch.zeros_like(x), y + noise)

        module.forward = forward  # type: ignore[method-assign]
        module._apply = lambda fn, recurse=True: torch.nn.Module._apply(module, fn)  # type: ignore[method-assign,assignment]
        assert isinstance(module, Activation)
        return module

    monkeypatch.setattr(probes, "module_of", broken)
    monkeypatch.setattr("stamm.activations.conformance.implementations.module_of", broken)
    failed = {line.split(":")[0].removeprefix("FAILED ") for line in _failed(probe(catalog.XIELU))}
    assert {
        "NaN in, NaN out",
        "same results for every thread count",
        "parameters stay float32",
    } <= failed


def test_threads_are_as_many_as_before() -> None:
    before = torch.get_num_threads()
    assert probes._threads(catalog.RELU, StammImplementation())[0]
    assert torch.get_num_threads() == before


def test_a_certificate_is_compared_with_the_stored_one(tmp_path: Path) -> None:
    stored = tmp_path / "silu.json"
    made = certify(derive(catalog.SILU))
    stored.write_text(json.dumps(made))
    assert not _failed(certificate_findings(catalog.SILU, stored))
    made["bounds"]["slope"]["high"] = 1.0
    stored.write_text(json.dumps(made))
    assert "NOT equal to the shipped one" in _failed(certificate_findings(catalog.SILU, stored))[0]


def test_a_bound_that_values_break_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = certify(derive(catalog.SILU))
    made["bounds"]["slope"]["high"] = 1.0
    monkeypatch.setattr(certified, "certify", lambda derived: made)
    failed = _failed(certificate_findings(catalog.SILU))
    assert "f' in [-0.0998393, 1] but" in failed[-1]


@pytest.mark.parametrize("name", ["xielu", "silu", "xatlu"])
def test_the_float64_truth_keeps_its_digits(name: str) -> None:
    spec = catalog.get(name)
    assert truth_finding(spec, spec.initial_values(), points=150).passed
    errors = {e.quantity: e for e in truth_errors(spec, spec.sample_values()[-1], points=150)}
    assert max(error.ulp for error in errors.values()) < 100 < ALLOWED_ULP
    # It says where it has lost them: at the zeros of f and f'.
    assert errors["slope"].ill_count > 0
    assert errors["slope"].ill_ulp > 1e6


def test_an_error_of_ours_is_a_failed_finding() -> None:
    def work() -> tuple[bool, str]:
        raise DataError("it is not there", fix="Look again")

    assert finding("search", work).line() == "FAILED search: it is not there. Look again."
    assert CheckResult(name="a", passed=True, numbers="1").line() == "ok     a: 1"
