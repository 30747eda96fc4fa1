"""Integrals that vanish at the anchor: no digit is lost where the difference of two terms is 0."""

from __future__ import annotations

import math
from types import ModuleType

import mpmath
import pytest
import sympy
import torch
from sympy import Expr

from stamm.activations.catalog import get
from stamm.activations.codegen.formula import anchored_source
from stamm.activations.codegen.kernel import kernel_source
from stamm.activations.codegen.kernel_lookup import kernel_of
from stamm.activations.conformance.implementations import StammImplementation
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.reference import evaluate, truth_finding
from stamm.activations.derivation.anchored import Anchored, anchored_branches, anchored_in
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branch, Branches, number
from stamm.activations.derivation.primitives import X, gompertz, logistic
from stamm.activations.derivation.special import (
    gompertz_integral,
    mish_gate_integral,
    softplus_integral,
)
from stamm.activations.derivation.tables import table_of
from stamm.activations.module import build_activation
from stamm.activations.spec import Factor, Gated, Piece, Spec
from stamm.activations.spec.parameters import Fixed, Identity, Parameter, Softplus

pytestmark = pytest.mark.slow  # derives entries

A, B = sympy.Symbol("a", positive=True), sympy.Symbol("b", real=True)
_A = Parameter(name="a", initial=0.8, bijection=Softplus())
_B = Parameter(name="b", initial=0.3, bijection=Identity())
_C = Parameter(name="c", initial=2.5, bijection=Fixed())


def _spec(*formulas: str, parameters: tuple[Parameter, ...] = ()) -> Spec:
    """One gradient for all x, or one on each side of 0."""
    where = ("all x",) if len(formulas) == 1 else ("x <= 0", "x > 0")
    pieces = tuple(Piece(where=w, formula=f) for w, f in zip(where, formulas, strict=True))
    return Spec(name="anchored", title="", source="", pieces=pieces, parameters=parameters)


SPECS = {
    "softplus": _spec("softplus(x)"),
    "Mish gate": _spec("tanh(softplus(x))"),
    "Gompertz": _spec("gompertz(x)"),
    "tanh": _spec("tanh(x)"),
    "x logistic": _spec("x*logistic(x)"),
    "linear parameters": _spec("a*softplus(x) + b", parameters=(_A, _B)),
    "two groups": _spec("a*softplus(x) + b*tanh(softplus(x))", parameters=(_A, _B)),
    "a fixed scale": _spec("softplus(c*x)", parameters=(_C,)),
    "a slow scale": _spec("softplus(x/100)"),
    "a gradient that vanishes": _spec("softplus(x) - log(2)"),
    "half a window": _spec("2*softplus(x)", "x + 2*log(2)"),
    "two halves": _spec("gompertz(x)", "tanh(softplus(x)) + exp(-1) - 3/5"),
}
WINDOWLESS = {"tanh"}


@pytest.mark.parametrize("name", SPECS)
def test_the_judge_finds_nothing(name: str) -> None:
    assert judge(SPECS[name], StammImplementation(), count=20_000).problems == ()
    assert truth_finding(SPECS[name], SPECS[name].initial_values(), points=40).passed
    windows = anchored_in(derive(SPECS[name]).stable.function)
    assert bool(windows) == (name not in WINDOWLESS)


@pytest.mark.parametrize("name", SPECS)
def test_digits_near_the_anchor_and_zero_at_it(name: str) -> None:
    spec = SPECS[name]
    derived, module = derive(spec), ModuleType("anchored")
    exec(kernel_source(derived), module.__dict__)
    values = spec.initial_values()
    given = tuple(torch.tensor(values[p.name], dtype=torch.float64) for p in spec.parameters)
    points = [s * m * 10.0**k for k in range(-30, 0) for m in (1.0, 3.7) for s in (-1, 1)]
    found = {0: module.value(torch.tensor(points, dtype=torch.float64), given)}
    for i, slope in enumerate(module.slopes(torch.tensor(points, dtype=torch.float64), given)[1:]):
        found[i + 1] = slope
    exact = [derived.exact.function, *derived.exact.parameter_slopes]
    for got, branches in zip(found.values(), exact, strict=True):
        for x, y, true in zip(
            points, got.tolist(), evaluate(branches, points, values), strict=True
        ):
            assert abs(y - true) <= 1e-15 * abs(true), x
    for dtype in (torch.float32, torch.float64):
        small = tuple(torch.tensor(values[p.name], dtype=dtype) for p in spec.parameters)
        zeros = module.value(torch.tensor([0.0, -0.0], dtype=dtype), small)
        assert zeros.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["softplus", "linear parameters", "two halves"])
def test_it_compiles_whole(name: str) -> None:
    kernel, values = kernel_of(SPECS[name]), tuple(SPECS[name].initial_values().values())
    x = torch.linspace(-2, 2, 401)
    given = tuple(torch.tensor(value) for value in values)
    value = torch.compile(kernel.value, fullgraph=True, backend="eager")
    slopes = torch.compile(kernel.slopes, fullgraph=True, backend="eager")
    assert torch.equal(value(x, given), kernel.value(x, given))
    for compiled, eager in zip(slopes(x, given), kernel.slopes(x, given), strict=True):
        assert torch.equal(compiled, eager)


