"""Every row of docs/gradients.md: what is accepted, by which kind of integral, and what is refused."""

from __future__ import annotations

import re

import pytest

from stamm.activations.derivation.derive import derive, exact_formulas
from stamm.activations.derivation.parametric import ParametricIntegral
from stamm.activations.derivation.tables import TabulatedIntegral
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import ConfigError
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "gradients.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]
ACCEPTED = [row for row in ROWS if len(row) == 3]
REFUSED = [row for row in ROWS if len(row) == 4]


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_has_both_tables() -> None:
    assert len(ACCEPTED) >= 20 and len(REFUSED) >= 8 and len(ROWS) == len(ACCEPTED) + len(REFUSED)


@pytest.mark.parametrize("row", ACCEPTED, ids=lambda row: row[0])
def test_an_accepted_gradient_has_the_stated_integral(row: list[str]) -> None:
    gradient, parameters, kind = _code(row[0]), _code(row[1]), row[2]
    spec = spec_from_arguments(gradient, parameters, name="row_of_the_page")
    function = exact_formulas(spec).function
    has = {
        "table in each call": any(b.formula.has(ParametricIntegral) for b in function),
        "table": any(b.formula.has(TabulatedIntegral) for b in function),
    }
    stated, _, pieces = kind.partition(", ")
    assert has == {name: name == stated for name in has}
    assert len(function) == {"": 1, "two pieces": 2, "three pieces": 3, "five pieces": 5}[pieces]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0])
def test_a_refused_gradient_gives_its_reason(row: list[str]) -> None:
    (gradient,), parameters, reason = _code(row[0]), _code(row[1]), row[2]
    with pytest.raises(ConfigError) as refused:
        derive(spec_from_arguments([gradient], parameters, name="row_of_the_page"))
    assert reason in refused.value.line()
    for text in _code(row[3]):
        if "=" not in text.replace("<=", "") and "--" not in text:
            spec_from_arguments([text], ["a=1:softplus"] if "a*" in text else [], continuity="jump")
