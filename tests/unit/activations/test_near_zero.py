"""Formulas that vanish at 0 whatever the parameters are: every digit is kept near 0."""

from __future__ import annotations

from types import ModuleType

import mpmath
import pytest
import sympy
import torch
from sympy import Symbol

from stamm.activations.codegen.kernel import kernel_source
from stamm.activations.conformance.reference import truth_errors
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Branch
from stamm.activations.derivation.near_zero import branches_near_zero, input_scale
from stamm.activations.derivation.primitives import X, logistic, softplus
from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.parameters import Identity, Parameter, Softplus

A, B = Symbol("a", positive=True), Symbol("b", real=True)
_A = Parameter(name="a", initial=1.0, bijection=Softplus())
_B = Parameter(name="b", initial=0.3, bijection=Identity())
_P = Parameter(name="p", initial=2.0, bijection=Softplus(above="1"))
SPECS = {
    "a shifted gate": (("all x", "logistic(a*x + b)"), (_A, _B)),
    "a shift alone": (("all x", "tanh(x - b)"), (_B,)),
    "a trained power": (("x <= 0", "1/(1 - x)**p"), (_P,)),
}


def _spec(name: str) -> Spec:
    (where, formula), parameters = SPECS[name]
    rest = (Piece(where="x > 0", formula="1"),) if where == "x <= 0" else ()
    pieces = (Piece(where=where, formula=formula), *rest)
    return Spec(name="risen", title="", source="", pieces=pieces, parameters=parameters)


@pytest.mark.parametrize("name", SPECS)
def test_values_and_slopes_in_parameters_are_right_at_every_exponent(name: str) -> None:
    spec = _spec(name)
    for values in spec.sample_values()[:2]:
        for error in truth_errors(spec, values, points=8):
            assert error.ulp < 512, (error, values)  # 9 bits at the edge of a window


def test_a_shifted_gate_near_0_against_quadrature() -> None:
    # softplus(a x + b) - softplus(b) had no correct digit below |x| = 1e-16.
    derived, module = derive(_spec("a shifted gate")), ModuleType("risen")
    exec(kernel_source(derived), module.__dict__)
    points = [s * 10.0**-k for k in (2, 5, 9, 17, 30, 44) for s in (-1, 1)]
    for a, b in ((1.0, 0.3), (40.0, -3.0), (0.02, 5.0)):
        given = tuple(torch.tensor(p, dtype=torch.float64) for p in (a, b))
        x = torch.tensor(points, dtype=torch.float64)
        _, in_a, in_b = module.slopes(x, given)
        values = module.value(x, given)
        with mpmath.workdps(30):
            for u, *found in zip(points, *(t.tolist() for t in (values, in_a, in_b)), strict=True):

                def gate(t: mpmath.mpf, order: int, a: float = a, b: float = b, u: float = u):  # type: ignore[no-untyped-def]
                    g = 1 / (1 + mpmath.exp(-a * u * t - b))
                    return (g, t * g * (1 - g), g * (1 - g))[order]

                for order, y in enumerate(found):
                    true = mpmath.quad(lambda t, n=order: gate(t, n), [0, 1])
                    true *= u ** (2 if order == 1 else 1)
                    assert abs(y - true) <= 1e-13 * abs(true), (u, order)


@pytest.mark.parametrize(
    ("formula", "scale"),
    [
        (sympy.tanh(A * X + B) + sympy.exp(X), A + 1),
        (softplus(B * X), sympy.Abs(B)),
        (sympy.sqrt(4 + A**2 * X**2), A),
        (X**2, 1),
    ],
)
def test_the_scale_of_the_input(formula: sympy.Expr, scale: sympy.Expr) -> None:
    assert input_scale(formula) == scale


@pytest.mark.parametrize(
    "formula",
    [
        X * logistic(X),  # nothing cancels
        softplus(X + B),  # nothing vanishes
        sympy.sqrt(X) + softplus(X + B) - softplus(B),  # there is no derivative at 0
    ],
)
def test_what_no_window_helps_stays_as_it_is(formula: sympy.Expr) -> None:
    whole = Branch(
        low=-sympy.oo, low_closed=False, high=sympy.oo, high_closed=False, formula=formula
    )
    assert branches_near_zero([whole], [{"b": 0.3}]) == (whole,)
