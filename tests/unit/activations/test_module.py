"""Modules: names, storage, copies, checkpoints, and bit equality with transformers."""

from __future__ import annotations

import copy
import io
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers.activations import XIELUActivation

from stamm.activations.catalog import ENTRIES, XIELU
from stamm.activations.module import Activation, GatedActivation, build_activation, xielu
from stamm.activations.module.shape_parameters import import_values
from stamm.activations.spec import Gated, Piece, Spec
from stamm.activations.spec.command_line import spec_from_arguments
from stamm.activations.spec.parameters import Identity, Parameter
from stamm.base.errors import ConfigError


@pytest.mark.parametrize("spec", ENTRIES, ids=lambda s: s.name)
def test_built_from_its_name(spec: Spec) -> None:
    module = build_activation(spec.name)
    assert type(module) is (GatedActivation if isinstance(spec.arity, Gated) else Activation)
    assert list(module.state_dict()) == [p.name for p in spec.trainable]
    for parameter in module.parameters():
        assert parameter.shape == (1,) and parameter.dtype == torch.float32
    assert module.effective() == pytest.approx(spec.initial_values(), rel=1e-7)


def test_state_dict_is_raw_under_checkpoint_names() -> None:
    state = xielu().state_dict()
    assert list(state) == ["alpha_p", "alpha_n"]
    assert state["alpha_p"].item() == pytest.approx(0.2033823208, abs=1e-7)
    assert state["alpha_n"].item() == pytest.approx(-1.0502256128, abs=1e-7)
    assert list(build_activation("xatglu").state_dict()) == ["alpha"]


def test_layers_share_nothing() -> None:
    first, second = build_activation("xielu"), build_activation("xielu")
    first.load_values({"alpha_p": 3.0}, raw=False)
    assert second.effective()["alpha_p"] == pytest.approx(0.8)
    assert first.alpha_p is not second.alpha_p


def test_load_values() -> None:
    module = xielu()
    module.load_values({"alpha_p": 166.0, "alpha_n": 41.25}, raw=False)
    assert module.effective() == {"alpha_p": 166.0, "alpha_n": 41.25, "beta": 0.5}
    module.load_values({"alpha_n": -1.5}, raw=True)
    assert module.raw() == {"alpha_p": 166.0, "alpha_n": -1.5}
    module.reset_parameters()
    assert module.effective()["alpha_p"] == pytest.approx(0.8)
    with pytest.raises(ConfigError, match=r"alpha_n = 0.25 is not above 0.5"):
        module.load_values({"alpha_n": 0.25}, raw=False)
    with pytest.raises(ConfigError, match="'alpha' is not a trainable parameter of xielu"):
        module.load_values({"alpha": 0.25}, raw=True)
    assert module.effective()["alpha_n"] == pytest.approx(0.8)


@pytest.mark.parametrize("cast", ["bfloat16", "half"])
def test_parameters_stay_float32_when_the_model_is_cast(cast: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), xielu())
    activation = model[1]
    assert isinstance(activation, Activation)
    activation.load_values({"alpha_p": 0.2345678}, raw=True)
    before = activation.get_parameter("alpha_p").item()
    model = getattr(model, cast)()
    assert model[0].weight.dtype != torch.float32
    kept = activation.get_parameter("alpha_p")
    assert kept.dtype == torch.float32 and kept.item() == before
    y = model(torch.randn(2, 4, dtype=model[0].weight.dtype))
    assert y.dtype == model[0].weight.dtype
    assert build_activation("xielu", dtype=torch.bfloat16).alpha_p.dtype == torch.float32
    assert xielu().double().alpha_p.dtype == torch.float64


def test_meta_device_then_reset() -> None:
    with torch.device("meta"):
        module, compat = xielu(), xielu(compat="eps", dtype=torch.bfloat16)
    assert module.alpha_p.is_meta and "alpha" not in repr(module)
    for built in (module, compat):
        built.to_empty(device="cpu")
        built.reset_parameters()
    assert module.effective() == pytest.approx(XIELU.initial_values(), rel=1e-7)
    assert compat.get_buffer("eps").item() == torch.tensor(-1e-6, dtype=torch.bfloat16).item()
    assert compat.get_buffer("beta").item() == 0.5


