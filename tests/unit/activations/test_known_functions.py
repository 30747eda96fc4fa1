"""The rediscovery detector: known identities are found and proved, near ones measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stamm.activations import catalog
from stamm.activations.equivalence import Affine, Finding, rediscover
from stamm.activations.equivalence.compare import readable
from stamm.activations.equivalence.curves import evaluate_array, values_of
from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.spec.expressions import FUNCTIONS, evaluate, parse
from stamm.activations.spec.gates import expand, gated
from stamm.activations.spec.parameters import Fixed, Identity, Parameter, Softplus
from stamm.base.errors import ConfigError


def stated(
    name: str,
    gradient: str | dict[str, str],
    *parameters: Parameter,
    anchor: tuple[str, str] = ("0", "0"),
) -> Spec:
    pieces = {"all x": gradient} if isinstance(gradient, str) else gradient
    return Spec(
        name=name,
        title=name,
        pieces=tuple(Piece(where=where, formula=formula) for where, formula in pieces.items()),
        parameters=parameters,
        anchor=anchor,
        continuity="jump",
        source="test",
    )


def free(name: str, initial: float) -> Parameter:
    return Parameter(name=name, initial=initial, bijection=Identity())


def fixed(name: str, initial: float) -> Parameter:
    return Parameter(name=name, initial=initial, bijection=Fixed())


XIELU = catalog.get("xielu")
LOGISTIC = stated("sigmoid", "logistic(x)*logistic(-x)", anchor=("0", "1/2"))
TANH = stated("hyperbolic", "1 - tanh(x)**2")
SOFT = stated("soft", "logistic(x)", anchor=("0", "log(2)"))
ELU = stated("elu", {"x > 0": "1", "x <= 0": "exp(x)"})
ACON = stated(
    "acon",
    "(p1 - p2)*(logistic(beta*(p1 - p2)*x) + beta*(p1 - p2)*x*logistic(beta*(p1 - p2)*x)"
    "*logistic(-beta*(p1 - p2)*x)) + p2",
    free("p1", 1.25),
    free("p2", -0.25),
    free("beta", 1.0),
)
AGLU = stated(
    "aglu",
    "(1 + lam*exp(-kappa*x))**(-1/lam)*(1 + kappa*x*exp(-kappa*x)/(1 + lam*exp(-kappa*x)))",
    Parameter(name="lam", initial=0.5, bijection=Softplus()),
    Parameter(name="kappa", initial=0.8, bijection=Softplus()),
)
ONE_AGLU = stated("aglu_one", AGLU.pieces[0].formula, fixed("lam", 1.0), fixed("kappa", 1.0))
APTX = "gamma*(alpha + tanh(beta*x)) + gamma*beta*x*(1 - tanh(beta*x)**2)"
KNOWN = (catalog.SILU, catalog.GELU, catalog.RELU, LOGISTIC, TANH, SOFT, ELU)


def aptx(*numbers: float) -> Spec:
    names = ("alpha", "beta", "gamma")
    return stated("aptx", APTX, *map(fixed, names, numbers))


def only(spec: Spec, *known: Spec) -> Finding:
    (finding,) = rediscover(spec, among=known)
    return finding


def test_the_same_spec_is_known_by_its_hash() -> None:
    again = stated("mine", "logistic(x)", anchor=("0", "log(2)"))
    finding = only(again, *KNOWN)
    assert (finding.name, finding.kind) == ("soft", "same spec")
    assert finding.sentence("mine") == "mine is the spec of soft: the content hashes are equal."


def test_aptx_is_silu_and_scaled_silu() -> None:
    same = only(aptx(1, 0.5, 0.5), *KNOWN)
    assert (same.name, same.kind, same.map) == ("silu", "same function", Affine())
    twice = only(aptx(1, 1, 0.5), *KNOWN)
    assert (twice.kind, twice.map) == ("affine map of", Affine(input_scale=2, output_scale=0.5))
    assert twice.sentence("aptx") == "aptx is an affine map of silu: aptx(x) = 1/2*silu(2*x)."


def test_aglu_contains_silu() -> None:
    assert only(ONE_AGLU, *KNOWN).name == "silu"
    back = only(catalog.SILU, AGLU)
    assert back.kind == "same function"
    assert back.parameters == {"lam": 1.0, "kappa": 1.0}
    assert back.sentence("silu") == "silu is the function aglu, with lam = 1, kappa = 1."


def test_a_parameter_that_the_known_function_keeps_fixed_is_named() -> None:
    pieces = {"x > 0": "2*alpha_p*x + beta", "x <= 0": "fall*expm1(x) + beta*exp(x)"}
    beta = Parameter(name="beta", initial=0.5, bijection=Softplus())
    finding = only(
        stated("free_beta", pieces, free("alpha_p", 0.8), free("fall", 0.3), beta), XIELU
    )
    assert (finding.kind, finding.always, finding.freed) == ("same function", True, ("beta",))
    assert finding.sentence().endswith("beta = 1/2. Fixed in xielu, trained here: beta.")
    pieces = {"x > 0": "2*alpha_p*x + 1/2", "x <= 0": "fall*expm1(x) + exp(x)/2"}
    assert only(stated("tied", pieces, free("alpha_p", 0.8), free("fall", 0.3)), XIELU).freed == ()


def test_golu_is_the_limit_of_aglu_at_the_edge_of_its_domain() -> None:
    # Newton's steps cross lam = 0, where log(lam) is not real.
    golu = expand(catalog.get("golu"), of="self_gated", name="expanded", title="")
    finding = only(golu, catalog.get("aglu"))
    assert abs(finding.parameters["lam"]) < 1e-30


def test_xsilu_is_a_form_of_acon() -> None:
    # xSiLU(a) = ACON-C(1 + a, -a, 1/(1 + 2a)); here a = 1/4.
    two_thirds = stated(
        "acon_at", ACON.pieces[0].formula, *map(fixed, ("p1", "p2", "beta"), (1.3, -0.3, 0.625))
    )
    finding = only(two_thirds, catalog.XSILU)
    assert finding.kind == "same function"
    assert finding.parameters["alpha"] == pytest.approx(0.3, rel=1e-15)
    whole = only(catalog.XSILU, ACON)
    assert whole.kind in ("same function", "affine map of")
    assert whole.always  # at alpha = 0 and at another value


def test_acon_is_an_affine_map_of_silu_for_all_its_parameters() -> None:
    finding = only(ACON, catalog.SILU)
    assert finding.kind == "affine map of"
    assert finding.always
    assert finding.map.formula("silu") == "silu(3/2*x) - 1/4*x"


def test_what_holds_at_the_start_only_is_said_to() -> None:
    leaky = stated("prelu", {"x > 0": "1", "x <= 0": "slope"}, free("slope", 0.0))
    silu = catalog.SILU.pieces[0].formula
    swish_like = stated("swishy", f"{silu} + share*logistic(x)", free("share", 0.0))
    assert only(leaky, catalog.RELU).always  # any slope is a line and a rectifier
    finding = only(swish_like, catalog.SILU)
    assert (finding.kind, finding.always) == ("same function", False)
    assert finding.sentence().endswith("Seen at the initial parameter values only.")


def test_gates_are_tanh_and_tanh_is_a_gate() -> None:
    tempered = stated("tempered", "s*t*logistic(t*x)*logistic(-t*x)", fixed("s", 2), fixed("t", 2))
    first, second = rediscover(tempered, among=KNOWN)
    assert (first.name, first.kind) == ("hyperbolic", "same function")
    assert second.map == Affine(input_scale=2, output_scale=2, constant=-1)
    assert second.map.formula("sigmoid") == "2*sigmoid(2*x) - 1"
    gate = stated("tanh_gate", "(1 - tanh(x)**2)/2", anchor=("0", "1/2"))
    assert rediscover(gate, among=[LOGISTIC])[0].map == Affine(input_scale=2)


def test_softplus_with_a_sharpness() -> None:
    sharp = stated(
        "sharp",
        "logistic(beta*x)",
        Parameter(name="beta", initial=1.7, bijection=Softplus()),
        anchor=("0", "log(2)/beta"),
    )
    finding = only(sharp, *KNOWN)
    assert finding.always
    assert finding.map.formula("soft") == "10/17*soft(17/10*x)"


def test_near_is_measured_and_not_called_equal() -> None:
    quick = stated("quick_gelu", "logistic(1.702*x) + 1.702*x*logistic(1.702*x)*logistic(-1.702*x)")
    assert [f.name for f in rediscover(quick, among=[catalog.GELU])] == []
    finding = rediscover(quick, among=[catalog.GELU], epsilon=0.02)[0]
    assert finding.kind == "within epsilon of"
    assert finding.distance == pytest.approx(0.0104, abs=2e-4)
    assert "within 0.0104 (relative L2 distance under N(0, 1)" in finding.sentence("quick_gelu")
    assert (
        rediscover(quick, among=[catalog.SILU])[0].map.formula("silu") == "500/851*silu(851/500*x)"
    )


def test_xielu_is_nothing_else_but_its_other_values() -> None:
    others = (*KNOWN, catalog.RELU2, catalog.ATLU, catalog.XIPRELU, catalog.XGELU)
    assert rediscover(catalog.XIELU, among=others) == []
    moved = stated(
        "moved",
        {"x > 0": "1.2*x + 0.3", "x <= 0": "0.9*(exp(x) - 1) + 0.3"},
    )
    finding = only(moved, *others, catalog.XIELU)
    assert finding.kind == "same function"
    assert finding.parameters == {"alpha_p": 0.6, "alpha_n": 0.9, "beta": 0.3}


def test_the_negative_branch_of_xielu_with_a_tangent_is_an_elu() -> None:
    branch = stated("branch", {"x > 0": "0.5", "x <= 0": "0.8*(exp(x) - 1) + 0.5"})
    assert [f.name for f in rediscover(branch, among=KNOWN)] == ["elu"]
    assert only(branch, ELU).map == Affine(output_scale=0.8, linear=-0.3)


def test_knots_are_found_where_they_are() -> None:
    moved = stated("moved", {"x > sqrt(2)": "3", "x <= sqrt(2)": "1"}, anchor=("sqrt(2)", "1"))
    finding = only(moved, catalog.RELU)
    assert finding.kind == "affine map of"
    assert finding.map.input_shift == -(2**0.5)
    assert finding.map.output_scale == 2
    assert finding.map.constant == pytest.approx(1 - 2**0.5, abs=1e-15)
    assert finding.map.formula("relu") == "2*relu(x - sqrt(2)) + x - 0.414214"
    almost = stated("almost", {"x > 1e-7": "1", "x <= 1e-7": "0"}, anchor=("1e-7", "0"))
    assert only(almost, catalog.RELU).map.input_shift == -1e-7


def test_jumps_belong_to_the_function() -> None:
    pieces = {"x <= 0": "0", "0 < x <= 3": "1", "x > 3": "0"}
    cut = replace(stated("cut", pieces), jumps=(Jump(at="3", by="-3"),))
    narrow = {"x <= 0": "0", "0 < x <= 3/2": "1", "x > 3/2": "0"}
    doubled = replace(stated("doubled", narrow), jumps=(Jump(at="3/2", by="-3/2"),))
    again = replace(cut, name="again")
    assert rediscover(again, among=[cut])[0].kind == "same spec"
    assert only(doubled, cut).kind == "affine map of"
    without = stated("flat", pieces)
    assert rediscover(without, among=[cut]) == []


def test_two_inputs_are_compared_with_two_inputs() -> None:
    mine = gated(aptx(1, 0.5, 0.5), order=2, name="mine", title="")
    assert next(f.name for f in rediscover(mine, among=catalog.ENTRIES)) == "swiglu"
    assert rediscover(mine, among=KNOWN) == []


def test_a_straight_line_is_no_rediscovery() -> None:
    assert rediscover(stated("line", "1"), among=KNOWN) == []


def test_expanding_keeps_an_affine_map_of_the_base() -> None:
    wide = expand(catalog.GELU, of="self_gated", name="wide", title="")
    assert only(wide, catalog.GELU).always


def test_curves_integrate_what_is_stated() -> None:
    points = np.array([3.7, -2.0, 0.0, -9.5, 0.01])
    found = values_of(catalog.SILU, points, {})
    assert found == pytest.approx(points / (1 + np.exp(-points)), abs=1e-12)
    arguments = np.array([-0.9, -0.2, 0.4, 0.95])
    for name, function in FUNCTIONS.items():
        inside = abs(arguments) if name in ("log", "sqrt") else arguments
        found = evaluate_array(parse(f"{name}(x)"), {"x": inside})
        assert found == pytest.approx([function(x) for x in inside.tolist()], rel=1e-14), name
    tree = parse("-2*x**3/(a - pi) + 1.5")
    wanted = [evaluate(tree, {"x": x, "a": 0.3}) for x in arguments.tolist()]
    assert evaluate_array(tree, {"x": arguments, "a": 0.3}) == pytest.approx(wanted, rel=1e-14)


def test_numbers_are_written_to_be_read() -> None:
    assert [readable(v) for v in (0.0, -0.5, 1.702, 2**0.5, -(2**-0.5), np.pi / 2)] == [
        "0",
        "-1/2",
        "851/500",
        "sqrt(2)",
        "-sqrt(2)/2",
        "pi/2",
    ]
    assert readable(0.123456789) == "0.123457"
    assert Affine(output_scale=-1, linear=1, constant=-0.25).formula("g") == "-g(x) + x - 1/4"


def test_a_whole_catalogue_is_searched() -> None:
    new = stated("new", "logistic(x)*(1 + x*logistic(-x)) + 0.05*exp(-x**2/2)*(1 - x**2)")
    found = rediscover(new)
    assert all(f.kind == "within epsilon of" for f in found)


def test_epsilon_is_a_distance() -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        rediscover(catalog.SILU, epsilon=-1.0)
