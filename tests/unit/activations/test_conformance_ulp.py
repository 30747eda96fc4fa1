"""Units of the last place, rounding in one step, and the inputs of the judge."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from stamm.activations import catalog
from stamm.activations.conformance.exact import inputs, knots, log_uniform_inputs, mixed_ups, zeros
from stamm.activations.conformance.ulp import neighbours, rounded, ulps, unit
from stamm.activations.spec import Piece, Spec

SHORT = (torch.bfloat16, torch.float16)


def _nearest_by_search(value: float, every: list[float]) -> set[float]:
    """The values of a dtype that are nearest to `value`, found by comparing exact fractions."""
    gaps = {other: abs(Fraction(other) - Fraction(value)) for other in every}
    least = min(gaps.values())
    return {other for other, gap in gaps.items() if gap == least}


@pytest.mark.parametrize("dtype", SHORT)
def test_rounding_is_to_the_nearest_value(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = every[torch.isfinite(every)].double()
    for base in (1.0, 3.1e-5, 6e-8, 1e4, 65000.0):
        near = sorted(finite.tolist(), key=lambda other: abs(other - base))[:12]
        for share in (0.1, 0.4999999, 0.5000001, 0.9):
            value = near[0] + (near[2] - near[0]) * share
            found = rounded(torch.tensor([value], dtype=torch.float64), dtype).item()
            assert found in _nearest_by_search(value, near)


def test_rounding_to_bfloat16_happens_once() -> None:
    # Just above the middle of 1 and its neighbour: by way of float32 the tie would go down to 1.
    value = torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    assert value.to(torch.bfloat16).item() == 1.0
    assert rounded(value, torch.bfloat16).item() == 1 + 2.0**-7


def test_ties_go_to_even_and_overflow_to_infinity() -> None:
    exact = torch.tensor(
        [1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519.9, 65520.0, -1e300, -0.0], dtype=torch.float64
    )
    found = rounded(exact, torch.float16).tolist()
    assert found == [1.0, 1 + 2.0**-9, 65504.0, math.inf, -math.inf, 0.0]
    assert math.copysign(1.0, found[-1]) == -1.0


@pytest.mark.parametrize(
    ("dtype", "middle", "step"),
    [
        (torch.float16, 65520.0, 2.0**-30),
        (torch.bfloat16, 2.0**128 - 2.0**119, 2.0**80),
        (torch.float32, 2.0**128 - 2.0**103, 2.0**76),
    ],
)
def test_the_overflow_threshold_is_the_middle(
    dtype: torch.dtype, middle: float, step: float
) -> None:
    largest = torch.finfo(dtype).max
    exact = torch.tensor([middle - step, middle, -middle, step - middle], dtype=torch.float64)
    assert rounded(exact, dtype).tolist() == [largest, math.inf, -math.inf, -largest]
    early = ulps(torch.full((2,), math.inf, dtype=dtype), exact[:2])
    assert early.tolist() == [math.inf, 0.0]
    if dtype == torch.float32:  # torch converts to the others by way of float32
        assert torch.equal(exact.to(dtype), rounded(exact, dtype))


def test_float32_rounding_is_that_of_numpy() -> None:
    values = log_uniform_inputs(4000).double() * (1 + 2.0**-30 * math.pi)
    assert np.array_equal(rounded(values, torch.float32).numpy(), values.numpy().astype("float32"))


def test_a_unit_below_the_normal_numbers_is_the_smallest_subnormal() -> None:
    tiny = torch.tensor([1e-42, 0.0], dtype=torch.float64)
    assert unit(tiny, torch.float32).tolist() == [2.0**-149] * 2
    assert ulps(torch.tensor([2.0**-148]), torch.tensor([2.0**-149], dtype=torch.float64)) == 1.0


def test_units_are_exact_at_every_magnitude() -> None:
    values = torch.tensor([1e-300, 1e-30, 1.0, 1.999, 1e30, 1e300], dtype=torch.float64)
    assert unit(values, torch.float64).tolist() == [math.ulp(value) for value in values.tolist()]


def test_neighbours_of_zero_are_the_smallest_subnormals() -> None:
    for dtype in (*SHORT, torch.float32):
        low, middle, high = neighbours(torch.zeros(1, dtype=dtype)).tolist()
        assert (
            low
            == -high
            < middle
            == 0.0
            < high
            == torch.finfo(dtype).smallest_normal * (torch.finfo(dtype).eps)
        )


def test_short_inputs_are_every_finite_value_once() -> None:
    values = catalog.XIELU.initial_values()
    for dtype, count in ((torch.bfloat16, 65_280), (torch.float16, 63_488)):
        x = inputs(catalog.XIELU, values, dtype)
        assert len(x) == count
        assert torch.isfinite(x).all()
        assert len(set(x.view(torch.int16).tolist())) == count


def test_float32_inputs_hold_what_they_promise() -> None:
    values = catalog.XIELU.initial_values()
    x = inputs(catalog.XIELU, values, torch.float32, count=2000)
    held = set(x.tolist())
    assert {0.0, 2.0**-149, -(2.0**-149), torch.finfo(torch.float32).max} <= held
    assert torch.signbit(x[x == 0]).tolist() == [True, False]
    for zero in zeros(catalog.XIELU, values):
        nearest = neighbours(torch.tensor([zero]))
        assert set(nearest.tolist()) <= held
    assert (x[1:] >= x[:-1]).all()


def test_spread_follows_its_rule_and_covers_all_magnitudes() -> None:
    low, high = (int(np.float32(bound).view(np.uint32)) for bound in (1e-38, 1e38))
    found = log_uniform_inputs(2000)
    for i in (0, 1, 2, 777, 1999):
        turn = (i * 0x9E3779B97F4A7C15 % 2**64) >> 32
        bits = low + (turn * (high - low) >> 32)
        magnitude = float(np.uint32(bits).view(np.float32))
        assert found[i].item() == magnitude * (-1) ** i
    decades = torch.histc(torch.log10(found.double().abs()), bins=19, min=-38, max=38)
    assert decades.min() > 70
    assert decades.max() < 140


def test_mixed_factors_have_both_signs_and_no_small_ones() -> None:
    ups = mixed_ups(1000, torch.float32)
    assert 300 < (ups < 0).sum() < 700
    assert ups.abs().min() >= 1
    assert ups.abs().max() < 2


def test_zeros_and_knots_of_xielu_are_the_known_ones() -> None:
    values = {"alpha_p": 0.8, "alpha_n": 0.8, "beta": 0.5}
    assert knots(catalog.XIELU, values) == [0.0]
    root, turning = zeros(catalog.XIELU, values)
    assert turning == pytest.approx(math.log(1 - 0.5 / 0.8), rel=1e-14)
    assert 0.8 * (math.expm1(root) - root) + 0.5 * root == pytest.approx(0.0, abs=1e-14)


def test_knots_may_move_with_parameters() -> None:
    spec = Spec(
        name="moving",
        title="",
        pieces=(Piece(where="x > 1/3", formula="1"), Piece(where="x <= 1/3", formula="0")),
        continuity="jump",
        source="",
    )
    assert knots(spec, {}) == [pytest.approx(1 / 3)]