def test_copies_and_pickles_compute_the_same() -> None:
    module = xielu()
    module.load_values({"alpha_p": 2.0}, raw=False)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    x = torch.randn(16)
    for other in (copy.deepcopy(module), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x), module(x))
        assert other.alpha_p is not module.alpha_p
    assert repr(module) == "Activation(xielu, alpha_p=2, alpha_n=0.8, beta=0.5)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_compat_eps_equals_transformers_bit_for_bit(dtype: torch.dtype) -> None:
    theirs, ours = XIELUActivation(dtype=dtype), xielu(compat="eps", dtype=dtype)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for scale in (1.0, 30.0):
        with torch.no_grad():
            theirs.alpha_p.mul_(scale)
            theirs.alpha_n.mul_(-scale)
        ours.load_state_dict(theirs.state_dict())
        generator = torch.Generator().manual_seed(4)
        magnitude = 10 ** (torch.rand(8, 2048, generator=generator) * 6 - 5)
        x = torch.where(torch.rand(8, 2048, generator=generator) < 0.3, magnitude, -magnitude)
        x[0, :4] = torch.tensor([0.0, -0.0, -1e-6, -5e-7])
        x = x.to(dtype)
        weight = torch.randn(8, 2048, generator=generator).to(dtype)
        found = []
        for module in (theirs, ours):
            module.zero_grad()
            leaf = x.clone().requires_grad_()
            y = module(leaf)
            y.backward(weight)
            found.append((y, leaf.grad, module.alpha_p.grad, module.alpha_n.grad))
        for a, b in zip(*found, strict=True):
            assert a.dtype == b.dtype == dtype
            assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
            assert torch.equal(torch.isnan(a), torch.isnan(b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_compat_starts_where_transformers_starts(dtype: torch.dtype) -> None:
    theirs, ours = XIELUActivation(dtype=dtype), xielu(compat="eps", dtype=dtype)
    near = torch.finfo(dtype).eps * 2
    for name, value in theirs.state_dict().items():
        assert ours.state_dict()[name].dtype == dtype
        assert torch.allclose(ours.state_dict()[name], value, rtol=near)
        assert ours.state_dict()[name].shape == value.shape


def test_exact_differs_from_compat_only_as_it_should() -> None:
    exact, eps = xielu(), xielu(compat="eps")
    x = torch.tensor([0.0], requires_grad=True)
    (right,) = torch.autograd.grad(exact(x).sum(), x)
    (shipped,) = torch.autograd.grad(eps(x).sum(), x)
    assert right.item() == 0.5
    assert shipped.item() == pytest.approx(-0.3, abs=1e-6)
    wide = torch.linspace(-20, 20, 4001)
    assert torch.allclose(exact(wide), eps(wide), rtol=1e-5, atol=2e-6)


def test_a_transformers_checkpoint_loads_into_the_exact_module() -> None:
    theirs = XIELUActivation(dtype=torch.bfloat16)
    model = nn.ModuleDict({"act_fn": xielu()})
    state = {f"act_fn.{k}": v for k, v in theirs.state_dict().items()}
    assert len(state) == 4
    for assign in (False, True):
        model.load_state_dict(state, assign=assign)
        loaded = model["act_fn"].get_parameter("alpha_p")
        assert loaded.item() == theirs.alpha_p.item()
        assert loaded.dtype == torch.float32
    state["act_fn.beta"] = torch.tensor(0.75)
    with pytest.raises(ConfigError, match=r"act_fn.beta = 0.75 in the checkpoint, but xielu fixes"):
        model.load_state_dict(state)
    del state["act_fn.beta"], state["act_fn.alpha_p"]
    with pytest.raises(RuntimeError, match="alpha_p"):
        model.load_state_dict(state)


def test_errors_of_building() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'swiglu'"):
        build_activation("swigluu")
    with pytest.raises(ConfigError, match=r"silu has no compat order 'eps'. Use one of: exact"):
        build_activation("silu", compat="eps")
    with pytest.raises(ConfigError, match=r"xielu has no compat order 'esp'. Use .*: exact, eps"):
        build_activation("xielu", compat="esp")
    with pytest.raises(ConfigError, match=r"torch.int64 is not a floating-point type"):
        build_activation("xielu", dtype=torch.int64)
    spec = spec_from_arguments(["all x: training*x"], ["training=1:identity"], name="mine")
    with pytest.raises(ConfigError, match="the parameter name 'training' is taken"):
        build_activation(spec)


@pytest.mark.parametrize(
    ("formula", "torch_name"),
    [("logistic(x)", "softplus"), ("1 - tanh(x)**2", "tanh"), ("logistic(x)*logistic(-x)", "")],
)
def test_user_specs_survive_far_out(formula: str, torch_name: str) -> None:
    known = getattr(nn.functional, torch_name or "sigmoid")
    start = float(known(torch.tensor(0.0, dtype=torch.float64)))
    height = "log(2)" if torch_name == "softplus" else repr(start)
    spec = spec_from_arguments([f"all x: {formula}"], name="mine", anchor=f"0={height}")
    x = torch.tensor([-1e30, -300.0, -20.0, -0.5, 0.0, 0.5, 20.0, 300.0, 1e30])
    assert torch.allclose(build_activation(spec)(x), known(x), rtol=1e-6, atol=0)


def test_a_scaled_exponential_keeps_its_digits() -> None:
    scale = Parameter(name="scale", initial=1.5, bijection=Identity())
    fixed = (Piece(where="x > 0", formula="x"), Piece(where="x <= 0", formula="exp(x/2) - 1"))
    moving = (Piece(where="x > 0", formula="x"), Piece(where="x <= 0", formula="exp(scale*x) - 1"))
    x = -torch.logspace(-6, 1, 200, dtype=torch.float64)
    for pieces, rate in ((fixed, 0.5), (moving, 1.5)):
        parameters = (scale,) if rate == 1.5 else ()
        spec = Spec(name="mine", title="", source="", pieces=pieces, parameters=parameters)
        single, double = (build_activation(spec)(x.to(d)) for d in (torch.float32, torch.float64))
        assert torch.allclose(single.double(), double, rtol=6e-7, atol=0)
        assert double[0].item() == pytest.approx(rate * 1e-12 / 2, rel=1e-5)


def test_a_form_that_overflows_is_refused() -> None:
    spec = spec_from_arguments(["all x: exp(x)/(1 + exp(x))**2"], name="mine")
    with pytest.raises(ConfigError, match=r"no form of .* is known that survives x = 1000"):
        build_activation(spec)


def test_a_user_spec_is_derived_in_place() -> None:
    spec = spec_from_arguments(["x > 0: 1", "x <= 0: exp(x)"], name="elu")
    x = torch.linspace(-5, 3, 101, dtype=torch.float64)
    assert torch.allclose(build_activation(spec)(x), nn.functional.elu(x), rtol=1e-14)
    assert build_activation(replace(spec, name="again"))(x).shape == x.shape


@pytest.mark.parametrize("name", ["xielu", "swiglu"])
@pytest.mark.parametrize("rows", [3, 4000])
def test_a_frozen_activation_is_the_same_function_of_the_parameters_it_had(
    name: str, rows: int
) -> None:
    module = build_activation(name, precision="fast")
    inputs = torch.randn(1 if name == "xielu" else 2, rows, 24)
    frozen = module.frozen()
    expected = module(*inputs)
    torch.testing.assert_close(frozen(*inputs), expected, rtol=1e-5, atol=1e-6)
    assert not frozen(*inputs).requires_grad
    if name == "xielu":
        module.load_values({"alpha_p": 3.0}, raw=False)
        torch.testing.assert_close(frozen(*inputs), expected, rtol=1e-5, atol=1e-6)


def test_a_stored_number_with_an_infinite_effective_value_is_not_loaded() -> None:
    spec = spec_from_arguments(["tanh(x/a)"], ["a=1:exp"])
    module = build_activation(spec)
    with pytest.raises(
        ConfigError, match=r"the effective value of a is inf at raw 1000\.0 \(a = exp"
    ):
        module.load_values({"a": 1000.0}, raw=True)
    assert module.get_parameter("a").item() == 0.0
    with pytest.raises(ConfigError, match=r"the effective value of a is inf at raw 1000\.0"):
        import_values(module, {"": {"a": 1000.0}}, raw=True)
    with torch.no_grad():
        module.get_parameter("a").fill_(1000.0)
    assert module.effective() == {"a": math.inf}
