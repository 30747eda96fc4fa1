"""Entries of the catalogue that the fast tests check; the others are checked by the sweeps."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stamm.activations.spec import Spec

# The package's own function, a polynomial, erf, a gated unit, learned knots, a surrogate gradient.
WITNESSES = frozenset({"xielu", "relu2", "gelu", "swiglu", "xatlu", "helu"})


def swept(specs: Iterable[Spec]) -> list[object]:
    """Parameters of a test: each spec under its name, marked `sweep` unless it is a witness."""
    return [
        pytest.param(spec, id=spec.name, marks=() if spec.name in WITNESSES else pytest.mark.sweep)
        for spec in specs
    ]
