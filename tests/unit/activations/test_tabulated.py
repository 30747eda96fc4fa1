"""A verdict tells of the tables that a function is read from; they are held to the integral."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stamm.activations import cache, catalog
from stamm.activations.codegen import kernel_lookup
from stamm.activations.codegen.kernel import kernel_source
from stamm.activations.conformance.acceptance import accuracy_texts, check_formulas
from stamm.activations.conformance.exact import CONDITION_TEXT
from stamm.activations.conformance.implementations import StammImplementation
from stamm.activations.conformance.judge import judge, table_sentences, tabulated
from stamm.activations.conformance.reference import truth_errors, truth_finding
from stamm.activations.derivation.derive import derive
from stamm.activations.spec import Piece
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.parameters import Parameter, Softplus
from stamm.base.errors import DataError

TABLED = spec_from_arguments(["all x: x*gompertz(x)"], name="tabled")
SENTENCE = (
    "f rests on a table of 201 cells on [-4, 46.25], within 2e-17 of |f| + |x f'|, or 1e-18,"
    " before rounding; its slopes are exact"
)


@pytest.mark.slow
def test_the_verdict_tells_of_the_table() -> None:
    verdict = judge(TABLED, StammImplementation(), count=2000)
    assert verdict.passed
    assert verdict.tables == (SENTENCE,) == table_sentences(derive(TABLED)) == tabulated(TABLED)
    assert verdict.judged_where == CONDITION_TEXT


def test_a_verdict_without_a_table_tells_of_none() -> None:
    verdict = judge(catalog.SILU, StammImplementation(), count=2000)
    assert verdict.tables == () and verdict.judged_where == CONDITION_TEXT
    assert "table" not in str(accuracy_texts(verdict))


@pytest.mark.slow
def test_a_table_is_held_to_the_integral_like_any_formula() -> None:
    for error in truth_errors(TABLED, {}, points=12):
        assert error.ulp < 20, error
    assert truth_finding(TABLED, {}, points=12).passed


@pytest.mark.slow
def test_a_table_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # The judge reads the same table; the integral does not.
    spec = replace(TABLED, name="wrong", anchor=("0", "0"), title="wrong")
    source = kernel_source(derive(spec), "a test")
    digits = "0.18393972058572117, "  # exp(-1)/2, the coefficient of x**2
    assert source.count(digits) == 2
    wrong = source.replace(digits, "0.1839397206, ")
    monkeypatch.setattr(kernel_lookup, "_derived_source", lambda spec: wrong)
    monkeypatch.setattr(cache, "known_kernel_source", lambda content_hash: None)
    kernel_lookup.kernel_of.cache_clear()
    try:
        assert judge(spec, StammImplementation(), count=2000).passed
        (function, *_) = truth_errors(spec, {}, points=12)
        assert not function.good and function.ulp > 1e4 and abs(function.at) < 1
        with pytest.raises(DataError, match=r"function is .* float64 ulp off"):
            check_formulas(spec)
    finally:
        kernel_lookup.kernel_of.cache_clear()


@pytest.mark.slow
def test_a_factor_before_a_table_is_trained() -> None:
    piece = Piece(where="all x", formula="3*a*x*gompertz(x)")
    a = Parameter(name="a", initial=2.0, bijection=Softplus())
    spec = replace(TABLED, pieces=(piece,), parameters=(a,))
    (told,) = table_sentences(derive(spec))
    assert told.endswith("before rounding; its slope in x is exact")
    assert all(error.ulp < 50 for error in truth_errors(spec, {"a": 2.0}, points=12))
