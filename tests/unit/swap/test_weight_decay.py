"""Groups for optimizers, and steps that leave shape parameters out of weight decay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stamm
from stamm.base.errors import ConfigError
from stamm.swap.callback import keep_from_decay, summary
from stamm.swap.shapes import parameter_groups, shape_parameters, shape_values
from tests.unit.swap.small_models import build, move_shapes


def test_groups_of_a_swapped_model() -> None:
    model = build("LlamaForCausalLM")
    stamm.swap(model, "xielu", parameters="neuron")
    groups = {group["label"]: group for group in stamm.parameter_groups(model, weight_decay=0.1)}
    assert {label: group["weight_decay"] for label, group in groups.items()} == {
        "matrices": 0.1, "vectors": 0.0, "shapes": 0.0,
    }  # fmt: skip
    names = {id(p): name for name, p in model.named_parameters()}
    listed = [names[id(p)] for group in groups.values() for p in group["params"]]
    assert sorted(listed) == sorted(names.values())
    shapes = {names[id(p)] for p in groups["shapes"]["params"]}
    assert shapes == {name for name in names.values() if "alpha" in name} and len(shapes) == 4
    assert {names[id(p)] for p in groups["vectors"]["params"]} == {
        name for name in names.values() if "norm" in name
    }
    torch.optim.AdamW(parameter_groups(model, weight_decay=0.1), lr=1e-3).step()
    with pytest.raises(ConfigError, match="weight_decay = -1"):
        parameter_groups(model, weight_decay=-1)


def test_groups_of_stamms_own_modules() -> None:
    model = nn.Sequential(nn.Linear(3, 4), stamm.activation("xielu"))
    groups = parameter_groups(model, weight_decay=0.1)
    assert [len(group["params"]) for group in groups] == [1, 1, 2]


def test_effective_values() -> None:
    model = build("LlamaForCausalLM")
    stamm.swap(model, "xielu")
    values = shape_values(model)
    assert set(values) == set(shape_parameters(model))
    for name, value in values.items():
        assert value.item() == pytest.approx(0.8, rel=1e-6), name
    with torch.no_grad():
        model.model.layers[1].mlp.act_fn.alpha_n.fill_(2.0)
    expected = 0.5 + torch.nn.functional.softplus(torch.tensor(2.0, dtype=torch.float64)).item()
    whole = summary(shape_values(model))
    assert whole["activation/alpha_n_max"] == pytest.approx(expected, rel=1e-12)
    assert whole["activation/alpha_n_min"] == pytest.approx(0.8, rel=1e-6)
    assert whole["activation/alpha_n_mean"] == pytest.approx((expected + 0.8) / 2, rel=1e-6)


@pytest.mark.parametrize("foreach", [True, False])
def test_a_step_equals_that_of_separate_groups(foreach: bool) -> None:
    """AdamW over one decaying group, with hooks, and over the groups of `parameter_groups`."""
    models = [build("LlamaForCausalLM") for _ in range(2)]
    for model in models:
        stamm.swap(model, "xielu")
        move_shapes(model)
    hooked = torch.optim.AdamW(models[0].parameters(), lr=1e-2, weight_decay=0.5, foreach=foreach)
    shapes = {id(p) for p in shape_parameters(models[1]).values()}
    apart = torch.optim.AdamW(
        [
            {"params": [p for p in models[1].parameters() if id(p) not in shapes]},
            {"params": list(shape_parameters(models[1]).values()), "weight_decay": 0.0},
        ],
        lr=1e-2,
        weight_decay=0.5,
        foreach=foreach,
    )
    keep_from_decay(hooked, list(shape_parameters(models[0]).values()))
    order = [id(p) for p in hooked.param_groups[0]["params"]]
    scheduler = torch.optim.lr_scheduler.LambdaLR(hooked, lambda step: 1 / (1 + step))
    other = torch.optim.lr_scheduler.LambdaLR(apart, lambda step: 1 / (1 + step))
    for step in range(4):
        for model in models:
            for index, parameter in enumerate(model.parameters()):
                parameter.grad = torch.cos(parameter.detach() * index + step)
        hooked.step()
        apart.step()
        scheduler.step()
        other.step()
        assert len(hooked.param_groups) == 1
        assert [id(p) for p in hooked.param_groups[0]["params"]] == order
    for (name, ours), theirs in zip(
        models[0].named_parameters(), models[1].parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name


def test_a_failed_step_leaves_the_next_one_right() -> None:
    weight, shape = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight, shape], lr=0.1, weight_decay=0.5)
    keep_from_decay(optimizer, [shape])

    def fail() -> float:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step(fail)
    for parameter in (weight, shape):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert [len(group["params"]) for group in optimizer.param_groups] == [2]
    assert shape.item() == 1 and torch.equal(weight, torch.full((2, 2), 0.95))


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="NoneType is not an optimizer of torch"):
        keep_from_decay(None, [])
