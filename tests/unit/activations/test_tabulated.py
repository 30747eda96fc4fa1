"""A verdict over a table says what it compares with, and the truth is held to the table's bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stamm.activations import catalog
from stamm.activations.conformance import truth_check
from stamm.activations.conformance.callable import Own
from stamm.activations.conformance.exact import CONDITION_TEXT
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.tabulated import table_bound, table_sentences, tabulated
from stamm.activations.conformance.truth_check import truth_errors, truth_finding
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.tables import tables_of
from stamm.activations.parameters import Parameter, Softplus
from stamm.activations.spec import Piece, Spec
from stamm.cli.derive import _accuracy

TABLED = Spec(
    name="tabled",
    title="",
    source="",
    pieces=(Piece(where="all x", formula="x*gompertz(x)"),),
)
SENTENCE = (
    "f rests on a table of 344 cells on [-3.75, 39.25], within 7e-7 of the integral;"
    " its slopes are exact"
)


def test_the_verdict_says_what_it_compares_with() -> None:
    verdict = judge(TABLED, Own(), count=2000)
    assert verdict.tables == (SENTENCE,) == table_sentences(derive(TABLED)) == tabulated(TABLED)
    assert verdict.judged_where == (
        f"{CONDITION_TEXT}; f is compared with its table, not with the integral: {SENTENCE}"
    )
    told = _accuracy(verdict)["float32"]
    assert " ulp from its table, slope" in told and told.count("table") == 1


def test_a_verdict_without_a_table_says_nothing_of_one() -> None:
    verdict = judge(catalog.SILU, Own(), count=2000)
    assert verdict.tables == () and verdict.judged_where == CONDITION_TEXT
    assert "table" not in str(_accuracy(verdict))


def test_the_truth_is_held_to_the_bound_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = truth_finding(TABLED, {}, points=12)
    assert found.passed and "function rests on a table" in found.numbers
    assert found.numbers.endswith("6.8e-07 allowed")
    errors = {e.quantity: e for e in truth_errors(TABLED, {}, points=12)}
    assert 1e-8 < errors["function"].gap <= errors["function"].bound < 7e-7
    assert errors["slope"].bound == 0.0 and errors["slope"].ulp < 100
    narrow = [replace(e, bound=min(e.bound, 1e-9)) for e in errors.values()]
    monkeypatch.setattr(truth_check, "truth_errors", lambda *_, **__: narrow)
    assert not truth_finding(TABLED, {}).passed


def test_a_factor_scales_the_bound() -> None:
    piece = Piece(where="all x", formula="3*a*x*gompertz(x)")
    a = Parameter(name="a", initial=2.0, bijection=Softplus())
    derived = derive(replace(TABLED, pieces=(piece,), parameters=(a,)))
    (use,) = tables_of(derived)
    assert table_bound(derived.stable.function, {"a": 2.0}) == pytest.approx(6 * use.bound)
    assert table_bound(derived.stable.parameter_slopes[0], {"a": 2.0}) == pytest.approx(
        3 * use.bound
    )
    assert table_bound(derived.stable.slope, {"a": 2.0}) == 0.0
    (told,) = table_sentences(derived)
    assert told.endswith("within 3e-6 a of the integral; its slope in x is exact")
