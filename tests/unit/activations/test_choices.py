"""Words beyond the formula language become plain pieces, which are the stated gradient."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.expressions import evaluate, parse, parse_interval
from stamm.base.errors import ConfigError


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


PYTHON: dict[str, Any] = {
    **{name: getattr(math, name) for name in ("exp", "log", "tanh", "sqrt", "sin")},
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "ln": math.log,
    "tan": math.tan,
    "relu": lambda x: max(x, 0.0),
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "abs": abs,
    "max": max,
    "min": min,
    "clamp": lambda x, low, high: min(max(x, low), high),
    "where": lambda condition, chosen, otherwise: chosen if condition else otherwise,
}


def _gradient(spec: Spec, x: float) -> float:
    values = spec.initial_values()
    for piece in spec.pieces:
        ends = parse_interval(piece.where)
        low = -math.inf if ends.low is None else evaluate(parse(ends.low), values)
        high = math.inf if ends.high is None else evaluate(parse(ends.high), values)
        if low < x < high or (x == low and ends.low_closed) or (x == high and ends.high_closed):
            return evaluate(parse(piece.formula), {**values, "x": x})
    raise AssertionError(f"no piece holds {x}")


@pytest.mark.parametrize(
    ("formula", "pieces", "parameters"),
    [
        ("relu(x)", 2, ""),
        ("relu6(x)", 3, ""),
        ("min(exp(x), 1)", 2, ""),
        ("clamp(x, -1, 2)", 3, ""),
        ("relu(1 - abs(x))", 3, ""),
        ("relu(4 - x**2)", 3, ""),
        ("where(x > 0, 1, 0.1)", 2, ""),
        ("where(-1 <= x < 1, 1, 0.1*x)", 3, ""),
        ("where(x**2 >= 4, 1, 0)", 3, ""),
        ("where(sigmoid(x) > 1/2, 1, 0)", 2, ""),
        ("where(x > k, 1, 0)", 2, "k=0.5:identity"),
        ("max(a*x, 0)", 2, "a=0.7:softplus"),
        ("max(0, min(a, x))", 3, "a=0.7:softplus"),
        ("max(a, 1)*x", 1, "a=0.7:softplus"),
        ("max(x, 0.1*x, -1)", 3, ""),
        ("max(tanh(2*x), 1/2)", 2, ""),
        ("max(exp(x), 0)", 1, ""),
        ("relu(x)**2 + min(0, x)", 2, ""),
        ("relu(relu(x) - 1)", 3, ""),
        ("min(3 - 2*exp(x), 1)", 2, ""),
        ("min(relu(x), relu(2 - x))", 4, ""),
        ("sigmoid(x) + silu(x) + gelu(x)", 1, ""),
        ("ln(3 + sin(x)) * tan(1)", 1, ""),
        ("where(k >= 1, tanh(x), 0)", 1, "k=1:fixed"),
        ("where(0 <= k <= 1, x, 5)", 1, "k=1:fixed"),
        ("min(relu(x), relu(x - 1))", 3, ""),
        ("max(x, x)", 1, ""),
        ("max(sqrt(abs(x)), 1)", 3, ""),
        ("max(abs(exp(x) - 1), 2)", 2, ""),
        ("min(exp(x)**2, 1)", 2, ""),
        ("max(tanh(x)**2, 4)", 1, ""),
        ("max(abs(abs(x) - 2), 1)", 5, ""),
        ("where((x**2 - 4)**2 >= 4, 1, 0)", 5, ""),
        ("max(abs(abs(x) - a), 1)", 5, "a=1.7:softplus>1"),
    ],
)
def test_a_stated_gradient_is_what_python_computes(
    formula: str, pieces: int, parameters: str
) -> None:
    spec = spec_from_arguments([formula], [parameters] if parameters else [], continuity="jump")
    assert len(spec.pieces) == pieces
    assert "max" not in repr(spec.pieces) and "where(" not in repr(spec.pieces)
    chance = random.Random(formula)
    points = [chance.uniform(-8, 8) for _ in range(200)] + [-2.0, -1.0, 0.0, 0.5, 1.0, 2.0]
    code = compile(formula, "formula", "eval")
    for x in points:
        expected = eval(code, {**PYTHON, **spec.initial_values(), "x": x})  # of this file's texts
        assert _gradient(spec, x) == pytest.approx(expected, rel=1e-12, abs=1e-12), x


@pytest.mark.parametrize("value", [0.5, 4.0, 31.0])
def test_a_choice_between_parameters_holds_on_the_range_that_is_judged(value: float) -> None:
    spec = spec_from_arguments(["max(a, 5)*x"], ["a=1:softplus"])
    (piece,) = spec.pieces
    assert evaluate(parse(piece.formula), {"a": value, "x": 2.0}) == 2 * max(value, 5)


def test_words_do_not_change_the_identity() -> None:
    split = spec_from_arguments(["relu(x)"])
    assert split.content_hash == spec_from_arguments(["x <= 0: 0", "x > 0: x"]).content_hash
    assert spec_from_arguments(["x^2"]).content_hash == spec_from_arguments(["x ** 2"]).content_hash


@pytest.mark.parametrize(
    ("formula", "parameters", "said"),
    [
        ("max(a*x, 0)", "a=0.5:identity", "Hold the parameter positive"),
        ("max(sin(x), 0)", "", "Write the pieces"),
        ("x > 0: min(x, k)", "k=0.5:identity", "may cross another one"),
        ("2x", "", "Write products as 2*x"),
        ("2(x + 1)", "", "Write products as 2*(x + 1)"),
        ("x x", "", "Write products as 2*x"),
        ("(x + 1)(x - 1)", "", "Write products as 2*(x + 1)"),
        ("x(1 - x)", "", "Write a product as x*(1 - x)"),
        ("sgimoid(x)", "", "Did you mean 'sigmoid'"),
        ("where(x, 1, 0)", "", "Write where(x > 0, x, 0)"),
        ("where(x > 0 and x < 1, 1, 0)", "", "which is not a comparison"),
        ("where(a > b, x, 0)", "a=0.5:softplus", "'b'"),
        ("min(x)", "", "takes 2 arguments or more"),
        ("where(x > 0, 1, 0.1)", "", "jumps at x = 0"),
        ("max(sqrt(x), 1)", "", "which has no value at x ="),
        ("max(log(x), -1)", "", "which has no value at x ="),
        ("where(sqrt(x) < 2, 1, 0)", "", "which has no value at x ="),
        ("where(log(-a) > 0, x, 5)", "a=0.5:softplus", "where log(-a) has no value"),
        ("max(x/0, 1)", "", "changes sides where 1 / 0"),
        ("where(a > 5, x, 0)", "a=1:softplus", "compares parameters that training moves"),
        ("clamp(x, a, 5)", "a=1:softplus", "may cross another one"),
        ("max(abs(abs(x) - a), 1)", "a=0.7:softplus", "that is solved only where"),
        ("x > 0", "", "not part of a formula"),
        ("0 < x < 1 < 2: 1", "", "does not state where the piece holds"),
    ],
)
def test_what_cannot_be_split_is_refused_with_what_to_write(
    formula: str, parameters: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        spec_from_arguments([formula], [parameters] if parameters else [])
    assert said in refused.value.line()


def test_a_flat_sum_of_many_terms_is_accepted() -> None:
    assert len(spec_from_arguments([" + ".join(["x/61"] * 61)]).pieces) == 1


def test_a_spec_in_python_takes_the_same_words() -> None:
    spec = Spec(
        name="mine", title="", source="", pieces=(Piece(where="all x", formula="max(0, x)"),)
    )
    assert [(p.where, p.formula) for p in spec.pieces] == [("x < 0", "0"), ("x >= 0", "x")]
