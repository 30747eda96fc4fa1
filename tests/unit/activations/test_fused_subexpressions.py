"""Calls that branches share: fewer of them, and the same results to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stamm.activations import catalog, primitives
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.fused.cpp import eliminate_common_calls
from stamm.activations.fused.graph import BINARY, Graph, Node, Traced
from stamm.activations.fused.passes import GATED, PLAIN, graph_of
from stamm.activations.spec import Gated, Spec
from tests.unit.activations.witnesses import swept

_SPELLED = {"neg": torch.neg, "minimum": torch.minimum, "maximum": torch.maximum}


def _computed(graph: Graph, inputs: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    """Every output and sum of a graph, by torch's own functions."""
    values: list[Tensor] = []
    for node in graph.nodes:
        taken = [values[place] for place in node.takes]
        match node.name:
            case "phi2":
                value = primitives.phi2(taken[0])
            case "phi2_over":
                value = torch.where(taken[0] == 0, taken[0], primitives.phi2(taken[0]) / taken[0])
            case "phi2_sum":
                x, b, a = taken
                value = torch.where(x == 0, b * x, b * x + a * primitives.phi2(x))
            case "expm1":
                value = primitives.expm1(taken[0])
            case "inverse":
                value = 1.0 / taken[0]
            case "exp_in_parts":
                value = torch.exp(taken[0])
            case "constant":
                value = torch.full_like(inputs[0], node.number)
            case "input":
                value = inputs[int(node.number)]
            case "parameter":
                value = parameters[int(node.number)]
            case "gather":
                value = torch.tensor(node.row, dtype=inputs[0].dtype)[taken[0].long()]
            case name if name in BINARY or name in ("where", *_SPELLED):
                value = getattr(torch, name)(*taken)
            case name:
                value = getattr(torch, name)(taken[0])
        values.append(value)
    return [values[place] for place in (*graph.outputs, *graph.sums)]


def _calls(graph: Graph, name: str) -> int:
    return sum(graph.nodes[place].name == name for place in graph.needed())


@pytest.mark.parametrize("spec", swept(catalog.ENTRIES))
def test_results_are_those_of_the_formula(spec: Spec) -> None:
    fixed = tuple(None if p.trainable else p.initial for p in spec.parameters)
    line = torch.linspace(-30, 30, 601, dtype=torch.float64)
    ends = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e-300, -1e30])
    x = torch.cat([line, ends.double()])
    generator = torch.Generator().manual_seed(0)
    for name in GATED if isinstance(spec.arity, Gated) else PLAIN:
        graph = graph_of(name, kernel_of(spec), fixed, torch.float64)
        inputs = [torch.randn(x.shape, generator=generator).double() for _ in range(graph.inputs)]
        if any(node.name == "gather" for node in graph.nodes):
            x = x.nan_to_num(0.0, 30.0, -30.0)  # a table has no place for NaN
        inputs[1 if "backward" in name else 0] = x
        parameters = [torch.full_like(x, p.initial + 0.125) for p in spec.parameters if p.trainable]
        wanted = _computed(graph, inputs, parameters)
        found = _computed(eliminate_common_calls(graph), inputs, parameters)
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.equal(ours.isnan(), theirs.isnan())
            assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))


@pytest.mark.parametrize("spec", swept(catalog.ENTRIES))
def test_results_with_functions_as_operations_are_close(spec: Spec) -> None:
    """What float32 tensors are computed by: sums that cancel may lose digits that float32 has not."""
    fixed = tuple(None if p.trainable else p.initial for p in spec.parameters)
    x = torch.linspace(-30, 30, 601, dtype=torch.float64) + 0.0078125
    for name in GATED if isinstance(spec.arity, Gated) else PLAIN:
        plain, whole = (
            graph_of(name, kernel_of(spec), fixed, torch.float64, whole=whole)
            for whole in (False, True)
        )
        inputs = [torch.full_like(x, 1.25) for _ in range(plain.inputs)]
        inputs[1 if "backward" in name else 0] = x
        parameters = [torch.full_like(x, p.initial + 0.125) for p in spec.parameters if p.trainable]
        wanted = _computed(plain, inputs, parameters)
        found = _computed(eliminate_common_calls(whole), inputs, parameters)
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_xielu_takes_one_exponential_and_no_clamp_but_one(name: str) -> None:
    """The slope in alpha_n, 0 above 0, is selected by another comparison: its clamp stays."""
    fixed = (None, None, 0.5)
    spec = catalog.get("xielu")
    graph = eliminate_common_calls(
        graph_of(name, kernel_of(spec), fixed, torch.float64, whole=True)  # type: ignore[arg-type]
    )
    used = [graph.nodes[place] for place in graph.needed()]
    parts = {"exp_in_parts", "phi2", "phi2_sum"}
    assert len({node.takes[0] for node in used if node.name in parts}) == 1
    assert not any(node.name == "exp" for node in used)
    clamps = sum(node.name in ("minimum", "maximum") for node in used)
    assert clamps == (1 if name == "backward" else 0)


