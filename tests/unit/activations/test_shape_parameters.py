"""The shapes of a whole model: found, never shared by accident, exported and imported exactly."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn

from stamm.activations.module import Activation, build_activation, xielu
from stamm.activations.module.shape_parameters import (
    check_not_shared,
    export_values,
    import_values,
    shape_modules,
    shape_parameters,
)
from stamm.base.errors import ConfigError


class _Layer(nn.Module):
    def __init__(self, act_fn: nn.Module) -> None:
        super().__init__()
        self.up_proj = nn.Linear(4, 8, bias=False)
        self.act_fn = act_fn


def _model(*activations: nn.Module) -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList(_Layer(act_fn) for act_fn in activations)
    return model


def test_only_trainable_shapes_are_listed() -> None:
    model = _model(xielu(), build_activation("gelu"), build_activation("xsilu_glu"))
    assert list(shape_modules(model)) == ["layers.0.act_fn", "layers.2.act_fn"]
    named = shape_parameters(model)
    assert list(named) == [
        "layers.0.act_fn.alpha_p",
        "layers.0.act_fn.alpha_n",
        "layers.2.act_fn.alpha",
    ]
    stored = dict(model.named_parameters())
    assert all(stored[name] is parameter for name, parameter in named.items())
    assert list(shape_parameters(xielu())) == ["alpha_p", "alpha_n"]
    assert shape_parameters(nn.Linear(2, 2)) == {}


def test_own_shapes_pass() -> None:
    check_not_shared(_model(xielu(), xielu(), copy.deepcopy(xielu())))


def test_one_module_in_two_layers_is_refused() -> None:
    shared = xielu()
    model = _model(shared, xielu(), shared)
    message = (
        r"layers\.0\.act_fn and layers\.2\.act_fn share one activation module.*"
        r"Build one activation for each layer"
    )
    with pytest.raises(ConfigError, match=message):
        check_not_shared(model)
    check_not_shared(model, allow=["layers.2.act_fn"])
    assert list(shape_modules(model)) == ["layers.0.act_fn", "layers.1.act_fn"]


def test_one_parameter_in_two_modules_is_refused() -> None:
    first, second = xielu(), xielu()
    second.alpha_n = first.alpha_n
    message = r"layers\.0\.act_fn and layers\.1\.act_fn share one shape parameter"
    with pytest.raises(ConfigError, match=message):
        check_not_shared(_model(first, second))


def test_a_whole_layer_used_twice_is_refused() -> None:
    model = _model(xielu())
    model.layers.append(model.layers[0])
    with pytest.raises(ConfigError, match=r"layers\.0\.act_fn and layers\.1\.act_fn share"):
        check_not_shared(model)


def test_what_is_not_trained_may_be_shared() -> None:
    gelu = build_activation("gelu")
    check_not_shared(_model(gelu, gelu))


def test_allowing_what_is_not_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'layers\.0\.act_fn' is named as shared, but"):
        check_not_shared(_model(xielu()), allow=["layers.0.act_fn"])


def _mixed() -> nn.Module:
    model = _model(
        xielu(), xielu(neurons=8), xielu(neurons=8, groups=2), build_activation("xsilu_glu")
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in shape_parameters(model).values():
            parameter.add_(2 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("raw", [True, False])
def test_values_return_to_the_same_bits(raw: bool) -> None:
    model = _mixed()
    values = json.loads(json.dumps(export_values(model, raw=raw)))
    assert isinstance(values["layers.0.act_fn"]["alpha_p"], float)
    assert len(values["layers.1.act_fn"]["alpha_n"]) == 8
    assert len(values["layers.2.act_fn"]["alpha_n"]) == 2
    other = _mixed()
    for parameter in shape_parameters(other).values():
        parameter.data.fill_(0.125)
    before = shape_parameters(other)
    import_values(other, values, raw=raw)
    for name, parameter in shape_parameters(other).items():
        assert parameter is before[name]
        assert torch.equal(parameter, shape_parameters(model)[name]), name


def test_effective_values_are_what_the_function_uses() -> None:
    model = _model(xielu(neurons=8))
    activation = model.layers[0].act_fn
    assert isinstance(activation, Activation)
    activation.load_values({"alpha_p": [0.1 * (i + 1) for i in range(8)]}, raw=False)
    found = export_values(model, raw=False)["layers.0.act_fn"]
    assert found["alpha_p"] == pytest.approx([0.1 * (i + 1) for i in range(8)], rel=1e-6)
    assert found["alpha_n"] == pytest.approx([0.8] * 8, rel=1e-6)


def _changed(values: Any, place: str, name: str, value: Any) -> Any:
    return {**values, place: {**values[place], name: value}}


@pytest.mark.parametrize(
    ("change", "raw", "message"),
    [
        (
            lambda v: _changed(v, "layers.1.act_fn", "alpha_n", 0.25),
            False,
            r"alpha_n = 0.25 is not above 0.5 .*\(layers.1.act_fn\).*raw=True",
        ),
        (
            lambda v: _changed(v, "layers.0.act_fn", "alpha_p", -1.5),
            False,
            r"alpha_p = -1.5 is not above 0.*\(layers.0.act_fn\).*raw=True",
        ),
        (
            lambda v: _changed(v, "layers.2.act_fn", "alpha_p", [1.0, 1.0, 1.0, -2.0]),
            False,
            r"alpha_p = -2.0 is not above 0.*\(entry 3 of layers.2.act_fn\)",
        ),
        (
            lambda v: _changed(v, "layers.2.act_fn", "alpha_p", [1.0, 2.0]),
            True,
            r"layers.2.act_fn.alpha_p holds 4 values, but 2 are given",
        ),
        (
            lambda v: _changed(v, "layers.0.act_fn", "alpha_p", float("nan")),
            True,
            r"layers.0.act_fn.alpha_p = nan is not finite",
        ),
        (
            lambda v: _changed(v, "layers.0.act_fn", "alpha_p", 1e300),
            True,
            r"layers.0.act_fn.alpha_p = \[1e\+300\] overflows torch.float32",
        ),
        (
            lambda v: _changed(v, "layers.0.act_fn", "alpha_q", 1.0),
            True,
            r"'alpha_q' is not a trainable parameter of layers.0.act_fn. Did you mean",
        ),
        (
            lambda v: {**v, "layers.3.act_fn": v["layers.0.act_fn"]},
            True,
            r"'layers.3.act_fn' is not a trainable activation of the model. Did you mean",
        ),
        (
            lambda v: {k: w for k, w in v.items() if k != "layers.1.act_fn"},
            True,
            r"no value is given for the trainable activation 'layers.1.act_fn'",
        ),
        (
            lambda v: {**v, "layers.1.act_fn": {"alpha_p": 1.0}},
            True,
            r"no value is given for the trainable parameter 'alpha_n' of layers.1.act_fn",
        ),
    ],
)
def test_all_values_are_imported_or_none(change: Any, raw: bool, message: str) -> None:
    model = _model(xielu(), xielu(), xielu(neurons=4))
    before = {name: p.detach().clone() for name, p in shape_parameters(model).items()}
    with pytest.raises(ConfigError, match=message):
        import_values(model, change(export_values(model, raw=raw)), raw=raw)
    for name, parameter in shape_parameters(model).items():
        assert torch.equal(parameter, before[name])


def test_whether_values_are_raw_must_be_said() -> None:
    with pytest.raises(TypeError, match="raw"):
        import_values(_model(xielu()), {})  # type: ignore[call-arg]
