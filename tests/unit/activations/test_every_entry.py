"""Every entry of the catalogue against the judge: bfloat16, float16 and float32, f and its slopes."""

from __future__ import annotations

import pytest
import torch

from stamm.activations.catalog import ENTRIES
from stamm.activations.conformance.implementations import StammImplementation
from stamm.activations.conformance.judge import judge
from stamm.activations.spec import Spec
from tests.unit.activations.witnesses import swept

COUNT = 4_000  # float32 inputs; `stamm check NAME` takes 400,000


@pytest.mark.parametrize("spec", swept(ENTRIES))
def test_an_entry_is_within_its_budget(spec: Spec) -> None:
    verdict = judge(spec, StammImplementation(), count=COUNT)
    assert {found.dtype for found in verdict.dtypes} == {"bfloat16", "float16", "float32"}
    for found in verdict.dtypes:
        assert found.inputs > COUNT
        assert found.problems == (), found.budget_reason


def test_budgets_other_than_the_general_ones_say_why() -> None:
    verdict = judge(
        next(s for s in ENTRIES if s.name == "snake"),
        StammImplementation(),
        dtypes=(torch.bfloat16,),
    )
    assert "2**120" in verdict.dtypes[0].budget_reason