def test_first_and_second_derivatives_are_those_of_the_function() -> None:
    module = build_activation(SPECS["linear parameters"], dtype=torch.float64)
    x = torch.tensor([-0.7, -0.5, -1e-9, 1e-3, 0.49, 0.5, 3.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(module, (x.requires_grad_(),))
    assert torch.autograd.gradgradcheck(module, (x,))
    (slope,) = torch.autograd.grad(module(x).sum(), x)
    stated = 0.8 * torch.nn.functional.softplus(x) + 0.3
    assert torch.allclose(slope, stated, rtol=1e-14)


def test_a_scale_that_is_trained_moves_the_window() -> None:
    (a, b, c) = derive(_spec("gompertz(a*x)", parameters=(_A,))).stable.function
    assert (a.high, b.low, b.high, c.low) == (-1 / (2 * A), -1 / (2 * A), 1 / (2 * A), 1 / (2 * A))
    assert str(b.formula).startswith("anchored_") and b.formula.has(A * X)
    slopes = derive(_spec("tanh(softplus(a*x))", parameters=(_A,))).stable.parameter_slopes[0]
    assert len(slopes) == 4 and len(anchored_in(slopes)) == 1


def test_both_factors_of_a_gated_unit_have_windows() -> None:
    piece = Piece(where="all x", formula="gompertz(x)")
    arity = Gated(order=2, layout="gate_first", up=Factor(pieces=(piece,), anchor=("0", "0")))
    spec = Spec(name="anchored", title="", source="", pieces=(piece,), arity=arity)
    derived = derive(spec)
    assert derived.up is not None
    assert anchored_in(derived.up.function) == anchored_in(derived.stable.function) != set()
    assert kernel_source(derived).count("ANCHORED_") == 3  # one constant, used twice


@pytest.mark.parametrize("formula", [softplus_integral, mish_gate_integral, gompertz_integral])
def test_an_anchored_function_is_the_difference(formula: type[Expr]) -> None:
    (kind,) = anchored_in(_windows(formula(X) - formula(0)))
    assert kind.window == (-0.5, 0.5) and kind.single < len(kind.coefficients) <= 24
    with mpmath.workdps(40):
        for point in (-0.5, -1e-40, 0.0, 1e-300, 0.3):
            u = mpmath.mpf(point)
            true = u * mpmath.quad(lambda t, u=u: number(kind.slope(X), {"x": u * t}), [0, 1])
            assert abs(kind.value(u) - true) <= mpmath.mpf(10) ** -35 * abs(u)
            polynomial = u * mpmath.polyval(kind.coefficients[::-1], u)
            assert abs(polynomial - kind.value(u)) <= 2.0**-52 * abs(kind.value(u))
    assert sympy.diff(kind(X), X) == sympy.diff(formula(X), X)


def test_the_window_is_as_wide_as_digits_need() -> None:
    widths = {}
    for scale in (20, 1, sympy.Rational(1, 100)):
        (kind,) = anchored_in(_windows(softplus_integral(scale * X) - sympy.pi**2 / 12))
        widths[scale] = kind.window[1]
        assert len(kind.coefficients) <= 24 and math.frexp(kind.window[1])[0] == 0.5
    assert list(widths.values()) == [1 / 32, 1 / 2, 32]


@pytest.mark.parametrize(
    "formula",
    [
        X * logistic(X),  # nothing cancels
        softplus_integral(X),  # nothing vanishes
        softplus_integral(X - B) - softplus_integral(-B),  # a shift is no scale
        softplus_integral(A * X) / A + softplus_integral(X) - sympy.pi**2 / 12 * (1 + 1 / A),
        softplus_integral(B * X) / B - sympy.pi**2 / (12 * B),  # of either sign
        table_of(gompertz(X) * X, -0.3, 2.0)(X),  # a table keeps to its own values
        sympy.exp(X**2) * 0 + sympy.cos(sympy.sqrt(X)) - 1 + sympy.sqrt(X) ** 3 * logistic(X),
    ],
)
def test_what_no_window_helps_stays_as_it_is(formula: Expr) -> None:
    branches = _whole(formula)
    assert anchored_branches(branches, [{"a": 0.8, "b": 0.3}], {}) == branches


def test_a_branch_that_ends_in_the_window_keeps_its_end() -> None:
    whole = {"low": sympy.Rational(-1, 4), "low_closed": True, "high": sympy.S.Half}
    formula = softplus_integral(X) - sympy.pi**2 / 12
    branch = Branch(**whole, high_closed=False, formula=formula)
    (only,) = anchored_branches([branch], [{}], {})
    assert {k: v for k, v in vars(only).items() if k != "formula"} == {
        **whole,
        "high_closed": False,
    }
    elsewhere = Branch(**{**vars(branch), "low": sympy.Rational(1, 8)})
    moving = Branch(**{**vars(branch), "high": A})
    assert anchored_branches([elsewhere, moving], [{"a": 1.0}], {}) == (elsewhere, moving)


def test_the_source_is_the_same_every_time() -> None:
    kinds = anchored_in(_windows(gompertz_integral(X) - gompertz_integral(0)))
    (kind,) = kinds
    text = anchored_source(kinds)
    assert text.startswith("# gompertz_integral(x) - gompertz_integral(0)\n# on [-0.5, 0.5]")
    assert f"{kind.__name__.upper()} = (\n    {math.exp(-1)!r}, " in text
    assert anchored_source([]) == ""
    assert issubclass(kind, Anchored) and len(kind.__name__) == len("anchored_") + 8


def test_an_entry_that_cancelled_gains() -> None:
    assert len(anchored_in(derive(get("tanh_shrink")).stable.function)) == 1


def _whole(formula: Expr) -> Branches:
    low, high = -sympy.oo, sympy.oo
    return (Branch(low=low, low_closed=False, high=high, high_closed=False, formula=formula),)


def _windows(formula: Expr) -> Branches:
    return anchored_branches(_whole(formula), [{}], {})
