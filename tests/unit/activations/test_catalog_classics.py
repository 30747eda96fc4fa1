"""The classics of the catalogue, each against a formula written here by hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf

from stamm.activations.catalog import bounded, exponential, rectifiers, smooth
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.derivation.derive import derive
from stamm.activations.spec import Spec
from tests.unit.activations.truths import truth

SLOW_TO_DERIVE = {"acon_c", "ptelu", "sinlu", "smish", "smu"}
ENTRIES = (*rectifiers.ENTRIES, *exponential.ENTRIES, *bounded.ENTRIES, *smooth.ENTRIES)
POINTS = (-29.3, -11.7, -6.2, -3.4, -1.63, -0.58, -0.07, 0.04, 0.43, 1.37, 2.6, 5.1, 13.9, 28.8)
KNOTS = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0)
FAR = (-1e30, -1e15, -1e4, -200.0, 200.0, 1e4, 1e15, 1e30)
SIXTH = ("hard_sigmoid",)  # torch keeps 1/6 in single precision there
WAVES = ("sine", "cosine", "gcu", "snake", "snake_beta")


def _sigma(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _clip(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, low), high)


# The function itself, by name; what follows x are the parameters, in order.
CLOSED: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "leaky_relu": lambda x, a: max(x, 0) + a * min(x, 0),
    "prelu": lambda x, a: max(x, 0) + a * min(x, 0),
    "rrelu": lambda x, low, high: max(x, 0) + (low + high) / 2 * min(x, 0),
    "lelelu": lambda x, a: a * (max(x, 0) + min(x, 0) / 100),
    "modulus": abs,
    "relu6": lambda x: _clip(x, 0, 6),
    "shifted_relu": lambda x, shift: max(x - shift, 0),
    "thresholded_relu": lambda x, theta: x * (x > theta),
    "hard_shrink": lambda x, lam: x * (abs(x) > lam),
    "soft_shrink": lambda x, lam: mpmath.sign(x) * max(abs(x) - lam, 0),
    "hard_tanh": lambda x: _clip(x, -1, 1),
    "hard_sigmoid": lambda x: _clip(x + 3, 0, 6) / 6,
    "plu": lambda x, a, c: max(a * (x + c) - c, min(a * (x - c) + c, x)),
    "s_shaped_relu": lambda x, t, a, u, b: (
        _clip(x, t, u) + a * (min(x, t) - t) + b * (max(x, u) - u)
    ),
    "tent": lambda x, delta: max(delta - abs(x), 0),
    "hat": lambda x: max(1 - abs(x - 1), 0),
    "hard_swish": lambda x: x * _clip(x + 3, 0, 6) / 6,
    "hard_mish": lambda x: x / 2 * _clip(x + 2, 0, 2),
    "smelu": lambda x, b: 0 if x <= -b else x if x >= b else (x + b) ** 2 / (4 * b),
    "sqnl": lambda x: _clip(x, -2, 2) - mpmath.sign(x) * _clip(x, -2, 2) ** 2 / 4,
    "softmodulus_q": lambda x: abs(x) if abs(x) > 1 else x**2 * (2 - abs(x)),
    "relu3": lambda x: max(x, 0) ** 3,
    "repu": lambda x, p: max(x, 0) ** p,
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "squ": lambda x: x**2 + x,
    "ncu": lambda x: x - x**3,
    "elu": lambda x, a: x if x > 0 else a * (mpmath.exp(x) - 1),
    "celu": lambda x, a: x if x > 0 else a * (mpmath.exp(x / a) - 1),
    "selu": lambda x, a, s: s * (x if x > 0 else a * (mpmath.exp(x) - 1)),
    "pelu": lambda x, a, b: a / b * x if x > 0 else a * (mpmath.exp(x / b) - 1),
    "mpelu": lambda x, a, b: x if x > 0 else a * (mpmath.exp(b * x) - 1),
    "elish": lambda x: (x if x > 0 else mpmath.exp(x) - 1) / (1 + mpmath.exp(-x)),
    "hard_elish": lambda x: (x if x > 0 else mpmath.exp(x) - 1) * _clip((x + 1) / 2, 0, 1),
    "nlrelu": lambda x, b: mpmath.log(1 + b * max(x, 0)),
    "softplus": lambda x: mpmath.log(1 + mpmath.exp(x)),
    "softplus_beta": lambda x, b: mpmath.log(1 + mpmath.exp(b * x)) / b,
    "log_sigmoid": lambda x: mpmath.log(_sigma(x)),
    "logish": lambda x: x * mpmath.log(1 + _sigma(x)),
    "smish": lambda x: x * mpmath.tanh(mpmath.log(1 + _sigma(x))),
    "sigmoid": _sigma,
    "tanh": mpmath.tanh,
    "scaled_tanh": lambda x, height, rate: height * mpmath.tanh(rate * x),
    "penalized_tanh": lambda x, a: mpmath.tanh(x) * (1 if x > 0 else a),
    "arctan": mpmath.atan,
    "erf": mpmath.erf,
    "softsign": lambda x: x / (1 + abs(x)),
    "isru": lambda x, a: x / mpmath.sqrt(1 + a * x**2),
    "gaussian": lambda x: mpmath.exp(-(x**2)),
    "sine": mpmath.sin,
    "cosine": mpmath.cos,
    "squareplus": lambda x, b: (x + mpmath.sqrt(x**2 + b)) / 2,
    "bent_identity": lambda x: (mpmath.sqrt(x**2 + 1) - 1) / 2 + x,
    "isrlu": lambda x, a: x if x > 0 else x / mpmath.sqrt(1 + a * x**2),
    "tanh_shrink": lambda x: x - mpmath.tanh(x),
    "lisht": lambda x: x * mpmath.tanh(x),
    "softmodulus_t": lambda x, a: x * mpmath.tanh(x / a),
    "dsilu": lambda x: _sigma(x) * (1 + x * (1 - _sigma(x))),
    "flatten_t_swish": lambda x, t: t + max(x, 0) * _sigma(x),
    "ptelu": lambda x, a, b: x if x > 0 else a * mpmath.tanh(b * x),
    "sinlu": lambda x, a, b: (x + a * mpmath.sin(b * x)) * _sigma(x),
    "smu": lambda x, a, mu: ((1 + a) * x + (1 - a) * x * mpmath.erf(mu * (1 - a) * x)) / 2,
    "serf": lambda x: x * mpmath.erf(mpmath.log(1 + mpmath.exp(x))),
    "snake": lambda x, a: x + mpmath.sin(a * x) ** 2 / a,
    "snake_beta": lambda x, a, b: x + mpmath.sin(a * x) ** 2 / b,
    "gcu": lambda x: x * mpmath.cos(x),
    "laplace": lambda x, mu, sigma: mpmath.erfc((mu - x) / (sigma * mpmath.sqrt(2))) / 2,
    "cloglog": lambda x: -mpmath.expm1(-mpmath.exp(x)),
    "tanh_exp": lambda x: x * mpmath.tanh(mpmath.exp(x)),
    "acon_c": lambda x, p, q, b: (p - q) * x * _sigma(b * (p - q) * x) + q * x,
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            spec, id=spec.name, marks=pytest.mark.sweep if spec.name in SLOW_TO_DERIVE else ()
        )
        for spec in ENTRIES
    ],
)
def spec(request: pytest.FixtureRequest) -> Spec:
    """Every entry in turn. All tests of one run together, so that each is derived once."""
    entry: Spec = request.param
    return entry


def _closed(spec: Spec, x: float, values: dict[str, float]) -> Any:
    return mpf(CLOSED[spec.name](mpf(x), *map(mpf, values.values())))


def _tolerance(spec: Spec, x: float) -> float:
    """How far a float64 kernel may be off near `x`, beside the relative tolerance."""
    return abs(x) * 1e-16 if spec.name == "tanh_shrink" else 0.0


def test_every_entry_is_checked() -> None:
    names = [known for spec in ENTRIES for known in (spec.name, *spec.aliases)]
    assert len(set(names)) == len(names)
    assert {spec.name for spec in ENTRIES} == set(CLOSED)
    assert all(spec.source and spec.title for spec in ENTRIES)


def test_the_integral_is_the_function(spec: Spec) -> None:
    for values in spec.sample_values():
        found = truth(derive(spec), "function", POINTS, values)
        with mpmath.workdps(80):
            for x, value in zip(POINTS, found, strict=True):
                expected = _closed(spec, x, values)
                assert abs(value - expected) <= abs(expected) * mpf("1e-30"), (x, values)


def test_the_gradient_is_the_slope(spec: Spec) -> None:
    for values in spec.sample_values():
        found = truth(derive(spec), "slope", POINTS, values)
        with mpmath.workdps(80):
            for x, value in zip(POINTS, found, strict=True):
                slope = mpmath.diff(lambda at: _closed(spec, at, values), mpf(x))  # noqa: B023
                assert abs(value - slope) <= abs(slope) * mpf("1e-20") + mpf("1e-40"), (x, values)


def test_the_kernel_keeps_the_digits(spec: Spec) -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    for values in spec.sample_values():
        effective = tuple(values.values())
        outputs = kernel_of(spec).value(x, effective).tolist()
        slopes = kernel_of(spec).slopes(x, effective)[0].tolist()
        exact = truth(derive(spec), "slope", POINTS, values)
        with mpmath.workdps(60):
            for point, output, slope, true in zip(POINTS, outputs, slopes, exact, strict=True):
                expected = float(_closed(spec, point, values))
                allowed = _tolerance(spec, point)
                assert output == pytest.approx(expected, rel=1e-12, abs=allowed), (point, values)
                assert slope == pytest.approx(float(true), rel=1e-12, abs=1e-15), (point, values)


def test_parameter_slopes(spec: Spec) -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    for values in spec.sample_values():
        found = kernel_of(spec).slopes(x, tuple(values.values()))[1:]
        for parameter, slopes in zip(spec.trainable, found, strict=True):
            for point, slope in zip(POINTS, slopes.tolist(), strict=True):

                def along(value: Any, at: float = point, name: str = parameter.name) -> Any:
                    return _closed(spec, at, {**values, name: value})  # noqa: B023

                with mpmath.workdps(60):
                    expected = float(mpmath.diff(along, mpf(values[parameter.name])))
                assert slope == pytest.approx(expected, rel=1e-12, abs=1e-15), (point, values)


def test_far_out_nothing_breaks(spec: Spec) -> None:
    x = torch.tensor(FAR)
    values = spec.initial_values()
    effective = tuple(values.values())
    found = kernel_of(spec).value(x, effective).tolist()
    for slope in kernel_of(spec).slopes(x, effective):
        assert not slope.isnan().any()
    if spec.name in WAVES:  # of an input this large only the order of magnitude is known
        assert not any(value != value for value in found)
        return
    exact = truth(derive(spec), "function", x.tolist(), values)
    for point, value, true in zip(FAR, found, exact, strict=True):
        if abs(true) > torch.finfo(torch.float32).max:
            assert value == float("inf") * float(mpmath.sign(true)), point
        else:
            assert value == pytest.approx(float(true), rel=2e-6, abs=1e-37), point


def test_peers_agree(spec: Spec) -> None:
    for peer in spec.peers:
        _check_peer(spec, peer)


def _check_peer(spec: Spec, peer: str) -> None:
    module, _, name = peer.partition(":")
    theirs: Any = getattr(pytest.importorskip(module), name)
    function: Any = theirs() if inspect.isclass(theirs) else theirs
    x = torch.tensor((*POINTS, *KNOTS), dtype=torch.float64, requires_grad=True)
    if isinstance(function, torch.nn.Module):
        function = function.double()
    expected = function(x)
    (slope,) = torch.autograd.grad(expected.sum(), x)
    effective = tuple(spec.initial_values().values())
    found = kernel_of(spec)
    relative = 1e-7 if spec.name in SIXTH else 1e-12
    with torch.no_grad():
        ours = (found.value(x, effective), found.slopes(x, effective)[0])
    for mine, other in zip(ours, (expected.detach(), slope), strict=True):
        torch.testing.assert_close(mine, other, rtol=relative, atol=1e-14)
