"""Trainable shapes of activations under bfloat16: their numbers, gradients and moments stay float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stamm.activations import catalog
from stamm.activations.spec import Gated
from stamm.engine.config import EngineConfig, Parallel
from stamm.engine.distributed import DistributedContext, destroy_process_group, init_distributed
from stamm.engine.parallel import apply_fsdp
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdamW, AdEMAMix, Muon, OptimizerConfig
from stamm.optim.groups import parameter_groups
from stamm.optim.param_group_rules import grouped

TRAINED = [name for name in catalog.names() if catalog.get(name).trainable]
OPTIMIZERS: list[OptimizerConfig] = [AdamW(), AdEMAMix(), Muon()]


def _decoder(activation: str) -> Decoder:
    gated = isinstance(catalog.get(activation).arity, Gated)
    ffn = (GatedFFN if gated else PlainFFN)(width=24, activation=activation)
    return build_decoder(
        DecoderConfig(vocab_size=32, d_model=16, num_layers=2, num_heads=2, ffn=ffn), seed=0
    )


@pytest.mark.parametrize("activation", TRAINED)
def test_no_shape_of_the_catalogue_decays(activation: str) -> None:
    """Whatever it is called: found in the model by what it is, and in a plan by its name."""
    decoder = _decoder(activation)
    names = {id(p): name for name, p in decoder.named_parameters()}
    own = {
        f"model.layers.{i}.mlp.act_fn.{parameter.name}"
        for i in range(2)
        for parameter in catalog.get(activation).trainable
    }
    for config in OPTIMIZERS:
        free = {
            names[id(p)]
            for group in parameter_groups(decoder, config)
            if group["label"] == "shapes" and group["weight_decay"] == 0.0
            for p in group["params"]
        }
        assert free == own
        shapes = {name: tuple(p.shape) for name, p in decoder.named_parameters()}
        planned = [g for g in grouped(config, shapes) if g.label == "shapes"]
        assert [(set(g.sizes), g.weight_decay) for g in planned] == [(own, 0.0)]


@pytest.fixture
def world() -> Iterator[DistributedContext]:
    """One process, with the grid that casts of weights need."""
    yield init_distributed(Parallel(), torch.device("cpu"), collectives=True)
    destroy_process_group()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda config: type(config).__name__)
@pytest.mark.parametrize("activation", ["xielu", "swish_beta"])
def test_in_bfloat16_they_learn_in_float32(
    activation: str, optimizer: OptimizerConfig, world: DistributedContext
) -> None:
    """A step too small for bfloat16 moves them; nothing of theirs is ever stored in 16 bits."""
    decoder = _decoder(activation)
    apply_fsdp(decoder, world, EngineConfig(precision="bfloat16"))
    updater = ShardedOptimizer(
        decoder, lambda piece: build_optimizer(optimizer, decoder, 10, piece)
    )
    own = {n: p for n, p in decoder.named_parameters() if ".act_fn." in n}
    before = {name: p.detach().clone() for name, p in own.items()}
    tokens = torch.arange(40).view(2, 20) % 32
    seen: list[torch.dtype] = []
    decoder.get_submodule("model.layers.0.mlp.act_fn").register_forward_hook(
        lambda _module, _inputs, output: seen.append(output.dtype)
    )
    losses = decoder.losses(tokens, tokens.roll(-1, 1), torch.ones_like(tokens), 40.0)
    losses.loss.backward()  # type: ignore[no-untyped-call]
    assert seen == [torch.bfloat16]
    for name, parameter in own.items():
        gradient = parameter.grad
        assert parameter.dtype == torch.float32
        assert gradient is not None and gradient.dtype == torch.float32
        assert torch.equal(parameter, before[name])
        assert not torch.equal(gradient, gradient.bfloat16().float()), "rounded on the way"
    updater.step(1e-5)
    for name, parameter in own.items():
        assert not torch.equal(parameter, before[name])
        assert torch.equal(parameter.bfloat16(), before[name].bfloat16())
        moments = {k: v for k, v in updater.optimizer.state[parameter].items() if k != "step"}
        assert moments and all(m.dtype == torch.float32 for m in moments.values())
