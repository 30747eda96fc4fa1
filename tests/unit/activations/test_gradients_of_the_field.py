"""Gradients as papers and libraries state them: accepted within every budget, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance.acceptance import (
    accepted,
    check_formulas,
    integrals_by_quadrature,
    reachable_values,
)
from stamm.activations.conformance.exact import kernel_parameters
from stamm.activations.spec import Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.base.errors import StammError

TABLE = json.loads(Path(__file__).with_name("gradients_of_the_field.json").read_text())
QUICK = ("one_plus_tanh", "tanhshrink", "cloglog_gate", "squareplus", "sinc")


def _spec(entry: dict[str, Any]) -> Spec:
    return spec_from_arguments(
        entry["pieces"],
        entry["parameters"],
        name=f"{entry['name']}_stated",
        anchor=entry["anchor"],
        continuity=entry["continuity"],
    )


def test_the_table_names_a_source_for_each_gradient() -> None:
    assert len(TABLE) >= 60 and len({entry["name"] for entry in TABLE}) == len(TABLE)
    assert all(len(entry["source"]) > 10 for entry in TABLE)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(e, id=e["name"], marks=() if e["name"] in QUICK else pytest.mark.sweep)
        for e in TABLE
    ],
)
def test_a_gradient_is_accepted_or_refused_in_one_line(entry: dict[str, Any]) -> None:
    outcome = entry.get(
        "outcome"
    )  # what came out when it was last run; either, where nothing is recorded
    try:
        spec = _spec(entry)
        check_formulas(spec)
        accepted(spec, count=4000)
    except StammError as error:
        assert error.__cause__ is None, error  # an internal exception is a defect
        assert "\n" not in error.line() and (outcome or "") in error.line()
        return
    assert outcome in (None, "accepted")
    # The module against quadrature of the stated pieces, which shares no step with the derivation.
    settings = [spec.initial_values(), *reachable_values(spec)]
    assert len(settings) >= (5 if spec.trainable else 1)
    for values in settings:
        with mpmath.workdps(20):
            points = integrals_by_quadrature(spec, values)
        x = torch.tensor([float(at) for at, _, _ in points], dtype=torch.float64)
        found = kernel_of(spec).value(x, kernel_parameters(spec, values)).tolist()
        for (at, true, size), value in zip(points, found, strict=True):
            assert abs(value - true) <= 1e-12 * size, (values, at)
