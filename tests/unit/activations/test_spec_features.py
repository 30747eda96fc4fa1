"""What a spec can say beyond a gradient: jumps, a surrogate, an up factor, knots that move."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stamm.activations.catalog import get
from stamm.activations.derivation.derive import derive
from stamm.activations.module import build_activation
from stamm.activations.spec import Factor, Gated, Jump, Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.parameters import Between, Fixed, Identity, Parameter, Softplus
from stamm.base.errors import ConfigError
from tests.unit.activations.truths import parameter_truth, truth

LIMIT = Parameter(name="limit", initial=7.0, bijection=Fixed())


def spec(*pieces: tuple[str, str], **fields: Any) -> Spec:
    stated = tuple(Piece(where=w, formula=f) for w, f in pieces)
    return Spec(name="mine", title="Mine", source="a test", pieces=stated, **fields)


def test_a_function_may_jump_where_it_says_so() -> None:
    tau = Parameter(name="tau", initial=0.25, bijection=Softplus())
    cut = spec(
        ("x > tau", "1"),
        ("x <= tau", "0"),
        parameters=(tau,),
        continuity="jump",
        jumps=(Jump(at="tau", by="tau"),),
    )
    values = {"tau": 0.25}
    assert [float(y) for y in truth(derive(cut), "function", [-1, 0.25, 0.3, 4], values)] == [
        0.0,
        0.0,
        0.3,
        4.0,
    ]
    module = build_activation(cut)
    y = module(torch.tensor([-1.0, 0.2, 0.5]))
    assert y.tolist() == [0.0, 0.0, 0.5]


def test_a_jump_to_the_left_of_the_anchor() -> None:
    cut = spec(
        ("x > -2", "1"), ("x <= -2", "0"), continuity="jump", jumps=(Jump(at="-2", by="-2"),)
    )
    assert [float(y) for y in truth(derive(cut), "function", [-3, -1], {})] == [0.0, -1.0]


def test_a_surrogate_is_what_comes_back() -> None:
    shifted = spec(
        ("x > 0", "1"),
        ("x <= 0", "0"),
        continuity="jump",
        surrogate=(Piece(where="x > -0.05", formula="1"), Piece(where="x <= -0.05", formula="0")),
    )
    x = torch.tensor([-0.1, -0.01, 0.5], requires_grad=True)
    y = build_activation(shifted)(x)
    y.sum().backward()
    assert y.tolist() == [0.0, 0.0, 0.5]
    assert x.grad is not None and x.grad.tolist() == [0.0, 1.0, 1.0]


def clamped() -> Spec:
    factor = Factor(
        pieces=(
            Piece(where="x < -limit", formula="0"),
            Piece(where="-limit <= x <= limit", formula="1"),
            Piece(where="x > limit", formula="0"),
        ),
        anchor=("0", "1"),
    )
    alpha = Parameter(name="alpha", initial=1.0, bijection=Identity())
    return spec(
        ("all x", "alpha*logistic(x) + alpha*x*logistic(x)*logistic(-x)"),
        parameters=(alpha, LIMIT),
        arity=Gated(order=2, up=factor),
    )


def test_the_up_input_may_have_a_function_of_its_own() -> None:
    module = build_activation(clamped())
    gate = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
    up = torch.tensor([-9.0, 0.5, 30.0], requires_grad=True)
    y = module(gate, up)
    swish = float(torch.nn.functional.silu(torch.tensor(1.0)))
    assert y.tolist() == pytest.approx([-6 * swish, 1.5 * swish, 8 * swish], rel=1e-6)
    y.sum().backward()
    assert up.grad is not None
    assert up.grad.tolist() == pytest.approx([0.0, swish, 0.0], rel=1e-6)


def test_the_up_factor_is_differentiable_twice_and_in_16_bits() -> None:
    module = build_activation(clamped(), dtype=torch.float64)
    gate = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64, requires_grad=True)
    up = torch.tensor([0.4, 1.5, -2.0], dtype=torch.float64, requires_grad=True)

    def function(gate: Tensor, up: Tensor, alpha: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, {"alpha": alpha}, (gate, up))
        return result

    alpha = torch.tensor([0.75], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (gate, up, alpha))
    assert torch.autograd.gradgradcheck(function, (gate, up, alpha))
    short = build_activation(clamped())(gate.bfloat16(), up.bfloat16())
    assert short.dtype == torch.bfloat16


def test_a_knot_may_move_with_a_parameter() -> None:
    knot = Parameter(name="knot", initial=1.5, bijection=Between(low=-1.0, high=4.0))
    bent = spec(
        ("x <= knot", "1"),
        ("0 + knot < x <= 4", "2"),
        ("x > 4", "0.5"),
        parameters=(knot,),
        continuity="jump",
    )
    derived = derive(bent)
    values = {"knot": 1.5}
    assert [float(y) for y in truth(derived, "function", [1, 3, 5], values)] == [1.0, 4.5, 7.0]
    # Leibniz: f = x for x <= k, then 2x - k, then that at 4 plus (x - 4)/2.
    slopes = parameter_truth(derived, "knot", [1, 3, 5], values)
    assert [float(s) for s in slopes] == [0.0, -1.0, -1.0]
    module = build_activation(bent)
    y = module(torch.tensor([1.0, 3.0, 5.0]))
    y.sum().backward()
    assert y.tolist() == [1.0, 4.5, 7.0]
    slope = 5.0 * 0.25  # of the bijection: the knot stands in the middle of its range
    assert module.knot.grad is not None and float(module.knot.grad) == pytest.approx(-2.0 * slope)


def test_powers_with_a_trainable_exponent() -> None:
    pieces = ["x > 0: p*x**(p - 1) | x**p", "x <= 0: 0"]
    power = spec_from_arguments(pieces, ["p=2:softplus>1"], name="mine")
    module = build_activation(power)
    x = torch.tensor([-1.0, 0.0, 0.5, 3.0], requires_grad=True)
    y = module(x)
    y.sum().backward()
    assert y.tolist() == pytest.approx([0.0, 0.0, 0.25, 9.0], rel=1e-6)
    assert x.grad is not None and x.grad.tolist() == pytest.approx([0.0, 0.0, 1.0, 6.0], rel=1e-6)
    assert not torch.isnan(module.p.grad).any()  # type: ignore[arg-type]  # x**p log(x) is 0 at 0


def test_a_hint_that_is_wrong_is_refused() -> None:
    wrong = spec_from_arguments(["all x: 2*x | x**3"], name="wrong")
    with pytest.raises(ConfigError, match=r"the antiderivative found for piece 'all x' is wrong"):
        derive(wrong)


@pytest.mark.parametrize("layout", ["gate_first", "up_first", "interleaved"])
def test_the_layout_says_how_a_fused_projection_is_read(layout: Any) -> None:
    gate, up = torch.randn(3, 4), torch.randn(3, 4)
    fused = {
        "gate_first": torch.cat([gate, up], -1),
        "up_first": torch.cat([up, gate], -1),
        "interleaved": torch.stack([gate, up], -1).reshape(3, 8),
    }[layout]
    module = build_activation(replace(get("swiglu"), arity=Gated(order=2, layout=layout)))
    assert torch.equal(module.of_fused(fused), module(gate, up))  # type: ignore[operator, union-attr]
    with pytest.raises(ConfigError, match=r"of shape \(3, 7\) does not hold gate and up"):
        module.of_fused(fused[:, :7])  # type: ignore[operator, union-attr]


def test_functions_of_parameters_alone_have_kernels() -> None:
    names = ("a", "b")
    kinds = (Fixed(), Softplus())
    made = spec(
        ("all x", "log(1 + a)*exp(a)*sqrt(b)*x + a**b + logistic(b)"),
        parameters=tuple(
            Parameter(name=n, initial=2.0, bijection=k) for n, k in zip(names, kinds, strict=True)
        ),
    )
    y = build_activation(made, dtype=torch.float64)(torch.tensor([2.0], dtype=torch.float64))
    slope = math.log(3) * math.exp(2) * math.sqrt(2)
    other = 4 + 1 / (1 + math.exp(-2))
    assert y.item() == pytest.approx(slope * 2 + 2 * other, rel=1e-12)


@pytest.mark.parametrize(
    "name", ["a", "inside_1", "branch_1", "exp_1", "size", "part_1", "chosen_1"]
)
def test_a_parameter_may_be_called_like_a_variable_of_the_kernel(name: str) -> None:
    made = spec(
        ("x > 0", f"2*{name}*x + 1/2"),
        ("x <= 0", f"{name}*(exp(x) - 1) + 1/2"),
        parameters=(Parameter(name=name, initial=0.8, bijection=Softplus()),),
    )
    x = torch.tensor([-2.0, 2.0], dtype=torch.float64, requires_grad=True)
    y = build_activation(made, dtype=torch.float64)(x)
    y.sum().backward()
    assert y.tolist() == pytest.approx([0.8 * (math.exp(-2) + 1) - 1, 4.2], rel=1e-12)
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([0.8 * math.expm1(-2) + 0.5, 3.7], rel=1e-12)


def test_the_anchor_holds_where_the_function_jumps_at_it() -> None:
    for left, right, at_zero in (("x < 0", "x >= 0", 1.0), ("x <= 0", "x > 0", 1.0)):
        step = spec(
            (left, "0"),
            (right, "0"),
            continuity="jump",
            jumps=(Jump(at="0", by="1"),),
            anchor=("0", "1"),
        )
        assert float(truth(derive(step), "function", [0], {})[0]) == at_zero
