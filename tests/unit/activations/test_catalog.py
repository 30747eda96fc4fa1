"""The catalogue and the transforms of its specs."""

from __future__ import annotations

import pytest

from stamm.activations import catalog
from stamm.activations.derivation.derive import derive
from stamm.activations.spec import Gated
from stamm.activations.spec.expressions import FUNCTIONS, evaluate, parse
from stamm.activations.spec.gates import Gate, expand, gate_spec, gated, self_gated
from stamm.base.errors import ConfigError
from tests.unit.activations.truths import truth

GATES = (catalog.LOGISTIC, catalog.NORMAL, catalog.CAUCHY)
POINTS = (-7.5, -1.0, -0.01, 0.0, 0.4, 3.0)


def test_names_and_aliases() -> None:
    assert catalog.names()[0] == "xielu"
    assert len(catalog.names()) >= 100
    assert catalog.get("swish") is catalog.SILU
    assert "swish" not in catalog.names()
    known = [k for s in catalog.ENTRIES for k in (s.name, *s.aliases)]
    assert len(known) == len(set(known))


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"'xielo' is not a known activation. Did you mean 'xielu'"
    ):
        catalog.get("xielo")


@pytest.mark.parametrize("gate", GATES, ids=lambda g: g.name)
def test_a_gate_is_the_integral_of_its_density(gate: Gate) -> None:
    found = truth(derive(gate_spec(gate)), "function", POINTS, {})
    cdf = parse(gate.cdf)
    for point, value in zip(POINTS, found, strict=True):
        assert float(value) == pytest.approx(evaluate(cdf, {"x": point}), rel=1e-14)


@pytest.mark.parametrize("gate", GATES, ids=lambda g: g.name)
@pytest.mark.parametrize("alpha", [0.0, 0.2, -0.3])
def test_expanded_gates_and_products(gate: Gate, alpha: float) -> None:
    wide = expand(gate_spec(gate), of="gate", name="wide", title="")
    both = expand(
        self_gated(gate, name="own", title=""), of="self_gated", name="wide_own", title=""
    )
    values = {"alpha": alpha}
    gates = truth(derive(wide), "function", POINTS, values)
    products = truth(derive(both), "function", POINTS, values)
    for point, opened, product in zip(POINTS, gates, products, strict=True):
        plain = FUNCTIONS[gate.cdf.removesuffix("(x)")](point)
        expected = (1 + 2 * alpha) * plain - alpha
        assert float(opened) == pytest.approx(expected, rel=1e-13, abs=1e-15)
        assert float(product) == pytest.approx(point * expected, rel=1e-13, abs=1e-15)


def test_lifting_keeps_the_gradient() -> None:
    lifted = gated(catalog.SILU, order=2, name="mine", title="")
    assert lifted.pieces == catalog.SILU.pieces
    assert lifted.arity == Gated(order=2)
    assert lifted.content_hash != catalog.SILU.content_hash
    assert lifted.content_hash == catalog.get("swiglu").content_hash
