"""Catalogue families: each entry is the published function, and its numbers are as its notes say.

The published formulas are written here a second time, as they are printed, in arithmetic of 60
digits; nothing of them comes from the specs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import mpmath
import pytest
import torch

from stamm.activations.catalog import gated_units, integrated, rational, self_gated
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Derived
from stamm.activations.spec import Gated, Spec
from tests.unit.activations.truths import parameter_truth, truth

Values = Mapping[str, Any]
Formula = Callable[[Any, Values], Any]

FAMILIES = (self_gated, integrated, gated_units, rational)
SPECS = {spec.name: spec for family in FAMILIES for spec in family.ENTRIES}
# Off every knot (-10, -8, -1, -0.05, 0, 0.01, 1, 6, 7, 7.006.., 8, 10 and the values of alpha).
POINTS = [-28.5, -11.3, -7.2, -3.1, -1.3, -0.4, -1e-3, 1e-3, 0.3, 0.9, 1.7, 4.6, 7.5, 11.6, 27.0]
TINY = 1e-290  # below it a double cannot be right to its last digits
QUOTIENT = 1e-45  # the difference quotient at 80 digits is no better than this
SLOW_TO_DERIVE = {"aglu", "dice", "mish", "pau", "srs", "velu"}
NAMES = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.sweep if n in SLOW_TO_DERIVE else ()) for n in SPECS],
)


def _logistic(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _relu(x: Any) -> Any:
    return max(x, mpmath.mpf(0))


def _gelu_tanh(x: Any) -> Any:
    inner = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)
    return x / 2 * (1 + mpmath.tanh(inner))


def _quick_gelu(x: Any) -> Any:
    return x * _logistic(mpmath.mpf("1.702") * x)


def _softsign(x: Any) -> Any:
    return x / (1 + abs(x))


def _elu(x: Any) -> Any:
    return x if x > 0 else mpmath.exp(x) - 1


def _softplus(x: Any) -> Any:
    return mpmath.log(1 + mpmath.exp(x))


def _saturated(base: Callable[[Any], Any], x: Any) -> Any:
    return base(x + 1) - base(1) if x <= 0 else base(1) - base(1 - x)


def _velu(x: Any, v: Values) -> Any:
    clipped = min(max(x / 10, mpmath.mpf(-1)), mpmath.mpf(1))
    return v["lam"] * x * _logistic((mpmath.atan(x / 10) + mpmath.asin(clipped)) / 10)


def _xielu(x: Any, v: Values) -> Any:
    if x > 0:
        return v["alpha_p"] * x**2 + v["beta"] * x
    return v["alpha_n"] * (mpmath.exp(x) - 1 - x) + v["beta"] * x


def _xiep(x: Any, v: Values) -> Any:
    if x > 0:
        return v["alpha_3"] * x**3 + v["alpha_2"] * x**2 + v["beta"] * x
    return v["alpha_n"] * (mpmath.exp(x) - 1 - x) + v["beta"] * x


def _xiprelup(x: Any, v: Values) -> Any:
    return v["alpha_p" if x > 0 else "alpha_n"] * abs(x) ** v["power"] + v["beta"] * x


def _xssslu(x: Any, v: Values) -> Any:
    right = v.get("alpha_2", 0) * x**3 + v["alpha_1"] * x**2
    return (right if x > 0 else v["alpha_n"] * x * _softsign(x)) + v["beta"] * x


def _gxssslu(x: Any, v: Values) -> Any:
    right = v.get("alpha_2", 0) * x**2 + v["alpha_1"] * x
    return (right if x > 0 else v["alpha_n"] * _softsign(x)) + v["beta"]


def _pau(x: Any, v: Values) -> Any:
    top = v["a0"] + v["a1"] * x + v["a2"] * x**2 + v["a3"] * x**3
    return top / (1 + abs(v["b1"] * x + v["b2"] * x**2))


PUBLISHED: dict[str, Formula] = {
    "swish_beta": lambda x, v: x * _logistic(v["beta"] * x),
    "gelu_tanh": lambda x, v: _gelu_tanh(x),
    "quick_gelu": lambda x, v: _quick_gelu(x),
    "mish": lambda x, v: x * mpmath.tanh(_softplus(x)),
    "golu": lambda x, v: x * mpmath.exp(-mpmath.exp(-x)),
    "aglu": lambda x, v: x * (v["lam"] * mpmath.exp(-v["kappa"] * x) + 1) ** (-1 / v["lam"]),
    "aptx": lambda x, v: (1 + mpmath.tanh(x)) * x / 2,
    "aptx_trainable": lambda x, v: v["gamma"] * x * (v["alpha"] + mpmath.tanh(v["beta"] * x)),
    "dice": lambda x, v: (
        (gate := _logistic((x - v["mean"]) / v["deviation"])) * x + (1 - gate) * v["alpha"] * x
    ),
    "velu": _velu,
    "tanhsoft_1": lambda x, v: mpmath.tanh(mpmath.mpf("0.87") * x) * _softplus(x),
    "tanhsoft_2": lambda x, v: x * mpmath.tanh(mpmath.mpf("0.6") * mpmath.exp(x)),
    "srs": lambda x, v: x / (x / 5 + mpmath.exp(-x / 3)),
    "xiep": _xiep,
    "xiprelup": _xiprelup,
    "xssslur2": _xssslu,
    "xssslupr": _xssslu,
    "gxssslur2": _gxssslu,
    "gxssslupr": _gxssslu,
    "polyrelu": lambda x, v: sum(v[f"alpha_{k}"] * _relu(x) ** k for k in (1, 2, 3)),
    "relu2_soft_clamped": lambda x, v: (v["limit"] * mpmath.tanh(_relu(x) / v["limit"])) ** 2,
    "crrelu": lambda x, v: _relu(x) + v["epsilon"] * x * mpmath.exp(-(x**2) / 2),
    "starrelu": lambda x, v: v["scale"] * _relu(x) ** 2 + v["bias"],
    "symlog": lambda x, v: mpmath.sign(x) * mpmath.log(1 + abs(x)),
    "symexp": lambda x, v: mpmath.sign(x) * (mpmath.exp(abs(x)) - 1),
    "drelu": lambda x, v: _relu(x),
    "swiglu_oai": lambda x, v: _quick_gelu(min(x, mpmath.mpf(7))),
    "swiglu_step": lambda x, v: min(x * _logistic(x), mpmath.mpf(7)),
    "situ_glu": lambda x, v: 4 * mpmath.tanh(x / 4) * _logistic(x),
    "fatrelu_glu": lambda x, v: x if x > v["threshold"] else mpmath.mpf(0),
    "glu": lambda x, v: _logistic(x),
    "gtu": lambda x, v: _logistic(x),
    "bilinear": lambda x, v: x,
    "relu2_glu": lambda x, v: _relu(x) ** 2,
    "xielu_glu": _xielu,
    "geglu_tanh": lambda x, v: _gelu_tanh(x),
    "quick_geglu": lambda x, v: _quick_gelu(x),
    "pau": _pau,
    "tempered_sigmoid": lambda x, v: v["scale"] * _logistic(v["temperature"] * x) - v["offset"],
    "clipped_relu_zero": lambda x, v: _relu(x) if x <= v["threshold"] else mpmath.mpf(0),
    "pact": lambda x, v: (abs(x) - abs(x - v["alpha"]) + v["alpha"]) / 2,
    "elu_concave": lambda x, v: -_elu(-x),
    "elu_saturated": lambda x, v: _saturated(_elu, x),
    "softplus_saturated": lambda x, v: _saturated(_softplus, x),
    "helu": lambda x, v: _relu(x),
    "tmaf_diagonal": lambda x, v: v["t_1" if x <= 0 else "t_2" if x <= 1 else "t_3"] * x,
}
UP: dict[str, Callable[[float], float]] = {
    "drelu": lambda u: max(u, 0.0),
    "swiglu_oai": lambda u: min(max(u, -7.0), 7.0) + 1.0,
    "swiglu_step": lambda u: min(max(u, -7.0), 7.0),
    "situ_glu": lambda u: 25.0 * math.tanh(u / 25.0),
    "gtu": math.tanh,
}


@cache
def _derived(name: str) -> Derived:
    return derive(SPECS[name])


def _exact(values: Mapping[str, float]) -> dict[str, Any]:
    return {name: mpmath.mpf(value) for name, value in values.items()}


def _slope(formula: Callable[[Any], Any], at: Any) -> Any:
    """The central difference; its step is so small that both its errors are below 1e-30."""
    step = mpmath.mpf(10) ** -25
    return (formula(at + step) - formula(at - step)) / (2 * step)


def _at(name: str, values: Values, x: Any) -> Any:
    """The published function as a function of x."""
    return PUBLISHED[name](x, values)


def _along(name: str, key: str, x: Any, values: Values, p: Any) -> Any:
    """The published function at x as a function of one parameter."""
    return PUBLISHED[name](x, {**values, key: p})


def _agree(found: Any, expected: Any, context: object, floor: float = TINY) -> None:
    assert abs(found - expected) <= 1e-12 * abs(expected) + floor, (context, found, expected)


def _arguments(spec: Spec, values: Mapping[str, float], dtype: torch.dtype) -> tuple[Any, ...]:
    """Parameters as modules pass them: trainable ones as tensors, fixed ones as numbers."""
    return tuple(
        torch.tensor(values[p.name], dtype=dtype) if p.trainable else values[p.name]
        for p in spec.parameters
    )


def test_every_entry_is_written_a_second_time() -> None:
    assert set(PUBLISHED) == set(SPECS)
    factors = {n for n, s in SPECS.items() if isinstance(s.arity, Gated) and s.arity.up}
    assert set(UP) == factors


@NAMES
def test_an_entry_is_the_published_function_and_its_slope(name: str) -> None:
    derived = _derived(name)
    with mpmath.workdps(80):
        for values in SPECS[name].sample_values():
            exact = _exact(values)
            functions = truth(derived, "function", POINTS, values)
            slopes = truth(derived, "slope", POINTS, values)
            for point, function, slope in zip(POINTS, functions, slopes, strict=True):
                x = mpmath.mpf(point)
                _agree(function, PUBLISHED[name](x, exact), (name, point))
                expected = _slope(partial(_at, name, exact), x)
                _agree(slope, expected, (name, point, "slope"), floor=QUOTIENT)


@NAMES
def test_parameter_slopes_are_differences_of_the_published_function(name: str) -> None:
    spec, derived = SPECS[name], _derived(name)
    with mpmath.workdps(80):
        for values in spec.sample_values():
            exact = _exact(values)
            for parameter in spec.trainable:
                found = parameter_truth(derived, parameter.name, POINTS, values)
                for point, slope in zip(POINTS, found, strict=True):
                    along = partial(_along, name, parameter.name, mpmath.mpf(point), exact)
                    expected = _slope(along, exact[parameter.name])
                    _agree(slope, expected, (name, point, parameter.name), floor=QUOTIENT)


@NAMES
def test_a_kernel_keeps_twelve_digits_in_float64(name: str) -> None:
    spec = SPECS[name]
    near = [s * m for m in (1e-9, 1e-5) for s in (-1.0, 1.0)] + POINTS
    for values in spec.sample_values():
        arguments = _arguments(spec, values, torch.float64)
        x = torch.tensor(near, dtype=torch.float64)
        found = kernel_of(spec).value(x, arguments).tolist()
        for point, value, exact in zip(
            near, found, truth(_derived(name), "function", near, values), strict=True
        ):
            _agree(mpmath.mpf(value), exact, (name, point))


@NAMES
def test_a_kernel_gives_no_nan_far_out(name: str) -> None:
    spec = SPECS[name]
    kernel = kernel_of(spec)
    far = torch.tensor([-1e30, -1e4, -1e3, -88.0, -0.0, 0.0, 88.0, 1e3, 1e4, 1e30])
    for values in spec.sample_values():
        arguments = _arguments(spec, values, torch.float32)
        assert not kernel.value(far, arguments).isnan().any()
        for slope in kernel.slopes(far[1:-1], arguments):
            assert not slope.isnan().any()


@pytest.mark.parametrize("name", UP)
def test_the_up_factor_is_the_published_one(name: str) -> None:
    spec = SPECS[name]
    up = kernel_of(spec).up
    assert up is not None
    x = torch.tensor(POINTS, dtype=torch.float64)
    arguments = _arguments(spec, spec.initial_values(), torch.float64)
    function, slope = up.value(x, arguments), up.slopes(x, arguments)[0]
    for point, value, rate in zip(POINTS, function.tolist(), slope.tolist(), strict=True):
        expected = UP[name](point)
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-15)
        difference = (UP[name](point + 1e-6) - UP[name](point - 1e-6)) / 2e-6
        assert rate == pytest.approx(difference, abs=1e-7)


def test_the_omitted_logarithm_changes_the_sign_of_a_slope_of_aglu() -> None:
    values = {"lam": 0.5, "kappa": 1.0}
    (right,) = parameter_truth(_derived("aglu"), "lam", [0.5], values)
    (function,) = truth(_derived("aglu"), "function", [0.5], values)
    small = math.exp(-0.5)
    published = -float(function) * small / (0.5 * (1 + 0.5 * small))
    assert float(right) == pytest.approx(0.0379, abs=5e-5)
    assert published == pytest.approx(-0.2740, abs=5e-5)


def test_the_published_backward_pass_of_golu_meets_infinity() -> None:
    x = torch.linspace(-100.0, 20.0, 400)
    published = torch.exp(-torch.exp(-x)) * (1 + x * torch.exp(-x))
    assert int(published.isnan().sum()) == 53
    kernel = kernel_of(SPECS["golu"])
    for quantity in (kernel.value(x, ()), *kernel.slopes(x, ()), *kernel.curvatures(x, ())):
        assert quantity.isfinite().all()


def test_velu_is_almost_a_straight_line() -> None:
    gate = [float(_velu(mpmath.mpf(x), {"lam": 1}) / x) for x in (-4.0, 4.0)]
    assert gate == pytest.approx([0.480, 0.520], abs=5e-4)
    x = torch.linspace(-8.0, 8.0, 4001, dtype=torch.float64)
    weight = torch.exp(-x * x / 2)
    weight = weight / weight.sum()
    left = {}
    for name, arguments in (("velu", (torch.ones((), dtype=torch.float64),)), ("quick_gelu", ())):
        y = kernel_of(SPECS[name]).value(x, arguments)
        y = y - (weight * y).sum()
        left[name] = float(1 - (weight * y * x).sum() ** 2 / (weight * y * y).sum())
    assert left["velu"] == pytest.approx(0.0002, abs=2e-5)
    assert left["quick_gelu"] > 0.1


def test_aptx_is_a_swish() -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    swish = kernel_of(SPECS["swish_beta"])
    two, half, one = (torch.tensor(v, dtype=torch.float64) for v in (2.0, 0.5, 1.0))
    assert torch.allclose(kernel_of(SPECS["aptx"]).value(x, ()), swish.value(x, (two,)), rtol=1e-14)
    at_half = kernel_of(SPECS["aptx_trainable"]).value(x, (one, half, half))
    assert torch.allclose(at_half, torch.nn.functional.silu(x), rtol=1e-14)


def test_clamping_before_and_after_the_gate_are_two_functions() -> None:
    eight, one = torch.tensor([8.0]), torch.tensor([1.0])
    outputs = []
    for name in ("swiglu_oai", "swiglu_step"):
        kernel = kernel_of(SPECS[name])
        assert kernel.up is not None
        outputs.append(float(kernel.value(eight, ()) * kernel.up.value(one, ())))
    assert outputs == pytest.approx([13.9999, 7.0], abs=1e-4)


def test_the_backward_pass_of_helu_is_declared_and_is_not_the_slope() -> None:
    x = torch.tensor([-0.06, -0.04, 0.0, 0.5])
    assert kernel_of(SPECS["helu"]).slopes(x, ())[0].tolist() == [0.0, 1.0, 1.0, 1.0]
    assert [float(s) for s in truth(_derived("helu"), "slope", x.tolist(), {})] == [0, 0, 0, 1]


def test_the_soft_clamp_bounds_the_slope() -> None:
    x = torch.linspace(0.0, 40.0, 40001, dtype=torch.float64)
    slope = kernel_of(SPECS["relu2_soft_clamped"]).slopes(x, (16.0,))[0]
    assert float(slope.max()) == pytest.approx(12.32, abs=5e-3)
    assert float(x[slope.argmax()]) == pytest.approx(10.54, abs=5e-3)


def test_crrelu_falls_left_of_minus_one_for_every_epsilon() -> None:
    x = torch.tensor([-1.01, -0.99], dtype=torch.float64)
    for epsilon in (-0.5, 0.01, 2.0):
        below, above = kernel_of(SPECS["crrelu"]).slopes(x, (torch.tensor(epsilon).double(),))[0]
        assert float(below) * float(above) < 0
