"""Families of gradients: what they propose, what is refused and why."""

from __future__ import annotations

import pytest

from stamm.activations import catalog
from stamm.activations.spec import Piece
from stamm.activations.spec.command_line import parse_parameter
from stamm.activations.spec.expressions import evaluate, parse
from stamm.base.errors import ConfigError
from stamm.search import families
from stamm.search.families import Expanded, Integrals, Linear, Listed, Pieces, Proposal, proposals

PARAMETERS = ("alpha_p=0.8:softplus", "alpha_n=0.8:softplus>beta", "beta=0.5:fixed")


def _slope(proposal: Proposal, x: float) -> float:
    spec = proposal.spec
    assert spec is not None
    piece = next(p for p in spec.pieces if "x > 0" not in p.where or x > 0)
    return evaluate(parse(piece.formula), {**spec.initial_values(), "x": x})


def test_every_right_piece_is_joined_to_every_left_one() -> None:
    family = Pieces(
        right=("2*alpha_p*x + beta", "tanh(x)"),
        left=("alpha_n*expm1(x) + beta", "x*exp(x)"),
        parameters=PARAMETERS,
    )
    found = {one.name: one for one in proposals((family,))}
    assert list(found) == ["pieces_0_0", "pieces_0_1", "pieces_1_0", "pieces_1_1"]
    assert [p.name for p in found["pieces_0_0"].spec.parameters] == ["alpha_p", "alpha_n", "beta"]  # type: ignore[union-attr]
    assert found["pieces_1_1"].spec is not None and not found["pieces_1_1"].spec.parameters
    # Only pieces that meet at 0 make a continuous gradient.
    assert "the gradient jumps at x = 0" in found["pieces_0_1"].refused
    assert "the gradient jumps at x = 0" in found["pieces_1_0"].refused
    assert _slope(found["pieces_0_0"], 2.0) == pytest.approx(2 * 0.8 * 2 + 0.5)


def test_a_parameter_that_only_bounds_another_is_declared() -> None:
    parameters = ("gamma=0.1:fixed", "alpha=0.8:softplus>gamma", "unused=1:identity")
    (only,) = proposals((Pieces(right=("alpha*x",), left=("x",), parameters=parameters),))
    assert only.spec is not None
    assert [p.name for p in only.spec.parameters] == ["gamma", "alpha"]


def test_sums_of_every_subset_of_the_basis() -> None:
    found = proposals((Linear(basis=("1", "x", "tanh(x)"), terms=(2, 3)),))
    assert [one.name for one in found] == [
        "linear_0_1", "linear_0_2", "linear_1_2", "linear_0_1_2",
    ]  # fmt: skip
    assert _slope(found[3], 3.0) == pytest.approx(0.5 * (1 + 3.0 + 0.995054753686))


@pytest.mark.parametrize("x", [-1.5, 0.25])
def test_an_integral_has_the_entry_as_its_gradient(x: float) -> None:
    (only,) = proposals((Integrals(of=("softplus",), beta=0.25),))
    expected = evaluate(parse("log(1 + exp(x))"), {"x": x})
    assert _slope(only, x) == pytest.approx(0.8 * expected + 0.25)


@pytest.mark.parametrize("entry", ["pau", "softplus_saturated"])
def test_an_integral_of_an_entry_in_the_spelling_of_sympy(entry: str) -> None:
    (only,) = Integrals(of=(entry,)).proposals()
    assert only.spec is not None, only.refused


@pytest.mark.parametrize("entry", ["thresholded_relu", "hard_shrink", "clipped_relu_zero"])
def test_an_entry_that_jumps_is_refused_because_of_its_jump(entry: str) -> None:
    (only,) = Integrals(of=(entry,)).proposals()
    assert "declared continuous, but the gradient jumps at" in only.refused
    assert "names no parameter" not in only.refused


def test_the_names_of_sympy_are_those_of_the_language() -> None:
    formula = "absolute(x) + signum(x - E) + Abs(x)"
    assert families._in_language(formula) == "abs(x) + sign(x - exp(1)) + abs(x)"
    assert families._in_language("x*(1+x)") == "x*(1+x)"


def test_a_parameter_that_only_a_knot_names_is_declared() -> None:
    pieces = (Piece(where="x > theta", formula="1"), Piece(where="x <= theta", formula="1"))
    found = families._proposal("knot", pieces, [parse_parameter("theta=1:identity")])
    assert found.spec is not None
    assert [p.name for p in found.spec.parameters] == ["theta"]


def test_what_repeats_a_candidate_is_refused() -> None:
    found = proposals((Expanded(of=("silu",)), Listed(activations=("xsilu",))))
    assert found[0].spec is not None
    assert found[0].spec.content_hash == catalog.get("xsilu").content_hash
    assert found[1].refused == "is the same as expanded_silu"


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (lambda: Integrals(of=("eluu",)), "'eluu' is not a known activation"),
        (lambda: Expanded(of=("swiglu",)), "swiglu has two inputs"),
        (lambda: Listed(activations=("geglu",)), "has two inputs"),
        (lambda: Linear(basis=("x", "x")), "has a function twice"),
        (lambda: Linear(basis=("x",), terms=(2,)), r"must lie in \[1, 1\]"),
        (lambda: Pieces(right=(), left=("x",)), "is empty"),
        (lambda: Pieces(right=("x",), left=("x",), parameters=("a",)), "does not declare"),
    ],
)
def test_bad_families_are_errors(family: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        family()  # type: ignore[operator]


def test_names_are_unique_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="two candidates are called 'linear_0'"):
        proposals((Linear(basis=("x",), terms=(1,)), Linear(basis=("tanh(x)",), terms=(1,))))
    monkeypatch.setattr(families, "LARGEST", 2)
    with pytest.raises(ConfigError, match="more than 2 candidates"):
        proposals((Linear(basis=("x", "1", "tanh(x)"), terms=(1,)),))


def test_a_formula_that_cannot_be_read_is_a_reason() -> None:
    (only,) = proposals((Pieces(right=("x +",), left=("x",)),))
    assert only.spec is None
    assert "x +" in only.refused
