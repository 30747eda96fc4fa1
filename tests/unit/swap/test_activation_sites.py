"""Which sites are activations of feed-forward blocks, and how their blocks use them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from stamm.swap.sites import activation_sites, is_feed_forward, neurons_of, unreachable_reason
from tests.unit.swap.small_models import MODELS, batch, build


class OwnActivation(nn.Module):
    """An activation that no library knows."""

    def forward(self, x: Tensor) -> Tensor:
        """x tanh(x)."""
        return x * torch.tanh(x)


class Block(nn.Module):
    """Attributes of several kinds; two of them are activations, one of them gates."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 24), nn.Linear(24, 8)
        self.own, self.softmax, self.drop = OwnActivation(), nn.Softmax(-1), nn.Dropout(0.5)
        self.line = lambda x: 2 * x + 1
        self.total = torch.sum
        self.bent = partial(nn.functional.leaky_relu, negative_slope=0.2)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        inner = self.drop(self.wide(x))
        gate = self.bent(inner)
        inner = self.own(inner) + self.softmax(inner)
        return self.narrow(gate * inner)


class Model(nn.Module):
    """A numbered layer, a sequence and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block()])
        self.more = nn.ModuleList([nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))])
        self.pooler = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.convolution = nn.ModuleList([nn.Sequential(nn.Conv1d(8, 8, 3), nn.GELU())])


def test_modules_and_functions_are_known_by_what_they_compute() -> None:
    model = Model().train()
    state = torch.random.get_rng_state()
    sites = {site.name: site for site in activation_sites(model)}
    assert torch.equal(torch.random.get_rng_state(), state)
    assert set(sites) == {
        "layers.0.own", "layers.0.bent", "more.0.1", "pooler.1", "convolution.0.1",
    }  # fmt: skip
    gated = {name for name, site in sites.items() if site.gated}
    assert gated == {"layers.0.bent"}
    inner = {name for name, site in sites.items() if is_feed_forward(site)}
    assert inner == {"layers.0.own", "layers.0.bent", "more.0.1"}
    assert not any(unreachable_reason(site) for site in sites.values())
    assert neurons_of(sites["layers.0.own"]) == 24 and neurons_of(sites["more.0.1"]) == 12


@pytest.mark.parametrize("name", MODELS)
def test_neurons_are_the_width_that_the_activation_sees(name: str) -> None:
    model, widths = build(name), {}
    sites = [site for site in activation_sites(model) if is_feed_forward(site)]
    for site in sites:
        assert isinstance(site.before, nn.Module)
        site.before.register_forward_hook(
            lambda module, given, _, name=site.name: widths.update({name: given[0].shape[-1]})
        )
    model(**batch(name))
    assert {site.name: neurons_of(site) for site in sites} == widths
