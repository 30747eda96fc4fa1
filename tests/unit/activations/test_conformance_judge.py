"""The judge: what it finds in right and in wrong implementations."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stamm.activations import catalog
from stamm.activations.conformance.exact import (
    ILL_CONDITIONED,
    SAMPLED,
    exact_quantities,
    raw_slopes,
)
from stamm.activations.conformance.implementations import (
    FunctionImplementation,
    StammImplementation,
    implementation,
)
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.ulp import budget, parameter_budget
from stamm.activations.conformance.verdict import (
    ILL,
    KNOTS,
    ConformanceVerdict,
    errors_of,
    summary,
    tables,
)
from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.parameters import Absolute, Between, Exp, Parameter, Softplus
from stamm.base.config import to_plain

APERTUS = {"alpha_p": 166.0, "alpha_n": 41.25}
SHORT = (torch.bfloat16, torch.float16)


def _judged(
    function: Callable[..., Tensor], name: str = "relu", **settings: object
) -> ConformanceVerdict:
    spec = catalog.get(name)
    return judge(spec, FunctionImplementation("theirs", function), count=2000, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [None, APERTUS])
def test_xielu_meets_its_budgets_at_every_short_input(values: dict[str, float] | None) -> None:
    verdict = judge(catalog.XIELU, StammImplementation(), values, count=SAMPLED)
    assert verdict.passed, verdict.problems
    assert [of.budget_ulp for of in verdict.dtypes] == [0.51, 0.70, 1.0]
    assert [of.inputs for of in verdict.dtypes][:2] == [65_280, 63_488]


@pytest.mark.parametrize(
    "name",
    ["relu", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gelu", "xatlu", "xsilu_glu"))],
)
def test_entries_meet_the_general_budgets(name: str) -> None:
    spec = catalog.get(name)
    verdict = judge(spec, StammImplementation(), spec.sample_values()[-1], count=4000)
    assert verdict.passed, verdict.problems
    names = {measured.quantity for measured in verdict.dtypes[0].quantities}
    assert {"function", "slope"} <= names
    if name.endswith("_glu"):
        assert {"up_slope", "function (mixed up)", "slope_in_alpha (mixed up)"} <= names


def test_a_right_function_has_no_error_at_all() -> None:
    verdict = _judged(F.relu)
    assert verdict.passed, verdict.problems
    worst = [m.worst for of in verdict.dtypes for m in of.quantities]
    assert all(row is not None and row.largest == 0 for row in worst)


def test_the_eps_window_of_other_libraries_is_found() -> None:
    verdict = judge(
        catalog.XIELU,
        StammImplementation(name="eps", compat="eps"),
        APERTUS,
        dtypes=(torch.float32,),
    )
    problems = "\n".join(verdict.problems)
    assert "f(0) = 0, but -4.1" in problems
    assert "f'(0) = 0.5, by the piece that owns it, but -40.75" in problems
    assert "slope has the wrong sign" in problems
    # median, p99 and max between -1e-4 and -1e-5 as measured independently: 21, 41, 82
    row = next(r for r in verdict.dtypes[0].quantities[0].rows if r.place == "-0.0001 .. -1e-05")
    assert 15 < row.median < 25
    assert 36 < row.p99 < 46
    assert row.largest < 83


def test_a_wrong_gradient_is_found() -> None:
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return F.relu(x)

        @staticmethod
        def backward(ctx: object, into: Tensor) -> Tensor:
            return into / 2

    verdict = _judged(lambda x: Halved.apply(x), dtypes=(torch.float32,))
    assert any("slope is" in problem for problem in verdict.problems)
    assert not any("function is" in problem for problem in verdict.problems)


def test_a_wrong_sign_and_a_nan_are_told() -> None:
    def reversed_below(x: Tensor) -> Tensor:
        return torch.where(x > 1, -F.relu(x), F.relu(x))

    told = "\n".join(_judged(reversed_below, dtypes=SHORT).problems)
    assert "function has the wrong sign at 100.0% of the inputs in 10 .. 100" in told
    told = "\n".join(_judged(lambda x: x * torch.inf * 0 + F.relu(x), dtypes=SHORT).problems)
    assert "function is NaN or infinite at 65280 inputs" in told


@pytest.mark.parametrize("function", [lambda x: F.relu(x.detach()), lambda x: F.relu(x).detach()])
def test_an_output_without_a_gradient_does_not_conform(function: Callable[..., Tensor]) -> None:
    verdict = _judged(function, dtypes=(torch.float16,))
    assert [m.quantity for m in verdict.dtypes[0].quantities] == ["function"]
    assert not verdict.passed
    problem = "float16: slope is missing: the output has no gradient in the input"
    assert verdict.problems == (problem,)
    chosen = _judged(function, dtypes=(torch.float16,), quantities=("function",))
    assert chosen.passed
    assert chosen.not_judged == ()


def test_a_gate_without_a_gradient_in_up_does_not_conform() -> None:
    def gate(x: Tensor, up: Tensor) -> Tensor:
        return (F.relu(x) * up).detach()

    verdict = _judged(gate, "reglu", dtypes=(torch.float16,))
    assert "float16: up_slope is missing: the output has no gradient in up" in verdict.problems
    assert len(verdict.problems) == 2


def test_slopes_in_parameters_that_are_not_given_are_listed() -> None:
    def fixed(x: Tensor) -> Tensor:
        return 0.25 * x

    spec = spec_from_arguments(["all x: a"], ["a=0.25:softplus"], name="line")
    verdict = judge(spec, FunctionImplementation("theirs", fixed), dtypes=SHORT, count=100)
    assert verdict.passed, verdict.problems
    assert verdict.not_judged == ("slope_in_a",)
    assert to_plain(verdict)["dtypes"][0]["not_judged"] == ["slope_in_a"]


def test_the_exact_values_belong_to_the_numbers_that_are_stored() -> None:
    verdict = judge(catalog.XIELU, StammImplementation(), dtypes=(torch.float16,))
    held = dict(verdict.dtypes[0].values)
    assert held["alpha_p"] != 0.8
    assert held["alpha_p"] == pytest.approx(0.8, rel=1e-6)


def test_quantities_can_be_chosen() -> None:
    verdict = judge(
        catalog.XIELU, StammImplementation(), dtypes=SHORT, quantities=["slope", "slope_in_alpha_n"]
    )
    assert [m.quantity for m in verdict.dtypes[0].quantities] == ["slope", "slope_in_alpha_n"]


def test_ill_conditioned_inputs_are_told_apart() -> None:
    x = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    exact = exact_quantities(catalog.XIELU, catalog.XIELU.initial_values(), x)["function"]
    near_the_root = (x + 2.43248).abs() < 0.01
    assert not exact.well_conditioned[near_the_root].any()
    assert exact.well_conditioned[(x + 2.43248).abs() > 0.3].all()
    zero = torch.zeros(1, dtype=torch.float64)
    at_zero = exact_quantities(catalog.XIELU, catalog.XIELU.initial_values(), zero)
    assert at_zero["function"].condition.tolist() == [0.0]
    verdict = judge(catalog.XIELU, StammImplementation(), APERTUS, count=2000)
    rows = verdict.dtypes[2].quantities[0].rows
    assert [row.judged for row in rows if row.place == ILL] == [False]
    assert [row.judged for row in rows if row.place == KNOTS] == [True]
    assert f"{ILL_CONDITIONED:g}" in verdict.judged_where


def test_slopes_in_stored_numbers_follow_every_kind_of_constraint() -> None:
    kinds = (
        Parameter(name="a", initial=0.7, bijection=Softplus()),
        Parameter(name="b", initial=1.5, bijection=Softplus(above="a")),
        Parameter(name="c", initial=0.4, bijection=Exp()),
        Parameter(name="d", initial=1.3, bijection=Absolute()),
        Parameter(name="e", initial=0.3, bijection=Between(low=0.0, high=1.0)),
        Parameter(name="g", initial=0.0, bijection=Absolute()),
        Parameter(name="h", initial=1.0, bijection=Absolute(above="g")),
    )
    terms = "a + b*x + c*cos(x) + d*x**2 + e*tanh(x) + g*sin(x) + h*x**4"
    spec = Spec(
        name="many",
        title="",
        pieces=(Piece(where="all x", formula=terms),),
        parameters=kinds,
        source="",
    )
    raw = {"a": 0.3, "b": -0.4, "c": 0.2, "d": -0.7, "e": 1.1, "g": 0.0, "h": 1.2}
    slopes = raw_slopes(spec, raw)
    for name, number in raw.items():
        ahead, behind = (
            spec.effective_values({**raw, name: number + side * 1e-6}) for side in (1, -1)
        )
        for p in kinds:
            quotient = (ahead[p.name] - behind[p.name]) / 2e-6
            assert slopes[name].get(p.name, 0.0) == pytest.approx(quotient, abs=1e-9)
    # At 0, where |raw| has no slope, it is that of torch.abs.
    assert slopes["g"] == {"g": 0.0, "h": 0.0}


def test_an_infinity_where_the_exact_value_overflows_is_right() -> None:
    result = torch.tensor([torch.inf, -torch.inf, torch.inf, torch.inf, torch.nan])
    result = result.to(torch.float16)
    exact = torch.tensor([65520.0, 1e9, 65504.0, 30000.0, 1.0], dtype=torch.float64)
    errors, finite = errors_of(result, exact)
    assert errors[0] == 0
    assert errors[2] == 1
    assert finite.tolist() == [True, False, True, False, False]
    errors, finite = errors_of(result, exact, room=4.0)
    assert finite.tolist() == [True, False, True, True, False]
    subnormal = torch.tensor([3e-39, 3e-38], dtype=torch.float64)
    for room, first in ((1.0, 32.7), (4.0, 0.0)):
        errors, _ = errors_of(torch.zeros(2, dtype=torch.bfloat16), subnormal, room=room)
        assert errors.tolist() == [pytest.approx(first, rel=1e-2), pytest.approx(163, rel=1e-2)]


def test_budgets() -> None:
    assert budget("xielu", "bfloat16").ulp == 0.51
    assert budget("gelu", "float32").ulp == 4.0
    assert parameter_budget("xielu", "float32").ulp == 4.0
    assert parameter_budget("gelu", "bfloat16") == budget("gelu", "bfloat16")


def test_a_verdict_is_plain_data_and_makes_tables() -> None:
    first = _judged(F.relu, dtypes=SHORT)
    second = judge(
        catalog.RELU, implementation(torch.nn.ReLU, "torch"), dtypes=SHORT, quantities=["function"]
    )
    assert json.loads(json.dumps(to_plain(first)))["spec"] == "relu"
    found = tables([first, second], ["function", "slope"])
    assert [table.title.split(":")[0] for table in found] == [
        "bfloat16, function",
        "bfloat16, slope",
        "float16, function",
        "float16, slope",
    ]
    assert found[0].header == ("x", "inputs", "theirs", "torch")
    assert all(row[2] == row[3] == "0/0/0" for row in found[0].rows)
    assert all(row[3] == "-" for row in found[1].rows)
    assert summary([first, second]).rows[0] == ("bfloat16", "function", "0", "0")


def test_rounding_of_a_knot_may_choose_either_side_of_a_jump() -> None:
    spec = Spec(
        name="thirds",
        title="",
        pieces=(Piece(where="x > 1/3", formula="2"), Piece(where="x <= 1/3", formula="1")),
        continuity="jump",
        source="",
    )
    third = torch.tensor(1 / 3).double()  # the float32 value, a little above the knot

    def one_side(x: Tensor) -> Tensor:
        return torch.where(x.double() > third, 2 * x.double() - 1 / 3, x.double()).to(x.dtype)

    def late(x: Tensor) -> Tensor:
        above = x.double() > third + 1e-3
        return torch.where(above, 2 * x.double() - 1 / 3, x.double()).to(x.dtype)

    for function, right in ((one_side, True), (late, False)):
        verdict = judge(spec, FunctionImplementation("theirs", function), count=2000)
        slopes = [told for told in verdict.problems if "slope" in told]
        assert (not slopes) == right, verdict.problems