def _line() -> tuple[Graph, Traced, list[Tensor]]:
    graph = Graph(dtype=torch.float64, inputs=1)
    ends = [-torch.inf, torch.inf, torch.nan, -0.0, 0.0]
    line = torch.cat([torch.linspace(-2, 2, 9), torch.tensor(ends)]).double()
    return graph, graph.add(Node("input")), [line]


def test_a_clamp_goes_where_it_does_nothing() -> None:
    graph, x, inputs = _line()
    left, right = torch.exp(torch.clamp(x, max=0.5)), torch.sin(torch.clamp(x, min=0.5))  # type: ignore[call-overload]
    graph.outputs = (torch.where(x <= 0.5, left, right).place,)  # type: ignore[call-overload]
    found = eliminate_common_calls(graph)
    assert _calls(found, "minimum") == _calls(found, "maximum") == 0
    ours, theirs = (_computed(g, inputs, [])[0] for g in (found, graph))
    assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))


def test_a_clamp_stays_that_is_used_outside_or_keeps_an_index_in_its_table() -> None:
    graph, x, _ = _line()
    held = torch.clamp(x, min=0.0)  # type: ignore[call-overload]
    graph.outputs = (torch.where(x <= 0.0, x, held).place, held.place)  # type: ignore[call-overload]
    assert _calls(eliminate_common_calls(graph), "maximum") == 1
    graph, x, _ = _line()
    place = torch.clamp(x, min=0.0, max=1.0)  # type: ignore[call-overload]
    looked = graph.add(Node("gather", (place.place,), row=(3.0, 4.0)))
    graph.outputs = (torch.where(x <= 0.0, x, torch.where(x <= 1.0, looked, x)).place,)  # type: ignore[call-overload]
    found = eliminate_common_calls(graph)
    assert _calls(found, "maximum") == _calls(found, "minimum") == 1


@pytest.mark.parametrize(
    ("name", "function", "before"),
    [("softplus_saturated", "log1p", 4), ("velu", "tanh", 3), ("velu", "atan", 3)],
)
def test_pieces_share_their_calls(name: str, function: str, before: int) -> None:
    spec = catalog.get(name)
    fixed = tuple(None if p.trainable else p.initial for p in spec.parameters)
    graph = graph_of("forward", kernel_of(spec), fixed, torch.float32)
    assert _calls(graph, function) == before
    assert _calls(eliminate_common_calls(graph), function) == 1


def test_a_call_that_the_condition_needs_stays() -> None:
    """where(exp(x) < 1, exp(x), exp(-x)): the first is needed on both sides."""
    graph = Graph(dtype=torch.float64, inputs=1)
    x = graph.add(Node("input"))
    grown = x._with("exp", x)
    graph.outputs = (x._with("where", grown < 1.0, grown, x._with("exp", -x)).place,)
    assert _calls(eliminate_common_calls(graph), "exp") == 2


def test_branches_that_lean_on_each_other_make_no_ring() -> None:
    """where(c, sin(exp(x)), exp(sin(x))): joining both pairs would need each before the other."""
    graph = Graph(dtype=torch.float64, inputs=1)
    x = graph.add(Node("input"))
    one = x._with("sin", x._with("exp", x))
    other = x._with("exp", x._with("sin", x))
    graph.outputs = (x._with("where", x < 0.0, one, other).place,)
    found = eliminate_common_calls(graph)
    assert _calls(found, "exp") + _calls(found, "sin") == 3
    inputs = [torch.linspace(-2, 2, 9, dtype=torch.float64)]
    assert torch.equal(_computed(found, inputs, [])[0], _computed(graph, inputs, [])[0])


def test_nested_selections_by_one_condition_end() -> None:
    """where(c, x, where(c, exp(x), exp(-x))): the inner first operand never counts."""
    graph = Graph(dtype=torch.float64, inputs=1)
    x = graph.add(Node("input"))
    below = x < 0.0
    inner = x._with("where", below, x._with("exp", x), x._with("exp", -x))
    graph.outputs = (x._with("where", below, x, inner).place,)
    inputs = [torch.linspace(-2, 2, 9, dtype=torch.float64)]
    assert torch.equal(
        _computed(eliminate_common_calls(graph), inputs, [])[0], _computed(graph, inputs, [])[0]
    )
