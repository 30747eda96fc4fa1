"""Pairs of float32 numbers: arithmetic against fractions, and results against the errors that are allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from stamm.activations.board.targets import RUNS, Case
from stamm.activations.catalog import get
from stamm.activations.emitters.program import SHORT, program_of
from stamm.activations.emitters.verb import TARGETS
from stamm.activations.fused.double_float import compensated, computed, in_pairs
from stamm.activations.fused.graph import Graph, Node


def graph_of(function: Callable[..., Any], inputs: int, dtype: torch.dtype) -> Graph:
    graph = Graph(dtype=dtype, inputs=inputs)
    read = [graph.add(Node("input", number=k)) for k in range(inputs)]
    graph.outputs = (graph.taken(function(*read)).place,)
    return graph


def paired(function: Callable[..., Any], *given: Tensor) -> Tensor:
    graph = graph_of(function, len(given), torch.float32)
    return computed(in_pairs(graph, range(len(graph.nodes))), given, [])[0]


def numbers(seed: int, count: int = 400) -> Tensor:
    generator = np.random.default_rng(seed)
    sizes = generator.uniform(1, 2, count) * 2.0 ** generator.integers(-3, 3, count)
    return torch.from_numpy(np.copysign(sizes, generator.standard_normal(count))).float()


def errors(result: Tensor, true: list[Fraction]) -> list[float]:
    """In ulp of float32, in fractions."""
    units = [Fraction(2) ** (math.frexp(float(exact))[1] - 24) for exact in true]
    return [
        float(abs(Fraction(value) - exact) / unit)
        for value, exact, unit in zip(result.tolist(), true, units, strict=True)
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: (a + b) + c,
        lambda a, b, c: (1 + a * b) - c,
        lambda a, b, c: a / b - c,
        lambda a, b, c: (a * b) * c,
        lambda a, b, c: (a - b * c) / (b + c),
    ],
)
def test_an_expression_in_pairs_is_correctly_rounded(function: Callable[..., Any]) -> None:
    """A wrong term of a sum, product or quotient leaves whole ulp; products have 35 digits, not 48."""
    a, b, c = (numbers(seed) for seed in range(3))
    c[::2] = (a * b)[::2]  # terms cancel
    rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    exact = [function(*map(Fraction, row)) for row in rows]
    kept = [k for k, value in enumerate(exact) if abs(value) > Fraction(1, 1000)]
    result = paired(function, a, b, c)[kept]
    assert len(kept) > 300 and max(errors(result, [exact[k] for k in kept])) <= 0.6


def test_constants_and_functions_take_both_numbers_of_a_pair() -> None:
    """Against mpmath: exp(-0.1 x) errs by half an ulp of exp and of the result, not by that of 0.1 x."""
    x = torch.linspace(1, 800, 500)
    result = paired(lambda u: torch.exp(-(u * 0.1)), x)
    with mpmath.workdps(40):
        true = [mpmath.exp(-mpmath.mpf(0.1) * mpmath.mpf(v)) for v in x.tolist()]
        exact = [Fraction(int(mpmath.nint(v * mpmath.mpf(2) ** 200)), 2**200) for v in true]
    assert max(errors(result, exact)) <= 1.01
    plain = computed(graph_of(lambda u: torch.exp(-(u * 0.1)), 1, torch.float32), [x], [])[0]
    assert max(errors(plain, exact)) > 20


def test_zeros_infinities_and_large_numbers_are_those_of_float32() -> None:
    given = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-44])
    functions: tuple[Callable[..., Any], ...] = (
        lambda u: u * 0.3, lambda u: u / 3.0, lambda u: (u * u) * u, lambda u: 0.7 * u + 0.1 * u,
    )  # fmt: skip
    for function in functions:
        result, plain = paired(function, given), function(given)
        assert torch.equal(torch.isnan(result), torch.isnan(plain))
        assert torch.equal(torch.isinf(result), torch.isinf(plain))
        assert torch.equal(torch.signbit(result[:4]), torch.signbit(plain[:4]))
        finite = torch.isfinite(plain)
        assert torch.allclose(result[finite], plain[finite], rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("name", ["silu", "laplace", "xielu"])
def test_a_graph_gets_pairs_where_float32_alone_loses_digits(name: str) -> None:
    """The slopes against the same graph in float64, which has 29 bits more."""
    program = program_of(get(name))
    x = torch.linspace(-4, 4, 3001)
    parameters = [torch.tensor(value) for value in program.parameters.values()]
    given = [torch.ones_like(x), x]
    wide = [value.double() for value in given]
    graph = program.backward[torch.float64]
    true = computed(graph, wide, [p.double() for p in parameters])[0]

    def worst(dtype: torch.dtype) -> float:
        result = computed(program.backward[dtype], given, parameters)[0].double()
        return ((result - true).abs() / true.abs().clamp(min=0.02)).max().item() * 2**24

    assert worst(torch.float32) < 0.6 * worst(SHORT)
    assert len(program.backward[SHORT].needed()) < len(program.backward[torch.float32].needed())


def test_a_graph_that_loses_nothing_stays_as_it_is() -> None:
    program = program_of(get("relu"))
    short, wide = program.forward[SHORT], program.forward[torch.float64]
    assert compensated(short, wide, [], weights=0) is short


@pytest.mark.parametrize("target", ["cuda", "metal", "triton"])
def test_device_functions_have_a_short_form_without_pairs(target: str) -> None:
    text = str(TARGETS[target].write(program_of(get("silu"))))
    long, short = text.split("silu_short(")[0], text.split("silu_short(")[1]
    assert short.count(" = ") < long.count(" = ") / 4


def test_what_overflows_stays_so_where_products_and_sums_are_one_operation() -> None:
    """Halves of a large product may then be infinities of either sign: the Gaussian was infinite."""
    program = program_of(get("gaussian"))
    x = torch.tensor([-3e38, -2.2e21, 1e20, 2.2e21, 3e38])
    run = next(run for run in RUNS if run.target == "cuda")
    case = Case(program, str(TARGETS["cuda"].write(program)).encode(), (x,), ())
    (results,) = run.run([case])
    assert isinstance(results, list)
    assert all(torch.equal(result.abs(), torch.zeros(5)) for result in results)
