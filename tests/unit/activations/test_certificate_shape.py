"""The graph: zeros, runs, bends, jumps, asymptotes and identities, with their proofs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import sympy
import test_certificate_bounds as bounded

from stamm.activations import catalog
from stamm.activations.catalog.core import (
    ATLU,
    GELU,
    RELU,
    RELU2,
    SILU,
    XGELU,
    XSILU,
)
from stamm.activations.catalog.xielu import XIELU, XIPRELU
from stamm.activations.certificates.bounds import asymptote
from stamm.activations.certificates.curve import CertifiedCurve, resolved, vanishes
from stamm.activations.certificates.shape import (
    bends_of,
    between_jumps,
    hot_spots,
    inverse_of,
    jumps_of,
    runs_of,
    sign_map,
    smoothness_of,
    zeros_of,
)
from stamm.activations.certificates.symmetry import everywhere, homogeneity, kind_of, parity
from stamm.activations.derivation.derive import derive
from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.spec.parameters import Parameter, Softplus

THRESHOLD = Parameter(name="t", initial=0.5, bijection=Softplus())
SHRINK = Spec(
    name="shrink",
    title="Soft threshold",
    pieces=(
        Piece(where="x < -t", formula="1"),
        Piece(where="-t <= x <= t", formula="0"),
        Piece(where="x > t", formula="1"),
    ),
    parameters=(THRESHOLD,),
    continuity="jump",
    source="a test",
)
HARD = Spec(
    name="hard",
    title="Hard threshold",
    pieces=(
        Piece(where="x < -1/2", formula="1"),
        Piece(where="-1/2 <= x <= 1/2", formula="0"),
        Piece(where="x > 1/2", formula="1"),
    ),
    continuity="jump",
    jumps=(Jump(at="-1/2", by="1/2"), Jump(at="1/2", by="1/2")),
    source="a test",
)


@pytest.mark.parametrize(
    ("curve", "zeros", "turns"),
    [
        (bounded.certified(XIELU), [-2.4324842769313, 0.0], [math.log(1 - 0.5 / 0.8)]),
        (bounded.certified(XIPRELU), [-0.625, 0.0], [-0.3125]),
        (bounded.certified(SILU), [0.0], [-1.27846454276107]),
        (bounded.certified(GELU), [0.0], [-0.75179152469356]),
        (bounded.certified(ATLU), [0.0], []),
        (bounded.certified(XSILU, alpha=0.2), [-math.log(6), 0.0], [-0.78913407208060]),
        (bounded.certified(XGELU, alpha=0.2), [-1.06757052387814], [-0.48334505802429]),
        (bounded.golu(), [0.0], [-0.56714329040978]),
        (
            bounded.certified(bounded.stated("3*x**2 - 1")),
            [-1.0, 0.0, 1.0],
            [-((1 / 3) ** 0.5), (1 / 3) ** 0.5],
        ),
    ],
    ids=["xielu", "xiprelu", "silu", "gelu", "atlu", "xsilu", "xgelu", "golu", "cubic"],
)
def test_every_zero_is_bracketed(
    curve: CertifiedCurve, zeros: list[float], turns: list[float]
) -> None:
    for order, expected, name in ((0, zeros, "f"), (1, turns, "f'")):
        found = zeros_of(sign_map(curve, order, strict=True), name)
        assert found["status"] == "proved", found
        at = [zero for zero in found["at"] if order == 1 or zero["low"] != 0.0 or 0.0 in expected]
        assert len(at) == len(expected)
        for zero, true in zip(at, expected, strict=True):
            assert zero["unique"]
            assert zero["low"] - 1e-13 <= true <= zero["high"] + 1e-13
            assert zero["high"] - zero["low"] < 4e-12


def test_runs_bends_and_inverse() -> None:
    slope = sign_map(bounded.certified(XIELU), 1, strict=True)
    assert [part["runs"] for part in runs_of(slope)["parts"]] == ["decreasing", "increasing"]
    inverse = inverse_of(slope, jumps=False)
    assert inverse["kind"] == "one bit"
    assert inverse["split"]["low"] <= math.log(3 / 8) <= inverse["split"]["high"]
    assert (
        inverse_of(sign_map(bounded.certified(ATLU), 1, strict=True), jumps=False)["kind"]
        == "monotone"
    )
    flat = inverse_of(sign_map(bounded.certified(RELU), 1, strict=True), jumps=False)
    assert flat["claim"] == "f is not invertible: it is constant on (-infinity, 0)"
    bends = bends_of(sign_map(bounded.certified(SILU), 2, strict=False), {}, [])
    assert [part["bends"] for part in bends["parts"]] == ["concave", "convex", "concave"]
    assert bends["parts"][1]["high"] == pytest.approx(2.399357280515, abs=1e-10)


def test_a_jump_of_the_gradient_bends_too() -> None:
    curve = bounded.certified(SHRINK)
    _, by_order = jumps_of(curve)
    assert by_order[1] == {-0.5: -1.0, 0.5: 1.0}
    bends = bends_of(sign_map(curve, 2, strict=False), by_order[1], [])
    told = [(part["low"], part["high"], part["bends"]) for part in bends["parts"]]
    assert told == [(None, 0.5, "concave"), (0.5, None, "linear")]
    relu = bounded.certified(RELU)
    convex = bends_of(sign_map(relu, 2, strict=False), jumps_of(relu)[1][1], [])
    assert convex["claim"] == "f is convex on the whole line"


def test_jumps_and_smoothness() -> None:
    jumps, by_order = jumps_of(bounded.certified(HARD))
    assert by_order[0] == {-0.5: 0.5, 0.5: 0.5} and jumps["status"] == "proved"
    assert smoothness_of(bounded.certified(HARD))["order"] == -1
    assert smoothness_of(bounded.certified(RELU))["order"] == 0
    assert smoothness_of(bounded.certified(XIELU))["claim"] == "f is C^1, not C^2"
    assert smoothness_of(bounded.certified(SILU))["claim"] == "f is C^infinity"
    assert jumps_of(bounded.certified(XIELU))[1] == {0: {}, 1: {}, 2: {0.0: 0.8}}


def test_a_double_zero_is_proved_to_be_alone() -> None:
    found = zeros_of(sign_map(bounded.certified(bounded.stated("2*x")), 0, strict=True), "f")
    assert found["status"] == "proved" and [z["low"] for z in found["at"]] == [0.0]


def test_conditioning() -> None:
    curve = bounded.certified(XIELU)
    spots = hot_spots(sign_map(curve, 0, strict=True), sign_map(curve, 1, strict=True))
    assert [(s["of"], round(s["near"], 4)) for s in spots["at"]] == [
        ("f", -2.4325),
        ("f'", -0.9808),
    ]


@pytest.mark.parametrize(
    ("curve", "side", "line", "kind"),
    [
        (bounded.certified(XIELU), -1, (-0.3, -0.8), "exponential"),
        (bounded.certified(SILU), -1, (0.0, 0.0), "exponential"),
        (bounded.certified(SILU), 1, (1.0, 0.0), "exponential"),
        (bounded.certified(GELU), 1, (1.0, 0.0), "gaussian"),
        (bounded.certified(ATLU), 1, (1.0, -1 / math.pi), "power"),
        (bounded.certified(XSILU, alpha=0.2), -1, (-0.2, 0.0), "exponential"),
        (bounded.certified(RELU), 1, (1.0, 0.0), "exact"),
        (bounded.certified(SHRINK), -1, (1.0, 0.5), "exact"),
        (bounded.golu(), -1, (0.0, 0.0), "doubly exponential"),
    ],
)
def test_asymptotes(curve: CertifiedCurve, side: int, line: tuple[float, float], kind: str) -> None:
    found = asymptote(curve, side)
    assert found["status"] == "proved"
    assert (found["slope"], found["intercept"]) == pytest.approx(line, abs=1e-11)
    assert found["rate"]["kind"] == kind


def test_rates_and_missing_lines() -> None:
    assert asymptote(bounded.certified(ATLU), -1)["rate"]["power"] == -2.0
    assert asymptote(bounded.certified(GELU), -1)["rate"]["rate"] == 0.5
    assert (
        asymptote(bounded.certified(XIELU), 1)["claim"] == "f approaches no line far to the right"
    )
    odd = bounded.certified(bounded.stated("1 - 3*x**2*exp(-x**3)*0", ""))
    assert asymptote(odd, 1)["slope"] == 1.0


def test_homogeneity_and_kind() -> None:
    assert homogeneity(bounded.certified(RELU))["degree"] == 1.0
    assert homogeneity(bounded.certified(RELU2))["degree"] == 2.0
    for spec in (XIELU, SILU, SHRINK):
        assert homogeneity(bounded.certified(spec))["degree"] is None
    kinds = {
        spec.name: kind_of(bounded.certified(spec))["kind"] for spec in (XIELU, XIPRELU, RELU, GELU)
    }
    assert kinds == {
        "xielu": "piecewise analytic",
        "xiprelu": "piecewise polynomial",
        "relu": "piecewise linear",
        "gelu": "analytic",
    }


def _two(right: str, left: str, by: str, *parameters: Parameter) -> Spec:
    """f with one gradient on each side of 0, where it jumps."""
    return Spec(
        name="tried",
        title="Tried",
        pieces=(Piece(where="x > 0", formula=right), Piece(where="x <= 0", formula=left)),
        parameters=parameters,
        continuity="jump",
        jumps=(Jump(at="0", by=by),),
        source="a test",
    )


@pytest.mark.parametrize(
    ("gradient", "by", "runs"),
    [
        ("1", "-1", ["increasing", "increasing"]),
        ("0", "2", ["constant", "constant"]),
        ("1", "2", ["increasing"]),
        ("-1", "2", ["decreasing", "decreasing"]),
    ],
)
def test_runs_end_at_jumps_that_do_not_continue_them(
    gradient: str, by: str, runs: list[str]
) -> None:
    curve = bounded.certified(_two(gradient, gradient, by))
    cut = between_jumps(sign_map(curve, 1, strict=True), jumps_of(curve)[1][0])
    assert [part["runs"] for part in runs_of(cut)["parts"]] == runs
    if gradient == "0":
        assert "constant on (-infinity, 0)" in inverse_of(cut, jumps=True)["claim"]


def test_a_jump_beside_the_end_of_a_run_makes_no_empty_one() -> None:
    curve = bounded.certified(
        catalog.get("fatrelu_glu")
    )  # it jumps at 0.01, which no double equals
    cut = between_jumps(sign_map(curve, 1, strict=True), jumps_of(curve)[1][0])
    assert [part["runs"] for part in runs_of(cut)["parts"]] == ["constant", "increasing"]


def test_a_jump_is_not_convex_for_any_parameter_value() -> None:
    parameter = Parameter(name="a", initial=0.8, bijection=Softplus())
    broken = _two("a", "0", "1", parameter)
    claims = [
        {fact["claim"] for fact in everywhere(derive(spec))}
        for spec in (replace(broken, jumps=()), broken)
    ]
    assert "f is convex" in claims[0] and "f is convex" not in claims[1]


def test_a_knot_between_equal_formulas_leaves_f_homogeneous() -> None:
    pieces = tuple(
        Piece(where=where, formula=formula)
        for where, formula in (("x > 1", "2*x"), ("0 < x <= 1", "2*x"), ("x <= 0", "0"))
    )
    spec = Spec(name="tried", title="Tried", pieces=pieces, source="a test")
    assert homogeneity(bounded.certified(spec))["degree"] == 2.0
    broken = replace(spec, jumps=(Jump(at="1", by="1"),))
    assert homogeneity(bounded.certified(broken))["degree"] is None


def test_parity() -> None:
    for spec in (SILU, GELU, ATLU, RELU, XSILU):
        found = parity(bounded.certified(spec))
        assert found["linear_odd_part"]["status"] == "proved", spec.name
        assert found["linear_odd_part"]["holds"] and found["linear_odd_part"]["slope"] == 0.5
        assert not found["odd"]["holds"] and not found["even"]["holds"]
    assert parity(bounded.certified(SHRINK))["odd"] == {
        "claim": "f(-x) = -f(x) for all x",
        "status": "proved",
        "holds": True,
    }
    assert not parity(bounded.golu())["linear_odd_part"]["holds"]
    assert parity(bounded.certified(bounded.stated("2*x")))["even"]["holds"]


def test_facts_for_all_parameter_values() -> None:
    xielu = {fact["claim"] for fact in everywhere(derive(XIELU))}
    assert {"f(0) = 0", "f'(0) = beta", "f' has no jump at x = 0"} <= xielu
    xsilu = {fact["claim"] for fact in everywhere(derive(XSILU))}
    assert "f'(0) = 1/2" in xsilu
    assert "f(x) - f(-x) = x: E f' = 1/2 under every symmetric input" in xsilu
    shrink = {fact["claim"] for fact in everywhere(derive(SHRINK))}
    assert "f has no jump at x = t" in shrink
    assert not any(claim.startswith("f'(") or "f' has" in claim for claim in shrink)
    assert everywhere(derive(SILU)) == []


@pytest.mark.parametrize(
    ("gradient", "jumps", "order"),
    [
        ("exp(-abs(x))", "f'' jumps by -2 at 0", 1),
        ("sign(x)*exp(-x**2)", "f' jumps by 2 at 0", 0),
        ("x*abs(x - 1)", "f'' jumps by 2 at 1", 1),
    ],
)
def test_a_function_read_from_a_table_has_the_kinks_of_its_gradient(
    gradient: str, jumps: str, order: int
) -> None:
    piece = Piece(where="all x", formula=gradient)
    curve = bounded.certified(
        Spec(name="tried", title="Tried", pieces=(piece,), continuity="jump", source="a test")
    )
    assert jumps_of(curve)[0]["claim"] == jumps
    assert smoothness_of(curve)["order"] == order
    assert kind_of(curve)["claim"] == "f is piecewise analytic, in 2 pieces"


def test_kinks_of_a_gradient_that_cannot_be_located_leave_smoothness_open() -> None:
    curve = bounded.certified(bounded.stated("abs(x**2 - 1)"))
    assert curve.folded
    sections = (jumps_of(curve)[0], smoothness_of(curve), kind_of(curve))
    assert {section["status"] for section in sections} == {"not proved"}


def test_a_jump_is_told_from_rounding() -> None:
    root, tiny = sympy.sqrt(5), sympy.exp(-2000)
    assert vanishes((1 + root) ** 3 - 16 - 8 * root)
    assert resolved(1 - sympy.tanh(sympy.Integer(2000))) == 0.0 and not vanishes(tiny)
    assert resolved(sympy.Rational(1, 3) + tiny) == pytest.approx(1 / 3)
    assert resolved(sympy.sin(1) ** 2 + sympy.cos(1) ** 2 - 1) is None


def test_pieces_that_agree_are_smooth_where_they_meet() -> None:
    curve = bounded.certified(catalog.get("squareplus"))
    assert jumps_of(curve)[0]["claim"] == "f, f' and f'' have no jump"
    assert smoothness_of(curve)["claim"] == "f is at least C^3"
