"""What `stamm derive` may write: within budgets at every exponent, or refused."""

from __future__ import annotations

import mpmath
import pytest
import torch

from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance import judge as judging
from stamm.activations.conformance.acceptance import accepted, check_formulas
from stamm.activations.conformance.exact import exponents
from stamm.activations.conformance.implementations import StammImplementation
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.reference import settled, truth_errors
from stamm.activations.derivation.derive import exact_formulas
from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.parameters import Fixed, Identity, Parameter, Softplus
from stamm.base.errors import DataError


def _jump(bijection: Softplus | Identity) -> Spec:
    return Spec(
        name="jump",
        title="",
        source="",
        pieces=(
            Piece(where="x <= 0", formula="0.3*exp(a*x)"),
            Piece(where="x > 0", formula="1"),
        ),
        parameters=(Parameter(name="a", initial=0.7, bijection=bijection),),
        continuity="jump",
    )


def _free() -> Spec:
    return spec_from_arguments(["all x: tanh(a*x)"], ["a=0.7:identity"], name="free")


@pytest.mark.slow
def test_a_rate_that_may_be_0_is_refused() -> None:
    with pytest.raises(DataError, match=r"has no value at x = .* at a = 0"):
        check_formulas(_jump(Identity()))


@pytest.mark.slow
def test_a_slope_in_a_rate_keeps_its_digits_at_every_exponent() -> None:
    # phi2(a x) (x/a - 1/a**2) + x**2 was -16,496 at x = -1e6 in bfloat16, and NaN at -1e30.
    spec = _jump(Softplus())
    check_formulas(spec)
    assert accepted(spec, count=4000).passed
    sizes = exponents(torch.float32)
    x = sizes[sizes < 0]
    for dtype, close in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        found = kernel_of(spec).slopes(x.to(dtype), (torch.tensor(0.7, dtype=dtype),))[1]
        a = mpmath.mpf(torch.tensor(0.7, dtype=dtype).item())
        with mpmath.workdps(150):
            for point, y in zip(x.tolist(), found.tolist(), strict=True):
                u = a * point
                true = (
                    mpmath.mpf("0.3") / a**2 * (1 + (u - 1) * mpmath.exp(u))
                    if u > -1e6
                    else (mpmath.mpf("0.3") / a**2)
                )
                assert abs(y - true) <= close * abs(true) + torch.finfo(dtype).tiny, point


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["atan(x) + pi/2", "pi/2 - atan(2*x)", "erf(x - shift)"])
def test_a_difference_that_vanishes_far_out_is_respelled(gradient: str) -> None:
    shift = Parameter(name="shift", initial=0.4, bijection=Fixed())
    spec = Spec(
        name="far",
        title="",
        source="",
        pieces=(Piece(where="all x", formula=gradient),),
        parameters=(shift,) if "shift" in gradient else (),
    )
    check_formulas(spec)


def test_exponents_reach_the_ends_of_a_dtype() -> None:
    for dtype, smallest, count in (
        (torch.float32, 2.0**-149, 277), (torch.bfloat16, 2.0**-133, 261),
        (torch.float16, 2.0**-24, 40),
    ):  # fmt: skip
        found = exponents(dtype)
        limit = torch.finfo(dtype)
        sizes = found[found > 0].double()
        assert sizes.min() == smallest and sizes.max() == limit.max
        assert torch.equal(found, -found.flip(0)) and bool((found != 0).all())
        assert {int(torch.frexp(s)[1]) for s in sizes} >= set(
            range(int(torch.frexp(sizes.min())[1]) + 1, int(torch.frexp(sizes.max())[1]) + 1)
        )
        assert len(sizes) >= count


def test_the_judge_takes_every_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = judging.observe

    def observed(name: str, bound: object, x: torch.Tensor, *rest: object) -> object:
        seen.append(x)
        return real(name, bound, x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(judging, "observe", observed)
    judge(_jump(Softplus()), StammImplementation(), count=100, dtypes=(torch.float32,))
    assert bool(torch.isin(exponents(torch.float32), seen[0]).all())


def test_a_formula_that_is_wrong_far_out_is_refused_in_one_line() -> None:
    spec = _free()
    slope = next(e for e in truth_errors(spec, {"a": 0.7}, points=8) if e.quantity == "slope_in_a")
    assert not slope.good and abs(slope.at) > 1e10
    with pytest.raises(DataError) as caught:
        check_formulas(spec)
    line = caught.value.line()
    assert caught.value.exit_code == 1 and "\n" not in line
    assert "slope_in_a is" in line and "nothing is written" in line and "a = 0.7" in line
    assert "hold a positive, as in a=1:softplus" in line


def test_a_settled_value_has_its_digits_however_much_cancels() -> None:
    spec = _jump(Softplus())
    (slope,) = exact_formulas(spec).parameter_slopes
    points = [-1e-45, -6.3e-41, -1e-20, -1e-3]
    with mpmath.workdps(40):
        for x, found in zip(points, settled(slope, points, {"a": 0.7}), strict=True):
            u = mpmath.mpf(0.7) * x
            series = mpmath.fsum((k - 1) * u**k / mpmath.factorial(k) for k in range(2, 31))
            true = mpmath.mpf(3) / 10 / mpmath.mpf(0.7) ** 2 * series
            assert abs(found - true) <= mpmath.mpf(10) ** -18 * abs(true)


@pytest.mark.slow
def test_squares_that_overflow_float32_are_told_not_hidden() -> None:
    spec = spec_from_arguments(["all x: x/sqrt(1 + x**2)"], name="rooted")
    verdict = accepted(spec, count=2000)
    assert verdict.passed
    short = next(of for of in verdict.dtypes if of.dtype == "bfloat16")
    assert "beyond 2**62 are not judged" in short.budget_reason
