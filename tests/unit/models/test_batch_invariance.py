"""A row of a product is the same wherever it stands and whatever stands beside it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from stamm.models.batch_invariance import BLOCK, BatchInvariant, padded_length
from stamm.models.determinism import set_determinism


@pytest.mark.parametrize("shape", [(96, 384), (384, 96), (96, 4096), (1536, 512), (7, 5)])
@torch.no_grad()
def test_a_row_has_the_same_bits_in_any_product(shape: tuple[int, int]) -> None:
    set_determinism(1)
    inputs, outputs = shape
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(outputs, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    row = torch.randn(inputs, generator=generator)
    with BatchInvariant():
        alone = F.linear(row[None], weight, bias)[0]
        for count in (2, 5, 17, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 50):
            for place in (0, count // 2, count - 1):
                x = torch.randn(count, inputs, generator=generator)
                x[place] = row
                assert torch.equal(F.linear(x, weight, bias)[place], alone)
    exact = weight.double() @ row.double() + bias
    torch.testing.assert_close(alone.double(), exact, rtol=0, atol=1e-6 * inputs)


@pytest.mark.parametrize("shape", [(7, 5), (13, 9), (100, 33), (96, 384), (1, 1)])
@torch.no_grad()
def test_equal_rows_have_equal_products(shape: tuple[int, int]) -> None:
    set_determinism(1)
    inputs, outputs = shape
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(outputs, inputs, generator=generator)
        row = torch.randn(inputs, generator=generator)
        with BatchInvariant():
            found = F.linear(row.expand(BLOCK + 5, inputs).contiguous(), weight)
        assert torch.equal(found, found[:1].expand_as(found))


@torch.no_grad()
def test_shapes_are_those_of_linear() -> None:
    weight = torch.randn(6, 4)
    for lead in ((), (3,), (2, 3), (0, 3)):
        x = torch.randn(*lead, 4)
        with BatchInvariant():
            found = F.linear(x, weight)
        assert found.shape == (*lead, 6)
        torch.testing.assert_close(found, F.linear(x, weight))


def test_gradients_and_other_dtypes_are_left_alone() -> None:
    weight = torch.randn(6, 4, requires_grad=True)
    with BatchInvariant():
        F.linear(torch.randn(3, 4), weight).sum().backward()
        with torch.no_grad():
            double = F.linear(torch.randn(3, 4).double(), weight.detach().double())
    assert weight.grad is not None
    assert double.dtype == torch.float64


@pytest.mark.parametrize(("tokens", "expected"), [(1, 16), (16, 16), (17, 32)])
def test_lengths_are_multiples_of_sixteen(tokens: int, expected: int) -> None:
    assert padded_length(tokens) == expected
